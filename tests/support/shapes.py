"""Small pictures of colored shapes with captions, such as "red square"."""

from __future__ import annotations

from pathlib import Path

import numpy as np

COLORS = {"red": (230, 20, 20), "green": (20, 170, 40), "blue": (30, 30, 230)}
SHAPES = ("square", "cross")
SIZE = 16


def draw_shape(color: str, shape: str, rng: np.random.Generator) -> np.ndarray:
    """Return a picture (16, 16, 3) of a shape at a random place on white."""
    row, column = np.indices((SIZE, SIZE))
    top, left = rng.integers(1, 5, 2)
    y = row - top - 5
    x = column - left - 5
    inside = {
        "square": np.maximum(abs(x), abs(y)) <= 4,
        "cross": (np.minimum(abs(x), abs(y)) <= 1) & (np.maximum(abs(x), abs(y)) <= 4),
    }[shape]
    pixels = np.full((SIZE, SIZE, 3), 255, np.uint8)
    pixels[inside] = COLORS[color]
    return pixels


def write_shapes(folder: Path, copies: int, seed: int = 0) -> None:
    """Write pictures of every color and shape, and captions.tsv."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    lines = ["image\tcaption"]
    for color in COLORS:
        for shape in SHAPES:
            for copy in range(copies):
                name = f"{color}-{shape}-{copy}.png"
                Image.fromarray(draw_shape(color, shape, rng)).save(folder / name)
                lines.append(f"{name}\t{color} {shape}")
    (folder / "captions.tsv").write_text("\n".join(lines) + "\n")
