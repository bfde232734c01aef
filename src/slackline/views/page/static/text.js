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

// Quantities: their units, each with its size and the first value for which the next unit is used.
export const TIME = [
  [" ns", 1e-6, 1000], [" us", 1e-3, 1000], [" ms", 1, 1000], [" s", 1e3, 600], [" min", 6e4, 600], [" h", 3.6e6, Infinity],
]; // of values in milliseconds
export const RATE = [
  [" bit/s", 1, 1000], [" kbit/s", 1e3, 1000], [" Mbit/s", 1e6, 1000], [" Gbit/s", 1e9, 1000], [" Tbit/s", 1e12, Infinity],
];
export const SIZE = [
  [" B", 1, 1024], [" KiB", 2 ** 10, 1024], [" MiB", 2 ** 20, 1024], [" GiB", 2 ** 30, 1024], [" TiB", 2 ** 40, Infinity],
];
export const SHARE = [["%", 0.01, Infinity]];

// Return a number with three significant digits, without an exponent and without zeros at the end of a fraction;
// numbers from 1000 on keep their whole digits.
export function number(value) {
  if (value === 0) return "0";
  const digits = Math.max(2 - Math.floor(Math.log10(Math.abs(value))), 0);
  const text = value.toFixed(Math.min(digits, 20));
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

// Return the name and the size of the unit in which a value of the quantity is shown.
export function unitOf(quantity, value) {
  return quantity.find(([, size, limit]) => Math.abs(Number(number(value / size))) < limit);
}

// Return a value of the quantity with its unit: "12.3 ms".
export function show(quantity, value) {
  if (value === null || value === undefined) return "–";
  const [unit, size] = unitOf(quantity, value);
  return number(value / size) + unit;
}

export const milliseconds = (value) => show(TIME, value);
export const rate = (bitsPerSecond) => show(RATE, bitsPerSecond);
export const bytes = (count) => show(SIZE, count);
export const percent = (share) => show(SHARE, share);

// Return the time of day of a Unix time in seconds.
export function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });
}

// Return the times of day of a beginning and an end: "since 14:05:01", or "14:05:01 to 14:05:09".
export function span(since, until) {
  return until === null ? `since ${clock(since)}` : `${clock(since)} to ${clock(until)}`;
}

// Return the date and the time of day of a Unix time in seconds, without seconds: "11-28 14:05".
export function day(seconds) {
  const [at, two] = [new Date(seconds * 1000), (part) => String(part).padStart(2, "0")];
  return `${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}`;
}

// Return the browser's time zone: "UTC+01:00".
export function zone(at = new Date()) {
  const minutes = -at.getTimezoneOffset();
  if (minutes === 0) return "UTC";
  const [hours, rest] = [Math.floor(Math.abs(minutes) / 60), Math.abs(minutes) % 60];
  return `UTC${minutes < 0 ? "−" : "+"}${String(hours).padStart(2, "0")}:${String(rest).padStart(2, "0")}`;
}
