// Neuron view: how the score of one query with every key comes about, from the vectors to the weight.

import { clamp, create, observeSize, prepareCanvas, remPixels } from "../widgets/dom.js";
import { createPainter, track } from "../widgets/frames.js";
import { signedStyles, themeColor } from "../drawing/colors.js";
import { createHeadSelect, createLayerPicker } from "../widgets/controls.js";
import { createSignedLegend } from "../widgets/legend.js";
import { readNeurons, scoreEquation } from "./neuron-parts.js";
import { readFocus } from "../state.js";
import { createTokenList, measureTokens } from "../widgets/token-list.js";
import { formatNumber, formatWeight, tokenLabel } from "../widgets/token-text.js";
import { findAttention, keyTokens, queryTokens } from "../data/trace.js";

const BORDER = 1; // above the lists
const NEURON_HINT = "Choose a query token on the left; point at a key, or use the arrow keys in the list of keys, to see its numbers.";

const NARROW_WIDTH = 26; // rem
const WEIGHT_WIDTH = 3.4; // rem of the number of a weight

export const neuronView = {
  name: "neuron",
  label: "Neurons",
  help: {
    sentences: ["The query vector is multiplied by each key vector element by element; the products add up to the dot product, which is scaled, joined by the position terms and turned into weights by the softmax.",
      "Blue numbers are positive and orange ones negative, so a strongly blue strip of products is a key that this query attends to; rotary positions have rotated the vectors before, and Transformer-XL has added its bias u to the query."],
    equation: "score = q·k / √d + position terms;   weight = exp(score) / Σ exp(scores)",
  },
  isAvailable: app => neuronLayers(app).length > 0,
  open: openNeuronView,
};

/** The layers whose scores are known; in a saved page, those whose vectors it has. */
function neuronLayers({ trace, isEmbedded, config }) {
  return trace.attentions.filter(({ has_neurons: isKnown, path }) => isKnown && (!isEmbedded || Object.hasOwn(config.vectors, path)));
}

function openNeuronView({ tools, body }, app) {
  const { trace, state } = app;
  const layers = neuronLayers(app);
  const picker = createLayerPicker({ attentions: layers, onChange: path => app.change({ path }) });
  const headSelect = createHeadSelect({ onChange: head => app.change({ head }) });
  tools.append(picker.element, headSelect.element);
  const lists = {
    query: createTokenList({ label: "Query token", side: "query", onHover: () => {}, onClick: pickQuery, onPick: pickQuery, onLeave: () => lists.key.element.focus() }),
    key: createTokenList({ label: "Keys", side: "query", onHover: hover, onClick: pickKey, onPick: pickKey, onLeave: () => lists.query.element.focus() }),
  };
  const canvas = create("canvas", { class: "sticky", role: "img" });
  const queryStage = create("div", { class: "neuron-queries" }, lists.query.element);
  const keyStage = create("div", { class: "neuron-keys" }, lists.key.element, canvas);
  const headings = create("canvas", { class: "neuron-headings", "aria-hidden": "true" });
  const status = create("p", { class: "status", role: "status", text: NEURON_HINT });
  const legend = create("div", { class: "legends" });
  body.append(status, create("div", { class: "neuron-grid" },
    create("div", {}, create("p", { class: "faint title", text: "query" }), queryStage), create("div", { class: "picture" }, headings, keyStage)), legend);

  let attention, queries, keys, neurons = null, query = Infinity, head = 0, loaded = null, key = null, rowHeight = 24, styles = signedStyles();
  const requestDraw = createPainter(draw);
  const stopSize = observeSize(body, () => { layOut(); requestDraw(); });
  for (const stage of [queryStage, keyStage]) stage.addEventListener("scroll", requestDraw);
  canvas.addEventListener("pointermove", event => {
    const index = Math.floor((event.offsetY + keyStage.scrollTop) / rowHeight);
    hover(index < keys.length ? index : null, event.offsetX);
  });
  canvas.addEventListener("pointerleave", () => hover(null));
  canvas.addEventListener("click", event => pickKey(Math.min(keys.length - 1, Math.floor((event.offsetY + keyStage.scrollTop) / rowHeight))));

  function hover(index, x = null) {
    key = index;
    showEquation(x);
    requestDraw();
  }

  function pickQuery(index) {
    if (index !== null) app.change({ focus: `q${index}` });
  }

  function pickKey(index) {
    app.remember({ key: index });
    hover(index);
    if (index !== null) revealRow(keyStage, index);
  }

  function revealRow(stage, index) {
    stage.scrollTop = clamp(stage.scrollTop, (index + 1) * rowHeight - stage.clientHeight, index * rowHeight);
  }

  function layOut() {
    const rem = remPixels();
    rowHeight = Math.round(1.5 * rem);
    const room = Math.max(window.innerHeight - keyStage.getBoundingClientRect().top - window.scrollY - 3 * rem, 20 * rem);
    const font = getComputedStyle(keyStage);
    for (const [stage, tokens] of [[queryStage, queries], [keyStage, keys]]) {
      const widest = measureTokens(tokens, `${font.fontSize} ${font.fontFamily}`);
      stage.style.setProperty("--row", `${rowHeight}px`);
      stage.parentElement.style.setProperty("--token-width", `${Math.round(clamp(widest + 1.2 * rem, 3 * rem, Math.min(12 * rem, body.clientWidth * 0.22)))}px`);
      const height = Math.min(tokens.length * rowHeight + BORDER, room);
      stage.style.height = `${height}px`;
      stage.style.setProperty("--stage-height", `${height}px`);
    }
  }

  function update() {
    const previous = attention;
    attention = findAttention(layers, state.path);
    head = state.head === "mean" ? 0 : Math.min(state.head, attention.heads - 1);
    picker.update(attention.path);
    headSelect.update(head, attention.heads, false);
    if (attention !== previous) {
      [queries, keys] = [queryTokens(trace, attention), keyTokens(trace, attention)];
      lists.query.setTokens(queries);
      lists.key.setTokens(keys);
      layOut();
    }
    const focus = readFocus(state.focus, attention.shape);
    query = focus?.side === "query" ? focus.index : Math.min(query, queries.length - 1);
    revealRow(queryStage, query);
    const wanted = [attention.path, head, query].join();
    if (wanted !== loaded) {
      loaded = wanted;
      track(load(wanted)).catch(app.reportError);
    }
    requestDraw();
  }

  async function load(wanted) {
    const answer = await app.getNeurons({ path: attention.path, head, row: query });
    if (wanted !== loaded) return;
    neurons = readNeurons(answer);
    legend.replaceChildren(neurons.query ? createSignedLegend(neurons.vectorRange, "vectors") : "", createSignedLegend(neurons.productRange, neurons.isProduct ? "products" : "contributions"));
    showEquation(null);
    requestDraw();
  }

  function shownKey() {
    const index = key ?? state.key;
    return index !== null && index < keys.length ? index : null;
  }

  /** Columns of the picture: strips of keys and products, a number for each term, the weight's bar; on a narrow screen without keys and terms. */
  function columns(width) {
    const rem = remPixels();
    const isNarrow = width < NARROW_WIDTH * rem;
    const number = label => Math.max(3.2 * rem, Math.min(5.5 * rem, width * 0.08), label.length * 0.52 * rem);
    const terms = neurons.terms.filter(({ label }) => !isNarrow || label === "score").map(term => ({ ...term, width: number(term.label) }));
    const bar = isNarrow ? WEIGHT_WIDTH * rem : Math.max(6 * rem, width * 0.14);
    const hasKeys = neurons.keys !== null && !isNarrow;
    const gap = 0.4 * rem;
    const room = width - terms.reduce((sum, term) => sum + term.width + gap, bar + rem);
    const strip = Math.max(2 * rem, room / (hasKeys ? 2 : 1) - gap);
    const label = !neurons.isProduct ? "contributions" : isNarrow ? "q × k" : "q × k, element by element";
    const keyLabel = attention.position === "rotary" ? "key vector k, rotated" : "key vector k";
    const list = [...(hasKeys ? [{ label: keyLabel, strip: neurons.keys, range: neurons.vectorRange, width: strip }] : []),
      { label, strip: neurons.products, range: neurons.productRange, width: strip }, ...terms, { label: "weight", isWeight: true, width: bar }];
    let x = 0.5 * rem;
    return list.map(column => {
      const placed = { ...column, x };
      x += column.width + gap;
      return placed;
    });
  }

  function draw() {
    const rows = stage => [Math.floor(stage.scrollTop / rowHeight) - 2, Math.ceil((stage.scrollTop + stage.clientHeight) / rowHeight) + 2];
    lists.query.show(...rows(queryStage), query, null);
    lists.key.show(...rows(keyStage), shownKey(), null);
    if (!neurons || neurons.count !== keys.length) return;
    styles = signedStyles();
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    const placed = columns(width);
    drawHeadings(placed, width);
    const context = prepareCanvas(canvas, width, height);
    setFont(context);
    const [first, last] = rows(keyStage);
    for (let index = Math.max(0, first); index < Math.min(last, keys.length); index++) drawRow(context, index, index * rowHeight - keyStage.scrollTop, placed, width);
    canvas.setAttribute("aria-label", `Scores of the query ${queries[query].text.slice(0, 40)} with ${keys.length} keys, head ${head}; choose a key in the list to read its equation`);
  }

  function setFont(context) {
    context.font = `${0.8125 * remPixels()}px ${getComputedStyle(canvas).fontFamily}`;
    context.textBaseline = "middle";
  }

  function drawRow(context, index, y, placed, width) {
    if (index === shownKey()) {
      context.fillStyle = themeColor("--line");
      context.fillRect(0, y, width, rowHeight);
    }
    for (const column of placed) {
      if (column.strip) drawStrip(context, column.strip, index * neurons.size, column.range, column.x, y + 3, column.width, rowHeight - 6);
      else if (column.isWeight) drawWeight(context, neurons.weight[index], column.x, y, column.width);
      else drawNumber(context, column.values[index], column.x + column.width, y);
    }
  }

  function drawStrip(context, values, start, range, x, y, width, height) {
    const cell = width / neurons.size;
    for (let i = 0; i < neurons.size; i++) {
      context.fillStyle = styles[Math.round((values[start + i] / range + 1) * 127.5)];
      context.fillRect(x + i * cell, y, cell + 0.5, height);
    }
  }

  function drawNumber(context, value, right, y) {
    context.fillStyle = themeColor(Number.isNaN(value) ? "--faint" : "--ink");
    context.textAlign = "right";
    context.fillText(formatNumber(value), right, y + rowHeight / 2);
  }

  function drawWeight(context, weight, x, y, width) {
    const label = WEIGHT_WIDTH * remPixels();
    context.fillStyle = themeColor("--accent");
    if (width > label) context.fillRect(x + label, y + 4, Math.max(weight * (width - label), weight > 0 ? 1 : 0), rowHeight - 8);
    drawNumberText(context, formatWeight(weight), x + label - 6, y);
  }

  function drawNumberText(context, text, right, y) {
    context.fillStyle = themeColor("--ink");
    context.textAlign = "right";
    context.fillText(text, right, y + rowHeight / 2);
  }

  function drawHeadings(placed, width) {
    const height = headings.clientHeight;
    const context = prepareCanvas(headings, headings.clientWidth, height);
    const offset = canvas.getBoundingClientRect().left - headings.getBoundingClientRect().left;
    setFont(context);
    context.textAlign = "left";
    context.fillStyle = themeColor("--faint");
    if (neurons.query) {
      context.fillText(placed[0].width < 6 * remPixels() ? "q" : "query vector q", offset + placed[0].x, height * 0.16);
      drawStrip(context, neurons.query, 0, neurons.vectorRange, offset + placed[0].x, height * 0.3, placed[0].width, height * 0.3);
    }
    for (const column of placed) {
      context.fillStyle = themeColor("--faint");
      const right = column.isWeight ? WEIGHT_WIDTH * remPixels() - 6 : column.width;
      const isNumber = column.strip === undefined;
      context.textAlign = isNumber ? "right" : "left";
      context.fillText(column.label, offset + column.x + (isNumber ? right : 0), height * 0.84, column.width);
    }
  }

  function showEquation(x) {
    const index = shownKey();
    if (!neurons || index === null || neurons.count !== keys.length) {
      status.textContent = NEURON_HINT;
      return;
    }
    const element = x === null ? "" : elementAt(index, x);
    status.textContent = `${tokenLabel(queries[query])} · ${tokenLabel(keys[index])}: ${scoreEquation(neurons, index, attention.select)}${element}`;
  }

  /** The numbers of the element under the pointer: "; element 12: 0.50 × 0.41 = 0.21". */
  function elementAt(index, x) {
    const column = columns(canvas.clientWidth).find(other => other.strip && x >= other.x && x < other.x + other.width);
    if (!column) return "";
    const element = Math.min(neurons.size - 1, Math.floor((x - column.x) / column.width * neurons.size));
    const place = index * neurons.size + element;
    if (!neurons.isProduct) return `; element ${element}: ${formatNumber(neurons.products[place], 3)}`;
    return `; element ${element}: q ${formatNumber(neurons.query[element], 3)} × k ${formatNumber(neurons.keys[place], 3)} = ${formatNumber(neurons.products[place], 3)}`;
  }

  return { update, close: stopSize, stepLayer: step => app.change({ path: picker.neighbor(step) }) };
}
