"""Bad input for every task command: one line on stderr, exit status 2, nothing on stdout."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qkv.cli import output
from tests.cli.test_read import bad, good, model
from tests.conftest import ROOT
from tests.tasks.test_tasks import build_model

IMAGE = str(ROOT / "tests" / "goldens" / "pipelines" / "images" / "tall.png")
MEGABYTE = "Clara waits in Zurich. " * 43_500
OWN = {"gpt": ("gpt2", "lm"), "electra": ("electra", "replaced-token-detection")}

# name -> (command with TEXT as the place of the text, model)
COMMANDS = {
    "classify": ("classify TEXT", "bert-label"), "tag": ("tag TEXT", "bert-tag"),
    "fill": ("fill TEXT", "bert"), "answer": ("answer Who? --context TEXT", "bert-span"),
    "respond": ("answer Who? --context TEXT", "t5"), "embed": ("embed TEXT --json", "bert"),
    "detect": ("detect TEXT", "electra"), "score": ("score TEXT", "gpt"),
    "translate": ("translate TEXT", "marian"), "complete": ("complete TEXT", "gpt"),
    "stream": ("complete TEXT --stream", "gpt"), "summarize": ("summarize TEXT", "bart"),
    "translate in parts": ("translate TEXT --overflow window", "marian"),
    "summarize in parts": ("summarize TEXT --overflow window --recursive", "bart"),
    "complete the end": ("complete TEXT --overflow window", "gpt"),
}  # fmt: skip
QUESTIONS = {
    "question": ("answer TEXT --context Clara.", "bert-span"),
    "asked": ("answer TEXT --context Clara.", "t5"),
}
TEXTS = {
    "": "is empty, expected a text", "  \t ": "is only whitespace, expected a text",
    "a\udcffb": "a lone surrogate, U+DCFF at character",
}  # fmt: skip
FILES = {
    "none.txt": "none.txt: no such file", "my other file.TXT": "my other file.TXT: no such file",
    "none.txt.zip": "no such file", "my none.csv.xz": "no such file", "none.parquet": "no such file",
    "here": "here: a folder; expected a text, or a file",
    "./here": "a folder", "empty.txt": "empty.txt: empty; expected text",
    "binary.txt": "binary.txt, line 1: a NUL byte, expected text; is this a binary file?",
    "latin.txt": "latin.txt, line 1: byte 0xdf in column 5 is not utf-8", "--nope": "nknown option",
}  # fmt: skip
WRITE = ["translate", "summarize", "complete", "stream", "respond"]
SETTINGS = {
    "--num-beams 0": "num_beams is 0", "--num-beams 100000": "num_beams is 100000",
    "--num-beams 1.5": "expected a whole number", "--num-return-sequences 0": "num_return_sequences is 0",
    "--num-return-sequences 100000": "num_return_sequences is 100000",
    "--max-new-tokens 0": "max_new_tokens is 0", "--max-new-tokens -1": "max_new_tokens is -1",
    "--length-penalty nan": "length_penalty is nan", "--length-penalty -1e6": "length_penalty is -1000000",
    "--batch-tokens 0": "batch_tokens is 0", "--overflow wide": "Choose from",
    "--adapter here": "adapter_config.json",
}  # fmt: skip
DRAWN = {
    "--temperature -1": "temperature is -1", "--temperature nan": "temperature is nan",
    "--top-p 2": "top_p is 2", "--top-k -1": "top_k is -1", "--seed -1": "seed is -1",
    f"--seed {'9' * 400}": "seed is 999", "--stop-strings ''": "stop_strings is ('',)",
    "--control-code Links": "control_code is 'Links'",
}  # fmt: skip
OTHERS = """
    translate x --tgt-lang xx         marian      tgt_lang is 'xx', expected none: this model has no language
    translate x --tgt-lang xx         mbart       tgt_lang is 'xx', expected one of ar, cs, de
    translate x --src-lang zz --tgt-lang de  mbart  src_lang is 'zz', expected one of ar, cs, de
    translate x --tgt-lang xx         t5          any to xx: expected one of en to de
    translate x                       gpt         `translate` needs an encoder-decoder
    summarize x                       bert        `summarize` needs an encoder-decoder
    complete x                        bert        `complete` needs a decoder
    tag x                             gpt         `tag` needs a token-classification head
    fill x                            clip        `fill` needs a masked-lm head
    answer x --context x              clip        `answer` needs a question-answering head, or an enc
    match IMAGE labels.txt            bert        `match` needs two towers
    match none.png labels.txt         clip        none.png: not a readable image
    match here labels.txt             clip        here: not a readable image
    match labels.txt labels.txt       clip        labels.txt: not a readable image
    match IMAGE none                  clip        none: no such file; expected a file with one text per line
    match IMAGE here                  clip        here: a folder
    match IMAGE empty.txt             clip        empty.txt: empty
    match IMAGE labels.txt --top-k 0  clip        top_k is 0
    classify x --top-k 0              bert-label  top_k is 0
    fill x --top-k 0                  bert        top_k is 0
    answer x --context x --top-k 0    bert-span   top_k is 0
    answer x --context x --max-answer-tokens 0  bert-span  max_answer_tokens is 0
    detect x --threshold nan          electra     threshold is nan
    tag x --stride -1                 bert-tag    stride is -1
    score x --stride 1.5              gpt         expected a whole number
    embed x --out here/none/v.npy     bert        no folder here/none
    translate x --num-beams 4 --max-new-tokens 20 --length-penalty -9  marian  no result with length_pe
"""


@pytest.fixture(scope="module")
def folder_with_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with invalid files and two models."""
    folder = tmp_path_factory.mktemp("bad")
    for name, (family, head) in OWN.items():
        build_model(family, head).save(folder / name)
    (folder / "here").mkdir()
    (folder / "empty.txt").write_bytes(b"")
    (folder / "blank.txt").write_bytes(b"  \n \n")
    (folder / "binary.txt").write_bytes(bytes(range(256)) * 9)
    (folder / "latin.txt").write_bytes("Straße".encode("latin-1"))
    (folder / "labels.txt").write_bytes(b"a boat\nbread\n")
    return folder


@pytest.fixture(autouse=True)
def _in_that_folder(folder_with_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder_with_files)


def line(command: str, name: str, text: str = "") -> list[str]:
    """Return the arguments of a command."""
    words = [{"TEXT": text, "IMAGE": IMAGE, "''": ""}.get(word, word) for word in command.split()]
    return [*words, *(["--model", name] if name in OWN else model(name)[:2]), "--device", "cpu"]


@pytest.mark.parametrize("command", COMMANDS | QUESTIONS)
def test_invalid_texts(capsys: pytest.CaptureFixture[str], command: str) -> None:
    for text, wrong in TEXTS.items():
        assert wrong in bad(capsys, *line(*(COMMANDS | QUESTIONS)[command], text))


@pytest.mark.parametrize("command", COMMANDS)
def test_invalid_files(capsys: pytest.CaptureFixture[str], command: str) -> None:
    for file, wrong in FILES.items():
        assert wrong in bad(capsys, *line(*COMMANDS[command], file))


@pytest.mark.parametrize("command", ["answer", "respond", "stream"])
def test_a_blank_file_is_an_error_if_it_is_not_a_list(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert "text is only whitespace" in bad(capsys, *line(*COMMANDS[command], "blank.txt"))


@pytest.mark.parametrize("command", WRITE)
def test_invalid_settings(capsys: pytest.CaptureFixture[str], command: str) -> None:
    words, name = COMMANDS[command]
    for settings, wrong in (SETTINGS | (DRAWN if name == "gpt" else {})).items():
        assert wrong in bad(capsys, *line(f"{words} {settings}", name, "Clara waits."))


@pytest.mark.parametrize("row", OTHERS.strip().splitlines())
def test_settings_of_one_command(capsys: pytest.CaptureFixture[str], row: str) -> None:
    words, name, wrong = re.split(" {2,}", row.strip())
    assert wrong in bad(capsys, *line(words, name))


@pytest.mark.parametrize("command", "classify translate complete summarize asked".split())
def test_a_megabyte_of_text_is_too_long(capsys: pytest.CaptureFixture[str], command: str) -> None:
    message = bad(capsys, *line(*(COMMANDS | QUESTIONS)[command], MEGABYTE))
    assert " tokens, " in message
    assert " the limit of " in message or "expected at most" in message
    assert len(message) < 300


def test_nul_characters(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("classify", "tag", "embed", "detect"):
        assert "the tokenizer has no tokens for its characters" in bad(
            capsys, *line(*COMMANDS[command], "\0")
        )
    assert "the question of text: the tokenizer has no tokens" in bad(
        capsys, *line(*QUESTIONS["question"], "\0")
    )
    for command in ("classify", "translate", "complete", "summarize", "respond"):
        more = [] if command == "classify" else ["--max-new-tokens", "3"]
        assert good(capsys, *line(*COMMANDS[command], "Cla\0ra waits."), *more)


def test_an_error_has_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    message = bad(capsys, *line(f"translate x --tgt-lang \x1b[31m{'y' * 100_000}", "mbart"))
    assert "\x1b" not in message
    assert len(message) < 5000


def test_many_rows_are_printed_without_rich(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = good(capsys, *line("tag TEXT", "bert-tag", "Clara waits in Zurich. " * 9))
    monkeypatch.setattr(output, "MAX_RICH_ROWS", 3)
    many = good(capsys, *line("tag TEXT", "bert-tag", "Clara waits in Zurich. " * 9))
    rows = [row.split() for row in few.splitlines() if row.strip() and "─" not in row]
    assert rows == [row.split() for row in many.splitlines()]
