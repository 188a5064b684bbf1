// How one query's weights come about, computed from the queries, keys, masks and biases inside a saved page, or read from it.

import { decodeArray } from "./embedded.js";

/** The plane of a head in an array of (heads or groups of heads, rows, columns). */
function planeOf({ shape: [groupCount, rows, columns], data }, head, headCount) {
  const size = rows * columns;
  const group = Math.floor(head * groupCount / headCount);
  return { width: columns, data: data.subarray(group * size, (group + 1) * size) };
}

function rowOf(plane, row) {
  return plane.data.subarray(row * plane.width, (row + 1) * plane.width);
}

/** The weights of scores, of which NaN are masked: exact where those of the page are rounded to zero. */
function softmax(score) {
  const largest = score.reduce((maximum, value) => value > maximum ? value : maximum, -Infinity);
  const powers = score.map(value => Number.isNaN(value) ? 0 : Math.exp(value - largest));
  const total = powers.reduce((sum, value) => sum + value, 0);
  return total ? powers.map(value => value / total) : powers;
}

/** Returns `getNeurons({path, head, row})` as the server answers it. */
export function createEmbeddedNeurons({ vectors, biases }) {
  const decoded = new Map();

  function arrayOf(key, array) {
    if (!decoded.has(key)) decoded.set(key, decodeArray(array));
    return decoded.get(key);
  }

  return async ({ path, head, row }) => {
    if (vectors[path].parts) return { scale: vectors[path].scale, parts: vectors[path].parts[`${head},${row}`].map(([name, array]) => ({ name, ...decodeArray(array) })) };
    const { scale, queries, keys, biases: terms, mask } = vectors[path];
    const queryArray = arrayOf(`${path} q`, queries);
    const headCount = queryArray.shape[0];
    const planes = [queryArray, arrayOf(`${path} k`, keys)].map(array => planeOf(array, head, headCount));
    const [width, query, keyPlane] = [planes[0].width, rowOf(planes[0], row), planes[1].data];
    const count = keyPlane.length / width;
    const biasRow = name => rowOf(planeOf(arrayOf(name, biases[name]), head, headCount), row);
    const products = keyPlane.map((value, i) => value * query[i % width]);
    const dot = Float32Array.from({ length: count }, (_, key) => products.subarray(key * width, (key + 1) * width).reduce((sum, value) => sum + value, 0));
    const scaled = dot.map(value => value * scale);
    const named = terms.map(([label, name]) => [label, biasRow(name)]);
    const visible = mask === null ? null : biasRow(mask);
    const score = scaled.map((value, key) => visible && !visible[key] ? NaN : named.reduce((sum, [, values]) => sum + values[key], value));
    const part = (name, data, shape = [data.length]) => ({ name, shape, data });
    return { scale, parts: [
      part("query", query), part("keys", keyPlane, [count, width]), part("products", products, [count, width]), part("dot", dot),
      ...(scale === 1 ? [] : [part("scaled", scaled)]), ...named.map(([label, values]) => part(`position:${label}`, values)),
      part("score", score), part("weight", softmax(score)),
    ] };
  };
}
