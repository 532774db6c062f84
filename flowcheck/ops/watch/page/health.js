// The first thing seen: one word, its shape, its reason; and how old all of this is.

const WORDS = {
  exact: "Exact",
  behind: "Behind",
  tainted: "Tainted",
  stale: "Stale",
  ended: "Ended",
};
const VERSION = 2;
const SLOW_S = 1.5;

// What the page as a whole has to say: the state's word, or that nobody answers any more.
function wordOf(view) {
  if (view.live) {
    const { word, reason } = view.state.health;
    const known = Object.hasOwn(WORDS, word);
    return {
      kind: known ? word : "nobody",
      word: known ? WORDS[word] : shown(word, 24),
      reason: says(reason),
      remedy: (reason && reason.remedy) || "",
    };
  }
  if (view.state === null) {
    const asked = view.why ? `${view.why}.` : "";
    const told = view.why
      ? "Nothing is known of the chain."
      : "The watcher is asked for the first time.";
    return {
      kind: "nobody",
      word: view.why ? "No answer" : "Asking",
      reason: `${asked} ${told}`.trim(),
    };
  }
  const late = `No answer yet to what was asked ${span(view.asked)} ago: the watcher, the way to it or this browser is slow`;
  const still = "The watcher answers, but what it reads does not change";
  const why = view.why || (view.asked > SLOW_S ? late : still);
  const last = `${WORDS[view.state.health.word] || "?"}: ${says(view.state.health.reason)}`;
  const reason = `${why}. All that follows is as of ${clock(view.state.time_ns)}, ${span(view.age)} ago, and may be true no longer. It was ${last}`;
  return { kind: "nobody", word: view.why ? "No answer" : "Old", reason };
}

function hero(view) {
  const { kind, word, reason, remedy } = wordOf(view);
  const problems = view.state ? view.state.problems : [];
  return h(
    "header",
    { class: `hero is-${kind}`, "aria-label": "Health" },
    shape(kind, 56, { class: `shape badge mark-${kind}` }),
    h(
      "div",
      { class: "verdict" },
      h("h1", { id: "word" }, word),
      h("p", { class: "reason", id: "reason" }, foreign(reason, 600)),
      remedy && h("p", { class: "reason", id: "remedy" }, foreign(remedy, 600)),
    ),
    h("div", { class: "about" }, about(view)),
    h(
      "div",
      { class: "warnings" },
      !view.live &&
        view.why &&
        h(
          "p",
          {},
          view.wait > 0 ? `Asked again in ${Math.ceil(view.wait)} s. ` : "Asking. ",
          h("button", { type: "button", onclick: view.again }, "Ask now"),
        ),
      problems.map((one) =>
        h(
          "p",
          { class: "problem" },
          shape("missing", 13),
          " not read just now: ",
          foreign(says(one), 300),
        ),
      ),
    ),
  );
}

function about(view) {
  const state = view.state;
  if (state === null) return h("p", {}, h("b", {}, "FlowCheck"));
  const beat = !view.live
    ? "not known"
    : state.beat_age_s === null
      ? "none yet"
      : `${span(state.beat_age_s + view.age)} ago`;
  const pair = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
  return h(
    "dl",
    {},
    pair("Run", foreign(state.run, 80)),
    pair("Read", h("span", { id: "age" }, `${span(view.age)} ago`, view.live ? "" : ": OLD")),
    pair("Heartbeat", beat),
    pair(
      "Began",
      view.live && state.started_ns ? `${span((view.now - state.started_ns) / 1e9)} ago` : NONE,
    ),
    state.ending && state.stages.length > 0 && pair("Told to end", "yes"),
  );
}

function title(view) {
  const { word } = wordOf(view),
    upper = word.toUpperCase();
  if (!view.live) return `${upper}${view.state ? ` for ${span(view.age)}` : ""} · FlowCheck`;
  const job = view.job,
    more = view.state.jobs.length > 1 ? ` · ${view.state.jobs.length} jobs` : "";
  return `${upper}${job && job.step !== null ? ` · step ${count(job.step)}` : ""}${more} · FlowCheck`;
}

const FILLS = {
  exact: "#009e73",
  behind: "#e69f00",
  tainted: "#cc79a7",
  stale: "#d55e00",
  ended: "#0072b2",
  nobody: "#fff",
};

// The tab's own picture is the same shape.
function icon(kind) {
  const cut = "fill='none' stroke='#fff' stroke-width='3'";
  const dark = "fill='none' stroke='#000' stroke-width='2.5'";
  const parts = SHAPES[kind].map(([tag, props]) => {
    const lined = /cut/.test(props.class || "")
      ? cut
      : /line|dashes/.test(props.class || "")
        ? dark
        : `fill='${FILLS[kind]}'`;
    const told = Object.entries(props)
      .filter(([name]) => name !== "class")
      .map(([name, value]) => `${name}='${value}'`);
    return `<${tag} ${told.join(" ")} ${lined}/>`;
  });
  return `data:image/svg+xml,${encodeURIComponent(`<svg xmlns='${SVG}' viewBox='0 0 24 24'>${parts.join("")}</svg>`)}`;
}
