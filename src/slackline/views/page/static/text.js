// Elements and texts. Text from records becomes text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";

// Return a new element with attributes and children; a child that is no node becomes text.
export function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

// Return a new element of a drawing.
export function shape(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value);
  }
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

// Set an element's text, if it has changed, so that a selection or a reader's place is kept.
export function say(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

// Return a number with three significant digits, without an exponent.
export function short(value) {
  if (value === 0) return "0";
  const digits = Math.min(Math.max(2 - Math.floor(Math.log10(Math.abs(value))), 0), 6);
  return value.toFixed(digits);
}

export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  return value >= 1000 ? `${short(value / 1000)} s` : `${short(value)} ms`;
}

export function rate(bitsPerSecond) {
  if (bitsPerSecond === null || bitsPerSecond === undefined) return "–";
  for (const [unit, size] of [["Gbit/s", 1e9], ["Mbit/s", 1e6], ["kbit/s", 1e3]]) {
    if (bitsPerSecond >= size) return `${short(bitsPerSecond / size)} ${unit}`;
  }
  return `${short(bitsPerSecond)} bit/s`;
}

export function bytes(count) {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (count >= size) return `${short(count / size)} ${unit}`;
  }
  return `${count} B`;
}

export function percent(share) {
  return share === null || share === undefined ? "–" : `${(100 * share).toFixed(1)} %`;
}

// Return the time of day of a Unix time in seconds.
export function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });
}
