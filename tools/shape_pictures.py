"""Pictures of two shapes with captions, such as "a red circle left of a blue square".

    python -m tools.shape_pictures shapes

Writes the folders train, validation and test, each with pictures and captions.tsv. A caption is in one
of the parts only, decided by a hash: each test caption is a new combination of known words."""

from __future__ import annotations

import argparse
import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations, product
from pathlib import Path

from PIL import Image, ImageDraw

SIZE = 32  # pixels of a picture
SCALE = 4  # pixels of a drawing for each pixel of a picture
COLORS = {
    "red": (214, 40, 40),
    "green": (46, 140, 64),
    "blue": (36, 84, 200),
    "yellow": (240, 200, 40),
    "purple": (140, 60, 170),
    "black": (30, 30, 30),
}
SHAPES = ("circle", "square", "triangle", "cross")
RELATIONS = ("left of", "above")
RADII = (4.0, 5.5)  # of a shape, smallest and largest
OFFSET = 3.0  # of the centers across the direction of the relation
MARGIN = 1.0
HELD_OUT = {"validation": 10, "test": 10}  # percent of the captions


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Two different shapes with colors, the first left of the second or above it."""

    first: tuple[str, str]  # color, shape
    second: tuple[str, str]
    relation: str

    @property
    def caption(self) -> str:
        return f"a {' '.join(self.first)} {self.relation} a {' '.join(self.second)}"


def list_scenes() -> Iterator[Scene]:
    """Yield every scene."""
    for relation in RELATIONS:
        for first, second in permutations(product(COLORS, SHAPES), 2):
            yield Scene(first=first, second=second, relation=relation)


def choose_split(caption: str) -> str:
    """Return train, validation or test, by a hash of the caption."""
    percent = int.from_bytes(hashlib.sha256(caption.encode()).digest()[:8]) % 100
    for split, share in HELD_OUT.items():
        if percent < share:
            return split
        percent -= share
    return "train"


def draw_scene(scene: Scene, rng: random.Random) -> Image.Image:
    """Draw a scene at random places."""
    picture = Image.new("RGB", (SIZE * SCALE, SIZE * SCALE), "white")
    draw = ImageDraw.Draw(picture)
    middle = SIZE / 2
    across = rng.uniform(middle - 8, middle + 8)
    for (color, shape), low, high in (
        (scene.first, 0.0, middle),
        (scene.second, middle, float(SIZE)),
    ):
        radius = rng.uniform(*RADII)
        along = rng.uniform(low + radius + MARGIN, high - radius - MARGIN)
        side = min(max(across + rng.uniform(-OFFSET, OFFSET), radius), SIZE - radius)
        x, y = (along, side) if scene.relation == "left of" else (side, along)
        draw_shape(draw, shape, x * SCALE, y * SCALE, radius * SCALE, COLORS[color])
    return picture.resize((SIZE, SIZE), Image.Resampling.BOX)


def draw_shape(
    draw: ImageDraw.ImageDraw, shape: str, x: float, y: float, r: float, color: tuple[int, int, int]
) -> None:
    """Draw a shape in a circle of radius `r` about a point."""
    match shape:
        case "circle":
            draw.ellipse((x - r, y - r, x + r, y + r), fill=color)
        case "square":
            draw.rectangle((x - 0.85 * r, y - 0.85 * r, x + 0.85 * r, y + 0.85 * r), fill=color)
        case "triangle":
            corners = (x, y - r), (x + r, y + 0.8 * r), (x - r, y + 0.8 * r)
            draw.polygon(corners, fill=color)
        case "cross":
            draw.rectangle((x - r, y - 0.35 * r, x + r, y + 0.35 * r), fill=color)
            draw.rectangle((x - 0.35 * r, y - r, x + 0.35 * r, y + r), fill=color)
        case _:
            raise ValueError(f"shape {shape!r}, expected one of {', '.join(SHAPES)}")


def write_pictures(folder: Path, split: str, count: int, seed: int) -> None:
    """Write pictures of the scenes of a part, and their captions."""
    scenes = [scene for scene in list_scenes() if choose_split(scene.caption) == split]
    rng = random.Random(f"{split} {seed}")
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["image\tcaption\n"]
    for number in range(count):
        scene = rng.choice(scenes)
        name = f"{number:05}.png"
        draw_scene(scene, rng).save(folder / name)
        lines.append(f"{name}\t{scene.caption}\n")
    (folder / "captions.tsv").write_text("".join(lines), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument(
        "--pictures", type=int, nargs=3, default=(8_000, 400, 400), help="of each part"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for split, count in zip(("train", *HELD_OUT), args.pictures, strict=True):
        write_pictures(args.out / split, split, count, args.seed)
        print(f"{args.out / split}: {count:,} pictures")


if __name__ == "__main__":
    main()
