// The heat map of one head as bitmap tiles: only visible tiles are fetched, coarser ones stand in until they arrive.

import { weightPixels } from "./colors.js";

const MATRIX_TILE = 256; // cells; a cell is pool × pool weights
const MAX_BITMAPS = 256; // of 256 KiB each

/** The pooling at which a cell has at least one pixel of the screen. */
export function poolFor(scale) {
  const ratio = window.devicePixelRatio || 1;
  return 2 ** Math.max(0, Math.ceil(Math.log2(1 / (scale * ratio))));
}

/** Draws the weights of one layer and head; `source` is {path, heads, isRollout}, `shape` [queries, keys]. */
export function createMatrixTiles({ weights, source, shape: [queryCount, keyCount], contrast, onArrival, onError }) {
  const bitmaps = new Map();
  const pixels = weightPixels(contrast);
  const largestPool = 2 ** Math.max(0, Math.ceil(Math.log2(Math.max(queryCount, keyCount) / MATRIX_TILE)));

  function specOf(pool, row, column) {
    const size = MATRIX_TILE * pool;
    return { ...source, pool, rows: [row * size, Math.min((row + 1) * size, queryCount)], columns: [column * size, Math.min((column + 1) * size, keyCount)] };
  }

  function createBitmap({ shape: [, rows, columns], data }) {
    const image = new ImageData(columns, rows);
    const target = new Uint32Array(image.data.buffer);
    for (let i = 0; i < target.length; i++) target[i] = pixels[data[i] >> 6];
    const bitmap = new OffscreenCanvas(columns, rows);
    bitmap.getContext("2d").putImageData(image, 0, 0);
    return bitmap;
  }

  function bitmapOf(pool, row, column) {
    const key = `${pool} ${row} ${column}`;
    const kept = bitmaps.get(key);
    if (kept) return kept;
    const block = weights.peek(specOf(pool, row, column));
    if (!block) return null;
    if (bitmaps.size >= MAX_BITMAPS) bitmaps.delete(bitmaps.keys().next().value);
    bitmaps.set(key, createBitmap(block));
    return bitmaps.get(key);
  }

  /** Draw one tile, or the part of a coarser one that covers it. */
  function drawTile(context, view, pool, row, column) {
    for (let coarse = pool, shift = 0; coarse <= largestPool; coarse *= 2, shift++) {
      const bitmap = bitmapOf(coarse, row >> shift, column >> shift);
      if (!bitmap) continue;
      const size = MATRIX_TILE * pool;
      const [x, y] = [column * size, row * size];
      const [width, height] = [Math.min(size, keyCount - x), Math.min(size, queryCount - y)];
      const [sourceX, sourceY] = [x / coarse % MATRIX_TILE, y / coarse % MATRIX_TILE];
      context.drawImage(bitmap, sourceX, sourceY, width / coarse, height / coarse,
        (x - view.x) * view.scale, (y - view.y) * view.scale, width * view.scale, height * view.scale);
      return coarse === pool;
    }
    return false;
  }

  return {
    /** Draw the visible part: `view` is {x, y, scale, width, height} with x and y in tokens. */
    draw(context, view) {
      const pool = Math.min(poolFor(view.scale), largestPool);
      const size = MATRIX_TILE * pool;
      const rows = [Math.max(0, Math.floor(view.y / size)), Math.ceil(Math.min(view.y + view.height / view.scale, queryCount) / size)];
      const columns = [Math.max(0, Math.floor(view.x / size)), Math.ceil(Math.min(view.x + view.width / view.scale, keyCount) / size)];
      const missing = [];
      context.imageSmoothingEnabled = false;
      for (let row = rows[0]; row < rows[1]; row++) {
        for (let column = columns[0]; column < columns[1]; column++) {
          if (!drawTile(context, view, pool, row, column)) missing.push(specOf(pool, row, column));
        }
      }
      weights.want(missing, onArrival, onError);
    },
  };
}
