"""The objectives by name: what each family's paper taught it, and what is taught after that."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from qkv.learn.objective import Objective
from qkv.learn.objectives import asking, masked, matching, running, writing
from qkv.learn.objectives.words import Words as Words
from qkv.learn.objectives.words import words_of as words_of
from qkv.learn.settings import nearest

# fmt: off
OBJECTIVES: dict[str, Callable[..., Objective]] = {
    "causal-lm":              running.causal,         # GPT
    "recurrence":             running.recurrence,     # Transformer-XL
    "control-codes":          running.codes,          # CTRL
    "permutation-lm":         running.permuted,       # XLNet
    "masked-lm":              masked.masked,          # BERT, RoBERTa
    "segments":               masked.segments,        # BERT, ALBERT
    "replaced-token":         masked.replaced,        # ELECTRA
    "distillation":           masked.distilled,       # DistilBERT
    "seq2seq":                writing.seq2seq,        # the Transformer, Marian
    "denoising":              writing.denoising,      # BART
    "multilingual-denoising": writing.multilingual,   # mBART
    "span-corruption":        writing.spans,          # T5, Switch
    "contrastive":            matching.texts,         # sentence vectors
    "image-text":             matching.images,        # CLIP
    "label":                  asking.label,
    "tag":                    asking.tag,
    "span":                   asking.span,
    "choice":                 asking.choice,
}
# fmt: on


def objective(name: str, words: Words, **settings: Any) -> Objective:
    """The objective of that name; a setting that it does not have is an error that lists those it has."""
    if name not in OBJECTIVES:
        raise ValueError(f"objective {name!r}, expected one of {', '.join(OBJECTIVES)}")
    make = OBJECTIVES[name]
    known = {p.name: p.default for p in inspect.signature(make).parameters.values() if p.name != "words"}
    for key, value in settings.items():
        if key not in known:
            meant = f"; did you mean {near}?" if (near := nearest(key, known)) else ""
            raise ValueError(
                f"objective.{key}: {name} has no such setting; it has {', '.join(known) or 'none'}{meant}"
            )
        kind = type(known[key])
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise ValueError(f"objective.{key} is {value!r}, expected a value such as {known[key]!r}")
    return replace(make(words, **settings), again=partial(objective, name, words, **settings))
