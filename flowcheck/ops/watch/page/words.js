// Figures and other people's words, as a reader wants them.

const CLIP = 160;
const NONE = "–";
// A figure and its unit stay in one line.
const TIED = "\u00a0";

// A string of the state: cut where it is long, with what steers a terminal or the direction of
// writing made visible, and kept apart from the words around it.
function foreign(text, most = CLIP) {
  const parts = shown(text, most).split(/(?<=\/)/);
  return h(
    "bdi",
    { class: "foreign" },
    parts.map((part, index) => (index ? [h("wbr"), part] : part)),
  );
}

// The sentence of a finding of the state, or a string as it is; "" of neither.
function says(fact) {
  if (fact === null || fact === undefined) return "";
  return typeof fact === "object" ? String(fact.sentence || fact.code || "") : String(fact);
}

function shown(text, most = CLIP) {
  const all = String(text ?? "");
  const points = Array.from(all.slice(0, 2 * most));
  const cut = all.length > 2 * most || points.length > most;
  const told = (cut ? points.slice(0, most) : points).map(visible).join("");
  return cut ? `${told}… (${count(all.length)} characters)` : told;
}

function visible(point) {
  const code = point.codePointAt(0);
  if (code === 9 || code === 10 || code === 13) return " ";
  if (code < 32) return String.fromCodePoint(0x2400 + code);
  const steers =
    code === 127 ||
    (code >= 0x80 && code < 0xa0) ||
    code === 0x61c ||
    code === 0xfeff ||
    (code >= 0x200b && code <= 0x200f) ||
    (code >= 0x2028 && code <= 0x202e) ||
    (code >= 0x2060 && code <= 0x206f) ||
    (code >= 0xe0000 && code <= 0xe007f);
  return steers ? `‹U+${code.toString(16).toUpperCase().padStart(4, "0")}›` : point;
}

function count(number) {
  return Math.round(number)
    .toString()
    .replace(/\B(?=(\d{3})+$)/g, ",");
}

function some(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

// Three digits, however large: 0.42, 12.3, 4,510, 23.4 M.
function short(number) {
  if (number === null || number === undefined || !Number.isFinite(number)) return NONE;
  for (const [size, unit] of [
    [1e12, "T"],
    [1e9, "G"],
    [1e6, "M"],
    [1e4, "k"],
  ]) {
    if (Math.abs(number) >= size) {
      const per = unit === "k" ? 1e3 : size;
      return `${digits(number / per)}${TIED}${unit}`;
    }
  }
  return digits(number);
}

function digits(number) {
  const size = Math.abs(number);
  if (size >= 100 || Number.isInteger(number)) return count(number);
  return number.toFixed(size >= 10 ? 1 : 2);
}

function rate(number, unit) {
  const told = short(number);
  return told === NONE ? NONE : `${told}${TIED}${shown(unit, 12)}/s`;
}

function bytes(number) {
  if (number === null || number === undefined) return NONE;
  const told = short(number);
  return /[a-zA-Z]$/.test(told) ? `${told}B` : `${told}${TIED}B`;
}

function percent(share) {
  if (share === null || share === undefined) return NONE;
  return share > 0 && share < 0.001 ? "< 0.1 %" : `${Math.round(share * 1000) / 10} %`;
}

function milliseconds(ms) {
  if (ms === null || ms === undefined) return NONE;
  return ms < 1000 ? `${digits(ms)}${TIED}ms` : span(ms / 1000);
}

// How long: 1.4 s, 2 min 05 s, 3 h 07 min, 4 d 2 h.
function span(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  const whole = Math.max(0, seconds);
  if (whole < 9.95) return `${whole.toFixed(1)}${TIED}s`;
  if (whole < 119.5) return `${Math.round(whole)}${TIED}s`;
  const s = Math.floor(whole),
    two = (n) => String(n).padStart(2, "0");
  if (s < 3600) return `${Math.floor(s / 60)} min ${two(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${two(Math.floor((s % 3600) / 60))} min`;
  return `${count(Math.floor(s / 86400))} d ${Math.floor((s % 86400) / 3600)} h`;
}

// A time of the state, by the reader's clock on the wall.
function clock(ns) {
  if (!ns) return NONE;
  const date = new Date(ns / 1e6),
    two = (n) => String(n).padStart(2, "0");
  const day =
    date.toDateString() === new Date().toDateString()
      ? ""
      : `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} `;
  return `${day}${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

function time(ns) {
  if (!ns) return NONE;
  return h("time", { datetime: new Date(ns / 1e6).toISOString() }, clock(ns));
}

function zone() {
  const minutes = -new Date().getTimezoneOffset(),
    size = Math.abs(minutes);
  const hours = `${Math.floor(size / 60)}:${String(size % 60).padStart(2, "0")}`;
  return `UTC${minutes < 0 ? "−" : "+"}${hours}`;
}
