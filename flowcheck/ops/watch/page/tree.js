// The page as a value: `h` makes a node of it, `patch` brings the document up to it.
// Text becomes text nodes and nothing else; no string is ever read as HTML.

const SVG = "http://www.w3.org/2000/svg";

// children: nodes, strings, numbers, lists of those; nothing (null, false) keeps its place.
function h(tag, props, ...children) {
  return { tag, props: props || {}, children: children.flat(Infinity).map(leaf) };
}

function leaf(child) {
  if (child === null || child === undefined || child === false) return "";
  return typeof child === "object" ? child : String(child);
}

function make(node, inSvg) {
  if (typeof node === "string") return document.createTextNode(node);
  const svg = inSvg || node.tag === "svg";
  const made = svg ? document.createElementNS(SVG, node.tag) : document.createElement(node.tag);
  made.was = {};
  become(made, node, svg);
  return made;
}

function fits(old, node) {
  if (typeof node === "string") return old.nodeType === Node.TEXT_NODE;
  return old.localName === node.tag && old.was !== undefined && old.was.key === node.props.key;
}

function become(made, node, svg) {
  for (const name of Object.keys(made.was)) if (!(name in node.props)) put(made, name, null);
  for (const [name, value] of Object.entries(node.props)) {
    if (made.was[name] !== value) put(made, name, value);
  }
  made.was = node.props;
  patch(made, node.children, svg || node.tag === "svg");
}

// `on...` are functions, `style` is a list of [property, value], all else are attributes.
function put(made, name, value) {
  if (name === "key") return;
  if (name.startsWith("on")) made[name] = value;
  else if (name === "style") for (const [what, to] of value || []) made.style.setProperty(what, to);
  else if (value === null || value === undefined || value === false) made.removeAttribute(name);
  else made.setAttribute(name, value === true ? "" : value);
}

function patch(parent, nodes, svg = false) {
  let old = parent.firstChild;
  for (const node of nodes) {
    if (old === null) {
      parent.append(make(node, svg));
    } else if (fits(old, node)) {
      if (typeof node !== "string") become(old, node, svg);
      else if (old.data !== node) old.data = node;
      old = old.nextSibling;
    } else {
      const made = make(node, svg);
      old.replaceWith(made);
      old = made.nextSibling;
    }
  }
  while (old !== null) {
    const next = old.nextSibling;
    old.remove();
    old = next;
  }
}
