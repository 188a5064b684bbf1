"""Words: what an objective must know of a tokenizer and a model. Knows no text."""

from __future__ import annotations

from typing import Any, NamedTuple

from qkv.data.encode.special_tokens import Frame, frame
from qkv.model.model import Model
from qkv.spec import Shift, Spec, Two
from qkv.text import Tokenizer


class Words(NamedTuple):
    size: int
    pad: int = 0
    mask: int | None = None
    start: int | None = None  # what a decoder is given first
    end: int | None = None
    special: tuple[int, ...] = ()
    left: bool = False  # pads stand on the left
    frame: Frame = Frame()  # around a text
    pair: Frame = Frame(((), (), ()), ((), (), ()), (0, 0))  # around two
    stops: tuple[int, ...] = ()  # tokens that end a sentence
    sentinels: tuple[int, ...] = ()  # T5's, the first one first
    labels: int = 0  # that a head knows
    length: int = 0  # tokens of a row
    types: int = 0  # that a model tells apart; 0: any number
    shift: Shift | None = None  # makes a decoder's input out of what is read, for a head that reads it
    side: int = 0  # of an image
    cells: int = 0  # that an image is cut into, and the token in front of them


def words_of(tokenizer: Tokenizer, model: Model, *, length: int = 0) -> Words:
    special = (*tokenizer.roles.values(), *tokenizer.extras.values())
    return Words(
        size=len(tokenizer), pad=tokenizer.pad or 0, mask=tokenizer.mask, start=model.args.get("start"),
        end=tokenizer.eos, special=tuple(sorted({*special})), left=tokenizer.side == "left",
        frame=frame(tokenizer), pair=frame(tokenizer, 2), stops=stops_of(tokenizer),
        sentinels=tuple(tokenizer.sentinels), labels=model.args.get("labels") or 0, length=length,
        **of_spec(model.spec),
    )  # fmt: skip


def stops_of(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokens for a full stop, a question mark and an exclamation mark after a word."""
    marks = ".!?"
    last = [ids[-1] for ids in tokenizer.encode_ids([f"a{mark}" for mark in marks], special=False)]
    alone = [i for i, mark in zip(last, marks, strict=True) if tokenizer.decode([i]).strip() == mark]
    return tuple(sorted({*alone}))


def of_spec(spec: Spec | Two) -> dict[str, Any]:
    if isinstance(spec, Spec):
        stack = spec.encoder or spec.decoder
        assert stack is not None
        types = stack.embed.types
        return {"types": types if isinstance(types, int) else 0, "shift": spec.shift}
    patches = spec.image.encoder.embed.patches if spec.image and spec.image.encoder else None
    return {"side": patches.image, "cells": (patches.image // patches.size) ** 2 + 1} if patches else {}
