// The settings of generation as inputs, and their form in the state: only those that differ from the initial ones.

import { create, createCheckbox } from "./dom.js";

// name, label, initial value, for numbers their limits and step, and whether the setting is one of sampling
const SETTINGS = [
  { name: "do_sample", label: "sampling", initial: false },
  { name: "temperature", label: "temperature", initial: 1, min: 0.05, max: 5, step: 0.05, isSampling: true },
  { name: "top_k", label: "top-k (0: off)", initial: 0, min: 0, max: 1000, step: 1, isSampling: true },
  { name: "top_p", label: "top-p", initial: 1, min: 0.01, max: 1, step: 0.01, isSampling: true },
  { name: "repetition_penalty", label: "repetition penalty", initial: 1, min: 0.1, max: 5, step: 0.1 },
  { name: "no_repeat_ngram_size", label: "no-repeat n-gram size", initial: 0, min: 0, max: 20, step: 1 },
  { name: "seed", label: "seed", initial: 0, min: 0, max: 999999, step: 1 },
];
const SAMPLING_SETTINGS = SETTINGS.filter(({ isSampling }) => isSampling);

/** Read the settings from the state's text; one of sampling implies sampling. */
export function readSettings(text) {
  const values = new URLSearchParams(text);
  const settings = Object.fromEntries(SETTINGS.map(({ name, initial }) => {
    const value = values.get(name);
    if (value === null) return [name, initial];
    if (typeof initial === "boolean") return [name, value === "1"];
    return [name, Number.isFinite(Number(value)) ? Number(value) : initial];
  }));
  if (SAMPLING_SETTINGS.some(({ name, initial }) => settings[name] !== initial)) settings.do_sample = true;
  return settings;
}

function writeSettings(settings) {
  const changed = SETTINGS.filter(({ name, initial }) => settings[name] !== initial);
  return new URLSearchParams(changed.map(({ name }) => [name, settings[name] === true ? "1" : String(settings[name])])).toString();
}

/** Inputs for all settings; `onChange(text)` gets the new form in the state. */
export function createSettings({ text, onChange }) {
  const settings = readSettings(text);
  const inputs = {};

  /** A setting of sampling switches it on; switching it off resets those settings. */
  function set(name, value) {
    settings[name] = value;
    if (SAMPLING_SETTINGS.some(setting => setting.name === name)) settings.do_sample = true;
    else if (name === "do_sample" && !value) for (const { name: other, initial } of SAMPLING_SETTINGS) settings[other] = initial;
    inputs.do_sample.checked = settings.do_sample;
    for (const { name: other } of SAMPLING_SETTINGS) inputs[other].value = settings[other];
    onChange(writeSettings(settings));
  }

  function createField({ name, label, initial, min, max, step }) {
    if (typeof initial === "boolean") {
      const { element, input } = createCheckbox({ label, isChecked: settings[name], onChange: value => set(name, value) });
      inputs[name] = input;
      return element;
    }
    const input = create("input", { type: "number", min, max, step, value: settings[name], on: { change: () => { if (input.checkValidity() && input.value !== "") set(name, Number(input.value)); } } });
    inputs[name] = input;
    return create("label", { class: "field" }, create("span", { text: label }), input);
  }

  return create("div", { class: "settings", role: "group", "aria-label": "Generation settings" }, ...SETTINGS.map(createField));
}
