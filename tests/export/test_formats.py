"""export_model and `qkv export --to`: formats by name, complete folders or none, errors on one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import qkv
from qkv.cli import main
from qkv.export import onnx, pt2
from qkv.export.formats import EXPORT_FORMATS
from qkv.model.model import Model
from tests.support import saved_models, tiny
from tests.support.limits import get_error_message

Writer = Callable[[Model, Path], None]


def write_marker(model: Model, folder: Path) -> None:
    model.save_config(folder)
    (folder / "model.onnx").write_bytes(b"graph")


def test_every_format_has_a_function() -> None:
    assert list(EXPORT_FORMATS) == ["onnx", "ctranslate2", "pt2"]
    assert EXPORT_FORMATS["onnx"].function == onnx.export_onnx.__name__
    assert EXPORT_FORMATS["pt2"].function == pt2.export_pt2.__name__


def test_unknown_formats_and_settings_are_errors(tmp_path: Path) -> None:
    model = tiny.build("bert", dtype=torch.float32)
    target = tmp_path / "out"
    message = get_error_message(lambda: qkv.export_model(model, target, to="gguf"))
    assert "'gguf': expected one of onnx, ctranslate2, pt2" in message
    message = get_error_message(
        lambda: qkv.export_model(model, target, to="onnx", quantization="int8")
    )
    assert "quantization 'int8'" in message
    assert "--dtype float16" in message
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    message = get_error_message(lambda: qkv.export_model(model, tmp_path / "full", to="onnx"))
    assert "expected a new or an empty folder" in message
    assert not target.exists()


@pytest.mark.parametrize("to", ["onnx", "pt2"])
def test_a_refused_model_leaves_no_folder(to: str, tmp_path: Path) -> None:
    model = tiny.build("switch", dtype=torch.float32)
    message = get_error_message(lambda: qkv.export_model(model, tmp_path / "out", to=to))
    assert "switch: a mixture of experts cannot be exported" in message
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(model: Model, folder: Path) -> None:
        write_marker(model, folder)
        raise OSError("No space left on device")

    monkeypatch.setattr(onnx, "export_onnx", fail)
    model = tiny.build("bert", dtype=torch.float32)
    with pytest.raises(OSError, match="No space"):
        qkv.export_model(model, tmp_path / "out", to="onnx")
    assert list(tmp_path.iterdir()) == []


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx, "find_spec", lambda name: None)
    model = tiny.build("bert", dtype=torch.float32)
    message = get_error_message(lambda: qkv.export_model(model, tmp_path / "out", to="onnx"))
    assert "needs the packages onnx and onnxscript: pip install 'qkv[onnx]'" in message


# --- command line ---


def test_the_command_writes_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(onnx, "export_onnx", write_marker)
    saved_models.build("gpt2").save(tmp_path / "model")
    (tmp_path / "model" / "LICENSE").write_text("Apache-2.0")
    command = ["export", str(tmp_path / "model"), str(tmp_path / "out"), "--to", "onnx"]
    assert main([*command, "--dtype", "float16"]) == 0
    out = capsys.readouterr().out
    assert "onnx" in out
    assert "copied  LICENSE" in out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "model.onnx", "config.json", "generation_config.json", "tokenizer.json",
        "tokenizer_config.json", "special_tokens_map.json", "LICENSE",
    }  # fmt: skip
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["model_type"], config["dtype"]) == ("gpt2", "float16")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--to onnx --quantization int8", "quantization 'int8'"),
        ("--to onnx --max-shard-size 2GB", "--max-shard-size 2GB with --to onnx"),
        ("--to pt2 --weights-format bin", "--weights-format bin with --to pt2"),
        ("--to hf --quantization int16", "--quantization int16 with --to hf: expected int8"),
        ("--to hf --quantization int8", "Hugging Face's format cannot hold int8 weights"),
        ("--to gguf", "gguf"),
        ("--to onnx --dtype int8", "int8"),
    ],
)
def test_errors_of_the_command(
    flags: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.build("bert", dtype=torch.float32).save(tmp_path / "model")
    arguments = ["export", str(tmp_path / "model"), str(tmp_path / "out"), *flags.split()]
    assert main(arguments) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_dtype_of_saved_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.build("bert", dtype=torch.float32).save(tmp_path / "model")
    arguments = ["export", str(tmp_path / "model"), str(tmp_path / "out"), "--dtype", "bfloat16"]
    assert main(arguments) == 0
    assert "tensors of bfloat16" in capsys.readouterr().out
    assert qkv.load(tmp_path / "out").dtype == torch.bfloat16
