// Helpers that create elements; data only ever enters a page as text or as an attribute's value.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

/** Create an HTML element: `text` is its text, `on` its listeners, every other property an attribute. */
export function create(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** Create an SVG element, with the same properties as `create`. */
export function createSvg(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG_NAMESPACE, tag), properties, children);
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") element.textContent = value;
    else if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter(child => child !== null && child !== undefined));
  return element;
}

let lastId = 0;

/** Return an id that no other element of the page has. */
export function uniqueId(prefix) {
  lastId += 1;
  return `${prefix}-${lastId}`;
}

/** Create a select with a visible label; `options` is a list of [value, text]. */
export function createSelect({ label, options, value, onChange }) {
  const select = create("select", { on: { change: () => onChange(select.value) } });
  setOptions(select, options, value);
  const element = create("label", { class: "field" }, create("span", { text: label }), select);
  return { element, select };
}

/** Replace the options of a select where they differ. */
export function setOptions(select, options, value) {
  const isSame = select.options.length === options.length
    && options.every(([optionValue, text], i) => select.options[i].value === String(optionValue) && select.options[i].textContent === text);
  if (!isSame) select.replaceChildren(...options.map(([optionValue, text]) => create("option", { value: optionValue, text })));
  select.value = String(value);
}

/** Create a labeled check box. */
export function createCheckbox({ label, isChecked, onChange }) {
  const input = create("input", { type: "checkbox", on: { change: () => onChange(input.checked) } });
  input.checked = isChecked;
  return { element: create("label", { class: "field check" }, input, create("span", { text: label })), input };
}

/** Create a button. */
export function createButton(text, onClick, properties = {}) {
  return create("button", { type: "button", text, on: { click: onClick }, ...properties });
}

/** Call `listener` whenever the element's size changes; returns a function that stops it. */
export function observeSize(element, listener) {
  const observer = new ResizeObserver(listener);
  observer.observe(element);
  return () => observer.disconnect();
}

/** Size a canvas's pixels to its CSS box and return its 2D context, scaled to CSS pixels and cleared. */
export function prepareCanvas(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [pixelWidth, pixelHeight] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== pixelWidth || canvas.height !== pixelHeight) Object.assign(canvas, { width: pixelWidth, height: pixelHeight });
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** CSS pixels of one rem, which grows with the width of the window. */
export function remPixels() {
  return parseFloat(getComputedStyle(document.documentElement).fontSize);
}

export function clamp(value, low, high) {
  return Math.max(low, Math.min(high, value));
}
