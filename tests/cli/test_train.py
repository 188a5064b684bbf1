"""The commands train and eval: output, files and errors."""

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
from qkv.cli.console import show_progress_bar
from qkv.data.read.corpus import Corpus
from qkv.train.report.history import MetricsHistory
from qkv.train.run_folder import lock_run_folder
from qkv.train.signals import SIGNAL_ECHO_SECONDS
from tests.cli.test_cli import good
from tests.support.recipes import CHARACTER_MODEL
from tools import small_data

ROOT = Path(__file__).resolve().parent.parent.parent
RECIPE = f"""{CHARACTER_MODEL}[train]
steps = 6
eval_every = 3
log_every = 2
"""
LABELS = """
[model]
family = "bert"
width = 16
depth = 1
heads = 2
ffn_width = 24
[tokenizer]
type = "word"
vocab_size = 60
[data]
train = "train.jsonl"
max_length = 16
batch_size = 4
[objective]
name = "sequence-classification"
[train]
steps = 40
lr = 1e-2
log_every = 20
"""
TAGS = LABELS.replace('"train.jsonl"', '"train.conll"\ncolumn_names = ["words", "tags"]').replace(
    '"sequence-classification"', '"token-classification"'
)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "text.txt").write_text("the cat sat on the mat, and the rat ate the hat.\n" * 30)
    (tmp_path / "tiny.toml").write_text(RECIPE)


def bad(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Assert exit status 2 and one line on stderr; return the line."""
    assert main([*map(str, arguments)]) == 2
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
        r"step 2/6   loss +\d\.\d+   grad_norm +\d\.\d+   lr \d.\d+e-04"
        r"   +\S+ tokens/s   +\d+:\d\d left"  # no MFU on a CPU
    )
    assert re.fullmatch(line, reports[0])
    assert re.fullmatch(r"step 3/6   eval   loss \d\.\d+   accuracy 0\.\d+ .*   best", reports[1])
    assert lines[-4].startswith("done   6 of 6 steps in 0:0")
    assert re.fullmatch(r"best   runs/tiny/best, loss \d\.\d+ at step \d", lines[-3])
    assert lines[-2:] == ["last   runs/tiny/last", "curve  runs/tiny/loss.svg"]
    ET.parse("runs/tiny/loss.svg")
    for name in ("best", "last"):
        model = qkv.load(f"runs/tiny/{name}")
        assert model.family.name == "gpt2"
        assert model.tokenizer is not None
        assert (
            model.tokenizer.decode(model.tokenizer.encode("the cat"), skip_special_tokens=True)
            == "the cat"
        )


def test_a_flag_overrides_the_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    out = good(
        capsys, "train", "tiny.toml", "--train.steps=2", "--run", "mine", "--model.width", "8"
    )
    assert "done   2 of 2 steps" in out
    assert {"steps = 2", "width = 8", 'run = "mine"'} <= set(
        Path("mine/recipe.toml").read_text().splitlines()
    )


def test_resuming_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    good(capsys, "train", "tiny.toml")
    assert "runs/tiny: already contains a run" in bad(capsys, "train", "tiny.toml")
    out = good(capsys, "train", "tiny.toml", "--train.steps", 10, "--resume", "auto")
    assert "steps      10, resumed after 6" in out
    assert "step  8/10" in out
    assert "step  4/10" not in out
    ticks = [
        item.text for item in ET.parse("runs/tiny/loss.svg").iter() if item.tag.endswith("text")
    ]
    assert {"0", "10"} <= set(ticks)  # the whole curve
    assert "done   10 of 10 steps" in good(
        capsys, "train", "tiny.toml", "--train.steps", 10, "--resume", "auto"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.toml"], "none.toml: recipe not found"),
        (["broken.toml"], "broken.toml: not a recipe in TOML (Expected ']'"),
        (["."], "not a recipe in TOML"),
        (["text.txt"], "text.txt: not a recipe in TOML"),
        (["tiny.toml", "--train.lrr", "1"], "train.lrr is unknown; did you mean train.lr?"),
        (["tiny.toml", "--trian.lr", "1"], "trian is unknown; did you mean train?"),
        (["tiny.toml", "--run.x", "1"], "run is {'x': 1}, expected a text"),
        (["tiny.toml", "more"], "'more', expected a flag such as --train.lr 3e-4"),
        (["tiny.toml", "--resume", "maybe"], "--resume"),
        (
            ["tiny.toml", "--data.batch_size", "0"],
            "data.batch_size or data.batch_tokens is missing",
        ),
        (
            ["tiny.toml", "--data.batch_size", "-3"],
            "data.batch_size is -3: expected a whole number, at least 0",
        ),
        (
            ["tiny.toml", "--data.validation", "1.5"],
            "data.validation 1.5, expected files, or a fraction",
        ),
        (
            ["tiny.toml", "--data.max_length", "9999"],
            "expected at least 10000, for one row of data.max_length",
        ),
        (["tiny.toml", "--train.lr", "-1"], "train.lr is -1.0: expected a number, more than 0"),
        (["tiny.toml", "--train.lr", "nan"], "train.lr is nan: expected a number, more than 0"),
        (["tiny.toml", "--train.lr", "fast"], "train.lr is 'fast', expected a number"),
        (
            ["tiny.toml", "--train.steps", "0"],
            "train.steps is 0: expected a whole number, at least 1",
        ),
        (
            ["tiny.toml", "--train.seed", "-1"],
            "train.seed is -1: expected a whole number, at least 0",
        ),
        (["tiny.toml", "--data.train", "gone.txt"], "gone.txt: no files found"),
        (["tiny.toml", "--data.validation", "gone.txt"], "gone.txt: no files found"),
        (["tiny.toml", "--device", "abacus"], "device 'abacus': expected auto, cpu, cuda or mps"),
        (["tiny.toml", "--model.family", "gpt9"], "gpt9"),
        (["tiny.toml", "--model.heads", "3"], "width 16 is not a multiple of 3 heads"),
        (["tiny.toml", "--objective.name", "guess"], "'guess', expected one of causal-lm,"),
        (
            ["tiny.toml", "--train.best_metric", "f1"],
            "train.best_metric 'f1', expected one of the metrics: loss,",
        ),
        (
            ["tiny.toml", "--run", "text.txt"],
            "text.txt: File exists; expected a writable folder",
        ),
        (["tiny.toml", "--run", "text.txt/x"], "text.txt/x: Not a directory"),
    ],
)
def test_errors_are_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    Path("broken.toml").write_text("[model\n")
    assert words in bad(capsys, "train", *arguments)


def test_errors_in_a_recipe_need_no_torch() -> None:
    code = """
import sys
from qkv.cli import main
assert main(["train", "tiny.toml", "--train.lr", "nan"]) == 2 and "torch" not in sys.modules
assert main(["train", "--help"]) == 0 and "torch" not in sys.modules
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert b"qkv train shakespeare --data.train input.txt" in done.stdout


def test_an_error_leaves_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine").mkdir()
    Path("filled").mkdir()
    Path("filled/notes.txt").write_text("keep")
    Path("table.csv").write_text("words\nto be or not to be\n" * 30)
    for flags, problem in {
        "--data.train gone.txt": "gone.txt: no files found",
        "--data.train text.txt --data.validation gone.txt": "gone.txt: no files found",
        "--data.train table.csv --tokenizer.type word": "no column 'text'",
        "--model.heads 3": "3 heads",
        "--model.load gone --tokenizer {}": "gone",
        "--device abacus": "abacus",
        "--train.best_metric f1": "train.best_metric 'f1'",
        "--train.optimizer adamw --train.freeze nothing": "freeze",
        "--data.max_length 9999": "data.max_length",
        "--train.lr -1": "train.lr",
    }.items():
        assert problem in bad(capsys, "train", "tiny.toml", *flags.split())
        assert not Path("runs").exists(), flags
        assert problem in bad(capsys, "train", "tiny.toml", *flags.split(), "--run", "mine")
        assert not any(Path("mine").iterdir()), flags
        bad(capsys, "train", "tiny.toml", *flags.split(), "--run", "filled")
        assert Path("filled/notes.txt").exists()
    good(capsys, "train", "tiny.toml", "--tokenizer.type", "byte", "--tokenizer.vocab_size", 300)
    tokenizer = qkv.load("runs/tiny/last").tokenizer
    assert tokenizer is not None
    assert len(tokenizer) > 256  # not the one of the attempts before


def test_a_folder_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    with lock_run_folder(Path("runs/tiny")):
        assert f"in use by another process ({os.getpid()})" in bad(capsys, "train", "tiny.toml")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to root")
def test_a_folder_that_is_read_only(capsys: pytest.CaptureFixture[str]) -> None:
    Path("locked").mkdir(mode=0o500)
    assert "locked/run: Permission denied" in bad(
        capsys, "train", "tiny.toml", "--run", "locked/run"
    )


def test_a_full_disk(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("qkv.train.run.make_metrics_callback", lambda folder: full)
    assert "No space left on device" in bad(capsys, "train", "tiny.toml")


def test_out_of_memory(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("qkv.train.loop.trainer.Trainer.train_step", full)
    assert "device auto: out of memory; use a smaller data.batch_size" in bad(
        capsys, "train", "tiny.toml"
    )


def test_a_run_that_was_stopped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stops(folder: Path) -> Callable[[object], None]:
        return lambda report: os.kill(os.getpid(), 15)

    monkeypatch.setattr("qkv.train.run.make_plot_callback", stops)
    assert re.search(
        r"stopped at step 2 of 6; continue with --resume auto\n", good(capsys, "train", "tiny.toml")
    )


def start_training(*, before: str = "", steps: int = 100_000) -> subprocess.Popen[str]:
    """Start a long training process and wait for its first step."""
    flags = ["train", "tiny.toml", "--train.steps", str(steps), "--train.eval_every", "0"]
    code = f"import sys\n{before}\nfrom qkv.cli import main\nsys.exit(main({flags}))"
    process = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert any(line.startswith("step ") and "loss" in line for line in process.stdout)
    return process


def test_ctrl_c_saves_a_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    process = start_training()
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)  # as torchrun passes it on: no second one yet
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "")
    done = re.search(r"stopped at step ([\d,]+) of 100,000; continue with --resume auto\n", out)
    assert done
    step = int(done[1].replace(",", ""))
    assert [path.name for path in Path("runs/tiny/checkpoints").iterdir()] == [f"{step:08}"]
    assert qkv.load("runs/tiny/last").net is not None
    more = ["--train.steps", step + 2, "--train.eval_every", 0, "--resume", "changed"]
    assert f"{step + 2:,} of {step + 2:,} steps" in good(capsys, "train", "tiny.toml", *more)


SLOW = """
import time
from qkv.train.loop.trainer import Trainer
def save_checkpoint(self):
    print("saving", flush=True)
    time.sleep(60)
Trainer.save_checkpoint = save_checkpoint
"""


def test_a_second_ctrl_c_leaves_at_once() -> None:
    process = start_training(before=SLOW)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert "saving\n" in process.stdout
    time.sleep(2 * SIGNAL_ECHO_SECONDS)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (130, "")
    assert "done" not in out
    assert not Path("runs/tiny/last").exists()


def start_command(before: str, *flags: str) -> subprocess.Popen[str]:
    """Start a training process that prints "ready" in the code `before`, and wait for this."""
    command = ["train", "tiny.toml", *flags]
    code = f"import sys\n{before}\nfrom qkv.cli import main\nsys.exit(main({command}))"
    process = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert any(line == "ready\n" for line in process.stdout)
    return process


SLOW_PREPARATION = """
import time
from qkv.train import run, setup
def prepare(*arguments):
    prepared = setup.prepare_training(*arguments)
    print("ready", flush=True)
    time.sleep(60)
run.prepare_training = prepare
"""


def test_sigterm_before_the_first_step(capsys: pytest.CaptureFixture[str]) -> None:
    """What is prepared is kept; the same command starts the run."""
    process = start_command(SLOW_PREPARATION)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")
    last_line = "stopped before the first step; the same command starts or resumes the run\n"
    assert out.endswith(last_line)
    assert Path("runs/tiny/tokenizer").exists()
    assert not Path("runs/tiny/checkpoints").exists()
    assert "done   6 of 6 steps" in good(capsys, "train", "tiny.toml")


SLOW_SAVE = """
import time
from qkv.train.loop.trainer import Trainer
save_checkpoint = Trainer.save_checkpoint
def save_slowly(self):
    print("ready", flush=True)
    time.sleep(1)
    save_checkpoint(self)
Trainer.save_checkpoint = save_slowly
"""


def test_a_second_sigterm_waits_for_the_save() -> None:
    process = start_command(
        SLOW_SAVE, "--train.save_every", "2", "--train.steps", "100000", "--train.eval_every", "0"
    )
    for _ in range(3):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")
    assert "stopped at step 2 of 100,000; continue with --resume auto" in out
    assert [path.name for path in Path("runs/tiny/checkpoints").iterdir()] == ["00000002"]
    assert qkv.load("runs/tiny/last").net is not None


@pytest.mark.parametrize("color", [True, False])
def test_the_panel_on_a_terminal(tmp_path: Path, color: bool) -> None:
    outer, inner = pty.openpty()
    environment = {
        "PATH": "",
        "PYTHONPATH": str(ROOT),
        "TERM": "xterm-256color",
        "COLUMNS": "90",
        "LINES": "30",
    }
    environment |= {} if color else {"NO_COLOR": "1"}
    command = [sys.executable, "-m", "qkv", "train", "tiny.toml"]
    with subprocess.Popen(
        command, stdout=inner, stderr=inner, env=environment, cwd=tmp_path
    ) as process:
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
        word in text
        for word in ("runs/tiny", "training", "validation", "6 of 6", "tokens/s", "curve")
    )
    assert re.search("[\u2801-\u28ff]", text)  # the curve
    assert bool(re.search(r"\x1b\[[\d;]*3[36]m", text)) == color  # yellow, cyan


def test_a_run_whose_folder_is_gone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from qkv.train.loop import checkpoint

    write = checkpoint.write_checkpoint

    def late(root: Path, step: int, *more: Any, **others: Any) -> Path:
        if step == 4:
            shutil.rmtree(root.parent)
        return write(root, step, *more, **others)

    monkeypatch.setattr(checkpoint, "write_checkpoint", late)
    message = bad(capsys, "train", "tiny.toml", "--train.save_every", "2")
    assert "00000004: the checkpoint could not be written (No such file or directory)" in message
    assert not Path("runs/tiny").exists()


def test_segment_recurrence_needs_memory(capsys: pytest.CaptureFixture[str]) -> None:
    message = bad(capsys, "train", "tiny.toml", "--objective.name", "segment-recurrent-lm")
    assert (
        "gpt2 has no memory (model.mem_len); expected a family such as transformer-xl or xlnet"
        in message
    )
    message = bad(
        capsys, "train", "tiny.toml", "--objective.name", "causal-ml", "--run", "runs/other"
    )
    assert "did you mean causal-lm?" in message
    message = bad(capsys, "train", "tiny.toml", "--model.widht", "32", "--run", "runs/third")
    assert message.endswith("model.widht is unknown; did you mean model.width?")


# --- eval ---


def test_eval_of_a_language_model(capsys: pytest.CaptureFixture[str]) -> None:
    good(capsys, "train", "tiny.toml")
    assert "runs/tiny: the recipe has no data.test; set the test data with --data.test" in bad(
        capsys, "eval", "runs/tiny"
    )
    before = sorted(Path("runs").rglob("*"))
    Path("test.txt").write_text("the rat sat on the cat.\n" * 5)
    out = good(capsys, "eval", "runs/tiny", "--data.test", "test.txt")
    assert re.match(
        r"checkpoint +runs/tiny/best\ndata +test.txt, 1 document, 120 tokens\nloss +\d\.\d+\n", out
    )
    result = json.loads(good(capsys, "eval", "runs/tiny", "--data.test", "test.txt", "--json"))
    values = result["metrics"]
    assert result["checkpoint"] == "runs/tiny/best"
    assert values["bits_per_character"] == pytest.approx(
        values["bits_per_token"]
    )  # a token is a character here
    assert sorted(Path("runs").rglob("*")) == before
    assert "gone.txt" in bad(capsys, "eval", "runs/tiny", "--data.test", "gone.txt")
    assert "data.tset is unknown" in bad(capsys, "eval", "runs/tiny", "--data.tset", "test.txt")
    assert "text.txt: no data to evaluate on; set --data FILE" in bad(capsys, "eval", "text.txt")
    error = bad(capsys, "eval", "runs/tiny/best")
    assert "set --data FILE, or evaluate the run runs/tiny" in error
    command = ("eval", "runs/tiny/best", "--data", "test.txt", "--data.unit", "file")
    assert "data.max_length 16, expected at most" in bad(capsys, *command, "--data.max_length", 16)
    model_result = json.loads(good(capsys, *command, "--json"))
    assert model_result["objective"] == "causal-lm"
    assert model_result["metrics"] == pytest.approx(values)


def test_eval_with_another_memory(capsys: pytest.CaptureFixture[str]) -> None:
    """mem_len can be changed without training; other sizes belong to the weights."""
    sizes = "embedding_width = 16\nhead_dim = 8\nffn_width = 16\nmem_len = 8\ncutoffs = []\ndropout = 0.0\n"
    text = RECIPE.replace('"gpt2"\n', f'"transformer-xl"\n{sizes}').replace(
        "causal-lm", "segment-recurrent-lm"
    )
    Path("xl.toml").write_text(text.replace("validation = 0.2\n", ""))
    good(capsys, "train", "xl.toml", "--train.lr", "0.05", "--train.eval_every", "0")
    command = ["eval", "runs/xl", "--data.test", "text.txt", "--json"]
    losses = [
        json.loads(good(capsys, *command, *flags))["metrics"]["loss"]
        for flags in ((), ("--model.mem_len", "8"), ("--model.mem_len", "40"))
    ]
    # Equal to the bit: with the same memory, the same kernels run on the same shapes.
    assert losses[0] == losses[1] != losses[2]
    assert json.loads(Path("runs/xl/last/config.json").read_text())["mem_len"] == 8
    config = Path("runs/xl/last/config.json")
    config.write_text(re.sub(r'"(mem_len|memory)": 8', r'"\1": 40', config.read_text()))
    assert json.loads(good(capsys, *command))["metrics"]["loss"] == losses[2]
    assert "model.width: the sizes of a loaded model cannot change" in bad(
        capsys, *command, "--model.width", "32"
    )


def test_eval_of_labels(capsys: pytest.CaptureFixture[str]) -> None:
    Path("labels.toml").write_text(LABELS)
    rows = [
        {"text": f"{word} film", "label": label} for word, label in (("good", "yes"), ("bad", "no"))
    ]
    Path("train.jsonl").write_text("\n".join(map(json.dumps, rows * 8)))
    Path("test.jsonl").write_text(
        "\n".join(map(json.dumps, [*rows, {"text": "bad film", "label": "yes"}]))
    )
    good(capsys, "train", "labels.toml")
    Path("train.jsonl").unlink()  # the model knows its labels
    result = json.loads(good(capsys, "eval", "runs/labels", "--data.test", "test.jsonl", "--json"))
    assert result["checkpoint"] == "runs/labels/last"
    assert (result["data"], result["num_records"], result["settings"]) == (
        "test.jsonl",
        3,
        {"f1": "of yes"},
    )
    # bad: no, no; good: yes. Wanted: no, yes, yes
    values = {"accuracy": 2 / 3, "f1": 2 / 3, "macro_f1": 2 / 3, "matthews_correlation": 1 / 2}
    assert {name: result["metrics"][name] for name in values} == pytest.approx(values)
    assert result["confusion_matrix"] == {"label_names": ["no", "yes"], "counts": [[1, 0], [1, 1]]}
    assert result["class_scores"]["yes"] == pytest.approx(
        {"precision": 1.0, "recall": 1 / 2, "f1": 2 / 3, "support": 2}
    )
    assert good(capsys, "eval", "runs/labels", "--data", "test.jsonl").endswith(
        "reference ↓  prediction →  no  yes\nno                          1    0\n"
        "yes                         1    1\n"
    )


def test_columns_and_balanced_weights(capsys: pytest.CaptureFixture[str]) -> None:
    """Columns with usual names are found, also when the run is resumed; the split has every label."""
    text = LABELS.replace('"train.jsonl"', '"reviews.csv"\nvalidation = 0.2')
    text = text.replace('classification"\n', 'classification"\nclass_weights = "balanced"\n')
    Path("labels.toml").write_text(text)
    rows = ["good film,yes"] * 18 + ["bad film,no"] * 2
    Path("reviews.csv").write_text("\n".join(["Review,Category", *rows]))
    out = good(capsys, "train", "labels.toml")
    assert re.search(r"^no +\S+ +\S+ +\S+ +1$", out, re.MULTILINE)  # support
    assert re.search(r"^yes +\S+ +\S+ +\S+ +3$", out, re.MULTILINE)
    assert "reference ↓  prediction →  no  yes" in out
    assert 'text = "Review"' in Path("runs/labels/recipe.toml").read_text()
    assert 'class_weights = "balanced"' in Path("runs/labels/recipe.toml").read_text()
    good(capsys, "train", "labels.toml", "--resume", "auto", "--train.steps", 44)
    result = json.loads(good(capsys, "eval", "runs/labels", "--data", "reviews.csv", "--json"))
    assert result["num_records"] == 20


@pytest.mark.parametrize(
    ("problem_type", "labels"),
    [("regression", (1.5, -2)), ("multi_label_classification", (["a", "b"], ["b"]))],
)
def test_eval_of_numbers_and_of_several_labels(
    capsys: pytest.CaptureFixture[str], problem_type: str, labels: tuple[object, object]
) -> None:
    Path("labels.toml").write_text(LABELS)
    rows = [
        {"text": f"{word} film", "label": label}
        for word, label in zip(("good", "bad"), labels, strict=True)
    ]
    Path("train.jsonl").write_text("\n".join(map(json.dumps, rows * 8)))
    good(capsys, "train", "labels.toml", "--objective.problem_type", problem_type)
    result = json.loads(
        good(capsys, "eval", "runs/labels", "--data.test", "train.jsonl", "--json")
    )["metrics"]
    assert 0 < result["loss"] < 2
    names = {
        "regression": ["pearson", "spearman"],
        "multi_label_classification": ["accuracy", "f1", "macro_f1"],
    }
    assert [*result] == ["loss", *names[problem_type]]


def test_eval_of_tags(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tags.toml").write_text(TAGS)
    sentence = "Ada\tB-PER\nsaw\tO\nNew\tB-LOC\nYork\tI-LOC\n\n"
    Path("train.conll").write_text(sentence * 8)
    Path("test.conll").write_text(sentence + sentence.replace("PER", "LOC"))
    good(capsys, "train", "tags.toml")
    result = json.loads(good(capsys, "eval", "runs/tags", "--data.test", "test.conll", "--json"))[
        "metrics"
    ]
    assert (result["accuracy"], result["f1"]) == (7 / 8, 3 / 4)
    assert (result["precision"], result["recall"]) == (3 / 4, 3 / 4)


def run_small(capsys: pytest.CaptureFixture[str], name: str, *flags: object) -> tuple[Path, str]:
    """Run a small recipe; return its folder and its training file."""
    data_flags = small_data.write_data(name, Path.cwd())
    recipe = f"small/{name}"
    good(capsys, "train", recipe, *data_flags, "--run", f"runs/{name}", "--device", "cpu", *flags)
    return Path("runs", name), data_flags[1]


def evaluated(capsys: pytest.CaptureFixture[str], run: Path, *flags: object) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(good(capsys, "eval", run, "--json", "--data.test", *flags))
    return result


def test_eval_of_generated_texts(capsys: pytest.CaptureFixture[str]) -> None:
    """Train on a toy language; a sample is evaluated during training, all of it at the end."""
    flags = "--data.validation 0.1 --train.eval_every 60 --train.eval_generate 10 --train.steps 120"
    run, path = run_small(capsys, "seq2seq", *flags.split())
    result = evaluated(capsys, run, path, "--num-beams", 2, "--lowercase")
    assert result["metrics"]["rouge1"] > 0.9
    assert (result["num_records"], result["settings"]) == (
        300,
        {"num_beams": 2, "length_penalty": 1.0, "max_new_tokens": 200},
    )
    reports = MetricsHistory.read(run).validation
    assert [report.step for report in reports] == [60, 120]
    assert reports[-1].metrics["rouge1"] > 0.9
    if find_spec("sacrebleu"):
        assert result["metrics"]["bleu"] == pytest.approx(result["metrics"]["bleu_lower"])
        assert min(result["metrics"]["bleu"], reports[-1].metrics["bleu"]) > 70
        assert "nrefs:1|case:mixed" in result["signatures"]["bleu"]
        assert "case:lc" in result["signatures"]["bleu_lower"]
        assert "nc:6" in result["signatures"]["chrf"]
    else:
        assert "qkv[eval]" in result["signatures"]["bleu"]
    assert "num_beams is 0" in bad(capsys, "eval", run, "--data.test", path, "--num-beams", 0)
    sampling = ["--temperature", 5, "--num-beams", 1, "--seed", 3]
    samples = [evaluated(capsys, run, path, *sampling)["metrics"]["rouge1"] for _ in range(2)]
    assert samples[0] == samples[1] < 0.9
    assert evaluated(capsys, run, path, *sampling)["settings"]["temperature"] == 5


def test_eval_of_generative_answers(capsys: pytest.CaptureFixture[str]) -> None:
    run, path = run_small(capsys, "generative-question-answering", "--train.steps", 20)
    result = evaluated(capsys, run, path, "--num-beams", 1)
    names = "loss accuracy perplexity bits_per_token exact_match f1"
    assert [*result["metrics"]] == names.split()
    assert 0 < result["metrics"]["exact_match"] <= result["metrics"]["f1"] < 1


def test_eval_of_spans(capsys: pytest.CaptureFixture[str]) -> None:
    """Predicted answers equal those of single questions, in every file format and with windows."""
    flags = "--data.validation train.json --train.best_metric exact_match --train.steps 60"
    run, path = run_small(capsys, "question-answering", *flags.split())
    result = evaluated(capsys, run, path)
    assert (result["num_records"], result["settings"]) == (
        150,
        {"max_answer_tokens": 30, "stride": 16, "allow_no_answer": True},
    )
    assert MetricsHistory.read(run).validation[-1].metrics == pytest.approx(result["metrics"])
    model, right = qkv.load(run / "best"), 0
    assert model.tokenizer is not None
    for record in Corpus(path):
        context = record.get_text("context")
        (encoding,) = model.tokenizer.encode_batch([(record.get_text("question"), context)])
        out = model(
            torch.tensor([encoding.input_ids]),
            token_type_ids=torch.tensor([encoding.token_type_ids]),
        )
        start, end = out["start_logits"][0].tolist(), out["end_logits"][0].tolist()
        inside = [i for i, owner in enumerate(encoding.sequence_ids) if owner == 1]
        score, a, b = max(
            (start[a] + end[b], a, b) for a in inside for b in inside if a <= b < a + 30
        )
        text = (
            context[encoding.offset_mapping[a][0] : encoding.offset_mapping[b][1]]
            if score >= start[0] + end[0]
            else ""
        )
        right += text in ([answer.text for answer in record.get_answers()] or [""])
    assert 0.3 < right / 150 < 1
    assert result["metrics"]["exact_match"] == pytest.approx(right / 150)
    rows = [
        {"context": paragraph["context"], **question}
        for article in json.loads(Path(path).read_text())["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    Path("flat.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for row in rows:  # as the hub has it
        row["answers"] = {
            name: [item[name] for item in row["answers"]] for name in ("text", "answer_start")
        }
    Path("hub.jsonl").write_text("\n".join(map(json.dumps, rows)))
    windows = ("--data.max_length", 24, "--objective.stride", 8)
    short = evaluated(capsys, run, path, *windows)
    assert short["num_tokens"] > result["num_tokens"]  # contexts in several windows
    for name in ("flat.jsonl", "hub.jsonl"):
        result_of_file = evaluated(capsys, run, name, "--data.format", "jsonl", *windows)
        assert result_of_file["metrics"] == short["metrics"]
        assert result_of_file["data"] == name


def test_eval_of_two_networks(capsys: pytest.CaptureFixture[str]) -> None:
    """eval reproduces the last validation of ELECTRA and of distillation."""
    for name, extra in (
        ("replaced-token-detection", "replaced_accuracy"),
        ("distillation", "soft"),
    ):
        run, path = run_small(capsys, name, "--train.steps", 12, "--data.validation", "train.txt")
        result, last = (
            evaluated(capsys, run, path)["metrics"],
            MetricsHistory.read(run).validation[-1].metrics,
        )
        assert result == pytest.approx(last, rel=1e-5)
        assert extra in result


def test_a_discriminator_starts_from_the_generator(capsys: pytest.CaptureFixture[str]) -> None:
    """Both start from one masked language model; the discriminator has another head."""
    data_flags = small_data.write_data("replaced-token-detection", Path.cwd())
    words = (
        "--objective.name",
        "masked-lm",
        "--run",
        "words",
        "--train.steps",
        2,
        "--train.warmup_steps",
        0,
    )
    good(
        capsys,
        "train",
        "small/replaced-token-detection",
        *data_flags,
        *words,
    )
    Path("twins.toml").write_text(
        '[model]\nload = "words/last"\n[data]\nunit = "document"\n'
        'max_length = 64\noverflow = "window"\nbatch_size = 16\n'
        '[objective]\nname = "replaced-token-detection"\ngenerator = "words/last"\n'
        "[train]\nsteps = 1\nlr = 1e-30\n"
    )
    good(capsys, "train", "twins.toml", *data_flags, "--run", "twins")
    before, generator, after = (
        qkv.load(f) for f in ("words/last", "twins/last/generator", "twins/last")
    )
    assert any(name.startswith("heads.lm.") for name, _ in generator.net.named_parameters())
    # A learning rate of 1e-30 is lost in rounding.
    for name, weight in before.net.named_parameters():
        assert torch.equal(weight, dict(generator.net.named_parameters())[name])
        if "heads" not in name:
            assert torch.equal(weight, dict(after.net.named_parameters())[name])
    wrong = ("--objective.generator", "twins/last", "--run", "wrong")
    message = bad(capsys, "train", "twins.toml", *data_flags, *wrong)
    assert "objective.generator twins/last: expected a model with the head masked-lm" in message


def test_the_best_metric_must_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """The error comes before the first step and names the available metrics."""
    data_flags = small_data.write_data("seq2seq", Path.cwd())
    small = (
        "train",
        "small/seq2seq",
        *data_flags,
        "--run",
        "a",
        "--data.validation",
        "0.2",
    )
    message = bad(capsys, *small, "--train.best_metric", "bleu")
    assert (
        "train.best_metric 'bleu', expected one of the metrics: loss, accuracy; train.eval_generate adds"
        in message
    )
    assert "rougeL" in message
    assert not Path("a/metrics.jsonl").exists()
    assert "train.eval_generate 3: causal-lm generates no texts, expected 0" in bad(
        capsys, "train", "tiny.toml", "--train.eval_generate", 3
    )
    assert not Path("runs/tiny/metrics.jsonl").exists()


def test_the_best_is_the_highest_f1(capsys: pytest.CaptureFixture[str]) -> None:
    data_flags = small_data.write_data("sequence-classification", Path.cwd())
    flags = (
        "--run run --device cpu --data.validation 0.2 --train.best_metric f1 --train.eval_every 20"
    )
    out = good(
        capsys,
        "train",
        "small/sequence-classification",
        *data_flags,
        *flags.split(),
    )
    scores = [
        (report.metrics["f1"], -report.step)
        for report in MetricsHistory.read(Path("run")).validation
    ]
    f1, step = max(scores)  # the first of those
    assert f1 > min(scores)[0]
    assert f"best   run/best, f1 {f1:.4g} at step {-step}\n" in out


# --- progress ---


def test_progress_is_an_occasional_line(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 3.0, 10.0, 10.0, 15.0, 21.0, 21.0])
    with show_progress_bar("reading", clock=lambda: next(times)) as report:
        for done in (1, 2, 3, 4):
            report(f"read {done} of 4", done, 4)
    assert capsys.readouterr() == ("", "read 2 of 4\nread 4 of 4\n")


def test_a_progress_bar_with_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good(capsys, "train", "tiny.toml")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    assert main(["eval", "runs/tiny", "--json", "--data.test", "text.txt"]) == 0
    output, errors = capsys.readouterr()
    assert json.loads(output)["data"] == "text.txt"
    assert re.search(r"evaluated ([\d,]+) of \1 batches", errors)
