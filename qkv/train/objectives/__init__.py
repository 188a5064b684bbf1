"""The objectives by name: what each family's paper taught it, and what is taught after that."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from qkv.train.config import nearest
from qkv.train.objectives import causal_lm, classification, contrastive, masked_lm, seq2seq
from qkv.train.objectives.objective import Objective
from qkv.train.objectives.vocabulary import Words as Words
from qkv.train.objectives.vocabulary import words_of as words_of

# fmt: off
OBJECTIVES: dict[str, Callable[..., Objective]] = {
    "causal-lm":              causal_lm.causal,         # GPT
    "recurrence":             causal_lm.recurrence,     # Transformer-XL
    "control-codes":          causal_lm.codes,          # CTRL
    "permutation-lm":         causal_lm.permuted,       # XLNet
    "masked-lm":              masked_lm.masked,          # BERT, RoBERTa
    "segments":               masked_lm.segments,        # BERT, ALBERT
    "replaced-token":         masked_lm.replaced,        # ELECTRA
    "distillation":           masked_lm.distilled,       # DistilBERT
    "seq2seq":                seq2seq.seq2seq,        # the Transformer, Marian
    "denoising":              seq2seq.denoising,      # BART
    "multilingual-denoising": seq2seq.multilingual,   # mBART
    "span-corruption":        seq2seq.spans,          # T5, Switch
    "contrastive":            contrastive.texts,         # sentence vectors
    "image-text":             contrastive.images,        # CLIP
    "label":                  classification.label,
    "tag":                    classification.tag,
    "span":                   classification.span,
    "choice":                 classification.choice,
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
