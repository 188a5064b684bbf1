"""Tokenizer commands: train and show, with files and standard input."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from qkv.cli import main
from qkv.cli.tokenizers import MAX_SAMPLE_TEXTS, TextSample
from qkv.text import Tokenizer

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT = "Run, rabbit run.\nDig that hole, forget the sun.\n"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    Path("text.txt").write_text(TEXT * 20)


def good(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["tokenizer", *map(str, arguments)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def bad(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Assert exit status 2, empty stdout and one line on stderr; return the line."""
    assert main(["tokenizer", *map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"qkv: .+\n", err)
    return err.removeprefix("qkv: ").strip()


def set_stdin(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8"))


# --- train ---


def test_train(capsys: pytest.CaptureFixture[str]) -> None:
    out = good(capsys, "train", "text.txt", "--type", "bpe", "--vocab-size", 60, "--out", "tok")
    lines = out.splitlines()
    assert lines[0] == "read     40 texts, 960 characters"
    assert re.fullmatch(r"trained  \d\d tokens \(bpe\) in \d+\.\d s", lines[1])
    assert re.fullmatch(r"ratio    \d\.\d\d characters per token, measured on 40 texts", lines[2])
    assert lines[3:] == ["wrote    tok"]
    tokenizer = Tokenizer.load("tok")
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    assert tokenizer.decode(ids) == TEXT
    packed = (
        len(TEXT)
        * 20
        / sum(
            len(tokenizer.encode(line, add_special_tokens=False)) for line in TEXT.splitlines(True)
        )
        / 20
    )
    assert float(lines[2].split()[1]) == pytest.approx(packed, abs=0.01)


def test_every_option_reaches_the_tokenizer(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--type", "wordpiece", "--vocab-size", 90, "--template", "bert", "--lowercase")
    good(
        capsys,
        "train",
        "text.txt",
        *flags,
        "--num-sentinels",
        3,
        "--extra-tokens",
        "en",
        "de",
        "--out",
        "tok",
    )
    tokenizer = Tokenizer.load("tok")
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("RUN")[0]) == "[CLS]"
    assert tokenizer.encode("RUN") == tokenizer.encode("run")
    assert len(tokenizer.sentinel_token_ids) == 3
    assert set(tokenizer.languages) == {"en", "de"}


def test_files_of_many_kinds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good(capsys, "train", "text.txt", "--vocab-size", 300, "--out", "plain")
    Path("text.txt.xz").write_bytes(lzma.compress((TEXT * 10).encode()))
    Path("more.txt.gz").write_bytes(gzip.compress((TEXT * 10).encode()))
    good(capsys, "train", "text.txt.xz", "more.txt.gz", "--vocab-size", 300, "--out", "packed")
    set_stdin(monkeypatch, TEXT * 20)
    good(capsys, "train", "-", "--vocab-size", 300, "--out", "piped")
    rows = [json.dumps({"review": line, "label": "x"}) for line in (TEXT * 20).splitlines()]
    Path("rows.jsonl").write_text("\n".join(rows))
    good(
        capsys,
        "train",
        "rows.jsonl",
        "--column",
        "review",
        "--vocab-size",
        300,
        "--out",
        "picked",
    )
    expected = Path("plain/tokenizer.json").read_bytes()
    assert all(
        Path(name, "tokenizer.json").read_bytes() == expected
        for name in ("packed", "piped", "picked")
    )
    assert "no text column in 'review', 'label'" in bad(capsys, "train", "rows.jsonl", "--out", "x")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no file"),
        (["gone.txt"], "gone.txt: no files found"),
        (["text.txt", "--type", "guess"], "guess"),
        (["text.txt", "--template", "guess"], "template 'guess': expected one of bert,"),
        (["text.txt", "--vocab-size", "3"], "vocab_size 3: expected at least 257"),
        (["text.txt", "--vocab-size", "0"], "--vocab-size 0"),
        (["text.txt", "--num-sentinels", "-1"], "--num-sentinels -1"),
        (["text.txt", "--extra-tokens", "a:b"], "extra token 'a:b'"),
        (["text.txt", "--vocabulary", "3"], "Unknown option: --vocabulary"),
        (["empty.txt"], "empty.txt: empty"),
        (["binary.txt"], "NUL byte"),
    ],
)
def test_errors_are_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    Path("empty.txt").touch()
    Path("binary.txt").write_bytes(b"a\0b")
    assert words in bad(capsys, "train", *arguments, "--out", "tok")
    assert not Path("tok").exists()


def test_nothing_is_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    for target in (".", "text.txt"):
        assert "already exists" in bad(capsys, "train", "text.txt", "--out", target)


def test_a_sample_is_uniform() -> None:
    counts: list[int] = []
    sample = TextSample()
    texts = [f"{number}" for number in range(10 * MAX_SAMPLE_TEXTS)]
    assert list(sample.collect(texts, counts.append)) == texts
    assert (sample.num_texts, sample.num_characters) == (len(texts), sum(counts))
    assert len(sample.samples) == len(set(sample.samples)) == MAX_SAMPLE_TEXTS
    mean = sum(map(int, sample.samples)) / MAX_SAMPLE_TEXTS
    assert abs(mean / len(texts) - 0.5) < 0.05


# --- show ---


@pytest.fixture
def tok() -> str:
    tokenizer = Tokenizer.train(
        [TEXT], type="wordpiece", vocab_size=80, template="bert", lowercase=True
    )
    tokenizer.save("tok")
    return "tok"


def test_show(capsys: pytest.CaptureFixture[str], tok: str) -> None:
    lines = good(capsys, "show", tok, "Run, sun").splitlines()
    assert lines[0] == "[CLS]|run|,|sun|[SEP]"
    rows = [line.split() for line in lines if line.strip()][3:]
    tokenizer = Tokenizer.load(tok)
    assert [row[0] for row in rows] == ["[CLS]", "run", ",", "sun", "[SEP]"]
    assert [int(row[1]) for row in rows] == tokenizer.encode("Run, sun")
    assert [row[2:] for row in rows] == [
        [],
        ["0", "3", "Run"],
        ["3", "4", ","],
        ["5", "8", "sun"],
        [],
    ]


def test_show_a_pair_as_json(capsys: pytest.CaptureFixture[str], tok: str) -> None:
    output = json.loads(good(capsys, "show", tok, "run", "--text-pair", "sun", "--json"))
    assert output["tokens"] == ["[CLS]", "run", "[SEP]", "sun", "[SEP]"]
    assert output["token_type_ids"] == [0, 0, 0, 1, 1]
    assert output["sequence_ids"] == [None, 0, None, 1, None]
    assert output["offset_mapping"][3] == [0, 3]
    assert "sun" in good(capsys, "show", tok, "run", "--text-pair", "sun").splitlines()[-3]


def test_show_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tok: str
) -> None:
    set_stdin(monkeypatch, "run\n")
    assert good(capsys, "show", tok, "-").startswith("[CLS]|run|[SEP]\n")


def test_show_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    Tokenizer.train(["a\n\tb\x07"], type="char", vocab_size=20, template="plain").save("letters")
    assert good(capsys, "show", "letters", "a\n\tb\x07").startswith("a|⏎|⇥|b|␇\n")
    assert good(capsys, "show", "letters", "").split()[:5] == [
        "token",
        "id",
        "start",
        "end",
        "text",
    ]


def test_show_errors(capsys: pytest.CaptureFixture[str], tok: str) -> None:
    assert "./none: no such folder" in bad(capsys, "show", "./none", "x")
    assert "TEXT" in bad(capsys, "show", tok)
    Path("hollow").mkdir()
    assert "hollow" in bad(capsys, "show", "hollow", "x")
    assert "--jsonn" in bad(capsys, "show", tok, "x", "--jsonn")


@pytest.mark.parametrize("color", [True, False])
def test_colors(tok: str, color: bool) -> None:
    environment = {
        "PATH": "",
        "PYTHONPATH": str(ROOT),
        "FORCE_COLOR": "1",
        "TERM": "xterm-256color",
    }
    environment |= {"COLORTERM": "truecolor"} | ({} if color else {"NO_COLOR": "1"})
    code = (
        "import sys; from qkv.cli import main\n"
        "assert not main(sys.argv[1:]) and 'torch' not in sys.modules"
    )
    command = [sys.executable, "-c", code, "tokenizer", "show", tok, "run, sun"]
    done = subprocess.run(
        command, capture_output=True, encoding="utf-8", env=environment, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    first = done.stdout.splitlines()[0]
    if color:
        styles = re.findall(r"\x1b\[([1-9][\d;]*)m", first)
        assert styles[0] == styles[-1] == "2"  # dim
        assert len(set(styles[1:-1])) == 3
        assert re.sub(r"\x1b\[[\d;]*m", "", first) == "[CLS]run,sun[SEP]"
    else:
        assert not re.search(r"\x1b\[[\d;]*[34]\d", done.stdout)
        assert re.sub(r"\x1b\[[\d;]*m", "", first) == "[CLS]|run|,|sun|[SEP]"


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command, example in (
        ("train", "qkv tokenizer train corpus.txt"),
        ("show", "qkv tokenizer show tok"),
    ):
        assert example in good(capsys, command, "--help")
    assert os.listdir() == ["text.txt"]
