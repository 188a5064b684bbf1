"""The command line: output, width, exit statuses; families, show and export."""

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
from qkv.cli import main
from qkv.cli.models import get_family_facts, parse_byte_size
from qkv.formatting import format_count
from qkv.model.foreign.ctranslate2 import load_ctranslate2
from qkv.weights.tensors import read_tensors
from tests.support import compare
from tests.support.ctranslate2_files import TARGET, build_translator, write_model
from tests.support.fairseq_files import build_roberta, to_fairseq, write_fairseq
from tests.support.limits import limit_time_and_memory

transformers.utils.logging.disable_progress_bar()

ROOT = Path(__file__).resolve().parent.parent.parent
TINY: dict[str, Any] = dict(
    vocab_size=50, width=16, depth=2, heads=2, ffn_width=24, max_positions=12
)


def run(*arguments: object, columns: int = 100) -> subprocess.CompletedProcess[str]:
    """Run the program with its output in a pipe."""
    environment = {
        "PATH": "",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": str(columns),
        "PYTHONIOENCODING": "utf-8",
    }
    command = [sys.executable, "-m", "qkv", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, encoding="utf-8", env=environment, check=False
    )


def good(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([*map(str, arguments)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def bad(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Assert exit status 2, empty stdout and one line on stderr; return the line."""
    assert main([*map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"qkv: .+\n", err)
    return err.removeprefix("qkv: ").strip()


@pytest.fixture(autouse=True)
def _hundred_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


# --- the program ---


def test_help_and_version_need_no_torch() -> None:
    for flags in (["--help"], ["export", "--help"], ["--version"]):
        code = (
            "import sys; from qkv.cli import main\n"
            f"assert main({flags}) == 0 and 'torch' not in sys.modules"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            encoding="utf-8",
            cwd=ROOT,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert (
            done.stdout.strip() == qkv.__version__
            if flags == ["--version"]
            else "qkv" in done.stdout
        )


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--help"]):
        assert all(
            name in good(capsys, *arguments) for name in ("families", "show", "export", "--version")
        )
    words = ("--weights-format", "--max-shard-size", "--to", "fairseq")
    assert all(word in good(capsys, "export", "--help") for word in words)


def test_the_package_imports_what_is_asked_for() -> None:
    code = """
import sys, qkv
assert "torch" not in sys.modules and {"load", "list_families", "look"} <= set(dir(qkv))
import qkv.families, qkv.attention_weights, qkv.model
from qkv import Batch, Inputs, Model, build, list_families, load, look
assert [family.name for family in qkv.list_families()][0] == list_families()[0].name == "bert"
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
        (["show", "gpt2", "--color", "red"], "--color"),
        (["show", "gpt9"], "and not a family, expected one of bert, roberta,"),
        (["show", "gpt2", "--size", "huge"], "'huge': expected one of small, medium, large, xl"),
        (["show", "."], "config.json"),
        (["show", "./none/here"], "no such folder"),
        (["families", "--to", "x"], "--to"),
        (["export", "only"], "TARGET"),
        (["export", "./none/here", "out"], "no such folder"),
        (["export", ".", "out", "--weights-format", "npz"], "npz"),
        (
            ["export", ".", "out", "--max-shard-size", "2XB"],
            "--max-shard-size 2XB: expected a size",
        ),
        (
            ["export", ".", "out", "--max-shard-size", "0GB"],
            "--max-shard-size 0GB: expected a size",
        ),
        (
            ["export", ".", "out", "--max-shard-size", "9" * 401],
            f"--max-shard-size {'9' * 40}: expected a size",
        ),
        (["export", ".", "out", "--to", "gguf"], "gguf"),
        (["export", ".", "out", "--head", "lm"], "--head lm with ."),
    ],
)
def test_errors_are_one_line(
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

    monkeypatch.setattr("qkv.pictures.models.tree.count_spec_parameters", stop)
    assert main(["families"]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_closed_pipe() -> None:
    command = [sys.executable, "-m", "qkv", "show", "gpt3", "--all-layers"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as process:
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
def test_families(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    out = good(capsys, "families")
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= columns
    assert not any(line != line.rstrip() for line in out.splitlines())
    words = set(re.findall(r"[^\s,]+", out))
    for family in qkv.list_families():
        for text in (family.name, family.shape, *family.sizes, *get_family_facts(family).values()):
            assert set(re.findall(r"[^\s,]+", text)) <= words  # no word is split
    assert re.search(r"\bsmall +124M", out)
    assert re.search(r"\b175b +175B", out)


def test_families_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["name"]: row for row in json.loads(good(capsys, "families", "--json"))}
    assert list(rows) == [family.name for family in qkv.list_families()]
    assert rows["gpt2"]["sizes"]["small"] == 124_439_808
    assert rows["t5"]["shape"] == "encoder-decoder"
    assert all(
        row[key]
        for row in rows.values()
        for key in ("shape", "paper", "purpose", "differs", "sizes")
    )


@pytest.mark.parametrize(
    ("count", "text"),
    [(7, "7"), (999, "999"), (1234, "1.23K"), (43_210, "43.2K"), (999_499, "999K"), (999_500, "1.00M"),
     (124_439_808, "124M"), (1_557_611_200, "1.56B"), (174_604_259_328, "175B"), (9_996, "10.0K")],
)  # fmt: skip
def test_format_count(count: int, text: str) -> None:
    assert format_count(count) == text


# --- show ---


def test_show_a_family() -> None:
    done = run("show", "gpt2")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "gpt2 small: decoder, 124,439,808 parameters"
    assert "│   ├── layers 0-11 ×12            7,087,872 each" + " " * 41 + "85,054,464" in lines
    assert "│   │   │   │                      ■ ■ ■ · · · · ·" in lines
    assert (
        "        └── out                    768 → 50,257, tied to decoder.embedding.tokens"
        + " " * 18
        + "0"
        in lines
    )
    assert max(map(len, lines)) == 100


@pytest.mark.parametrize("columns", [60, 30])
def test_show_on_a_narrow_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = good(capsys, "show", "gpt2").splitlines()
    (row,) = (line for line in lines if "├── decoder " in line)
    assert row.endswith(" 124,439,808")
    assert len(row) == max(columns, 60)
    assert not {"124,439,808", "1,536"} & {*lines}


def test_show_sizes_and_layers(capsys: pytest.CaptureFixture[str]) -> None:
    assert "gpt2 xl: decoder, 1,557,611,200 parameters" in good(
        capsys, "show", "gpt2", "--size", "xl"
    )
    out = good(capsys, "show", "gpt2", "--all-layers")
    assert all(f"layer {i} " in out for i in range(12))
    assert "×12" not in out


def test_show_a_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    qkv.build("sparse", None, **TINY | dict(stride=4, num_summary=1, split="heads")).save(
        tmp_path / "mine"
    )
    (tmp_path / "mine" / "model.safetensors").unlink()  # config.json is enough
    out = good(capsys, "show", tmp_path / "mine")
    assert out.startswith("mine: decoder, ")
    assert "head 0             head 1" in out
    assert "no such size" not in out
    assert "a folder has one size" in bad(capsys, "show", tmp_path / "mine", "--size", "base")
    qkv.build("gpt2", None, position_embedding_type="alibi", **TINY).save(tmp_path / "swapped")
    assert "ALiBi" in good(capsys, "show", tmp_path / "swapped")
    (tmp_path / "swapped").rename(tmp_path / "[red]:x:")
    assert good(capsys, "show", tmp_path / "[red]:x:").startswith("[red]:x:: decoder, ")
    (tmp_path / "mine" / "config.json").write_text('{"model_type": "word2vec"}')
    assert "'word2vec'" in bad(capsys, "show", tmp_path / "mine")


def test_show_saves_a_diagram(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["show", "bert", "--save", "bert.svg"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("bert tiny: encoder, ")
    assert err == "wrote bert.svg\n"
    assert "<title>bert tiny: encoder</title>" in Path("bert.svg").read_text(encoding="utf-8")
    wrong = {
        "bert.png": "PNG is not supported; expected .svg",
        "bert.html": "expected a file name that ends with .svg",
        "none/bert.svg": "expected a file in an existing folder",
    }
    for file, message in wrong.items():
        assert f"--save {file}: {message}" in bad(capsys, "show", "bert", "--save", file)
    assert [file.name for file in tmp_path.iterdir()] == ["bert.svg"]


def test_show_takes_a_folder_then_a_family_then_a_hub_id(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").mkdir()  # without a model
    assert good(capsys, "show", "gpt2").startswith("gpt2 small: decoder, 124,439,808 ")
    qkv.build("bert", None, **TINY).save(tmp_path / "gpt2")
    assert good(capsys, "show", "gpt2").startswith("gpt2: encoder, ")
    assert good(capsys, "show", "gpt2", "--size", "small").startswith(
        "gpt2 small: decoder, 124,439,808 "
    )
    monkeypatch.setattr(
        "qkv.model.hub.find_model_folder", lambda name, _: {"bert-tiny": tmp_path / "gpt2"}[name]
    )
    assert good(capsys, "show", "bert-tiny").startswith("gpt2: encoder, ")


def test_show_refuses_too_many_layers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = {"model_type": "switch_transformers", "num_layers": 9000, "num_experts": 9000}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "layers and experts, expected at most 10,000" in bad(capsys, "show", tmp_path)


def test_show_draws_two_of_very_many_layers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = {"model_type": "bert", "num_hidden_layers": 10_000, "architectures": ["BertModel"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with limit_time_and_memory():
        output = good(capsys, "show", tmp_path)
    num_parameters = 10_000 * 7_087_872 + (30_522 + 512 + 2 + 2) * 768 + 768 * 769
    assert f"encoder, {num_parameters:,} parameters" in output
    assert "layers 0-1 ×2" in output
    assert "two of several equal layers, of 10,000 layers" in output
    assert "remove --all-layers" in bad(capsys, "show", tmp_path, "--all-layers")


@pytest.mark.filterwarnings("ignore:.*loaded without a tokenizer")
def test_show_fairseq_and_ctranslate2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = write_fairseq(tmp_path / "model.pt", to_fairseq(build_roberta()))
    assert good(capsys, "show", path).startswith("model.pt: encoder, ")
    folder = write_model(tmp_path / "ct2", *build_translator())
    assert "positions: sines and cosines, counted from 1" in good(capsys, "show", folder)


# --- export ---


def tiny(folder: Path, name: str = "bert", **changes: Any) -> Path:
    qkv.build(name, None, **TINY | changes).save(folder)
    return folder


def equal(first: Path, second: Path) -> bool:
    """Return whether two folders have bitwise equal tensors, as copies are, under the same names."""
    a, b = read_tensors(first), read_tensors(second)
    same = (
        a[name].dtype == b[name].dtype and torch.equal(a[name], b[name])
        for name in a.keys() & b.keys()
    )
    return a.keys() == b.keys() and all(same)


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_export_there_and_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    a = tiny(tmp_path / "a", head="masked-lm")
    out = good(capsys, "export", a, tmp_path / "b", "--weights-format", "bin")
    assert names(tmp_path / "b") == {"config.json", "pytorch_model.bin"}
    assert f"read   {a}\n       Hugging Face format, model.safetensors\n" in out
    count = sum(p.numel() for p in qkv.load(a).net.parameters())
    assert f"model  bert, {count:,} parameters, heads: lm\n" in out
    tensors = f"{len(read_tensors(a))} tensors of float32"
    assert (
        f"wrote  {tmp_path / 'b'}\n       Hugging Face format, {tensors}\n       config.json" in out
    )
    out = good(capsys, "export", tmp_path / "b", tmp_path / "c", "--max-shard-size", "4KB")
    shards = {name for name in names(tmp_path / "c") if "-of-" in name}
    assert len(shards) > 2
    assert all(name in out for name in (*shards, "model.safetensors.index.json"))
    out = good(
        capsys,
        "export",
        tmp_path / "c",
        tmp_path / "d",
        "--weights-format",
        "bin",
        "--max-shard-size",
        "6 kb",
    )
    assert "model.safetensors in shards" in out
    assert "pytorch_model.bin.index.json" in names(tmp_path / "d")
    good(capsys, "export", tmp_path / "d", tmp_path / "deep" / "er" / "e")
    for other in ("b", "c", "d", "deep/er/e"):
        assert equal(a, tmp_path / other)
        assert (tmp_path / other / "config.json").read_bytes() == (a / "config.json").read_bytes()
    for folder in (tmp_path / "b", tmp_path / "c", tmp_path / "d"):
        _, report = transformers.BertForMaskedLM.from_pretrained(folder, output_loading_info=True)
        assert not any(report.values())
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "c", "d", "deep"}


def test_export_to_qkv_format_and_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    a = tiny(tmp_path / "a", "gpt2")
    out = good(capsys, "export", a, tmp_path / "own", "--to", "qkv")
    assert "qkv format" in out
    assert json.loads((tmp_path / "own" / "config.json").read_bytes())["model_type"] == "qkv"
    for to in ("hf", "auto"):
        good(capsys, "export", tmp_path / "own", tmp_path / to, "--to", to)
        assert equal(a, tmp_path / to)
        assert json.loads((tmp_path / to / "config.json").read_bytes())["model_type"] == "gpt2"
        transformers.GPT2LMHeadModel.from_pretrained(tmp_path / to)


def test_export_fairseq(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    reference = build_roberta()
    (tmp_path / "source").mkdir()
    path = write_fairseq(tmp_path / "source" / "model.pt", to_fairseq(reference))
    (tmp_path / "source" / "dict.txt").write_text("a 1\n")
    for source in (path, path.parent):
        target = tmp_path / f"of {source.name}"
        out = good(capsys, "export", source, target, "--to", "hf")
        assert f"read    {source}\n        fairseq checkpoint\n" in out
        assert "model   roberta, " in out
        assert "copied  dict.txt" in out
        loaded, report = transformers.RobertaForMaskedLM.from_pretrained(
            target, output_loading_info=True
        )
        assert not any(report.values())
        ids = torch.tensor([[0, 9, 4, 2]])
        with torch.no_grad():
            torch.testing.assert_close(
                loaded.eval()(ids).logits, reference(ids).logits, atol=2e-5, rtol=1e-4
            )


def test_export_a_head_of_fairseq(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    state = to_fairseq(build_roberta("RobertaForSequenceClassification", num_labels=4))
    other = {key.replace("topic", "mood"): x for key, x in state.items() if "topic" in key}
    path = write_fairseq(tmp_path / "model.pt", state | other)
    assert "which head; expected one of topic, mood" in bad(
        capsys, "export", path, tmp_path / "out"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["export", str(path), str(tmp_path / "out"), "--head", "mood"]) == 0
    out, err = capsys.readouterr()
    assert err == f"qkv: warning: {path}: loaded with the head mood, without topic\n"
    assert "heads: sequence-classification" in out
    assert len(json.loads((tmp_path / "out" / "config.json").read_bytes())["id2label"]) == 4


@pytest.mark.filterwarnings("ignore:.*loaded without a tokenizer")
def test_export_ctranslate2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = write_model(tmp_path / "ct2", *build_translator())
    (source / "source_vocabulary.txt").write_text("a\nb\n")
    message = bad(capsys, "export", source, tmp_path / "hf", "--to", "hf")
    assert "Hugging Face's format cannot hold norm_position='pre', final_norm=True" in message
    assert {path.name for path in tmp_path.iterdir()} == {"ct2"}  # nothing half-written
    out = good(capsys, "export", source, tmp_path / "own")
    assert f"read    {source}\n        CTranslate2 model\n" in out
    assert "qkv format" in out
    assert "copied  source_vocabulary.txt" in out
    ids, target = torch.tensor([[5, 3, 2]]), torch.tensor([TARGET])
    logits = qkv.load(tmp_path / "own")(ids, decoder_input_ids=target)["logits"]
    expected = load_ctranslate2(source)(ids, decoder_input_ids=target)["logits"]
    compare.assert_bitwise_equal(logits, expected, because=compare.SAME_KERNELS)


def test_companion_files_are_copied(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = tiny(tmp_path / "a")
    companion_files = """
        tokenizer.json tokenizer_config.json special_tokens_map.json added_tokens.json vocab.txt vocab.json
        merges.txt spiece.model source.spm target.spm generation_config.json preprocessor_config.json
        chat_template.jinja 1_Pooling/config.json modules.json sentence_bert_config.json LICENSE README.md
    """.split()
    read = {
        "modules.json": '[{"type": "a.Pooling"}]',
        "1_Pooling/config.json": '{"pooling_mode_cls_token": true}',
        "generation_config.json": '{"max_length": 30}',
    }
    for name in (
        *companion_files,
        "optimizer.pt",
        "notes.txt",
        "training_args.bin",
        "model.onnx",
        ".hidden.json",
    ):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(read.get(name, name))
    out = good(capsys, "export", source, tmp_path / "b")
    assert names(tmp_path / "b") == {"config.json", "model.safetensors", *companion_files}
    assert all(
        (tmp_path / "b" / name).read_text() == read.get(name, name) for name in companion_files
    )
    assert all(name in " ".join(out.split()) for name in companion_files)
    (source / "vocab.txt").unlink()
    (source / "vocab.txt").symlink_to("/etc/hostname")
    assert "leads out of the folder" in bad(capsys, "export", source, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_export_overwrites_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = tiny(tmp_path / "a")
    before = {name: (source / name).read_bytes() for name in names(source)}
    (tmp_path / "link").symlink_to(source)
    for target in (source, tmp_path / "link", tmp_path / "a" / ".." / "a"):
        assert "the same folder as the source" in bad(capsys, "export", source, target)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thing").touch()
    (tmp_path / "file").touch()
    for target in (tmp_path / "full", tmp_path / "file"):
        assert "already exists" in bad(capsys, "export", source, target)
    assert {name: (source / name).read_bytes() for name in names(source)} == before
    (tmp_path / "empty").mkdir()
    good(capsys, "export", source, tmp_path / "empty")
    assert equal(source, tmp_path / "empty")
    good(capsys, "export", source, source / "within")
    assert equal(source, source / "within")


def test_export_leaves_nothing_half_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = tiny(tmp_path / "a")

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("qkv.model.model.save_json", full)
    assert "No space left on device" in bad(capsys, "export", source, tmp_path / "b")
    assert {path.name for path in tmp_path.iterdir()} == {"a"}


def test_export_damaged(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = tiny(tmp_path / "a")
    data = (source / "model.safetensors").read_bytes()
    (source / "model.safetensors").write_bytes(data[:-9])
    assert "model.safetensors" in bad(capsys, "export", source, tmp_path / "b")
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
            parse_byte_size(text)
    else:
        assert parse_byte_size(text) == count


@pytest.mark.parametrize("closed", ["<&-", ">&-"])
def test_closed_streams(closed: str) -> None:
    command = f"{shlex.quote(sys.executable)} -m qkv families {closed}"
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
