// The processes, the rings of the mirror ports, and what was lost on the way.

const LOSSES = {
  ring_full_frames: "the ring was full",
  oversize_frames: "larger than a slot",
  nic_missed_frames: "the NIC had no room (missed)",
  nic_no_mbuf_frames: "no buffer was free",
  nic_error_frames: "damaged on the way (NIC errors)",
  interface_missed_frames: "the kernel had no room (dropped at the interface)",
};
// The span of the watcher's rates (stage_processes.py).
const RATE_S = 5;
const HIGH = 0.5,
  FULL = 0.9;

function stagesCard(view) {
  const { stages, jobs } = view.state;
  const isDown = (one) => one.pid === null && one.started;
  const down = stages.filter(isDown).length;
  const first = [...stages.filter(isDown), ...stages.filter((one) => !isDown(one))];
  const told = down ? `${some(down, "stage")} down` : `${stages.length} up`;
  return h(
    "section",
    { class: "card", "aria-label": "Stages" },
    h("h2", {}, "Stages ", h("small", {}, `${told}; rates of the last ${RATE_S} s`)),
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of the stages" },
      h(
        "table",
        { class: "stages" },
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            ["Stage", "Does"].map((one) => h("th", { scope: "col" }, one)),
          ),
        ),
        h(
          "tbody",
          {},
          first.map((one) => stageRow(view, one, jobs.length > 1)),
        ),
      ),
    ),
  );
}

function stageRow(view, one, several) {
  const is = one.pid !== null ? "up" : one.started ? "down" : "to be started";
  const restarts = one.restarts ? `, ${some(one.restarts, "restart")}` : "";
  return h(
    "tr",
    { key: stageKey(one) },
    h(
      "th",
      { scope: "row" },
      is === "down" && [shape("failed", 13), " "],
      foreign(one.name, 40),
      several && h("span", { class: "quiet" }, ` job ${one.job}`),
      h(
        "span",
        { class: "is quiet" },
        is === "up" ? is : h("b", {}, is),
        restarts,
        one.pid !== null ? `, pid${TIED}${one.pid}` : "",
      ),
    ),
    h(
      "td",
      { class: "rate" },
      one.unit &&
        h(
          "span",
          {},
          view.live ? rate(one.rate, one.unit) : NONE,
        ),
      one.unit && [
        spark(stageKey(one)),
        h(
          "span",
          { class: "is quiet" },
          one.bytes_s !== null && view.live ? `${bytes(one.bytes_s)}/s, ` : "",
          one.done === null ? "" : `${count(one.done)} ${shown(one.unit, 12)} so far`,
        ),
      ],
    ),
  );
}

function ringsCard(view) {
  const rings = view.state.rings;
  const fullest = rings.reduce(
    (most, one) => (most === null || one.fill > most.fill ? one : most),
    null,
  );
  return h(
    "section",
    { class: "card", "aria-label": "Rings of the mirror ports" },
    h(
      "h2",
      {},
      "Mirror ports ",
      h(
        "small",
        {},
        fullest && rings.length > 1
          ? `${rings.length} rings, the fullest ${percent(fullest.fill)} (${fullest.number})`
          : "",
      ),
    ),
    rings.length
      ? h(
          "ul",
          { class: "rings", tabindex: rings.length > 4 ? "0" : null, "aria-label": "Rings" },
          rings.map(ringRow),
        )
      : h("p", { class: "quiet" }, "No ring yet."),
  );
}

function ringRow(one) {
  const lost = Object.values(one.lost).reduce((sum, each) => sum + each, 0);
  const level = one.fill >= FULL ? "full" : one.fill >= HIGH ? "high" : "low";
  const word = { full: " FULL", high: " high", low: "" }[level];
  return h(
    "li",
    { key: one.number },
    h("div", { class: "ringname" }, h("b", {}, one.number), " ", foreign(one.source, 60)),
    h(
      "div",
      {
        class: `bar ${level}`,
        role: "meter",
        "aria-label": `Fill of ring ${one.number}`,
        "aria-valuemin": "0",
        "aria-valuemax": "100",
        "aria-valuenow": String(Math.round(one.fill * 1000) / 10),
      },
      h("span", { style: [["width", `${Math.min(100, one.fill * 100)}%`]] }),
    ),
    h(
      "div",
      { class: "ringfacts" },
      h("span", {}, `${percent(one.fill)}${word}`),
      h("span", { class: "quiet" }, ` of ${count(one.slots)} slots`),
      spark(`ring ${one.number}`, 72, 16, 1),
      lost > 0 && h("span", {}, shape("missing", 12), ` ${count(lost)} lost`),
      one.missing_packets > 0 &&
        h("span", {}, shape("missing", 12), ` ${count(one.missing_packets)} missing`),
    ),
  );
}

// [{name, words, count}], of all rings and jobs.
function lossesOf(state) {
  const sums = new Map(Object.keys(LOSSES).map((name) => [name, 0]));
  for (const ring of state.rings)
    for (const [name, lost] of Object.entries(ring.lost))
      sums.set(name, (sums.get(name) || 0) + lost);
  return [
    {
      name: "missing_packets",
      words: "no mirror brought them, now",
      unit: "packet",
      count: state.rings.reduce((sum, one) => sum + one.missing_packets, 0),
    },
    ...[...sums].map(([name, lost]) => ({
      name,
      words: LOSSES[name] || shown(name.replaceAll("_", " "), 60),
      unit: "frame",
      count: lost,
    })),
    {
      name: "flow_table_full_packets",
      words: "the table of flows was full: their queue pairs are not followed",
      unit: "packet",
      count: state.rings.reduce((sum, one) => sum + (one.parse.flow_table_full_packets || 0), 0),
    },
    {
      name: "steps_lost",
      words: "cannot be rebuilt, since the chain began",
      unit: "step",
      count: state.jobs.reduce((sum, one) => sum + one.steps_lost, 0),
    },
  ];
}

function lossCard(view) {
  const { rings, jobs } = view.state;
  const losses = lossesOf(view.state),
    any = losses.some((one) => one.count > 0);
  const none = rings.length || !jobs.length ? "none" : "the rings are gone: see the events";
  return h(
    "section",
    { class: "card", "aria-label": "Loss by kind" },
    h("h2", {}, "Loss by kind ", h("small", {}, any ? "" : none)),
    h(
      "table",
      { class: "losses" },
      h(
        "tbody",
        {},
        losses.map((one) =>
          h(
            "tr",
            { class: one.count ? "some" : "zero", "data-loss": one.name },
            h(
              "td",
              { class: "figure" },
              one.count > 0 && [shape(one.unit === "step" ? "lost" : "missing", 13), " "],
              some(one.count, one.unit),
            ),
            h("td", {}, one.words),
          ),
        ),
      ),
    ),
    h(
      "p",
      { class: "quiet" },
      shape("healed", 12),
      ` ${some(view.state.packets_came_late, "packet")} came late, not counted here.`,
    ),
  );
}
