// The parts of one query's attention scores, and the equation with the numbers of one key.

import { formatNumber, formatWeight } from "../widgets/token-text.js";

const MULTIPLICATION = "products";

/** Returns {query, keys, products, terms: [{label, values}], weight, scale, size, range} from the server's parts. */
export function readNeurons({ scale, parts }) {
  const part = name => parts.find(other => other.name === name);
  const products = part(MULTIPLICATION) ?? part("contributions");
  const terms = [];
  if (part("dot")) terms.push({ label: "q·k", values: part("dot").data });
  if (part("scaled")) terms.push({ label: `× ${formatScale(scale)}`, values: part("scaled").data });
  for (const { name, data } of parts) if (name.startsWith("position:")) terms.push({ label: `+ ${name.slice("position:".length)}`, values: data });
  if (part("score")) terms.push({ label: "score", values: part("score").data });
  return {
    query: part("query")?.data ?? null, keys: part("keys")?.data ?? null, products: products.data, terms,
    weight: part("weight").data, scale, size: products.shape[1], count: products.shape[0],
    isProduct: products.name === MULTIPLICATION,
    vectorRange: largest(part("query")?.data, part("keys")?.data), productRange: largest(products.data),
  };
}

function largest(...arrays) {
  let range = 0;
  for (const array of arrays) if (array) for (const value of array) if (Math.abs(value) > range) range = Math.abs(value);
  return range || 1;
}

/** 0.125 as 1/√64, where the scale is one over the root of a whole number. */
export function formatScale(scale) {
  const square = 1 / (scale * scale);
  return Math.abs(square - Math.round(square)) < 1e-3 * square && scale !== 1 ? `1/√${Math.round(square)}` : formatNumber(scale, 3);
}

/** "q·k = 3.21; × 1/√64 = 0.40; + T5 bias −0.12 = 0.28; softmax → weight 0.07" */
export function scoreEquation(neurons, key, selectName) {
  const value = label => neurons.terms.find(term => term.label === label)?.values[key];
  const score = value("score");
  const steps = [];
  let sum = 0;
  for (const { label, values } of neurons.terms) {
    if (label === "score") continue;
    if (label.startsWith("+ ")) {
      sum += values[key];
      steps.push(`${label} ${formatNumber(values[key])} = ${formatNumber(sum)}`);
    } else {
      sum = values[key];
      steps.push(`${label} = ${formatNumber(sum)}`);
    }
  }
  if (!neurons.isProduct) steps.push(`sum of contributions = ${formatNumber(score)}`);
  steps.push(Number.isNaN(score) ? "masked: score −∞, weight 0" : `${selectName} → weight ${formatWeight(neurons.weight[key])}`);
  return steps.join("; ");
}
