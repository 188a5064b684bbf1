"""Translation models trained from a recipe on sentence pairs, and their BLEU by sentence length."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import qkv
from qkv.experiments.measures import CellContext
from qkv.experiments.recipe_training import train_from_recipe
from qkv.experiments.table import Measurement
from qkv.experiments.training import count_parameters
from qkv.files import read_text_file
from qkv.model.model import Model
from qkv.staging import write_file
from qkv.tasks.write.translate import TranslateTask
from qkv.train.evaluate.metrics import corpus_bleu
from qkv.view.pictures import render_svg

TEST_FRACTION = 0.02  # of the distinct targets
SPLIT_SEED = 17  # the same split for every cell


class SentencePair(NamedTuple):
    source: str
    target: str


def measure_translation(
    context: CellContext,
    *,
    pairs: str,
    recipe: Mapping[str, Any],
    max_pairs: int = 1,
    num_train: int = 0,
    num_test: int = 100,
    length_edges: Sequence[int] = (),
    num_beams: int = 1,
    pictures: Sequence[str] = (),
) -> Measurement:
    """Train a translation model and measure BLEU on held-out sentences.

    `pairs` is a file with tab-separated target and source. `recipe` has the tables of a recipe. A row
    has from 1 to `max_pairs` pairs, joined; `num_train` rows are drawn (0: every pair once), and
    `num_test` of each number of pairs. Points are the BLEU of ranges of source lengths in words, up to
    each of `length_edges`. `pictures` are sources whose word alignment is drawn."""
    trained = train_translation(
        context,
        pairs=pairs,
        recipe=recipe,
        max_pairs=max_pairs,
        num_train=num_train,
        num_test=num_test,
    )
    model, test_rows = trained.model, trained.test_rows
    translations, decode_seconds = translate_rows(model, test_rows, num_beams)
    targets = [row.target for row in test_rows]
    metrics = {
        "bleu": corpus_bleu(translations, targets).value,
        "num_parameters": count_parameters(model.net),
        "decode_seconds": decode_seconds,
        **trained.metrics,
    }
    points = []
    lengths = [len(row.source.split()) for row in test_rows]
    for low, high in zip((0, *length_edges), length_edges, strict=False):
        chosen = [index for index, length in enumerate(lengths) if low < length <= high]
        if chosen:
            bleu = corpus_bleu([translations[i] for i in chosen], [targets[i] for i in chosen])
            points.append({"length": high, "length_bleu": bleu.value, "num_rows": len(chosen)})
    for number, text in enumerate(pictures):
        draw_alignment(context, model, text, f"{context.name}-{number}")
    return Measurement(metrics=metrics, points=tuple(points))


class TrainedTranslation(NamedTuple):
    """A trained model, the training pairs, the test rows, and metrics of the training."""

    model: Model
    train_pairs: list[SentencePair]
    test_rows: list[SentencePair]
    metrics: dict[str, Any]


def train_translation(
    context: CellContext,
    *,
    pairs: str,
    recipe: Mapping[str, Any],
    max_pairs: int,
    num_train: int,
    num_test: int,
) -> TrainedTranslation:
    """Train a translation model; the arguments are those of `measure_translation`."""
    train_pairs, test_pairs = read_pairs(context.find_data(pairs))
    rng = random.Random(context.seed)
    rows = train_pairs
    if num_train or max_pairs > 1:
        counts = [rng.randint(1, max_pairs) for _ in range(num_train or len(train_pairs))]
        rows = [join_pairs(rng.choices(train_pairs, k=count)) for count in counts]
    write_pairs(context.scratch / "train.tsv", rows)
    test_rng = random.Random(SPLIT_SEED)
    test_rows = [
        join_pairs(test_rng.sample(test_pairs, count))
        for count in range(1, max_pairs + 1)
        for _ in range(num_test)
    ]
    data = {"train": str(context.scratch / "train.tsv"), "column_names": ["source", "target"]}
    tables = {**recipe, "data": {**recipe.get("data", {}), **data}}
    start_time = time.perf_counter()
    model, metrics = train_from_recipe(context, tables)
    metrics["train_seconds"] = time.perf_counter() - start_time
    return TrainedTranslation(model, train_pairs, test_rows, metrics)


def read_pairs(path: Path) -> tuple[list[SentencePair], list[SentencePair]]:
    """Read tab-separated targets and sources, and hold out those of some targets.

    No source or target of the test pairs is in the training pairs; a target is tested once."""
    pairs = []
    for number, line in enumerate(read_text_file(path).splitlines(), start=1):
        columns = line.split("\t")
        if len(columns) < 2:
            raise ValueError(f"{path}: line {number} has no tab, expected a target and a source")
        pairs.append(SentencePair(source=columns[1], target=columns[0]))
    targets = sorted({pair.target for pair in pairs})
    random.Random(SPLIT_SEED).shuffle(targets)
    test_targets = set(targets[: max(1, int(len(targets) * TEST_FRACTION))])
    test = {pair.target: pair for pair in pairs if pair.target in test_targets}
    test_sources = {pair.source for pair in pairs if pair.target in test_targets}
    train = [
        pair
        for pair in pairs
        if pair.target not in test_targets and pair.source not in test_sources
    ]
    return train, list(test.values())


def join_pairs(pairs: Sequence[SentencePair]) -> SentencePair:
    return SentencePair(
        " ".join(pair.source for pair in pairs), " ".join(pair.target for pair in pairs)
    )


def write_pairs(path: Path, pairs: Sequence[SentencePair]) -> None:
    text = "".join(f"{pair.source}\t{pair.target}\n" for pair in pairs)
    path.write_text(text, encoding="utf-8")


def translate_rows(
    model: Model, rows: Sequence[SentencePair], num_beams: int
) -> tuple[list[str], float]:
    """Return the translations of the sources, and the seconds they took."""
    task = qkv.task("translate", model=model, num_beams=num_beams, max_new_tokens=200)
    start_time = time.perf_counter()
    texts = [result.text for result in task.map([row.source for row in rows])]
    return texts, time.perf_counter() - start_time


def draw_alignment(context: CellContext, model: Model, text: str, name: str) -> None:
    """Write the word alignment of a translation as an SVG file to the folder of results."""
    task = qkv.task("translate", model=model, num_beams=1, alignment_layer="mean")
    assert isinstance(task, TranslateTask)
    words = [alignment.merge_into_words() for alignment in task(text).alignments]
    context.results.mkdir(parents=True, exist_ok=True)
    with write_file(context.results / f"{name}.svg") as temporary:
        svg = render_svg("Word alignment of a translation", words, target_name="translation")
        temporary.write_text(svg, encoding="utf-8")
