// Blocks of attention weights: fetched once, kept while there is room, the ones on the screen first.

import { beginWork } from "../widgets/frames.js";

const MAX_BYTES = 192 * 1024 * 1024;
const MAX_REQUESTS = 4;
const MAX_VALUES = 1024 * 1024;
export const FULL_WEIGHT = 65535;

/** A block's specification: path, heads ("0-7", "3" or "mean"), rows and columns as [start, end), pool, rollout. */
function blockKey({ path, heads, rows, columns, pool = 1, isRollout = false }) {
  return [path, isRollout ? "rollout" : heads, rows.join(":"), columns.join(":"), pool].join("|");
}

function requestParameters({ path, heads, rows, columns, pool = 1, isRollout = false }) {
  const parameters = { path, heads, rows: rows.join(":"), columns: columns.join(":"), pool };
  return isRollout ? { ...parameters, rollout: 1 } : parameters;
}

/** All heads of an attention layer, as a request names them. */
export function allHeads(attention) {
  return attention.heads === 1 ? "0" : `0-${attention.heads - 1}`;
}

/** Keeps blocks of weights; `load(parameters)` returns a promise of {shape, data}. */
export function createWeightStore(load) {
  const blocks = new Map(); // in the order of use, the oldest first
  const running = new Map();
  let bytes = 0;
  let wanted = [];
  let newest = null; // the focused token's block, while another one is fetched
  let isFetchingNewest = false;

  function keep(key, block) {
    blocks.set(key, block);
    bytes += block.data.byteLength;
    for (const [oldKey, old] of blocks) {
      if (bytes <= MAX_BYTES || oldKey === key) break;
      blocks.delete(oldKey);
      bytes -= old.data.byteLength;
    }
  }

  function start(spec, key) {
    const endWork = beginWork();
    const promise = load(requestParameters(spec)).then(block => {
      keep(key, block);
      return block;
    }).finally(() => {
      running.delete(key);
      startWanted();
      endWork();
    });
    running.set(key, promise);
    return promise;
  }

  function startWanted() {
    while (wanted.length > 0 && running.size < MAX_REQUESTS) {
      const { spec, key, onArrival, onError } = wanted.shift();
      if (!blocks.has(key) && !running.has(key)) start(spec, key).then(onArrival, onError);
    }
  }

  async function fetchNewest(store) {
    isFetchingNewest = true;
    while (newest) {
      const { spec, onArrival, onError } = newest;
      newest = null;
      await store.get(spec).then(onArrival, onError);
    }
    isFetchingNewest = false;
  }

  return {
    /** The block if it is here, else undefined. */
    peek(spec) {
      const key = blockKey(spec);
      const block = blocks.get(key);
      if (block) {
        blocks.delete(key);
        blocks.set(key, block);
      }
      return block;
    },
    /** A promise of the block. */
    get(spec) {
      const key = blockKey(spec);
      const block = this.peek(spec);
      return block ? Promise.resolve(block) : running.get(key) ?? start(spec, key);
    },
    /** Fetch these blocks, the first one first; replaces what was wanted before and has not started. */
    want(specs, onArrival, onError) {
      wanted = [];
      for (const spec of specs) {
        const key = blockKey(spec);
        if (running.has(key)) running.get(key).then(onArrival, onError);
        else if (!blocks.has(key)) wanted.push({ spec, key, onArrival, onError });
      }
      startWanted();
    },
    /** Fetch this block unless another one is wanted in its place before it starts: for what follows the pointer. */
    wantNewest(spec, onArrival, onError) {
      newest = { spec, onArrival, onError };
      if (!isFetchingNewest) fetchNewest(this);
    },
    /** A promise of all weights of some heads, fetched in strips of rows that the server allows. */
    async getWhole({ path, heads, headCount, shape: [queryCount, keyCount], isRollout }) {
      const step = Math.max(1, Math.floor(MAX_VALUES / (headCount * keyCount)));
      const starts = Array.from({ length: Math.ceil(queryCount / step) }, (_, i) => i * step);
      const strips = await Promise.all(starts.map(first =>
        this.get({ path, heads, rows: [first, Math.min(first + step, queryCount)], columns: [0, keyCount], isRollout })));
      if (strips.length === 1) return strips[0];
      const data = new Uint16Array(headCount * queryCount * keyCount);
      strips.forEach((strip, i) => copyStrip(strip, data, starts[i] * keyCount, queryCount * keyCount));
      return { shape: [headCount, queryCount, keyCount], data };
    },
  };
}

function copyStrip({ shape: [heads, rows, columns], data }, target, offset, headSize) {
  for (let head = 0; head < heads; head++) {
    target.set(data.subarray(head * rows * columns, (head + 1) * rows * columns), head * headSize + offset);
  }
}
