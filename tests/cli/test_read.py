"""The commands of tasks that read: texts from everywhere, tables, JSON, and mistakes in one line."""

from __future__ import annotations

import gzip
import io
import json
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkv
from qkv.cli import main
from qkv.cli.flags import FLAGS, OTHER
from qkv.cli.inputs import PACKED, RECORDS
from qkv.data.read import lines
from qkv.data.read.corpus import ENDINGS
from qkv.tasks.write.base import Written
from tests.conftest import ROOT

MODELS = ROOT / "tests" / "goldens" / "pipelines"
TEXT = "Clara Schmidt waits  in Zurich."


def model(name: str) -> list[str]:
    return ["--model", str(MODELS / name), "--device", "cpu"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    Path("texts.txt").write_text(f"{TEXT}\nIt rained all week.\n", encoding="utf-8")


def good(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in good(capsys, *arguments, "--json").splitlines()]


def bad(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_classify(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = qkv.task("classify", MODELS / "bert-label")(TEXT)
    (found,) = rows(capsys, "classify", TEXT, *model("bert-label"))
    assert (found["text"], found["label"]) == (TEXT, wanted.label)
    assert found["best"][0] == {"label": wanted.label, "score": pytest.approx(wanted.score)}
    shown = good(capsys, "classify", TEXT, *model("bert-label"), "--top", "2").split()
    assert shown[0:2] == ["label", "score"]
    assert wanted.label in shown
    assert len(rows(capsys, "classify", "texts.txt", *model("bert-label"))) == 2
    assert "It rained all week." in good(capsys, "classify", "texts.txt", *model("bert-label"))
    own = ("--labels", "weather", "food and drink", "--several", "--template", "About {}.")
    (found,) = rows(capsys, "classify", TEXT, *model("bert-label"), *own)
    assert {one["label"] for one in found["best"]} == {"weather", "food and drink"}


def test_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for given in ([], ["-"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"One.\nTwo two.\n")))
        found = rows(capsys, "classify", *given, *model("bert-label"))
        assert [row["text"] for row in found] == ["One.", "Two two."]


def test_files_of_records_are_read_by_their_column_of_text(capsys: pytest.CaptureFixture[str]) -> None:
    two = ["A fine film.", "Bad, and long."]
    Path("r.csv").write_text(f'text,label\n{two[0]},1\n"{two[1]}",0\n')
    Path("r.tsv").write_text(f"review\n{two[0]}\n{two[1]}\n")
    Path("r.jsonl").write_text("".join(json.dumps({"n": 1, "said": text}) + "\n" for text in two))
    Path("r.json").write_text(json.dumps([{"text": text, "title": "x"} for text in two]))
    Path("r.csv.gz").write_bytes(gzip.compress(Path("r.csv").read_bytes()))
    for name in ("r.csv", "r.tsv", "r.jsonl", "r.json", "r.csv.gz"):
        assert [row["text"] for row in rows(capsys, "classify", name, *model("bert-label"))] == two
    Path("two.csv").write_text("review,title\nA film.,x\n")
    told = bad(capsys, "classify", "two.csv", *model("bert-label"))
    assert "two.csv, line 2: the columns are 'review', 'title'; expected one named 'text'" in told
    Path("none.jsonl").write_text('{"n": 1}\n')
    assert "the columns are 'n'" in bad(capsys, "classify", "none.jsonl", *model("bert-label"))
    Path("blank.csv").write_text("text,label\n ,1\n")
    assert "blank.csv, line 2: empty" in bad(capsys, "classify", "blank.csv", *model("bert-label"))
    assert {*RECORDS, ".txt"} == {*ENDINGS}
    assert {*PACKED} == {*lines.PACKED}


def test_and_so_is_parquet(capsys: pytest.CaptureFixture[str]) -> None:
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    parquet.write_table(pyarrow.table({"said": [TEXT, "Bad."], "label": [1, 0]}), "r.parquet")
    found = rows(capsys, "classify", "r.parquet", *model("bert-label"))
    assert [row["text"] for row in found] == [TEXT, "Bad."]


def test_a_sentence_may_end_as_a_file_does(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("What was said at the meeting is all in notes.txt", "See:\nnotes.txt"):
        assert rows(capsys, "classify", text, *model("bert-label"))[0]["text"] == text
    Path("my film.txt").write_text(TEXT)
    assert rows(capsys, "classify", "my film.txt", *model("bert-label"))[0]["text"] == TEXT


def test_two_dashes_end_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    found = good(capsys, "classify", "--json", *model("bert-label"), "--", "--bad film", "--top", "texts.txt")
    said = [json.loads(line)["text"] for line in found.splitlines()]
    assert said == ["--bad film", "--top", TEXT, "It rained all week."]
    assert rows(capsys, "classify", "- A film.", *model("bert-label"))[0]["text"] == "- A film."
    assert "that begins so goes behind a lone --" in bad(capsys, "classify", "--bad film")
    given = ["answer", "Who?", "--in=--Clara waits.", *model("bert-span")]
    assert rows(capsys, *given)[0]["text"] in "--Clara waits."


def test_tag(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys, "tag", TEXT, "texts.txt", *model("bert-tag"), "--join", "max")
    assert [row["text"] for row in found] == [TEXT, TEXT, "It rained all week."]
    assert found[0]["entities"] == found[1]["entities"]
    assert all(one["text"] == TEXT[one["start"] : one["end"]] for one in found[0]["entities"])
    assert (
        good(capsys, "tag", "texts.txt", *model("bert-tag")).split()[:6]
        == "# label score from to entity".split()
    )


def test_fill(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = rows(capsys, "fill", "The [MASK] waits.", *model("bert"), "--top", "3")
    assert found["text"] == "The [MASK] waits."
    assert len(found["gaps"][0]["best"]) == 3
    assert found["filled"] == found["gaps"][0]["best"][0]["text"]
    word = found["gaps"][0]["best"][0]["word"]
    assert word in good(capsys, "fill", "The [MASK] waits.", *model("bert"))
    (few,) = rows(capsys, "fill", "The [MASK] waits.", *model("bert"), "--targets", "the", "a")
    assert {one["word"] for one in few["gaps"][0]["best"]} == {"the", "a"}


def test_gaps_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    text = "The [MASK] waits in [MASK]."
    wanted = qkv.task("fill", MODELS / "bert", top=2)(text)
    told = good(capsys, "fill", text, *model("bert"), "--top", "2").splitlines()
    rows = [line.split(maxsplit=3) for line in told if "[MASK]" in line]
    assert ["gap", "score", "word", "text"] in [line.split() for line in told]
    assert [row[0] for row in rows] == ["1", "1", "2", "2"]
    assert [row[3] for row in rows] == [word.text for gap in wanted.gaps for word in gap.best]
    assert told[-1] == wanted.text


def test_answer(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = rows(
        capsys, "answer", "Who?", "--in", "texts.txt", *model("bert-span"), "--top", "3", "--none"
    )
    whole = Path("texts.txt").read_text(encoding="utf-8")
    assert len(found["best"]) == 3
    assert all(one["text"] == whole[one["start"] : one["end"]] for one in found["best"])
    assert found["question"] == "Who?"
    assert found["text"] in good(capsys, "answer", "Who?", "--in", "texts.txt", *model("bert-span"))


def test_an_answer_that_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--in", "texts.txt", *model("t5"), "--max-new", "5"]
    text = Path("texts.txt").read_text(encoding="utf-8").removesuffix("\n")
    task = qkv.task("answer", MODELS / "t5", max_new=5)
    (found,) = rows(capsys, "answer", "Who?", *more)
    assert found["text"] == task("Who?", text).text
    assert (found["start"], found["end"]) == (None, None)
    best = ["--generative", "--beam", "3", "--best", "2", "--template", "{context} {question}"]
    (two,) = rows(capsys, "answer", "Who?", *more, *best)
    wanted = task("Who?", text, beams=3, results=2, template="{context} {question}")
    assert [one["text"] for one in two["best"]] == [one.text for one in wanted.best]
    assert wanted.text.split()[0] in good(capsys, "answer", "Who?", *more, *best)
    assert "`answer` needs a head for spans" in bad(capsys, "answer", "Who?", *more, "--no-generative")
    span = ["--in", TEXT, *model("bert-span")]
    assert "needs an encoder-decoder" in bad(capsys, "answer", "Who?", *span, "--generative")
    assert "--beam is not for this model" in bad(capsys, "answer", "Who?", *span, "--beam", "3")
    assert "--template is 'x'" in bad(capsys, "answer", "Who?", *more, "--template", "x")


def test_embed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "wrote vectors.npy: 2 × 16" in good(
        capsys, "embed", "texts.txt", *model("bert"), "--out", "vectors.npy"
    )
    (found, _) = rows(capsys, "embed", "texts.txt", *model("bert"))
    np.testing.assert_allclose(np.load("vectors.npy")[0], found["vector"], rtol=1e-5)
    (unit,) = rows(capsys, "embed", TEXT, *model("bert"), "--unit", "--pool", "first")
    assert np.linalg.norm(unit["vector"]) == pytest.approx(1)
    assert "there is something already" in bad(
        capsys, "embed", "texts.txt", *model("bert"), "--out", "vectors.npy"
    )
    assert "ends in .npy" in bad(capsys, "embed", "texts.txt", *model("bert"), "--out", "vectors.txt")
    assert "expected --out" in bad(capsys, "embed", "texts.txt", *model("bert"))


def test_match(capsys: pytest.CaptureFixture[str]) -> None:
    image = str(MODELS / "images" / "tall.png")
    (found,) = rows(capsys, "match", image, "texts.txt", *model("clip"))
    assert {one["label"] for one in found["best"]} == {TEXT, "It rained all week."}
    assert "It rained" in good(capsys, "match", image, "texts.txt", *model("clip"), "--template", "a {}")
    assert "no image that can be read" in bad(capsys, "match", "texts.txt", "texts.txt", *model("clip"))


def test_score(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = rows(capsys, "score", "texts.txt", *model("bert"))
    assert found["perplexity"] > 1
    assert sum(one["score"] for one in found["tokens"]) == pytest.approx(found["score"])
    assert "perplexity" in good(capsys, "score", TEXT, *model("bert"), "--tokens")


def test_detect(capsys: pytest.CaptureFixture[str]) -> None:
    made = qkv.build("electra", width=16, depth=1, heads=2, feed=24, vocab=200, embed_width=8, length=32)
    made.tokenizer = qkv.Tokenizer.load(MODELS / "bert")
    made.save("electra")
    given = ("detect", TEXT, "--model", "electra", "--device", "cpu")
    (found,) = rows(capsys, *given)
    assert all(one["text"] == TEXT[one["start"] : one["end"]] for one in found["tokens"])
    assert "nothing found" in good(capsys, *given, "--above", "1.0")


@pytest.mark.parametrize(("arguments", "words"), [
    (["classify", ""], "text is empty"),
    (["classify", "  "], "text is only blanks"),
    (["classify", "none.txt"], "none.txt: no such file"),
    (["classify", "a", "--lnog", "cut"], "Unknown option: --lnog. Did you mean --long?"),
    (["classify", "blank.txt"], "blank.txt, line 2: empty"),
    (["classify", "nul.txt"], "nul.txt, line 1: a NUL byte"),
    (["classify", "latin.txt"], "latin.txt, line 1: byte 0xe9"),
    (["classify", "a\udcffb"], "a lone surrogate"),
    (["classify", "word " * 90], "more than the 64 that are read at once; shorten it, or set --long to cut"),
    (["classify", "a", "--long", "window"], "--long is 'window', expected one of refuse, cut"),
    (["classify", "a", "--long", "all"], "--long"),
    (["classify", "a", "--labels", "x", "x"], "label 'x' is there twice"),
    (["classify", "a", "--labels", ""], "a label is empty"),
    (["classify", "a", "--several"], "--several is for labels of your own: expected --labels too"),
    (["classify", "a", "--template", "{}"], "--template is for labels of your own"),
    (["classify", "a", "--batch", "0"], "--batch is 0"),
    (["classify", "a", "--top", "0"], "--top is 0"),
    (["tag", "a"], "this folder holds an encoder with the head label; `tag` needs a head that labels"),
    (["score", "a"], "`score` needs a decoder with the head lm"),
])  # fmt: skip
def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    Path("blank.txt").write_text("one\n\ntwo\n")
    Path("nul.txt").write_bytes(b"a\0b\n")
    Path("latin.txt").write_bytes("é".encode("latin-1"))
    assert words in bad(capsys, *arguments, *model("bert-label"))


def test_a_megabyte_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("long.txt").write_text("It rained. " * 95_000 + "\n")
    assert "more than the 64" in bad(capsys, "classify", "long.txt", *model("bert-label"))
    assert rows(capsys, "classify", "long.txt", *model("bert-label"), "--long", "cut")[0]["label"]


def test_no_model_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--model" in bad(capsys, "tag", "a")
    assert "no such folder" in bad(capsys, "tag", "a", "--model", "./nowhere")


def test_the_folder_of_a_run_is_told_from_its_model(capsys: pytest.CaptureFixture[str]) -> None:
    run = Path("runs") / "sst2"
    run.mkdir(parents=True)
    (run / "recipe.toml").touch()
    for command in (["tag", "a", "--model"], ["show"], ["tag", "a", *model("bert-tag"), "--adapter"]):
        assert "sst2: the folder of a run; it has saved no model yet" in bad(capsys, *command, str(run))
    for name in ("last", "best"):
        shutil.copytree(MODELS / "bert-label", run / name)
        told = bad(capsys, "classify", "a", "--model", str(run))
        assert f"{run}: the folder of a run; its model is in {run / name}" in told
    assert f"expected the folder of a run, which is {run}" in bad(capsys, "eval", str(run / "best"))
    assert "no recipe.toml; expected the folder of a run\n" in bad(capsys, "eval", "runs")


def test_a_model_has_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["classify", "a"], ["tag", "a"], ["classify", "--about"]):
        assert "the name of the model is empty, expected a folder" in bad(capsys, *command, "--model", "")


def test_help_has_an_example_and_needs_no_torch() -> None:
    code = (
        "import sys; from qkv.cli import main\n"
        "for name in sys.argv[1:]: main([name, '--help'])\n"
        "assert not {'torch', 'numpy', 'tokenizers'} & sys.modules.keys()"
    )
    names = "classify tag fill answer embed match detect score".split()
    command = [sys.executable, "-c", code, *names]
    environment = {"PATH": "", "PYTHONPATH": str(ROOT), "COLUMNS": "100", "NO_COLOR": "1"}
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f"qkv {name} " in done.stdout for name in names)
    assert "\x1b[" not in done.stdout


def test_the_keys_of_json_are_those_that_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `(\w+)` \| (`\w+`|–) \| ", page, re.MULTILINE))
    image, more = str(MODELS / "images" / "tall.png"), ["--max-new", "3"]
    asked = {
        "classify": ([TEXT, *model("bert-label")], {"label", "score", "best"}),
        "tag": ([TEXT, *model("bert-tag")], {"entities"}),
        "fill": (["The [MASK].", *model("bert")], {"gaps", "filled"}),
        "answer": (["Who?", "--in", TEXT, *model("bert-span")], {"text", "score", "start", "end", "best"}),
        "embed": ([TEXT, *model("bert")], {"vector"}),
        "match": ([image, "texts.txt", *model("clip")], {"label", "score", "best"}),
        "score": ([TEXT, *model("bert")], {"score", "perplexity", "tokens"}),
        "translate": ([TEXT, *model("marian"), *more], {each.name for each in fields(Written)}),
        "summarise": ([TEXT, *model("bart"), *more], {each.name for each in fields(Written)}),
    }
    for name, (arguments, result) in asked.items():
        (row,) = rows(capsys, name, *arguments)
        assert {*row} == result | {told[name].strip("`")} - {"–"}


def test_flags_of_another_name_are_told() -> None:
    page = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
    for name in OTHER:
        (row,) = re.findall(rf"^\| `{name}` \| .*\|$", page, re.MULTILINE)
        assert f"`{FLAGS[name]}`" in row
