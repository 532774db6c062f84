// The last minutes of figures, which the state holds the newest of only; kept here, for as long as
// the page is open.

const KEPT = 120;
const past = new Map();

function remember(key, value) {
  const known = past.get(key) || [];
  known.push(Number.isFinite(value) ? value : null);
  if (known.length > KEPT) known.shift();
  past.set(key, known);
}

function recall(state) {
  const told = new Set();
  const keep = (key, value) => {
    told.add(key);
    remember(key, value);
  };
  for (const one of state.stages) keep(stageKey(one), one.rate);
  for (const one of state.rings) keep(`ring ${one.number}`, one.fill);
  for (const one of state.jobs) {
    keep(`lag ${one.number}`, one.lag_ms);
    keep(`steps ${one.number}`, one.step_rate);
  }
  for (const key of past.keys()) if (!told.has(key)) past.delete(key);
}

function stageKey(one) {
  return `stage ${one.job} ${one.name}`;
}

// A line of them, from 0 to the largest; top fixes that.
function spark(key, width = 96, height = 20, top = null) {
  const known = (past.get(key) || []).slice(-60);
  const most = top ?? Math.max(...known.map((one) => one ?? 0), 0);
  const at = (one, index) => [
    (2 + ((width - 6) * (index + 60 - known.length)) / 59).toFixed(1),
    (height - 3 - (most > 0 ? (Math.min(one, most) / most) * (height - 6) : 0)).toFixed(1),
  ];
  let path = "",
    last = null;
  known.forEach((one, index) => {
    if (one === null) {
      last = null;
      return;
    }
    const point = at(one, index);
    path += `${last === null ? "M" : "L"}${point.join(" ")}`;
    last = point;
  });
  return h(
    "svg",
    { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" },
    h("path", { d: `M0 ${height - 2.5}H${width}`, class: "floor" }),
    path && h("path", { d: path, class: "trace" }),
    last && h("circle", { cx: last[0], cy: last[1], r: 2 }),
  );
}
