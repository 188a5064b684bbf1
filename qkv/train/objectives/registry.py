"""Kinds: what each objective needs around it: an encoder, a feed, a head, special tokens, a judge.

One row an objective, in KINDS; what is taught itself is in `objectives`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from qkv.data.encode.encoder import Coded, Encoder, Pairs, Sentences, Texts
from qkv.data.encode.images import Captioned
from qkv.data.encode.labels import Answered, Chosen, Labelled, Tagged, held
from qkv.model.model import Model
from qkv.train.config import nearest
from qkv.train.evaluate import evaluators
from qkv.train.objectives import datasets, wrappers
from qkv.train.recipe import Recipe
from qkv.train.setup_context import Given
from qkv.validate import number


def running(given: Given) -> Encoder:
    return Texts(ends=not given.one_text, **given.common)


def hidden(given: Given) -> Encoder:
    """Texts whose special tokens are put around them later."""
    limit, whole = 0 if given.one_text else given.length, given.setting("whole", False)
    return Texts(ends=False, words=whole, length=limit, around=given.words.frame.size, **given.common)


def sentences(given: Given) -> Encoder:
    return Sentences(words=given.setting("whole", False), **given.common)


def coded(given: Given) -> Encoder:
    return Coded(around=0, length=given.length, **given.common)


def spoken(given: Given) -> Encoder:
    return Coded(column="language", ends=False, around=2, length=given.length, **given.common)


def pairs(given: Given) -> Encoder:
    templates = {side: given.setting(side, f"{{{side}}}") for side in ("source", "target")}
    return Pairs(length=given.limit, languages=given.recipe.data.languages, **templates, **given.common)


def labelled(given: Given) -> Encoder:
    kind = given.setting("kind", "single")
    return Labelled(labels=given.labels, kind=kind, length=given.limit, **given.common)


def tagged(given: Given) -> Encoder:
    return Tagged(labels=given.labels, length=given.limit, **given.common)


def answered(given: Given) -> Encoder:
    for name in ("stride", "longest"):
        number(f"objective.{name}", given.setting(name, 1), whole=True, at_least=1)
    return Answered(stride=given.setting("stride", 128), length=given.limit, **given.common)


def chosen(given: Given) -> Encoder:
    first = next(iter(given.records), None)
    if first is None:
        raise ValueError("no record to learn from, expected one at least: is the file empty?")
    choices = held(first, "choices")
    count = len(choices) if isinstance(choices, list) else 0
    if count < 2:
        raise ValueError(f"{first.place}: {count} choices, expected a list of two at least")
    return Chosen(choices=count, length=given.limit, **given.common)


def captioned(given: Given) -> Encoder:
    if not given.words.cells:
        raise ValueError(f"objective image-text: {given.model.family.name} reads no images; clip does")
    return Captioned(length=given.limit, **given.common)


class Kind(NamedTuple):
    encoder: Callable[[Given], Encoder]
    feed: datasets.Feeds
    purpose: str = "bert"  # of a tokenizer that is trained for it
    head: str | None = None  # None: the family's own
    column: str | None = None  # holds the labels
    text: str = "text"  # the column that a tokenizer must find its texts in
    vector: str | None = None  # the model gives one vector a text
    own: tuple[str, ...] = ()  # settings that the objective itself does not take
    net: Callable[[Given], tuple[nn.Module, wrappers.Save]] = wrappers.alone
    judge: evaluators.Judges = evaluators.tokens


TEXTS = ("source", "target")
# fmt: off
KINDS = {
    "causal-lm":              Kind(running,   datasets.stream,            "gpt"),
    "recurrence":             Kind(running,   datasets.segments,          "plain"),
    "control-codes":          Kind(coded,     datasets.under_code,        "gpt"),
    "permutation-lm":         Kind(hidden,    datasets.ordered,           "xlnet",   "lm"),
    "masked-lm":              Kind(hidden,    datasets.packed,            "bert",    "masked-lm"),
    "segments":               Kind(sentences, datasets.paired,            "bert",    "pretrain"),
    "replaced-token":         Kind(hidden,    datasets.packed,            "bert",    "replaced",
                                   own=("generator",), net=wrappers.discriminating,
                                   judge=evaluators.replaced),
    "distillation":           Kind(hidden,    datasets.packed,            "bert",    "masked-lm",
                                   own=("teacher",), net=wrappers.taught),
    "seq2seq":                Kind(pairs,     datasets.records(*TEXTS),   "seq2seq", "lm", own=TEXTS,
                                   text="source"),
    "denoising":              Kind(hidden,    datasets.pieces,            "roberta", "lm"),
    "multilingual-denoising": Kind(spoken,    datasets.pieces,            "roberta", "lm"),
    "span-corruption":        Kind(running,   datasets.corrupted,         "t5",      "lm"),
    "contrastive":            Kind(pairs,     datasets.records(*TEXTS),   "bert",    vector="mean", own=TEXTS,
                                   judge=evaluators.nobody, text="source"),
    "image-text":             Kind(captioned, datasets.records("tokens"), "bos-eos", net=wrappers.paired,
                                   judge=evaluators.nobody, text="caption"),
    "label":                  Kind(labelled,  datasets.records("tokens"), "bert",    "label",  "label",
                                   judge=evaluators.labelled),
    "tag":                    Kind(tagged,    datasets.records("tokens"), "bert",    "tag",    "tags",
                                   judge=evaluators.tagged, text="words"),
    "span":                   Kind(answered,  datasets.windows,           "bert",    "span",
                                   own=("stride", "longest"), judge=evaluators.answered, text="context"),
    "choice":                 Kind(chosen,    datasets.records("tokens"), "bert",    "choice",
                                   judge=evaluators.chosen),
}
# fmt: on
RAGGED = {*"seq2seq contrastive image-text label tag span choice".split()}  # rows as long as texts are
SPOKEN = {*TEXTS, "teacher"}  # own settings that are texts
WRITERS = ("lm", "causal", "double")  # heads that say the next token
HEADS = {None: WRITERS, "masked-lm": ("masked-lm", "pretrain")}  # any of these will do


def check_head(kind: Kind, model: Model, objective: str) -> None:
    """That a model has what the objective teaches."""
    head = model.args["head"]
    if kind.vector and model.vector is None:
        raise ValueError(f"objective {objective!r}: the model gives no vector; build it with vector='mean'")
    fitting = HEADS.get(kind.head, (kind.head,))
    if not kind.vector and kind.net is not wrappers.paired and head not in fitting:
        raise ValueError(
            f"objective {objective!r} with a model of head {head!r}, expected {fitting[0]!r}: "
            f"build it with head={fitting[0]!r}"
        )


def kind_of(recipe: Recipe) -> Kind:
    name = recipe.objective.name
    if name not in KINDS:
        meant = f"; did you mean {near}?" if (near := nearest(name, KINDS)) else ""
        raise ValueError(f"objective.name {name!r}, expected one of {', '.join(KINDS)}{meant}")
    for key in SPOKEN & recipe.objective.settings.keys() & {*KINDS[name].own}:
        if not isinstance(value := recipe.objective.settings[key], str):
            raise ValueError(f"objective.{key} is {value!r}, expected a text")
    return KINDS[name]
