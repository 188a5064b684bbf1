"""Word alignments and attention heads as SVG pictures."""

from __future__ import annotations

from collections.abc import Sequence

from qkv.pictures.views.matrix import WeightMatrix, render_matrices_svg
from qkv.tasks.alignment import Alignment


def render_svg(title: str, alignments: Sequence[Alignment], target_name: str = "target") -> str:
    """Return the text of an SVG file: a title, the layer, one matrix per alignment, a legend.

    `target_name` is the name of the vertical axis, such as "translation"."""
    matrices = [build_alignment_matrix(alignment, target_name) for alignment in alignments]
    return render_matrices_svg(title, describe_alignment_layers(alignments), matrices)


def build_alignment_matrix(alignment: Alignment, target_name: str) -> WeightMatrix:
    return WeightMatrix(
        weights=alignment.weights,
        rows=[span.text for span in alignment.target],
        columns=[span.text for span in alignment.source],
        row_axis=target_name,
        column_axis="source",
    )


def describe_alignment_layers(alignments: Sequence[Alignment]) -> str:
    """Return which cross-attention the weights come from; empty if it is not known."""
    layers = dict.fromkeys(alignment.layer for alignment in alignments)
    return "; ".join(
        "Cross-attention, mean of all decoder layers and heads"
        if layer == "mean"
        else f"Cross-attention of decoder layer {layer} (counted from 0), mean of the heads"
        for layer in layers
        if layer is not None
    )


def render_attention_svg(
    title: str,
    weights: Sequence[Sequence[float]],
    queries: Sequence[str],
    keys: Sequence[str],
    path: str,
    head: int,
) -> str:
    """Return a heat map of one attention head, with its layer and number, as the text of an SVG file.

    `path` is a path of `qkv.look`, such as `encoder.layers.3.attention`; `weights` are those of one
    head and one row (T, S); `queries` and `keys` are the tokens."""
    stack, _, layer, attention = path.rsplit(".", 3)
    kind = "cross-attention" if attention == "cross_attention" else "self-attention"
    subtitle = f"{stack.capitalize()} {kind}, layer {layer}, head {head} (counted from 0)"
    matrix = WeightMatrix(weights, queries, keys, row_axis="queries", column_axis="keys")
    return render_matrices_svg(title, subtitle, [matrix])
