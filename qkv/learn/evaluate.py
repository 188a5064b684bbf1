"""Evaluate: how good the model of a run is on texts that it has not seen. Writes nothing into the run."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qkv.adapter.settings import is_adapter
from qkv.data.answers import labels_of
from qkv.data.encode import Pairs
from qkv.data.prepare import prepare
from qkv.data.rows import NONE
from qkv.data.shards import Index
from qkv.foreign import load
from qkv.learn import twin
from qkv.learn.given import Given, Part
from qkv.learn.kinds import Kind, kind_of
from qkv.learn.measure import over
from qkv.learn.objective import Out
from qkv.learn.objectives import words_of
from qkv.learn.prepared import goal_of
from qkv.learn.recipe import Recipe, read_recipe
from qkv.learn.scores import bleu, chrf, entity_f1, macro_f1, rouge
from qkv.learn.start import corpus
from qkv.model import Model, find, pick_device
from qkv.text import Tokenizer

MODELS = ("best", "last")
RUNNING = ("causal-lm", "recurrence")  # every token of the text is predicted once
Write = Callable[[Model, list[list[int]]], list[list[int]]]
TEXTS = ("tokens", "source", "target")  # fields of shards that hold texts


@dataclass(frozen=True, kw_only=True)
class Outcome:
    model: Path
    data: str | list[str]
    documents: int
    tokens: int
    values: dict[str, float]
    signature: str | None = None  # how BLEU was computed


def evaluate(folder: Path, flags: Sequence[str] = (), write: Write | None = None) -> Outcome:
    """Measures the best model of a run, or the last, on `data.test` of its recipe.

    What a seq2seq model writes is compared with the targets, where `write` is given: sources to ids."""
    recipe = read_recipe(folder / "recipe.toml", ["--device", "auto", *flags])
    test = recipe.data.test
    if test is None:
        raise ValueError(f"{folder}: its recipe has no data.test; name the texts with --data.test")
    kind, name = kind_of(recipe), recipe.objective.name
    if kind.net in (twin.discriminating, twin.taught):
        raise ValueError(f"{folder}: {name} is measured with a second network, which a run does not keep")
    home = next((folder / each for each in MODELS if holds_model(folder / each)), None)
    if home is None:
        raise ValueError(f"{folder}: no model in best/ or last/; has the run come to its end?")
    tokenizer, model = Tokenizer.load(folder / "tokenizer"), learnt(recipe, home)
    words = words_of(tokenizer, model, length=recipe.data.length)
    given = Given(
        recipe=recipe, home=str(folder / "tokenizer"), model=model, words=words,
        labels=names_of(recipe, kind, model),
    )  # fmt: skip
    encoder, source, seen = kind.encoder(given), corpus(recipe, test), Seen(name, given.labels)
    with tempfile.TemporaryDirectory(prefix="qkv-") as room:
        held = prepare(source, encoder, room, fields=encoder.fields(), made_from={})
        feed = kind.feed(given, held, Part(first=False))
        with torch.no_grad(), model.net.register_forward_hook(seen):
            values = over(feed, goal_of(given))(model.net) | seen.scores()
        if name in RUNNING:
            characters = sum(len(record.text("text")) for record in source)
            bits = values["loss"] / math.log(2)
            values["bits_per_character"] = bits * held.tokens() / max(characters, 1)
        signature = None
        if name == "seq2seq" and write is not None and isinstance(encoder, Pairs):
            sources = [held.document(i, "source").tolist() for i in range(len(held))]
            wanted = [encoder.side(record, "target") for record in source]
            texts = [tokenizer.decode(ids) for ids in write(model, sources)]
            found, signature = written_scores(texts, wanted)
            values |= found
        return Outcome(
            model=home, data=test, documents=len(held), tokens=count(held.index), values=values,
            signature=signature,
        )  # fmt: skip


def holds_model(folder: Path) -> bool:
    return (folder / "config.json").exists() or is_adapter(folder)


def learnt(recipe: Recipe, home: Path) -> Model:
    """What a run wrote: a model, or adapters, which are put on the model that the run began with."""
    device, base = pick_device(recipe.device), recipe.model.load
    if not is_adapter(home) or base is None:
        return load(home, device=device)
    try:
        began = find(base, None)
    except ValueError as error:
        raise ValueError(f"{error}; --model.load names the place of the model that {home} is of") from None
    return load(home, device=device) if is_adapter(began) else load(base, adapter=home, device=device)


def written_scores(texts: list[str], wanted: list[str]) -> tuple[dict[str, float], str | None]:
    """ROUGE; and BLEU, chrF and BLEU's signature, where sacrebleu is installed."""
    each = [rouge(*both) for both in zip(texts, wanted, strict=True)]
    values = {name: sum(one[name] for one in each) / len(each) for name in each[0]}
    if find_spec("sacrebleu") is None:
        return values, "for BLEU and chrF: pip install 'qkv[eval]'"
    score = bleu(texts, wanted)
    return values | {"bleu": score.value, "chrf": chrf(texts, wanted).value}, score.signature


def count(index: Index) -> int:
    """Tokens of all texts, whatever fields they stand in."""
    return sum(part.tokens.get(field, 0) for part in index.parts for field in TEXTS)


def names_of(recipe: Recipe, kind: Kind, model: Model) -> tuple[str, ...]:
    """The labels in the order of their numbers: the model's own, else those of the training data."""
    if kind.column is None:
        return ()
    held: dict[str, str] = model.config.get("id2label") or {}
    if held and not all(name.startswith("LABEL_") for name in held.values()):
        return tuple(held[number] for number in sorted(held, key=int))
    asked = recipe.objective.settings.get("kind", "single")
    return labels_of(corpus(recipe, recipe.data.train), kind.column, asked)


class Seen:
    """What a network answered to labelled texts or words while it was measured."""

    def __init__(self, name: str, labels: tuple[str, ...]) -> None:
        self.name, self.labels = name, labels
        self.predicted: list[list[str]] = []  # by text: its label, or those of its words
        self.wanted: list[list[str]] = []

    def __call__(self, net: nn.Module, args: Any, out: Out) -> None:
        if not self.labels or out["labels"].is_floating_point():  # numbers, or several labels a text
            return
        for row, gold in zip(out["logits"].argmax(-1), out["labels"], strict=True):
            asked = gold != NONE
            self.predicted.append([self.labels[number] for number in row[asked].flatten().tolist()])
            self.wanted.append([self.labels[number] for number in gold[asked].flatten().tolist()])

    def scores(self) -> dict[str, float]:
        if not self.wanted:
            return {}
        if self.name == "tag":
            found = entity_f1(self.predicted, self.wanted)
            return {"entity_f1": found.f1, "entity_precision": found.precision, "entity_recall": found.recall}
        return {"macro_f1": macro_f1([one for (one,) in self.predicted], [one for (one,) in self.wanted])}
