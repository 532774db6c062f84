// What the reader chose, and what follows of keys and clicks.

// A watcher tells of 120; of another's, no more than a browser draws in the blink of an eye.
const MOST_STEPS = 240;

const chosen = {
  job: numberOf(location.hash),
  step: null,
  hover: null,
  communicator: 0,
  open: new Set(),
  width: 900,
};

function numberOf(hash) {
  const found = /^#job=(\d+)$/.exec(hash);
  return found ? Number(found[1]) : null;
}

function choose(step) {
  chosen.step = step;
  draw();
}

// All that is drawn of.
function viewOf() {
  const state = got.state,
    age = state === null ? 0 : got.born + (Date.now() - got.at) / 1000;
  const found =
    state === null
      ? null
      : state.jobs.find((one) => one.number === chosen.job) || state.jobs[0] || null;
  const steps = found === null ? [] : inOrder(found.timeline.slice(-MOST_STEPS)),
    job = found && { ...found, timeline: steps };
  const has = (step) => steps.some((one) => one.step === step);
  const newest = steps.length ? steps[steps.length - 1].step : null;
  const pinned = chosen.step !== null && has(chosen.step);
  const hovered = chosen.hover !== null && has(chosen.hover);
  return {
    state,
    job,
    age,
    live: state !== null && age <= OLD_S,
    why: got.why,
    asked: got.asking ? (Date.now() - got.begun) / 1000 : 0,
    wait: got.asking ? 0 : (got.next - Date.now()) / 1000,
    now: state === null ? 0 : state.time_ns + age * 1e9,
    chosen: hovered ? chosen.hover : pinned ? chosen.step : newest,
    pinned: pinned || hovered,
    width: chosen.width,
    communicator: chosen.communicator,
    open: chosen.open,
    ...handlers(steps),
  };
}

function handlers(steps) {
  const stepAt = (event, wide) => {
    const index = Math.floor(
      (event.clientX - event.currentTarget.firstChild.getBoundingClientRect().left) / wide,
    );
    return steps[index] ? steps[index].step : null;
  };
  return {
    again: ask,
    choose,
    onpick: (event, wide) => choose(stepAt(event, wide)),
    onpoint: (event, wide) => {
      if (event.pointerType === "mouse") hover(stepAt(event, wide));
    },
    onleave: () => hover(null),
    onkey: (event) => onKey(event, steps),
    onjob: (number) => {
      Object.assign(chosen, { job: number, step: null, hover: null, communicator: 0 });
      end.follows = true;
      location.replace(`#job=${number}`);
      draw();
    },
    oncommunicator: (event) => {
      chosen.communicator = event.target.selectedIndex;
      draw();
    },
    ontoggle: (event) => {
      chosen.open[event.target.open ? "add" : "delete"](event.target.id);
      draw();
    },
  };
}

function hover(step) {
  if (step !== chosen.hover) {
    chosen.hover = step;
    draw();
  }
}

function onKey(event, steps) {
  const here = steps.findIndex((one) => one.step === viewOf().chosen),
    last = steps.length - 1;
  const to = {
    ArrowLeft: Math.max(0, here - 1),
    ArrowRight: Math.min(last, here + 1),
    Home: 0,
    End: last,
    PageUp: Math.max(0, here - 10),
    PageDown: Math.min(last, here + 10),
  }[event.key];
  if (event.key === "Escape") choose(null);
  else if (to === undefined) return;
  else {
    chosen.hover = null;
    choose(steps[to].step);
    document
      .getElementById(`step-${steps[to].step}`)
      ?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  event.preventDefault();
}
