// The settings of generation as inputs, and their form in the state: only those that differ from the initial ones.

import { create, createCheckbox } from "./dom.js";

// name, label, initial value, and for numbers their limits and step
const SETTINGS = [
  { name: "do_sample", label: "sampling", initial: false },
  { name: "temperature", label: "temperature", initial: 1, min: 0.05, max: 5, step: 0.05 },
  { name: "top_k", label: "top-k (0: off)", initial: 0, min: 0, max: 1000, step: 1 },
  { name: "top_p", label: "top-p", initial: 1, min: 0.01, max: 1, step: 0.01 },
  { name: "repetition_penalty", label: "repetition penalty", initial: 1, min: 0.1, max: 5, step: 0.1 },
  { name: "no_repeat_ngram_size", label: "no-repeat n-gram size", initial: 0, min: 0, max: 20, step: 1 },
  { name: "seed", label: "seed", initial: 0, min: 0, max: 999999, step: 1 },
];

/** Read the settings from the state's text. */
export function readSettings(text) {
  const values = new URLSearchParams(text);
  return Object.fromEntries(SETTINGS.map(({ name, initial }) => {
    const value = values.get(name);
    if (value === null) return [name, initial];
    if (typeof initial === "boolean") return [name, value === "1"];
    return [name, Number.isFinite(Number(value)) ? Number(value) : initial];
  }));
}

function writeSettings(settings) {
  const changed = SETTINGS.filter(({ name, initial }) => settings[name] !== initial);
  return new URLSearchParams(changed.map(({ name }) => [name, settings[name] === true ? "1" : String(settings[name])])).toString();
}

/** Inputs for all settings; `onChange(text)` gets the new form in the state. */
export function createSettings({ text, onChange }) {
  const settings = readSettings(text);
  const set = (name, value) => {
    settings[name] = value;
    onChange(writeSettings(settings));
  };
  const fields = SETTINGS.map(({ name, label, initial, ...limits }) => {
    if (typeof initial === "boolean") return createCheckbox({ label, isChecked: settings[name], onChange: value => set(name, value) }).element;
    const input = create("input", { type: "number", ...limits, value: settings[name], on: { change: () => { if (input.checkValidity() && input.value !== "") set(name, Number(input.value)); } } });
    return create("label", { class: "field" }, create("span", { text: label }), input);
  });
  return create("div", { class: "settings", role: "group", "aria-label": "Generation settings" }, ...fields);
}
