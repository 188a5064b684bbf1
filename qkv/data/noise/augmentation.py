"""Augmentation of images: random translation, scaling, color jitter and erasing."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from qkv.validate import check_number

MAX_FRACTION = 0.9


@dataclass(frozen=True, kw_only=True)
class ImageAugmentation:
    """Random changes of an image, each up to a fraction; 0 switches one off.

    `translate`: shift, as a fraction of the side. `scale`: change of the size. `color_jitter`: change of
    brightness, contrast and of each color. `erase_prob`: probability that a rectangle is erased. Images
    are not mirrored, because captions name sides."""

    translate: float = 0.0
    scale: float = 0.0
    color_jitter: float = 0.0
    erase_prob: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            limit = 1 if field.name == "erase_prob" else MAX_FRACTION
            value = getattr(self, field.name)
            check_number(f"objective.{field.name}", value, at_least=0, at_most=limit)

    def __call__(self, pixels: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
        """Return a changed copy of the pixels (height, width, 3)."""
        background = np.concatenate(
            [pixels[[0, -1]].reshape(-1, 3), pixels[:, [0, -1]].reshape(-1, 3)]
        )
        fill = np.median(background, axis=0)
        x = pixels.astype(np.float32) - fill
        if self.translate or self.scale:
            zoom = float(np.exp(rng.uniform(-self.scale, self.scale)))
            shifts = rng.uniform(-self.translate, self.translate, 2)
            rows, columns = (
                resampling_matrix(size, zoom, shift * size)
                for size, shift in zip(x.shape[:2], shifts, strict=True)
            )
            x = np.einsum("ih,hwc->iwc", rows, x)
            x = np.einsum("jw,iwc->ijc", columns, x)
        x += fill
        if self.color_jitter:
            low, high = 1 - self.color_jitter, 1 + self.color_jitter
            x = x * rng.uniform(low, high, 3) * rng.uniform(low, high)
            x = x.mean() + (x - x.mean()) * rng.uniform(low, high)
        if rng.random() < self.erase_prob:
            height, width = (int(size * rng.uniform(0.1, 0.5)) for size in x.shape[:2])
            top = rng.integers(0, x.shape[0] - height)
            left = rng.integers(0, x.shape[1] - width)
            x[top : top + height, left : left + width] = rng.uniform(0, 255, 3)
        return np.clip(np.rint(x), 0, 255).astype(np.uint8)


def resampling_matrix(size: int, zoom: float, shift: float) -> NDArray[np.float32]:
    """Return the matrix (size, size) that scales a line about its center and shifts it, by linear
    interpolation; what comes from outside is zero."""
    center = (size - 1) / 2
    sources = (np.arange(size) - center - shift) / zoom + center
    weights = 1 - np.abs(sources[:, None] - np.arange(size)[None, :])
    return np.maximum(weights, 0).astype(np.float32)
