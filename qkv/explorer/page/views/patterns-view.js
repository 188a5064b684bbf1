// Patterns: the mask of every layer, and the position biases as curves over the distance.

import { create, remPixels } from "../widgets/dom.js";
import { track } from "../widgets/frames.js";
import { themeColor } from "../drawing/colors.js";
import { createLineChart } from "../drawing/line-chart.js";
import { kindName } from "../data/trace.js";

const PATTERN_SIZE = 48;

export const patternsView = {
  name: "patterns",
  label: "Patterns",
  help: {
    sentences: ["Each picture is the mask of some layers: a filled cell means that the query of this row may attend to the key of this column.",
      "A position bias is added to the score before the softmax and depends only on the distance between key and query."],
    equation: "score(i, j) = qᵢ·kⱼ / √d + bias(j − i), or −∞ where the mask is empty",
  },
  isAvailable: () => true,
  open: openPatternsView,
};

function openPatternsView({ body }, app) {
  const status = create("p", { class: "status", role: "status", text: "A row is a query, a column a key; filled cells may be attended to. Layers with the same mask share a picture." });
  const cards = create("div", { class: "cards" });
  const charts = create("div");
  body.append(status, cards, charts);

  async function load() {
    const { attentions } = await app.getPatterns(PATTERN_SIZE);
    const named = attentions.map(pattern => ({ ...pattern, attention: app.trace.attentions.find(({ path }) => path === pattern.path) })).filter(({ attention }) => attention);
    if (named.length === 0) status.textContent = "The attention of this model has no masks.";
    cards.replaceChildren(...groupBy(named, ({ attention, pattern, mask }) => [kindName(attention), pattern, mask].join()).map(createCard));
    const biases = groupBy(named.filter(({ bias }) => bias), ({ attention, bias }) => kindName(attention) + JSON.stringify(bias));
    charts.replaceChildren(...biases.map(group => createBiasChart(group, body.clientWidth)));
  }

  return { update: () => track(load()).catch(app.reportError) };
}

function groupBy(items, key) {
  const groups = new Map();
  for (const item of items) groups.set(key(item), [...groups.get(key(item)) ?? [], item]);
  return [...groups.values()];
}

/** "layers 0, 2–5" */
function layerList(group) {
  const runs = [];
  for (const { attention: { layer } } of group) {
    if (runs.at(-1)?.[1] === layer - 1) runs.at(-1)[1] = layer;
    else runs.push([layer, layer]);
  }
  const text = runs.map(([first, last]) => first === last ? `${first}` : `${first}–${last}`).join(", ");
  return `${group.length > 1 ? "layers" : "layer"} ${text}`;
}

function createCard(group) {
  const [{ attention, pattern, mask, keys, memory, scale }] = group;
  const name = `${kindName(attention)}, ${layerList(group)}`;
  const canvas = create("canvas", { class: "mask", role: "img", "aria-label": `Mask of ${name}: ${pattern}` });
  drawMask(canvas, Uint8Array.from(atob(mask), character => character.charCodeAt(0)), keys, memory);
  return create("figure", { class: "card" }, canvas, create("figcaption", {}, create("strong", { text: pattern }), create("br"), name,
    memory ? create("span", { class: "faint", text: ` (the first ${memory} columns are memory)` }) : null,
    scale > 1 ? create("span", { class: "faint", text: ` (a cell: ${scale} × ${scale} tokens)` }) : null));
}

function drawMask(canvas, mask, keys, memory) {
  const rows = mask.length / keys;
  Object.assign(canvas, { width: keys * 6, height: rows * 6 });
  const context = canvas.getContext("2d");
  mask.forEach((isVisible, i) => {
    const column = i % keys;
    context.fillStyle = isVisible ? themeColor("--accent") : themeColor("--line");
    context.globalAlpha = isVisible && column < memory ? 0.55 : 1;
    context.fillRect(column * 6, Math.floor(i / keys) * 6, 5, 5);
  });
}

function createBiasChart(group, width) {
  const [{ attention, bias }] = group;
  const name = `${bias.name} of ${kindName(attention)}, ${layerList(group)}`;
  return create("section", { class: "chart" }, create("h2", { text: name }), create("p", { class: "faint", text: "One line per head; the numbers at the right are the heads." }), create("div", { class: "scroll focusable", tabindex: 0, role: "region", "aria-label": name },
    createLineChart({ xs: bias.distances, lines: bias.heads, xLabel: "distance in tokens (key position − query position)", yLabel: "bias added to the score", label: `${name}: a line for each of ${bias.heads.length} heads`, width: Math.max(20 * remPixels(), width) })));
}
