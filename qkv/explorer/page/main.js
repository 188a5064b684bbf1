// The page: header, tabs and the current view, and the state they share.

import { frames, observeTheme, track } from "./widgets/frames.js";
import { createApi } from "./data/api.js";
import { createEmbeddedLoader } from "./data/embedded.js";
import { createEmbeddedNeurons } from "./data/embedded-neurons.js";
import { createHeader } from "./header.js";
import { createViewFrame } from "./view-frame.js";
import { alignmentView } from "./views/alignment-view.js";
import { beamsView } from "./views/beams-view.js";
import { compareView } from "./views/compare-view.js";
import { generationView } from "./views/generation-view.js";
import { headView } from "./views/head-view.js";
import { imageView } from "./views/image-view.js";
import { matrixView } from "./views/matrix-view.js";
import { modelView } from "./views/model-view.js";
import { neuronView } from "./views/neuron-view.js";
import { patternsView } from "./views/patterns-view.js";
import { initialState, readState, writeState } from "./state.js";
import { createWeightStore } from "./data/weights.js";

const VIEWS = [headView, modelView, matrixView, alignmentView, neuronView, generationView, beamsView, patternsView, imageView, compareView];
const INPUTS = ["text", "pair", "target", "image"]; // parts of the state that the model reads
const HASH_DELAY = 250; // browsers refuse more than about 20 changes of the address in a second

function readConfig() {
  return JSON.parse(document.getElementById("config").textContent);
}

function startPage() {
  const config = readConfig();
  const isEmbedded = config.mode === "embedded";
  const start = config.trace ?? {};
  const base = { ...initialState(), text: start.text ?? "", pair: start.text_pair ?? "", target: config.target ?? "", image: config.image ?? "", ...config.state };
  const api = isEmbedded ? null : createApi(config.token);
  const app = { config, api, isEmbedded, state: readState(location.hash, base), trace: null, weights: null, failure: null, change, remember, run, reportError, openView, traceMain, traceOther, getPatterns, requestBody, link };
  const header = createHeader(app);
  const frame = createViewFrame(app, VIEWS);
  const hasAddress = location.protocol !== "about:"; // in a notebook it has none
  let patterns = null;
  let hashTimer = null;
  let runNumber = 0;

  /** Change the state without a redraw: for what a view has shown already. */
  function remember(changes) {
    Object.assign(app.state, changes);
    clearTimeout(hashTimer);
    hashTimer = setTimeout(writeHash, HASH_DELAY);
  }

  function change(changes) {
    remember(changes);
    frame.update();
  }

  function writeHash() {
    clearTimeout(hashTimer);
    if (hasAddress) history.replaceState(null, "", address());
  }

  function address() {
    return location.pathname + location.search + writeState(app.state, base);
  }

  /** The address that restores the page as it is. */
  function link() {
    writeHash();
    return location.href;
  }

  /** Open another view; the browser's button Back returns to the one before. */
  function openView(view, changes = {}) {
    writeHash();
    const isOther = view !== app.state.view;
    Object.assign(app.state, changes, { view });
    frame.open();
    if (isOther && hasAddress) history.pushState(null, "", address());
    else writeHash();
  }

  function reportError(error) {
    if (error.name !== "AbortError") header.showError(error.message);
  }

  function requestBody() {
    const { text, pair, target, image } = app.state;
    return { text, text_pair: pair || null, target: target || null, image: image || null };
  }

  /** Returns `request(get, parameters)` for a trace; a trace that the server has forgotten is computed again. */
  function createRequester(trace, body) {
    let trace_id = trace.trace_id;
    let renewal = null;
    return async (get, parameters) => {
      try {
        return await get({ trace_id, ...parameters });
      } catch (error) {
        if (error.status !== 404) throw error;
        renewal ??= api.postTrace(body).then(renewed => { trace_id = renewed.trace_id; }).finally(() => { renewal = null; });
        await renewal;
        return get({ trace_id, ...parameters });
      }
    };
  }

  /** Compute the attention of the texts in the state and show it. */
  async function run() {
    const number = ++runNumber;
    const body = requestBody();
    header.showRunning(true);
    try {
      const trace = await track(api.postTrace(body));
      if (number !== runNumber) return;
      showServerTrace(trace, body);
    } catch (error) {
      reportError(error);
      if (number === runNumber) showFailure(error);
    } finally {
      if (number === runNumber) header.showRunning(false);
    }
  }

  /** The trace is still that of the inputs before; what the main model refuses, the other one may read. */
  function showFailure(error) {
    if (!(error.status >= 400)) return; // the server did not answer
    app.failure = error;
    if (app.state.view === "compare") frame.open();
  }

  function showServerTrace(trace, body) {
    const request = createRequester(trace, body);
    app.getNeurons = parameters => request(api.getNeurons, parameters);
    showTrace(trace, createWeightStore(parameters => request(api.getWeights, parameters)));
  }

  function showEmbeddedTrace() {
    const load = createEmbeddedLoader(config.weights, config.trace.attentions);
    app.getNeurons = createEmbeddedNeurons(config);
    showTrace(config.trace, createWeightStore(load));
  }

  /** The first trace comes with the page, unless its address has other inputs. */
  function showStart() {
    const isStart = INPUTS.every(name => app.state[name] === base[name]);
    if (config.trace && isStart) showServerTrace(config.trace, requestBody());
    else if (app.state.text || app.state.image) run();
    else frame.showHint("Type a text and press Enter, or choose an example.");
  }

  /** The masks belong to the model, not to a text: asked for once. */
  function getPatterns(size) {
    if (isEmbedded) return Promise.resolve(config.patterns);
    patterns ??= api.getPatterns(size).catch(error => { patterns = null; throw error; });
    return patterns;
  }

  /** The trace of the main model and its weights; an error if it could not read the inputs. */
  async function traceMain() {
    if (app.failure) throw app.failure;
    return { trace: app.trace, weights: app.weights };
  }

  /** The trace of the model that is compared, and its weights. */
  async function traceOther() {
    if (isEmbedded) {
      const { trace, weights: arrays } = config.other;
      return { trace, weights: createWeightStore(createEmbeddedLoader(arrays, trace.attentions)) };
    }
    const body = { ...requestBody(), model: "other" };
    if (!app.failure) body.target = app.trace.target; // what the main model has generated is the target of both
    const trace = await track(api.postTrace(body));
    const request = createRequester(trace, body);
    return { trace, weights: createWeightStore(parameters => request(api.getWeights, parameters)) };
  }

  function showTrace(trace, weights) {
    Object.assign(app, { trace, weights, failure: null });
    header.showTrace(trace);
    frame.open();
  }

  function followHash() {
    clearTimeout(hashTimer);
    const before = { ...app.state };
    Object.assign(app.state, readState(location.hash, base));
    header.showTexts();
    if (!isEmbedded && INPUTS.some(name => before[name] !== app.state[name])) run();
    else frame.open();
  }

  window.addEventListener("hashchange", followHash);
  observeTheme(() => frame.open());
  window.qkvExplorer = { state: app.state, frames, link };
  if (isEmbedded) showEmbeddedTrace();
  else showStart();
}

startPage();
