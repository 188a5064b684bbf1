"""Scores of captions and of CLIP on the names of emoji that are not in the training data.

    python tools/emoji_scores.py DATA [--clip FOLDER ...] [--captions NAME=FILE.jsonl ...]

DATA is written by tools/emoji_pictures.py, FOLDER is a CLIP model, and FILE the output of
`qkv caption --json DATA/test/*.png`. NAME may occur several times: its scores are means over files.

The baseline is the nearest training picture, by pixels and by the image features of the first CLIP: its
name is the caption, and test names are ranked by their chrF with it. Recall counts the pictures whose name
is among the k nearest of all test names, and the names of which a picture is among the k nearest of all
test pictures."""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.chrf import CHRF

import qkv
from qkv.data.encode.images import ImageProcessor
from qkv.data.read.image_folder import read_image_folder
from qkv.train.evaluate.metrics import corpus_chrf, exact_match_score
from qkv.train.evaluate.retrieval_evaluator import compute_recalls, rank_groups

Array = NDArray[np.float32]
Scores = dict[str, float]


class Pictures(NamedTuple):
    """The pictures of a split and their names."""

    paths: list[str]
    names: list[str]

    @staticmethod
    def read(folder: Path) -> Pictures:
        records = [*read_image_folder(folder, "image", "utf-8")]
        return Pictures(
            [record.get_text("image") for record in records],
            [record.get_text("caption") for record in records],
        )


def read_groups(data: Path) -> dict[str, str]:
    """Return the group of every name."""
    _, *lines = (data / "names.tsv").read_text("utf-8").splitlines()
    rows = (line.split("\t") for line in lines)
    return {name: group for name, _, group, _ in rows}


def score_captions(captions: Sequence[str], pictures: Pictures, groups: Mapping[str, str]) -> Any:
    """Return exact match and chrF of captions, of all pictures and by group."""
    rows: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for caption, name in zip(captions, pictures.names, strict=True):
        rows["all"].append((caption, name))
        rows[groups[name]].append((caption, name))
    return {
        group: {
            "pictures": len(pairs),
            "exact_match": float(np.mean([exact_match_score(a, [b]) for a, b in pairs])),
            "chrf": corpus_chrf(*map(list, zip(*pairs, strict=True))).value,
        }
        for group, pairs in rows.items()
    }


def embed_pixels(paths: Sequence[str]) -> Array:
    """Return the pixel values of pictures as vectors."""
    processor = ImageProcessor.for_size(32)
    return np.stack([processor(path).ravel() for path in paths])


def find_nearest(queries: Array, candidates: Array) -> NDArray[np.int64]:
    """Return the index of the nearest candidate of every query, by Euclidean distance."""
    return np.argmax(2 * queries @ candidates.T - (candidates**2).sum(1), axis=1)


def compare_names(names: Sequence[str], candidates: Sequence[str]) -> Array:
    """Return the chrF of every name with every candidate."""
    chrf = CHRF()
    unique = {
        name: [chrf.sentence_score(name, [other]).score for other in candidates]
        for name in {*names}
    }
    return np.array([unique[name] for name in names], np.float32)


def rank_names(scores: Array, pictures: Pictures, names: Sequence[str]) -> Scores:
    """Return recalls, given scores (pictures, names); ties are broken at random."""
    noise = np.random.default_rng(0).random(scores.shape, np.float32) * 1e-4
    groups = np.array([names.index(name) for name in pictures.names])
    identity = np.eye(len(names), dtype=np.float32)
    columns = np.arange(len(names))
    texts = rank_groups(scores + noise, groups, identity, columns)
    images = rank_groups(identity, columns, scores + noise, groups)
    return compute_recalls(texts, "text_") | compute_recalls(images, "image_")


def compute_chance(pictures: Pictures, names: Sequence[str]) -> Scores:
    """Return the recalls of random ranks, as the mean of many."""
    rng = np.random.default_rng(0)
    shape = (len(pictures.paths), len(names))
    trials = [rank_names(rng.random(shape, np.float32) * 100, pictures, names) for _ in range(50)]
    return {key: float(np.mean([trial[key] for trial in trials])) for key in trials[0]}


def average(results: Sequence[Any]) -> Any:
    """Return the means of numbers in equal nested dicts, and the spread of several."""
    if isinstance(results[0], dict):
        return {key: average([result[key] for result in results]) for key in results[0]}
    if len(results) == 1:
        return results[0]
    return {"mean": float(np.mean(results)), "min": min(results), "max": max(results)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Score captions and CLIP on unseen names.")
    parser.add_argument("data", type=Path)
    parser.add_argument("--clip", type=Path, nargs="*", default=[])
    parser.add_argument("--captions", nargs="*", default=[])
    args = parser.parse_args()
    train, test = (Pictures.read(args.data / split) for split in ("train", "test"))
    groups = read_groups(args.data)
    names = sorted({*test.names})
    known = {word for name in train.names for word in name.split()}
    composed = [name for name in names if {*name.split()} <= known]
    embedders: dict[str, Callable[[Sequence[str]], Array]] = {"pixels": embed_pixels}
    clips = [qkv.task("match", folder) for folder in args.clip]
    if clips:
        embedders["clip features"] = lambda paths: np.stack(
            [embedding.numpy() for embedding in clips[0].embed_images([*paths], 8192, False)]
        )
    report: dict[str, Any] = {
        "pictures": len(test.paths),
        "names": len(names),
        "names of known words": len(composed),
        "captions": {},
        "retrieval": {"chance": compute_chance(test, names)},
    }
    for kind, embed in embedders.items():
        nearest = find_nearest(embed(test.paths), embed(train.paths))
        captions = [train.names[index] for index in nearest]
        report["captions"][f"nearest picture by {kind}"] = score_captions(captions, test, groups)
        scores = compare_names(captions, names)
        report["retrieval"][f"nearest picture by {kind}"] = rank_names(scores, test, names)
    if clips:
        logits = [clip.compute_logits_per_image(test.paths, names) for clip in clips]
        report["retrieval"]["clip"] = average([rank_names(x, test, names) for x in logits])
    files: dict[str, list[Any]] = defaultdict(list)
    for argument in args.captions:
        name, _, path = argument.partition("=")
        lines = map(json.loads, Path(path).read_text("utf-8").splitlines())
        texts = {Path(line["image"]).name: line["text"] for line in lines}
        captions = [texts[Path(picture).name] for picture in test.paths]
        files[name].append(score_captions(captions, test, groups))
    report["captions"] |= {name: average(scores) for name, scores in files.items()}
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
