// One job in figures, all jobs to choose from, and what a job rests on.

// Of so many steps the watcher tells the rate (step_history.py).
const RATE_STEPS = 10;

function jobsCard(view) {
  const jobs = view.state.jobs;
  if (jobs.length < 2) return null;
  return h(
    "section",
    { class: "card jobs", "aria-label": "Jobs" },
    h("h2", {}, "Jobs ", h("small", {}, "choose the one that is shown")),
    h(
      "ul",
      {},
      jobs.map((one) => {
        const word = Object.hasOwn(WORDS, one.health.word) ? one.health.word : "nobody";
        return h(
          "li",
          { key: one.number },
          h(
            "button",
            {
              type: "button",
              "aria-pressed": String(one.number === view.job.number),
              onclick: () => view.onjob(one.number),
            },
            shape(word, 22),
            h(
              "span",
              { class: "who" },
              h("b", {}, foreign(one.name, 60)),
              h(
                "span",
                {},
                `${WORDS[word] || shown(one.health.word, 24)}, step ${one.step === null ? NONE : count(one.step)}, ${some(one.lag_steps, "step")} behind`,
              ),
            ),
          ),
        );
      }),
    ),
  );
}

function tile(name, value, more, extra) {
  return h(
    "div",
    { class: "tile" },
    h("dt", {}, name),
    h("dd", { class: "value" }, value),
    h("dd", { class: "more" }, more),
    extra ? h("dd", { class: "extra" }, extra) : "",
  );
}

function tiles(view) {
  const job = view.job,
    lags = job.lag_steps
      ? `the first for ${milliseconds(job.lag_ms)}`
      : `taken in ${milliseconds(job.lag_ms)}`;
  const speed = view.live ? rate(job.step_rate, "steps") : NONE;
  const of = speed === NONE ? "" : ` (last ${RATE_STEPS})`;
  const way = job.under_way === null ? "" : `, ${percent(job.under_way)} of the next`;
  return h(
    "dl",
    { class: "tiles", "aria-label": "The job in figures" },
    tile(
      "Replica is at",
      job.step === null ? NONE : `step ${count(job.step)}`,
      [time(job.step_ns), `, ${speed}${of}`],
      spark(`steps ${job.number}`, 110, 18),
    ),
    tile("Behind", some(job.lag_steps, "step"), lags, spark(`lag ${job.number}`, 110, 18)),
    tile("Arrived", job.arrived_step === null ? NONE : `step ${count(job.arrived_step)}`, [
      job.logged ? "since it was joined" : "whole",
      way,
    ]),
    durableTile(view),
    tile(
      "Lost",
      lostWords(view, job),
      job.lost_step === null
        ? "steps that cannot be rebuilt"
        : [shape("lost", 13), ` waits before step ${count(job.lost_step)}`],
    ),
    auditTile(job),
  );
}

function lostWords(view, job) {
  return job.steps_lost ? [shape("lost", 18), " ", some(job.steps_lost, "step")] : "0 steps";
}

// Of the newest durable checkpoint that is exact; null: there is none.
function durableStep(job) {
  const kept = job.durable;
  if (!kept) return null;
  return kept.doubt ? kept.exact_step : kept.step;
}

function durableTile(view) {
  const job = view.job,
    kept = job.durable;
  if (kept === null && job.kept_at)
    return tile("Durable", "at its end", ["in ", foreign(job.kept_at, 60)]);
  if (kept === null) return tile("Durable", "nothing", "the job file states no [persist]");
  const exact = durableStep(job),
    none = kept.step === null ? "no step yet" : "none exact";
  const value = exact === null ? none : `step ${count(exact)}`;
  const made = kept.doubt ? kept.exact_time_ns : kept.time_ns;
  const ago = made ? `${span((view.now - made) / 1e9)} ago, ` : "";
  const doubt = kept.doubt ? [shape("failed", 13), " ", foreign(says(kept.doubt), 200)] : "";
  const short = kept.short ? [shape("failed", 13), " ", foreign(says(kept.short), 200)] : "";
  const share = kept.done_share === null ? "" : ` ${percent(kept.done_share)}`;
  const now = kept.error
    ? [
        shape("failed", 13),
        " ",
        some(kept.attempts, "attempt"),
        " failed: ",
        foreign(says(kept.error), 200),
      ]
    : kept.phase
      ? `${shown(kept.phase, 20)} the next${share}`
      : "";
  return tile(
    "Durable",
    value,
    [ago, `${count(kept.count)} saved`],
    [
      ...[doubt, short, now].flatMap((one) => [one, one ? h("br") : ""]),
      h("span", { class: "quiet" }, foreign(kept.target, 60)),
    ],
  );
}

function equalWords(job) {
  const step = job.equal_step;
  return step === null || step === undefined
    ? "no step before it was found equal"
    : `last found equal: step ${count(step)}`;
}

function auditTile(job) {
  const rests = job.assumed.length
    ? `rests on ${some(job.assumed.length, "assumption")}`
    : "rests on no assumption";
  if (job.audited_step === null && job.audit_passed === null) return tile("Audit", "never", rests);
  const passed = job.audit_passed === true;
  return tile(
    "Audit",
    [shape(passed ? "passed" : "failed", 18), passed ? " passed" : " FAILED"],
    `at step ${job.audited_step === null ? NONE : count(job.audited_step)}; ${passed ? rests : equalWords(job)}`,
  );
}

function jobCard(view) {
  const job = view.job,
    several = view.state.jobs.length > 1;
  const lists = [
    ["Not learned yet, because", job.why_not, true],
    ["Tainted", job.tainted, true],
    ["Assumed: nothing seen could have contradicted it", job.assumed, false],
  ];
  const follows = job.follows ? `follows ${shown(job.follows, 30)}` : "not learned yet";
  const life = job.life > 1 ? `, life ${job.life}` : "";
  const served = job.served ? [", served at ", foreign(job.served, 120)] : "";
  return h(
    "section",
    { class: "card job", "aria-label": `Job ${shown(job.name, 60)}` },
    h(
      "h2",
      {},
      "Job ",
      foreign(job.name, 80),
      h(
        "small",
        {},
        ` ${follows}${life}`,
        job.gradient_bytes ? `, ${bytes(job.gradient_bytes)} a step` : "",
        served,
      ),
    ),
    several &&
      h(
        "p",
        { class: "mark" },
        shape(Object.hasOwn(WORDS, job.health.word) ? job.health.word : "nobody", 16),
        " ",
        h("b", {}, WORDS[job.health.word] || ""),
        ": ",
        foreign(says(job.health.reason), 400),
      ),
    tiles(view),
    lists.map(
      ([heading, lines, open]) =>
        lines.length > 0 &&
        h(
          "details",
          { open: open ? true : null, key: heading },
          h("summary", {}, `${heading} (${lines.length})`),
          h(
            "ul",
            {},
            lines.slice(0, 50).map((line) => h("li", {}, foreign(says(line), 600))),
          ),
        ),
    ),
  );
}
