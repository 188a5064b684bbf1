"""Twins: two networks beside each other: ELECTRA's generator and discriminator, a student and its teacher.

masked ids ─ generator ─ sampled ids ─ discriminator ─ which were replaced
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qkv.batch import Batch
from qkv.data.batches.collate import NONE
from qkv.model.build import build
from qkv.model.load import load
from qkv.model.model import Model
from qkv.nn.heads import Reader
from qkv.nn.transformer import Pair, Transformer
from qkv.train.setup_context import Given

Save = Callable[[Path], None]
GENERATOR = "generator"  # its folder, in that of the discriminator
TABLES = ("tokens", "positions", "types")


class Twin(nn.Module):
    """A generator fills the masked tokens of a batch, a discriminator reads the result (ELECTRA).

    They share the tables of tokens, positions and types (section 3.2). No gradient goes through a sample."""

    def __init__(self, generator: Transformer, discriminator: Transformer) -> None:
        super().__init__()
        self.discriminator, self.generator = discriminator, generator
        assert generator.encoder is not None
        assert discriminator.encoder is not None
        mine, theirs = generator.encoder.embed, discriminator.encoder.embed
        for name in TABLES:
            table: nn.Embedding | None = getattr(theirs, name)
            if table is not None:
                own: nn.Embedding = getattr(mine, name)
                if own.weight.shape != table.weight.shape:
                    raise ValueError(
                        f"objective.generator: a table of {name} of {list(own.weight.shape)}, expected that "
                        f"of the model, {list(table.weight.shape)}: give both the same embed_width and length"
                    )
                setattr(mine, name, table)
        head = generator.heads["lm"]
        assert isinstance(head, Reader)
        if head.head.tied:
            head.out.weight = theirs.tokens.weight

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        assert batch.rows is not None
        assert batch.rows.ids is not None
        assert batch.read is not None
        out, ids = self.generator(batch), batch.rows.ids
        labels, logits = batch.labels["labels"], out["logits"]  # (N,), (N, V)
        asked = labels != NONE
        true = written(ids, batch.read, labels, asked)
        corrupted = written(ids, batch.read, self.sampled(logits.detach()), asked)
        rows = replace(batch.rows, ids=corrupted)
        told = self.discriminator(replace(batch, rows=rows, read=None, labels={}))["logits"]  # (B, T)
        return {**batch.labels, "logits": logits, "replaced": told, "wrong": corrupted != true}

    def sampled(self, logits: Tensor) -> Tensor:
        """One word a row, by its probability; the same ones each time a model is measured."""
        same = None if self.training else torch.Generator(logits.device).manual_seed(0)
        noise = torch.empty_like(logits, dtype=torch.float32).exponential_(generator=same)
        return (logits.float() - noise.log()).argmax(-1)  # -log of an exponential is Gumbel's


def written(ids: Tensor, read: Tensor, values: Tensor, asked: Tensor) -> Tensor:
    """(B, T) ids with values (N,) at the places `read`, where they are asked for."""
    flat = torch.cat([ids.flatten(), ids.new_zeros(1)])  # the last cell takes what is not
    places = torch.where(asked, read, len(flat) - 1)
    return flat.scatter(0, places, values)[:-1].unflatten(0, ids.shape)


class Taught(nn.Module):
    """A student, and what its teacher says of the same batch. The teacher stands still and is not saved."""

    def __init__(self, student: Transformer, teacher: Transformer) -> None:
        super().__init__()
        self.student = student
        self._beside = (teacher.eval().requires_grad_(False),)  # in a tuple: no part of this module

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        teacher = self._beside[0]
        out = self.student(batch)
        with torch.no_grad():
            told = teacher(replace(batch, labels={}))
        return {**out, "taught_logits": told["logits"], "taught": told["hidden"]}


@torch.no_grad()
def inherit(student: Model, teacher: Model) -> list[int]:
    """Gives a student the teacher's tables, head and layers, evenly from the first to the last.

    6 of 12 are 0, 2, 4, 7, 9 and 11, as in DistilBERT. Returns which."""
    layers = [
        len(model.net.tower.layers) for model in (student, teacher) if isinstance(model.net, Transformer)
    ]
    few, many = layers
    taken = [round(i * (many - 1) / max(few - 1, 1)) for i in range(few)]
    own, held = dict(student.net.named_parameters()), dict(teacher.net.named_parameters())
    names = {}
    for name in own:
        head, layer, rest = name.partition(".layers.")
        place, _, rest = rest.partition(".")
        names[name] = f"{head}.layers.{taken[int(place)]}.{rest}" if layer else name
    lost = [
        name for name, theirs in names.items() if theirs not in held or held[theirs].shape != own[name].shape
    ]
    if len(lost) == len(own) or any(".layers." in name for name in lost):
        raise ValueError(
            f"objective.teacher: {', '.join(lost[:3])} of the student has no like in the teacher; "
            "expected models of one width and kind, such as bert and distilbert"
        )
    if lost:
        warnings.warn(f"not in the teacher, so new in the student: {', '.join(lost)}", stacklevel=2)
    for name, theirs in names.items():
        if name not in lost:
            own[name].copy_(held[theirs])
    return taken


def bounded(net: Pair, most: float = 100.0) -> Pair:
    """Scores of pairs are never scaled by more than 100 in training (CLIP, section 2.5)."""

    def bound(module: nn.Module, given: tuple[object, ...]) -> None:
        if module.training and net.temperature is not None:
            with torch.no_grad():
                net.temperature.clamp_(max=math.log(most))

    net.register_forward_pre_hook(bound)
    return net


def smaller(sizes: Mapping[str, Any], share: float = 0.25) -> dict[str, int]:
    """The sizes of a generator: a quarter of the width, the heads and the feed (ELECTRA, table 6)."""
    return {name: max(1, int(sizes[name] * share)) for name in ("width", "heads", "feed")}


def alone(given: Given) -> tuple[nn.Module, Save]:
    """The model's own network."""
    return given.model.net, given.save


def paired(given: Given) -> tuple[nn.Module, Save]:
    """CLIP's two towers."""
    net = given.model.net
    return (bounded(net) if isinstance(net, Pair) else net), given.save


def discriminating(given: Given) -> tuple[nn.Module, Save]:
    """The model with a smaller generator, saved beside it; `objective.generator` changes its sizes, or is the
    folder of one that has learnt."""
    model, net, asked = given.model, given.model.net, given.setting("generator", {})
    if not isinstance(asked, str | dict):
        raise ValueError(f"objective.generator is {asked!r}, expected sizes, {{ width = 64 }}, or a folder")
    if given.learnt is not None:
        generator = load(given.learnt / GENERATOR)
    elif isinstance(asked, str):
        generator = load(asked)
        if not isinstance(generator.net, Transformer) or "lm" not in generator.net.heads:
            raise ValueError(f"objective.generator {asked}: expected a model with the head masked-lm")
    else:
        sizes = smaller(model.args) | asked
        generator = build(model.family.name, **{**model.args, **sizes, "head": "masked-lm"})
        generator.tokenizer = model.tokenizer
    generator.net.to(model.device)
    assert isinstance(net, Transformer)
    assert isinstance(generator.net, Transformer)

    def save(folder: Path) -> None:
        given.save(folder)
        generator.save(folder / GENERATOR)

    return Twin(generator.net, net), save


def taught(given: Given) -> tuple[nn.Module, Save]:
    """The model and its teacher, from whose layers it starts unless it is loaded itself."""
    folder, model, net = given.setting("teacher", None), given.model, given.model.net
    if folder is None:
        raise ValueError("objective.teacher is missing: the folder of the model that is learnt from")
    teacher = load(folder, device=str(model.device))
    if not isinstance(net, Transformer) or not isinstance(teacher.net, Transformer):
        raise ValueError(f"objective.teacher {folder}: expected a teacher and a student that read text")
    if not given.recipe.model.load and given.learnt is None:
        inherit(model, teacher)
    return Taught(net, teacher.net), given.save
