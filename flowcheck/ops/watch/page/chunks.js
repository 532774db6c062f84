// What is seen of a communicator: of each chunk of a sum, and on which links; and the card of it.

const MOST_CHUNKS = 64;
const MOST_LINKS = 64;

function chunks(one) {
  if (!one.chunk_links.length) return null;
  const never = one.chunk_links.filter((times) => times === 0).length,
    empty = one.chunk_links.filter((times) => times < 0).length;
  const told = never
    ? `${some(never, "chunk")} of ${count(one.chunk_links.length)} never seen`
    : `all ${some(one.chunk_links.length - empty, "chunk")} seen${empty ? `; ${empty} more without a byte` : ""}`;
  return h(
    "div",
    { class: "chunks" },
    h("p", {}, "Chunks of a sum, and on how many mirrored links each passes: ", h("b", {}, told)),
    h(
      "ol",
      { start: "0", "aria-label": "Chunks" },
      one.chunk_links.slice(0, MOST_CHUNKS).map((times, index) =>
        h(
          "li",
          {
            class: times < 0 ? "empty" : times === 0 ? "never" : times === 1 ? "once" : "more",
            "aria-label": `chunk ${index}: ${times < 0 ? "without a byte" : times ? `on ${some(times, "link")}` : "never seen"}`,
          },
          h("span", {}, times < 0 ? "" : times ? `${times}×` : "–"),
        ),
      ),
    ),
    one.chunk_links.length > MOST_CHUNKS &&
      h("p", { class: "quiet" }, `and ${count(one.chunk_links.length - MOST_CHUNKS)} more chunks`),
  );
}

function linkTable(one) {
  if (!one.links.length) return h("p", { class: "quiet" }, "No link of it is mirrored.");
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "Mirrored links" },
    h(
      "table",
      { class: "links" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          ["Link", "At the switch, and what passes"].map((name) => h("th", { scope: "col" }, name)),
        ),
      ),
      h(
        "tbody",
        {},
        one.links.slice(0, MOST_LINKS).map((link) => linkRow(one, link)),
      ),
    ),
    one.links.length > MOST_LINKS &&
      h("p", { class: "quiet" }, `and ${count(one.links.length - MOST_LINKS)} more links`),
  );
}

// What else than the ring's links is drawn.
function besideWords(one) {
  const beside = one.links.filter((link) => !isOfRing(link)).map((link) => link.algorithm);
  const names = [...new Set(beside)];
  return names.length ? `not mirrored; dashed: a ${names.join("'s, a ")}'s. ` : "not mirrored. ";
}

function linkRow(one, link) {
  const pair = (name, values) => h("div", {}, h("dt", {}, name), h("dd", {}, list(values) || NONE));
  return h(
    "tr",
    {},
    h(
      "th",
      { scope: "row" },
      one.ring ? `${link.sender} → ${link.receiver}` : "pair",
      isOfRing(link) ? "" : ` (${link.algorithm})`,
    ),
    h(
      "td",
      { class: "ends" },
      endOf("rx", "from", link.sources, link.rx, isStated(link)),
      h("br"),
      endOf("tx", "to", link.destinations, link.tx, isStated(link)),
      h(
        "dl",
        {},
        pair("Channels", link.channels),
        pair("QPs", link.queue_pairs),
        pair("Carries", link.protocols),
      ),
    ),
  );
}

const list = (values, most = 6) =>
  values
    .slice(0, most)
    .map((value) => shown(value, 46))
    .join(", ") + (values.length > most ? ` and ${values.length - most} more` : "");

// The end of a link: the port that is stated to be mirrored there, or that it may be.
function endOf(direction, other, hosts, ports, stated) {
  const told = stated && !ports.length ? [other] : [h("b", {}, direction)];
  if (ports.length) told.push(` ${list(ports, 3)},`, ` ${other}`);
  return [...told, ` ${list(hosts, 3)}`];
}

function diagramCard(view) {
  const all = view.job.diagram,
    one = all[Math.min(view.communicator, all.length - 1)];
  const heading = h("h2", {}, "Ring and mirrored ports");
  const props = { class: "card diagram", "aria-label": "Ring and mirrored ports" };
  if (!one)
    return h(
      "section",
      props,
      heading,
      h("p", { class: "quiet" }, "Drawn once the job is learned."),
    );
  return h(
    "section",
    props,
    heading,
    all.length > 1 &&
      h(
        "p",
        {},
        h(
          "label",
          {},
          "Communicator ",
          h(
            "select",
            { onchange: view.oncommunicator },
            all.map((each) =>
              h(
                "option",
                { value: String(each.number) },
                `${each.number}: ${some(each.ranks, "rank")}, ${some(each.channels, "channel")}`,
              ),
            ),
          ),
        ),
      ),
    h(
      "p",
      { class: "quiet" },
      `${one.ring ? `A ring of ${some(one.ranks, "rank")} on ${some(one.nodes, "node")}` : `${some(one.ranks, "rank")}, from point to point`}, ${some(one.channels, "channel")}; ${count(one.links.length)} of its links mirrored.`,
    ),
    one.ring && ringDrawing(one),
    one.ring &&
      h(
        "p",
        { class: "key" },
        h("span", { class: "swatch thick" }),
        "mirrored ",
        h("span", { class: "swatch dotted" }),
        besideWords(one),
        crowdedWords(one),
        h("b", {}, "rx"),
        ": the switch receives it of the sender; ",
        h("b", {}, "tx"),
        ": it sends it to the receiver. Mirroring either brings the same packets",
        one.links.some(isStated) ? "." : "; which ones are is not stated ([[mirror]]).",
      ),
    chunks(one),
    linkTable(one),
    h(
      "details",
      {},
      h("summary", {}, "In words"),
      h(
        "ul",
        { class: "plain" },
        one.summary.map((line) => h("li", {}, foreign(line.trim(), 400))),
      ),
    ),
  );
}
