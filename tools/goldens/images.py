"""Small test images of unusual shapes and modes, and configurations of CLIP's image processor."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

# Name, width, height, and Pillow's mode.
IMAGES = (
    ("wide", 37, 23, "RGB"),
    ("tall", 17, 41, "RGB"),
    ("small", 5, 9, "RGB"),
    ("square", 16, 16, "RGB"),
    ("grey", 29, 20, "L"),
    ("clear", 22, 31, "RGBA"),
    ("clear-grey", 19, 18, "LA"),
    ("palette", 24, 33, "P"),
    ("ink", 21, 26, "1"),
)

_SIDE: dict[str, Any] = dict(size={"shortest_edge": 12}, crop_size={"height": 12, "width": 12})
_HALF: dict[str, Any] = dict(image_mean=[0.5, 0.5, 0.5], image_std=[0.5, 0.5, 0.5])
PREPROCESSORS: dict[str, dict[str, Any]] = {
    "usual":    _SIDE,
    "older":    dict(size=12, crop_size=12),  # the format of the first CLIP checkpoints
    "nearest":  _SIDE | dict(resample=0),
    "lanczos":  _SIDE | dict(resample=1),
    "bilinear": _SIDE | dict(resample=2),
    "exact":    dict(size={"height": 10, "width": 14}, do_center_crop=False),
    "loose":    _SIDE | dict(crop_size={"height": 15, "width": 9}),  # higher than some images
    "uncut":    dict(do_resize=False, crop_size={"height": 12, "width": 12}),
    "half":     _SIDE | _HALF,
    "shares":   _SIDE | dict(do_normalize=False),
    "scaled":   _SIDE | _HALF | dict(rescale_factor=1 / 127.5),
}  # fmt: skip


def draw(width: int, height: int, mode: str) -> Image.Image:
    """Return an image of waves with noise, in which no two neighboring pixels are equal."""
    y, x = np.mgrid[:height, :width].astype(np.float64)
    waves = [
        np.sin(x / (2 + n)) + np.cos(y / (3 + n)) + np.sin((x + y) / (5 - n)) for n in range(4)
    ]
    noise = np.random.default_rng(width * height).normal(0, 12, (height, width, 4))
    shades = np.clip(128 + 40 * np.stack(waves, -1) + noise, 0, 255).astype(np.uint8)
    whole = Image.fromarray(shades, "RGBA")
    if mode == "P":
        return whole.convert("RGB").quantize(16)
    return whole if mode == "RGBA" else whole.convert(mode)


def save_images(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, width, height, mode in IMAGES:
        draw(width, height, mode).save(folder / f"{name}.png")


def pixels(processor: Any, folder: Path) -> dict[str, Any]:
    """Return the pixel values of each image: (C, H, W)."""
    values = {}
    for path in sorted(folder.glob("*.png")):
        with Image.open(path) as image:
            values[path.stem] = processor(image, return_tensors="pt")["pixel_values"][0]
    return values
