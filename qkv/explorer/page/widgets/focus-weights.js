// The weights of one focused token: where a query attends, or what attends to a key.

import { create } from "./dom.js";
import { formatWeight, tokenLabel } from "./token-text.js";
import { headsName, passesFilter } from "../data/trace.js";
import { FULL_WEIGHT } from "../data/weights.js";

/** The specification of the block that has all weights of the focused token. */
export function focusSpec(attention, heads, focus, smallSpec) {
  if (smallSpec) return smallSpec;
  const [queryCount, keyCount] = attention.shape;
  const only = [focus.index, focus.index + 1];
  return focus.side === "query"
    ? { path: attention.path, heads, rows: only, columns: [0, keyCount] }
    : { path: attention.path, heads, rows: [0, queryCount], columns: only };
}

/** Returns {of(head, index), mean(index), count}: the weight between the focused token and token `index` of the other side. */
export function readFocusWeights({ spec, block, focus, heads, filter, queries, keys }) {
  const [, rowCount, columnCount] = block.shape;
  const isQuery = focus.side === "query";
  const accepts = index => isQuery ? passesFilter(filter, queries[focus.index], keys[index]) : passesFilter(filter, queries[index], keys[focus.index]);
  function of(head, index) {
    if (!accepts(index)) return 0;
    const [row, column] = isQuery ? [focus.index, index] : [index, focus.index];
    return block.data[(head * rowCount + row - spec.rows[0]) * columnCount + column - spec.columns[0]] / FULL_WEIGHT;
  }
  const others = isQuery ? keys : queries;
  const means = Float64Array.from(others, (_, index) => heads.reduce((sum, head) => sum + of(head, index), 0) / Math.max(heads.length, 1));
  return { of, accepts, means, others };
}

/** The indices of the largest weights, largest first. */
export function topIndices(values, count, least = 0.0005) {
  return Array.from(values, (value, index) => [value, index])
    .filter(([value]) => value >= least)
    .sort((a, b) => b[0] - a[0])
    .slice(0, count)
    .map(([, index]) => index);
}

/** "cat → sat 0.41 · The 0.22 (weights, head 3)": the status line of the focused token. */
export function focusSentence({ focus, token, weights, heads, headCount }) {
  if (heads.length === 0) return `${tokenLabel(token)}: no head is switched on.`;
  const arrow = focus.side === "query" ? "→" : "←";
  const top = topIndices(weights.means, 5).map(index => `${tokenLabel(weights.others[index])} ${formatWeight(weights.means[index])}`);
  return `${tokenLabel(token)} ${arrow} ${top.join(" · ") || "no weight above 0.0005"} (weights, ${headsName(heads, headCount)})`;
}

/** A table of the largest weights of the focused token, with the head that gives each the most. */
export function createFocusTable({ focus, token, weights, heads, headCount, onPick }) {
  const indices = topIndices(weights.means, 12);
  const strongest = index => heads.reduce((best, head) => weights.of(head, index) > weights.of(best, index) ? head : best, heads[0]);
  const rows = indices.map(index => {
    const head = strongest(index);
    const value = create("td", { class: "number weighted", text: formatWeight(weights.means[index]) });
    value.style.setProperty("--weight", weights.means[index]);
    return create("tr", {},
      create("th", { scope: "row" }, create("button", { type: "button", class: "link", title: `position ${index}`, dir: "auto", text: tokenLabel(weights.others[index], 24), on: { click: () => onPick(index) } })),
      value,
      heads.length > 1 ? create("td", { class: "number", text: `head ${head}: ${formatWeight(weights.of(head, index))}` }) : null);
  });
  const relation = focus.side === "query" ? "attends to" : "is attended to by";
  return create("table", { class: "weights" },
    create("caption", {}, create("bdi", { text: tokenLabel(token, 24) }), ` ${relation}`),
    create("thead", {}, create("tr", {}, create("th", { scope: "col", text: focus.side === "query" ? "key" : "query" }),
      create("th", { scope: "col", class: "number", text: heads.length > 1 ? "mean weight" : "weight" }), heads.length > 1 ? create("th", { scope: "col", class: "number", text: "largest" }) : null)),
    create("tbody", {}, ...rows));
}
