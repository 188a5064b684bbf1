"""Start: the tokenizer and the model that a run begins with, new ones that fit each other or loaded ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qkv.data.encode.encoder import columns
from qkv.data.read.corpus import Corpus
from qkv.data.read.record import TEXTS, Record
from qkv.families import family
from qkv.model.adapters.config import base_of, is_adapter
from qkv.model.adapters.names import usual
from qkv.model.adapters.write import layout
from qkv.model.build import build
from qkv.model.hub import find
from qkv.model.load import load
from qkv.model.model import Model, tokenizer_files
from qkv.model.transforms.heads import headed
from qkv.model.transforms.pooling import Vector
from qkv.nn.lora import adapters, add_lora
from qkv.spec import Learned, Spec, Two
from qkv.text import Tokenizer
from qkv.train.config import nearest
from qkv.train.recipe import LoraPart, Recipe

TAUGHT = "tokenizer.from"  # what texts the tokenizer of a run was made of


def corpus(recipe: Recipe, path: str | list[str]) -> Corpus:
    data = recipe.data
    unit: Any = data.unit
    return Corpus(path, form=data.form, columns=data.columns, names=data.names, unit=unit)


def make_tokenizer(recipe: Recipe, folder: Path, purpose: str, column: str) -> Tokenizer:
    """The one of the run, of a folder, of the model that is loaded or taught by, or a new one, which a record
    without a text, usually in that column, stops."""
    home, part = folder / "tokenizer", recipe.text
    if home.exists():
        return Tokenizer.load(home)
    held, records = tokenizer_home(recipe), corpus(recipe, recipe.data.train)
    if held:
        tokenizer = Tokenizer.load(held)
    else:
        texts = (text for record in records for text in texts_of(recipe, record, column))
        tokenizer = Tokenizer.train(
            texts, kind=part.kind, vocab=part.vocab, purpose=part.purpose or purpose, lower=part.lower,
            sentinels=part.sentinels, codes=part.codes,
        )  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        (folder / TAUGHT).write_text(records.fingerprint(), encoding="utf-8")
    tokenizer.save(home)
    return tokenizer


def taught_by_others(recipe: Recipe, folder: Path) -> bool:
    """Whether a run has a tokenizer that was made of other texts than it has now."""
    note = folder / TAUGHT
    if not (note.exists() and (folder / "tokenizer").exists()):
        return False
    return note.read_text("utf-8") != corpus(recipe, recipe.data.train).fingerprint()


def tokenizer_home(recipe: Recipe) -> Path | None:
    """The folder of a tokenizer that is there already; one beside an adapter goes before its model's."""
    part = recipe.model
    named = [part.adapter, part.load or recipe.objective.settings.get("teacher")]
    found = [find(each, None) for each in ([recipe.text.load] if recipe.text.load else named) if each]
    if found and is_adapter(found[-1]):
        found.append(base_of(found[-1])[1])
    return next((each for each in found if tokenizer_files(each)), found[-1] if found else None)


def texts_of(recipe: Recipe, record: Record, column: str) -> list[str]:
    """Every text of a record: the usual columns, and those that a template names."""
    sides = (recipe.objective.settings.get(side) for side in ("source", "target"))
    named = [name for side in sides if isinstance(side, str) for name in columns(side)]
    more = (record.get(name) for name in sorted({*named} - {*TEXTS}))
    return [*record.texts(), *(text for text in more if isinstance(text, str))] or [
        record.text([*named, column][0])  # says what is there in its place
    ]


def make_model(
    recipe: Recipe, tokenizer: Tokenizer, labels: tuple[str, ...], *, head: str | None, vector: str | None
) -> Model:
    """A fresh model that fits the vocabulary, or the one that is loaded, with the head that is asked for."""
    part, changes = recipe.model, dict(recipe.model.changes)
    vector = changes.pop("vector", vector)
    if part.load:
        model = load(part.load, adapter=part.adapter)
        model, fresh = headed(model, head, len(labels), Vector(vector) if vector else None, changes)
        if recipe.lora:
            add_adapters(model, recipe.lora, fresh, part.load)
    elif part.family is None:
        raise ValueError("model.family is missing; name one, or a folder or hub id as model.load")
    else:
        known = fitting(recipe, tokenizer, labels, head)
        for name in changes.keys() - family(part.family).defaults.keys():
            if near := nearest(name, family(part.family).defaults):
                raise ValueError(f"model.{name} is unknown; did you mean model.{near}?")
        for name in ("text", "image"):  # CLIP's towers have sizes of their own
            changes |= {name: known.pop(name) | changes.get(name, {})} if name in known else {}
        model = build(part.family, part.size, positions=part.positions, vector=vector, **known | changes)
    model.tokenizer = tokenizer
    if labels:
        name_labels(model, labels)
    check_fits(model, tokenizer, recipe.data.length)
    return model


def name_labels(model: Model, labels: tuple[str, ...]) -> None:
    model.config["id2label"] = {str(number): name for number, name in enumerate(labels)}
    model.config["label2id"] = {name: number for number, name in enumerate(labels)}


def fitting(
    recipe: Recipe, tokenizer: Tokenizer, labels: tuple[str, ...], head: str | None
) -> dict[str, Any]:
    """The arguments of a family that the data decides."""
    assert recipe.model.family is not None
    defaults, length = family(recipe.model.family).defaults, recipe.data.length or None
    if length and defaults.get("after_pad"):  # RoBERTa counts positions from after the pad's id
        length += (tokenizer.pad or 0) + 1
    if "text" in defaults and "image" in defaults:
        sizes = {"vocab": len(tokenizer), "end": tokenizer.eos, "length": length}
        if tokenizer.eos == 2:
            raise ValueError(
                "the end token has id 2, by which CLIP knows its oldest models: they read the largest id "
                'instead; text.kind = "bpe" gives it another'
            )
        return {"text": {name: value for name, value in sizes.items() if value is not None}}
    known: dict[str, Any] = {
        "vocab": len(tokenizer), "labels": len(labels) or None, "head": head, "pad": tokenizer.pad,
        "start": start_of(defaults, tokenizer), "end": tokenizer.eos, "length": length,
    }  # fmt: skip
    return {name: value for name, value in known.items() if name in defaults and value is not None}


def start_of(defaults: Mapping[str, Any], tokenizer: Tokenizer) -> int | None:
    """What a decoder is given first: where a family takes its end (BART) or its pad (Marian), so here."""
    usual = defaults.get("start")
    if usual is not None and usual == defaults.get("end"):
        return tokenizer.eos
    if usual is not None and usual == defaults.get("pad"):
        return tokenizer.pad
    return tokenizer.bos


def add_adapters(model: Model, part: LoraPart, fresh: tuple[str, ...], base: str) -> None:
    """Adapters on a loaded model; what is fresh learns beside them. What could not be saved is said now."""
    if adapters(model.net):
        raise ValueError(f"lora: {base} is an adapter, which learns on as it is: leave lora out (--lora '')")
    model.base, model.beside = base, fresh
    where = part.where or usual(model)
    try:
        add_lora(
            model.net, rank=part.rank, alpha=part.alpha, drop=part.drop, root=part.root, where=where,
            whole=fresh,
        )  # fmt: skip
        layout(model)
    except ValueError as error:
        raise ValueError(f"lora: {error}") from None


def check_fits(model: Model, tokenizer: Tokenizer, length: int) -> None:
    """A model must know every token and every position that the data has."""
    vocab, most = model.args.get("vocab"), reach(model.spec)
    if vocab is not None and len(tokenizer) > vocab:
        raise ValueError(
            f"{len(tokenizer)} tokens in the tokenizer, but the model knows {vocab}; do they belong?"
        )
    if most is not None and length > most:
        raise ValueError(f"data.length {length}, expected at most {most}: the model has no more positions")


def reach(spec: Spec | Two) -> int | None:
    """Tokens that a model with learned positions can read; None: any number."""
    texts = spec.text if isinstance(spec, Two) else spec
    stacks = [stack for stack in (texts.encoder, texts.decoder) if stack] if texts else []
    places = [stack.embed.positions for stack in stacks]
    counts = [place.count - place.offset for place in places if isinstance(place, Learned)]
    return min(counts, default=None)
