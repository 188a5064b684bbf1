"""The data of the built-in model: what is held out is nowhere in what it learns from."""

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
from tools import retold, tatoeba

ENGLISH = [f"english {i}" for i in range(4000)]


def pairs() -> list[tuple[str, str]]:
    """Many sentences have several translations, both ways."""
    rng = random.Random(1)
    return [(rng.choice(ENGLISH), f"deutsch {rng.randrange(4000)}") for _ in range(12_000)]


def packed(path: Path, rows: list[tuple[str, str]]) -> Path:
    with lzma.open(path, "wt", encoding="utf-8") as file:
        file.writelines(f"{a}\t{b} \tby somebody\n" for a, b in rows)
    return path


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tatoeba, "VALID", 20)
    monkeypatch.setattr(tatoeba, "TEST", 50)
    first = packed(tmp_path / "deu-eng.tsv.xz", pairs())
    more = [("english 7", "français"), ("new english", "français"), ("new english", "autre")]
    second = packed(tmp_path / "fra-eng.tsv.xz", more)
    monkeypatch.setattr(sys, "argv", ["tatoeba.py", str(first), str(tmp_path / "out"), str(second)])
    tatoeba.main()
    return tmp_path / "out"


def test_no_sentence_that_is_held_out_is_learnt_from(out: Path) -> None:
    english, german = ((out / f"test.{code}").read_text().splitlines() for code in ("en", "de"))
    head, *rows = (out / "train.tsv").read_text().splitlines()
    _, *valid = (out / "valid.tsv").read_text().splitlines()
    assert head == "to\tsource\ttarget"
    assert (len(english), len(german), len(valid)) == (50, 50, 40)
    learnt = {side for row in rows for side in row.split("\t")[1:]}
    held = {*english, *german, *(side for row in valid for side in row.split("\t")[1:])}
    assert len(held) == 2 * 70
    assert learnt
    assert not learnt & held
    assert {*zip(english, german, strict=True)} <= {*pairs()}
    assert (out / "more.en").read_text() == "new english\n"


@dataclass
class Teacher:
    """Says the same thing of every source; one of them is held out."""

    said: dict[str, str]

    def many(self, texts: list[str], *, target: str, **_: object) -> list[Teacher]:
        return [Teacher({"text": self.said.get(text, f"{target} of {text}")}) for text in texts]

    @property
    def text(self) -> str:
        return self.said["text"]


def test_what_is_held_out_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, more = tmp_path / "train.tsv", tmp_path / "more.en"
    rows = [(">>en<<", "a", "x"), (">>en<<", "a", "y"), (">>de<<", "x", "a"), (">>de<<", "z", "b")]
    rows += [(">>en<<", "same", "en of same")]
    table.write_text("".join("\t".join(row) + "\n" for row in [("to", "source", "target"), *rows]))
    more.write_text("new\n")
    (tmp_path / "test.de").write_text("held out\n")
    (tmp_path / "valid.tsv").write_text("to\tsource\ttarget\n>>en<<\tvalid\tother\n")
    teacher = Teacher({"x": "held out", "z": ""})
    monkeypatch.setattr(qkv, "load", lambda *_, **__: SimpleNamespace(net=torch.nn.Linear(1, 1)))
    monkeypatch.setattr(qkv, "task", lambda *_: teacher)
    where = [str(tmp_path / name) for name in ("train.tsv", "told.tsv", "more.en", "test.de", "valid.tsv")]
    flags = ["--device", "cpu", "--more", where[2], "--without", *where[3:]]
    monkeypatch.setattr(sys, "argv", ["retold.py", "one", "two", *where[:2], *flags])
    retold.main()
    assert (tmp_path / "told.tsv").read_text().splitlines() == [
        "to\tsource\ttarget",
        ">>de<<\tnew\tde of new",
        ">>en<<\tde of new\tnew",
        ">>en<<\ta\ten of a",
        ">>de<<\ten of a\ta",
        ">>de<<\ten of same\tsame",
    ]
