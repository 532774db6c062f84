// What befell a step, as marks: a shape, a short word, a sentence.

const NEAR = 8;

const MARKS = {
  lost: "step lost",
  missing: "packets missing",
  healed: "healed",
  taint: "tainted",
  passed: "audit passed",
  failed: "audit failed",
  anchor: "anchored to the trainer's file",
};

function marksOf(one) {
  const marks = [];
  const add = (kind, label, sentence) => marks.push({ kind, label, sentence });
  if (one.lost) add("lost", "lost", `lost: ${shown(says(one.lost))}`);
  if (one.missing)
    add(
      "missing",
      `${count(one.missing)} missing`,
      `${some(one.missing, "packet", "packets")} of it missing: no mirror brought them`,
    );
  if (one.healed && one.lost) add("healed", "gone on", "healed: the replica goes on behind it");
  else if (one.healed)
    add("healed", `${count(one.healed)} healed`, `healed: ${count(one.healed)} came after all`);
  if (one.tainted) add("taint", "tainted", "tainted: taken without all of its bytes");
  if (one.audited === true) add("passed", "audit passed", "an audit of it passed");
  if (one.audited === false) add("failed", "audit failed", "an audit of it FAILED");
  if (one.anchored) add("anchor", "anchored", "anchored: the trainer's own file took its place");
  return marks;
}

// How far it came: the words for the three lanes.
function lanesOf(one, job) {
  const passed = job.step !== null && one.step <= job.step && !one.lost && !one.logged;
  return {
    arrived: one.arrived_ns ? "full" : passed ? "some" : "none",
    applied: one.applied_ns ? "full" : passed ? "some" : one.arrived_ns ? "wait" : "none",
    durable: one.durable_ns ? "full" : "none",
  };
}

// A step that overtook another, or was lost and hence told of later, stands in its place; the steps
// of a later life, which count from further back, stand behind those of the one before.
function inOrder(steps) {
  const ordered = [];
  for (const one of steps) {
    let place = ordered.length;
    while (
      place > 0 &&
      ordered[place - 1].step > one.step &&
      ordered[place - 1].step - one.step <= NEAR
    )
      place--;
    ordered.splice(place, 0, one);
  }
  return ordered;
}

function lagMs(one) {
  return one.arrived_ns && one.applied_ns
    ? Math.max(0, (one.applied_ns - one.arrived_ns) / 1e6)
    : null;
}

// A step as one sentence, for those who hear it.
function sentenceOf(one, job) {
  const lanes = lanesOf(one, job),
    lag = lagMs(one);
  const applied = {
    full: `applied${lag === null ? "" : ` ${milliseconds(lag)} later`}`,
    some: "applied with a later one",
    wait: one.logged ? "logged, waits for a base" : "waits for the replica",
    none: "not applied",
  };
  const parts = [
    lanes.arrived === "full"
      ? `arrived ${clock(one.arrived_ns)}`
      : lanes.arrived === "some"
        ? "arrived"
        : "not whole",
    applied[lanes.applied],
    lanes.durable === "full" ? `durable ${clock(one.durable_ns)}` : "no checkpoint of it",
    ...marksOf(one).map((mark) => mark.sentence),
  ];
  return `step ${count(one.step)}: ${parts.join("; ")}`;
}
