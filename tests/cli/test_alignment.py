"""qkv translate --alignment: a matrix on the screen, with and without colours; JSON; files; mistakes."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from rich.cells import cell_len

import qkv
from qkv.cli.alignment import parts, shaded, upright
from tests.cli.test_read import MODELS, bad, good, model, rows
from tests.view.test_view import FINE, ODD, matrix

TEXT = "Anna lives in a small house."
MORE = [*model("marian"), "--max-new", "6"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def test_a_matrix() -> None:
    (lines,) = parts(FINE, 80)
    shown = [line.plain.rstrip() for line in lines]
    assert [line.lstrip() for line in shown[:7]] == ["B", "a", "h", "n", "i d h", "W s e o", "o t r f ?"]
    assert shown[7] == "  Where ██· · · ·   Wo 0.80"
    assert shown[-1] == "      ? · · · · ██  ? 0.80"
    assert [str(span.style) for span in lines[7].spans[:2]] == ["green", "dim"]
    assert [shaded(weight) for weight in (0, 0.1, 0.3, 0.5, 1)] == ["· ", "░░", "▒▒", "▓▓", "██"]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_wide_texts_come_in_parts(width: int) -> None:
    long = matrix([f"word{i}" for i in range(70)], [f"Wort{i}" for i in range(70)])
    every = list(parts(long, width))
    assert len(every) > 70 * 2 // width
    for shown in (every, list(parts(ODD, width))):
        assert all(line.cell_len <= width for lines in shown for line in lines)
    ends = [
        " ".join(line.plain.split()[-2:]) for lines in every for line in lines if line.plain.endswith("0.80")
    ]
    assert ends == [f"word{i} 0.80" for i in range(70)]  # each once, in the part where it is


def test_headings_stand_upright() -> None:
    assert upright(["ab", "東京", "e\u0301t", "x" * 20])[-2:] == ["a 東e\u0301 x ", "b 京t ⋮ "]
    assert {cell_len(line) for line in upright(["ab", "東京", "c"])} == {6}
    assert upright([]) == []


def test_alignment_on_the_screen(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = qkv.task("translate", MODELS / "marian", max_new=6, alignment="penultimate")(TEXT)
    plain = good(capsys, "translate", TEXT, *MORE, "--alignment")
    assert plain.startswith(found.text + "\n\n")
    assert plain.endswith("weights from ░░ 0.1  ▒▒ 0.2  ▓▓ 0.4  ██ 0.7\n")
    (words,) = (each.words() for each in found.alignments)
    for piece, row, best in zip(words.target, words.weights, words.best(), strict=True):
        assert best is not None
        cells = "".join(map(shaded, row)).rstrip()
        assert any(
            line.split() and line.split()[0] == piece.text and cells in line
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


def test_by_another_layer_of_the_best_and_of_lines(capsys: pytest.CaptureFixture[str]) -> None:
    shown = [
        good(capsys, "translate", TEXT, *MORE, "--alignment", "--layer", layer) for layer in ("0", "1", "-1")
    ]
    assert shown[0] != shown[1] == shown[2]
    assert good(capsys, "translate", TEXT, *MORE, "--alignment") == shown[0]
    best = good(capsys, "translate", TEXT, *MORE, "--alignment", "--best", "3")
    assert best.split()[:2] == ["score", "text"]
    assert best.count("weights from") == 1
    lines = good(capsys, "translate", f"{TEXT}\nMarie plays!", *MORE, "--alignment")
    assert lines.count("weights from") == 1
    assert "plays" in lines


def test_json_has_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = rows(capsys, "translate", TEXT, *MORE, "--alignment")
    (found,) = row["alignments"]
    assert [sum(weights) for weights in found["weights"]] == pytest.approx([1.0] * len(row["tokens"]))
    assert len(found["source"]) == len(found["weights"][0])
    for side, text in (("source", row["source"]), ("target", row["text"])):
        held = [one for one in found[side] if one["start"] < one["end"]]
        assert held
        assert all(text[one["start"] : one["end"]] == one["text"] for one in held)
    assert rows(capsys, "translate", TEXT, *MORE)[0]["alignments"] == []


def test_files(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["translate", f"{TEXT}\nMarie plays!", *MORE, "--page", "a.html", "--picture", "a.svg"]
    for _ in range(2):  # they are written anew
        out = good(capsys, *arguments)
        assert out.count("\n") == 2
        assert "██" not in out
    assert Path("a.html").read_text(encoding="utf-8").count("<section>") == 2
    ET.parse("a.svg")
    rows(capsys, *arguments)


@pytest.mark.parametrize(("arguments", "wrong"), [
    (["--page", "a.txt"], "--page a.txt: expected a name that ends in .html"),
    (["--picture", "a.html"], "--picture a.html: expected a name that ends in .svg"),
    (["--page", "none/a.html"], "--page none/a.html: expected a file, in a folder that is there"),
    (["--layer", "1"], "--layer 1: expected --alignment, --page or --picture too"),
    (["--alignment", "--layer", "2"], "--layer is 2: expected a whole number, at least -2 and less than 2"),
    (["--alignment", "--layer", "last"], "--layer is 'last', expected one of penultimate, mean"),
])  # fmt: skip
def test_mistakes_are_said_in_a_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], wrong: str
) -> None:
    assert wrong in bad(capsys, "translate", TEXT, *MORE, *arguments)
    assert not any(Path().iterdir())
