"""Drawings of a text-to-image model: samples of all names of a folder, scores by CLIP, a sheet.

    python -m tools.drawings sample MODEL emoji/test drawings.npz --guidance-scale 2
    python -m tools.drawings score drawings.npz CLIP emoji/test
    python -m tools.drawings sheet MODEL emoji/train sheet.png "red heart" "green apple"

`score` is the share of images whose own name is among the best 1 and 5 of all names of the folder, by CLIP
(recall). It is computed for the drawings, for the drawings with the names of others (the mean of 20 random
derangements), for the pictures of the folder, and for these after the image tokenizer, the most that drawings
can reach. `sheet` has a row for each name: the samples, and the training picture that is most similar to the
first sample, which shows whether it was memorized."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

import qkv
from qkv.data.encode.text_to_image import read_record_images
from qkv.data.read.corpus import Corpus
from qkv.image_tokenizer import ImageTokenizer, Pixels

NUM_DERANGEMENTS = 20
SCALE = 3  # of pictures in a sheet
MARGIN = 4  # pixels


def read_pictures(folder: Path, image_tokenizer: ImageTokenizer) -> tuple[list[str], Pixels]:
    """Return the captions and pictures of a folder."""
    records = [*Corpus(str(folder))]
    captions = [record.get_text("caption") for record in records]
    images = read_record_images(records, image_tokenizer.image_size, image_tokenizer.num_channels)
    return captions, np.stack([*images])


def sample(options: argparse.Namespace) -> None:
    """Draw every different name of a folder, and write the names, codes and codebook."""
    captions = sorted({record.get_text("caption") for record in Corpus(str(options.folder))})
    names = ("temperature", "top_k", "top_p", "guidance_scale", "num_return_sequences", "seed")
    settings = {name: getattr(options, name) for name in names}
    chosen = {name: value for name, value in settings.items() if value is not None}
    task: Any = qkv.task("draw", options.model, overflow="truncate", **chosen)
    drawings = task.map(captions, batch_tokens=options.batch_tokens)
    image_tokenizer = task.image_tokenizer
    np.savez_compressed(
        options.out,
        captions=np.array(captions),
        codes=np.array([[item.codes for item in row.candidates] for row in drawings], np.uint16),
        codebook=image_tokenizer.codebook,
        sizes=np.array([image_tokenizer.image_size, image_tokenizer.patch_size]),
        settings=np.array(json.dumps(chosen)),
    )
    print(f"wrote {options.out}: {len(captions)} names, {settings}")


def load_drawings(path: Path) -> tuple[list[str], NDArray[np.int64], ImageTokenizer, str]:
    """Return names, codes (names, samples, codes), the image tokenizer and the settings of `sample`."""
    with np.load(path) as data:
        image_size, patch_size = data["sizes"].tolist()
        codebook = data["codebook"]
        image_tokenizer = ImageTokenizer(
            image_size=image_size,
            patch_size=patch_size,
            num_channels=codebook.shape[1] // patch_size**2,
            codebook=codebook,
        )
        captions = data["captions"].tolist()
        return captions, data["codes"].astype(np.int64), image_tokenizer, str(data["settings"])


def compute_recall(logits: NDArray[np.float32], targets: NDArray[np.int64]) -> dict[str, float]:
    """Return recall@1 and @5: the share of rows whose target is among the best columns."""
    own = np.take_along_axis(logits, targets[:, None], 1)
    ranks = (logits > own).sum(1)
    return {f"recall_{k}": float((ranks < k).mean()) for k in (1, 5)}


def derange(count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return a random permutation without fixed points."""
    while True:
        order = rng.permutation(count)
        if not (order == np.arange(count)).any():
            return order


def score(options: argparse.Namespace) -> None:
    """Print the recall of drawings, shuffled drawings, pictures and quantized pictures by CLIP."""
    captions, codes, image_tokenizer, settings = load_drawings(options.drawings)
    task: Any = qkv.task("match", options.clip, overflow="truncate")
    picture_captions, pictures = read_pictures(options.folder, image_tokenizer)

    def compute_logits(images: Pixels) -> NDArray[np.float32]:
        logits: NDArray[np.float32] = task.compute_logits_per_image(
            [Image.fromarray(image) for image in images], captions
        )
        return logits

    num_samples = codes.shape[1]
    drawing_logits = compute_logits(image_tokenizer.decode(codes.reshape(-1, codes.shape[2])))
    targets = np.arange(len(captions)).repeat(num_samples)
    rng = np.random.default_rng(0)
    shuffled = [
        compute_recall(drawing_logits, derange(len(captions), rng)[targets])
        for _ in range(NUM_DERANGEMENTS)
    ]
    picture_targets = np.array([captions.index(caption) for caption in picture_captions])
    quantized = image_tokenizer.decode(image_tokenizer.encode(pictures))
    results = {
        "settings": json.loads(settings),
        "names": len(captions),
        "samples": num_samples,
        "chance": {f"recall_{k}": k / len(captions) for k in (1, 5)},
        "drawings": compute_recall(drawing_logits, targets),
        "shuffled": {key: float(np.mean([row[key] for row in shuffled])) for key in shuffled[0]},
        "quantized_pictures": compute_recall(compute_logits(quantized), picture_targets),
        "pictures": compute_recall(compute_logits(pictures), picture_targets),
        "psnr": compute_psnr(quantized, pictures),
    }
    print(json.dumps(results, indent=2))
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


def compute_psnr(images: Pixels, references: Pixels) -> float:
    """Return the peak signal-to-noise ratio in decibels."""
    error = np.square(images.astype(np.float64) - references).mean()
    return float(10 * np.log10(255**2 / error)) if error else float("inf")


def find_most_similar(image: Pixels, pictures: Pixels) -> int:
    """Return the index of the picture with the smallest squared difference."""
    differences = pictures.astype(np.float32) - image
    return int(np.square(differences).sum((1, 2, 3)).argmin())


def sheet(options: argparse.Namespace) -> None:
    """Write a sheet of samples."""
    task: Any = qkv.task("draw", options.model, overflow="truncate")
    settings = {"num_return_sequences": options.num_return_sequences, "seed": options.seed}
    if options.guidance_scale is not None:
        settings["guidance_scale"] = options.guidance_scale
    drawings = task.map(options.names, **settings)
    captions, pictures = read_pictures(options.folder, task.image_tokenizer)
    side = SCALE * task.image_tokenizer.image_size + MARGIN
    label_width = 8 * max(map(len, options.names)) + 2 * MARGIN
    width = label_width + (options.num_return_sequences + 1) * side + 24 * MARGIN
    page = Image.new("RGB", (width, len(drawings) * side + MARGIN), "white")
    canvas = ImageDraw.Draw(page)
    for row, drawing in enumerate(drawings):
        top = MARGIN + row * side
        canvas.text((MARGIN, top + side // 2 - 8), drawing.text, fill="black")
        for column, candidate in enumerate(drawing.candidates):
            page.paste(candidate.to_image(SCALE), (label_width + column * side, top))
        index = find_most_similar(drawing.pixels, pictures)
        left = label_width + options.num_return_sequences * side + 2 * MARGIN
        page.paste(Image.fromarray(pictures[index].repeat(SCALE, 0).repeat(SCALE, 1)), (left, top))
        canvas.text((left + side, top + side // 2 - 8), captions[index][:14], fill="gray")
    page.save(options.out)
    print(f"wrote {options.out}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("sample")
    command.set_defaults(run=sample)
    command.add_argument("model", type=Path)
    command.add_argument("folder", type=Path)
    command.add_argument("out", type=Path)
    command.add_argument("--num-return-sequences", type=int, default=4)
    command.add_argument("--temperature", type=float)
    command.add_argument("--top-k", type=int)
    command.add_argument("--top-p", type=float)
    command.add_argument("--guidance-scale", type=float)
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--batch-tokens", type=int, default=65536)
    command = commands.add_parser("score")
    command.set_defaults(run=score)
    command.add_argument("drawings", type=Path)
    command.add_argument("clip", type=Path)
    command.add_argument("folder", type=Path)
    command.add_argument("--json", type=Path)
    command = commands.add_parser("sheet")
    command.set_defaults(run=sheet)
    command.add_argument("model", type=Path)
    command.add_argument("folder", type=Path)
    command.add_argument("out", type=Path)
    command.add_argument("names", nargs="+")
    command.add_argument("--num-return-sequences", type=int, default=4)
    command.add_argument("--guidance-scale", type=float)
    command.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
