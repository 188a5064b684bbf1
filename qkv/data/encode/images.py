"""Pixels: what a model reads of an image, and images with their captions. Opens images by Pillow, only here.

An image is scaled until its short side fits and cut around its middle, as CLIP does, or as a
preprocessor_config.json says; its pixels are those that Hugging Face's CLIPImageProcessor makes."""

from __future__ import annotations

import os
import struct
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.data.encode.encoder import Encoder, Row
from qkv.data.read.formats import extra
from qkv.data.read.record import Record

MEAN = np.array([0.48145466, 0.4578275, 0.40821073], np.float32)  # CLIP's, of red, green and blue
STD = np.array([0.26862954, 0.26130258, 0.27577711], np.float32)
BICUBIC = 3  # Pillow's number for it
LARGEST = 2**14  # pixels of a side


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
            pillow = extra("PIL.Image", path)
            try:
                with pillow.open(path):
                    pass
            except (OSError, pillow.DecompressionBombError) as error:
                raise ValueError(f"{record.place}: {path} is no image that can be read ({error})") from None
            rows.append({"tokens": self.fit(one, record).ids, "image": list(os.fsencode(path))})
        return rows


@dataclass(frozen=True, kw_only=True)
class Pixels:
    """What is done to an image, in this order; None: not done."""

    size: int | tuple[int, int] | None  # of the short side, or height and width
    crop: tuple[int, int] | None  # height and width around the middle; where the image is smaller, zeros
    scale: float | None = 1 / 255
    mean: tuple[float, ...] | None = tuple(MEAN.tolist())
    std: tuple[float, ...] = tuple(STD.tolist())
    filter: int = BICUBIC

    @staticmethod
    def of(config: Mapping[str, Any]) -> Pixels:
        """What a preprocessor_config.json says; where it is silent, CLIP's."""
        try:
            size, crop = config.get("size", 224), config.get("crop_size", 224)
            size = sides(size) if isinstance(size, Mapping) and "shortest_edge" not in size else short(size)
            crop = sides(crop) if isinstance(crop, Mapping) else (int(crop), int(crop))
            factor = float(config.get("rescale_factor", 1 / 255))
            mean, std = (
                tuple(map(float, config.get(key, usual)))
                for key, usual in (("image_mean", MEAN.tolist()), ("image_std", STD.tolist()))
            )
            found = Pixels(
                size=size if config.get("do_resize", True) else None,
                crop=crop if config.get("do_center_crop", True) else None,
                scale=factor if config.get("do_rescale", True) else None,
                mean=mean if config.get("do_normalize", True) else None, std=std,
                filter=int(config.get("resample", BICUBIC)),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"size, crop_size, image_mean or another is not as CLIP has it ({error!r})"
            ) from None
        both = found.size if isinstance(found.size, tuple) else (1 if found.size is None else found.size,)
        if (
            not all(1 <= side <= LARGEST for side in (*both, *(found.crop or ())))
            or not 0 <= found.filter < 6
        ):
            raise ValueError(f"{found}: expected sides from 1 to {LARGEST}, and a filter from 0 to 5")
        if len(mean) != 3 or len(std) != 3 or 0 in std:
            raise ValueError(
                f"image_mean {mean}, image_std {std}: expected three numbers each, none of std 0"
            )
        return found

    def __call__(self, image: str | Path | Any) -> NDArray[np.float32]:
        """The pixels (3, height, width) of an image, or of the file of one."""
        image = opened(image) if isinstance(image, str | Path) else image.convert("RGB")
        if self.size is not None:
            image = image.resize(self.scaled(*image.size), self.filter)
        whole = np.asarray(image)  # (height, width, 3)
        whole = whole if self.crop is None else middle(whole, *self.crop)
        found = whole.astype(np.float32)
        if self.scale is not None:
            found = (whole.astype(np.float64) * self.scale).astype(np.float32)
        if self.mean is not None:
            mean, std = np.array(self.mean, np.float32), np.array(self.std, np.float32)
            found = ((found - mean) / std).astype(np.float32)
        return found.transpose(2, 0, 1)

    def scaled(self, width: int, height: int) -> tuple[int, int]:
        """Width and height when the short side fits: the other is cut down to a whole number."""
        assert self.size is not None
        if isinstance(self.size, tuple):
            return self.size[1], self.size[0]
        long = int(self.size * max(width, height) / min(width, height))
        return (self.size, long) if width <= height else (long, self.size)


def sides(said: Mapping[str, Any]) -> tuple[int, int]:
    return int(said["height"]), int(said["width"])


def short(said: Any) -> int:
    """The short side; older files have it as a number."""
    return int(said["shortest_edge"] if isinstance(said, Mapping) else said)


def opened(path: str | Path) -> Any:
    """An image in red, green and blue."""
    pillow = extra("PIL.Image", str(path))
    try:
        with warnings.catch_warnings(), pillow.open(path) as held:
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            return held.convert("RGB")
    except pillow.DecompressionBombWarning:
        raise ValueError(f"{path}: an image of too many pixels; make it smaller") from None
    except (OSError, SyntaxError, ValueError, struct.error, pillow.DecompressionBombError) as error:
        raise ValueError(f"{path}: no image that can be read ({error})") from None


def middle(image: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """So much around the middle of (height, width, 3); zeros where the image is smaller."""
    found = np.zeros((height, width, 3), np.uint8)
    into, out_of = zip(
        *(overlap(*sides) for sides in zip(image.shape, (height, width), strict=False)), strict=True
    )
    found[into] = image[out_of]
    return found


def overlap(have: int, want: int) -> tuple[slice, slice]:
    """Where in `want` cells the middle of `have` goes, and where it is from."""
    start, gap = max((have - want) // 2, 0), max(-((have - want) // 2), 0)
    count = min(have, want)
    return slice(gap, gap + count), slice(start, start + count)


def pixels(path: str, side: int) -> NDArray[np.float32]:
    """What CLIP reads of an image: (3, side, side), each colour about 0 with a deviation of about 1."""
    return Pixels(size=side, crop=(side, side))(path)
