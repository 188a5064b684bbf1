// One model's picture: the weights of a query over its patches, brighter where they are larger.

import { create, createSelect, prepareCanvas, setOptions } from "./dom.js";
import { createPainter } from "./frames.js";
import { CONTRASTS } from "../drawing/colors.js";
import { chosenHeads, createHeadSwatches, createLayerPicker } from "./controls.js";
import { readFocusWeights, topIndices } from "./focus-weights.js";
import { readFocus } from "../state.js";
import { formatWeight, tokenLabel } from "./token-text.js";
import { findAttention, headsName, keyTokens, queryTokens } from "../data/trace.js";
import { allHeads } from "../data/weights.js";

function imageOf(trace, attention) {
  return attention.keys.map(name => trace.sequences[name]).find(sequence => sequence.grid && sequence.picture);
}

/** The attention layers whose keys are the patches of a picture; those of a caption come first. */
export function imageLayers(trace) {
  const layers = trace.attentions.filter(attention => imageOf(trace, attention));
  return [...layers.filter(({ kind }) => kind === "cross"), ...layers.filter(({ kind }) => kind !== "cross")];
}

/** Create a panel; `fields` are the names of path and heads in the state, `onFocus(index)` a chosen query. */
export function createImagePanel({ app, name, trace, weights, fields: [pathField, headsField], onFocus }) {
  const { state } = app;
  const layers = imageLayers(trace);
  const picker = createLayerPicker({ attentions: layers, onChange: path => app.change({ [pathField]: path }) });
  const querySelect = createSelect({ label: "Query", options: [], value: 0, onChange: value => onFocus(Number(value)) });
  const swatches = createHeadSwatches({ onChange: heads => app.change({ [headsField]: heads }) });
  const picture = create("img", { alt: "The picture the model looks at" });
  const canvas = create("canvas", { role: "img" });
  const status = create("p", { class: "status", role: "status" });
  const overlay = create("div", { class: "overlay" }, picture, canvas);
  const element = create("section", { "aria-label": name }, create("div", { class: "tools" }, picker.element, querySelect.element, swatches.element), status, overlay);
  let attention, image, queries, keys, heads, hovered = null, offset = 0;
  const requestDraw = createPainter(draw);
  picture.addEventListener("load", requestDraw);
  canvas.addEventListener("pointermove", event => { hovered = patchAt(event); requestDraw(); });
  canvas.addEventListener("pointerleave", () => { hovered = null; requestDraw(); });
  canvas.addEventListener("click", event => { const query = patchAt(event); if (query !== null) onFocus(query); });

  /** The query of the patch under the pointer, where the queries are the patches. */
  function patchAt(event) {
    if (trace.sequences[attention.queries] !== image) return null;
    const [rows, columns] = image.grid;
    const [row, column] = [Math.floor(event.offsetY / canvas.clientHeight * rows), Math.floor(event.offsetX / canvas.clientWidth * columns)];
    return row >= 0 && row < rows && column >= 0 && column < columns ? image.first_patch + row * columns + column : null;
  }

  function update() {
    attention = findAttention(layers, state[pathField]);
    image = imageOf(trace, attention);
    [queries, keys] = [queryTokens(trace, attention), keyTokens(trace, attention)];
    const before = attention.keys.slice(0, attention.keys.findIndex(key => trace.sequences[key] === image));
    offset = before.reduce((sum, key) => sum + trace.sequences[key].tokens.length, 0) + image.first_patch;
    heads = chosenHeads({ heads: state[headsField] }, attention);
    picker.update(attention.path);
    swatches.update(heads, attention.heads);
    setOptions(querySelect.select, queries.map((token, i) => [i, tokenLabel(token, 24)]), currentQuery());
    overlay.style.setProperty("--aspect", image.grid[1] / image.grid[0]);
    if (picture.src !== image.picture) picture.src = image.picture;
    requestDraw();
  }

  function currentQuery() {
    const focus = readFocus(state.focus, attention.shape);
    return hovered ?? (focus?.side === "query" ? focus.index : 0);
  }

  function draw() {
    const query = currentQuery();
    const spec = { path: attention.path, heads: allHeads(attention), rows: [query, query + 1], columns: [0, attention.shape[1]] };
    const block = weights.peek(spec);
    if (!block) {
      weights.get(spec).then(requestDraw, app.reportError);
      return;
    }
    const values = readFocusWeights({ spec, block, focus: { side: "query", index: query }, heads, filter: "all", queries, keys });
    drawPatches(values.means, query);
    querySelect.select.value = String(query);
    const top = topIndices(values.means, 5).map(index => `${tokenLabel(keys[index])} ${formatWeight(values.means[index])}`);
    const heading = heads.length ? headsName(heads, attention.heads) : "no head is switched on";
    status.textContent = `${tokenLabel(queries[query])} → ${top.join(", ") || "no weight"} (weights, ${heading}; colors relative to the largest weight)`;
    canvas.setAttribute("aria-label", `Weights over ${image.grid.join(" by ")} patches for the query ${queries[query].text.slice(0, 40)}`);
  }

  /** Dim every patch by what its weight lacks to the largest one, outline the query's own patch. */
  function drawPatches(means, query) {
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    const context = prepareCanvas(canvas, width, height);
    const [rows, columns] = image.grid;
    const patches = Array.from({ length: rows * columns }, (_, i) => means[offset + i]);
    const largest = Math.max(...patches, 1e-6);
    const [patchWidth, patchHeight] = [width / columns, height / rows];
    context.fillStyle = "#05080c";
    patches.forEach((weight, i) => {
      context.globalAlpha = 0.88 * (1 - CONTRASTS.root(weight / largest));
      context.fillRect(i % columns * patchWidth, Math.floor(i / columns) * patchHeight, patchWidth + 0.5, patchHeight + 0.5);
    });
    context.globalAlpha = 1;
    const own = query - image.first_patch;
    if (trace.sequences[attention.queries] !== image || own < 0 || own >= rows * columns) return;
    context.strokeStyle = "#ffb000";
    context.lineWidth = 3;
    context.strokeRect(own % columns * patchWidth + 1.5, Math.floor(own / columns) * patchHeight + 1.5, patchWidth - 3, patchHeight - 3);
  }

  return { element, update, neighbor: picker.neighbor };
}
