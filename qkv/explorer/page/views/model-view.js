// Model view: every layer and head as a thumbnail of its weights, with a caption for heads of a simple pattern.

import { create, createSelect, setOptions } from "../widgets/dom.js";
import { track } from "../widgets/frames.js";
import { weightPixels } from "../drawing/colors.js";
import { summarizeHead } from "./head-summary.js";
import { CONTRAST_OPTIONS, createWeightLegend } from "../widgets/legend.js";
import { findAttention, keyTokens, kindName, kindNames, layersOfKind } from "../data/trace.js";
import { allHeads } from "../data/weights.js";

const MAX_CELLS = 128; // side of a thumbnail
const MODEL_HINT = "Choose a head to open it; the arrow keys move between heads.";
const CAPTION_NOTE = "Caption: what a head mostly attends to, with the percentage of its weights that is there (mean over the queries).";
const TARGETS = [["head", "head view"], ["matrix", "matrix"]];

export const modelView = {
  name: "model",
  label: "Model",
  help: {
    sentences: ["Every thumbnail is the weight matrix of one head, with a row of thumbnails for each layer and a column for each head.",
      "The caption names what a head mostly attends to, with the percentage of its weights that is there (mean over the queries); for long texts a cell is the largest weight of its block."],
    equation: "weights = softmax(QKᵀ / √d + bias), one matrix per layer and head",
  },
  isAvailable: () => true,
  open: openModelView,
};

function openModelView({ tools, body }, app) {
  const { trace, state, weights } = app;
  const kinds = kindNames(trace.attentions);
  const kindSelect = createSelect({ label: "Attention", options: kinds.map(kind => [kind, kind]), value: "", onChange: kind => app.change({ path: layersOfKind(trace.attentions, kind)[0].path }) });
  const contrast = createSelect({ label: "Colors", options: CONTRAST_OPTIONS, value: state.contrast, onChange: value => app.change({ contrast: value }) });
  const target = createSelect({ label: "A click opens", options: TARGETS, value: state.opens, onChange: opens => app.change({ opens }) });
  const status = create("p", { class: "status", role: "status", text: MODEL_HINT });
  const grid = create("div", { class: "thumbnails", role: "grid", on: { keydown: moveFocus } });
  const legend = create("div");
  const note = create("p", { class: "faint", text: CAPTION_NOTE });
  tools.append(kinds.length > 1 ? kindSelect.element : "", contrast.element, target.element);
  body.append(status, create("div", { class: "scroll" }, grid), legend, note);
  let layers = [], shown = null, observer = null;

  function update() {
    const kind = kindName(findAttention(trace.attentions, state.path));
    setOptions(kindSelect.select, kinds.map(name => [name, name]), kind);
    setOptions(contrast.select, CONTRAST_OPTIONS, state.contrast);
    setOptions(target.select, TARGETS, state.opens);
    const key = `${kind} ${state.contrast}`;
    if (key === shown) return;
    shown = key;
    layers = layersOfKind(trace.attentions, kind);
    grid.setAttribute("aria-label", `${kind}: ${layers.length} layers by ${layers[0].heads} heads`);
    legend.replaceChildren(createWeightLegend(state.contrast));
    fillGrid();
  }

  function fillGrid() {
    const headCount = Math.max(...layers.map(layer => layer.heads));
    grid.style.setProperty("--heads", headCount);
    grid.style.setProperty("--layers", layers.length);
    const corner = create("div", { role: "columnheader", class: "corner-label", text: "layer" });
    const header = create("div", { role: "row" }, corner, ...Array.from({ length: headCount }, (_, head) => create("div", { role: "columnheader", text: `head ${head}` })));
    const rows = layers.map((layer, i) => create("div", { role: "row", "data-layer": i }, create("div", { role: "rowheader", text: layer.layer }),
      ...Array.from({ length: layer.heads }, (_, head) => createThumbnail(layer, head))));
    grid.replaceChildren(header, ...rows);
    note.hidden = true;
    grid.querySelector("[role=gridcell] button").tabIndex = 0;
    observer?.disconnect();
    observer = new IntersectionObserver(loadVisible, { rootMargin: "200px" });
    rows.forEach(row => observer.observe(row));
  }

  function createThumbnail(layer, head) {
    const name = `layer ${layer.layer}, head ${head}`;
    const canvas = create("canvas", { width: 1, height: 1, "aria-hidden": "true" });
    const button = create("button", { type: "button", class: "thumbnail", tabindex: -1, "aria-label": name, on: {
      click: () => app.openView(state.opens, { path: layer.path, heads: [head], head, zoom: null, focus: "" }),
      focus: () => { status.textContent = describe(); },
      pointerenter: () => { status.textContent = describe(); },
    } }, canvas, create("span", { class: "caption", "aria-hidden": "true" }));
    const describe = () => [`${kindName(layer)}, ${name}`, button.dataset.summary].filter(Boolean).join(": ");
    return create("div", { role: "gridcell" }, button);
  }

  function loadVisible(entries) {
    for (const { isIntersecting, target: row } of entries) {
      if (!isIntersecting) continue;
      observer.unobserve(row);
      track(loadRow(row, layers[Number(row.dataset.layer)])).catch(app.reportError);
    }
  }

  async function loadRow(row, layer) {
    const [queryCount, keyCount] = layer.shape;
    const pool = 2 ** Math.max(0, Math.ceil(Math.log2(Math.max(queryCount, keyCount) / MAX_CELLS)));
    const block = await weights.get({ path: layer.path, heads: allHeads(layer), rows: [0, queryCount], columns: [0, keyCount], pool });
    const pixels = weightPixels(state.contrast);
    row.querySelectorAll(".thumbnail").forEach((button, head) => {
      paint(button.firstChild, block, head, pixels);
      if (pool === 1) caption(button, summarizeHead(block, head, layer, keyTokens(trace, layer)));
    });
  }

  function paint(canvas, { shape: [, rows, columns], data }, head, pixels) {
    Object.assign(canvas, { width: columns, height: rows });
    const image = new ImageData(columns, rows);
    const target32 = new Uint32Array(image.data.buffer);
    const start = head * rows * columns;
    for (let i = 0; i < target32.length; i++) target32[i] = pixels[data[start + i] >> 6];
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  function caption(button, summary) {
    if (!summary) return;
    note.hidden = false;
    button.lastChild.textContent = summary.short;
    button.dataset.summary = summary.sentence;
    button.setAttribute("aria-label", `${button.getAttribute("aria-label")}: ${summary.sentence}`);
  }

  function moveFocus(event) {
    const buttons = [...grid.querySelectorAll(".thumbnail")];
    const place = buttons.indexOf(document.activeElement);
    const headCount = layers[0].heads;
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -headCount, ArrowDown: headCount }[event.key];
    const next = buttons[place + step];
    if (place < 0 || !step || !next) return;
    event.preventDefault();
    buttons[place].tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }

  return { update, close: () => observer?.disconnect() };
}
