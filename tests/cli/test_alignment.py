"""qkv translate --alignment: the printed matrix, with and without colors; JSON; files; errors."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from rich.cells import cell_len

import qkv
from qkv.cli.alignment import render_alignment, shade_weight, stack_letters
from tests.cli.test_read import MODELS, bad, good, model, rows
from tests.pictures.test_view import PLAIN, UNUSUAL, build_alignment

TEXT = "Anna lives in a small house."
MORE = [*model("marian"), "--max-new-tokens", "6"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def test_a_matrix() -> None:
    (lines,) = render_alignment(PLAIN, 80)
    output = [line.plain.rstrip() for line in lines]
    assert [line.lstrip() for line in output[:7]] == [
        "B",
        "a",
        "h",
        "n",
        "i d h",
        "W s e o",
        "o t r f ?",
    ]
    assert output[7] == "  Where ██· · · ·   Wo 0.80"
    assert output[-1] == "      ? · · · · ██  ? 0.80"
    assert [str(span.style) for span in lines[7].spans[:2]] == ["green", "dim"]
    assert [shade_weight(weight) for weight in (0, 0.1, 0.3, 0.5, 1)] == [
        "· ",
        "░░",
        "▒▒",
        "▓▓",
        "██",
    ]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_wide_matrix_is_split_into_parts(width: int) -> None:
    long = build_alignment([f"word{i}" for i in range(70)], [f"Wort{i}" for i in range(70)])
    parts = list(render_alignment(long, width))
    assert len(parts) > 70 * 2 // width
    for output in (parts, list(render_alignment(UNUSUAL, width))):
        assert all(line.cell_len <= width for lines in output for line in lines)
    ends = [
        " ".join(line.plain.split()[-2:])
        for lines in parts
        for line in lines
        if line.plain.endswith("0.80")
    ]
    assert ends == [f"word{i} 0.80" for i in range(70)]  # each once


def test_headings_are_vertical() -> None:
    assert stack_letters(["ab", "東京", "e\u0301t", "x" * 20])[-2:] == [
        "a 東e\u0301 x ",
        "b 京t ⋮ ",
    ]
    assert {cell_len(line) for line in stack_letters(["ab", "東京", "c"])} == {6}
    assert stack_letters([]) == []


def test_alignment_on_the_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = qkv.task(
        "translate", MODELS / "marian", max_new_tokens=6, alignment_layer="penultimate"
    )(TEXT)
    plain = good(capsys, "translate", TEXT, *MORE, "--alignment")
    assert plain.startswith(result.text + "\n\n")
    assert plain.endswith("weights from ░░ 0.1  ▒▒ 0.2  ▓▓ 0.4  ██ 0.7\n")
    (words,) = (alignment.merge_into_words() for alignment in result.alignments)
    for span, row, best in zip(words.target, words.weights, words.argmax(), strict=True):
        assert best is not None
        cells = "".join(map(shade_weight, row)).rstrip()
        assert any(
            line.split() and line.split()[0] == span.text and cells in line
            and line.endswith(f"{words.source[best].text} {row[best]:.2f}") for line in plain.splitlines()
        )  # fmt: skip
    assert "\x1b" not in plain
    assert all(cell_len(line) <= 80 for line in plain.splitlines())
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[32m" in good(capsys, "translate", TEXT, *MORE, "--alignment")
    monkeypatch.setenv("NO_COLOR", "1")
    without = good(capsys, "translate", TEXT, *MORE, "--alignment")
    assert "\x1b[32m" not in without
    assert "██" in without or "▓▓" in without or "▒▒" in without


def test_other_layers_several_results_and_lines(capsys: pytest.CaptureFixture[str]) -> None:
    output = [
        good(capsys, "translate", TEXT, *MORE, "--alignment", "--alignment-layer", layer)
        for layer in ("0", "1", "-1")
    ]
    assert output[0] != output[1] == output[2]
    assert good(capsys, "translate", TEXT, *MORE, "--alignment") == output[0]
    best = good(capsys, "translate", TEXT, *MORE, "--alignment", "--num-return-sequences", "3")
    assert best.split()[:2] == ["score", "text"]
    assert best.count("weights from") == 1
    lines = good(capsys, "translate", f"{TEXT}\nMarie plays!", *MORE, "--alignment")
    assert lines.count("weights from") == 1
    assert "plays" in lines


def test_json_has_the_weights(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = rows(capsys, "translate", TEXT, *MORE, "--alignment")
    (alignment,) = row["alignments"]
    assert [sum(weights) for weights in alignment["weights"]] == pytest.approx(
        [1.0] * len(row["tokens"])
    )
    assert len(alignment["source"]) == len(alignment["weights"][0])
    assert alignment["layer"] == 0  # the penultimate of two
    for side, text in (("source", row["source"]), ("target", row["text"])):
        spans = [span for span in alignment[side] if span["start"] < span["end"]]
        assert spans
        assert all(text[span["start"] : span["end"]] == span["text"] for span in spans)
    assert rows(capsys, "translate", TEXT, *MORE)[0]["alignments"] == []


def test_files(capsys: pytest.CaptureFixture[str]) -> None:
    for file in ("a.html", "a.svg"):
        arguments = ["translate", f"{TEXT}\nMarie plays!", *MORE, "--save", file]
        for _ in range(2):  # the file is overwritten
            out = good(capsys, *arguments)
            assert out.count("\n") == 2
            assert "██" not in out
        rows(capsys, *arguments)
    assert Path("a.html").read_text(encoding="utf-8").count("<section>") == 2
    texts = [element.text for element in ET.parse("a.svg").iter()]
    assert texts.count("← translation") == texts.count("source →") == 2
    assert any((text or "").startswith("Word alignment · translate · ") for text in texts)
    assert "Cross-attention of decoder layer 0 (counted from 0), mean of the heads" in texts


@pytest.mark.parametrize(("arguments", "wrong"), [
    (["--save", "a.txt"], "--save a.txt: expected a file name that ends with .html or .svg"),
    (["--save", "a.png"], "--save a.png: PNG is not supported; expected .html or .svg"),
    (["--save", "none/a.html"], "--save none/a.html: expected a file in an existing folder"),
    (["--alignment-layer", "1"], "--alignment-layer 1 needs --alignment or --save"),
    (["--alignment", "--alignment-layer", "2"],
     "alignment_layer is 2: expected a whole number, at least -2 and less than 2"),
    (["--alignment", "--alignment-layer", "last"],
     "alignment_layer is 'last', expected one of penultimate, mean"),
])  # fmt: skip
def test_errors_are_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], wrong: str
) -> None:
    assert wrong in bad(capsys, "translate", TEXT, *MORE, *arguments)
    assert not any(Path().iterdir())
