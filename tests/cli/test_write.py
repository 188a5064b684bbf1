"""Commands of the tasks that generate text: inputs, streaming, JSON, and one-line errors."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest

import qkv
from qkv.cli import main
from qkv.tasks.registry import create_task
from tests.cli.test_read import MODELS, bad, good, model, rows
from tests.tasks.test_write import build_decoder

TEXT = "Anna lives in a small house."


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    Path("texts.txt").write_text(f"{TEXT}\n\n  Marie plays!\n", encoding="utf-8")
    build_decoder().save("gpt")


def test_translate(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    task = qkv.task("translate", MODELS / "marian", max_new_tokens=6)
    more = [*model("marian"), "--max-new-tokens", "6"]
    assert good(capsys, "translate", TEXT, *more) == task(TEXT).text + "\n"
    lines = f"{task(TEXT).text}\n\n  {task('Marie plays!').text}\n"
    assert good(capsys, "translate", "texts.txt", *more) == lines
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(Path("texts.txt").read_bytes())))
    assert good(capsys, "translate", *more) == lines
    output = good(capsys, "translate", TEXT, "Marie plays!", *more)
    assert output.splitlines() == [task(TEXT).text, task("Marie plays!").text]
    table = good(
        capsys, "translate", TEXT, *more, "--num-beams", "4", "--num-return-sequences", "3"
    )
    result = task(TEXT, num_beams=4, num_return_sequences=3)
    assert table.split()[:2] == ["score", "text"]
    assert all(f"{candidate.score:.4f}" in table for candidate in result.candidates)
    (row,) = rows(
        capsys, "translate", TEXT, *more, "--num-beams", "4", "--num-return-sequences", "3"
    )
    assert row["source"] == TEXT
    assert [candidate["text"] for candidate in row["candidates"]] == [
        candidate.text for candidate in result.candidates
    ]
    assert row["tokens"] == [*result.tokens]


def test_translate_between_languages(capsys: pytest.CaptureFixture[str]) -> None:
    more = [*model("mbart"), "--max-new-tokens", "6"]
    expected = qkv.task(
        "translate", MODELS / "mbart", src_lang="en_XX", tgt_lang="de_DE", max_new_tokens=6
    )(TEXT)
    assert (
        good(capsys, "translate", TEXT, *more, "--src-lang", "en", "--tgt-lang", "de")
        == expected.text + "\n"
    )
    assert "the target language is unknown; expected src_lang and tgt_lang of" in bad(
        capsys, "translate", TEXT, *more
    )
    assert "tgt_lang is 'xx', expected one of ar" in bad(
        capsys, "translate", TEXT, *more, "--tgt-lang", "xx"
    )


@pytest.mark.parametrize("command", ["translate", "summarize"])
def test_a_record_of_a_file_is_a_text(capsys: pytest.CaptureFixture[str], command: str) -> None:
    Path("letters.csv").write_text(f'id,body,note\n1,"{TEXT}",x\n2,"It rained.\nA lot.",y\n')
    more = [*model("marian"), "--max-new-tokens", "4"]
    result = rows(capsys, command, "letters.csv", "--column", "body", *more)
    assert [row["source"] for row in result] == [TEXT, "It rained.\nA lot."]
    assert "the columns are 'id', 'body', 'note'" in bad(capsys, command, "letters.csv", *more)


@pytest.mark.parametrize("command", ["translate", "summarize"])
def test_sampling(capsys: pytest.CaptureFixture[str], command: str) -> None:
    more = [*model("marian"), "--max-new-tokens", "9", "--num-beams", "1"]
    sampling = ["--temperature", "1.5", "--top-p", "0.95", "--top-k", "30"]
    settings = dict(max_new_tokens=9, num_beams=1, temperature=1.5, top_p=0.95, top_k=30)
    task: Any = create_task(command, MODELS / "marian", settings)
    texts = set()
    for seed in (1, 2):
        expected = task(TEXT, seed=seed).text
        assert good(capsys, command, TEXT, *more, *sampling, "--seed", str(seed)) == f"{expected}\n"
        texts.add(expected)
    assert len(texts) == 2
    stop = expected[2:4]
    stopped = good(capsys, command, TEXT, *more, *sampling, "--seed", "2", "--stop-strings", stop)
    assert stopped == task(TEXT, seed=2, stop_strings=[stop]).text + "\n"
    assert stop in stopped
    assert len(stopped) <= len(expected)
    assert "use --no-do-sample" in bad(capsys, command, TEXT, *more, "--temperature", "0")


def test_summarize(capsys: pytest.CaptureFixture[str]) -> None:
    task = qkv.task("summarize", MODELS / "bart", max_new_tokens=8, min_length=5)
    more = [*model("bart"), "--max-new-tokens", "8", "--min-length", "5"]
    text = Path("texts.txt").read_text(encoding="utf-8").removesuffix("\n")
    assert good(capsys, "summarize", "texts.txt", *more) == task(text).text + "\n"
    Path("long.txt").write_text(f"{TEXT} " * 20, encoding="utf-8")
    assert "tokens, expected at most 64" in bad(capsys, "summarize", "long.txt", *more)
    assert good(capsys, "summarize", "long.txt", *more, "--overflow", "truncate")
    window = task.with_settings({"overflow": "window"})
    text = Path("long.txt").read_text(encoding="utf-8")
    assert (
        good(capsys, "summarize", "long.txt", *more, "--overflow", "window")
        == window(text).text + "\n"
    )
    recursive = good(capsys, "summarize", "long.txt", *more, "--overflow", "window", "--recursive")
    assert recursive == window(text, recursive=True).text + "\n"
    for overflow in ([], ["--overflow", "truncate"]):
        message = bad(capsys, "summarize", "long.txt", *more, "--recursive", *overflow)
        assert "also set --overflow window" in message
    more = [*model("marian"), "--max-new-tokens", "3", "--overflow", "window"]
    assert good(capsys, "translate", "long.txt", *more).endswith("\n")
    more = ["--model", "gpt", "--device", "cpu", "--max-new-tokens", "3"]
    assert "tokens, expected at most 31" in bad(capsys, "complete", "long.txt", *more)
    assert good(capsys, "complete", "long.txt", *more, "--overflow", "window").startswith(text)


def test_complete(capsys: pytest.CaptureFixture[str]) -> None:
    task = qkv.task("complete", "gpt", max_new_tokens=8)
    more = ["--model", "gpt", "--device", "cpu", "--max-new-tokens", "8"]
    assert good(capsys, "complete", "Clara", *more) == task("Clara").text + "\n"
    sampling_flags = ["--temperature", "0.8", "--top-p", "0.9", "--top-k", "40", "--seed", "4"]
    expected = task("Clara", temperature=0.8, top_p=0.9, top_k=40, seed=4)
    assert good(capsys, "complete", "Clara", *more, *sampling_flags) == expected.text + "\n"
    assert (
        good(capsys, "complete", "Clara", *more, *sampling_flags, "--stream")
        == expected.text + "\n"
    )
    (row,) = rows(capsys, "complete", "Clara", *more, *sampling_flags)
    assert (row["prompt"], row["new_text"], row["finish_reason"]) == (
        "Clara",
        expected.new_text,
        expected.finish_reason,
    )
    stop = expected.new_text[2:4]
    cut = good(
        capsys, "complete", "Clara", *more, *sampling_flags, "--stop-strings", stop, "--stream"
    )
    sampling = dict(temperature=0.8, top_p=0.9, top_k=40, seed=4)
    assert cut == task("Clara", **sampling, stop_strings=stop).text + "\n"
    assert stop in cut
    assert len(cut) < len(expected.text)


def test_constraints(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("llguidance", reason="--regex needs llguidance: pip install qkv[guide]")
    task = qkv.task("complete", "gpt", max_new_tokens=40)
    more = ["--model", "gpt", "--device", "cpu", "--max-new-tokens", "40"]
    expected = task("Clara", regex="-?[a-z]{3,9}")
    assert re.fullmatch("-?[a-z]{3,9}", expected.new_text.strip())
    for extra in ([], ["--stream"]):
        flags = ["--regex", "-?[a-z]{3,9}", *extra]
        assert good(capsys, "complete", "Clara", *more, *flags) == expected.text + "\n"
    schema = '{"enum": ["lives", "plays"]}'
    Path("schema.json").write_text(schema, encoding="utf-8")
    expected = task("Clara", json_schema=schema)
    for value in (schema, "schema.json"):
        flags = ["--json-schema", value]
        assert good(capsys, "complete", "Clara", *more, *flags) == expected.text + "\n"
    text = good(capsys, "translate", TEXT, *model("marian"), "--force-words", "harp", "Anna")
    expected_text = qkv.task("translate", MODELS / "marian", force_words=["harp", "Anna"])(TEXT)
    assert text == expected_text.text + "\n"
    flags = ["--assistant-model", "gpt"]
    assert good(capsys, "complete", "Clara", *more, *flags) == task("Clara").text + "\n"


@pytest.mark.parametrize(("arguments", "wrong"), [
    (["--regex", "[a-"], "regex is '[a-': unclosed character class"),
    (["--json-schema", "{a"], "json_schema is not JSON"),
    (["--json-schema", "none.json"], "json_schema is 'none.json', expected a JSON object or a file"),
    (["--force-words", ""], "force_words contains ('',), expected words"),
    (["--assistant-model", str(MODELS / "bart")], "assistant_model has another"),
    (["--draft-model", "gpt"], "Did you mean --assistant-model?"),
    (["--temperature", "0"], "use --no-do-sample"),
    (["--temperature", "-1"], "temperature is -1"), (["--temperature", "nan"], "temperature is nan"),
    (["--top-p", "2"], "top_p is 2"), (["--stop-strings", ""], "stop_strings is ('',)"),
    (["--num-beams", "0"], "num_beams is 0"),
    (["--num-beams", "100000"], "num_beams is 100000"),
    (["--control-code", "Links"], "control_code is 'Links'"),
    (["--stream", "--json"], "expected one of them"),
    (["--stream", "--num-return-sequences", "2", "--do-sample"], "num_return_sequences is 2"),
    (["--stream", "--num-return-sequences", "2"], "num_return_sequences is 2, expected 1 for a stream"),
    (["--stream", "--num-return-sequences", "2", "--num-beams", "3"], "num_return_sequences is 2"),
    (["--max-new-tokens", "0"], "max_new_tokens is 0"),
    (["--num-return-sequences", "3", "--num-beams", "2"], "num_return_sequences is 3, expected at most 2"),
])  # fmt: skip
def test_errors_are_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], wrong: str
) -> None:
    assert wrong in bad(
        capsys, "complete", "Clara", "--model", "gpt", "--device", "cpu", *arguments
    )


def test_the_closest_option_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (
        ["translate", TEXT],
        ["translate"],
        ["complete"],
        ["complete", TEXT],
        ["summarize", TEXT],
    ):
        assert "Unknown option: --num-beam. Did you mean --num-beams?" in bad(
            capsys, *command, "--num-beam", "5"
        )
        assert "Did you mean --num-beams?" in bad(
            capsys, *command, "--num-beam=5", "--model", "gpt"
        )


def test_errors_of_texts_and_models(capsys: pytest.CaptureFixture[str]) -> None:
    for stream in ([], ["--stream"]):
        assert "text is empty" in bad(capsys, "complete", "", "--model", "gpt", *stream)
    assert "text is empty" in bad(capsys, "translate", "", *model("marian"))
    assert "`translate` needs an encoder-decoder" in bad(
        capsys, "translate", TEXT, "--model", "gpt"
    )
    assert "`complete` needs a decoder" in bad(capsys, "complete", TEXT, *model("marian"))
    assert "no such file" in bad(capsys, "summarize", "none.txt", *model("bart"))
    assert main(["translate", "--help"]) == 0
