// The pickers that views share: kind of attention, layer, heads.

import { create, createButton, createSelect, setOptions } from "./dom.js";
import { headColor, inkOn } from "../drawing/colors.js";
import { findAttention, kindName, kindNames, layerNote, layersOfKind } from "../data/trace.js";

/** Pickers of the kind of attention and of the layer. `onChange(path)` gets the layer's path. */
export function createLayerPicker({ attentions, onChange }) {
  const kinds = kindNames(attentions);
  let current = attentions[0];
  const kindSelect = createSelect({ label: "Attention", options: kinds.map(kind => [kind, kind]), value: kinds[0], onChange: chooseKind });
  const layerSelect = createSelect({ label: "Layer", options: [], value: "", onChange });
  layerSelect.select.title = "Keys: [ for the layer before, ] for the next layer";
  const element = create("div", { class: "pickers" }, kinds.length > 1 ? kindSelect.element : null, layerSelect.element);

  function chooseKind(kind) {
    const layers = layersOfKind(attentions, kind);
    onChange((layers.find(layer => layer.layer === current.layer) ?? layers[0]).path);
  }

  function update(path) {
    current = findAttention(attentions, path);
    const layers = layersOfKind(attentions, kindName(current));
    setOptions(kindSelect.select, kinds.map(kind => [kind, kind]), kindName(current));
    setOptions(layerSelect.select, layers.map(layer => [layer.path, `${layer.layer} · ${layerNote(layer)}`]), current.path);
  }

  /** The path of the layer `step` layers after the current one, of the same kind. */
  function neighbor(step) {
    const layers = layersOfKind(attentions, kindName(current));
    return layers[Math.max(0, Math.min(layers.length - 1, layers.indexOf(current) + step))].path;
  }

  return { element, update, neighbor };
}

/** A picker of one head, or of the mean of all heads; of a single head, which is its own mean, there is no choice. */
export function createHeadSelect({ label = "Head", onChange }) {
  const { element, select } = createSelect({ label, options: [], value: "", onChange: value => onChange(value === "mean" ? value : Number(value)) });
  return {
    element,
    update(head, count, hasMean = true) {
      const heads = Array.from({ length: count }, (_, i) => [i, `head ${i}`]);
      const means = hasMean ? [["mean", `mean of ${count} heads`]] : [];
      setOptions(select, count === 1 ? [[head, "head 0"]] : [...means, ...heads], head);
    },
  };
}

/** Colored buttons that switch heads on and off. `onChange(heads)`: null means all of them. */
export function createHeadSwatches({ onChange }) {
  const swatches = create("div", { class: "swatches" });
  const element = create("div", { class: "heads", role: "group", "aria-label": "Heads" }, create("span", { class: "name", text: "Heads" }), swatches,
    createButton("all", () => onChange(null), { class: "small" }), createButton("none", () => onChange([]), { class: "small" }));
  let chosen = [];
  let count = 0;

  function toggle(head) {
    const heads = chosen.includes(head) ? chosen.filter(other => other !== head) : [...chosen, head].sort((a, b) => a - b);
    onChange(heads.length === count ? null : heads);
  }

  function createSwatch(head) {
    return createButton(String(head), event => event.shiftKey ? onChange([head]) : toggle(head), {
      class: "swatch", "aria-label": `head ${head}`, title: `Head ${head}: click switches it, double click or Shift+click shows only this head`,
    });
  }

  swatches.addEventListener("dblclick", event => {
    const swatch = event.target.closest(".swatch");
    if (swatch) onChange([[...swatches.children].indexOf(swatch)]);
  });

  return {
    element,
    update(heads, headCount) {
      if (count !== headCount) swatches.replaceChildren(...Array.from({ length: headCount }, (_, head) => createSwatch(head)));
      [count, chosen] = [headCount, heads];
      [...swatches.children].forEach((swatch, head) => {
        const isOn = heads.includes(head);
        swatch.setAttribute("aria-pressed", isOn);
        swatch.style.backgroundColor = isOn ? headColor(head) : "";
        swatch.style.borderColor = headColor(head);
        swatch.style.color = isOn ? inkOn(headColor(head)) : "";
      });
    },
  };
}

/** The heads that are switched on: those of the state that the layer has, or all of them. */
export function chosenHeads(state, attention) {
  const all = Array.from({ length: attention.heads }, (_, head) => head);
  return state.heads === null ? all : all.filter(head => state.heads.includes(head));
}
