// Shapes that are told apart without colour: one for each word of health, one for each mark.
// Each is drawn in a square of 24; `mark-...` gives its fill (page.css).

const SHAPES = {
  // Health.
  exact: [
    ["circle", { cx: 12, cy: 12, r: 11 }],
    ["path", { d: "M6.5 12.5l3.8 3.9 7.2-8", class: "cut" }],
  ],
  behind: [
    ["path", { d: "M3 1h18v3.5L14.2 12 21 19.5V23H3v-3.5L9.8 12 3 4.5z" }],
    ["path", { d: "M7.5 6h9M12 13v3.5M8 19.5h8", class: "cut thin" }],
  ],
  tainted: [
    ["path", { d: "M12 .5L23.5 12 12 23.5.5 12z" }],
    ["path", { d: "M12 6.5v6.5M12 16.5v1", class: "cut" }],
  ],
  stale: [
    ["path", { d: "M7.4 1h9.2L23 7.4v9.2L16.6 23H7.4L1 16.6V7.4z" }],
    ["path", { d: "M7.5 7.5l9 9m0-9l-9 9", class: "cut" }],
  ],
  ended: [
    ["path", { d: "M2 2h20v20H2z" }],
    ["path", { d: "M8 8h8v8H8z", class: "cut" }],
  ],
  nobody: [
    ["path", { d: "M2 2h20v20H2z", class: "dashes" }],
    ["path", { d: "M8.5 9.2a3.5 3.3 0 1 1 5.6 2.6c-1.4 1-2.1 1.5-2.1 3M12 17.6v1", class: "line" }],
  ],
  // Marks of a step, and of an event.
  lost: [
    ["path", { d: "M7.4 1h9.2L23 7.4v9.2L16.6 23H7.4L1 16.6V7.4z" }],
    ["path", { d: "M7.5 7.5l9 9m0-9l-9 9", class: "cut" }],
  ],
  missing: [["path", { d: "M1 3h22L12 22z", class: "hollow" }]],
  healed: [["path", { d: "M8.5 1.5h7v7h7v7h-7v7h-7v-7h-7v-7h7z" }]],
  taint: [
    ["path", { d: "M12 .5L23.5 12 12 23.5.5 12z" }],
    ["path", { d: "M12 6.5v6.5M12 16.5v1", class: "cut" }],
  ],
  passed: [
    ["circle", { cx: 12, cy: 12, r: 11 }],
    ["path", { d: "M6.5 12.5l3.8 3.9 7.2-8", class: "cut" }],
  ],
  failed: [
    ["path", { d: "M2 2h20v20H2z" }],
    ["path", { d: "M7 7l10 10M17 7L7 17", class: "cut" }],
  ],
  anchor: [
    ["circle", { cx: 12, cy: 4.5, r: 3, class: "line" }],
    ["path", { d: "M12 7.5V22M7 11.5h10M2.5 14c.5 5 4.5 8 9.5 8s9-3 9.5-8", class: "line" }],
  ],
  durable: [["circle", { cx: 12, cy: 12, r: 9 }]],
  restart: [["path", { d: "M19.5 8A9 9 0 1 0 21 13M20.5 2v6.5H14", class: "line" }]],
  note: [["path", { d: "M5 12h14", class: "line" }]],
};

// A shape beside words that say the same, hence nothing to a reader who hears the page.
function shape(name, size = 14, more = {}) {
  const props = { class: `shape mark-${name}`, viewBox: "-1 -1 26 26", width: size, height: size };
  return h("svg", { ...props, "aria-hidden": "true", "data-shape": name, ...more }, drawn(name));
}

// The same, inside a drawing, its middle at x, y.
function placed(name, x, y, size) {
  const scale = size / 24;
  const move = `translate(${x - size / 2} ${y - size / 2}) scale(${scale})`;
  return h("g", { class: `shape mark-${name}`, transform: move, "data-shape": name }, drawn(name));
}

function drawn(name) {
  return SHAPES[name].map(([tag, props]) => h(tag, props));
}
