// In words and figures what the drawing of the steps shows: the chosen one, the marked ones, all.

const MOST_MARKED = 8;

function stepDetails(view) {
  const job = view.job,
    one = job.timeline.find((each) => each.step === view.chosen);
  if (!one) return h("p", { class: "chosen-step quiet" }, "");
  const lanes = lanesOf(one, job),
    lag = lagMs(one);
  const pair = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
  const applied =
    lanes.applied === "some"
      ? "with a later one"
      : lanes.applied === "wait"
        ? one.logged
          ? "logged, waits for a base"
          : "waits"
        : time(one.applied_ns);
  return h(
    "div",
    { class: "chosen-step", id: "chosen-step" },
    h(
      "h3",
      {},
      `Step ${count(one.step)}`,
      view.pinned ? "" : h("span", { class: "quiet" }, " (the newest)"),
    ),
    h(
      "dl",
      {},
      pair(
        "Arrived",
        one.arrived_ns ? time(one.arrived_ns) : lanes.arrived === "some" ? "yes" : "not whole",
      ),
      pair("Applied", applied),
      pair("Later by", milliseconds(lag)),
      pair("Taking it took", one.seconds === null ? NONE : milliseconds(one.seconds * 1000)),
      pair("Durable", one.durable_ns ? time(one.durable_ns) : "no checkpoint of it"),
    ),
    marksOf(one).map((mark) =>
      h("p", { class: "mark" }, shape(mark.kind), " ", foreign(mark.sentence, 400)),
    ),
  );
}

function marked(view) {
  const all = view.job.timeline.filter((one) => marksOf(one).length).reverse();
  const { lost_step: lost, lost_why: why } = view.job;
  if (!all.length && lost !== null)
    return h(
      "p",
      { class: "mark" },
      shape("lost"),
      ` step ${count(lost)} was lost, the replica waits before it`,
      why ? [": ", foreign(says(why), 200)] : "",
    );
  if (!all.length)
    return h(
      "p",
      { class: "quiet" },
      "Nothing was lost, healed, tainted, audited or anchored in these steps.",
    );
  return h(
    "ul",
    { class: "marked", "aria-label": "Steps that are marked, newest first" },
    all.slice(0, MOST_MARKED).map((one) =>
      h(
        "li",
        { key: `${view.job.number} ${one.step}` },
        h(
          "button",
          {
            type: "button",
            onclick: () => view.choose(one.step),
            "aria-pressed": String(view.pinned && one.step === view.chosen),
          },
          h("b", {}, `step ${count(one.step)}`),
          marksOf(one).map((mark) => [" ", shape(mark.kind), " ", foreign(mark.sentence, 200)]),
        ),
      ),
    ),
    all.length > MOST_MARKED &&
      h(
        "li",
        { class: "quiet" },
        `and ${some(all.length - MOST_MARKED, "more step")}, in the table`,
      ),
  );
}

function legend() {
  const lane = (kind, words) =>
    h(
      "li",
      {},
      h(
        "svg",
        { width: 16, height: LANE, viewBox: `0 0 16 ${LANE}`, "aria-hidden": "true" },
        kind === "saved"
          ? h("circle", { cx: 8, cy: LANE / 2, r: 5.5, class: "saved" })
          : cell(kind, 2, 0, 12),
      ),
      words,
    );
  return h(
    "ul",
    { class: "legend", "aria-label": "Legend of the steps" },
    lane("full", "done"),
    lane("some", "done, time not told"),
    lane("wait", "waits"),
    lane("none", "not done"),
    lane("saved", "checkpoint whole"),
    Object.entries(MARKS).map(([kind, words]) => h("li", {}, shape(kind), words)),
  );
}

function stepTable(view) {
  const job = view.job,
    row = (one) =>
      h(
        "tr",
        { key: `${job.number} ${one.step}` },
        h("th", { scope: "row" }, count(one.step)),
        h("td", {}, time(one.arrived_ns)),
        h("td", {}, time(one.applied_ns)),
        h("td", {}, milliseconds(lagMs(one))),
        h("td", {}, time(one.durable_ns)),
        h(
          "td",
          { class: "wide" },
          marksOf(one)
            .map((mark) => mark.sentence)
            .join("; "),
        ),
      );
  return h(
    "details",
    { ontoggle: view.ontoggle, id: "step-table" },
    h("summary", {}, `The same as a table (${some(job.timeline.length, "step")}, newest first)`),
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of the steps" },
      view.open.has("step-table") &&
        h(
          "table",
          {},
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              ["Step", "Arrived", "Applied", "Later by", "Durable", "What befell it"].map((one) =>
                h("th", { scope: "col" }, one),
              ),
            ),
          ),
          h("tbody", {}, [...job.timeline].reverse().map(row)),
        ),
    ),
  );
}

function stepsCard(view) {
  return h(
    "section",
    {
      class: "card",
      id: "steps",
      "aria-label": `Steps of ${shown(view.job.name, 60)}`,
      tabindex: "-1",
    },
    h("h2", {}, "Steps"),
    view.job.logged &&
      h(
        "p",
        { class: "quiet", id: "logged" },
        "Counted from when the job was joined midstream: they are logged, and wait for a base.",
      ),
    timeline(view),
    stepDetails(view),
    marked(view),
    legend(),
    stepTable(view),
  );
}
