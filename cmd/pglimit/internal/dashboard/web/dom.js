// Elements from descriptions, and updates in place: an update keeps the focus, the
// selection, open details and the place on the screen.

const svgNames = new Set(["svg", "g", "rect", "line", "text", "title"]);

/** Returns an element. An attribute of null or false is left out, one of true is empty. A child is a node, text, null or a list of them. */
export function h(tag, attributes, ...children) {
  const e = svgNames.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value !== null && value !== undefined && value !== false) e.setAttribute(name, value === true ? "" : value);
  }
  e.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return e;
}

/** Makes the children of element those of the list, by changing as little as possible. */
export function update(element, list) {
  const focus = document.activeElement;
  const inside = element.contains(focus) && focus !== element;
  children(element, [list].flat(Infinity).filter(Boolean));
  // The focused element is gone: do not send the user back to the top of the page.
  if (inside && !element.contains(document.activeElement)) element.focus({ preventScroll: true });
}

const id = (node) => node.nodeType === Node.ELEMENT_NODE && node.getAttribute("data-id");

function morph(from, to) {
  if (from.nodeType !== Node.ELEMENT_NODE) {
    if (from.data !== to.data) from.data = to.data;
    return;
  }
  const kept = (name) => name === "open" || (name === "value" && from.localName === "input"); // the user's
  for (const { name } of [...from.attributes]) {
    if (!to.hasAttribute(name) && !kept(name)) from.removeAttribute(name);
  }
  for (const { name, value } of to.attributes) {
    if (from.getAttribute(name) !== value && !kept(name)) from.setAttribute(name, value);
  }
  if (from.localName !== "select" || document.activeElement !== from) children(from, [...to.childNodes]);
}

function children(parent, list) {
  const old = [...parent.childNodes];
  const wanted = list.map((to) => {
    const at = old.findIndex((from) => from?.nodeName === to.nodeName && id(from) === id(to));
    if (at < 0) return to;
    const from = old[at];
    old[at] = undefined;
    morph(from, to);
    return from;
  });
  for (const gone of old) gone?.remove();
  arrange(parent, wanted);
}

// Puts nodes in order. A node that moves loses the focus and the selection in it, so the
// others move around the one that has them.
function arrange(parent, wanted) {
  const selected = getSelection().anchorNode;
  const holds = (node) => node.contains(document.activeElement) || (selected && node.contains(selected));
  const pin = Math.max(0, wanted.findIndex((node) => node.parentNode === parent && holds(node)));
  if (!wanted.length) return;
  if (wanted[pin].parentNode !== parent) parent.prepend(wanted[pin]);
  for (let i = pin - 1; i >= 0; i--) {
    if (wanted[i + 1].previousSibling !== wanted[i]) wanted[i + 1].before(wanted[i]);
  }
  for (let i = pin + 1; i < wanted.length; i++) {
    if (wanted[i - 1].nextSibling !== wanted[i]) wanted[i - 1].after(wanted[i]);
  }
}
