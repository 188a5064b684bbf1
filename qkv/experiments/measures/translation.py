"""Translation: BLEU against the length of the source, and alignments of chosen words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from qkv.experiments.corpus import draw_test_rows, load_corpus
from qkv.experiments.measures import CellContext
from qkv.experiments.table import Measurement
from qkv.experiments.translation import Translator, train_translator
from qkv.pictures.attention import render_svg
from qkv.pictures.models.tree import count_parameters
from qkv.staging import write_file
from qkv.tasks.alignment import Alignment

NEW_TOKENS_PER_WORD = 3  # limit of a translation


class MarkedSentence(TypedDict):
    """A sentence and its translation with a noun and an adjective, in the settings."""

    source: str
    target: str
    source_noun: str
    target_noun: str
    source_adjective: str
    target_adjective: str


def measure_translation(
    context: CellContext,
    *,
    text: str,
    model: Mapping[str, Any],
    train: Mapping[str, Any],
    vocab_size: int,
    max_pairs: int,
    batch_tokens: int,
    edges: Sequence[int],
    rows: int,
    test_fraction: float = 0.03,
    objective: Mapping[str, Any] = {},
    phrases: Sequence[MarkedSentence] = (),
    num_pictures: int = 0,
) -> Measurement:
    """Train a model on rows of 1 to `max_pairs` pairs, and translate such rows of unseen sentences.

    A point is the BLEU of `rows` rows whose source has at most as many words as an edge and more than
    the edge before; `mean_bleu` is the mean of the points. `phrases` are sentences with a noun and an
    adjective: `aligned` is the share in which the noun and the adjective of the target both attend
    most to those of the source. For the seed 0, pictures of the first `num_pictures` are written."""
    corpus = load_corpus(
        context.find_data(text), vocab_size=vocab_size, test_fraction=test_fraction
    )
    buckets = draw_test_rows(corpus.test, max_pairs=max_pairs, edges=edges, rows=rows)
    context.report(f"{context.name}: {len(corpus.train):,} training pairs")
    translator = train_translator(
        context,
        corpus,
        model=model,
        train=train,
        objective=objective,
        max_pairs=max_pairs,
        batch_tokens=batch_tokens,
    )
    points = []
    for edge, pairs in buckets.items():
        if not pairs:
            continue
        points.append(
            {
                "words": edge,
                "bleu": translator.compute_bleu(pairs, NEW_TOKENS_PER_WORD * edge),
                "loss": translator.compute_loss(translator.build_batches(pairs, batch_tokens)),
                "num_rows": len(pairs),
            }
        )
    metrics = {
        "mean_bleu": sum(point["bleu"] for point in points) / len(points),
        "mean_loss": sum(point["loss"] for point in points) / len(points),
        "train_loss": translator.result.loss,
        "has_diverged": translator.result.has_diverged,
        "num_parameters": count_parameters(translator.net),
        "num_tokens": translator.num_tokens,
        "tokens_per_second": translator.num_tokens / translator.seconds,
        **measure_word_alignment(context, translator, phrases, num_pictures),
    }
    return Measurement(metrics=metrics, points=tuple(points))


def measure_word_alignment(
    context: CellContext,
    translator: Translator,
    phrases: Sequence[MarkedSentence],
    num_pictures: int,
) -> dict[str, Any]:
    """Return the share of sentences whose words are aligned, or nothing without cross-attention."""
    if not phrases or not has_cross_attention(translator):
        return {}
    num_aligned = 0
    for number, row in enumerate(phrases):
        alignment = translator.align(row["source"], row["target"])
        num_aligned += is_aligned(alignment, row["target_noun"], row["source_noun"]) and is_aligned(
            alignment, row["target_adjective"], row["source_adjective"]
        )
        if number < num_pictures and context.seed == 0:
            write_alignment(context, translator.align(row["source"]), f"alignment-{number}")
    return {"aligned": num_aligned / len(phrases)}


def has_cross_attention(translator: Translator) -> bool:
    decoder = translator.net.decoder
    parts = [decoder, *getattr(decoder, "layers", ())]
    return any(getattr(part, "cross_attention", None) is not None for part in parts)


def is_aligned(alignment: Alignment, target_word: str, source_word: str) -> bool:
    """Return whether a target word attends most to a source word."""
    sources = [span.text for span in alignment.source]
    best = dict(zip((span.text for span in alignment.target), alignment.argmax(), strict=True))
    index = best.get(target_word)
    return index is not None and sources[index] == source_word


def write_alignment(context: CellContext, alignment: Alignment, name: str) -> None:
    """Write the picture of an alignment beside the results."""
    context.results.mkdir(parents=True, exist_ok=True)
    words = re.findall(r"\w+", context.variant)
    title = " ".join(span.text for span in alignment.source)
    with write_file(context.results / "-".join([*words, f"{name}.svg"]).lower()) as path:
        path.write_text(render_svg(title, [alignment], "translation"), encoding="utf-8")
