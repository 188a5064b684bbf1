"""Formats that qkv does not read: each is named, with a way out, as a file and in a folder."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy
import pytest
import torch

import qkv
from qkv.weights.formats.unsupported import check_supported_format, detect_unsupported_format
from tests.support.errors import assert_error


def write_zip(path: Path, *names: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"{}")


def write_onnx(path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    graph = onnx.helper.make_graph([], "g", [], [])
    onnx.save(onnx.helper.make_model(graph, producer_name="pytorch"), path)


def write_llama2_c(path: Path) -> None:
    """Write the header of llama2.c's export.py and as many numbers as it says."""
    width, ffn_width, depth, heads, kv_heads, vocab_size, length = 8, 24, 2, 2, 1, 32, 16
    header = struct.pack("<7i", width, ffn_width, depth, heads, kv_heads, vocab_size, length)
    kv_width = width // heads * kv_heads
    layer = 2 * width + 2 * width * width + 2 * width * kv_width + 3 * width * ffn_width
    floats = vocab_size * width + depth * layer + width + length * (width // heads)
    path.write_bytes(header + numpy.ones(floats, numpy.float32).tobytes())


class Module(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def write_torchscript(path: Path) -> None:
    torch.jit.trace(Module(), torch.ones(1)).save(str(path))


# A file name, its content or a function that writes it, and words of the message.
FILES: dict[str, tuple[str, bytes | tuple[str, ...] | Callable[[Path], None], str]] = {
    "onnx": ("model.onnx", write_onnx, "an ONNX file exported from"),
    "onnx by content": ("model.bin", write_onnx, "an ONNX file exported from"),
    "gguf": ("llama.gguf", b"GGUF\3\0\0\0", "a GGUF file safetensors"),
    "gguf by content": ("model.bin", b"GGUF\3\0\0\0" + bytes(60), "a GGUF file"),
    "ggml": ("ggml-model.bin", b"lmgg" + bytes(60), "a GGML file"),
    "llama2.c": ("stories15M.bin", write_llama2_c, "a llama2.c file"),
    "llama2.c version 1": ("model.bin", b"24ka" + bytes(252), "a llama2.c file"),
    "tensorflow index": ("bert_model.ckpt.index", b"\0\0\1", "a TensorFlow checkpoint from_tf"),
    "tensorflow meta": ("bert_model.ckpt.meta", b"\n\1", "a TensorFlow checkpoint from_tf"),
    "tensorflow data": ("model.ckpt.data-00000-of-00001", b"\1", "a TensorFlow checkpoint"),
    "saved model": ("saved_model.pb", b"\x08\x01\x12", "a TensorFlow SavedModel from_tf"),
    "keras weights": ("tf_model.h5", b"\x89HDF\r\n\x1a\n", "an HDF5 file of TensorFlow from_tf"),
    "keras": ("model.keras", ("metadata.json", "config.json", "model.weights.h5"), "a Keras file"),
    "flax": ("flax_model.msgpack", b"\x82", "a Flax file from_flax"),
    "argos": (
        "translate-en_de.argosmodel",
        ("en_de/metadata.json", "en_de/model/model.bin", "en_de/sentencepiece.model"),
        "an Argos Translate package CTranslate2",
    ),
    "core ml": ("Model.mlmodel", b"\x08\x04", "a Core ML model"),
    "openvino": ("openvino_model.xml", b'<?xml version="1.0"?>\n<net name="m">', "an OpenVINO model"),
    "tflite": ("model.tflite", b"\x1c\0\0\0TFL3", "a TensorFlow Lite file"),
    "torchscript": ("model.pt", write_torchscript, "a TorchScript archive state_dict"),
    "tensorrt": ("model.engine", b"ftrt", "a TensorRT engine"),
    "paddle": ("model_state.pdparams", b"\x80\x02", "a Paddle file"),
    "marian": ("model.intgemm.alphas.bin", b"\1" + bytes(40), "a quantized model of Marian .npz"),
}  # fmt: skip


def write_file(folder: Path, name: str) -> Path:
    file_name, content, _ = FILES[name]
    path = folder / file_name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, tuple):
        write_zip(path, *content)
    else:
        content(path)
    return path


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", FILES)
def test_a_file_or_a_folder_with_it_is_refused_by_name(tmp_path: Path, name: str) -> None:
    path = write_file(tmp_path, name)
    article, *words = FILES[name][2].split()
    for loaded in (path, tmp_path):
        message = assert_error(partial(qkv.load, loaded), path, article, *words)
        assert "which qkv does not read; " in message
        assert len(message.removeprefix(str(path))) < 200


def test_a_folder_of_hugging_face_with_only_such_weights_is_refused_by_name(tmp_path: Path) -> None:
    model = qkv.build("bert", "tiny", vocab_size=30, width=8, heads=2, ffn_width=8, depth=1)
    model.save(tmp_path)
    (tmp_path / "tf_model.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    (tmp_path / "onnx").mkdir()
    write_onnx(tmp_path / "onnx" / "model.onnx")
    qkv.load(tmp_path)  # other weights beside safetensors do not matter
    (tmp_path / "model.safetensors").unlink()
    assert_error(lambda: qkv.load(tmp_path), "tf_model.h5: an HDF5 file of TensorFlow")
    (tmp_path / "tf_model.h5").unlink()
    assert_error(lambda: qkv.load(tmp_path), "model.onnx: an ONNX file")
    (tmp_path / "onnx" / "model.onnx").unlink()
    assert_error(lambda: qkv.load(tmp_path), "no weights")


def test_a_core_ml_package_is_a_folder(tmp_path: Path) -> None:
    package = tmp_path / "Model.mlpackage"
    package.mkdir()
    (package / "Manifest.json").write_text("{}")
    assert_error(lambda: qkv.load(package), "a Core ML model")
    assert_error(lambda: qkv.load(tmp_path), "Model.mlpackage: a Core ML model")


def test_files_that_qkv_reads_are_not_refused(tmp_path: Path) -> None:
    model = qkv.build("bert", "tiny", vocab_size=30, width=8, heads=2, ffn_width=8, depth=1)
    model.save(tmp_path)
    torch.save({"a": torch.ones(2)}, tmp_path / "pytorch_model.bin")
    torch.save({"a": torch.ones(2)}, tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    numpy.savez(tmp_path / "weights.npz", a=numpy.ones(2))
    (tmp_path / "metadata.json").write_text(json.dumps({}))
    (tmp_path / "empty").write_bytes(b"")
    for path in tmp_path.iterdir():
        assert detect_unsupported_format(path) is None, path
    check_supported_format(tmp_path)
    check_supported_format(tmp_path / "absent")
