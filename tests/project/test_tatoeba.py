"""The data of the built-in translation model: held-out sentences are not in its training data."""

from __future__ import annotations

import lzma
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import qkv
from tools import synthetic_pairs, tatoeba

ENGLISH = [f"english {i}" for i in range(4000)]


def make_pairs() -> list[tuple[str, str]]:
    """Return pairs in which many sentences have several translations, in both directions."""
    rng = random.Random(1)
    return [(rng.choice(ENGLISH), f"deutsch {rng.randrange(4000)}") for _ in range(12_000)]


def write_compressed(path: Path, rows: list[tuple[str, str]]) -> Path:
    with lzma.open(path, "wt", encoding="utf-8") as file:
        file.writelines(f"{a}\t{b} \tby somebody\n" for a, b in rows)
    return path


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tatoeba, "VALID", 20)
    monkeypatch.setattr(tatoeba, "TEST", 50)
    first = write_compressed(tmp_path / "deu-eng.tsv.xz", make_pairs())
    more = [("english 7", "français"), ("new english", "français"), ("new english", "autre")]
    second = write_compressed(tmp_path / "fra-eng.tsv.xz", more)
    monkeypatch.setattr(sys, "argv", ["tatoeba.py", str(first), str(tmp_path / "out"), str(second)])
    tatoeba.main()
    return tmp_path / "out"


def test_held_out_sentences_are_not_in_the_training_data(out: Path) -> None:
    english, german = ((out / f"test.{code}").read_text().splitlines() for code in ("en", "de"))
    header, *rows = (out / "train.tsv").read_text().splitlines()
    _, *valid = (out / "valid.tsv").read_text().splitlines()
    assert header == "to\tsource\ttarget"
    assert (len(english), len(german), len(valid)) == (50, 50, 40)
    trained = {side for row in rows for side in row.split("\t")[1:]}
    held_out = {*english, *german, *(side for row in valid for side in row.split("\t")[1:])}
    assert len(held_out) == 2 * 70
    assert trained
    assert not trained & held_out
    assert {*zip(english, german, strict=True)} <= {*make_pairs()}
    assert (out / "more.en").read_text() == "new english\n"


@dataclass
class FakeTranslation:
    text: str


@dataclass
class FakeTranslator:
    """Translates by a table; other texts become `LANGUAGE of TEXT`."""

    translations: dict[str, str]

    def map(self, texts: list[str], *, tgt_lang: str, **_: object) -> list[FakeTranslation]:
        return [
            FakeTranslation(self.translations.get(text, f"{tgt_lang} of {text}")) for text in texts
        ]


def test_held_out_sentences_are_left_out_of_synthetic_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, more = tmp_path / "train.tsv", tmp_path / "more.en"
    rows = [(">>en<<", "a", "x"), (">>en<<", "a", "y"), (">>de<<", "x", "a"), (">>de<<", "z", "b")]
    rows += [(">>en<<", "same", "en of same")]
    table.write_text("".join("\t".join(row) + "\n" for row in [("to", "source", "target"), *rows]))
    more.write_text("new\n")
    (tmp_path / "test.de").write_text("held out\n")
    (tmp_path / "valid.tsv").write_text("to\tsource\ttarget\n>>en<<\tvalid\tother\n")
    translator = FakeTranslator({"x": "held out", "z": ""})
    monkeypatch.setattr(qkv, "load", lambda *_, **__: SimpleNamespace(net=torch.nn.Linear(1, 1)))
    monkeypatch.setattr(qkv, "task", lambda *_: translator)
    names = ("train.tsv", "synthetic.tsv", "more.en", "test.de", "valid.tsv")
    paths = [str(tmp_path / name) for name in names]
    flags = ["--device", "cpu", "--more", paths[2], "--without", *paths[3:]]
    monkeypatch.setattr(
        sys, "argv", ["synthetic_pairs.py", "model-a", "model-b", *paths[:2], *flags]
    )
    synthetic_pairs.main()
    assert (tmp_path / "synthetic.tsv").read_text().splitlines() == [
        "to\tsource\ttarget",
        ">>de<<\tnew\tde of new",
        ">>en<<\tde of new\tnew",
        ">>en<<\ta\ten of a",
        ">>de<<\ten of a\ta",
        ">>de<<\ten of same\tsame",
    ]
