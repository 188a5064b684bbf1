// Weights of a saved page: the same answers as the server's, computed from the arrays inside the page.

const MAX_ROLLOUT_TOKENS = 512; // a product of two matrices takes about a tenth of a second
const ARRAY_TYPES = { uint8: Uint8Array, uint16: Uint16Array, float32: Float32Array };

import { FULL_WEIGHT } from "./weights.js";

/** Decode an array of the page: {shape, data}. */
export function decodeArray({ shape, dtype, data }) {
  const bytes = Uint8Array.from(atob(data), character => character.charCodeAt(0));
  return { shape, data: new ARRAY_TYPES[dtype](bytes.buffer) };
}

function decodeWeights(array) {
  const { shape, data } = decodeArray(array);
  const isRoot = array.dtype === "uint8"; // square roots of the weights
  return { shape, data: isRoot ? Uint16Array.from(data, value => Math.round((value / 255) ** 2 * FULL_WEIGHT)) : data };
}

function parseRange(text) {
  return text.split(":").map(Number);
}

function parseHeads(text, count) {
  if (text === "mean") return Array.from({ length: count }, (_, i) => i);
  return text.split(",").flatMap(part => {
    const [first, last = first] = part.split("-").map(Number);
    return Array.from({ length: last - first + 1 }, (_, i) => first + i);
  });
}

/** Whether the page can compute the rollout of a layer: of all layers before it, for texts that are not too long. */
export function canRollOut(attentions, attention) {
  const [queryCount, keyCount] = attention.shape;
  const layers = layersBefore(attentions, attention);
  return attention.kind === "self" && queryCount === keyCount && queryCount <= MAX_ROLLOUT_TOKENS && layers.length === attention.layer + 1;
}

function layersBefore(attentions, attention) {
  return attentions.filter(({ stack, kind, layer }) => stack === attention.stack && kind === attention.kind && layer <= attention.layer);
}

/** Mix the mean of the heads with the residual connection, and multiply it with the rollout of the layers before (size × size). */
function multiplyLayer({ shape: [headCount, size], data }, before) {
  const mixed = new Float64Array(size * size);
  for (let head = 0, place = 0; head < headCount; head++) {
    for (let i = 0; i < size * size; i++, place++) mixed[i] += data[place] / FULL_WEIGHT / headCount / 2;
  }
  const product = new Float64Array(size * size);
  for (let row = 0; row < size; row++) {
    mixed[row * size + row] += 0.5;
    const weights = mixed.subarray(row * size, (row + 1) * size);
    const sum = weights.reduce((total, weight) => total + weight, 0);
    const target = product.subarray(row * size, (row + 1) * size);
    weights.forEach((weight, middle) => {
      if (weight === 0) return;
      for (let column = 0, place = middle * size; column < size; column++, place++) target[column] += weight / sum * before[place];
    });
  }
  return product;
}

/** Returns `load(parameters)` as the weight store wants it. */
export function createEmbeddedLoader(arrays, attentions) {
  const decoded = new Map();
  const rollouts = new Map();

  /** Attention rollout up to a layer (Abnar and Zuidema 2020) as weights of one head. */
  function rollout(path) {
    if (rollouts.has(path)) return rollouts.get(path);
    const last = attentions.find(attention => attention.path === path);
    const [size] = last.shape;
    const identity = Float64Array.from({ length: size * size }, (_, i) => i % (size + 1) === 0 ? 1 : 0);
    const product = layersBefore(attentions, last).reduce((before, layer) => multiplyLayer(array(layer.path), before), identity);
    rollouts.set(path, { shape: [1, size, size], data: product.map(weight => weight * FULL_WEIGHT) });
    return rollouts.get(path);
  }

  function array(path) {
    if (!decoded.has(path)) decoded.set(path, decodeWeights(arrays[path]));
    return decoded.get(path);
  }

  return async ({ path, heads, rows, columns, pool, rollout: isRollout }) => {
    const { shape: [headCount, queryCount, keyCount], data } = isRollout ? rollout(path) : array(path);
    const [firstRow, lastRow] = parseRange(rows);
    const [firstColumn, lastColumn] = parseRange(columns);
    const chosen = isRollout ? [0] : parseHeads(heads, headCount);
    const [rowCount, columnCount] = [Math.ceil((lastRow - firstRow) / pool), Math.ceil((lastColumn - firstColumn) / pool)];
    const isMean = heads === "mean" && !isRollout;
    const size = rowCount * columnCount;
    const block = new Float32Array((isMean ? 1 : chosen.length) * size);
    const plane = new Float32Array((lastRow - firstRow) * (lastColumn - firstColumn));
    chosen.forEach((head, i) => {
      if (!isMean) plane.fill(0);
      for (let row = firstRow, place = 0; row < lastRow; row++) {
        const start = (head * queryCount + row) * keyCount;
        for (let column = firstColumn; column < lastColumn; column++) plane[place++] += data[start + column];
      }
      if (!isMean) poolMaximum(plane, lastColumn - firstColumn, pool, block.subarray(i * size, (i + 1) * size), columnCount);
    });
    if (isMean) poolMaximum(plane.map(sum => sum / headCount), lastColumn - firstColumn, pool, block, columnCount);
    return { shape: [isMean ? 1 : chosen.length, rowCount, columnCount], data: Uint16Array.from(block, Math.round) };
  };
}

function poolMaximum(plane, width, pool, target, targetWidth) {
  for (let place = 0; place < plane.length; place++) {
    const cell = Math.floor(Math.floor(place / width) / pool) * targetWidth + Math.floor((place % width) / pool);
    if (plane[place] > target[cell]) target[cell] = plane[place];
  }
}
