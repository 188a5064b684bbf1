"""Evaluate: how good the model of a run is on texts that it has not seen. Writes nothing into the run."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from qkv.data.encode.labels import labels_of
from qkv.data.read.lines import STDIN
from qkv.data.read.record import Record
from qkv.data.store.prepare import prepare
from qkv.data.store.shards import Index
from qkv.kernels.attention import without_cudnn
from qkv.model.adapters.config import is_adapter
from qkv.model.device import pick_device
from qkv.model.hub import find
from qkv.model.load import load
from qkv.model.model import Model
from qkv.model.transforms.heads import headed
from qkv.text import Tokenizer
from qkv.train.evaluate.generation import Writer
from qkv.train.evaluate.held_out import trial
from qkv.train.evaluate.validation import Tell, over, silent
from qkv.train.objectives.registry import Kind, kind_of
from qkv.train.recipe import Recipe, read_recipe, several
from qkv.train.setup import encoding, goal_of
from qkv.train.setup_context import Given, Part, labels_in
from qkv.train.setup_model import corpus

MODELS = ("best", "last")
RUNNING = ("causal-lm", "recurrence")  # every token of the text is predicted once
TEXTS = ("tokens", "source", "target")  # fields of shards that hold texts


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The scores, and all that must be told with them."""

    model: Path
    objective: str
    data: str | list[str]
    n: int  # records
    tokens: int
    values: dict[str, float]
    how: dict[str, Any] = field(default_factory=dict)  # by what search, within which limits
    signatures: dict[str, str] = field(default_factory=dict)  # sacrebleu's


def evaluate(
    folder: Path, flags: Sequence[str] = (), writer: Writer | None = None, *, lower: bool = False,
    tell: Tell = silent,
) -> Outcome:  # fmt: skip
    """Measures the best model of a run, or the last, on `data.test` of its recipe.

    What a seq2seq model writes is compared with the targets, where `writer` is given; with `lower`, in small
    letters too."""
    named = any(flag.split("=")[0] == "--device" for flag in flags)
    anywhere = [] if named else ["--device", "auto"]  # it may have learnt on another machine
    recipe, learnt_by = (read_recipe(folder / "recipe.toml", [*anywhere, *each]) for each in (flags, ()))
    test = recipe.data.test
    if test is None:
        raise ValueError(f"{folder}: its recipe has no data.test; name the texts with --data.test")
    kind = kind_of(recipe)
    home = next((folder / each for each in MODELS if holds_model(folder / each)), None)
    if home is None:
        raise ValueError(f"{folder}: no model in best/ or last/; has the run come to its end?")
    model = changed(learnt(recipe, home), recipe, learnt_by)
    model.tokenizer = Tokenizer.load(folder / "tokenizer")
    labels = names_of(recipe, kind, model)
    source = records_of(recipe, test)
    given = Given.of(recipe, folder / "tokenizer", model, source, labels=labels, learnt=home)
    net, _ = kind.net(given)
    encoder = kind.encoder(given)
    with tempfile.TemporaryDirectory(prefix="qkv-") as room:
        held = prepare(
            source, encoder, room, fields=encoder.fields(), made_from={}, progress=encoding(test, tell)
        )
        tried = trial(given, goal_of(given), encoder, held, source, Part(first=False))
        signatures: dict[str, str] = {}
        with torch.no_grad(), without_cudnn():
            values = over(tried.feed, tried.objective, tried.judge, tell=tell)(net.eval())
        how = tried.judge.how()
        if recipe.objective.name in RUNNING:
            characters = sum(len(record.text("text")) for record in source)
            bits = values["loss"] / math.log(2)
            values["bits_per_character"] = bits * held.tokens() / max(characters, 1)
        if tried.writes and writer is not None:
            papers = tried.papers(len(held))
            found, signatures = papers.scores(papers.written(model, writer, tell=tell), lower=lower)
            values, how = values | found, how | dict(writer.how)
        return Outcome(
            model=home, objective=recipe.objective.name, data=test, n=len(held), tokens=count(held.index),
            values=values, how=how, signatures=signatures,
        )  # fmt: skip


def records_of(recipe: Recipe, test: str | list[str]) -> Iterable[Record]:
    """What can be read more than once."""
    source = corpus(recipe, test)
    return list(source) if STDIN in several(test) else source


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


def changed(model: Model, recipe: Recipe, learnt_by: Recipe) -> Model:
    """The model with what is now asked of it: dropout, which does nothing here, or another memory."""
    before, now = learnt_by.model.changes, recipe.model.changes
    asked = {name: value for name, value in now.items() if name not in before or before[name] != value}
    found, _ = headed(model, None, 0, others=asked)
    found.net.to(pick_device(recipe.device))
    return found


def count(index: Index) -> int:
    """Tokens of all texts, whatever fields they stand in."""
    return sum(part.tokens.get(field, 0) for part in index.parts for field in TEXTS)


def names_of(recipe: Recipe, kind: Kind, model: Model) -> tuple[str, ...]:
    """The labels in the order of their numbers: the model's own, else those of the training data."""
    if kind.column is None:
        return ()
    held = labels_in(model)
    if held and not all(name.startswith("LABEL_") for name in held):
        return held
    asked = recipe.objective.settings.get("kind", "single")
    return labels_of(corpus(recipe, recipe.data.train), kind.column, asked)
