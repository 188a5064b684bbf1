// Compare: the same text in two models, one heat map beside the other, with a common cursor where the tokens agree.

import { create, createSelect, setOptions } from "../widgets/dom.js";
import { track } from "../widgets/frames.js";
import { createHeadSelect, createLayerPicker } from "../widgets/controls.js";
import { CONTRAST_OPTIONS, createWeightLegend } from "../widgets/legend.js";
import { createMatrixCanvas } from "../drawing/matrix-canvas.js";
import { createMatrixTiles } from "../drawing/matrix-tiles.js";
import { findAttention, headsName, keyTokens, layerName, queryTokens } from "../data/trace.js";
import { tokenLabel } from "../widgets/token-text.js";
import { FULL_WEIGHT } from "../data/weights.js";

export const compareView = {
  name: "compare",
  label: "Compare",
  help: {
    sentences: ["The same text goes through two models, and each heat map shows the weights of one head of one of them.",
      "Where both models split the text into the same tokens, the cursor marks the same query and key in both."],
    equation: "weights = softmax(QKᵀ / √d + bias), once for each model",
  },
  isAvailable: app => Boolean(app.config.model.other_model),
  open: openCompareView,
};

function openCompareView({ tools, body }, app) {
  const { state } = app;
  const contrast = createSelect({ label: "Colors", options: CONTRAST_OPTIONS, value: state.contrast, onChange: value => app.change({ contrast: value }) });
  const columns = create("div", { class: "columns" });
  const legend = create("div");
  tools.append(contrast.element);
  body.append(columns, legend);
  let sides = [], isClosed = false;

  async function load() {
    const other = await app.traceOther();
    if (isClosed) return;
    sides = [createSide({ name: app.config.model.name, trace: app.trace, weights: app.weights, fields: ["path", "head"], onCursor: cell => copyCursor(0, cell) }),
      createSide({ name: app.config.model.other_model, ...other, fields: ["otherPath", "otherHead"], onCursor: cell => copyCursor(1, cell) })];
    columns.replaceChildren(...sides.map(side => side.element));
    update();
  }

  function copyCursor(from, cell) {
    const [one, two] = sides.map(side => side.tokenTexts());
    if (sides.length === 2 && one === two) sides[1 - from].point(cell);
  }

  function update() {
    setOptions(contrast.select, CONTRAST_OPTIONS, state.contrast);
    legend.replaceChildren(createWeightLegend(state.contrast));
    sides.forEach(side => side.update());
  }

  function createSide({ name, trace, weights, fields: [pathField, headField], onCursor }) {
    const picker = createLayerPicker({ attentions: trace.attentions, onChange: path => app.change({ [pathField]: path }) });
    const headSelect = createHeadSelect({ onChange: head => app.change({ [headField]: head }) });
    const matrix = createMatrixCanvas({ onCell: cell => { showCell(cell); onCursor(cell); }, onView: () => {} });
    const status = create("p", { class: "status", role: "status" });
    let attention, queries, keys, source, shown = null, number = 0;

    function updateSide() {
      attention = findAttention(trace.attentions, state[pathField]);
      const head = state[headField] === "mean" || state[headField] < attention.heads ? state[headField] : 0;
      picker.update(attention.path);
      headSelect.update(head, attention.heads);
      source = { path: attention.path, heads: String(head) };
      const key = JSON.stringify([source, state.contrast]);
      if (key === shown) return;
      shown = key;
      [queries, keys] = [queryTokens(trace, attention), keyTokens(trace, attention)];
      const tiles = createMatrixTiles({ weights, source, shape: attention.shape, contrast: state.contrast, onArrival: matrix.redraw, onError: app.reportError });
      status.textContent = `${layerName(attention)}, ${headsName(head, attention.heads)}`;
      matrix.show({ queries, keys, tiles, label: `${name}: ${status.textContent}` }, null);
    }

    async function showCell(cell) {
      const run = ++number;
      if (!cell) return;
      try {
        const block = await weights.get({ ...source, rows: [cell.row, cell.row + 1], columns: [0, keys.length] });
        if (run === number) status.textContent = `${tokenLabel(queries[cell.row])} → ${tokenLabel(keys[cell.column])}: weight ${(block.data[cell.column] / FULL_WEIGHT).toFixed(4)}`;
      } catch (error) {
        app.reportError(error);
      }
    }

    function point(cell) {
      matrix.setCursor(cell, false);
      showCell(cell);
    }

    return {
      element: create("section", { "aria-label": name }, create("h2", { text: name }), create("div", { class: "tools" }, picker.element, headSelect.element), status, matrix.element),
      update: updateSide, point, close: matrix.close,
      tokenTexts: () => JSON.stringify([queries, keys].map(tokens => tokens.map(({ text }) => text))),
    };
  }

  track(load()).catch(app.reportError);
  return { update, close() { isClosed = true; sides.forEach(side => side.close()); } };
}
