// The newest steps of a job as columns of three lanes: arrived, applied, durable; above them what
// befell a step, below them how long the replica took to take it.

const LANE = 20;
const LABEL = 13;
const GLYPH = 15;
const LAGS = 30;
const LEVELS = 3;
const LAG_FLOOR_MS = 1;

function timeline(view) {
  const job = view.job,
    steps = job.timeline;
  if (!steps.length) return h("p", { class: "quiet" }, "No step has come yet.");
  const wide = Math.min(26, Math.max(view.width > 900 ? 9 : 11, view.width / steps.length));
  const width = Math.max(view.width, wide * steps.length);
  const marks = steps.map(marksOf);
  const stack = Math.min(3, Math.max(0, ...marks.map((all) => all.length)));
  const labels = placeLabels(steps, marks, wide, width);
  const levels = labels.reduce((most, one) => Math.max(most, one.level + 1), 0);
  const top = levels * LABEL + stack * GLYPH + 4;
  const lags = steps.map(lagMs),
    most = Math.max(10, ...lags.map((one) => one ?? 0));
  const height = top + 3 * LANE + LAGS + 18;
  const space = { view, job, wide, top, width, stack, most, labels, levels, height };
  return h(
    "div",
    { class: "timeline" },
    h(
      "div",
      { class: "lanes", "aria-hidden": "true" },
      h("span", { style: [["height", `${top}px`]] }, stack ? "marks" : ""),
      ["arrived", "applied", "durable"].map((one) =>
        h("span", { style: [["height", `${LANE}px`]] }, one),
      ),
      h(
        "span",
        { class: "lag", style: [["height", `${LAGS}px`]] },
        "delay, to ",
        h("br"),
        milliseconds(most),
      ),
    ),
    h(
      "div",
      {
        class: "columns",
        id: "columns",
        role: "listbox",
        tabindex: "0",
        "aria-orientation": "horizontal",
        "aria-label": `Steps of ${shown(job.name, 60)}, oldest first; arrow keys choose one`,
        "aria-activedescendant": `step-${view.chosen}`,
        onkeydown: view.onkey,
        onpointermove: (event) => view.onpoint(event, wide),
        onpointerleave: view.onleave,
        onclick: (event) => view.onpick(event, wide),
      },
      h(
        "svg",
        { width, height, viewBox: `0 0 ${width} ${height}`, role: "presentation" },
        h("g", {}, cover(space, steps)),
        steps.map((one, index) => column(space, one, marks[index], lags[index], index)),
        h(
          "g",
          { class: "words", "aria-hidden": "true" },
          labels.map((one) => label(space, one)),
        ),
      ),
    ),
  );
}

// A label for each marked step where there is room: its text ends at the step, in the lowest level
// that no other's text or line takes. Of too many the older give way (the list below has them all).
function placeLabels(steps, marks, wide, width) {
  const labels = [];
  steps.forEach((one, index) => {
    if (!marks[index].length) return;
    const text = `${one.step}: ${marks[index].map((each) => each.label).join(", ")}`;
    const size = text.length * 6.4 + 6,
      x = (index + 0.5) * wide;
    const right = Math.min(width - 2, Math.max(x + 5, size));
    labels.push({ text, x, right, left: right - size, level: 0 });
  });
  for (let failed = levelled(labels); failed >= 0; failed = levelled(labels))
    labels.splice(Math.max(0, failed - 1), 1);
  return labels;
}

// Gives each its level, from left to right; the place of the first that has none, or -1.
function levelled(labels) {
  const ends = Array(LEVELS).fill(-1);
  return labels.findIndex((one) => {
    one.level = ends.findIndex((end) => one.left >= end);
    if (one.level < 0) return true;
    for (let level = 0; level < one.level; level++) ends[level] = Math.max(ends[level], one.x + 3);
    ends[one.level] = one.right + 4;
    return false;
  });
}

function label(space, one) {
  const y = (space.levels - 1 - one.level) * LABEL + LABEL - 3;
  return h(
    "g",
    {},
    h("path", { d: `M${one.x} ${y + 3}V${space.levels * LABEL + 1}`, class: "leader" }),
    h("text", { x: one.right, y, "text-anchor": "end" }, one.text),
  );
}

// As far as a checkpoint reaches, the durable lane has a floor: what lies right of it would be lost.
function cover(space, steps) {
  const durable = durableStep(space.job);
  const upto = steps.filter((one) => durable !== null && one.step <= durable).length;
  const y = space.top + 2.5 * LANE;
  return [
    upto > 0 && h("path", { d: `M0 ${y}H${upto * space.wide}`, class: "cover" }),
    upto < steps.length &&
      h("path", {
        d: `M${upto * space.wide} ${y}H${steps.length * space.wide}`,
        class: "uncovered",
      }),
  ];
}

function column(space, one, marks, lag, index) {
  const { view, job, wide, top } = space,
    x = index * wide,
    middle = x + wide / 2;
  const lanes = lanesOf(one, job),
    chosen = one.step === view.chosen;
  const every = wide < 16 ? 10 : 5;
  return h(
    "g",
    {
      key: `${job.number} ${one.step}`,
      id: `step-${one.step}`,
      role: "option",
      class: chosen ? (view.pinned ? "column chosen pinned" : "column chosen") : "column",
      "aria-selected": String(chosen),
      "aria-label": sentenceOf(one, job),
      "data-marks": marks.map((mark) => mark.kind).join(" ") || null,
    },
    h("rect", {
      x: x + 0.5,
      y: space.levels * LABEL + 1.5,
      width: wide - 1,
      height: space.height - space.levels * LABEL - 3,
      class: "touch",
    }),
    marks
      .slice(0, 3)
      .map((mark, place) =>
        placed(mark.kind, middle, top - (place + 0.5) * GLYPH - 2, Math.min(12, wide + 1)),
      ),
    cell(lanes.arrived, x, top, wide),
    cell(lanes.applied, x, top + LANE, wide),
    lanes.durable === "full" &&
      h("circle", {
        cx: middle,
        cy: top + 2.5 * LANE,
        r: Math.min(5.5, wide / 2 - 0.5),
        class: "saved",
      }),
    lag !== null && lagBar(space, lag, x),
    one.step % every === 0 && stepNumber(space, count(one.step), middle),
  );
}

// Below the middle of its column, or as near to that as the drawing's edges let it.
function stepNumber(space, words, middle) {
  const half = words.length * 3.4;
  const x = Math.min(space.width - half, Math.max(half, middle));
  const place = { x, y: space.height - 3, "text-anchor": "middle", "aria-hidden": "true" };
  return h("text", { ...place, class: "number" }, words);
}

// Full: done. Some: done, at a time that is not known. Wait: it is to be. None: not done.
function cell(kind, x, y, wide) {
  const inset = Math.min(1.5, wide * 0.12),
    left = x + inset,
    size = wide - 2 * inset,
    middle = y + LANE / 2;
  if (kind === "full")
    return h("rect", { x: left, y: y + 3, width: size, height: LANE - 6, rx: 2, class: "full" });
  if (kind === "some")
    return h("rect", { x: left, y: middle - 2, width: size, height: 4, rx: 1, class: "some" });
  if (kind === "wait")
    return h("rect", {
      x: left + 0.5,
      y: y + 3.5,
      width: size - 1,
      height: LANE - 7,
      rx: 2,
      class: "wait",
    });
  return h("path", { d: `M${x + wide / 2 - 1.5} ${middle}h3`, class: "none" });
}

// Logarithmic, from a millisecond to the longest.
function lagBar(space, lag, x) {
  const share =
    Math.log(Math.max(LAG_FLOOR_MS, lag) / LAG_FLOOR_MS) / Math.log(space.most / LAG_FLOOR_MS);
  const tall = Math.max(1.5, share * (LAGS - 8)),
    y = space.top + 3 * LANE + LAGS - 2;
  return h("rect", {
    x: x + space.wide * 0.2,
    y: y - tall,
    width: space.wide * 0.6,
    height: tall,
    class: "lagbar",
  });
}
