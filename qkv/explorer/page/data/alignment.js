// Word alignment from cross-attention: which rows predict which target tokens, pieces merged into words, Pharaoh pairs.

import { FULL_WEIGHT } from "./weights.js";

/** The source and target tokens of an alignment as [{text, index, word}], `row` being the query row that predicts a target token. */
export function alignedTokens(trace, attention) {
  const shift = trace.predictions?.sequence === attention.queries ? trace.predictions.shift : 0;
  const source = attention.keys.flatMap(name => trace.sequences[name].tokens).map((token, index) => ({ ...token, index }));
  const target = trace.sequences[attention.queries].tokens.map((token, index) => ({ ...token, index, row: index - shift })).filter(({ row }) => row >= 0);
  return { source, target };
}

/** Weights of target tokens by source tokens: {rows: target, columns: source, weights: Float64Array}. */
export function alignPieces(block, { source, target }) {
  const [, , keyCount] = block.shape;
  const weights = new Float64Array(target.length * source.length);
  target.forEach(({ row }, i) => source.forEach(({ index }, j) => { weights[i * source.length + j] = block.data[row * keyCount + index] / FULL_WEIGHT; }));
  return { rows: target, columns: source, weights };
}

function groupByWord(tokens, words) {
  const groups = new Map();
  tokens.forEach((token, place) => {
    if (token.word === null || token.word === undefined) return;
    if (!groups.has(token.word)) groups.set(token.word, { text: words[token.word], word: token.word, special: false, places: [] });
    groups.get(token.word).places.push(place);
  });
  return [...groups.values()];
}

/** Merge pieces into words: the sum over the pieces of a source word, the mean over the pieces of a target word. */
export function alignWords(pieces, sourceWords, targetWords) {
  const [rows, columns] = [groupByWord(pieces.rows, targetWords), groupByWord(pieces.columns, sourceWords)];
  const width = pieces.columns.length;
  const weights = Float64Array.from({ length: rows.length * columns.length }, (_, i) => {
    const [row, column] = [rows[Math.floor(i / columns.length)], columns[i % columns.length]];
    let sum = 0;
    for (const piece of row.places) for (const other of column.places) sum += pieces.weights[piece * width + other];
    return sum / row.places.length;
  });
  return { rows, columns, weights };
}

/** The column with the largest weight of every row. */
export function bestColumns({ rows, columns, weights }) {
  return rows.map((_, row) => {
    let best = 0;
    for (let column = 1; column < columns.length; column++) if (weights[row * columns.length + column] > weights[row * columns.length + best]) best = column;
    return best;
  });
}

/** "0-0 1-2": source and target word of every pair, in Pharaoh format. */
export function pharaohPairs(words) {
  if (words.columns.length === 0) return "";
  return bestColumns(words).map((column, row) => [words.columns[column].word, words.rows[row].word])
    .sort((a, b) => a[0] - b[0] || a[1] - b[1]).map(pair => pair.join("-")).join(" ");
}
