// A communicator of the job as a ring: its nodes, the links that are mirrored, which way they go.
// rx and tx are the switch's words: it receives from the sender's port (rx), it sends out of the
// receiver's (tx); a mirror of either brings the same packets. Where the job file states which ports
// are mirrored, their ends alone are marked, with their names.

const SIDE = 340;
const MOST_NODES = 16;
// Nodes between which there is room for rx and tx, and for words; the table below has them all.
const MOST_TOLD = 8;
const MOST_NAMED = 6;
// More than these are points, for arcs to be seen between them.
const MOST_DISCS = 40;

// [{index, host}]; of a long ring those that a mirrored link touches, and {gap: nodes} between.
function nodesOf(one) {
  const touched = new Set(one.links.flatMap((link) => [link.sender, link.receiver]));
  const nodes = [];
  for (let index = 0; index < one.nodes; index++) {
    if (one.nodes <= MOST_NODES || touched.has(index))
      nodes.push({ index, host: one.hosts[index] || "" });
    else if (nodes.length && nodes[nodes.length - 1].gap) nodes[nodes.length - 1].gap += 1;
    else nodes.push({ gap: 1 });
    if (nodes.length > 256) return nodes;
  }
  return nodes;
}

// Clockwise from the top; turned a little where a node would stand at the side, on its own name.
function turnOf(place, many) {
  return (place + (many % 4 === 0 ? 0.5 : 0)) / many;
}

function at(turn, radius) {
  const angle = 2 * Math.PI * turn;
  return [SIDE / 2 + radius * Math.sin(angle), SIDE / 2 - radius * Math.cos(angle)];
}

function isStated(link) {
  return Boolean(link && (link.rx.length || link.tx.length));
}

// Else another algorithm than the ring, link.algorithm, alone passes there.
function isOfRing(link) {
  return link.algorithm === "ring";
}

// How a drawing is to be read that leaves nodes out, or has no room for discs.
function crowdedWords(one) {
  const nodes = nodesOf(one);
  const cut = nodes.some((node) => node.gap) ? "Nodes without a mirrored link are drawn as one. " : "";
  return nodes.length > MOST_DISCS ? `All links go clockwise. ${cut}` : cut;
}

// {node: names of the mirrored ports at it}
function portsOf(one) {
  const found = new Map();
  const add = (node, ports) =>
    ports.forEach((port) => found.set(node, new Set([...(found.get(node) || []), port])));
  for (const link of one.links) {
    add(link.sender, link.rx);
    add(link.receiver, link.tx);
  }
  return found;
}

function ringDrawing(one) {
  const nodes = nodesOf(one),
    many = nodes.length;
  const radius = 112,
    dot = many <= MOST_TOLD ? 21 : many > MOST_DISCS ? 1 : Math.min(15, (1.6 * radius) / many);
  const place = new Map(nodes.map((node, index) => [node.index, index]));
  const links = new Map(one.links.filter(isOfRing).map((link) => [link.sender, link]));
  const told = many <= MOST_TOLD,
    ports = portsOf(one);
  const arcs =
    many < 2
      ? []
      : nodes.map((node, index) => arc(radius, dot, index, many, links.get(node.index), told));
  const beside = one.links.filter(
    (link) => !isOfRing(link) && place.has(link.sender) && place.has(link.receiver),
  );
  const seen = one.links.map((link) => `${link.sender} to ${link.receiver}`).join(", ") || "none";
  const tall =
    Math.max(
      ...nodes.map((_, index) => Math.abs(at(turnOf(index, many), radius)[1] - SIDE / 2)),
      radius * 0.8,
    ) +
    dot +
    (ports.size ? 34 : 22);
  return h(
    "svg",
    {
      class: "ring",
      viewBox: `0 ${SIDE / 2 - tall} ${SIDE} ${2 * tall}`,
      role: "img",
      "aria-label": `Ring of ${one.nodes} nodes; mirrored links: ${seen}`,
    },
    arcs,
    beside.map((link) => chord(place, many, radius, dot, link)),
    nodes.map((node, index) => {
      const [x, y] = at(turnOf(index, many), radius);
      const name = node.gap ? `+${node.gap}` : String(node.index);
      const known = !node.gap && node.host;
      return h(
        "g",
        {},
        dot > 1 && h("circle", { cx: x, cy: y, r: dot, class: known ? "node known" : "node" }),
        dot >= 9 && h("text", { x, y: y + 4, "text-anchor": "middle", class: "number" }, name),
        many <= MOST_NAMED && hostName(node, turnOf(index, many), radius, dot, ports),
      );
    }),
  );
}

// Above the nodes of the upper half, below those of the lower one: beside them there is no room.
function hostName(node, turn, radius, dot, ports) {
  const [x, y] = at(turn, radius),
    over = Math.cos(2 * Math.PI * turn) > 0;
  const name = node.gap ? "not mirrored" : node.host ? shown(node.host, 22) : "no address seen";
  const port = [...(ports.get(node.index) || [])].map((one) => shown(one, 24)).join(", ");
  const lines = over && port ? [port, name] : [name, port];
  return lines.filter(Boolean).map((words, nth, all) => {
    const half = words.length * 2.9,
      inside = Math.min(SIDE - half - 2, Math.max(half + 2, x));
    const below = y + dot + 13 + 12 * nth,
      above = y - dot - 6 - 12 * (all.length - 1 - nth);
    const place = { x: inside, y: over ? above : below, "text-anchor": "middle" };
    return h("text", { ...place, class: words === port ? "host port" : "host" }, words);
  });
}

function arc(radius, dot, index, many, link, told) {
  const crowded = many > MOST_DISCS;
  const gap = (crowded ? 1 : dot + 4) / (2 * Math.PI * radius),
    head = crowded ? 0 : many > MOST_NODES ? 5 : link ? 10 : 7;
  const from = turnOf(index, many) + gap,
    to = turnOf(index + 1, many) - gap,
    end = to - head / (2 * Math.PI * radius);
  const [x1, y1] = at(from, radius),
    [x2, y2] = at(Math.max(from, end), radius);
  const large = end - from > 0.5 ? 1 : 0;
  const kind = link ? "mirrored" : "unmirrored";
  const words = (turn, text, inward) => {
    const [x, y] = at(turn, radius - inward);
    return h("text", { x, y: y + 4, "text-anchor": "middle", class: "direction" }, text);
  };
  return h(
    "g",
    { class: kind },
    h("path", { d: `M${x1} ${y1}A${radius} ${radius} 0 ${large} 1 ${x2} ${y2}`, class: "way" }),
    !crowded && arrow(to, radius, head),
    link &&
      told && [
        (link.rx.length || !isStated(link)) && words(from + 0.012, "rx", 17),
        (link.tx.length || !isStated(link)) && words(to - 0.012, "tx", 17),
        many < MOST_NAMED && words((from + to) / 2, "mirrored", 38),
      ],
  );
}

// The head at the end of a way round the ring.
function arrow(turn, radius, size) {
  const back = turn - size / (2 * Math.PI * radius);
  const points = [at(turn, radius), at(back, radius + size * 0.55), at(back, radius - size * 0.55)];
  return h("path", { d: `M${points.map((point) => point.join(" ")).join("L")}z`, class: "head" });
}

function chord(place, many, radius, dot, link) {
  const [x1, y1] = at(turnOf(place.get(link.sender), many), radius - dot - 3);
  const [x2, y2] = at(turnOf(place.get(link.receiver), many), radius - dot - 3);
  return h(
    "g",
    { class: "beside" },
    h("path", { d: `M${x1} ${y1}L${x2} ${y2}`, class: "way" }),
    h("circle", { cx: x2, cy: y2, r: 3.5, class: "head" }),
  );
}
