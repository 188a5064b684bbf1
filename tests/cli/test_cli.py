"""The command line as a user meets it: what it prints, how wide, and how it ends."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import qkv
from qkv.cli import about, human, main, size_in_bytes
from qkv.model.ctranslate2 import open_ctranslate2
from qkv.weights.tensors import read_tensors
from tests.model.test_foreign import TARGET, fairseq, original, translator, write, write_model

transformers.utils.logging.disable_progress_bar()

ROOT = Path(__file__).resolve().parent.parent.parent
TINY: dict[str, Any] = dict(vocab=50, width=16, depth=2, heads=2, feed=24, length=12)


def run(*arguments: object, columns: int = 100) -> subprocess.CompletedProcess[str]:
    """The program itself, its output a pipe."""
    environment = {"PATH": "", "PYTHONPATH": str(ROOT), "COLUMNS": str(columns), "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-m", "qkv", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, check=False)


def good(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(each) for each in arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def bad(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Exit status 2, nothing printed, and one line that says why."""
    assert main([str(each) for each in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"qkv: .+\n", err)
    return err.removeprefix("qkv: ").strip()


@pytest.fixture(autouse=True)
def _hundred_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


# --- the program ---


def test_help_and_version_need_no_torch() -> None:
    for flags in (["--help"], ["convert", "--help"], ["--version"]):
        code = (
            f"import sys; from qkv.cli import main; assert main({flags}) == 0 and 'torch' not in sys.modules"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, encoding="utf-8", cwd=ROOT, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.strip() == qkv.__version__ if flags == ["--version"] else "qkv" in done.stdout


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--help"]):
        assert all(name in good(capsys, *arguments) for name in ("families", "show", "convert", "--version"))
    assert all(word in good(capsys, "convert", "--help") for word in ("--form", "--shard", "--to", "fairseq"))


def test_the_package_imports_what_is_asked_for() -> None:
    code = """
import sys, qkv
assert "torch" not in sys.modules and {"load", "list_families", "look"} <= set(dir(qkv))
import qkv.families, qkv.attention_weights, qkv.model
from qkv import Batch, Model, Rows, build, list_families, load, look
assert [kin.name for kin in qkv.list_families()][0] == list_families()[0].name == "bert"
assert qkv.look is look and qkv.load is load and callable(look) and callable(load) and qkv.Model is Model
try: qkv.absent
except AttributeError as error: assert "absent" in str(error)
else: raise AssertionError
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", cwd=ROOT, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["shwo", "gpt2"], "show"),
        (["show"], "MODEL"),
        (["show", "gpt2", "extra"], "extra"),
        (["show", "gpt2", "--colour", "red"], "--colour"),
        (["show", "gpt9"], "nor is it a family, which are bert, roberta,"),
        (["show", "gpt2", "--size", "huge"], "'huge': expected one of small, medium, large, xl"),
        (["show", "."], "config.json"),
        (["show", "./none/here"], "no such folder"),
        (["families", "--form", "x"], "--form"),
        (["convert", "only"], "TARGET"),
        (["convert", "./none/here", "out"], "no such folder"),
        (["convert", ".", "out", "--form", "npz"], "npz"),
        (["convert", ".", "out", "--shard", "2XB"], "--shard 2XB: expected a size"),
        (["convert", ".", "out", "--shard", "0GB"], "--shard 0GB: expected a size"),
        (["convert", ".", "out", "--to", "onnx"], "onnx"),
        (["convert", ".", "out", "--head", "lm"], "--head lm with ."),
    ],
)
def test_mistakes_are_one_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in bad(capsys, *arguments)
    assert list(tmp_path.iterdir()) == []


def test_interrupted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("qkv.view.tree.parameters", stop)
    assert main(["families"]) == 130
    assert capsys.readouterr() == ("", "")


def test_nobody_reads() -> None:
    command = [sys.executable, "-m", "qkv", "show", "gpt3", "--layers"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_a_terminal_without_the_characters() -> None:
    command = [sys.executable, "-m", "qkv", "show", "gpt2"]
    environment = {"PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"layers 0-11 ?12" in done.stdout


# --- families ---


@pytest.mark.parametrize("columns", [80, 100, 160])
def test_families(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    out = good(capsys, "families")
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= columns
    assert not any(line != line.rstrip() for line in out.splitlines())
    said = set(re.findall(r"[^\s,]+", out))
    for kin in qkv.list_families():
        for text in (kin.name, kin.shape, *kin.sizes, *about(kin).values()):
            assert set(re.findall(r"[^\s,]+", text)) <= said  # no word is cut
    assert re.search(r"\bsmall +124M", out)
    assert re.search(r"\b175b +175B", out)


def test_families_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["name"]: row for row in json.loads(good(capsys, "families", "--json"))}
    assert list(rows) == [kin.name for kin in qkv.list_families()]
    assert rows["gpt2"]["sizes"]["small"] == 124_439_808
    assert rows["t5"]["shape"] == "encoder-decoder"
    assert all(row[key] for row in rows.values() for key in ("shape", "paper", "purpose", "differs", "sizes"))


@pytest.mark.parametrize(
    ("count", "said"),
    [(7, "7"), (999, "999"), (1234, "1.23K"), (43_210, "43.2K"), (999_499, "999K"), (999_500, "1.00M"),
     (124_439_808, "124M"), (1_557_611_200, "1.56B"), (174_604_259_328, "175B"), (9_996, "10.0K")],
)  # fmt: skip
def test_human(count: int, said: str) -> None:
    assert human(count) == said


# --- show ---


def test_show_a_family() -> None:
    done = run("show", "gpt2")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "gpt2 small: decoder, 124,439,808 parameters"
    assert "│   ├── layers 0-11 ×12    7,087,872 each" + " " * 49 + "85,054,464" in lines
    assert "│   │   │   │              ■ ■ ■ · · · · ·" in lines
    assert "        └── out            768 → 50,257, tied to decoder.embed.tokens" + " " * 30 + "0" in lines
    assert max(map(len, lines)) == 100


@pytest.mark.parametrize("columns", [60, 30])
def test_show_on_a_narrow_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = good(capsys, "show", "gpt2").splitlines()
    (row,) = (line for line in lines if "├── decoder " in line)
    assert row.endswith(" 124,439,808")
    assert len(row) == max(columns, 52)
    assert not {"124,439,808", "1,536"} & {*lines}


def test_show_sizes_and_layers(capsys: pytest.CaptureFixture[str]) -> None:
    assert "gpt2 xl: decoder, 1,557,611,200 parameters" in good(capsys, "show", "gpt2", "--size", "xl")
    out = good(capsys, "show", "gpt2", "--layers")
    assert all(f"layer {i} " in out for i in range(12))
    assert "×12" not in out


def test_show_a_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    qkv.build("sparse", None, **TINY | dict(stride=4, cells=1, split="heads")).save(tmp_path / "mine")
    (tmp_path / "mine" / "model.safetensors").unlink()  # config.json says it all
    out = good(capsys, "show", tmp_path / "mine")
    assert out.startswith("mine: decoder, ")
    assert "head 0             head 1" in out
    assert "no such size" not in out
    assert "a folder has one size" in bad(capsys, "show", tmp_path / "mine", "--size", "base")
    qkv.build("gpt2", None, positions="alibi", **TINY).save(tmp_path / "swapped")
    assert "ALiBi" in good(capsys, "show", tmp_path / "swapped")
    (tmp_path / "swapped").rename(tmp_path / "[red]:x:")
    assert good(capsys, "show", tmp_path / "[red]:x:").startswith("[red]:x:: decoder, ")
    (tmp_path / "mine" / "config.json").write_text('{"model_type": "word2vec"}')
    assert "'word2vec'" in bad(capsys, "show", tmp_path / "mine")


def test_show_takes_a_folder_then_a_family_then_a_hub_id(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").mkdir()  # of no model
    assert good(capsys, "show", "gpt2").startswith("gpt2 small: decoder, 124,439,808 ")
    qkv.build("bert", None, **TINY).save(tmp_path / "gpt2")
    assert good(capsys, "show", "gpt2").startswith("gpt2: encoder, ")
    assert good(capsys, "show", "gpt2", "--size", "small").startswith("gpt2 small: decoder, 124,439,808 ")
    monkeypatch.setattr("qkv.model.hub.find", lambda name, _: {"bert-tiny": tmp_path / "gpt2"}[name])
    assert good(capsys, "show", "bert-tiny").startswith("gpt2: encoder, ")


def test_show_refuses_what_no_screen_holds(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = {"model_type": "switch_transformers", "num_layers": 9000, "num_experts": 9000}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "layers and experts, expected at most 50,000 to draw" in bad(capsys, "show", tmp_path)


def test_show_what_others_wrote(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = write(tmp_path / "model.pt", fairseq(original()))
    assert good(capsys, "show", path).startswith("model.pt: encoder, ")
    folder = write_model(tmp_path / "ct2", *translator())
    assert "positions: sines and cosines, counted from 1" in good(capsys, "show", folder)


# --- convert ---


def tiny(folder: Path, name: str = "bert", **changes: Any) -> Path:
    qkv.build(name, None, **TINY | changes).save(folder)
    return folder


def equal(one: Path, two: Path) -> bool:
    """The same tensors, to the bit, under the same names."""
    a, b = read_tensors(one), read_tensors(two)
    same = (a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]) for name in a.keys() & b.keys())
    return a.keys() == b.keys() and all(same)


def names(folder: Path) -> set[str]:
    return {str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()}


def test_convert_there_and_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    a = tiny(tmp_path / "a", head="masked-lm")
    out = good(capsys, "convert", a, tmp_path / "b", "--form", "bin")
    assert names(tmp_path / "b") == {"config.json", "pytorch_model.bin"}
    assert f"read   {a}\n       Hugging Face's format, model.safetensors\n" in out
    count = sum(p.numel() for p in qkv.load(a).net.parameters())
    assert f"model  bert, {count:,} parameters, heads: lm\n" in out
    tensors = f"{len(read_tensors(a))} tensors of float32"
    assert f"wrote  {tmp_path / 'b'}\n       Hugging Face's format, {tensors}\n       config.json" in out
    out = good(capsys, "convert", tmp_path / "b", tmp_path / "c", "--shard", "4KB")
    shards = {name for name in names(tmp_path / "c") if "-of-" in name}
    assert len(shards) > 2
    assert all(name in out for name in (*shards, "model.safetensors.index.json"))
    out = good(capsys, "convert", tmp_path / "c", tmp_path / "d", "--form", "bin", "--shard", "6 kb")
    assert "model.safetensors in shards" in out
    assert "pytorch_model.bin.index.json" in names(tmp_path / "d")
    good(capsys, "convert", tmp_path / "d", tmp_path / "deep" / "er" / "e")
    for other in ("b", "c", "d", "deep/er/e"):
        assert equal(a, tmp_path / other)
        assert (tmp_path / other / "config.json").read_bytes() == (a / "config.json").read_bytes()
    for folder in (tmp_path / "b", tmp_path / "c", tmp_path / "d"):
        _, report = transformers.BertForMaskedLM.from_pretrained(folder, output_loading_info=True)
        assert not any(report.values())
    assert {each.name for each in tmp_path.iterdir()} == {"a", "b", "c", "d", "deep"}


def test_convert_to_our_own_format_and_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    a = tiny(tmp_path / "a", "gpt2")
    out = good(capsys, "convert", a, tmp_path / "own", "--to", "qkv")
    assert "qkv's own format" in out
    assert json.loads((tmp_path / "own" / "config.json").read_bytes())["model_type"] == "qkv"
    for to in ("hf", "auto"):
        good(capsys, "convert", tmp_path / "own", tmp_path / to, "--to", to)
        assert equal(a, tmp_path / to)
        assert json.loads((tmp_path / to / "config.json").read_bytes())["model_type"] == "gpt2"
        transformers.GPT2LMHeadModel.from_pretrained(tmp_path / to)


def test_convert_fairseq(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    theirs = original()
    (tmp_path / "source").mkdir()
    path = write(tmp_path / "source" / "model.pt", fairseq(theirs))
    (tmp_path / "source" / "dict.txt").write_text("a 1\n")
    for source in (path, path.parent):
        target = tmp_path / f"of {source.name}"
        out = good(capsys, "convert", source, target, "--to", "hf")
        assert f"read    {source}\n        a checkpoint of fairseq\n" in out
        assert "model   roberta, " in out
        assert "copied  dict.txt" in out
        found, report = transformers.RobertaForMaskedLM.from_pretrained(target, output_loading_info=True)
        assert not any(report.values())
        ids = torch.tensor([[0, 9, 4, 2]])
        with torch.no_grad():
            torch.testing.assert_close(found.eval()(ids).logits, theirs(ids).logits, atol=2e-5, rtol=1e-4)


def test_convert_a_head_of_fairseq(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    state = fairseq(original("RobertaForSequenceClassification", num_labels=4))
    other = {key.replace("topic", "mood"): x for key, x in state.items() if "topic" in key}
    path = write(tmp_path / "model.pt", state | other)
    assert "which head; expected one of topic, mood" in bad(capsys, "convert", path, tmp_path / "out")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["convert", str(path), str(tmp_path / "out"), "--head", "mood"]) == 0
    out, err = capsys.readouterr()
    assert err == f"qkv: warning: {path}: opened with the head mood, without topic\n"
    assert "heads: label" in out
    assert len(json.loads((tmp_path / "out" / "config.json").read_bytes())["id2label"]) == 4


def test_convert_ctranslate2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = write_model(tmp_path / "ct2", *translator())
    (source / "source_vocabulary.txt").write_text("a\nb\n")
    message = bad(capsys, "convert", source, tmp_path / "hf", "--to", "hf")
    assert "Hugging Face's format cannot hold the transformer family" in message
    assert {each.name for each in tmp_path.iterdir()} == {"ct2"}  # nothing half-written
    out = good(capsys, "convert", source, tmp_path / "own")
    assert f"read    {source}\n        a model of CTranslate2\n" in out
    assert "qkv's own format" in out
    assert "copied  source_vocabulary.txt" in out
    ids, target = torch.tensor([[5, 3, 2]]), torch.tensor([TARGET])
    found = qkv.load(tmp_path / "own").run(ids, target=target)["logits"]
    assert torch.equal(found, open_ctranslate2(source).run(ids, target=target)["logits"])


def test_what_stands_beside_goes_along(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = tiny(tmp_path / "a")
    beside = """
        tokenizer.json tokenizer_config.json special_tokens_map.json added_tokens.json vocab.txt vocab.json
        merges.txt spiece.model source.spm target.spm generation_config.json preprocessor_config.json
        chat_template.jinja 1_Pooling/config.json modules.json sentence_bert_config.json LICENSE README.md
    """.split()
    read = {
        "modules.json": '[{"type": "a.Pooling"}]',
        "1_Pooling/config.json": '{"pooling_mode_cls_token": true}',
        "generation_config.json": '{"max_length": 30}',
    }
    for name in (*beside, "optimizer.pt", "notes.txt", "training_args.bin", "model.onnx", ".hidden.json"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(read.get(name, name))
    out = good(capsys, "convert", source, tmp_path / "b")
    assert names(tmp_path / "b") == {"config.json", "model.safetensors", *beside}
    assert all((tmp_path / "b" / name).read_text() == read.get(name, name) for name in beside)
    assert all(name in " ".join(out.split()) for name in beside)
    (source / "vocab.txt").unlink()
    (source / "vocab.txt").symlink_to("/etc/hostname")
    assert "leads out of the folder" in bad(capsys, "convert", source, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_convert_writes_over_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = tiny(tmp_path / "a")
    before = {name: (source / name).read_bytes() for name in names(source)}
    (tmp_path / "link").symlink_to(source)
    for target in (source, tmp_path / "link", tmp_path / "a" / ".." / "a"):
        assert "the source itself" in bad(capsys, "convert", source, target)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thing").touch()
    (tmp_path / "file").touch()
    for target in (tmp_path / "full", tmp_path / "file"):
        assert "there is something already" in bad(capsys, "convert", source, target)
    assert {name: (source / name).read_bytes() for name in names(source)} == before
    (tmp_path / "empty").mkdir()
    good(capsys, "convert", source, tmp_path / "empty")
    assert equal(source, tmp_path / "empty")
    good(capsys, "convert", source, source / "within")
    assert equal(source, source / "within")


def test_convert_leaves_nothing_half_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = tiny(tmp_path / "a")

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("qkv.model.model.write_json", full)
    assert "No space left on device" in bad(capsys, "convert", source, tmp_path / "b")
    assert {each.name for each in tmp_path.iterdir()} == {"a"}


def test_convert_damaged(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = tiny(tmp_path / "a")
    data = (source / "model.safetensors").read_bytes()
    (source / "model.safetensors").write_bytes(data[:-9])
    assert "model.safetensors" in bad(capsys, "convert", source, tmp_path / "b")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("2GB", 2 * 10**9),
        ("1.5 GiB", 3 * 2**29),
        ("500mb", 5 * 10**8),
        ("12345", 12345),
        ("10K", None),
        ("", None),
    ],
)
def test_size_in_bytes(text: str, count: int | None) -> None:
    if count is None:
        with pytest.raises(ValueError, match="expected a size"):
            size_in_bytes(text)
    else:
        assert size_in_bytes(text) == count


@pytest.mark.parametrize("closed", ["<&-", ">&-"])
def test_streams_that_are_closed(closed: str) -> None:
    command = f"{shlex.quote(sys.executable)} -m qkv families {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
