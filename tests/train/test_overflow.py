"""Long texts in training: one test for each row and value of the table in docs/long-texts.md."""

from copy import copy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkv
from qkv.data.encode.encoder import EncodedRow, RecordEncoder
from qkv.data.encode.overflow import OVERFLOW_MODES
from qkv.data.read.record import Record
from qkv.data.store.prepare import prepare_shards
from qkv.text import Tokenizer
from qkv.train.config import TrainConfig
from qkv.train.objectives.context import SetupContext
from qkv.train.objectives.registry import OBJECTIVE_SPECS
from qkv.train.objectives.samplers import DataSplit
from qkv.train.recipe import DataConfig, ModelConfig, ObjectiveConfig, Recipe
from tests.support import tiny
from tests.support.long_texts import read_overflow_rows
from tests.support.objectives import VOCAB

ROWS = read_overflow_rows("Training")
SPLIT_INTO_ROWS = [name for name, row in ROWS.items() if row.default is None]
WITH_UNIT_FILE = "masked-lm replaced-token-detection distillation permutation-lm denoising".split()
MAX_LENGTH = 16
LINE = "the cat sat on the mat and a dog ran"
LONG_TEXT = f"{LINE} " * 4


@cache
def build_model(family: str = "bert") -> qkv.Model:
    model = tiny.build(family)
    model.tokenizer = Tokenizer.train(
        [LINE] * 9, type="word", vocab_size=60, template="bert", extra_tokens=["Pets"]
    )
    return model


def build_record(folder: Path, text: str) -> Record:
    """A record with the columns of all objectives."""
    image = folder / "image.png"
    if not image.exists():
        from PIL import Image

        Image.new("RGB", (4, 4)).save(image)
    columns: dict[str, Any] = {"text": text, "source": text, "target": text, "context": text}
    columns |= {"caption": text, "image": str(image), "code": "Pets", "language": "Pets"}
    columns |= {"words": text.split(), "tags": ["O"] * len(text.split()), "label": "0"}
    columns |= {"question": "the cat", "answers": [], "choices": ["a dog ran", "the mat"]}
    return Record(columns, "train.jsonl, line 3")


def build_context(name: str, folder: Path, overflow: str | None, **data: Any) -> SetupContext:
    families = {
        "image-text-contrastive": "clip",
        "image-captioning": "vision-encoder-decoder",
    }
    model = build_model(families.get(name, "bert"))
    assert model.tokenizer is not None
    model.tokenizer.save(folder / "tokenizer")
    if name == "text-to-image":
        assert VOCAB.image_tokenizer is not None
        VOCAB.image_tokenizer.save(folder / "tokenizer")
        model = copy(model)
        model.image_tokenizer = VOCAB.image_tokenizer
    settings = {"stride": 4} if name == "question-answering" else {}
    recipe = Recipe(
        model=ModelConfig(),
        data=DataConfig(train="", batch_size=1, max_length=MAX_LENGTH, overflow=overflow, **data),
        train=TrainConfig(steps=1),
        objective=ObjectiveConfig(name=name, settings=settings),
    )
    return SetupContext.from_recipe(
        recipe,
        folder / "tokenizer",
        model,
        [build_record(folder, LINE)],
        label_names=("O",) if name == "token-classification" else ("0",),
    )


def encode(
    name: str, folder: Path, overflow: str | None, text: str = LONG_TEXT, **data: Any
) -> EncodedRow:
    encoder = OBJECTIVE_SPECS[name].build_encoder(build_context(name, folder, overflow, **data))
    assert isinstance(encoder, RecordEncoder)
    (row,) = encoder([build_record(folder, text)])
    return row


def list_lengths(name: str, row: EncodedRow) -> list[int]:
    """The number of tokens of each text that the row stores."""
    if name in ("question-answering", "multiple-choice"):
        return row["windows"]
    return [len(row[field]) for field in ("tokens", "source", "target") if field in row]


def list_modes(*modes: str) -> list[tuple[str, str]]:
    return [(name, mode) for name in ROWS if ROWS[name].default for mode in modes]


def test_the_page_has_every_objective() -> None:
    assert ROWS.keys() == {name for name, spec in OBJECTIVE_SPECS.items() if spec.text_column}
    assert {row.default for row in ROWS.values()} == {"error", None}


@pytest.mark.parametrize(("name", "mode"), list_modes("default", "error"))
def test_error(name: str, mode: str, tmp_path: Path) -> None:
    overflow = None if mode == "default" else mode
    others = " or ".join(f'"{mode}"' for mode in ROWS[name].modes[1:])
    with pytest.raises(
        ValueError,
        match=r"^train\.jsonl, line 3: \d+ tokens, expected at most \d+; set a larger "
        rf"data\.max_length, or set data\.overflow to {others}$",
    ):
        encode(name, tmp_path, overflow)
    assert encode(name, tmp_path, overflow, text="the cat sat")


@pytest.mark.parametrize(("name", "mode"), list_modes("truncate"))
def test_truncate(name: str, mode: str, tmp_path: Path) -> None:
    lengths = list_lengths(name, encode(name, tmp_path, mode))
    assert min(lengths) >= MAX_LENGTH - 2
    assert max(lengths) <= MAX_LENGTH


@pytest.mark.parametrize(("name", "mode"), list_modes("window"))
def test_window(name: str, mode: str, tmp_path: Path) -> None:
    if mode not in ROWS[name].modes:
        with pytest.raises(
            ValueError,
            match=r"^data\.overflow is 'window', expected one of error, truncate: the objective reads",
        ):
            encode(name, tmp_path, mode)
        return
    context = build_context(name, tmp_path, mode)
    spec = OBJECTIVE_SPECS[name]
    encoder = spec.build_encoder(context)
    records = [build_record(tmp_path, LONG_TEXT)]
    shards = prepare_shards(
        records, encoder, tmp_path / "shards", field_sizes=encoder.field_sizes(), provenance={}
    )
    sampler = spec.build_sampler(context, shards, DataSplit(is_train=False))
    examples = [sampler.dataset[i] for i in range(len(sampler.dataset))]
    lengths = [len(example["tokens"]) for example in examples]
    assert max(lengths) <= MAX_LENGTH
    assert len(lengths) > 1
    cat = build_model().tokenizer.convert_tokens_to_ids("cat")  # type: ignore[union-attr]
    num_cats = sum(int(np.sum(example["tokens"] == cat)) for example in examples)
    if name == "question-answering":
        assert num_cats >= 4 + len(examples)  # each window has the question
    else:
        assert num_cats == 4  # no token is dropped, none is in two rows


@pytest.mark.parametrize("overflow", OVERFLOW_MODES)
@pytest.mark.parametrize("name", SPLIT_INTO_ROWS)
def test_overflow_without_effect_is_an_error(name: str, overflow: str, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match=rf"^data\.overflow is '{overflow}', but overflow has no effect for {name}: .*long texts",
    ):
        encode(name, tmp_path, overflow)
    row = encode(name, tmp_path, None)
    assert len(row["tokens"]) >= 4 * len(LINE.split())  # the whole text


@pytest.mark.parametrize("name", WITH_UNIT_FILE)
def test_overflow_without_effect_for_one_long_document(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=rf'no effect for {name}: with data\.unit = "file", long texts are split'
    ):
        encode(name, tmp_path, "truncate", unit="file")
    assert len(encode(name, tmp_path, None, unit="file")["tokens"]) == 4 * len(LINE.split())


def test_fit() -> None:
    """`qkv.fit` has the default of recipes, an error, and refuses a mode without effect."""
    data = [{"text": LONG_TEXT, "label": label} for label in ("good", "bad")]
    tokenizer = build_model().tokenizer
    assert tokenizer is not None
    sizes: dict[str, Any] = dict(
        vocab_size=len(tokenizer), width=16, depth=1, heads=2, max_positions=MAX_LENGTH
    )
    classifier = qkv.build("bert", **sizes, head="sequence-classification", num_labels=2)
    classifier.tokenizer = tokenizer
    settings: dict[str, Any] = dict(objective="sequence-classification", steps=1, batch_size=2)
    with pytest.raises(ValueError, match=r"^example 0: \d+ tokens, expected at most 16; "):
        qkv.fit(classifier, data, **settings)
    qkv.fit(classifier, data, overflow="truncate", **settings)
    language_model = qkv.build("gpt2", **sizes)
    language_model.tokenizer = tokenizer
    qkv.fit(language_model, [LONG_TEXT], steps=1, batch_size=2)
    with pytest.raises(ValueError, match=r"overflow has no effect for causal-lm: long texts"):
        qkv.fit(language_model, [LONG_TEXT], steps=1, batch_size=2, overflow="truncate")
