"""Draw the pictures of docs/: `python -m tools.pictures`.

transformer.svg   the original Transformer, from its Spec
attention.svg     one attention head of the built-in translation model
alignment.svg     the word alignment of a translation by that model
selections.svg    the weights that each selection of attention makes of the same scores"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import qkv
from qkv.families import get_family
from qkv.model.build import build_model_spec
from qkv.nn.selections import build_selection
from qkv.pictures.attention import render_attention_svg, render_svg
from qkv.pictures.models.diagram import render_diagram_svg
from qkv.pictures.views.matrix import WeightMatrix, render_matrices_svg
from qkv.tasks.write.translate import TranslateTask

DOCS = Path(__file__).resolve().parent.parent / "docs"
ATTENTION_TEXT = "She gave the book back to him because he had already read it."
QUERY, KEY = "it", "book"
SCORES = torch.tensor([[2.0, 1.5, 1.0, 0.0, -1.0, -2.0]])
SELECTIONS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "top-k": {"k": 3},
    "entmax15": {},
    "sparsemax": {},
    "hard": {},
}
ALIGNMENT_TEXT = "Ich habe das Buch, das du mir gestern gegeben hast, noch nicht gelesen."


def draw_transformer() -> str:
    family = get_family("transformer")
    spec = build_model_spec(family, family.arguments("base"))
    return render_diagram_svg("The Transformer, base model", spec)


def draw_attention() -> str:
    """Draw the head of the encoder in which the query attends to the key most, compared with the mean
    of all queries."""
    task = load_translate_task()
    with qkv.look(task.model, paths=r"encoder\..*") as attention_weights:
        result = task(ATTENTION_TEXT)
    tokens = [span.text for span in result.alignments[0].source]
    query, key = tokens.index(QUERY), tokens.index(KEY)
    heads = {
        path: weights[0, :, query, key] - weights[0, :, :, key].mean(-1)
        for path, weights in attention_weights.items()
    }
    path = max(heads, key=lambda path: heads[path].max().item())
    head = int(heads[path].argmax())
    weights = attention_weights[path][0, head].tolist()
    return render_attention_svg(f"“{ATTENTION_TEXT}”", weights, tokens, tokens, path, head)


def draw_alignment() -> str:
    result = load_translate_task()(ALIGNMENT_TEXT)
    words = [alignment.merge_into_words() for alignment in result.alignments]
    return render_svg("Word alignment of a translation", words, target_name="translation")


def draw_selections() -> str:
    weights = {
        name: build_selection(name, query_width=1, **settings).eval()(SCORES, None, SCORES)
        for name, settings in SELECTIONS.items()
    }
    matrix = WeightMatrix(
        weights=torch.cat([*weights.values()]).tolist(),
        rows=[*weights],
        columns=[f"{score:g}" for score in SCORES[0].tolist()],
        row_axis="selections",
        column_axis="scores of six keys",
    )
    return render_matrices_svg("From scores to weights", "One query, six keys", [matrix])


def load_translate_task() -> TranslateTask:
    task = qkv.task("translate", device="cpu", alignment_layer="penultimate")
    assert isinstance(task, TranslateTask)
    return task


PICTURES: dict[str, Callable[[], str]] = {
    "transformer.svg": draw_transformer,
    "attention.svg": draw_attention,
    "alignment.svg": draw_alignment,
    "selections.svg": draw_selections,
}


def main() -> int:
    for name, draw in PICTURES.items():
        (DOCS / name).write_text(draw(), encoding="utf-8")
        print(f"wrote docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
