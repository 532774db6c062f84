// The page as it is now, drawn into the document.

let frame = 0;
// The newest steps are shown until the reader goes back: where the drawing put them, and in which box.
const end = { box: null, left: 0, follows: true, resized: false };

function page(view) {
  const state = view.state;
  return [
    hero(view),
    h(
      "main",
      { class: view.live ? "" : "gone" },
      state === null
        ? h("p", { class: "card quiet" }, "Nothing is known yet.")
        : [
            !view.live &&
              h(
                "p",
                { class: "asof" },
                `As of ${clock(state.time_ns)}, ${span(view.age)} ago: not what is now`,
              ),
            jobsCard(view),
            ...modelCards(view),
            ...(view.job === null
              ? [h("p", { class: "card quiet" }, "No job is followed yet.")]
              : [jobCard(view), stepsCard(view)]),
            h(
              "div",
              { class: "pair" },
              h("div", { class: "stack" }, lossCard(view), ringsCard(view), stagesCard(view)),
              eventsCard(view),
              view.job && diagramCard(view),
            ),
          ],
    ),
    h(
      "footer",
      {},
      `Asked each second, of the watcher alone. Times are ${zone()}, this browser's. `,
      h("a", { href: "state.json" }, "state.json"),
      " ",
      h("a", { href: "metrics" }, "metrics"),
      " ",
      h("a", { href: "healthz" }, "healthz"),
    ),
  ];
}

// A page that nobody sees has no frames, but its title is read all the same.
function draw() {
  if (document.hidden) paint();
  else if (!frame)
    frame = requestAnimationFrame(() => {
      frame = 0;
      paint();
    });
}

function paint() {
  const view = viewOf();
  look();
  try {
    patch(document.getElementById("page"), page(view));
  } catch (error) {
    patch(document.getElementById("page"), [
      h(
        "header",
        { class: "hero is-nobody" },
        shape("nobody", 56),
        h(
          "div",
          { class: "verdict" },
          h("h1", {}, "Not drawn"),
          h(
            "p",
            { class: "reason" },
            `This page cannot draw what the watcher told it: ${error.message}`,
          ),
        ),
      ),
    ]);
    document.title = "NOT DRAWN · FlowCheck";
    return;
  }
  fit();
  say(view);
}

// A place that is not the one it was put to is the reader's choice, unless the window's size changed
// since: a box that was wider for a moment moved its place by itself.
function look() {
  const box = document.getElementById("columns"),
    resized = end.resized;
  end.resized = false;
  if (!resized && box !== null && box === end.box && Math.abs(box.scrollLeft - end.left) > 2)
    end.follows = box.scrollLeft + box.clientWidth >= box.scrollWidth - 4;
}

function drawResized() {
  end.resized = true;
  draw();
}

// The steps fill their card, and show the newest unless the reader went back.
function fit() {
  const box = document.getElementById("columns");
  if (box === null) return;
  const width = box.clientWidth;
  if (width > 0 && Math.abs(width - chosen.width) > 1) {
    chosen.width = width;
    draw();
  }
  if (end.follows) box.scrollLeft = box.scrollWidth;
  Object.assign(end, { box, left: box.scrollLeft });
}

// For the tab, and once for those who hear the page: what changed is the word.
function say(view) {
  const { kind, word } = wordOf(view),
    told = view.live || view.state === null ? `Health: ${word}` : `${word}: what is shown is old`;
  const line = document.getElementById("said"),
    name = title(view);
  if (line.textContent !== told) line.textContent = told;
  if (document.title !== name) document.title = name;
  const link = document.querySelector("link[rel=icon]"),
    picture = icon(kind);
  if (link.getAttribute("href") !== picture) link.setAttribute("href", picture);
}
