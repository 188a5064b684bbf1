// Beam search as a tree: a column for each step, kept hypotheses joined to their parents, the best one highlighted.

import { create, createButton, createSvg, remPixels } from "../widgets/dom.js";
import { MAX_BEAMS, MAX_NEW_TOKENS } from "../state.js";
import { track } from "../widgets/frames.js";
import { themeColor } from "../drawing/colors.js";
import { svgText } from "../drawing/svg.js";
import { formatNumber, shortText, tokenLabel, visibleText } from "../widgets/token-text.js";

export const beamsView = {
  name: "beams",
  label: "Beam search",
  help: {
    sentences: ["Every column is a step and every box a hypothesis with its sum of log-probabilities; lines join a hypothesis to the one it extends.",
      "Beam search keeps the best hypotheses of every step (faint ones are dropped), and the highlighted path is the result."],
    equation: "score = Σ log p(token | tokens before it)",
  },
  isAvailable: app => !app.isEmbedded && app.config.model.can_generate,
  open: openBeamsView,
};

function openBeamsView({ tools, body }, app) {
  const { state } = app;
  tools.append(createField("Beams", "beams", 2, MAX_BEAMS), createField("Max new tokens", "maxNewTokens", 1, MAX_NEW_TOKENS), createButton("Search", () => search()));
  const status = create("p", { class: "status", role: "status" });
  const figure = create("div", { class: "scroll focusable", tabindex: 0, role: "region", "aria-label": "Tree of hypotheses" });
  body.append(status, figure);
  let shown = null, picture = null, number = 0;

  function createField(label, name, min, max) {
    const input = create("input", { type: "number", min, max, step: 1, value: state[name], on: { change: () => { if (input.checkValidity() && input.value !== "") app.change({ [name]: Number(input.value) }); } } });
    return create("label", { class: "field" }, create("span", { text: label }), input);
  }

  function search() {
    status.textContent = "Searching…";
    track(load()).catch(error => { status.textContent = ""; app.reportError(error); });
  }

  async function load() {
    const run = ++number;
    const { steps, best, output, score, notice } = await app.api.postBeams({ ...app.requestBody(), target: null, num_beams: state.beams, max_new_tokens: state.maxNewTokens });
    if (run !== number) return;
    const last = steps[best.length - 1]?.[best.at(-1)];
    picture = drawTree(steps, best);
    figure.replaceChildren(picture);
    const scores = last ? `, score ${formatNumber(score)} (sum of log-probabilities ${formatNumber(last.score)}, divided by a power of the length)` : "";
    status.textContent = [`Result: “${visibleText(output)}”${scores}, ${best.length} steps.`, notice].filter(Boolean).join(" ");
  }

  function update() {
    const key = `${state.beams} ${state.maxNewTokens}`;
    if (shown === key) return;
    shown = key;
    search();
  }

  return { update, svg: () => picture };
}

function drawTree(steps, best) {
  const rem = remPixels();
  const [boxWidth, boxHeight, gap, row, top] = [6.5 * rem, 2.4 * rem, 2 * rem, 2.8 * rem, 2 * rem];
  const x = step => step * (boxWidth + gap) + 1;
  const y = index => top + index * row;
  const height = top + Math.max(...steps.map(step => step.length), 1) * row;
  const isBest = (step, index) => best[step] === index;
  const lines = [];
  const boxes = [];
  steps.forEach((candidates, step) => candidates.forEach((candidate, index) => {
    const color = isBest(step, index) ? themeColor("--accent") : themeColor("--field");
    if (step > 0 && candidate.parent >= 0) {
      const [from, to, middle] = [y(candidate.parent) + boxHeight / 2, y(index) + boxHeight / 2, x(step) - gap / 2];
      lines.push(createSvg("path", { d: `M${x(step) - gap} ${from}C${middle} ${from} ${middle} ${to} ${x(step)} ${to}`, fill: "none", stroke: color, "stroke-width": isBest(step, index) ? 3 : 1.2, "stroke-opacity": candidate.is_kept ? 1 : 0.4 }));
    }
    boxes.push(drawBox({ candidate, color, x: x(step), y: y(index), width: boxWidth, height: boxHeight, isBest: isBest(step, index), rem }));
  }));
  const titles = steps.map((_, step) => svgText(`step ${step + 1}`, { x: x(step), y: 1.2 * rem, "font-size": 0.8125 * rem, fill: themeColor("--faint") }));
  const width = x(steps.length);
  return createSvg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Beam search: ${steps.length} steps; the best hypothesis is in the status line` }, ...titles, ...lines, ...boxes);
}

function drawBox({ candidate, color, x, y, width, height, isBest, rem }) {
  const ink = themeColor(candidate.is_kept ? "--ink" : "--faint");
  return createSvg("g", {},
    createSvg("title", { text: `${shortText(candidate.text, 200)} (id ${candidate.id}), ${candidate.is_kept ? "kept" : "dropped"}` }),
    createSvg("rect", { x, y, width, height, rx: 5, fill: themeColor("--raised"), stroke: color, "stroke-width": isBest ? 3 : 1, "stroke-dasharray": candidate.is_kept ? null : "4 3" }),
    svgText(tokenLabel(candidate, 11) + (candidate.is_finished ? " ■" : ""), { x: x + 8, y: y + 0.95 * rem, "font-size": 0.875 * rem, fill: ink, "font-weight": isBest ? 600 : 400 }),
    svgText(`log p ${formatNumber(candidate.score)}`, { x: x + 8, y: y + 2 * rem, "font-size": 0.75 * rem, fill: themeColor("--faint") }));
}
