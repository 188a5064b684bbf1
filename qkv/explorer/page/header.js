// The header: the model, the text inputs, the button Run, the notice and errors.

import { create, createSelect } from "./widgets/dom.js";
import { track } from "./widgets/frames.js";

const MAX_TITLE_TEXT = 400; // characters
const MAX_EXAMPLE_TEXT = 48;
const FIELDS_OF_STATE = { text: "text", text_pair: "pair", target: "target" };
const LABELS = { text: "Text", text_pair: "Second text (optional)", target: "Target (optional; empty: the model's own output)" };

function formatCount(count) {
  if (!count) return null;
  const [divisor, unit] = count >= 1e9 ? [1e9, " billion"] : count >= 1e6 ? [1e6, " million"] : [1, ""];
  return `${(count / divisor).toLocaleString("en", { maximumFractionDigits: 1 })}${unit} parameters`;
}

/** Fill the page's header; returns the functions that show what happened. */
export function createHeader(app) {
  const { model } = app.config;
  const element = document.getElementById("header");
  const error = create("p", { class: "error", role: "alert" });
  const notice = create("p", { class: "notice", role: "status" });
  const runButton = create("button", { type: "submit", class: "run", text: "Run" });
  const inputs = new Map();
  const description = [model.description, formatCount(model.num_parameters)].filter(Boolean).join(" · ");
  document.title = `${app.config.title ?? model.name} · attention explorer`;
  element.append(create("div", { class: "model" }, create("h1", { text: app.config.title ?? model.name }), create("p", { text: app.config.title ? `${model.name}: ${description}` : description })));
  if (app.isEmbedded) element.append(createTexts());
  else element.append(createForm());
  element.append(error, notice);

  function createTexts() {
    const { trace } = app.config;
    const texts = [trace.text, trace.text_pair, trace.target].filter(Boolean);
    return create("div", { class: "texts" }, ...texts.map(text => create("p", { dir: "auto", text: shorten(text, MAX_TITLE_TEXT) })));
  }

  function createForm() {
    const fields = Object.entries(FIELDS_OF_STATE).filter(([name]) => model.inputs[name]).map(([name, key]) => createField(name, key));
    if (model.inputs.image) fields.push(createImageField());
    const buttons = create("div", { class: "buttons" }, runButton, createExamples());
    return create("form", { class: "inputs", on: { submit: submit } }, ...fields, buttons);
  }

  function createField(name, key) {
    const label = labelOf(name);
    const input = create("textarea", { rows: 1, dir: "auto", spellcheck: "false", on: { keydown: submitOnEnter } });
    input.value = app.state[key];
    inputs.set(key, input);
    return create("label", { class: `input ${name}` }, create("span", { text: label }), input);
  }

  function labelOf(name) {
    if (name === "text" && model.inputs.target) return "Text (source)";
    if (name === "text_pair" && model.architecture === "decoder") return "Next segment (optional; the text becomes its memory)";
    return LABELS[name];
  }

  /** A picture goes to the server at once; the state keeps its name there. */
  function createImageField() {
    const input = create("input", { type: "file", accept: "image/*", on: { change: () => { if (input.files.length) upload(input.files[0]); } } });
    return create("label", { class: "input image" }, create("span", { text: model.reads_clips ? "Clip (animated image)" : "Picture" }), input);
  }

  async function upload(file) {
    try {
      app.state.image = await track(app.api.postImage(file));
      submit();
    } catch (failure) {
      app.reportError(failure);
    }
  }

  function createExamples() {
    const examples = app.config.examples ?? [];
    if (examples.length === 0) return null;
    const options = [["", "choose…"], ...examples.map((example, i) => [i, shorten(example.text, MAX_EXAMPLE_TEXT)])];
    const { element: field, select } = createSelect({ label: "Examples", options, value: "", onChange: value => {
      if (value === "") return;
      const example = examples[Number(value)];
      select.value = "";
      Object.assign(app.state, { text: example.text, pair: example.text_pair ?? "", target: example.target ?? "" });
      showTexts();
      submit();
    } });
    return field;
  }

  function shorten(text, length) {
    return text.length > length ? `${text.slice(0, length - 1)}…` : text;
  }

  function submitOnEnter(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  }

  function submit(event) {
    event?.preventDefault();
    for (const [key, input] of inputs) app.state[key] = input.value;
    if (!app.state.text.trim() && !app.state.image) {
      error.textContent = model.inputs.image ? "Type a text or choose a picture." : "Type a text.";
      return;
    }
    app.remember({ focus: "", otherFocus: "", key: null, top: 0, zoom: null, otherZoom: null, ids: [], at: 0 });
    app.run();
  }

  function showTexts() {
    for (const [key, input] of inputs) input.value = app.state[key];
  }

  return {
    showTexts,
    showError(message) {
      error.textContent = message;
    },
    showRunning(isRunning) {
      runButton.disabled = isRunning;
      runButton.textContent = isRunning ? "Running…" : "Run";
    },
    showTrace(trace) {
      error.textContent = "";
      notice.textContent = trace.notice ?? "";
      const target = inputs.get("target");
      if (target) target.placeholder = trace.target ?? "";
    },
  };
}
