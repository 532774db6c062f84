// What happened, the newest first.

const OF_KIND = {
  heal: "healed",
  save: "durable",
  save_failed: "failed",
  anchor: "anchor",
  audit_skipped: "missing",
  restart: "restart",
  fault: "failed",
};

// The word for one of what an event counts; what another release counts is called as it says.
const ONE_OF = {
  frames: "frame",
  packets: "packet",
  bytes: "byte",
  step: "step",
  "doubtful bytes": "doubtful byte",
  lines: "line",
};

function thingsOf(one) {
  const what = one.what || "";
  return Object.hasOwn(ONE_OF, what) ? some(one.count, ONE_OF[what]) : `${count(one.count)} ${what}`;
}

function eventShape(one) {
  if (one.kind === "loss") return one.what === "step" ? "lost" : "missing";
  if (one.kind === "audit") return one.passed === false ? "failed" : "passed";
  return Object.hasOwn(OF_KIND, one.kind) ? OF_KIND[one.kind] : "note";
}

function eventWords(one) {
  const said = says(one.why) || one.name || one.path || "",
    why = said ? `: ${said}` : "",
    of = one.count ? thingsOf(one) : "";
  const step = one.step === undefined || one.step === null ? "" : `step ${count(one.step)}`;
  const size = one.bytes ? bytes(one.bytes) : "",
    took = one.seconds ? ` in ${milliseconds(one.seconds * 1000)}` : "";
  switch (one.kind) {
    case "loss":
      return one.what === "step"
        ? `${step} lost${why}${size ? `; ${size} of it are missing` : ""}`
        : `${of} missing${why}`;
    case "heal":
      return one.what === "step" ? `${step} healed${why}` : `${of} healed${why}`;
    case "save":
      return `${step} durable${why}${size ? ` (${size}${took})` : ""}`;
    case "save_failed":
      return `saving ${step} failed${why}`;
    case "audit":
      return `audit of ${step} ${one.passed === false ? "FAILED" : "passed"}${why}`;
    case "audit_skipped":
      return `a checkpoint was not audited${why}`;
    case "anchor":
      return one.passed === false
        ? `the trainer's file of ${step} REFUSED as base${why}`
        : `${step} replaced by the trainer's file (base)${why}`;
    case "note":
      return `${one.stage ? `${one.stage}: ` : ""}${said}`;
    case "drained":
      return `${one.stage} has taken all there was${why}`;
    case "learned":
      return `job learned${why}`;
    case "restart":
      return said || `${one.stage} was restarted`;
    case "fault":
      return `${one.stage} cannot go on${why}`;
    case "up":
      return `${one.stage || "a stage"} is up`;
    case "source_ended":
      return `a source ended after ${of}${why}`;
    default:
      return `${String(one.kind).replaceAll("_", " ")}${one.stage ? ` ${one.stage}` : ""}${step ? ` ${step}` : ""}${why}`;
  }
}

function eventsCard(view) {
  const events = [...view.state.events].reverse(),
    several = view.state.jobs.length > 1;
  return h(
    "section",
    { class: "card", "aria-label": "Event history" },
    h("h2", {}, "Events ", h("small", {}, `newest first, ${zone()}`)),
    events.length
      ? h(
          "ol",
          { class: "events", tabindex: "0", "aria-label": "Events, newest first" },
          events.map((one) =>
            h(
              "li",
              { "data-kind": one.kind },
              h("span", { class: "when" }, time(one.time_ns)),
              shape(eventShape(one), 14),
              h(
                "span",
                { class: "what" },
                several && h("span", { class: "quiet" }, `job ${one.job ?? 1} `),
                foreign(eventWords(one), 400),
              ),
            ),
          ),
        )
      : h("p", { class: "quiet" }, "None yet."),
    h(
      "p",
      { class: "quiet" },
      "Since the chain began: ",
      Object.entries(view.state.event_counts)
        .map(([kind, number]) => `${shown(kind.replaceAll("_", " "), 20)} ${count(number)}`)
        .join(", ") || "nothing",
    ),
  );
}
