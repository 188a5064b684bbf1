// Matrix view: the weights of one head as a heat map, queries down and keys across; rollout is an option.

import { create, createButton, createCheckbox, createSelect, createSvg, setOptions } from "../widgets/dom.js";
import { weightColor } from "../drawing/colors.js";
import { createHeadSelect, createLayerPicker } from "../widgets/controls.js";
import { canRollOut } from "../data/embedded.js";
import { createFocusTable, readFocusWeights } from "../widgets/focus-weights.js";
import { CONTRAST_OPTIONS, createWeightLegend } from "../widgets/legend.js";
import { createMatrixCanvas } from "../drawing/matrix-canvas.js";
import { createMatrixTiles } from "../drawing/matrix-tiles.js";
import { readCell } from "../state.js";
import { svgText } from "../drawing/svg.js";
import { formatWeight, tokenLabel } from "../widgets/token-text.js";
import { findAttention, headsName, keyTokens, layerName, queryTokens } from "../data/trace.js";
import { FULL_WEIGHT } from "../data/weights.js";

const CELL_BLOCK = 32; // side of the block of exact weights fetched around the cursor
const MAX_SVG_CELLS = 200;
const MATRIX_HINT = "Point at a cell, or focus the matrix and use the arrow keys, to read its weight; drag to pan, scroll or pinch to zoom.";

export const matrixView = {
  name: "matrix",
  label: "Matrix",
  help: {
    sentences: ["Each row is a query token and each column a key token; the color of a cell is the attention weight, and every row adds up to 1.",
      "Rollout multiplies the matrices of all layers so far, with half of each taken by the residual connection, to estimate how much each input token reaches this layer."],
    equation: "weights = softmax(QKᵀ / √d + bias);   rollout = ∏ ½ (mean of heads + I)",
  },
  isAvailable: () => true,
  open: openMatrixView,
};

function openMatrixView({ tools, body }, app) {
  const { trace, state, weights } = app;
  const picker = createLayerPicker({ attentions: trace.attentions, onChange: path => app.change({ path }) });
  const headSelect = createHeadSelect({ onChange: head => app.change({ head }) });
  const contrast = createSelect({ label: "Colors", options: CONTRAST_OPTIONS, value: state.contrast, onChange: value => app.change({ contrast: value }) });
  const rollout = createCheckbox({ label: "rollout", isChecked: state.rollout, onChange: isRollout => app.change({ rollout: isRollout }) });
  const matrix = createMatrixCanvas({ onCell: showCell, onView: zoom => app.remember({ zoom }) });
  const zoomButtons = create("div", { class: "buttons" }, createButton("−", () => matrix.zoom(1 / 1.5), { "aria-label": "Zoom out", class: "round" }),
    createButton("+", () => matrix.zoom(1.5), { "aria-label": "Zoom in", class: "round" }), createButton("All", () => matrix.reset()));
  const legend = create("div");
  const status = create("p", { class: "status", role: "status", text: MATRIX_HINT });
  tools.append(picker.element, headSelect.element, contrast.element, rollout.element, zoomButtons);
  const table = create("section", { class: "details", "aria-label": "Weights of the cursor's row" });
  body.append(status, create("div", { class: "split" }, create("div", { class: "picture" }, matrix.element, legend), table));
  let attention, queries, keys, source, shown = null, cellNumber = 0, hasKept = false;

  function update() {
    attention = findAttention(trace.attentions, state.path);
    const hasRollout = app.isEmbedded ? canRollOut(trace.attentions, attention) : attention.kind === "self" && queryTokens(trace, attention).length === attention.shape[1];
    const isRollout = hasRollout && state.rollout;
    const head = state.head === "mean" || state.head < attention.heads ? state.head : 0;
    picker.update(attention.path);
    headSelect.update(head, attention.heads);
    headSelect.element.hidden = isRollout;
    rollout.element.hidden = !hasRollout;
    rollout.input.checked = isRollout;
    setOptions(contrast.select, CONTRAST_OPTIONS, state.contrast);
    source = { path: attention.path, heads: String(head), isRollout };
    const key = JSON.stringify([source, state.contrast]);
    if (key === shown) return;
    shown = key;
    [queries, keys] = [queryTokens(trace, attention), keyTokens(trace, attention)];
    legend.replaceChildren(createWeightLegend(state.contrast));
    const tiles = createMatrixTiles({ weights, source, shape: attention.shape, contrast: state.contrast, onArrival: matrix.redraw, onError: app.reportError });
    matrix.show({ queries, keys, tiles, label: `${title()}: heat map of ${queries.length} queries by ${keys.length} keys` }, state.zoom);
    const cell = readCell(state.focus, attention.shape);
    if (cell) pickCell(cell);
  }

  function title() {
    return `${layerName(attention)}, ${source.isRollout ? "rollout" : headsName(source.heads === "mean" ? "mean" : Number(source.heads), attention.heads)}`;
  }

  /** The exact weight of a cell, from a small block at full resolution. */
  async function readWeight({ row, column }) {
    const start = index => Math.floor(index / CELL_BLOCK) * CELL_BLOCK;
    const spec = { ...source, rows: [start(row), Math.min(start(row) + CELL_BLOCK, queries.length)], columns: [start(column), Math.min(start(column) + CELL_BLOCK, keys.length)] };
    const block = await weights.get(spec);
    return block.data[(row - spec.rows[0]) * block.shape[2] + column - spec.columns[0]] / FULL_WEIGHT;
  }

  /** The weights of a whole row, in the form of the focused token's weights. */
  async function readRow(row) {
    const spec = { ...source, rows: [row, row + 1], columns: [0, keys.length] };
    const block = await weights.get(spec);
    return readFocusWeights({ spec, block, focus: { side: "query", index: row }, heads: [0], filter: "all", queries, keys });
  }

  function pickCell(cell) {
    matrix.setCursor(cell, true);
    showCell(cell, true);
  }

  async function showCell(cell, isKept = false) {
    const number = ++cellNumber;
    if (isKept) app.remember({ focus: `q${cell.row}k${cell.column}` });
    else if (hasKept) app.remember({ focus: "" });
    hasKept = isKept;
    if (!cell) {
      status.textContent = MATRIX_HINT;
      return;
    }
    try {
      const [weight, row] = await Promise.all([readWeight(cell), readRow(cell.row)]);
      if (number !== cellNumber) return;
      table.replaceChildren(createFocusTable({ focus: { side: "query", index: cell.row }, token: queries[cell.row], weights: row, heads: [0], headCount: 1,
        onPick: column => pickCell({ row: cell.row, column }) }));
      status.textContent = `${tokenLabel(queries[cell.row])} (query ${cell.row}) → ${tokenLabel(keys[cell.column])} (key ${cell.column}): weight ${weight.toFixed(4)} (${title()})`;
    } catch (error) {
      app.reportError(error);
    }
  }

  /** The visible part at full resolution, at most 200 × 200 cells. */
  async function svg() {
    const view = matrix.visible();
    const [firstRow, firstColumn] = [Math.floor(view.y), Math.floor(view.x)];
    const rows = [firstRow, Math.min(queries.length, Math.ceil(view.y + view.height / view.scale), firstRow + MAX_SVG_CELLS)];
    const columns = [firstColumn, Math.min(keys.length, Math.ceil(view.x + view.width / view.scale), firstColumn + MAX_SVG_CELLS)];
    const block = await weights.get({ ...source, rows, columns });
    return matrixSvg({ title: `${app.config.model.name}: ${title()}`, queries: queries.slice(...rows), keys: keys.slice(...columns),
      weight: (row, column) => block.data[row * block.shape[2] + column] / FULL_WEIGHT, contrast: state.contrast });
  }

  return { update, svg, close: matrix.close, stepLayer: step => app.change({ path: picker.neighbor(step) }) };
}

/** A heat map as SVG: a rectangle for every cell, with its weight as a tooltip. */
export function matrixSvg({ title, queries, keys, weight, contrast, isOutlined = () => false }) {
  const [cell, margin] = [20, 120];
  const [width, height] = [margin + keys.length * cell + 8, margin + queries.length * cell + 8];
  const cells = queries.flatMap((_, row) => keys.map((_, column) => createSvg("rect", {
    x: margin + column * cell, y: margin + row * cell, width: cell, height: cell, fill: weightColor(weight(row, column), contrast),
    ...(isOutlined(row, column) ? { stroke: "#b45309", "stroke-width": 2 } : {}),
  }, createSvg("title", { text: formatWeight(weight(row, column)) }))));
  return createSvg("svg", { width, height, viewBox: `0 0 ${width} ${height}` }, createSvg("title", { text: title }),
    svgText(title, { x: 8, y: 16, "font-size": 12 }), createSvg("g", {}, ...cells),
    ...queries.map((token, row) => svgText(tokenLabel(token, 14), { x: margin - 6, y: margin + (row + 0.7) * cell, "text-anchor": "end", "font-size": 12 })),
    ...keys.map((token, column) => svgText(tokenLabel(token, 14), { transform: `translate(${margin + (column + 0.7) * cell} ${margin - 6}) rotate(-90)`, "font-size": 12 })));
}
