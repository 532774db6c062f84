// Asks for the state each second, and keeps the newest.

const EACH_MS = 1000,
  LIMIT_MS = 10000,
  MOST_MS = 10000;
// Without the name and word that may stand in the address of the page: fetch refuses those.
const STATE = new URL("state.json", location.origin + location.pathname);
const OLD_S = 3.5;
const TICK_MS = 500;

const got = { state: null, at: 0, born: 0, fails: 0, why: "", next: 0, asking: false, begun: 0 };
let timer = 0;

async function ask() {
  clearTimeout(timer);
  if (got.asking) return;
  Object.assign(got, { asking: true, begun: Date.now() });
  const begun = got.begun,
    stop = new AbortController(),
    limit = setTimeout(() => stop.abort(), LIMIT_MS);
  try {
    const answer = await fetch(STATE, { cache: "no-store", signal: stop.signal });
    if (!answer.ok) throw new Error(await refusal(answer));
    take(await answer.json(), Date.parse(answer.headers.get("Date") || ""));
  } catch (error) {
    got.fails += 1;
    got.why = reasonOf(error);
  }
  clearTimeout(limit);
  got.asking = false;
  const wait = got.fails
    ? Math.min(MOST_MS, EACH_MS * 2 ** (got.fails - 1))
    : Math.max(100, EACH_MS - (Date.now() - begun));
  got.next = Date.now() + wait;
  timer = setTimeout(ask, wait);
  draw();
}

async function refusal(answer) {
  if (answer.status === 401) return "The watcher asks for its token again: reload this page";
  const told = await answer.json().catch(() => null);
  return `The watcher refuses with HTTP ${answer.status}${told && told.error ? `: ${shown(told.error, 120)}` : ""}`;
}

function reasonOf(error) {
  if (error.name === "AbortError") return `No answer for ${LIMIT_MS / 1000} s: the watcher, the way to it or this browser is slow`;
  if (error instanceof TypeError) return "The watcher cannot be reached";
  return error instanceof SyntaxError
    ? "The watcher answers, but not with a state in JSON"
    : error.message;
}

// sent: when, by the server's own clock, so that the reader's may be wrong.
function take(state, sent) {
  if (state.version !== VERSION)
    throw new Error(
      `The watcher is of another version (${shown(state.version, 20)}): reload this page`,
    );
  if (got.state === null || state.time_ns !== got.state.time_ns) {
    got.at = Date.now();
    got.born = Number.isNaN(sent) ? 0 : Math.max(0, (sent - state.time_ns / 1e6) / 1000);
    recall(state);
  }
  got.state = state;
  got.fails = 0;
  got.why = "";
}

addEventListener("resize", drawResized);
addEventListener("online", ask);
addEventListener("hashchange", () => {
  chosen.job = numberOf(location.hash);
  draw();
});
addEventListener("beforeprint", () => {
  for (const one of document.querySelectorAll("details")) one.open = true;
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) ask();
});
setInterval(draw, TICK_MS);
draw();
ask();
