// Weights of a saved page: the same answers as the server's, computed from the arrays inside the page.

const BYTES_TO_FULL = 257; // 255 · 257 = 65,535
const ARRAY_TYPES = { uint8: Uint8Array, uint16: Uint16Array, float32: Float32Array };

/** Decode an array of the page: {shape, data}. */
export function decodeArray({ shape, dtype, data }) {
  const bytes = Uint8Array.from(atob(data), character => character.charCodeAt(0));
  return { shape, data: new ARRAY_TYPES[dtype](bytes.buffer) };
}

function decodeWeights(array) {
  const { shape, data } = decodeArray(array);
  return { shape, data: array.dtype === "uint8" ? Uint16Array.from(data, value => value * BYTES_TO_FULL) : data };
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

/** Returns `load(parameters)` as the weight store wants it. */
export function createEmbeddedLoader(arrays) {
  const decoded = new Map();

  function array(path) {
    if (!decoded.has(path)) decoded.set(path, decodeWeights(arrays[path]));
    return decoded.get(path);
  }

  return async ({ path, heads, rows, columns, pool }) => {
    const { shape: [headCount, queryCount, keyCount], data } = array(path);
    const [firstRow, lastRow] = parseRange(rows);
    const [firstColumn, lastColumn] = parseRange(columns);
    const chosen = parseHeads(heads, headCount);
    const [rowCount, columnCount] = [Math.ceil((lastRow - firstRow) / pool), Math.ceil((lastColumn - firstColumn) / pool)];
    const isMean = heads === "mean";
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
