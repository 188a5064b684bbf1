"""Clips of drifting digits, for frame classification, from the idx files of MNIST.

    python -m tools.digit_clips MNIST OUT [--clips 20000 1000 1000] [--seed 0] [--single-frames]

MNIST contains train-images-idx3-ubyte, t10k-images-idx3-ubyte and their labels. The output:

OUT/{train,validation,test}.npz    frames (N, 20, 36, 36) and labels (N, 20), the digit seen in each frame
OUT/sample-N.gif                   the first clips of the test data, and sample-N.txt with their labels

A digit drifts over the canvas and bounces off its borders. After at least three frames it changes to another
digit, at a random time; the new digit goes on from the same place. Every frame has noise, and in half of
them a rectangle of one gray level hides a part of the digit: in a frame alone many digits are ambiguous, and
the frames before and after tell which one it is. The digits of the test clips are those of MNIST's test data;
those of the validation clips are the last 5,000 of its training data, which no training clip contains."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from qkv.data.read.clips import write_clips
from qkv.data.read.corpus import Corpus

NUM_FRAMES = 20
CANVAS = 36  # pixels per side
MIN_STAY = 3  # frames before a digit may change
CHANGE_PROB = 0.2  # of each later frame
MAX_SPEED = 2.0  # pixels per frame
NOISE_STD = 30.0  # levels
HIDDEN_PROB = 0.5  # of a rectangle in a frame
HIDDEN_SIDES = (10, 20)  # range of the sides of a rectangle, in pixels
NUM_VALIDATION_DIGITS = 5000
NUM_SAMPLES = 3

Digits = tuple[NDArray[np.uint8], NDArray[np.int64]]  # images (N, 28, 28), labels (N,)


def read_digits(path: Path) -> Digits:
    """Read images and labels."""
    records = [*Corpus(path)]
    images = np.stack([np.asarray(record["image"]) for record in records])
    return images, np.array([int(record.get_text("label")) for record in records])


def draw_clips(digits: Digits, count: int, rng: np.random.Generator) -> Digits:
    """Return clips (count, frames, height, width) and the digit of every frame (count, frames)."""
    frames = np.empty((count, NUM_FRAMES, CANVAS, CANVAS), np.uint8)
    labels = np.empty((count, NUM_FRAMES), np.int64)
    for i in range(count):
        frames[i], labels[i] = draw_clip(digits, rng)
    return frames, labels


def draw_clip(digits: Digits, rng: np.random.Generator) -> Digits:
    """Return the frames and labels of one clip."""
    images, image_labels = digits
    size = images.shape[1]
    room = CANVAS - size
    place = rng.uniform(0, room, 2)
    speed = rng.uniform(-MAX_SPEED, MAX_SPEED, 2)
    digit = int(rng.integers(len(images)))
    age = 0
    canvas = np.zeros((NUM_FRAMES, CANVAS, CANVAS), np.float32)
    labels = np.empty(NUM_FRAMES, np.int64)
    for t in range(NUM_FRAMES):
        if age >= MIN_STAY and rng.random() < CHANGE_PROB:
            label = image_labels[digit]
            while image_labels[digit] == label:
                digit = int(rng.integers(len(images)))
            age = 0
        age += 1
        top, left = np.rint(place).astype(int)
        canvas[t, top : top + size, left : left + size] = images[digit]
        labels[t] = image_labels[digit]
        place += speed
        speed = np.where((place < 0) | (place > room), -speed, speed)
        place = np.clip(place, 0, room)
    return add_noise(canvas, rng), labels


def add_noise(frames: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Hide a part of some frames, and add noise to all."""
    for frame in frames:
        if rng.random() < HIDDEN_PROB:
            height, width = rng.integers(*HIDDEN_SIDES, size=2, endpoint=True)
            top, left = rng.integers(0, CANVAS - height + 1), rng.integers(0, CANVAS - width + 1)
            frame[top : top + height, left : left + width] = rng.uniform(0, 255)
    noisy = frames + NOISE_STD * rng.standard_normal(frames.shape, dtype=np.float32)
    return np.clip(np.rint(noisy), 0, 255).astype(np.uint8)


def save_sample(
    folder: Path, number: int, frames: NDArray[np.uint8], labels: NDArray[np.int64]
) -> None:
    """Save a clip as an animated image, four pixels for each, and its labels as a line."""
    images = [Image.fromarray(frame.repeat(4, 0).repeat(4, 1)) for frame in frames]
    path = folder / f"sample-{number}.gif"
    images[0].save(path, save_all=True, append_images=images[1:], duration=200, loop=0)
    path.with_suffix(".txt").write_text(" ".join(map(str, labels)) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mnist", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--clips", type=int, nargs=3, default=(20_000, 1_000, 1_000))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--single-frames", action="store_true", help="each frame as a clip of its own"
    )
    args = parser.parse_args()
    images, labels = read_digits(args.mnist / "train-images-idx3-ubyte")
    split = len(images) - min(NUM_VALIDATION_DIGITS, len(images) // 10)
    parts = {
        "train": (images[:split], labels[:split]),
        "validation": (images[split:], labels[split:]),
        "test": read_digits(args.mnist / "t10k-images-idx3-ubyte"),
    }
    args.out.mkdir(parents=True, exist_ok=True)
    for number, ((name, digits), count) in enumerate(zip(parts.items(), args.clips, strict=True)):
        frames, frame_labels = draw_clips(digits, count, np.random.default_rng((args.seed, number)))
        if args.single_frames:
            frames = frames.reshape(-1, 1, CANVAS, CANVAS)
            frame_labels = frame_labels.reshape(-1, 1)
        write_clips(args.out / f"{name}.npz", frames, frame_labels)
        print(f"{name}: {len(frames):,} clips of {frames.shape[1]} frames")
        if name == "test":
            for i in range(min(NUM_SAMPLES, len(frames))):
                save_sample(args.out, i, frames[i], frame_labels[i])


if __name__ == "__main__":
    main()
