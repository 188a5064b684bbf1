// What a trace says about its attention layers: kinds, names, and the tokens of queries and keys.

/** The tokens of the queries of an attention layer. */
export function queryTokens(trace, attention) {
  return trace.sequences[attention.queries].tokens;
}

/** The tokens of the keys: the sequences one after the other, as the columns of the weights are. */
export function keyTokens(trace, attention) {
  return attention.keys.flatMap(name => trace.sequences[name].tokens);
}

/** The name of the kind of a layer, such as "decoder self-attention". */
export function kindName(attention) {
  return attention.kind === "cross" ? "cross-attention" : `${attention.stack} self-attention`;
}

/** The kinds of attention of a model, in order. */
export function kindNames(attentions) {
  return [...new Set(attentions.map(kindName))];
}

/** The layers of one kind. */
export function layersOfKind(attentions, kind) {
  return attentions.filter(attention => kindName(attention) === kind);
}

/** The name of a layer among all kinds, such as "encoder self-attention, layer 3". */
export function layerName(attention) {
  return `${kindName(attention)}, layer ${attention.layer}`;
}

/** The layer of a path, or the first one. */
export function findAttention(attentions, path) {
  return attentions.find(attention => attention.path === path) ?? attentions[0];
}

/** What the layer adds or masks, for a title: "causal, T5 positions". */
export function layerNote(attention) {
  return [attention.pattern, attention.position && `${attention.position} positions`].filter(Boolean).join(", ");
}

/** Whether both tokens lie in the sentences that the filter names, such as "ab": from the first to the second. */
export function passesFilter(filter, query, key) {
  if (filter === "all") return true;
  return query.segment === "ab".indexOf(filter[0]) && key.segment === "ab".indexOf(filter[1]);
}

/** Whether a layer connects two sentences. */
export function hasSegments(trace, attention) {
  return keyTokens(trace, attention).some(token => token.segment === 1);
}

/** "mean of 12 heads", "head 3" or "mean of heads 1, 4, 7". */
export function headsName(heads, count) {
  if (heads === "mean") return count === 1 ? "head 0" : `mean of ${count} heads`;
  if (!Array.isArray(heads)) return `head ${heads}`;
  if (heads.length === 1) return `head ${heads[0]}`;
  return heads.length === count ? `mean of ${count} heads` : `mean of heads ${heads.join(", ")}`;
}
