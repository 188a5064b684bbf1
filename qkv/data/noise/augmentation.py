"""Augmentation of images: random translation, scaling, color jitter and erasing, for a whole batch.

B images, H height, W width, C channels, R random numbers."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from qkv.validate import check_number

MAX_FRACTION = 0.9
NUM_RANDOM_NUMBERS = 16  # per image
ERASED_SIDES = (0.1, 0.5)  # range of the sides of an erased rectangle, as fractions

Array = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class ImageAugmentation:
    """Random changes of images, each up to a fraction; 0 switches one off.

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

    def __call__(self, pixels: NDArray[np.uint8], numbers: Array) -> NDArray[np.uint8]:
        """Return changed pixels (B, H, W, C), given numbers between 0 and 1 (B, R)."""
        x = np.ascontiguousarray(pixels.swapaxes(2, 3), dtype=np.float32)  # (B, H, C, W)
        changes = 2 * numbers[:, :8] - 1  # between -1 and 1
        if self.translate or self.scale:
            zoom = np.exp(self.scale * changes[:, 0])
            x = resample(x, zoom, self.translate * changes[:, 1], self.translate * changes[:, 2])
        if self.color_jitter:
            jitter_colors(x, 1 + self.color_jitter * changes[:, 3:])
        if self.erase_prob:
            is_erased = find_erased(numbers, pixels.shape[1:3], self.erase_prob)
            x = np.where(
                is_erased[:, :, None], 255 * numbers[:, None, 13 : 13 + x.shape[2], None], x
            )
        np.rint(x, out=x)
        return x.clip(0, 255, out=x).astype(np.uint8).swapaxes(2, 3)


def resample(x: Array, zoom: Array, down: Array, right: Array) -> Array:
    """Scale images (B, H, C, W) about their centers and shift them by fractions of their sides.

    What comes from outside has the mean color of the border."""
    batch_size, height, _, width = x.shape
    sides = (x[:, 0].mean(-1), x[:, -1].mean(-1), x[..., 0].mean(1), x[..., -1].mean(1))
    background = np.stack(sides).mean(0)[:, None, :, None]  # (B, 1, C, 1)
    rows = resampling_matrices(height, zoom, down * height)
    columns = resampling_matrices(width, zoom, right * width)
    y = rows @ (x - background).reshape(batch_size, height, -1)  # (B, H, C*W)
    y = y.reshape(batch_size, -1, width) @ columns.swapaxes(1, 2)  # (B, H*C, W)
    y = y.reshape(x.shape)
    y += background
    return y


def resampling_matrices(size: int, zoom: Array, shift: Array) -> Array:
    """Return matrices (B, size, size) that scale lines about their centers and shift them, by linear
    interpolation; what comes from outside is zero."""
    center = (size - 1) / 2
    places = np.arange(size, dtype=np.float32)
    sources = (places - center - shift[:, None]) / zoom[:, None] + center  # (B, size)
    weights = 1 - np.abs(sources[:, :, None] - places)
    return weights.clip(0).astype(np.float32)


def jitter_colors(x: Array, gains: Array) -> None:
    """Multiply the channels, the brightness and the contrast of images in place by gains (B, 5)."""
    colors = gains[:, : x.shape[2]] * gains[:, 3:4]  # (B, C)
    contrast = gains[:, 4:]  # (B, 1)
    mean = (x.mean(axis=(1, 3)) * colors).mean(axis=1, keepdims=True)  # (B, 1)
    x *= (colors * contrast)[:, None, :, None]
    x += (mean * (1 - contrast))[:, None, :, None]


def find_erased(numbers: Array, sides: tuple[int, ...], erase_prob: float) -> NDArray[np.bool_]:
    """Return true at the pixels (B, H, W) of erased rectangles."""
    inside = []
    for size, length, start in zip(sides, numbers[:, 9:11].T, numbers[:, 11:13].T, strict=True):
        low, high = ERASED_SIDES
        length = size * (low + (high - low) * length)
        first = start * (size - length)
        places = np.arange(size)
        inside.append((places >= first[:, None]) & (places < (first + length)[:, None]))
    rows, columns = inside
    is_erased = numbers[:, 8] < erase_prob
    return rows[:, :, None] & columns[:, None, :] & is_erased[:, None, None]
