// Compare: the same text in two models, one heat map beside the other, with a common cursor where the tokens agree.

import { create, createSelect, setOptions } from "../widgets/dom.js";
import { track } from "../widgets/frames.js";
import { createHeadSelect, createLayerPicker } from "../widgets/controls.js";
import { CONTRAST_OPTIONS, createWeightLegend } from "../widgets/legend.js";
import { createMatrixCanvas } from "../drawing/matrix-canvas.js";
import { createMatrixTiles } from "../drawing/matrix-tiles.js";
import { readCell } from "../state.js";
import { findAttention, headsName, keyTokens, layerName, queryTokens } from "../data/trace.js";
import { tokenLabel } from "../widgets/token-text.js";
import { FULL_WEIGHT } from "../data/weights.js";

// Names in the state of what the panel of a model shows.
const MAIN_FIELDS = { path: "path", head: "head", zoom: "zoom", focus: "focus" };
const OTHER_FIELDS = { path: "otherPath", head: "otherHead", zoom: "otherZoom", focus: "otherFocus" };

export const compareView = {
  name: "compare",
  label: "Compare",
  help: {
    sentences: ["The same text goes through two models, and each heat map shows the weights of one head of one of them.",
      "Where both models split the text into the same tokens, the cursor marks the same query and key in both, and both show the same part."],
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
  let sides = [], isClosed = false; // the panels of the models that read the input

  async function load() {
    const { name, other_model: otherName } = app.config.model;
    const models = [{ name, fields: MAIN_FIELDS, loading: app.traceMain() }, { name: otherName, fields: OTHER_FIELDS, loading: app.traceOther() }];
    const results = await Promise.allSettled(models.map(({ loading }) => loading));
    if (isClosed) return;
    const panels = models.map((model, i) => results[i].status === "fulfilled" ? createSide({ ...model, ...results[i].value }) : createFailure(model.name, results[i].reason));
    sides = panels.filter(panel => panel.matrix);
    columns.replaceChildren(...panels.map(panel => panel.element));
    update();
  }

  /** Where both models have the same tokens, they share the zoom and the cell, which are then those of the first. */
  function isShared() {
    return sides.length === 2 && sides[0].tokenTexts() === sides[1].tokenTexts();
  }

  function fieldsOf(side) {
    return isShared() ? MAIN_FIELDS : side.fields;
  }

  function othersOf(side) {
    return isShared() ? sides.filter(other => other !== side) : [];
  }

  function followCell(side, cell, isKept) {
    const { focus } = fieldsOf(side);
    side.showCell(cell);
    othersOf(side).forEach(other => other.point(cell, isKept));
    if (isKept) app.remember({ [focus]: `q${cell.row}k${cell.column}` });
    else if (side.readCell(focus)) app.remember({ [focus]: "" });
  }

  function followView(side, zoom) {
    othersOf(side).forEach(other => other.matrix.setView(zoom));
    app.remember({ [fieldsOf(side).zoom]: zoom });
  }

  function update() {
    setOptions(contrast.select, CONTRAST_OPTIONS, state.contrast);
    legend.replaceChildren(createWeightLegend(state.contrast));
    const changes = sides.map(side => side.update());
    if (changes.includes(true)) sides.forEach(side => side.restore(fieldsOf(side)));
  }

  /** The place of a model that cannot read the input, with the reason. */
  function createFailure(name, error) {
    return { element: create("section", { "aria-label": name }, create("h2", { text: name }), create("p", { class: "error", role: "alert", text: error.message })) };
  }

  function createSide({ name, trace, weights, fields }) {
    const picker = createLayerPicker({ attentions: trace.attentions, onChange: path => app.change({ [fields.path]: path }) });
    const headSelect = createHeadSelect({ onChange: head => app.change({ [fields.head]: head }) });
    const matrix = createMatrixCanvas({ onCell: (cell, isKept) => followCell(side, cell, isKept), onView: zoom => followView(side, zoom) });
    const status = create("p", { class: "status", role: "status" });
    const element = create("section", { "aria-label": name }, create("h2", { text: name }), create("div", { class: "tools" }, picker.element, headSelect.element), status, matrix.element);
    const side = { element, fields, matrix, update: updateSide, restore, point, showCell, readCell: field => readCell(state[field], attention.shape), tokenTexts, neighbor: picker.neighbor };
    let attention, queries, keys, source, title, shown = null, number = 0;

    /** Returns whether the matrix is another one than before. */
    function updateSide() {
      attention = findAttention(trace.attentions, state[fields.path]);
      const head = state[fields.head] === "mean" || state[fields.head] < attention.heads ? state[fields.head] : 0;
      picker.update(attention.path);
      headSelect.update(head, attention.heads);
      source = { path: attention.path, heads: String(head) };
      const key = JSON.stringify([source, state.contrast]);
      if (key === shown) return false;
      shown = key;
      [queries, keys] = [queryTokens(trace, attention), keyTokens(trace, attention)];
      const tiles = createMatrixTiles({ weights, source, shape: attention.shape, contrast: state.contrast, onArrival: matrix.redraw, onError: app.reportError });
      title = `${layerName(attention)}, ${headsName(head, attention.heads)}`;
      matrix.show({ queries, keys, tiles, label: `${name}: ${title}` }, null);
      return true;
    }

    /** Show the zoom and the cell of the state. */
    function restore({ zoom, focus }) {
      matrix.setView(state[zoom]);
      const cell = side.readCell(focus);
      point(cell, cell !== null);
    }

    async function showCell(cell) {
      const run = ++number;
      if (!cell) {
        status.textContent = title;
        return;
      }
      try {
        const block = await weights.get({ ...source, rows: [cell.row, cell.row + 1], columns: [0, keys.length] });
        if (run === number) status.textContent = `${tokenLabel(queries[cell.row])} → ${tokenLabel(keys[cell.column])}: weight ${(block.data[cell.column] / FULL_WEIGHT).toFixed(4)}`;
      } catch (error) {
        app.reportError(error);
      }
    }

    function point(cell, isKept) {
      matrix.setCursor(cell, isKept);
      showCell(cell);
    }

    function tokenTexts() {
      return JSON.stringify([queries, keys].map(tokens => tokens.map(({ text }) => text)));
    }

    return side;
  }

  function stepLayer(step) {
    app.change(Object.fromEntries(sides.map(({ fields, neighbor }) => [fields.path, neighbor(step)])));
  }

  track(load()).catch(app.reportError);
  return { update, stepLayer, close() { isClosed = true; sides.forEach(({ matrix }) => matrix.close()); } };
}
