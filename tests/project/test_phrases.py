"""tools/phrases.py: the comparison of outputs, and the shape of the lists of phrases and verdicts."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

import qkv
from tools import phrases

BENCH = Path(__file__).resolve().parent.parent.parent / "bench"


@pytest.mark.parametrize(
    ("output", "accepted"),
    [
        ("Good Morning!", "good morning"),
        (" „Guten Tag.“ ", "Guten Tag"),
        ('"Hello".', "hello…"),
        ("The cat", "a cat"),
        ("cat", "an cat"),
        ("Eine Katze", "die Katze"),
        ("das Haus?!", "Haus"),
        ("ein Haus", "der Haus"),
        ("To go", "go"),
        ("STRASSE", "Straße"),
        ("Wie geht's?", "wie geht's"),
    ],
)
def test_equal_after_normalization(output: str, accepted: str) -> None:
    assert phrases.normalize(output) == phrases.normalize(accepted)


@pytest.mark.parametrize(
    ("output", "accepted"),
    [
        ("cats", "cat"),
        ("schon", "schön"),
        ("Hello, world", "Hello world"),
        ("good  morning", "good morning"),
        ("on the table", "on table"),
        ("den Hund", "Hund"),
        ("another", "other"),
        ("today", "day"),
        ("diesel", "sel"),
        ("go to", "go"),
        ("", "a cat"),
    ],
)
def test_different_after_normalization(output: str, accepted: str) -> None:
    assert phrases.normalize(output) != phrases.normalize(accepted)


def test_phrases_are_150_into_each_language() -> None:
    rows = phrases.read_rows(BENCH / "phrases.tsv")
    assert Counter(row["to"] for row in rows) == {"en": 150, "de": 150}
    sources = [(row.get_text("to"), row.get_text("source")) for row in rows]
    assert len({*sources}) == len(sources)
    for row in rows:
        accepted = row.get_text("accepted").split(phrases.SEPARATOR)
        normalized = [phrases.normalize(text) for text in accepted]
        assert all(normalized), row
        assert len({*normalized}) == len(normalized), row
        texts = [row.get_text("source"), *accepted]
        assert [text.strip() for text in texts] == texts
        assert not any("|" in text for text in texts), row
        assert all(texts), row


def test_verdicts_are_50_of_each_label() -> None:
    rows = phrases.read_rows(BENCH / "verdicts.tsv")
    assert Counter(row["label"] for row in rows) == {"positive": 50, "negative": 50}
    texts = [row.get_text("text") for row in rows]
    assert len({*texts}) == len(texts)
    assert all(text.strip() == text for text in texts)
    assert {len(text.split()) for text in texts} <= {*range(1, 9)}


class FakeTask:
    """Translates and classifies by a table."""

    def __init__(self, outputs: dict[str, str]) -> None:
        self.outputs = outputs

    def map(
        self, texts: list[str], *, src_lang: str = "", tgt_lang: str = ""
    ) -> list[SimpleNamespace]:
        key = f"{src_lang}-{tgt_lang} " if src_lang else ""
        outputs = [self.outputs[key + text] for text in texts]
        return [SimpleNamespace(text=output, label=output) for output in outputs]


def run_tool(
    table: str, outputs: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "table.tsv"
    path.write_text(table, encoding="utf-8")
    monkeypatch.setattr(qkv, "task", lambda name, model: FakeTask(outputs))
    monkeypatch.setattr(sys, "argv", ["phrases.py", "model", str(path), "--show-errors"])
    phrases.main()


def test_translations_are_counted_by_target_language(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = "to\tsource\taccepted\nen\tKatze\tcat\nde\tcat\tKatze | Kater\nen\tJa\tyes | yeah\n"
    outputs = {"de-en Katze": "The cat.", "de-en Ja": "no", "en-de cat": "Der Kater"}
    run_tool(table, outputs, tmp_path, monkeypatch)
    assert capsys.readouterr().out.splitlines() == [
        "Ja: no, expected yes | yeah",
        "into en: 1 of 2 (50.0%)",
        "into de: 1 of 1 (100.0%)",
    ]


def test_verdicts_are_counted_by_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = "label\ttext\npositive\tGood\nnegative\tBad\n"
    run_tool(table, {"Good": "POSITIVE", "Bad": "positive"}, tmp_path, monkeypatch)
    assert capsys.readouterr().out.splitlines() == [
        "Bad: positive, expected negative",
        "positive: 1 of 1 (100.0%)",
        "negative: 0 of 1 (0.0%)",
    ]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("a\tb\nx\ty\n", "expected to, source, accepted or label, text"),
        ("label\ttext\n", "expected to, source, accepted or label, text"),
        ("to\tsource\taccepted\nfr\tcat\tchat\n", "'fr', expected en or de"),
    ],
)
def test_another_table_is_an_error(
    table: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match=message):
        run_tool(table, {}, tmp_path, monkeypatch)
