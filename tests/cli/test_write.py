"""The commands of tasks that write: texts from everywhere, streams, JSON, and mistakes in one line."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

import qkv
from qkv.cli import main
from tests.cli.test_read import MODELS, bad, good, model, rows
from tests.tasks.test_write import byte

TEXT = "Anna lives in a small house."


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    Path("texts.txt").write_text(f"{TEXT}\n\n  Marie plays!\n", encoding="utf-8")
    byte().save("gpt")


def test_translate(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    task = qkv.task("translate", MODELS / "marian", max_new=6)
    more = [*model("marian"), "--max-new", "6"]
    assert good(capsys, "translate", TEXT, *more) == task(TEXT).text + "\n"
    lines = f"{task(TEXT).text}\n\n  {task('Marie plays!').text}\n"
    assert good(capsys, "translate", "texts.txt", *more) == lines
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(Path("texts.txt").read_bytes())))
    assert good(capsys, "translate", *more) == lines
    both = good(capsys, "translate", TEXT, "Marie plays!", *more)
    assert both.splitlines() == [task(TEXT).text, task("Marie plays!").text]
    shown = good(capsys, "translate", TEXT, *more, "--beam", "4", "--best", "3")
    found = task(TEXT, beams=4, results=3)
    assert shown.split()[:2] == ["score", "text"]
    assert all(f"{one.score:.4f}" in shown for one in found.best)
    (row,) = rows(capsys, "translate", TEXT, *more, "--beam", "4", "--best", "3")
    assert row["source"] == TEXT
    assert [one["text"] for one in row["best"]] == [one.text for one in found.best]
    assert row["tokens"] == [*found.tokens]


def test_translate_between_languages(capsys: pytest.CaptureFixture[str]) -> None:
    more = [*model("mbart"), "--max-new", "6"]
    wanted = qkv.task("translate", MODELS / "mbart", source="en_XX", target="de_DE", max_new=6)(TEXT)
    assert good(capsys, "translate", TEXT, *more, "--from", "en", "--to", "de") == wanted.text + "\n"
    assert "into which language? Expected --from and --to, of" in bad(capsys, "translate", TEXT, *more)
    assert "--to is 'xx', expected one of ar" in bad(capsys, "translate", TEXT, *more, "--to", "xx")


def test_summarise(capsys: pytest.CaptureFixture[str]) -> None:
    task = qkv.task("summarise", MODELS / "bart", max_new=8, min_length=5)
    more = [*model("bart"), "--max-new", "8", "--min-length", "5"]
    text = Path("texts.txt").read_text(encoding="utf-8").removesuffix("\n")
    assert good(capsys, "summarise", "texts.txt", *more) == task(text).text + "\n"
    Path("long.txt").write_text(f"{TEXT} " * 20, encoding="utf-8")
    assert "more than the 64 that are read at once" in bad(capsys, "summarise", "long.txt", *more)
    assert good(capsys, "summarise", "long.txt", *more, "--long", "cut")
    window = task.changed({"long": "window"})
    text = Path("long.txt").read_text(encoding="utf-8")
    assert good(capsys, "summarise", "long.txt", *more, "--long", "window") == window(text).text + "\n"
    again = good(capsys, "summarise", "long.txt", *more, "--long", "window", "--again")
    assert again == window(text, again=True).text + "\n"
    for long in ([], ["--long", "cut"]):
        assert "expected --long window" in bad(capsys, "summarise", "long.txt", *more, "--again", *long)
    more = [*model("marian"), "--max-new", "3", "--long", "window"]
    assert good(capsys, "translate", "long.txt", *more).endswith("\n")
    more = ["--model", "gpt", "--device", "cpu", "--max-new", "3"]
    assert "more than the 31 that are read at once" in bad(capsys, "complete", "long.txt", *more)
    assert good(capsys, "complete", "long.txt", *more, "--long", "window").startswith(text)


def test_complete(capsys: pytest.CaptureFixture[str]) -> None:
    task = qkv.task("complete", "gpt", max_new=8)
    more = ["--model", "gpt", "--device", "cpu", "--max-new", "8"]
    assert good(capsys, "complete", "Clara", *more) == task("Clara").text + "\n"
    drawn = ["--temperature", "0.8", "--top-p", "0.9", "--top-k", "40", "--seed", "4"]
    wanted = task("Clara", temperature=0.8, top_p=0.9, top_k=40, seed=4)
    assert good(capsys, "complete", "Clara", *more, *drawn) == wanted.text + "\n"
    assert good(capsys, "complete", "Clara", *more, *drawn, "--stream") == wanted.text + "\n"
    (row,) = rows(capsys, "complete", "Clara", *more, *drawn)
    assert (row["prompt"], row["new"], row["reason"]) == ("Clara", wanted.new, wanted.reason)
    stop = wanted.new[2:4]
    cut = good(capsys, "complete", "Clara", *more, *drawn, "--stop", stop, "--stream")
    assert cut == "Clara" + wanted.new[: wanted.new.index(stop)] + "\n"


@pytest.mark.parametrize(("arguments", "wrong"), [
    (["--temperature", "0"], "--no-sample takes"),
    (["--temperature", "-1"], "--temperature is -1"), (["--temperature", "nan"], "--temperature is nan"),
    (["--top-p", "2"], "--top-p is 2"), (["--stop", ""], "--stop is ''"), (["--beam", "0"], "--beam is 0"),
    (["--beam", "100000"], "--beam is 100000"), (["--code", "Links"], "--code is 'Links'"),
    (["--stream", "--json"], "take one of them"), (["--stream", "--best", "2", "--sample"], "--best is 2"),
    (["--max-new", "0"], "--max-new is 0"), (["--best", "3", "--beam", "2"], "--best is 3, expected no more"),
])  # fmt: skip
def test_mistakes_are_said_in_a_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], wrong: str
) -> None:
    assert wrong in bad(capsys, "complete", "Clara", "--model", "gpt", "--device", "cpu", *arguments)


def test_the_nearest_option_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for given in (["translate", TEXT], ["translate"], ["complete"], ["complete", TEXT], ["summarise", TEXT]):
        assert "Unknown option: --beams. Did you mean --beam?" in bad(capsys, *given, "--beams", "5")
        assert "Did you mean --beam?" in bad(capsys, *given, "--beams=5", "--model", "gpt")


def test_and_so_are_texts_and_models_that_cannot(capsys: pytest.CaptureFixture[str]) -> None:
    for stream in ([], ["--stream"]):
        assert "text is empty" in bad(capsys, "complete", "", "--model", "gpt", *stream)
    assert "text is empty" in bad(capsys, "translate", "", *model("marian"))
    assert "`translate` needs an encoder-decoder" in bad(capsys, "translate", TEXT, "--model", "gpt")
    assert "`complete` needs a decoder" in bad(capsys, "complete", TEXT, *model("marian"))
    assert "no such file" in bad(capsys, "summarise", "none.txt", *model("bart"))
    assert main(["translate", "--help"]) == 0
