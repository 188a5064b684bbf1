// Generation step by step: the candidates of every step, what the step attended to, and the choice of another candidate.

import { create, createButton } from "../widgets/dom.js";
import { track } from "../widgets/frames.js";
import { createCandidates } from "../widgets/candidates.js";
import { createHeadSelect, createLayerPicker } from "../widgets/controls.js";
import { createSettings, readSettings } from "../widgets/generation-settings.js";
import { topIndices } from "../widgets/focus-weights.js";
import { formatWeight, shortText, tokenLabel, visibleText } from "../widgets/token-text.js";
import { findAttention, headsName, keyTokens, layerName } from "../data/trace.js";
import { FULL_WEIGHT } from "../data/weights.js";

const CANDIDATES = 12;
const PLAY_DELAY = 450;

export const generationView = {
  name: "generation",
  label: "Generation",
  help: {
    sentences: ["At every step the model gives each token of the vocabulary a probability; the logits processors (penalties, and for sampling temperature, top-k and top-p, in this order) change it, and greedy search or sampling chooses the next token.",
      "A click on another candidate continues the text from there, and the shades show which tokens the step attended to."],
    equation: "p(next) = softmax(top_p(top_k(penalties(logits) / temperature)))",
  },
  isAvailable: app => !app.isEmbedded && app.config.model.can_generate,
  open: openGenerationView,
};

function openGenerationView({ tools, body }, app) {
  const { state } = app;
  const steps = new Map();
  const buttons = {
    play: createButton("Play", togglePlay),
    step: createButton("Step", () => advance()),
    back: createButton("Back", () => { pause(); app.change({ at: Math.max(0, state.at - 1) }); }),
    reset: createButton("Reset", () => { pause(); app.change({ ids: [], at: 0 }); }),
  };
  tools.append(create("div", { class: "buttons" }, ...Object.values(buttons)),
    createSettings({ text: state.settings, onChange: settings => { pause(); app.change({ settings, ids: state.ids.slice(0, state.at) }); } }));
  const output = create("p", { class: "words output", "aria-label": "Tokens chosen so far" });
  const status = create("p", { class: "status", role: "status" });
  const candidates = create("div", { class: "picture" });
  const heatTools = create("div", { class: "tools" });
  const heat = create("p", { class: "words heat" });
  const heatStatus = create("p", { class: "status", role: "status" });
  body.append(output, status, create("div", { class: "split generation" }, candidates,
    create("section", { class: "picture", "aria-label": "What this step attended to" }, create("h2", { text: "What this step attended to" }), heatTools, heatStatus, heat)));
  let picker = null, headSelect = null, playing = null, number = 0;

  function getStep(ids, isRenewed = false) {
    const body = { ...app.requestBody(), target: null, token_ids: ids, settings: readSettings(state.settings), candidates: CANDIDATES };
    const key = JSON.stringify(body);
    if (isRenewed || !steps.has(key)) {
      const promise = track(app.api.postStep(body));
      promise.catch(() => steps.delete(key));
      steps.set(key, promise);
    }
    return steps.get(key);
  }

  function update() {
    state.at = Math.min(state.at, state.ids.length);
    track(show()).catch(error => { pause(); app.reportError(error); });
  }

  async function show() {
    const run = ++number;
    const step = await getStep(state.ids.slice(0, state.at));
    if (run !== number) return;
    showOutput(step);
    showCandidates(step);
    showButtons(step);
    await showHeat(step, run);
  }

  function chosenId(step) {
    return state.at < state.ids.length ? state.ids[state.at] : step.next;
  }

  function showOutput(step) {
    const chips = step.tokens.map((token, i) => createButton(shortText(token.text), () => { pause(); app.change({ at: i }); }, { class: "chip", dir: "auto", title: `Step ${i + 1}: ${visibleText(token.text.slice(0, 200))}` }));
    output.replaceChildren(...(chips.length ? chips : [create("span", { class: "faint", text: "No token chosen yet." })]));
    const end = step.is_finished ? ` Finished: ${step.reason}.` : "";
    status.textContent = `Step ${state.at + 1}: ${step.output ? `“${visibleText(step.output)}”` : "choose the first token, or press Play"}.${end}`;
  }

  function showCandidates(step) {
    if (step.is_finished || step.candidates.length === 0) {
      candidates.replaceChildren(create("p", { class: "faint", text: `The text is finished (${step.reason}).` }));
      return;
    }
    const chosen = chosenId(step);
    const isListed = step.candidates.some(({ id }) => id === chosen);
    candidates.replaceChildren(createCandidates({ candidates: step.candidates, chosen, onChoose: choose }),
      isListed ? "" : create("p", { class: "faint", text: `Chosen: the token with id ${chosen}, which is not among the ${step.candidates.length} candidates shown.` }));
  }

  function showButtons(step) {
    buttons.back.disabled = state.at === 0;
    buttons.reset.disabled = state.ids.length === 0;
    buttons.step.disabled = step.is_finished;
    buttons.play.disabled = step.is_finished;
    if (step.is_finished) pause();
  }

  function choose(id) {
    pause();
    app.change({ ids: [...state.ids.slice(0, state.at), id], at: state.at + 1 });
  }

  async function advance(isWanted = () => true) {
    try {
      const step = await getStep(state.ids.slice(0, state.at));
      if (step.is_finished || !isWanted()) return;
      const ids = state.at < state.ids.length ? state.ids : [...state.ids, step.next];
      app.change({ ids, at: state.at + 1 });
    } catch (error) {
      pause();
      app.reportError(error);
    }
  }

  /** One loop runs at a time: a press of Play, Pause and Play again does not start a second one. */
  async function togglePlay() {
    if (playing) return pause();
    const loop = {};
    playing = loop;
    buttons.play.textContent = "Pause";
    while (playing === loop) {
      await advance(() => playing === loop);
      await new Promise(resolve => { setTimeout(resolve, PLAY_DELAY); });
    }
  }

  function pause() {
    playing = null;
    buttons.play.textContent = "Play";
  }

  /** Pickers of layer and head; created with the first step, which says what layers there are. */
  function showHeatTools(layers) {
    if (!picker) {
      picker = createLayerPicker({ attentions: layers, onChange: stepPath => app.change({ stepPath }) });
      headSelect = createHeadSelect({ onChange: stepHead => app.change({ stepHead }) });
      heatTools.replaceChildren(picker.element, headSelect.element);
    }
  }

  async function showHeat(step, run) {
    const layers = step.attentions.filter(attention => attention.stack !== "encoder");
    if (layers.length === 0) return;
    showHeatTools(layers);
    const crosses = layers.filter(({ kind }) => kind === "cross");
    const initial = (crosses.length ? crosses : layers).at(-2) ?? layers[0];
    const attention = findAttention(layers, state.stepPath || initial.path);
    const head = state.stepHead === "mean" || state.stepHead < attention.heads ? state.stepHead : "mean";
    picker.update(attention.path);
    headSelect.update(head, attention.heads);
    const [queryCount, keyCount] = attention.shape;
    const block = await getWeights(step, { path: attention.path, heads: String(head), rows: `${queryCount - 1}:${queryCount}`, columns: `0:${keyCount}`, pool: 1 });
    if (run !== number) return;
    drawHeat(keyTokens(step, attention), Float64Array.from(block.data, value => value / FULL_WEIGHT), `${layerName(attention)}, ${headsName(head, attention.heads)}`);
  }

  /** The weights of a step; a step that the server has forgotten is computed again. */
  async function getWeights(step, parameters) {
    try {
      return await app.api.getWeights({ trace_id: step.trace_id, ...parameters });
    } catch (error) {
      if (error.status !== 404) throw error;
      const { trace_id } = await getStep(step.tokens.map(({ id }) => id), true);
      return app.api.getWeights({ trace_id, ...parameters });
    }
  }

  function drawHeat(tokens, weights, name) {
    heat.replaceChildren(...tokens.flatMap((token, i) => {
      const span = create("span", { dir: "auto", class: token.special ? "special" : null, text: shortText(token.text), title: `weight ${formatWeight(weights[i])}` });
      span.style.setProperty("--weight", Math.sqrt(weights[i]));
      return [span, " "];
    }));
    const top = topIndices(weights, 5).map(i => `${tokenLabel(tokens[i])} ${formatWeight(weights[i])}`);
    heatStatus.textContent = `${top.join(" · ")} (weights, ${name})`;
  }

  return { update, close: pause, stepLayer: step => { if (picker) app.change({ stepPath: picker.neighbor(step) }); } };
}
