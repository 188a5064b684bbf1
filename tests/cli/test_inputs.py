"""Inputs of task commands: files with columns for every command, blank lines, standard input."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import qkv
from tests.cli.test_read import MODELS, TEXT, bad, good, model, rows
from tests.tasks.test_tasks import build_model

OTHER = "It rained all week."
# command -> arguments after the file, result key of a text, and its value for a blank text
COMMANDS: dict[str, tuple[list[str], str, object]] = {
    "classify":  (model("bert-label"), "label", ""),
    "tag":       (model("bert-tag"), "entities", []),
    "fill":      (model("bert"), "filled", ""),
    "embed":     (model("bert"), "vector", []),
    "detect":    (["--model", "electra", "--device", "cpu"], "tokens", []),
    "score":     (model("bert"), "perplexity", None),
    "translate": ([*model("marian"), "--max-new-tokens", "3"], "text", ""),
    "summarize": ([*model("bart"), "--max-new-tokens", "3"], "text", ""),
    "complete":  (["--model", "gpt", "--device", "cpu", "--max-new-tokens", "3"], "text", ""),
}  # fmt: skip
INPUT_KEYS = {"translate": "source", "summarize": "source", "complete": "prompt"}
ONE_TEXT_PER_FILE = ("score", "translate", "summarize", "complete")


@pytest.fixture(scope="module")
def own_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    build_model("gpt2", "lm").save(folder / "gpt")
    build_model("electra", "replaced-token-detection").save(folder / "electra")
    return folder


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, own_models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("gpt", "electra"):
        (tmp_path / name).symlink_to(own_models / name)


def set_stdin(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    buffer = io.BufferedReader(io.BytesIO(text.encode()))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(buffer))


def assert_results_close(actual: object, expected: object) -> None:
    """Compare results: equal words, and numbers that are equal up to the company in a batch."""
    number = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
    words, expected_words = (number.sub("#", json.dumps(value)) for value in (actual, expected))
    assert words == expected_words
    numbers, expected_numbers = (
        [float(match) for match in number.findall(json.dumps(value))]
        for value in (actual, expected)
    )
    assert numbers == pytest.approx(expected_numbers, rel=1e-4, abs=1e-5)


def texts_of(command: str) -> list[str]:
    return ["The [MASK].", "A [MASK] film."] if command == "fill" else [TEXT, OTHER]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_reads_a_column_with_blank_records(
    capsys: pytest.CaptureFixture[str], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, key, blank = COMMANDS[command]
    first, second = texts_of(command)
    texts = [first, "", second, "  "]
    input_key = INPUT_KEYS.get(command, "text")
    expected = [rows(capsys, command, text, *arguments)[0][key] for text in (first, second)]
    Path("in.jsonl").write_text(
        "".join(json.dumps({"id": 1, "said": text}) + "\n" for text in texts)
    )
    results = rows(capsys, command, "in.jsonl", "--column", "said", *arguments)
    assert [row[input_key] for row in results] == texts
    values = [row[key] for row in results]
    assert values[1] == values[3] == blank
    assert_results_close([values[0], values[2]], expected)
    assert len({frozenset(row) for row in results}) == 1  # the same keys for blank texts
    Path("in.csv").write_text("id,said\n" + "".join(f'1,"{text}"\n' for text in texts))
    results = rows(capsys, command, "in.csv", "--column", "said", *arguments)
    assert_results_close([row[key] for row in results], values)
    set_stdin(monkeypatch, Path("in.csv").read_text())
    results = rows(capsys, command, "--column", "said", *arguments)
    assert [row[input_key] for row in results] == texts
    assert "no column 'note'" in bad(
        capsys, command, "in.csv", "--column", "note", *arguments, "--json"
    )


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ONE_TEXT_PER_FILE])
def test_blank_lines_give_empty_results(
    capsys: pytest.CaptureFixture[str], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, key, blank = COMMANDS[command]
    first, second = texts_of(command)
    text = f"\n{first}\n\n \n{second}\n\n"
    Path("in.txt").write_text(text)
    results = rows(capsys, command, "in.txt", *arguments)
    assert [row["text"] for row in results] == ["", first, "", " ", second, ""]
    assert [row[key] == blank for row in results] == [True, False, True, True, False, True]
    for inputs in ([], ["-"]):
        set_stdin(monkeypatch, text)
        assert rows(capsys, command, *inputs, *arguments) == results
    if command != "embed":
        assert good(capsys, command, "in.txt", *arguments)
    Path("blank.txt").write_text("\n\n")
    assert [row[key] for row in rows(capsys, command, "blank.txt", *arguments)] == [blank, blank]


@pytest.mark.parametrize("command", ONE_TEXT_PER_FILE)
def test_a_blank_file_that_is_one_text(capsys: pytest.CaptureFixture[str], command: str) -> None:
    arguments, key, blank = COMMANDS[command]
    Path("blank.txt").write_text("\n \n")
    (row,) = rows(capsys, command, "blank.txt", *arguments)
    assert row[key] == blank
    if command != "score":
        assert good(capsys, command, "blank.txt", *arguments) == "\n"


def test_blank_lines_of_a_translated_file_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    Path("in.txt").write_text(f"{TEXT}\n\n{OTHER}\n")
    lines = good(capsys, "translate", "in.txt", *COMMANDS["translate"][0]).splitlines()
    assert len(lines) == 3
    assert lines[1] == ""
    assert all((lines[0], lines[2]))


def test_vectors_of_blank_lines_are_zero(capsys: pytest.CaptureFixture[str]) -> None:
    Path("in.txt").write_text(f"\n{TEXT}\n")
    good(capsys, "embed", "in.txt", *model("bert"), "--out", "v.npy")
    vectors = np.load("v.npy")
    assert vectors.shape[0] == 2
    assert not vectors[0].any()
    expected = qkv.task("embed", MODELS / "bert")(TEXT)
    np.testing.assert_allclose(vectors[1], expected, atol=1e-6)


def test_questions_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = model("bert-span")
    expected = rows(capsys, "answer", "Who waits?", "--context", TEXT, *arguments)[0]
    Path("q.jsonl").write_text(
        json.dumps({"question": "Who waits?", "context": TEXT, "asked": "Where?"})
        + "\n"
        + json.dumps({"question": "", "context": TEXT, "asked": "Who waits?"})
        + "\n"
    )
    first, second = rows(capsys, "answer", "q.jsonl", *arguments)
    assert first == expected
    assert second == {
        "question": "", "text": "", "score": None, "start": None, "end": None, "candidates": [],
    }  # fmt: skip
    _, second = rows(
        capsys, "answer", "q.jsonl", "--column", "asked", "--context", TEXT, *arguments
    )
    assert second == expected
    Path("q.txt").write_text("\nWho waits?\n")
    assert rows(capsys, "answer", "q.txt", "--context", TEXT, *arguments)[1] == expected
    table = good(capsys, "answer", "q.txt", "--context", TEXT, *arguments).split()
    assert table[:5] == ["#", "score", "start", "end", "answer"]
    for question in ("Who waits?", "q.txt"):
        assert "--context is missing" in bad(capsys, "answer", question, *arguments)


def test_labels_of_match_skip_blank_lines(capsys: pytest.CaptureFixture[str]) -> None:
    image = str(MODELS / "images" / "tall.png")
    Path("labels.txt").write_text("a boat\n\nbread\n")
    Path("labels.csv").write_text('n,name\n1,a boat\n2,""\n3,bread\n')
    for inputs in (["labels.txt"], ["labels.csv", "--column", "name"]):
        (row,) = rows(capsys, "match", image, *inputs, *model("clip"))
        assert {item["label"] for item in row["candidates"]} == {"a boat", "bread"}


def test_a_quoted_empty_field_is_a_record(capsys: pytest.CaptureFixture[str]) -> None:
    Path("in.csv").write_text('text\nA film.\n""\n\nA book.\n')  # the blank line is no record
    results = rows(capsys, "classify", "in.csv", *model("bert-label"))
    assert [row["text"] for row in results] == ["A film.", "", "A book."]


def test_null_is_a_blank_text(capsys: pytest.CaptureFixture[str]) -> None:
    Path("in.jsonl").write_text('{"text": null}\n{"text": "A film."}\n')
    results = rows(capsys, "classify", "in.jsonl", *model("bert-label"))
    assert [row["text"] for row in results] == ["", "A film."]
    assert results[0]["candidates"] == []


def test_a_stream_has_one_text(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", "gpt", "--device", "cpu", "--stream"]
    assert "--stream with 2 texts" in bad(capsys, "complete", TEXT, OTHER, *arguments)
