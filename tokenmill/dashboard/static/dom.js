// Small ways to the page. Text from elsewhere becomes text only: there is no way to markup here.

const SVG = "http://www.w3.org/2000/svg";
// They make what follows read backwards, or cannot be seen.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g;

export const at = (id) => document.getElementById(id);

export const clean = (value) => String(value).replace(HIDDEN, "\ufffd");

export function setText(node, value) {
  const text = clean(value);
  if (node.textContent !== text) node.textContent = text;
}

export function make(tag, className, value) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (value !== undefined) node.textContent = clean(value);
  return node;
}

export function makeSvg(tag, attributes) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

// As many children as there are items, each drawn anew only where it stays: so a selection survives.
export function each(parent, items, create, update) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  items.forEach((item, index) => {
    let child = parent.children[index];
    if (!child) {
      child = create(item);
      parent.append(child);
    }
    update(child, item);
  });
}

// Rows of cells: a string, or {text, kind}; the first is the row's head.
export function fill(table, rows) {
  each(
    table.tBodies[0],
    rows,
    () => document.createElement("tr"),
    (row, cells) => each(row, cells, () => document.createElement("td"), drawCell),
  );
}

function drawCell(cell, content) {
  const { text, kind = "", draw } = typeof content === "object" ? content : { text: content };
  if (kind === "head" && cell.tagName !== "TH") {
    const head = document.createElement("th");
    head.scope = "row";
    cell.replaceWith(head);
    cell = head;
  }
  const className = kind === "head" ? "" : kind;
  if (cell.className !== className) cell.className = className;
  if (draw) draw(cell);
  else setText(cell, text);
}

export function number(value) {
  return value === null || value === undefined ? "none" : Math.round(value).toLocaleString("en");
}

export function short(value) {
  if (value === null || value === undefined) return "none";
  for (const [least, divisor, unit] of [[999950000, 1e9, "G"], [999950, 1e6, "M"], [10000, 1e3, "K"]]) {
    if (Math.abs(value) >= least) return (value / divisor).toFixed(1) + unit;
  }
  return Math.round(value).toLocaleString("en");
}

export function share(part, whole) {
  if (!whole || !part) return "-";
  const value = (100 * part) / whole;
  if (value < 0.01) return "<0.01 %";
  return `${value < 0.1 ? value.toFixed(2) : value < 10 ? value.toFixed(1) : value.toFixed(0)} %`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "-";
  const whole = Math.floor(seconds);
  if (whole < 60) return `${whole}s`;
  const two = (value) => String(value).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)}m${two(whole % 60)}s`;
  return `${Math.floor(whole / 3600)}h${two(Math.floor((whole % 3600) / 60))}m`;
}

export function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });
}
