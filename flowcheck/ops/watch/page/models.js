// What of each model is not exact: the tensors of all jobs that have its parts, and their sums.

const MOST_TENSORS = 50;
const MOST_RANGES = 3;

// In states of earlier releases there are none.
function modelCards(view) {
  return (view.state.models || [])
    .filter((model) => model.tainted_elements > 0)
    .map((model) => modelCard(model));
}

function modelCard(model) {
  const jobs = model.jobs.map((name) => shown(name, 60)).join(", ");
  const tensors = model.tensors.slice(0, MOST_TENSORS);
  const left = model.tensors.length - tensors.length + model.tensors_left_out;
  const head = ["Job", "Tensor", "Tainted", "Of", "Of the model", "Since step", "Elements"];
  return h(
    "section",
    { class: "card model", key: `model ${jobs}`, "aria-label": `Tainted elements of ${jobs}` },
    h("h2", {}, "Tainted elements"),
    h("p", { class: "mark" }, shape("tainted", 16), " ", foreign(says(model.told), 600)),
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of tainted elements" },
      h(
        "table",
        {},
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            head.map((one) => h("th", { scope: "col" }, one)),
          ),
        ),
        h(
          "tbody",
          {},
          tensors.map((one) => tensorRow(one)),
          left > 0 &&
            h("tr", {}, h("td", { colspan: String(head.length) }, `and ${some(left, "more tensor")}`)),
          h(
            "tr",
            {},
            h("th", { scope: "row" }, "All"),
            h("td", {}, ""),
            sums(model, model.percent),
            h("td", {}, ""),
          ),
        ),
      ),
    ),
  );
}

function tensorRow(one) {
  return h(
    "tr",
    { key: `${one.job} ${one.parameter}` },
    h("th", { scope: "row" }, foreign(one.job, 60)),
    h("td", {}, foreign(one.parameter, 120)),
    sums(one, one.model_percent),
    h("td", { class: "wide" }, rangeWords(one)),
  );
}

function sums(one, percent) {
  const number = (value) => (value === null ? NONE : count(value));
  return [
    h("td", {}, number(one.tainted_elements)),
    h("td", {}, number(one.all_elements)),
    h("td", {}, percent === null ? NONE : `${percent} %`),
    h("td", {}, number(one.since)),
  ];
}

function rangeWords(one) {
  const ranges = one.ranges.slice(0, MOST_RANGES).map(([start, stop]) => `${start}-${stop - 1}`);
  const left = one.ranges.length - ranges.length + one.ranges_left_out;
  return ranges.join(", ") + (left > 0 ? ` and ${some(left, "more range")}` : "");
}
