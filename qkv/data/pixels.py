"""Pixels: images with their captions. Opens images by Pillow, and only here, each when it is drawn.

An image is scaled until its short side fits and cut around its middle, as CLIP does."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qkv.data.encode import Encoder, Row
from qkv.data.forms import extra
from qkv.data.record import Record

MEAN = np.array([0.48145466, 0.4578275, 0.40821073], np.float32)  # CLIP's, of red, green and blue
STD = np.array([0.26862954, 0.26130258, 0.27577711], np.float32)


@dataclass(frozen=True, kw_only=True)
class Captioned(Encoder):
    """The path of an image, as bytes, and the text that goes with it."""

    def fields(self) -> Mapping[str, int]:
        return {"tokens": len(self.text), "image": 256}

    def __call__(self, records: Sequence[Record]) -> list[Row]:
        found = self.text.encode_many([record.text("caption") for record in records])
        rows = []
        for one, record in zip(found, records, strict=True):
            path = record.text("image")
            try:
                with extra("PIL.Image", path).open(path):
                    pass
            except OSError as error:
                raise ValueError(f"{record.place}: {path} is no image that can be read ({error})") from None
            rows.append({"tokens": self.fit(one, record).ids, "image": list(os.fsencode(path))})
        return rows


def pixels(path: str, side: int) -> NDArray[np.float32]:
    """What a model reads of an image: (3, side, side), each colour about 0 with a deviation of about 1."""
    pillow = extra("PIL.Image", path)
    try:
        with pillow.open(path) as held:
            image = held.convert("RGB")
    except OSError as error:
        raise ValueError(f"{path}: no image that can be read ({error})") from None
    scale = side / min(image.size)
    width, height = (max(side, round(length * scale)) for length in image.size)
    left, top = (width - side) // 2, (height - side) // 2
    image = image.resize((width, height), pillow.Resampling.BICUBIC)
    image = image.crop((left, top, left + side, top + side))
    shares = np.asarray(image, np.float32) / np.float32(255)  # (side, side, 3)
    normal: NDArray[np.float32] = (shares - MEAN) / STD
    return normal.transpose(2, 0, 1)
