// Legends: what the colors of weights and of signed numbers mean.

import { create, prepareCanvas, remPixels } from "./dom.js";
import { signedColor, weightColor } from "../drawing/colors.js";
import { formatNumber } from "./token-text.js";

function createRamp(color, label) {
  const canvas = create("canvas", { class: "ramp", role: "img", "aria-label": label });
  const [width, height] = [8 * remPixels(), 0.8 * remPixels()];
  const context = prepareCanvas(canvas, width, height);
  for (let x = 0; x < width; x++) {
    context.fillStyle = color(x / (width - 1));
    context.fillRect(x, 0, 1, height);
  }
  return canvas;
}

/** The ramp from weight 0 to weight 1; with the square root the middle of the ramp is the weight 0.25. */
export function createWeightLegend(contrast, name = "weight") {
  const middle = contrast === "root" ? "0.25" : "0.5";
  const color = place => weightColor(contrast === "root" ? place * place : place, contrast);
  return create("span", { class: "legend" }, create("span", { text: `${name} 0` }), createRamp(color, `Colors of ${name}s from 0 to 1`),
    create("span", { text: `1 (middle: ${middle})` }));
}

/** The ramp from -range to range. */
export function createSignedLegend(range, name) {
  return create("span", { class: "legend" }, create("span", { text: `${name} ${formatNumber(-range)}` }),
    createRamp(place => signedColor(2 * place - 1), `Colors from ${formatNumber(-range)}, orange, to ${formatNumber(range)}, blue`), create("span", { text: `+${formatNumber(range)}` }));
}

/** The choices of how weights become colors. */
export const CONTRAST_OPTIONS = [["root", "square root (shows small weights)"], ["linear", "linear"]];
