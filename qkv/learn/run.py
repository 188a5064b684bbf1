"""Run: a recipe becomes a folder with a trained model in it.

runs/name/
  recipe.toml        every setting, written out
  tokenizer/         the one that the data was encoded with
  data/              token shards
  checkpoints/       from which the run goes on
  metrics.jsonl      a line for every report        loss.svg    the curve
  best/  last/       models, as `qkv.load` opens them
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qkv.data import encode
from qkv.data.feed import Feed
from qkv.data.prepare import prepare
from qkv.data.read import Corpus
from qkv.data.shards import Shards
from qkv.data.source import Documents, Stream, recurrent_feed, rows_feed, stream_feed
from qkv.families import family
from qkv.foreign import load
from qkv.learn.measure import over
from qkv.learn.objective import Objective
from qkv.learn.objectives import Words, objective
from qkv.learn.recipe import Recipe, read_recipe, to_toml
from qkv.learn.trainer import Report, State, Trainer
from qkv.model import Model, build, pick_device
from qkv.text import Tokenizer

LM = ("causal-lm", "recurrence")
PURPOSES = {"causal-lm": "gpt", "recurrence": "plain", "seq2seq": "seq2seq"}
HEADS = {"label": "label", "tag": "tag", "span": "span", "masked-lm": "masked-lm"}


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Everything a trainer is made of."""

    model: Model
    feed: Feed
    objective: Objective
    valid: Feed | None


def train(
    recipe: Recipe, *, resume: bool = False, accept: bool = False,
    callbacks: Sequence[Callable[[Report], None]] = (),
) -> State:  # fmt: skip
    """Trains as the recipe says, in its folder; goes on where it was stopped, if asked to."""
    folder = Path(recipe.run)
    with owned(folder):
        begin(folder, recipe, resume=resume, accept=accept)
        made = prepared(recipe, folder)
        trainer = Trainer(
            net=made.model.net, feed=made.feed, objective=made.objective, learn=recipe.learn, folder=folder,
            evaluate=over(made.valid, made.objective) if made.valid else None,
            callbacks=(recorder(folder), *callbacks), save_best=made.model.save,
        )  # fmt: skip
        if resume:
            trainer.restore()
        with stoppable(trainer):
            state = trainer.run()
        if trainer.average is not None:
            with trainer.average.applied(trainer.net):
                made.model.save(folder / "last")
        else:
            made.model.save(folder / "last")
        return state


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """The folder of a run belongs to one process at a time."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ValueError(f"{folder}: {error.strerror}; expected a folder that can be written to") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        other = os.read(handle, 20).decode(errors="replace").strip() or "unknown"
        os.close(handle)
        raise ValueError(
            f"{folder}: in use by another process ({other}); wait for it, or choose another --run"
        ) from None
    os.ftruncate(handle, 0)
    os.write(handle, f"{os.getpid()}\n".encode())
    try:
        yield
    finally:
        os.close(handle)


def begin(folder: Path, recipe: Recipe, *, resume: bool, accept: bool) -> None:
    """Writes the recipe down, or sees that it is still the one the run began with."""
    path, text = folder / "recipe.toml", to_toml(recipe)
    if not path.exists():
        path.write_text(text, encoding="utf-8")
        return
    if not resume:
        raise ValueError(
            f"{folder}: holds a run already; --resume auto goes on with it, --run names another folder"
        )
    changed = differences(read_recipe(path).as_dict(), read_recipe_text(text, folder).as_dict())
    if changed and not accept:
        raise ValueError(
            f"{folder}: the recipe is not what it was: {'; '.join(changed)}; --resume changed goes on so"
        )
    path.write_text(text, encoding="utf-8")


def read_recipe_text(text: str, folder: Path) -> Recipe:
    """The recipe as it would be read back."""
    near = folder / ".recipe.tmp"
    near.write_text(text, encoding="utf-8")
    try:
        return read_recipe(near)
    finally:
        near.unlink()


def differences(old: dict[str, Any], new: dict[str, Any], path: str = "") -> list[str]:
    """What changed, one `name: old -> new` each. A longer run is no change."""
    found = []
    for name in sorted({*old, *new}):
        a, b = old.get(name), new.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            found += differences(a, b, f"{path}{name}.")
        elif a != b and f"{path}{name}" not in ("device", "learn.save", "learn.log", "learn.keep"):
            found.append(f"{path}{name}: {a!r} -> {b!r}")
    return found


@contextmanager
def stoppable(trainer: Trainer) -> Iterator[None]:
    """SIGTERM asks the trainer to save and leave; whoever sends it finds exit status 0."""

    def ask(*_: object) -> None:
        trainer.stop = True

    try:
        before = signal.signal(signal.SIGTERM, ask)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def recorder(folder: Path) -> Callable[[Report], None]:
    """Writes every report as a line of metrics.jsonl."""

    def record(report: Report) -> None:
        with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(report)) + "\n")

    return record


def corpus(recipe: Recipe, path: str | list[str]) -> Corpus:
    data = recipe.data
    unit: Any = data.unit
    return Corpus(path, form=data.form, columns=data.columns, names=data.names, unit=unit)


def prepared(recipe: Recipe, folder: Path) -> Prepared:
    """Tokenizer, shards, model, objective and feeds."""
    data, name = recipe.data, recipe.objective.name
    tokenizer = make_tokenizer(recipe, folder)
    labels = (
        encode.labels_of(corpus(recipe, data.train), "tags" if name == "tag" else "label")
        if name in ("label", "tag")
        else ()
    )
    encoder = make_encoder(recipe, folder, labels)
    train_shards = shards(recipe, folder, encoder, data.train, "train")
    share = data.valid if isinstance(data.valid, float) else 0.0
    valid_shards = train_shards if share else None
    if not isinstance(data.valid, float):
        valid_shards = shards(recipe, folder, encoder, data.valid, "valid")
    model = make_model(recipe, tokenizer, labels)
    model.net.to(pick_device(recipe.device))
    words = words_of(tokenizer, model)
    target = objective(name, words, **recipe.objective.settings)
    feed = make_feed(recipe, train_shards, share, first=True)
    valid = make_feed(recipe, valid_shards, share, first=False) if valid_shards is not None else None
    return Prepared(model=model, feed=feed, objective=target, valid=valid)


def make_tokenizer(recipe: Recipe, folder: Path) -> Tokenizer:
    """The one of the run, of a folder, of the model that is loaded, or a new one trained on the data."""
    home, part = folder / "tokenizer", recipe.text
    if home.exists():
        return Tokenizer.load(home)
    if part.load or recipe.model.load:
        tokenizer = Tokenizer.load(part.load or recipe.model.load or "")
    else:
        texts = (text for record in corpus(recipe, recipe.data.train) for text in record.texts())
        purpose = part.purpose or PURPOSES.get(recipe.objective.name, "bert")
        tokenizer = Tokenizer.train(
            texts, kind=part.kind, vocab=part.vocab, purpose=purpose, lower=part.lower,
            sentinels=part.sentinels, codes=part.codes,
        )  # fmt: skip
    tokenizer.save(home)
    return tokenizer


def make_encoder(recipe: Recipe, folder: Path, labels: tuple[str, ...]) -> Any:
    data, home = recipe.data, str(folder / "tokenizer")
    common: dict[str, Any] = dict(tokenizer=home, long=data.long)
    match recipe.objective.name:
        case "label":
            return encode.Labelled(labels=labels, length=data.length, **common)
        case "tag":
            return encode.Tagged(labels=labels, length=data.length, **common)
        case "seq2seq":
            return encode.Pairs(length=data.length, languages=data.languages, **common)
    return encode.Stream(**common) if data.unit == "file" else encode.Texts(**common)


def shards(recipe: Recipe, folder: Path, encoder: Any, path: str | list[str], name: str) -> Shards:
    source = corpus(recipe, path)
    made_from = {"corpus": source.fingerprint(), "encoder": repr(encoder), "tokenizer": fingerprint(folder)}
    return prepare(
        source, encoder, folder / "data" / name, fields=encoder.fields(), made_from=made_from,
        workers=recipe.data.workers,
    )  # fmt: skip


def fingerprint(folder: Path) -> str:
    """Of the tokenizer that the shards are made with."""
    import hashlib

    whole = hashlib.sha256()
    for path in sorted((folder / "tokenizer").iterdir()):
        whole.update(path.name.encode() + path.read_bytes())
    return whole.hexdigest()[:16]


def make_model(recipe: Recipe, tokenizer: Tokenizer, labels: tuple[str, ...]) -> Model:
    """A fresh model that fits the vocabulary, or the one that is loaded."""
    part = recipe.model
    if part.load:
        return load(part.load)
    if part.family is None:
        raise ValueError("model.family is missing; name one, or a folder or hub id as model.load")
    kin = family(part.family)
    known: dict[str, Any] = {
        "vocab": len(tokenizer), "labels": len(labels) or None, "head": HEADS.get(recipe.objective.name),
        "pad": tokenizer.pad, "start": tokenizer.bos, "end": tokenizer.eos,
        "length": recipe.data.length or None,
    }  # fmt: skip
    fitting = {name: value for name, value in known.items() if name in kin.defaults and value is not None}
    model = build(part.family, part.size, positions=part.positions, **fitting | part.changes)
    model.tokenizer = tokenizer
    if labels:
        model.config["id2label"] = {str(number): name for number, name in enumerate(labels)}
        model.config["label2id"] = {name: number for number, name in enumerate(labels)}
    return model


def words_of(tokenizer: Tokenizer, model: Model) -> Words:
    special = (*tokenizer.roles.values(), *tokenizer.extras.values())
    return Words(
        size=len(tokenizer), pad=tokenizer.pad or 0, mask=tokenizer.mask, start=model.args.get("start"),
        end=tokenizer.eos, special=tuple(sorted({*special})), left=tokenizer.side == "left",
    )  # fmt: skip


def make_feed(recipe: Recipe, held: Shards, share: float, *, first: bool) -> Feed:
    """The feed of the training data (`first`), or of what is kept from it or read for validation."""
    data, name, seed = recipe.data, recipe.objective.name, recipe.learn.seed
    if not data.rows and not data.tokens:
        raise ValueError("data.rows or data.tokens is missing: how many rows, or tokens, a batch has")
    if name in LM:
        if data.length < 1:
            raise ValueError(f"data.length {data.length}, expected the number of tokens in a row")
        total = held.tokens()
        edge = round(total * (1 - share))
        stream = Stream(held, data.length, 0 if first or not share else edge, edge if first else total)
        rows = data.rows or max(1, data.tokens // data.length)
        if name == "recurrence":
            return recurrent_feed(stream, rows, seed=seed)
        return stream_feed(stream, rows, seed=seed, shuffled=first)
    import numpy as np

    order = np.random.default_rng(seed).permutation(len(held)) if share else np.arange(len(held))
    edge = round(len(held) * (1 - share))
    documents = Documents(held, np.sort(order[:edge] if first or not share else order[edge:]))
    fields = ("source", "target") if name == "seq2seq" else ("tokens",)
    return rows_feed(documents, fields, rows=data.rows, tokens=data.tokens, seed=seed, shuffled=first)
