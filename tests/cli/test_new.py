"""The command `new`: recipes drafted from data files of every task, which train."""

from __future__ import annotations

import json
import random
import tomllib
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from qkv.cli.new import new
from qkv.data import profile
from qkv.data.encode.labels import collect_label_names
from qkv.data.read.corpus import Corpus
from qkv.train.draft import machine
from qkv.train.draft.drafts import DRAFT_SPECS
from qkv.train.draft.machine import GIGABYTE, Machine, select_encoder
from qkv.train.recipe import read_recipe
from tests.cli.test_read import bad, good
from tools import small_data

RNG_SEED = 0


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")


def draft(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[dict[str, Any], str]:
    """Run `qkv new` and return the tables of the recipe and the output."""
    output = good(capsys, "new", *arguments)
    path = Path(output.split("qkv train ")[1].strip())
    return tomllib.loads(path.read_text(encoding="utf-8")), output


def train(capsys: pytest.CaptureFixture[str], name: str, *flags: str) -> None:
    good(capsys, "train", f"{name}.toml", "--device", "cpu", *flags)
    assert (Path("runs") / name / "last" / "config.json").is_file()


def write_tickets(path: str, count: int = 60) -> None:
    """Write a table with an id, a subject, a body and a queue; one label is rare."""
    lines = ["id,subject,body,queue"]
    for number in range(count):
        queue = "praise" if number % 10 == 0 else "billing" if number % 2 else "bug"
        lines.append(f'{number},"re: {number}","a {queue} question about my account",{queue}')
    Path(path).write_text("\n".join([*lines, '99,"",,bug']) + "\n")


def test_tasks_are_those_of_the_command() -> None:
    hint = get_type_hints(new)["task"]
    assert get_args(hint) == tuple(DRAFT_SPECS)


def test_classify(capsys: pytest.CaptureFixture[str]) -> None:
    write_tickets("tickets.csv")
    tables, output = draft(capsys, "classify", "tickets.csv")
    assert tables["data"]["columns"] == {"text": "body", "label": "queue"}
    assert tables["model"]["label_names"] == ["billing", "bug", "praise"]
    assert tables["train"]["best_metric"] == "macro_f1"
    text = Path("tickets.toml").read_text()
    assert "# class_weights = { billing = 0.678, bug = 0.813, praise = 3.389 }" in text
    for fact in ("61 records", "'praise' 6 (9.8%)", "empty texts: 1", "duplicate texts: 57"):
        assert fact in output
        assert fact in text
    weights = "{ billing = 0.678, bug = 0.813, praise = 3.389 }"
    train(capsys, "tickets", "--train.epochs", "1", "--objective.class_weights", weights)


def test_no_file_is_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    write_tickets("tickets.csv")
    Path("tickets.toml").write_text("mine")
    assert "tickets.toml: already exists; set --out" in bad(
        capsys, "new", "classify", "tickets.csv"
    )
    assert Path("tickets.toml").read_text() == "mine"
    draft(capsys, "classify", "tickets.csv", "--out", "other.toml")
    assert Path("other.toml").is_file()
    for arguments, problem in (
        (["tickets.csv", "--out", "none/x.toml"], "no folder none"),
        (["none.csv", "--out", "x.toml"], "none.csv: no files found"),
        (["--out", "x.toml"], "no data file; expected a table of texts and labels"),
    ):
        assert problem in bad(capsys, "new", "classify", *arguments)
        assert not Path("x.toml").exists()


@pytest.mark.parametrize(
    ("content", "columns", "column_names"),
    [
        ("text,label\nA fine film.,pos\nA bad film.,neg\n", None, None),
        (",text,label\n0,A fine film.,pos\n1,A bad film.,neg\n", None, None),
        ("text,label,lang\ntext,pos,en\nA bad film.,neg,en\nGood.,mixed,de\n", None, None),
        ("sentence\tlabel\nA fine film.\t1\nA bad film.\t0\n", {"text": "sentence"}, None),
        ("pos\tA fine film.\nneg\tA bad film.\n", None, ["label", "text"]),
        ("1,A fine film.\n0,A bad film.\n", None, ["label", "text"]),
        ("x1\t1\t\tA fine film.\nx2\t0\t\tA bad film.\nx3\t1\t\tGood.\n", None,
         ["column1", "label", "column3", "text"]),
        ("kind,remark,n\na,A fine film.,7\nb,A bad film.,8\n", {"text": "remark", "label": "kind"}, None),
        ("premise,hypothesis,label\nIt rains.,It is wet.,yes\nIt rains.,It is dry.,no\n",
         {"text": "premise", "pair": "hypothesis"}, None),
    ],
)  # fmt: skip
def test_columns_are_found(
    capsys: pytest.CaptureFixture[str],
    content: str,
    columns: dict[str, str] | None,
    column_names: list[str] | None,
) -> None:
    header, *lines = content.splitlines(keepends=True)
    rows = lines * 12 if column_names is None else [header, *lines] * 12
    path = "in.tsv" if "\t" in content else "in.csv"
    Path(path).write_text("".join([header, *rows] if column_names is None else rows))
    data = draft(capsys, "classify", path)[0]["data"]
    assert data.get("column_names") == column_names
    columns_by_role = data.get("columns", {})
    assert {role: column for role, column in columns_by_role.items() if role != column} == (
        columns or {}
    )
    train(capsys, "in", "--train.epochs", "1")


def test_columns_can_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    write_tickets("tickets.csv")
    flags = ["tickets.csv", "--columns", "text=subject"]
    assert draft(capsys, "classify", *flags)[0]["data"]["columns"]["text"] == "subject"
    for columns, problem in (
        ("text=note", "no column 'note'"),
        ("words=body", "expected one of label, text, pair"),
        ("body", "expected a role and a column"),
    ):
        assert problem in bad(
            capsys, "new", "classify", "tickets.csv", "--columns", columns, "--out", "x.toml"
        )
    Path("plain.csv").write_text("n,remark\n" + "".join(f"{n},text {n}\n" for n in range(20)))
    message = bad(capsys, "new", "classify", "plain.csv")
    assert "no column for label was found; set --columns label=NAME" in message


def test_problems_of_labels(capsys: pytest.CaptureFixture[str]) -> None:
    Path("in.csv").write_text("text,label\n" + "a text,a\nb text,b\n" * 9 + "a text,\n")
    assert "in.csv, line 20: no label in column 'label'" in bad(capsys, "new", "classify", "in.csv")
    Path("in.csv").write_text("text,label\na text,a\nb text,b\n")
    assert "2 records; expected at least 10" in bad(capsys, "new", "classify", "in.csv")
    Path("in.jsonl").write_text('{"text": "a text", "label": 1}\n' * 12)
    assert "has only the label '1'" in bad(capsys, "new", "classify", "in.jsonl")
    Path("in.csv").write_text("text,label,lang\n" + "a text,a,en\nb text,a,de\n" * 9)
    assert "column 'label' has only the label 'a'" in bad(capsys, "new", "classify", "in.csv")
    rows = [f"a text,label {n},{'de' if n % 2 else 'en'}\n" for n in range(20)]
    Path("in.csv").write_text("text,label,lang\n" + "".join(rows))
    message = bad(capsys, "new", "classify", "in.csv")
    assert "column 'label' has 20 labels in 20 records; expected at most 10" in message
    tables, _ = draft(capsys, "classify", "in.csv", "--columns", "label=label")
    assert len(tables["model"]["label_names"]) == 20


def test_labels_have_the_order_of_training(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["10", "9", "b", "2", "a"]
    Path("in.csv").write_text(
        "text,label\n" + "".join(f"text {n},{n}\n" for n in names * 4 + ["9"] * 8)
    )
    tables, _ = draft(capsys, "classify", "in.csv")
    assert tables["model"]["label_names"] == ["2", "9", "10", "a", "b"]
    assert tuple(tables["model"]["label_names"]) == collect_label_names(Corpus("in.csv"))
    assert "class_weights = { 2 = 1.4, 9 = 0.467, 10 = 1.4, a" in Path("in.toml").read_text()


def test_labels_of_the_records_that_are_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile, "MAX_RECORDS", 18)
    Path("in.csv").write_text("text,label\n" + "a text,a\nb text,b\n" * 9)
    tables, _ = draft(capsys, "classify", "in.csv", "--out", "all.toml")
    assert tables["model"]["label_names"] == ["a", "b"]
    with Path("in.csv").open("a") as file:
        file.write("c text,c\n")
    tables, _ = draft(capsys, "classify", "in.csv", "--out", "first.toml")
    assert "label_names" not in tables["model"]
    train(capsys, "first", "--train.epochs", "1")


def test_several_labels_and_numbers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rng = random.Random(RNG_SEED)
    small_data.write_multi_labeled_texts(tmp_path, rng).rename("colors.jsonl")
    tables, _ = draft(capsys, "classify", "colors.jsonl")
    assert tables["objective"]["problem_type"] == "multi_label_classification"
    train(capsys, "colors", "--train.epochs", "1")
    Path("scores.csv").write_text(
        "text,score\n" + "".join(f"text {n},{n / 7:.3f}\n" for n in range(40))
    )
    tables, _ = draft(capsys, "classify", "scores.csv")
    assert tables["objective"]["problem_type"] == "regression"
    assert tables["train"]["best_metric"] == "pearson"
    train(capsys, "scores", "--train.epochs", "1")


def test_long_texts_and_many_records(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{'long ' * (500 if n % 4 else 5)}{n},{n % 2}\n" for n in range(4)]
    Path("in.csv").write_text("text,label\n" + "".join(rows) * 4000)
    tables, _ = draft(capsys, "classify", "in.csv")
    assert tables["data"]["max_length"] == 512
    assert "about 75% of the texts are longer" in Path("in.toml").read_text()
    assert tables["train"]["steps"] == 2000
    assert "on a GPU: epochs = 4, about 3,600 steps" in Path("in.toml").read_text()


def test_tag(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    small_data.write_tagged_words(tmp_path, random.Random(RNG_SEED)).rename("animals.txt")
    tables, output = draft(capsys, "tag", "animals.txt")
    assert tables["data"]["format"] == "conll"
    assert tables["train"]["best_metric"] == "macro_f1"  # the tags are not entities
    assert "'COLOR'" in output
    train(capsys, "animals", "--train.epochs", "1")
    rows = [{"tokens": ["Ada", "saw", "Bonn"], "ner_tags": ["B-PER", "O", "B-LOC"]}] * 20
    Path("names.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tables, _ = draft(capsys, "tag", "names.jsonl")
    assert tables["data"]["columns"] == {"words": "tokens", "tags": "ner_tags"}
    assert tables["train"]["best_metric"] == "f1"
    train(capsys, "names", "--train.epochs", "1")


def test_answer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    small_data.write_squad(tmp_path, random.Random(RNG_SEED)).rename("questions.json")
    tables, output = draft(capsys, "answer", "questions.json")
    assert tables["data"]["overflow"] == "window"
    assert "150, 15 of them without an answer" in output
    train(capsys, "questions", "--train.epochs", "1")


def test_translate(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    once = ["--train.epochs", "1", "--train.warmup_steps", "1"]
    small_data.write_translations(tmp_path, random.Random(RNG_SEED))
    lines = Path("train.tsv").read_text().splitlines()[1:]
    Path("pairs.tsv").write_text("\n".join(lines) + "\n")  # without a header
    tables, _ = draft(capsys, "translate", "pairs.tsv")
    assert tables["data"]["column_names"] == ["source", "target"]
    train(capsys, "pairs", *once)
    Path("both.csv").write_text(
        "id,en,de\n" + "".join(f"{n},{line.replace('	', ',')}\n" for n, line in enumerate(lines))
    )
    tables, _ = draft(capsys, "translate", "both.csv")
    assert tables["data"]["columns"] == {"source": "en", "target": "de"}
    for side, language in enumerate(("en", "de")):
        Path(f"lines.{language}").write_text(
            "".join(f"{line.split('	')[side]}\n" for line in lines)
        )
    tables, _ = draft(capsys, "translate", "lines.en", "lines.de")
    assert tables["data"]["train"] == ["lines.en", "lines.de"]
    train(capsys, "lines", *once)


@pytest.mark.parametrize("size", [3_000, 150_000])
def test_complete(capsys: pytest.CaptureFixture[str], size: int) -> None:
    Path("text.txt").write_text(("To be, or not to be: that is the question.\n" * 4000)[:size])
    tables, output = draft(capsys, "complete", "text.txt")
    assert tables["tokenizer"]["type"] == "char"
    assert "different characters" in output
    train(
        capsys, "text", "--train.steps", "3", "--train.warmup_steps", "1", "--train.eval_every", "0"
    )
    Path("short.txt").write_text("To be.")
    assert "6 characters; expected at least" in bad(capsys, "new", "complete", "short.txt")


def test_the_model_fits_the_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "is_offline", lambda: False)
    names = {
        (has_gpu, gigabytes): select_encoder(
            "classify", Machine(has_gpu=has_gpu, memory=gigabytes * GIGABYTE)
        ).name
        for has_gpu, gigabytes in ((True, 16), (True, 4), (False, 16), (False, 1))
    }
    assert names == {
        (True, 16): "google-bert/bert-base-uncased",
        (True, 4): "sentence-transformers/all-MiniLM-L6-v2",
        (False, 16): "sentence-transformers/all-MiniLM-L6-v2",
        (False, 1): "builtin:classify",
    }
    monkeypatch.setattr(machine, "is_offline", lambda: True)
    assert (
        select_encoder("tag", Machine(has_gpu=True, memory=16 * GIGABYTE)).name
        == "builtin:classify"
    )
    write_tickets("tickets.csv")
    tables, _ = draft(capsys, "classify", "tickets.csv", "--model", "builtin:classify")
    assert tables["model"]["load"] == "builtin:classify"


@pytest.mark.parametrize("task", DRAFT_SPECS)
def test_a_gpu_recipe_can_be_read(
    task: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Machine(has_gpu=True, memory=16 * GIGABYTE)
    monkeypatch.setattr(machine, "detect_machine", lambda: gpu)
    writers = {
        "classify": small_data.write_labeled_texts, "tag": small_data.write_tagged_words,
        "answer": small_data.write_squad, "translate": small_data.write_translations,
        "complete": small_data.write_texts,
    }  # fmt: skip
    path = writers[task](tmp_path, random.Random(RNG_SEED))
    # the title of the recipe, a comment, holds the name of the file
    path = path.rename(path.with_name(f"line\nbreak{path.suffix}"))
    tables, _ = draft(capsys, task, str(path), "--out", "train.toml")
    assert tables["train"]["precision"] == "bf16"
    assert tables["data"]["train"] == str(path)
    recipe = read_recipe(Path("train.toml"))
    assert recipe.train.precision == "bf16"
