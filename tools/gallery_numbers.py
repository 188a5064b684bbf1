"""Numbers of docs/gallery.md, measured on its models: `python -m tools.gallery FOLDER --numbers`."""

from __future__ import annotations

import random
import string
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

import qkv
from qkv.tasks.write.caption import CaptionTask
from tools.shape_pictures import COLORS, SHAPES

NUM_STRINGS = 100
STRING_LENGTH = 20  # different letters
SEGMENT_LENGTH = 32  # of the Transformer-XL
NUM_SEGMENTS = 200
VALIDATION_SHARE = 0.1
NEAR_WHITE = 40  # the largest difference of a pixel of the background from white
QUERY = "watch"
# Sentences of one form: in all of them, "watch" is the second word and a noun is three words after it.
VERB_SENTENCES = """
    They watch all the birds. We watch only good films. You watch these old films.
    People watch many football games. I watch only the news. Children watch so many cartoons.
    They watch the other team. We watch the small boats. You watch a football game.
    I watch my younger brother. Tourists watch the huge whales. Cats watch the small birds.
    They watch every single match. We watch our two children. Students watch a short video.
    You watch the empty road. Parents watch the school play. They watch some old movies.
    I watch the rising sun. Fans watch the final game.
"""
NOUN_SENTENCES = """
    The watch has a strap. My watch lost its strap. Her watch shows the time.
    This watch needs a battery. The watch cost a fortune. His watch has two hands.
    Your watch has a scratch. A watch makes a present. The watch tells the time.
    My watch has a display. Her watch has a date. This watch shows the date.
    His watch needs a repair. Their watch won a prize. Our watch has an alarm.
    That watch needs new glass. The watch lost one hand. My watch has a chain.
    Your watch shows the hour. The watch has gold numbers.
"""


def print_numbers(folder: Path) -> None:
    """Print all numbers."""
    for name in ("builtin:complete", str(folder / "runs" / "induction-head" / "best")):
        print_induction_scores(name)
    print_sense_heads(str(folder / "minilm"))
    print_memory_shares(str(folder / "runs" / "transformer-xl" / "best"), folder)
    for name in ("soft", "hard"):
        print_caption_scores(folder / "runs" / f"shapes-{name}" / "best", folder)


@torch.no_grad()
def print_induction_scores(name: str) -> None:
    """Print the mean weights of each head on the token before the query, and on the token after its
    previous occurrence, in strings of random letters that occur twice."""
    model = qkv.load(name)
    assert model.tokenizer is not None
    rng = random.Random(0)
    texts = ["".join(rng.sample(string.ascii_lowercase, STRING_LENGTH)) for _ in range(NUM_STRINGS)]
    input_ids = torch.tensor([model.tokenizer.encode(text * 2) for text in texts])
    queries = torch.arange(STRING_LENGTH, 2 * STRING_LENGTH)
    with qkv.look(model) as attention_weights:
        logits = model(input_ids).logits
    for path, weights in attention_weights.items():
        for label, keys in (("previous", queries - 1), ("induction", queries - STRING_LENGTH + 1)):
            scores = weights[:, :, queries, keys].mean((0, 2))
            print(f"{name} {path} {label} {format_numbers(scores)}")
    is_right = logits[:, queries[:-1]].argmax(-1) == input_ids[:, queries[1:]]
    print(f"{name} accuracy in the second half: {is_right.float().mean():.3f}")


@torch.no_grad()
def print_sense_heads(name: str) -> None:
    """Print the heads in which the weights of a word differ most between its senses: chosen on the
    first half of the sentences, measured on the second."""
    model = qkv.load(name)
    assert model.tokenizer is not None
    senses = []
    for text in (VERB_SENTENCES, NOUN_SENTENCES):
        rows = []
        for sentence in text.replace("\n", " ").split("."):
            if sentence.strip():
                ids = model.tokenizer.encode(f"{sentence.strip()}.")
                with qkv.look(model) as attention_weights:
                    model(torch.tensor([ids]))
                place = model.tokenizer.convert_ids_to_tokens(ids).index(QUERY)
                assert (place, len(ids)) == (2, 8), sentence
                rows.append(
                    torch.cat([weights[:, :, place] for weights in attention_weights.values()])
                )
        senses.append(torch.stack(rows))  # (sentences, layers, heads, keys)
    half = len(senses[0]) // 2
    difference = senses[0][:half].mean(0) - senses[1][:half].mean(0)
    for label, key in (("word before", 1), ("noun three words after", 5)):
        for flat in difference[..., key].abs().flatten().topk(3).indices.tolist():
            layer, head = divmod(flat, difference.shape[1])
            verb, noun = (sense[half:, layer, head, key] for sense in senses)
            print(
                f"layer {layer} head {head} to the {label}: verb {verb.mean():.2f} "
                f"({verb.min():.2f} to {verb.max():.2f}), noun {noun.mean():.2f} "
                f"({noun.min():.2f} to {noun.max():.2f})"
            )


@torch.no_grad()
def print_memory_shares(name: str, folder: Path) -> None:
    """Print the share of the weight in memory, by layer and head, and the loss with and without it."""
    model = qkv.load(name)
    assert model.tokenizer is not None
    text = (folder / "shakespeare.txt").read_text(encoding="utf-8")
    ids = model.tokenizer.encode(text[-int(len(text) * VALIDATION_SHARE) :])
    rows = torch.tensor(ids[: NUM_SEGMENTS * 3 * SEGMENT_LENGTH]).view(
        NUM_SEGMENTS, 3, SEGMENT_LENGTH
    )
    mems = None
    for segment in (0, 1):  # the memory of the second segment reaches into the first
        mems = model(rows[:, segment], mems=mems).mems
    last = rows[:, 2]
    with qkv.look(model) as attention_weights:
        logits = model(last, mems=mems).logits
    for path, weights in attention_weights.items():
        memory = weights[..., : weights.shape[-1] - SEGMENT_LENGTH].sum(-1)  # (B, H, T)
        print(
            f"{path} in memory: {memory.mean():.2f}, by head {format_numbers(memory.mean((0, 2)))}, "
            f"first 8 queries {memory[..., :8].mean():.2f}, last 8 {memory[..., -8:].mean():.2f}"
        )
    print(f"loss with memory {format_losses(logits, last)}")
    print(f"loss without {format_losses(model(last).logits, last)}")


def format_losses(logits: Tensor, ids: Tensor) -> str:
    """Return the mean loss of all next tokens, and of the first eight."""
    losses = -logits.log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    return f"{losses.mean():.3f}, of the first 8 characters {losses[:, :8].mean():.3f}"


def print_caption_scores(path: Path, folder: Path) -> None:
    """Print exact match on the test pictures, and how much of the weight of a word that names an
    object is on its patches or beside them."""
    model = qkv.load(path)
    task = CaptionTask(model=model, return_attention=True)
    test = folder / "data" / "shapes" / "test"
    rows = [
        line.split("\t")
        for line in (test / "captions.tsv").read_text(encoding="utf-8").splitlines()[1:]
    ]
    results = task.map([test / name for name, _ in rows])
    num_right = 0
    shares: dict[str, list[float]] = {"color": [], "shape": []}
    chances: list[float] = []
    for (name, caption), result in zip(rows, results, strict=True):
        if result.text != caption:
            continue
        num_right += 1
        pixels = np.asarray(Image.open(test / name).convert("RGB"))
        named_colors = [word for word in result.tokens if word in COLORS]
        if len({*named_colors}) == 1:
            continue  # two objects of one color cannot be told apart by it
        color = ""
        for token, weights in zip(result.tokens, result.attention, strict=True):
            color = token if token in COLORS else color
            if token in COLORS or token in SHAPES:
                side = round(len(weights) ** 0.5)
                patches = find_patches(pixels, color, side)
                kind = "color" if token in COLORS else "shape"
                shares[kind].append(
                    float((np.asarray(weights).reshape(side, side) * patches).sum())
                )
                chances.append(float(patches.mean()))
    means = ", ".join(f"{kind} words {np.mean(values):.2f}" for kind, values in shares.items())
    print(f"{path.parent.name}: exact match {num_right} of {len(rows)}; on the object: {means}; "
          f"its patches are {np.mean(chances):.2f} of the picture")  # fmt: skip


def find_patches(pixels: NDArray[np.uint8], color: str, side: int) -> NDArray[np.bool_]:
    """Return the patches (rows, columns) with pixels nearest to a color, and those beside them."""
    values = pixels.astype(int)
    distances = np.stack([np.abs(values - np.array(rgb)).sum(-1) for rgb in COLORS.values()])
    is_object = (distances.argmin(0) == [*COLORS].index(color)) & (
        values.min(-1) < 255 - NEAR_WHITE
    )
    size = len(values) // side
    patches = (
        is_object.reshape(side, size, side, size).sum((1, 3)) >= size
    )  # a few pixels are edges
    padded = np.pad(patches, 1)
    shifts = [padded[i : i + side, j : j + side] for i in range(3) for j in range(3)]
    near: NDArray[np.bool_] = np.any(shifts, axis=0)
    return near


def format_numbers(values: Tensor | Sequence[float]) -> str:
    return " ".join(f"{float(value):.2f}" for value in values)
