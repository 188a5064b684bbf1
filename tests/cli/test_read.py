"""Commands of the tasks that analyze texts: inputs, tables, JSON, and one-line errors."""

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
from qkv.cli.inputs import COMPRESSION_SUFFIXES, RECORD_SUFFIXES
from qkv.data.read import lines
from qkv.data.read.corpus import FORMAT_BY_SUFFIX
from qkv.model.label_names import set_label_names
from qkv.tasks.write.seq2seq import GeneratedText
from tests.conftest import ROOT
from tests.support import tiny
from tests.support.images import encode_png

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
    expected = qkv.task("classify", MODELS / "bert-label")(TEXT)
    (result,) = rows(capsys, "classify", TEXT, *model("bert-label"))
    assert (result["text"], result["label"]) == (TEXT, expected.label)
    assert result["candidates"][0] == {
        "label": expected.label,
        "score": pytest.approx(expected.score),
    }
    output = good(capsys, "classify", TEXT, *model("bert-label"), "--top-k", "2").split()
    assert output[0:2] == ["label", "score"]
    assert expected.label in output
    assert len(rows(capsys, "classify", "texts.txt", *model("bert-label"))) == 2
    assert "It rained all week." in good(capsys, "classify", "texts.txt", *model("bert-label"))
    options = (
        "--candidate-labels", "weather", "food and drink", "--multi-label",
        "--hypothesis-template", "About {}.",
    )  # fmt: skip
    (result,) = rows(capsys, "classify", TEXT, *model("bert-label"), *options)
    assert {item["label"] for item in result["candidates"]} == {"weather", "food and drink"}


@pytest.fixture(scope="module")
def pixel_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models of images and of clips."""
    folder = tmp_path_factory.mktemp("models")
    for family, head in (
        ("vit", "image-classification"),
        ("video-transformer", "frame-classification"),
    ):
        pixel_model = tiny.build(family, head=head, num_labels=3, num_channels=1)
        set_label_names(pixel_model, ("cat", "dog", "fish"))
        pixel_model.save(folder / family)
    return folder


def test_classify_images(capsys: pytest.CaptureFixture[str], pixel_models: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    options = ("--model", str(pixel_models / "vit"), "--device", "cpu")
    for number in range(2):
        image.new("L", (12, 12), 50 + 100 * number).save(f"{number}.png")
    expected = qkv.task("classify", pixel_models / "vit")("0.png")
    (result,) = rows(capsys, "classify", "0.png", *options, "--top-k", "2")
    assert (result["image"], result["label"]) == ("0.png", expected.label)
    assert len(result["candidates"]) == 2
    output = good(capsys, "classify", "0.png", "1.png", *options)
    assert output.split()[:3] == ["label", "score", "image"]
    assert "1.png" in output
    Path("text.png").write_text("no image")
    assert "text.png: not a readable image" in bad(capsys, "classify", "text.png", *options)
    assert "none.png: not a readable image" in bad(capsys, "classify", "none.png", *options)
    assert "candidate_labels" in bad(
        capsys, "classify", "0.png", *options, "--candidate-labels", "a"
    )
    error = bad(capsys, "classify", "0.png", *model("bert-label"))
    assert "0.png: an image" in error
    assert "expected a model of images" in error
    assert "frame-classification" in bad(capsys, "tag", "0.png", *options)
    Path("bomb.png").write_bytes(encode_png(9_000, 9_000))
    assert "too many pixels, 9000 × 9000" in bad(capsys, "classify", "bomb.png", *options)


def test_tag_clips(capsys: pytest.CaptureFixture[str], pixel_models: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    options = ("--model", str(pixel_models / "video-transformer"), "--device", "cpu")
    frames = [image.new("L", (12, 12), shade) for shade in (0, 100, 200)]
    frames[0].save("clip.gif", save_all=True, append_images=frames[1:])
    (result,) = rows(capsys, "tag", "clip.gif", *options)
    assert result["clip"] == "clip.gif"
    assert [frame["frame"] for frame in result["frames"]] == [0, 1, 2]
    output = good(capsys, "tag", "clip.gif", *options)
    assert output.split()[:3] == ["frame", "label", "score"]
    Path("frames").mkdir()
    assert "frames: no images in the folder" in bad(capsys, "tag", "frames", *options)
    for number, frame in enumerate(frames):
        frame.save(f"frames/{number}.png")
    (result,) = rows(capsys, "tag", "frames", *options)
    assert len(result["frames"]) == 3
    assert "image-classification" in bad(capsys, "classify", "clip.gif", *options)
    assert "frames: a folder; expected a text" in bad(capsys, "tag", "frames", *model("bert-tag"))


def test_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for inputs in ([], ["-"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"One.\nTwo two.\n")))
        result = rows(capsys, "classify", *inputs, *model("bert-label"))
        assert [row["text"] for row in result] == ["One.", "Two two."]


def test_the_text_column_of_records(capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["A fine film.", "Bad, and long."]
    Path("r.csv").write_text(f'text,label\n{texts[0]},1\n"{texts[1]}",0\n')
    Path("r.tsv").write_text(f"review\n{texts[0]}\n{texts[1]}\n")
    Path("r.jsonl").write_text("".join(json.dumps({"n": 1, "said": text}) + "\n" for text in texts))
    Path("r.json").write_text(json.dumps([{"text": text, "title": "x"} for text in texts]))
    Path("r.csv.gz").write_bytes(gzip.compress(Path("r.csv").read_bytes()))
    for name in ("r.csv", "r.tsv", "r.jsonl", "r.json", "r.csv.gz"):
        assert [
            row["text"] for row in rows(capsys, "classify", name, *model("bert-label"))
        ] == texts
    Path("two.csv").write_text("review,title\nA film.,x\n")
    message = bad(capsys, "classify", "two.csv", *model("bert-label"))
    assert (
        "two.csv, line 2: the columns are 'review', 'title'; expected one named 'text'" in message
    )
    assert "set --column" in message
    (row,) = rows(capsys, "classify", "two.csv", "--column", "review", *model("bert-label"))
    assert row["text"] == "A film."
    message = bad(capsys, "classify", "two.csv", "--column", "note", *model("bert-label"))
    assert "two.csv, line 2: no column 'note'; the columns are 'review', 'title'" in message
    message = bad(capsys, "classify", TEXT, "--column", "review", *model("bert-label"))
    assert "--column review: expected a file with columns, .jsonl" in message
    Path("none.jsonl").write_text('{"n": 1}\n')
    assert "the columns are 'n'" in bad(capsys, "classify", "none.jsonl", *model("bert-label"))
    assert {*RECORD_SUFFIXES, ".txt", ".npz"} == {*FORMAT_BY_SUFFIX}
    assert {*COMPRESSION_SUFFIXES} == {*lines.COMPRESSION_OPENERS}


def test_parquet(capsys: pytest.CaptureFixture[str]) -> None:
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    parquet.write_table(pyarrow.table({"said": [TEXT, "Bad."], "label": [1, 0]}), "r.parquet")
    result = rows(capsys, "classify", "r.parquet", *model("bert-label"))
    assert [row["text"] for row in result] == [TEXT, "Bad."]


def test_a_text_may_end_like_a_file_name(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("What was said at the meeting is all in notes.txt", "See:\nnotes.txt"):
        assert rows(capsys, "classify", text, *model("bert-label"))[0]["text"] == text
    Path("my film.txt").write_text(TEXT)
    assert rows(capsys, "classify", "my film.txt", *model("bert-label"))[0]["text"] == TEXT


def test_two_dashes_end_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    result = good(
        capsys,
        "classify",
        "--json",
        *model("bert-label"),
        "--",
        "--bad film",
        "--top-k",
        "texts.txt",
    )
    read_texts = [json.loads(line)["text"] for line in result.splitlines()]
    assert read_texts == ["--bad film", "--top-k", TEXT, "It rained all week."]
    assert rows(capsys, "classify", "- A film.", *model("bert-label"))[0]["text"] == "- A film."
    assert "put -- before a text that begins with dashes" in bad(capsys, "classify", "--bad film")
    inputs = ["answer", "Who?", "--context=--Clara waits.", *model("bert-span")]
    assert rows(capsys, *inputs)[0]["text"] in "--Clara waits."


def test_tag(capsys: pytest.CaptureFixture[str]) -> None:
    result = rows(capsys, "tag", TEXT, "texts.txt", *model("bert-tag"), "--aggregation", "max")
    assert [row["text"] for row in result] == [TEXT, TEXT, "It rained all week."]
    # The rows of a product may be summed in different orders, depending on the number of threads.
    for item, repeated in zip(result[0]["entities"], result[1]["entities"], strict=True):
        assert item == repeated | {"score": pytest.approx(repeated["score"], rel=1e-5)}
    assert all(item["text"] == TEXT[item["start"] : item["end"]] for item in result[0]["entities"])
    assert (
        good(capsys, "tag", "texts.txt", *model("bert-tag")).split()[:6]
        == "# label score start end entity".split()
    )


def test_fill(capsys: pytest.CaptureFixture[str]) -> None:
    (result,) = rows(capsys, "fill", "The [MASK] waits.", *model("bert"), "--top-k", "3")
    assert result["text"] == "The [MASK] waits."
    candidates = result["masks"][0]["candidates"]
    assert len(candidates) == 3
    assert result["filled"] == candidates[0]["sequence"]
    word = candidates[0]["token_str"]
    assert word in good(capsys, "fill", "The [MASK] waits.", *model("bert"))
    (few,) = rows(capsys, "fill", "The [MASK] waits.", *model("bert"), "--targets", "the", "a")
    assert {item["token_str"] for item in few["masks"][0]["candidates"]} == {"the", "a"}


def test_several_masks(capsys: pytest.CaptureFixture[str]) -> None:
    text = "The [MASK] waits in [MASK]."
    expected = qkv.task("fill", MODELS / "bert", top_k=2)(text)
    output_lines = good(capsys, "fill", text, *model("bert"), "--top-k", "2").splitlines()
    rows = [line.split(maxsplit=3) for line in output_lines if "[MASK]" in line]
    assert ["mask", "score", "word", "text"] in [line.split() for line in output_lines]
    assert [row[0] for row in rows] == ["1", "1", "2", "2"]
    assert [row[3] for row in rows] == [
        word.sequence for mask in expected.masks for word in mask.candidates
    ]
    assert output_lines[-1] == expected.text


def test_answer(capsys: pytest.CaptureFixture[str]) -> None:
    (result,) = rows(
        capsys,
        "answer",
        "Who?",
        "--context",
        "texts.txt",
        *model("bert-span"),
        "--top-k",
        "3",
        "--allow-no-answer",
    )
    context = Path("texts.txt").read_text(encoding="utf-8")
    assert len(result["candidates"]) == 3
    assert all(
        item["text"] == context[item["start"] : item["end"]] for item in result["candidates"]
    )
    assert result["question"] == "Who?"
    assert result["text"] in good(
        capsys, "answer", "Who?", "--context", "texts.txt", *model("bert-span")
    )


def test_generative_answer(capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--context", "texts.txt", *model("t5"), "--max-new-tokens", "5"]
    text = Path("texts.txt").read_text(encoding="utf-8").removesuffix("\n")
    task = qkv.task("answer", MODELS / "t5", max_new_tokens=5)
    (result,) = rows(capsys, "answer", "Who?", *more)
    assert result["text"] == task("Who?", text).text
    assert (result["start"], result["end"]) == (None, None)
    best = ["--generative", "--num-beams", "3", "--num-return-sequences", "2"]
    best += ["--template", "{context} {question}"]
    (best_answers,) = rows(capsys, "answer", "Who?", *more, *best)
    expected = task(
        "Who?", text, num_beams=3, num_return_sequences=2, template="{context} {question}"
    )
    assert [item["text"] for item in best_answers["candidates"]] == [
        item.text for item in expected.candidates
    ]
    assert expected.text.split()[0] in good(capsys, "answer", "Who?", *more, *best)
    assert "`answer` needs a question-answering head" in bad(
        capsys, "answer", "Who?", *more, "--no-generative"
    )
    span = ["--context", TEXT, *model("bert-span")]
    assert "needs an encoder-decoder" in bad(capsys, "answer", "Who?", *span, "--generative")
    assert "setting num_beams is unknown" in bad(
        capsys, "answer", "Who?", *span, "--num-beams", "3"
    )
    assert "template is 'x'" in bad(capsys, "answer", "Who?", *more, "--template", "x")


def test_embed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "wrote vectors.npy: 2 × 16" in good(
        capsys, "embed", "texts.txt", *model("bert"), "--out", "vectors.npy"
    )
    (result, _) = rows(capsys, "embed", "texts.txt", *model("bert"))
    np.testing.assert_allclose(np.load("vectors.npy")[0], result["vector"], rtol=1e-5)
    (unit,) = rows(capsys, "embed", TEXT, *model("bert"), "--normalize", "--pooling", "first")
    assert np.linalg.norm(unit["vector"]) == pytest.approx(1)
    assert "already exists" in bad(
        capsys, "embed", "texts.txt", *model("bert"), "--out", "vectors.npy"
    )
    assert "ends with .npy" in bad(
        capsys, "embed", "texts.txt", *model("bert"), "--out", "vectors.txt"
    )
    assert "expected either --out" in bad(capsys, "embed", "texts.txt", *model("bert"))


def test_match(capsys: pytest.CaptureFixture[str]) -> None:
    image = str(MODELS / "images" / "tall.png")
    (result,) = rows(capsys, "match", image, "texts.txt", *model("clip"))
    assert {item["label"] for item in result["candidates"]} == {TEXT, "It rained all week."}
    assert "It rained" in good(
        capsys, "match", image, "texts.txt", *model("clip"), "--hypothesis-template", "a {}"
    )
    assert "not a readable image" in bad(capsys, "match", "texts.txt", "texts.txt", *model("clip"))


def test_score(capsys: pytest.CaptureFixture[str]) -> None:
    (result,) = rows(capsys, "score", "texts.txt", *model("bert"))
    assert result["perplexity"] > 1
    assert sum(item["score"] for item in result["tokens"]) == pytest.approx(result["score"])
    assert "perplexity" in good(capsys, "score", TEXT, *model("bert"), "--show-tokens")


def test_detect(capsys: pytest.CaptureFixture[str]) -> None:
    electra = qkv.build(
        "electra",
        width=16,
        depth=1,
        heads=2,
        ffn_width=24,
        vocab_size=200,
        embedding_width=8,
        max_positions=32,
    )
    electra.tokenizer = qkv.Tokenizer.load(MODELS / "bert")
    electra.save("electra")
    inputs = ("detect", TEXT, "--model", "electra", "--device", "cpu")
    (result,) = rows(capsys, *inputs)
    assert all(item["text"] == TEXT[item["start"] : item["end"]] for item in result["tokens"])
    assert "nothing found" in good(capsys, *inputs, "--threshold", "1.0")


@pytest.mark.parametrize(("arguments", "words"), [
    (["classify", ""], "text is empty"),
    (["classify", "  "], "text is only whitespace"),
    (["classify", "none.txt"], "none.txt: no such file"),
    (["classify", "a", "--overflwo", "truncate"],
     "Unknown option: --overflwo. Did you mean --overflow?"),
    (["classify", "nul.txt"], "nul.txt, line 1: a NUL byte"),
    (["classify", "latin.txt"], "latin.txt, line 1: byte 0xe9"),
    (["classify", "a\udcffb"], "a lone surrogate"),
    (["classify", "word " * 90], 'shorten the text, or set overflow to "truncate"'),
    (["classify", "a", "--overflow", "window"], "overflow is 'window', expected one of error, truncate"),
    (["classify", "a", "--overflow", "all"], "--overflow"),
    (["classify", "a", "--candidate-labels", "x", "x"], "candidate label 'x' is repeated"),
    (["classify", "a", "--candidate-labels", ""], "label is empty"),
    (["classify", "a", "--multi-label"],
     "--multi-label is for zero-shot classification: also set --candidate-labels"),
    (["classify", "a", "--hypothesis-template", "{}"], "--hypothesis-template is for zero-shot"),
    (["classify", "a", "--batch-tokens", "0"], "batch_tokens is 0"),
    (["classify", "a", "--top-k", "0"], "top_k is 0"),
    (["tag", "a"], "this model is an encoder with the head sequence-classification; `tag` needs a"),
    (["score", "a"], "`score` needs a decoder with the head lm"),
])  # fmt: skip
def test_errors_are_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    Path("nul.txt").write_bytes(b"a\0b\n")
    Path("latin.txt").write_bytes("é".encode("latin-1"))
    assert words in bad(capsys, *arguments, *model("bert-label"))


def test_a_megabyte_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("long.txt").write_text("It rained. " * 95_000 + "\n")
    assert "tokens, expected at most 64" in bad(
        capsys, "classify", "long.txt", *model("bert-label")
    )
    assert rows(capsys, "classify", "long.txt", *model("bert-label"), "--overflow", "truncate")[0][
        "label"
    ]


def test_a_missing_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--model" in bad(capsys, "tag", "a")
    assert "no such folder" in bad(capsys, "tag", "a", "--model", "./nowhere")


def test_the_folder_of_a_run_is_not_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    run = Path("runs") / "sst2"
    run.mkdir(parents=True)
    (run / "recipe.toml").touch()
    for command in (
        ["tag", "a", "--model"],
        ["show"],
        ["tag", "a", *model("bert-tag"), "--adapter"],
    ):
        assert (
            "sst2: the folder of a run, expected that of a model; it has saved no model yet"
            in bad(capsys, *command, str(run))
        )
    for name in ("last", "best"):
        shutil.copytree(MODELS / "bert-label", run / name)
        message = bad(capsys, "classify", "a", "--model", str(run))
        assert f"{run}: the folder of a run, expected that of a model; its model is in" in message
        assert str(run / name) in message
    message = bad(capsys, "eval", str(run / "best"))
    assert f"no data to evaluate on; set --data FILE, or evaluate the run {run}" in message
    assert "runs: no data to evaluate on; set --data FILE" in bad(capsys, "eval", "runs")


def test_an_empty_model_name(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["classify", "a"], ["tag", "a"], ["classify", "--show-card"]):
        assert "the model name is empty, expected a folder" in bad(capsys, *command, "--model", "")


def test_help_has_an_example_and_needs_no_torch() -> None:
    code = (
        "import sys; from qkv.cli import main\n"
        "for name in sys.argv[1:]: main([name, '--help'])\n"
        "assert not {'torch', 'numpy', 'tokenizers'} & sys.modules.keys()"
    )
    names = "classify tag fill answer embed match detect score".split()
    command = [sys.executable, "-c", code, *names]
    environment = {"PATH": "", "PYTHONPATH": str(ROOT), "COLUMNS": "100", "NO_COLOR": "1"}
    done = subprocess.run(
        command, capture_output=True, encoding="utf-8", env=environment, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f"qkv {name} " in done.stdout for name in names)
    assert "\x1b[" not in done.stdout


def test_the_json_keys_are_documented(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    table_rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (`\w+`|–) \| ", page, re.MULTILINE)
    documented = {name: key for names, key in table_rows for name in re.findall(r"\w+", names)}
    image, more = str(MODELS / "images" / "tall.png"), ["--max-new-tokens", "3"]
    commands = {
        "classify": ([TEXT, *model("bert-label")], {"label", "score", "candidates"}),
        "tag": ([TEXT, *model("bert-tag")], {"entities"}),
        "fill": (["The [MASK].", *model("bert")], {"masks", "filled"}),
        "answer": (
            ["Who?", "--context", TEXT, *model("bert-span")],
            {"text", "score", "start", "end", "candidates"},
        ),
        "embed": ([TEXT, *model("bert")], {"vector"}),
        "match": ([image, "texts.txt", *model("clip")], {"label", "score", "candidates"}),
        "score": ([TEXT, *model("bert")], {"score", "perplexity", "tokens"}),
        "translate": (
            [TEXT, *model("marian"), *more],
            {field.name for field in fields(GeneratedText)},
        ),
        "summarize": (
            [TEXT, *model("bart"), *more],
            {field.name for field in fields(GeneratedText)},
        ),
    }
    for name, (arguments, result) in commands.items():
        (row,) = rows(capsys, name, *arguments)
        assert {*row} == result | {documented[name].strip("`")} - {"–"}
