"""Prepared: everything a trainer is made of, out of a recipe and the folder of its run. Trains nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from qkv.data.batches.sampler import Feed
from qkv.data.encode.encoder import Encoder
from qkv.data.encode.labels import labels_of
from qkv.data.read.record import Record
from qkv.data.store.prepare import Progress, prepare
from qkv.data.store.shards import Shards
from qkv.formatting import human
from qkv.model.device import pick_device
from qkv.model.model import Model
from qkv.train.evaluate.generation import Writer
from qkv.train.evaluate.held_out import Trial, check_unmeasured, trial
from qkv.train.evaluate.validation import Tell, silent
from qkv.train.loop.trainer import check_parts
from qkv.train.objectives import objective
from qkv.train.objectives.objective import Objective
from qkv.train.objectives.registry import Kind, kind_of
from qkv.train.recipe import Recipe, several
from qkv.train.setup_context import Given, Part
from qkv.train.setup_model import corpus, make_model, make_tokenizer

PROBLEMS = {  # what Hugging Face calls the kinds of label
    "single": "single_label_classification", "several": "multi_label_classification",
    "regression": "regression",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Everything a trainer is made of."""

    model: Model
    net: nn.Module  # the model's, or one that holds another network beside it
    save: Callable[[Path], None]
    feed: Feed
    objective: Objective
    trial: Trial | None  # what is kept to measure on


def prepared(
    recipe: Recipe, folder: Path, writer: Writer | None = None, tell: Tell = silent
) -> Prepared:  # fmt: skip
    """Tokenizer, model, shards, objective and feeds."""
    data, kind = recipe.data, kind_of(recipe)
    if not data.rows and not data.tokens:
        raise ValueError("data.rows or data.tokens is missing: how many rows, or tokens, a batch has")
    if not data.valid:
        check_unmeasured(recipe.learn)
    given = given_of(recipe, folder, kind)
    target = goal_of(given)
    check_parts(recipe.learn, target)
    encoder = kind.encoder(given)
    train_shards = shards(recipe, folder, encoder, data.train, "train", tell)
    held, path = train_shards, data.train
    share = data.valid if isinstance(data.valid, float) else 0.0
    if not isinstance(data.valid, float):
        held, path = shards(recipe, folder, encoder, data.valid, "valid", tell), data.valid
    given.model.net.to(pick_device(recipe.device))
    net, save = kind.net(given)
    feed, kept = kind.feed(given, train_shards, Part(first=True, share=share)), None
    if data.valid:
        part = Part(first=False, share=share)
        kept = trial(given, target, encoder, held, corpus(recipe, path), part)
        kept.check(recipe.learn, writer)
    return Prepared(model=given.model, net=net, save=save, objective=target, feed=feed, trial=kept)


def given_of(recipe: Recipe, folder: Path, kind: Kind) -> Given:
    """The tokenizer and the model of a run, and what is known of them."""
    tokenizer = make_tokenizer(recipe, folder, kind.purpose, kind.text)
    source = corpus(recipe, recipe.data.train)
    labels = labels_for(recipe, kind, source)
    torch.manual_seed(recipe.learn.seed)  # the same recipe is the same model
    model = make_model(recipe, tokenizer, labels, head=kind.head, vector=kind.vector)
    asked = recipe.objective.settings.get("kind", "single")
    if recipe.objective.name == "label" and asked in PROBLEMS:
        model.config["problem_type"] = PROBLEMS[asked]
    return Given.of(recipe, folder / "tokenizer", model, source, labels=labels)


def labels_for(recipe: Recipe, kind: Kind, records: Iterable[Record]) -> tuple[str, ...]:
    """Those of the records, where the objective has labels; a number is one without a name."""
    asked = recipe.objective.settings.get("kind", "single")
    if kind.column is None:
        return ()
    if asked == "regression":
        return ("score",)
    labels = labels_of(records, kind.column, asked)
    if not labels:
        raise ValueError("no record to learn from: is the data empty?")
    if recipe.objective.name == "label" and asked == "single" and len(labels) == 1:
        raise ValueError(f"the data has one label alone, {labels[0]!r}; expected two at least to tell apart")
    return labels


def goal_of(given: Given) -> Objective:
    part, own = given.recipe.objective, kind_of(given.recipe).own
    return objective(part.name, given.words, **{k: v for k, v in part.settings.items() if k not in own})


def shards(
    recipe: Recipe, folder: Path, encoder: Encoder, path: str | list[str], name: str, tell: Tell
) -> Shards:  # fmt: skip
    source = corpus(recipe, path)
    made_from = {"corpus": source.fingerprint(), "encoder": repr(encoder), "tokenizer": fingerprint(folder)}
    return prepare(
        source, encoder, folder / "data" / name, fields=encoder.fields(), made_from=made_from,
        workers=recipe.data.workers, progress=encoding(path, tell),
    )  # fmt: skip


def encoding(path: str | list[str], tell: Tell) -> Progress:
    """Tells of texts that become shards."""
    name = ", ".join(several(path))
    return lambda documents, tokens: tell(
        f"encoded {documents:,} texts of {name}, {human(tokens)} tokens", documents, None
    )


def fingerprint(folder: Path) -> str:
    """Of the tokenizer that the shards are made with."""
    whole = hashlib.sha256()
    for path in sorted((folder / "tokenizer").iterdir()):
        whole.update(path.name.encode() + path.read_bytes())
    return whole.hexdigest()[:16]
