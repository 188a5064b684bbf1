// What a head mostly attends to: itself, a neighbor, the first token or special tokens; null where no simple pattern dominates.

import { formatWeight } from "../widgets/token-text.js";
import { FULL_WEIGHT } from "../data/weights.js";

const LEAST_SHARE = 0.4;

// short caption, words of the sentence, whether key `column` is meant for query `row`; the queries follow `memory` keys
const PATTERNS = [
  ["previous", "the previous token", (row, column, memory) => column === memory + row - 1],
  ["itself", "the token itself", (row, column, memory) => column === memory + row],
  ["next", "the next token", (row, column, memory) => column === memory + row + 1],
  ["first", "the first token", (row, column, memory) => column === memory],
];

/** Mean over the queries of the weight that falls on the keys `isMeant(row, column)`. */
function meanShare({ shape: [, rows, columns], data }, head, memory, isMeant) {
  let sum = 0;
  for (let row = 0, place = head * rows * columns; row < rows; row++) {
    for (let column = 0; column < columns; column++, place++) if (isMeant(row, column, memory)) sum += data[place];
  }
  return sum / FULL_WEIGHT / rows;
}

/** Returns {short, sentence} or null: "previous 45%", and the same as a sentence. */
export function summarizeHead(block, head, attention, keys) {
  if (block.shape[1] < 4) return null;
  const memory = attention.kind === "self" ? attention.shape[1] - attention.shape[0] : 0;
  const specials = ["special", "special tokens", (row, column) => keys[column].special];
  const inMemory = ["memory", "the memory", (row, column) => column < memory];
  const patterns = attention.kind === "self" ? [...PATTERNS, specials, ...(memory ? [inMemory] : [])] : [PATTERNS[3], specials];
  const shares = patterns.map(([short, words, isMeant]) => ({ short, words, share: meanShare(block, head, memory, isMeant) }));
  const best = shares.reduce((a, b) => b.share > a.share + 1e-6 ? b : a);
  if (best.share < LEAST_SHARE) return null;
  return { short: `${best.short} ${Math.round(100 * best.share)}%`, sentence: `mostly attends to ${best.words}, mean weight ${formatWeight(best.share)}` };
}
