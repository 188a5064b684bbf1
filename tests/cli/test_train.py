"""Training and evaluating as a user meets them: what is printed, what is written, and what is refused."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv.cli import main
from qkv.cli.console import progress
from qkv.data.read.corpus import Corpus
from qkv.train.report.history import History
from qkv.train.run import ECHO, owned
from tests.cli.test_cli import good
from tests.support import small_data

ROOT = Path(__file__).resolve().parent.parent.parent
RECIPE = """
[model]
family = "gpt2"
depth = 1
width = 16
heads = 2
[text]
kind = "char"
vocab = 60
purpose = "plain"
[data]
train = "text.txt"
unit = "file"
valid = 0.2
length = 8
rows = 2
[objective]
name = "causal-lm"
[learn]
steps = 6
measure = 3
log = 2
"""
LABELS = """
[model]
family = "bert"
width = 16
depth = 1
heads = 2
feed = 24
[text]
kind = "word"
vocab = 60
[data]
train = "train.jsonl"
length = 16
rows = 4
[objective]
name = "label"
[learn]
steps = 40
rate = 1e-2
log = 20
"""
TAGS = LABELS.replace('"train.jsonl"', '"train.conll"\nnames = ["words", "tags"]').replace('"label"', '"tag"')


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "text.txt").write_text("the cat sat on the mat, and the rat ate the hat.\n" * 30)
    (tmp_path / "tiny.toml").write_text(RECIPE)


def bad(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Exit status 2, and one line that says why."""
    assert main([str(each) for each in arguments]) == 2
    err = capsys.readouterr().err
    assert re.fullmatch(r"qkv: .+\n", err)
    return err.removeprefix("qkv: ").strip()


# --- train ---


def test_train(capsys: pytest.CaptureFixture[str]) -> None:
    lines = good(capsys, "train", "tiny.toml").splitlines()
    assert re.fullmatch(r"model      gpt2, [\d,]+ parameters", lines[0])
    assert lines[1] == "data       text.txt, 1 document, 1.47K tokens"
    assert lines[2:5] == ["objective  causal-lm", "device     cpu, fp32", "steps      6"]
    reports = [line for line in lines if line.startswith("step ")]
    assert [line.split("   ")[0] for line in reports] == [f"step {n}/6" for n in (2, 3, 4, 6, 6)]
    line = (
        r"step 2/6   loss +\d\.\d+   norm +\d\.\d+   rate \d.\d+e-04   +\S+ tokens/s   +\d+% of peak .* left"
    )
    assert re.fullmatch(line, reports[0])
    assert re.fullmatch(r"step 3/6   measured   loss \d\.\d+   accuracy 0\.\d+ .*   best", reports[1])
    assert lines[-4].startswith("done   6 of 6 steps in 0:0")
    assert re.fullmatch(r"best   runs/tiny/best, loss \d\.\d+ at step \d", lines[-3])
    assert lines[-2:] == ["last   runs/tiny/last", "curve  runs/tiny/loss.svg"]
    ET.parse("runs/tiny/loss.svg")
    for name in ("best", "last"):
        model = qkv.load(f"runs/tiny/{name}")
        assert model.family.name == "gpt2"
        assert model.tokenizer is not None
        assert model.tokenizer.decode(model.tokenizer.encode("the cat").ids) == "the cat"


def test_a_flag_has_the_last_word(capsys: pytest.CaptureFixture[str]) -> None:
    out = good(capsys, "train", "tiny.toml", "--learn.steps=2", "--run", "mine", "--model.width", "8")
    assert "done   2 of 2 steps" in out
    assert {"steps = 2", "width = 8", 'run = "mine"'} <= set(
        Path("mine/recipe.toml").read_text().splitlines()
    )


def test_a_run_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    good(capsys, "train", "tiny.toml")
    assert "runs/tiny: holds a run already" in bad(capsys, "train", "tiny.toml")
    out = good(capsys, "train", "tiny.toml", "--learn.steps", 10, "--resume", "auto")
    assert "steps      10, going on after 6" in out
    assert "step  8/10" in out
    assert "step  4/10" not in out
    ticks = [each.text for each in ET.parse("runs/tiny/loss.svg").iter() if each.tag.endswith("text")]
    assert {"0", "10"} <= set(ticks)  # the whole curve
    assert "done   10 of 10 steps" in good(
        capsys, "train", "tiny.toml", "--learn.steps", 10, "--resume", "auto"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.toml"], "none.toml: no such recipe"),
        (["broken.toml"], "broken.toml: not a recipe in TOML (Expected ']'"),
        (["."], "not a recipe in TOML"),
        (["text.txt"], "text.txt: not a recipe in TOML"),
        (["tiny.toml", "--learn.rat", "1"], "learn.rat is unknown; did you mean learn.rate?"),
        (["tiny.toml", "--lern.rate", "1"], "lern is unknown; did you mean learn?"),
        (["tiny.toml", "--run.x", "1"], "run is {'x': 1}, expected a text"),
        (["tiny.toml", "more"], "'more', expected a flag such as --learn.rate 3e-4"),
        (["tiny.toml", "--resume", "maybe"], "--resume"),
        (["tiny.toml", "--data.rows", "0"], "data.rows or data.tokens is missing"),
        (["tiny.toml", "--data.rows", "-3"], "data.rows -3, expected 0 or more"),
        (["tiny.toml", "--data.valid", "1.5"], "data.valid 1.5, expected files, or a share"),
        (["tiny.toml", "--data.length", "9999"], "expected 10000 at least, for one row of data.length"),
        (["tiny.toml", "--learn.rate", "-1"], "learn.rate is -1.0: expected a number, more than 0"),
        (["tiny.toml", "--learn.rate", "nan"], "learn.rate is nan: expected a number, more than 0"),
        (["tiny.toml", "--learn.rate", "fast"], "learn.rate is 'fast', expected a number"),
        (["tiny.toml", "--learn.steps", "0"], "learn.steps is 0: expected a whole number, at least 1"),
        (["tiny.toml", "--learn.seed", "-1"], "learn.seed is -1: expected a whole number, at least 0"),
        (["tiny.toml", "--data.train", "gone.txt"], "gone.txt: nothing there"),
        (["tiny.toml", "--data.valid", "gone.txt"], "gone.txt: nothing there"),
        (["tiny.toml", "--device", "abacus"], "device 'abacus': expected auto, cpu, cuda or mps"),
        (["tiny.toml", "--model.family", "gpt9"], "gpt9"),
        (["tiny.toml", "--model.heads", "3"], "width 16 is no multiple of 3 heads"),
        (["tiny.toml", "--objective.name", "guess"], "'guess', expected one of causal-lm,"),
        (["tiny.toml", "--learn.watch", "f1"], "learn.watch 'f1', expected one of what is measured: loss,"),
        (["tiny.toml", "--run", "text.txt"], "text.txt: File exists; expected a folder that can be written"),
        (["tiny.toml", "--run", "text.txt/x"], "text.txt/x: Not a directory"),
    ],
)
def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    Path("broken.toml").write_text("[model\n")
    assert words in bad(capsys, "train", *arguments)


def test_mistakes_in_a_recipe_need_no_torch() -> None:
    code = """
import sys
from qkv.cli import main
assert main(["train", "tiny.toml", "--learn.rate", "nan"]) == 2 and "torch" not in sys.modules
assert main(["train", "--help"]) == 0 and "torch" not in sys.modules
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert b"qkv train recipes/shakespeare.toml --data.train input.txt" in done.stdout


def test_a_mistake_leaves_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert "gone.txt" in bad(capsys, "train", "tiny.toml", "--data.train", "gone.txt")
    assert "3 heads" in bad(capsys, "train", "tiny.toml", "--model.heads", 3)
    good(capsys, "train", "tiny.toml", "--text.kind", "byte", "--text.vocab", 300)
    tokenizer = qkv.load("runs/tiny/last").tokenizer
    assert tokenizer is not None
    assert len(tokenizer) > 256  # not the one of the attempts before


def test_a_folder_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    with owned(Path("runs/tiny")):
        assert f"in use by another process ({os.getpid()})" in bad(capsys, "train", "tiny.toml")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to root")
def test_a_folder_that_is_read_only(capsys: pytest.CaptureFixture[str]) -> None:
    Path("locked").mkdir(mode=0o500)
    assert "locked/run: Permission denied" in bad(capsys, "train", "tiny.toml", "--run", "locked/run")


def test_no_room(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("qkv.train.run.recorder", lambda folder: full)
    assert "No space left on device" in bad(capsys, "train", "tiny.toml")


def test_no_memory(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("qkv.train.loop.trainer.Trainer.step", full)
    assert "device auto: not enough memory; fewer data.rows" in bad(capsys, "train", "tiny.toml")


def test_a_run_that_was_stopped(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def stops(folder: Path) -> Callable[[object], None]:
        return lambda report: os.kill(os.getpid(), 15)

    monkeypatch.setattr("qkv.train.run.drawer", stops)
    assert re.search(
        r"done   2 of 6 steps in .*; --resume auto goes on\n", good(capsys, "train", "tiny.toml")
    )


def learning(*, before: str = "", steps: int = 100_000) -> subprocess.Popen[str]:
    """A process that trains for long, by the command line, and has begun."""
    flags = ["train", "tiny.toml", "--learn.steps", str(steps), "--learn.measure", "0"]
    code = f"import sys\n{before}\nfrom qkv.cli import main\nsys.exit(main({flags}))"
    process = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert any(line.startswith("step ") and "loss" in line for line in process.stdout)
    return process


def test_ctrl_c_saves_and_says_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    process = learning()
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)  # as torchrun passes it on: no second one yet
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "")
    done = re.search(r"done +([\d,]+) of 100,000 steps in .*; --resume auto goes on\n", out)
    assert done
    step = int(done[1].replace(",", ""))
    assert [path.name for path in Path("runs/tiny/checkpoints").iterdir()] == [f"{step:08}"]
    assert qkv.load("runs/tiny/last").net is not None
    more = ["--learn.steps", step + 2, "--learn.measure", 0, "--resume", "changed"]
    assert f"{step + 2:,} of {step + 2:,} steps" in good(capsys, "train", "tiny.toml", *more)


SLOW = """
import time
from qkv.train.loop.trainer import Trainer
def save(self):
    print("saving", flush=True)
    time.sleep(60)
Trainer.save = save
"""


def test_a_second_ctrl_c_leaves_at_once() -> None:
    process = learning(before=SLOW)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert "saving\n" in process.stdout
    time.sleep(2 * ECHO)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (130, "")
    assert "done" not in out
    assert not Path("runs/tiny/last").exists()


@pytest.mark.parametrize("colour", [True, False])
def test_the_panel_on_a_terminal(tmp_path: Path, colour: bool) -> None:
    outer, inner = pty.openpty()
    environment = {
        "PATH": "",
        "PYTHONPATH": str(ROOT),
        "TERM": "xterm-256color",
        "COLUMNS": "90",
        "LINES": "30",
    }
    environment |= {} if colour else {"NO_COLOR": "1"}
    command = [sys.executable, "-m", "qkv", "train", "tiny.toml"]
    with subprocess.Popen(command, stdout=inner, stderr=inner, env=environment, cwd=tmp_path) as process:
        os.close(inner)
        seen = b""
        try:
            while part := os.read(outer, 65536):
                seen += part
        except OSError:  # the other end is closed
            pass
        os.close(outer)
    text = seen.decode()
    assert process.returncode == 0, text
    assert all(
        word in text for word in ("runs/tiny", "training", "validation", "6 of 6", "tokens/s", "curve")
    )
    assert re.search("[\u2801-\u28ff]", text)  # the curve
    assert bool(re.search(r"\x1b\[[\d;]*3[36]m", text)) == colour  # yellow, cyan


def test_a_run_whose_folder_is_gone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from qkv.train.loop import checkpoint

    write = checkpoint.write

    def late(root: Path, step: int, *more: Any, **others: Any) -> Path:
        if step == 4:
            shutil.rmtree(root.parent)
        return write(root, step, *more, **others)

    monkeypatch.setattr(checkpoint, "write", late)
    told = bad(capsys, "train", "tiny.toml", "--learn.save", "2")
    assert "00000004: the checkpoint could not be written (No such file or directory)" in told
    assert not Path("runs/tiny").exists()


def test_what_is_asked_of_a_model_without_a_memory(capsys: pytest.CaptureFixture[str]) -> None:
    told = bad(capsys, "train", "tiny.toml", "--objective.name", "recurrence")
    assert "gpt2 remembers nothing (model.memory); transformer-xl and xlnet do" in told
    told = bad(capsys, "train", "tiny.toml", "--objective.name", "causal-ml", "--run", "runs/other")
    assert "did you mean causal-lm?" in told
    told = bad(capsys, "train", "tiny.toml", "--model.widht", "32", "--run", "runs/third")
    assert told.endswith("model.widht is unknown; did you mean model.width?")


# --- eval ---


def test_eval_of_a_language_model(capsys: pytest.CaptureFixture[str]) -> None:
    good(capsys, "train", "tiny.toml")
    assert "runs/tiny: its recipe has no data.test; name the texts with --data.test" in bad(
        capsys, "eval", "runs/tiny"
    )
    before = sorted(Path("runs").rglob("*"))
    Path("test.txt").write_text("the rat sat on the cat.\n" * 5)
    out = good(capsys, "eval", "runs/tiny", "--data.test", "test.txt")
    assert re.match(r"model +runs/tiny/best\ndata +test.txt, 1 document, 120 tokens\nloss +\d\.\d+\n", out)
    found = json.loads(good(capsys, "eval", "runs/tiny", "--data.test", "test.txt", "--json"))
    values = found["values"]
    assert found["model"] == "runs/tiny/best"
    assert values["bits_per_character"] == pytest.approx(values["bits"])  # a token is a character here
    assert sorted(Path("runs").rglob("*")) == before
    assert "gone.txt" in bad(capsys, "eval", "runs/tiny", "--data.test", "gone.txt")
    assert "data.tset is unknown" in bad(capsys, "eval", "runs/tiny", "--data.tset", "test.txt")
    assert "no recipe.toml; expected the folder of a run" in bad(capsys, "eval", "text.txt")


def test_eval_with_another_memory(capsys: pytest.CaptureFixture[str]) -> None:
    """As if the folder said so; other sizes belong to the weights."""
    sizes = "embed_width = 16\nhead_dim = 8\nfeed = 16\nmemory = 8\ncutoffs = []\ndrop = 0.0\n"
    text = RECIPE.replace('"gpt2"\n', f'"transformer-xl"\n{sizes}').replace("causal-lm", "recurrence")
    Path("xl.toml").write_text(text.replace("valid = 0.2\n", ""))
    good(capsys, "train", "xl.toml", "--learn.rate", "0.05", "--learn.measure", "0")
    asked = ["eval", "runs/xl", "--data.test", "text.txt", "--json"]
    losses = [
        json.loads(good(capsys, *asked, *flags))["values"]["loss"]
        for flags in ((), ("--model.memory", "8"), ("--model.memory", "40"))
    ]
    assert losses[0] == losses[1] != losses[2]
    assert json.loads(Path("runs/xl/last/config.json").read_text())["mem_len"] == 8
    config = Path("runs/xl/last/config.json")
    config.write_text(re.sub(r'"(mem_len|memory)": 8', r'"\1": 40', config.read_text()))
    assert json.loads(good(capsys, *asked))["values"]["loss"] == losses[2]
    assert "model.width: a loaded model keeps its sizes" in bad(capsys, *asked, "--model.width", "32")


def test_eval_of_labels(capsys: pytest.CaptureFixture[str]) -> None:
    Path("labels.toml").write_text(LABELS)
    rows = [{"text": f"{word} film", "label": label} for word, label in (("good", "yes"), ("bad", "no"))]
    Path("train.jsonl").write_text("\n".join(map(json.dumps, rows * 8)))
    Path("test.jsonl").write_text("\n".join(map(json.dumps, [*rows, {"text": "bad film", "label": "yes"}])))
    good(capsys, "train", "labels.toml")
    Path("train.jsonl").unlink()  # the model knows its labels
    found = json.loads(good(capsys, "eval", "runs/labels", "--data.test", "test.jsonl", "--json"))
    assert found["model"] == "runs/labels/last"
    assert (found["data"], found["n"], found["how"]) == ("test.jsonl", 3, {"f1": "of yes"})
    # bad: no, no; good: yes. Wanted: no, yes, yes
    values = {"accuracy": 2 / 3, "f1": 2 / 3, "macro_f1": 2 / 3, "matthews": 1 / 2}
    assert {name: found["values"][name] for name in values} == pytest.approx(values)


@pytest.mark.parametrize(("kind", "labels"), [("regression", (1.5, -2)), ("several", (["a", "b"], ["b"]))])
def test_eval_of_numbers_and_of_several_labels(
    capsys: pytest.CaptureFixture[str], kind: str, labels: tuple[object, object]
) -> None:
    Path("labels.toml").write_text(LABELS)
    rows = [
        {"text": f"{word} film", "label": label} for word, label in zip(("good", "bad"), labels, strict=True)
    ]
    Path("train.jsonl").write_text("\n".join(map(json.dumps, rows * 8)))
    good(capsys, "train", "labels.toml", "--objective.kind", kind)
    found = json.loads(good(capsys, "eval", "runs/labels", "--data.test", "train.jsonl", "--json"))["values"]
    assert 0 < found["loss"] < 2
    names = {"regression": ["pearson", "spearman"], "several": ["accuracy", "f1", "macro_f1"]}
    assert [*found] == ["loss", *names[kind]]


def test_eval_of_tags(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tags.toml").write_text(TAGS)
    sentence = "Ada\tB-PER\nsaw\tO\nNew\tB-LOC\nYork\tI-LOC\n\n"
    Path("train.conll").write_text(sentence * 8)
    Path("test.conll").write_text(sentence + sentence.replace("PER", "LOC"))
    good(capsys, "train", "tags.toml")
    found = json.loads(good(capsys, "eval", "runs/tags", "--data.test", "test.conll", "--json"))["values"]
    assert (found["accuracy"], found["f1"]) == (7 / 8, 3 / 4)
    assert (found["precision"], found["recall"]) == (3 / 4, 3 / 4)


def run_small(capsys: pytest.CaptureFixture[str], name: str, *flags: object) -> tuple[Path, str]:
    """A small recipe, run; and the file that it learned from."""
    given = small_data.write(name, Path.cwd())
    recipe = ROOT / "recipes" / "small" / f"{name}.toml"
    good(capsys, "train", recipe, *given, "--run", f"runs/{name}", "--device", "cpu", *flags)
    return Path("runs", name), given[1]


def evaluated(capsys: pytest.CaptureFixture[str], run: Path, *flags: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(good(capsys, "eval", run, "--json", "--data.test", *flags))
    return found


def test_eval_of_what_a_model_writes(capsys: pytest.CaptureFixture[str]) -> None:
    """It learns to translate a toy language; a sample is measured on the way, and all of it in the end."""
    flags = "--data.valid 0.1 --learn.measure 60 --learn.write 10 --learn.steps 120"
    run, path = run_small(capsys, "seq2seq", *flags.split())
    found = evaluated(capsys, run, path, "--beams", 2, "--lower")
    assert found["values"]["rouge1"] > 0.9
    assert (found["n"], found["how"]) == (300, {"beams": 2, "penalty": 1.0, "longest": 200})
    reports = History.read(run).measures
    assert [report.step for report in reports] == [60, 120]
    assert reports[-1].values["rouge1"] > 0.9
    if find_spec("sacrebleu"):
        assert found["values"]["bleu"] == pytest.approx(found["values"]["bleu_lower"])
        assert min(found["values"]["bleu"], reports[-1].values["bleu"]) > 70
        assert "nrefs:1|case:mixed" in found["signatures"]["bleu"]
        assert "case:lc" in found["signatures"]["bleu_lower"]
        assert "nc:6" in found["signatures"]["chrf"]
    else:
        assert "qkv[eval]" in found["signatures"]["bleu"]
    assert "--beams 0" in bad(capsys, "eval", run, "--data.test", path, "--beams", 0)


def test_eval_of_answers_that_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    run, path = run_small(capsys, "generative-answers", "--learn.steps", 20)
    found = evaluated(capsys, run, path, "--beams", 1)
    assert [*found["values"]] == ["loss", "accuracy", "exact", "f1"]
    assert 0 < found["values"]["exact"] <= found["values"]["f1"] < 1


def test_eval_of_spans(capsys: pytest.CaptureFixture[str]) -> None:
    """The answers of a model asked question by question, in any form of the file, and in windows."""
    flags = "--data.valid train.json --learn.watch exact --learn.steps 60"
    run, path = run_small(capsys, "span", *flags.split())
    found = evaluated(capsys, run, path)
    assert (found["n"], found["how"]) == (150, {"longest": 30, "stride": 16, "no_answer": True})
    assert History.read(run).measures[-1].values == pytest.approx(found["values"])
    model, right = qkv.load(run / "best"), 0
    assert model.tokenizer is not None
    for record in Corpus(path):
        context = record.text("context")
        whole = model.tokenizer.encode(record.text("question"), context)
        out = model.run(torch.tensor([whole.ids]), types=torch.tensor([whole.types]))
        start, end = out["start"][0].tolist(), out["end"][0].tolist()
        inside = [i for i, owner in enumerate(whole.sequence) if owner == 1]
        score, a, b = max((start[a] + end[b], a, b) for a in inside for b in inside if a <= b < a + 30)
        text = context[whole.offsets[a][0] : whole.offsets[b][1]] if score >= start[0] + end[0] else ""
        right += text in ([answer.text for answer in record.answers()] or [""])
    assert 0.3 < right / 150 < 1
    assert found["values"]["exact"] == pytest.approx(right / 150)
    rows = [
        {"context": paragraph["context"], **question}
        for article in json.loads(Path(path).read_text())["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    Path("flat.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for row in rows:  # as the hub has it
        row["answers"] = {name: [each[name] for each in row["answers"]] for name in ("text", "answer_start")}
    Path("hub.jsonl").write_text("\n".join(map(json.dumps, rows)))
    windows = ("--data.length", 24, "--objective.stride", 8)
    short = evaluated(capsys, run, path, *windows)
    assert short["tokens"] > found["tokens"]  # contexts in several windows
    for name in ("flat.jsonl", "hub.jsonl"):
        again = evaluated(capsys, run, name, "--data.form", "jsonl", *windows)
        assert again["values"] == short["values"]
        assert again["data"] == name


def test_eval_of_two_networks(capsys: pytest.CaptureFixture[str]) -> None:
    """What a run measured last of ELECTRA and of a student, eval finds again."""
    for name, extra in (("replaced-token", "replaced_accuracy"), ("distillation", "soft")):
        run, path = run_small(capsys, name, "--learn.steps", 12, "--data.valid", "train.txt")
        found, last = evaluated(capsys, run, path)["values"], History.read(run).measures[-1].values
        assert found == pytest.approx(last, rel=1e-5)
        assert extra in found


def test_a_discriminator_begins_where_a_generator_stands(capsys: pytest.CaptureFixture[str]) -> None:
    """Both are one model at first: a masked lm, which the discriminator reads with another head."""
    given = small_data.write("replaced-token", Path.cwd())
    words = ("--objective.name", "masked-lm", "--run", "words", "--learn.steps", 2, "--learn.warmup", 0)
    good(capsys, "train", ROOT / "recipes" / "small" / "replaced-token.toml", *given, *words)
    Path("twins.toml").write_text(
        '[model]\nload = "words/last"\n[data]\nunit = "document"\nlength = 64\nlong = "split"\nrows = 16\n'
        '[objective]\nname = "replaced-token"\ngenerator = "words/last"\n[learn]\nsteps = 1\nrate = 1e-30\n'
    )
    good(capsys, "train", "twins.toml", *given, "--run", "twins")
    before, generator, after = (qkv.load(f) for f in ("words/last", "twins/last/generator", "twins/last"))
    assert any(name.startswith("heads.lm.") for name, _ in generator.net.named_parameters())
    for name, weight in before.net.named_parameters():
        assert torch.equal(weight, dict(generator.net.named_parameters())[name])
        if "heads" not in name:
            assert torch.equal(weight, dict(after.net.named_parameters())[name])
    wrong = ("--objective.generator", "twins/last", "--run", "wrong")
    message = bad(capsys, "train", "twins.toml", *given, *wrong)
    assert "objective.generator twins/last: expected a model with the head masked-lm" in message


def test_what_is_watched_must_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """The error comes before the first step, and names what there is."""
    given = small_data.write("seq2seq", Path.cwd())
    small = (
        "train",
        ROOT / "recipes" / "small" / "seq2seq.toml",
        *given,
        "--run",
        "a",
        "--data.valid",
        "0.2",
    )
    message = bad(capsys, *small, "--learn.watch", "bleu")
    assert "learn.watch 'bleu', expected one of what is measured: loss, accuracy; learn.write adds" in message
    assert "rougeL" in message
    assert not Path("a/metrics.jsonl").exists()
    assert "learn.write 3: causal-lm writes no texts, expected 0" in bad(
        capsys, "train", "tiny.toml", "--learn.write", 3
    )
    assert not Path("runs/tiny/metrics.jsonl").exists()


def test_the_best_is_the_highest_f1(capsys: pytest.CaptureFixture[str]) -> None:
    given = small_data.write("label", Path.cwd())
    flags = "--run run --device cpu --data.valid 0.2 --learn.watch f1 --learn.measure 20"
    out = good(capsys, "train", ROOT / "recipes" / "small" / "label.toml", *given, *flags.split())
    scores = [(report.values["f1"], -report.step) for report in History.read(Path("run")).measures]
    f1, step = max(scores)  # the first of those
    assert f1 > min(scores)[0]
    assert f"best   run/best, f1 {f1:.4g} at step {-step}\n" in out


# --- how far it is ---


def test_how_far_it_is_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 3.0, 10.0, 10.0, 15.0, 21.0, 21.0])
    with progress("reading", clock=lambda: next(times)) as tell:
        for done in (1, 2, 3, 4):
            tell(f"read {done} of 4", done, 4)
    assert capsys.readouterr() == ("", "read 2 of 4\nread 4 of 4\n")


def test_a_bar_beside_one_object(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    good(capsys, "train", "tiny.toml")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    assert main(["eval", "runs/tiny", "--json", "--data.test", "text.txt"]) == 0
    said, shown = capsys.readouterr()
    assert json.loads(said)["data"] == "text.txt"
    assert re.search(r"measured ([\d,]+) of \1 batches", shown)
