"""Bad input, every command of a task with every kind of it: one line on stderr, exit 2, nothing on stdout."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qkv.cli import output
from tests.cli.test_read import bad, good, model
from tests.conftest import ROOT
from tests.tasks.test_tasks import built

IMAGE = str(ROOT / "tests" / "goldens" / "pipelines" / "images" / "tall.png")
MEGABYTE = "Clara waits in Zurich. " * 43_500
OWN = {"gpt": ("gpt2", "lm"), "electra": ("electra", "replaced")}

# A command with TEXT where the text goes, and its model.
COMMANDS = {
    "classify": ("classify TEXT", "bert-label"), "tag": ("tag TEXT", "bert-tag"),
    "fill": ("fill TEXT", "bert"), "answer": ("answer Who? --in TEXT", "bert-span"),
    "respond": ("answer Who? --in TEXT", "t5"), "embed": ("embed TEXT --json", "bert"),
    "detect": ("detect TEXT", "electra"), "score": ("score TEXT", "gpt"),
    "translate": ("translate TEXT", "marian"), "complete": ("complete TEXT", "gpt"),
    "stream": ("complete TEXT --stream", "gpt"), "summarise": ("summarise TEXT", "bart"),
    "translate in parts": ("translate TEXT --long window", "marian"),
    "summarise in parts": ("summarise TEXT --long window --again", "bart"),
    "complete the end": ("complete TEXT --long window", "gpt"),
}  # fmt: skip
QUESTIONS = {"question": ("answer TEXT --in Clara.", "bert-span"), "asked": ("answer TEXT --in Clara.", "t5")}
TEXTS = {
    "": "is empty, expected some words", "  \t ": "is only blanks, expected some words",
    "a\udcffb": "a lone surrogate, U+DCFF at character",
}  # fmt: skip
FILES = {
    "none.txt": "none.txt: no such file", "my other file.TXT": "my other file.TXT: no such file",
    "none.txt.zip": "no such file", "my none.csv.xz": "no such file", "none.parquet": "no such file",
    "here": "here: a folder; expected a text, or a file",
    "./here": "a folder", "empty.txt": "empty.txt: empty; expected text", "blank.txt": "blank",
    "binary.txt": "binary.txt, line 1: a NUL byte, expected text; is this a binary file?",
    "latin.txt": "latin.txt, line 1: byte 0xdf in column 5 is not utf-8", "--nope": "nknown option",
}  # fmt: skip
WRITE = ["translate", "summarise", "complete", "stream", "respond"]
SETTINGS = {
    "--beam 0": "--beam is 0", "--beam 100000": "--beam is 100000", "--beam 1.5": "expected a whole number",
    "--best 0": "--best is 0", "--best 100000": "--best is 100000", "--max-new 0": "--max-new is 0",
    "--max-new -1": "--max-new is -1", "--length-penalty nan": "--length-penalty is nan",
    "--length-penalty -1e6": "--length-penalty is -1000000", "--batch 0": "--batch is 0",
    "--long wide": "Choose from", "--adapter here": "adapter_config.json",
}  # fmt: skip
DRAWN = {
    "--temperature -1": "--temperature is -1", "--temperature nan": "--temperature is nan",
    "--top-p 2": "--top-p is 2", "--top-k -1": "--top-k is -1", "--seed -1": "--seed is -1",
    f"--seed {'9' * 400}": "--seed is 999", "--stop ''": "--stop is ''", "--code Links": "--code is 'Links'",
}  # fmt: skip
OTHERS = """
    translate x --to xx               marian      --to is 'xx', and this model has no languages
    translate x --to xx               mbart       --to is 'xx', expected one of ar, cs, de
    translate x --from zz --to de     mbart       --from is 'zz', expected one of ar, cs, de
    translate x --to xx               t5          any to xx: expected one of en to de
    translate x                       gpt         `translate` needs an encoder-decoder
    summarise x                       bert        `summarise` needs an encoder-decoder
    complete x                        bert        `complete` needs a decoder
    tag x                             gpt         `tag` needs a head
    fill x                            clip        `fill` needs a head for masked
    answer x --in x                   clip        `answer` needs a head for spans, or an encoder-decoder
    match IMAGE labels.txt            bert        `match` needs two towers
    match none.png labels.txt         clip        none.png: no image that can be read
    match here labels.txt             clip        here: no image that can be read
    match labels.txt labels.txt       clip        labels.txt: no image that can be read
    match IMAGE none                  clip        none: no such file; expected one with a text in each line
    match IMAGE here                  clip        here: a folder
    match IMAGE empty.txt             clip        empty.txt: empty
    match IMAGE labels.txt --top 0    clip        --top is 0
    classify x --top 0                bert-label  --top is 0
    fill x --top 0                    bert        --top is 0
    answer x --in x --top 0           bert-span   --top is 0
    answer x --in x --longest 0       bert-span   --longest is 0
    detect x --above nan              electra     --above is nan
    tag x --stride -1                 bert-tag    --stride is -1
    score x --stride 1.5              gpt         expected a whole number
    embed x --out here/none/v.npy     bert        no folder here/none
    translate x --beam 4 --max-new 20 --length-penalty -9  marian  no result: --length-penalty is -9
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files that are none, and two models."""
    found = tmp_path_factory.mktemp("bad")
    for name, (family, head) in OWN.items():
        built(family, head).save(found / name)
    (found / "here").mkdir()
    (found / "empty.txt").write_bytes(b"")
    (found / "blank.txt").write_bytes(b"  \n \n")
    (found / "binary.txt").write_bytes(bytes(range(256)) * 9)
    (found / "latin.txt").write_bytes("Straße".encode("latin-1"))
    (found / "labels.txt").write_bytes(b"a boat\nbread\n")
    return found


@pytest.fixture(autouse=True)
def _there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def line(command: str, name: str, text: str = "") -> list[str]:
    """The arguments of a command."""
    words = [{"TEXT": text, "IMAGE": IMAGE, "''": ""}.get(word, word) for word in command.split()]
    return [*words, *(["--model", name] if name in OWN else model(name)[:2]), "--device", "cpu"]


@pytest.mark.parametrize("command", COMMANDS | QUESTIONS)
def test_texts_that_are_none(capsys: pytest.CaptureFixture[str], command: str) -> None:
    for text, wrong in TEXTS.items():
        assert wrong in bad(capsys, *line(*(COMMANDS | QUESTIONS)[command], text))


@pytest.mark.parametrize("command", COMMANDS)
def test_files_that_are_none(capsys: pytest.CaptureFixture[str], command: str) -> None:
    for file, wrong in FILES.items():
        assert wrong in bad(capsys, *line(*COMMANDS[command], file))


@pytest.mark.parametrize("command", WRITE)
def test_settings(capsys: pytest.CaptureFixture[str], command: str) -> None:
    words, name = COMMANDS[command]
    for settings, wrong in (SETTINGS | (DRAWN if name == "gpt" else {})).items():
        assert wrong in bad(capsys, *line(f"{words} {settings}", name, "Clara waits."))


@pytest.mark.parametrize("row", OTHERS.strip().splitlines())
def test_what_one_command_alone_can_be_told(capsys: pytest.CaptureFixture[str], row: str) -> None:
    words, name, wrong = re.split(" {2,}", row.strip())
    assert wrong in bad(capsys, *line(words, name))


@pytest.mark.parametrize("command", "classify translate complete summarise asked".split())
def test_a_megabyte_in_one_line_is_too_long_and_it_says_by_how_much(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    told = bad(capsys, *line(*(COMMANDS | QUESTIONS)[command], MEGABYTE))
    assert " tokens, " in told
    assert "that are read at once" in told
    assert len(told) < 300


def test_nul_is_a_letter_that_says_little(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("classify", "tag", "embed", "detect"):
        assert "nothing in it that this tokenizer knows" in bad(capsys, *line(*COMMANDS[command], "\0"))
    assert "the question of text: nothing in it" in bad(capsys, *line(*QUESTIONS["question"], "\0"))
    for command in ("classify", "translate", "complete", "summarise", "respond"):
        more = [] if command == "classify" else ["--max-new", "3"]
        assert good(capsys, *line(*COMMANDS[command], "Cla\0ra waits."), *more)


def test_a_complaint_is_a_line_that_no_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    said = bad(capsys, *line(f"translate x --to \x1b[31m{'y' * 100_000}", "mbart"))
    assert "\x1b" not in said
    assert len(said) < 5000


def test_many_rows_are_told_quickly(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = good(capsys, *line("tag TEXT", "bert-tag", "Clara waits in Zurich. " * 9))
    monkeypatch.setattr(output, "MANY", 3)
    many = good(capsys, *line("tag TEXT", "bert-tag", "Clara waits in Zurich. " * 9))
    rows = [each.split() for each in few.splitlines() if each.strip() and "─" not in each]
    assert rows == [each.split() for each in many.splitlines()]
