"""Translation experiments: models of equal size, every family and selection trains, alignments."""

import lzma
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.batch import Batch, Inputs
from qkv.experiments import find_experiment
from qkv.experiments.corpus import load_corpus
from qkv.experiments.experiment import Cell, merge_settings, read_experiment
from qkv.experiments.measures import CellContext, load_measure
from qkv.experiments.measures.translation import is_aligned, write_alignment
from qkv.experiments.table import Measurement
from qkv.experiments.translation import Translator, train_translator
from qkv.model.build import build
from qkv.tasks.alignment import Alignment, TextSpan

NOUNS = {"car": "voiture", "cat": "chat", "house": "maison", "table": "table"}
ADJECTIVES = {"red": "rouge", "old": "vieux", "black": "noir", "big": "grand", "new": "neuf"}
TINY_TRAIN = {"steps": 2, "warmup_steps": 0, "precision": "fp32"}
TINY: dict[str, Any] = {
    "vocab_size": 100,
    "max_pairs": 3,
    "batch_tokens": 64,
    "edges": [10, 20],
    "rows": 2,
    "test_fraction": 0.3,
    "num_pictures": 1,
    "train": TINY_TRAIN,
}
TINY_HEADS = {**TINY, "model": {"width": 16, "depth": 1, "decoder_depth": 1}}
del TINY_HEADS["edges"], TINY_HEADS["num_pictures"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines = [
        f"I see {number} {adjective} {noun}.\tJe vois {number} {french_noun} {french_adjective}."
        for number in range(9)
        for noun, french_noun in NOUNS.items()
        for adjective, french_adjective in ADJECTIVES.items()
    ]
    folder = tmp_path_factory.mktemp("data")
    (folder / "fra-eng.tsv.xz").write_bytes(lzma.compress("\n".join(lines).encode()))
    return folder


def build_context(
    data: Path, folder: Path, name: str, seed: int = 0, variant: str = ""
) -> CellContext:
    return CellContext(
        seed=seed,
        device="cpu",
        data=data,
        scratch=folder,
        results=folder / "results",
        name=name,
        variant=variant,
        report=lambda line: None,
    )


def list_cells(name: str, measure: str) -> list[Cell]:
    cells = read_experiment(find_experiment(name), is_reduced=True).cells
    return [cell for cell in cells if cell.measure == measure]


def run_cell(cell: Cell, data: Path, folder: Path, settings: dict[str, Any]) -> Measurement:
    context = build_context(data, folder, cell.name, cell.seed, cell.variant)
    return load_measure(cell.measure)(context, **merge_settings(cell.settings, settings))


@pytest.mark.parametrize(
    "cell",
    [*list_cells("sentence-length", "translation"), *list_cells("selection", "translation")[1:4]],
    ids=lambda cell: cell.coordinates["variant"],
)
def test_a_model_is_trained_and_scored_by_length(cell: Cell, data: Path, tmp_path: Path) -> None:
    pytest.importorskip("sacrebleu")
    phrase = cell.settings["phrases"][0]
    measurement = run_cell(cell, data, tmp_path, TINY | {"phrases": [phrase]})
    assert [point["words"] for point in measurement.points] == [10, 20]
    assert all(0 <= point["bleu"] <= 100 for point in measurement.points)
    assert all(4 < point["loss"] < 6 for point in measurement.points), "log(100) is 4.6"
    has_attention = "Cho" not in cell.name and "Sutskever" not in cell.name
    assert ("aligned" in measurement.metrics) == has_attention
    assert len(list((tmp_path / "results").glob("*-alignment-0.svg"))) == has_attention


@pytest.mark.parametrize(
    ("variant", "name"),
    [
        ("attention (Luong)", "attention-luong-alignment-1.svg"),
        ("dense, stored", "dense-stored-alignment-1.svg"),
        ("", "alignment-1.svg"),
    ],
)
def test_a_picture_has_the_name_of_its_variant(
    variant: str, name: str, data: Path, tmp_path: Path
) -> None:
    words = (TextSpan("le", 0, 2), TextSpan("chat", 3, 7))
    alignment = Alignment(words, words, ((1.0, 0.0), (0.0, 1.0)))
    context = build_context(data, tmp_path, "a cell", variant=variant)
    write_alignment(context, alignment, "alignment-1")
    assert [path.name for path in (tmp_path / "results").iterdir()] == [name]


def test_the_models_of_sentence_length_have_equal_numbers_of_parameters() -> None:
    cells = read_experiment(find_experiment("sentence-length")).cells
    counts = {}
    for cell in cells:
        arguments = dict(cell.settings["model"])
        vocab_size = cell.settings["vocab_size"]
        if cell.seed == 0:
            with torch.device("meta"):
                model = build(
                    arguments.pop("family"), vocab_size=vocab_size, device="cpu", **arguments
                )
            counts[cell.name] = sum(parameter.numel() for parameter in model.net.parameters())
    assert len(counts) == 6
    mean = sum(counts.values()) / len(counts)
    assert all(abs(count / mean - 1) < 0.03 for count in counts.values()), counts


@pytest.fixture(scope="module")
def translator(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Translator:
    corpus = load_corpus(data / "fra-eng.tsv.xz", vocab_size=100, test_fraction=0.2)
    return train_translator(
        build_context(data, tmp_path_factory.mktemp("translator"), "translator"),
        corpus,
        model=dict(
            family="bahdanau", width=32, embedding_width=32, maxout_width=32, attention_width=32,
            tie_embeddings=True, share_embeddings=True,
        ),
        train=dict(steps=8, lr=1e-2, warmup_steps=1, weight_decay=0.0, grad_clip=1.0),
        objective={},
        max_pairs=1,
        batch_tokens=512,
    )  # fmt: skip


def test_training_lowers_the_loss_and_batches_do_not_change_it(translator: Translator) -> None:
    pairs = translator.corpus.test
    losses = [translator.compute_loss(translator.build_batches(pairs, n)) for n in (20, 512)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0] < 4.4, "log(100) is 4.6"


@torch.no_grad()
def test_translations_are_those_of_the_plain_network(translator: Translator) -> None:
    source = translator.corpus.tokenizer.encode("Je vois 3 voiture rouge.")
    start = translator.model.args["decoder_start_token_id"]
    target = [start]
    for _ in range(6):
        batch = Batch(
            encoder=Inputs.create(torch.tensor([source])),
            decoder=Inputs.create(torch.tensor([target])),
        )
        target.append(int(translator.net(batch)["logits"][0, -1].argmax()))
        if target[-1] == translator.corpus.eos_token_id:
            break
    assert translator.translate_ids([source], 6) == [target[1:]]


def test_an_alignment_has_a_row_for_each_word_of_the_translation(translator: Translator) -> None:
    reference = translator.align("Je vois 3 voiture rouge.", "I see 3 red car.")
    assert [span.text for span in reference.source] == ["Je", "vois", "3", "voiture", "rouge", "."]
    assert [span.text for span in reference.target] == ["I", "see", "3", "red", "car", "."]
    assert all(sum(row) <= 1.001 for row in reference.weights)
    generated = translator.align("Je vois 3 voiture rouge.")
    (text,) = translator.translate(["Je vois 3 voiture rouge."], 4 * 8)
    assert generated.source == reference.source
    assert "".join(span.text for span in generated.target) == text.replace(" ", "")


def test_a_word_is_aligned_if_its_largest_weight_is_on_the_source_word() -> None:
    source = (TextSpan("voiture", 0, 7), TextSpan("rouge", 8, 13))
    target = (TextSpan("red", 0, 3), TextSpan("car", 4, 7))
    alignment = Alignment(source, target, ((0.2, 0.8), (0.6, 0.4)))
    assert is_aligned(alignment, "red", "rouge")
    assert is_aligned(alignment, "car", "voiture")
    assert not is_aligned(alignment, "car", "rouge")
    assert not is_aligned(alignment, "truck", "voiture")
