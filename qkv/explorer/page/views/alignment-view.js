// Alignment: cross-attention as a matrix of target by source, with both texts above it and export of the word pairs.

import { clamp, create, createCheckbox, createSelect, createSvg, remPixels, setOptions } from "../widgets/dom.js";
import { alignPieces, alignWords, alignedTokens, bestColumns, pharaohPairs } from "../data/alignment.js";
import { inkOn, weightColor } from "../drawing/colors.js";
import { createHeadSelect } from "../widgets/controls.js";
import { track } from "../widgets/frames.js";
import { createWeightLegend } from "../widgets/legend.js";
import { matrixSvg } from "./matrix-view.js";
import { download, svgText } from "../drawing/svg.js";
import { measureTokens } from "../widgets/token-list.js";
import { formatWeight, shortText, tokenLabel, visibleText } from "../widgets/token-text.js";
import { headsName } from "../data/trace.js";

const LEAST_CELL = 0.004; // weights below it have the color of 0
const LEAST_NUMBER = 0.05; // smaller weights have no number in their cell
const LABEL_LENGTH = 16; // characters
const LABEL_ANGLE = 50 * Math.PI / 180; // of the source words, so that they do not overlap
const ALIGNMENT_HINT = "Point at a word, or focus it with Tab, to highlight the words it is aligned to.";

export const alignmentView = {
  name: "alignment",
  label: "Alignment",
  help: {
    sentences: ["Each row is a target word and each column a source word; the color is how much the decoder attended to the source word when it predicted the target word.",
      "The best guess takes the mean over the heads of the second to last decoder layer, and the outlined cell is the source word with the largest weight."],
    equation: "weights = softmax(Q_decoder K_encoderᵀ / √d);   word weight = mean over target pieces of the sum over source pieces",
  },
  isAvailable: app => crossLayers(app).length > 0,
  open: openAlignmentView,
};

function crossLayers(app) {
  return app.trace.attentions.filter(attention => attention.kind === "cross");
}

function openAlignmentView({ tools, body }, app) {
  const { trace, state, weights } = app;
  const layers = crossLayers(app);
  const best = layers[Math.max(0, layers.length - 2)];
  const layerOptions = [["", `best guess (layer ${best.layer}, mean of heads)`], ...layers.map(layer => [layer.path, `layer ${layer.layer}`])];
  const layerSelect = createSelect({ label: "Layer", options: layerOptions, value: state.cross, onChange: cross => app.change({ cross }) });
  const headSelect = createHeadSelect({ onChange: crossHead => app.change({ crossHead }) });
  const merge = createCheckbox({ label: "merge pieces into words", isChecked: state.words, onChange: words => app.change({ words }) });
  const texts = { rows: create("p", { class: "words target" }), columns: create("p", { class: "words source" }) };
  const status = create("p", { class: "status", role: "status", text: ALIGNMENT_HINT });
  const figure = create("div", { class: "scroll focusable alignment", tabindex: 0, role: "region", "aria-label": "Alignment matrix" });
  const legend = create("div");
  tools.append(layerSelect.element, headSelect.element, merge.element);
  body.append(textBlock("source", texts.columns), textBlock("target", texts.rows), status, figure, legend);
  let pieces = null, matrix = null, number = 0;

  function textBlock(name, text) {
    return create("div", { class: "text-block" }, create("span", { class: "faint", text: name }), text);
  }

  function current() {
    const layer = layers.find(({ path }) => path === state.cross);
    const head = layer && (state.crossHead === "mean" || state.crossHead < layer.heads) ? state.crossHead : "mean";
    return { layer: layer ?? best, head, isBest: !layer };
  }

  function title() {
    const { layer, head } = current();
    return `cross-attention, layer ${layer.layer}, ${headsName(head, layer.heads)}`;
  }

  function update() {
    const { layer, head, isBest } = current();
    setOptions(layerSelect.select, layerOptions, isBest ? "" : layer.path);
    headSelect.element.hidden = isBest;
    headSelect.update(head, layer.heads);
    merge.input.checked = state.words;
    track(load(layer, head)).catch(app.reportError);
  }

  async function load(layer, head) {
    const run = ++number;
    const block = await weights.getWhole({ path: layer.path, heads: String(head), headCount: 1, shape: layer.shape });
    if (run !== number) return;
    pieces = alignPieces(block, alignedTokens(trace, layer));
    matrix = state.words ? mergeWords() : pieces;
    legend.replaceChildren(createWeightLegend("linear"));
    show();
  }

  function mergeWords() {
    const { layer } = current();
    return alignWords(pieces, layer.keys.flatMap(name => trace.sequences[name].words ?? []), trace.sequences[layer.queries].words ?? []);
  }

  function show() {
    for (const side of ["columns", "rows"]) {
      const words = matrix[side].map((token, index) => {
        const word = create("span", { tabindex: 0, role: "button", dir: "auto", text: shortText(token.text), title: visibleText(token.text.slice(0, 500)) });
        highlightOn(word, side, index);
        return word;
      });
      texts[side].replaceChildren(...words.flatMap(word => [word, " "]));
    }
    figure.replaceChildren(draw());
  }

  function highlightOn(element, side, index) {
    for (const event of ["pointerenter", "focus"]) element.addEventListener(event, () => highlight(side, index));
    for (const event of ["pointerleave", "blur"]) element.addEventListener(event, clear);
  }

  function weightOf(row, column) {
    return matrix.weights[row * matrix.columns.length + column];
  }

  function clear() {
    for (const element of body.querySelectorAll(".here")) element.classList.remove("here");
    for (const word of body.querySelectorAll(".words span")) word.style.removeProperty("--weight");
    status.textContent = ALIGNMENT_HINT;
  }

  function highlight(side, index) {
    clear();
    const [others, arrow] = side === "rows" ? ["columns", "←"] : ["rows", "→"];
    const weight = i => side === "rows" ? weightOf(index, i) : weightOf(i, index);
    texts[others].querySelectorAll("span").forEach((word, i) => word.style.setProperty("--weight", weight(i)));
    texts[side].querySelectorAll("span")[index].classList.add("here");
    figure.querySelector(`[data-${side}="${index}"]`).classList.add("here");
    const top = matrix[others].map((token, i) => [weight(i), token]).filter(([value]) => value >= 0.05).sort((a, b) => b[0] - a[0]).slice(0, 5);
    const list = top.map(([value, token]) => `${tokenLabel(token)} ${formatWeight(value)}`).join(" · ") || "no weight above 0.05";
    status.textContent = `${tokenLabel(matrix[side][index])} ${arrow} ${list} (weights, ${title()})`;
  }

  function draw() {
    const rem = remPixels();
    const font = `${0.875 * rem}px ${getComputedStyle(body).fontFamily}`;
    const [rowLabel, columnLabel] = [matrix.rows, matrix.columns].map(tokens => measureTokens(tokens, font, LABEL_LENGTH));
    const [left, top, right] = [rowLabel + rem, columnLabel * Math.sin(LABEL_ANGLE) + 1.5 * rem, columnLabel * Math.cos(LABEL_ANGLE) + 0.5 * rem];
    const cell = clamp((body.clientWidth - left - right) / matrix.columns.length, 1.5 * rem, 3 * rem);
    const [width, height] = [left + matrix.columns.length * cell + 2, top + matrix.rows.length * cell + 2];
    const outlined = matrix.columns.length ? bestColumns(matrix) : [];
    const cells = [];
    matrix.rows.forEach((_, row) => matrix.columns.forEach((_, column) => {
      const [weight, isBest] = [weightOf(row, column), outlined[row] === column];
      if (weight < LEAST_CELL && !isBest) return;
      const rect = createSvg("rect", { x: left + column * cell + 1, y: top + row * cell + 1, width: cell - 2, height: cell - 2, rx: 2, fill: weightColor(weight, "linear"), class: isBest ? "best" : null },
        createSvg("title", { text: `${tokenLabel(matrix.rows[row])} ← ${tokenLabel(matrix.columns[column])} ${formatWeight(weight)}` }));
      rect.addEventListener("pointerenter", () => highlight("rows", row));
      rect.addEventListener("pointerleave", clear);
      cells.push(rect);
      if (cell >= 2.2 * rem && weight >= LEAST_NUMBER) cells.push(createSvg("text", { class: "in-cell", x: left + (column + 0.5) * cell, y: top + (row + 0.5) * cell,
        "text-anchor": "middle", "dominant-baseline": "central", "font-size": 0.75 * rem, fill: inkOn(weightColor(weight, "linear")), text: formatWeight(weight) }));
    }));
    const ground = createSvg("rect", { x: left, y: top, width: matrix.columns.length * cell, height: matrix.rows.length * cell, fill: weightColor(0) });
    const rowLabels = matrix.rows.map((token, row) => svgText(tokenLabel(token, LABEL_LENGTH), { x: left - 8, y: top + (row + 0.5) * cell, "dominant-baseline": "central", "text-anchor": "end", "font-size": 0.875 * rem, "data-rows": row }));
    const columnLabels = matrix.columns.map((token, column) => svgText(tokenLabel(token, LABEL_LENGTH), { transform: `translate(${left + (column + 0.5) * cell} ${top - 8}) rotate(${-LABEL_ANGLE * 180 / Math.PI})`, "dominant-baseline": "central", "font-size": 0.875 * rem, "data-columns": column }));
    return createSvg("svg", { width: width + right, height, role: "img", "aria-label": `Alignment matrix, ${title()}: ${matrix.rows.length} target by ${matrix.columns.length} source tokens` },
      ground, ...cells, ...rowLabels, ...columnLabels);
  }

  function svg() {
    const outlined = bestColumns(matrix);
    return matrixSvg({ title: `${app.config.model.name}: ${title()}`, queries: matrix.rows, keys: matrix.columns, weight: weightOf, contrast: "linear", isOutlined: (row, column) => outlined[row] === column });
  }

  function savePairs() {
    download(new Blob([`${pharaohPairs(mergeWords())}\n`], { type: "text/plain" }), "alignment.txt");
  }

  function stepLayer(step) {
    const place = layers.indexOf(current().layer) + step;
    if (layers[place]) app.change({ cross: layers[place].path });
  }

  return { update, svg, stepLayer, saves: [{ label: "Word pairs (Pharaoh)", save: savePairs }] };
}
