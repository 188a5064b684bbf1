"""Formats that qkv does not read: detected by content or name, and refused by name with a way out."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from struct import unpack_from
from typing import NamedTuple

HEADER_SIZE = 64
LLAMA2_C_FIELDS = 7  # dim hidden_dim n_layers n_heads n_kv_heads vocab_size seq_len
ORIGINAL_WEIGHTS = "load the PyTorch or safetensors weights it was exported from"
TENSORFLOW_FIX = (
    "load its PyTorch weights, or convert it in transformers 4: from_pretrained(…, from_tf=True), "
    "then save_pretrained"
)
FLAX_FIX = (
    "load its PyTorch weights, or convert it in transformers 4: from_pretrained(…, from_flax=True), "
    "then save_pretrained"
)


class UnsupportedFormat(NamedTuple):
    """A format: its name, what to do instead, and how its files are recognized."""

    name: str
    fix: str
    suffixes: tuple[str, ...] = ()  # of the file name, or whole names
    magic: tuple[bytes, ...] = ()  # first bytes of the file
    has_content: Callable[[Path, bytes], bool] = lambda path, header: False


def is_llama2_c(path: Path, header: bytes) -> bool:
    """Return whether a .bin file has the header of llama2.c, whose sizes determine the file size."""
    if header[:4] == b"24ka":  # version 1 and later
        return True
    if path.suffix != ".bin" or len(header) < 4 * LLAMA2_C_FIELDS:
        return False
    width, ffn_width, depth, heads, kv_heads, vocab_size, length = unpack_from("<7i", header)
    vocab_size = abs(vocab_size)  # negative: the output projection is not tied
    sizes = (width, ffn_width, depth, heads, kv_heads, vocab_size, length)
    if not all(0 < size < 2**24 for size in sizes) or width % heads or heads % kv_heads:
        return False
    layer = width * (2 * width + 2 * (width // heads) * kv_heads + 3 * ffn_width + 2)
    floats = vocab_size * width + depth * layer + width
    return path.stat().st_size >= 4 * (LLAMA2_C_FIELDS + floats)


def is_onnx(path: Path, header: bytes) -> bool:
    """Return whether a file starts like ONNX's ModelProto: the IR version, then the producer."""
    return header[:1] == b"\x08" and header[2:3] == b"\x12" and 3 <= header[1] <= 20


def has_tflite_mark(path: Path, header: bytes) -> bool:
    return header[4:8] == b"TFL3"


def has_openvino_root(path: Path, header: bytes) -> bool:
    return path.suffix == ".xml" and b"<net" in header


def contains_files(*names: str) -> Callable[[Path, bytes], bool]:
    """Return a predicate for zip files with all these names, in any folder of the archive."""

    def has_names(path: Path, header: bytes) -> bool:
        if not header.startswith(b"PK"):
            return False
        try:
            with zipfile.ZipFile(path) as archive:
                files = archive.namelist()
        except (OSError, ValueError, zipfile.BadZipFile):
            return False
        return all(any(f"/{file}".endswith(f"/{name}") for file in files) for name in names)

    return has_names


# Content comes before names: a GGUF file that is called model.bin is a GGUF file.
UNSUPPORTED_FORMATS = (
    UnsupportedFormat("a GGUF file", ORIGINAL_WEIGHTS, (".gguf",), (b"GGUF",)),
    UnsupportedFormat(
        "a GGML file", ORIGINAL_WEIGHTS, (".ggml",), (b"lmgg", b"fmgg", b"tjgg", b"algg")
    ),
    UnsupportedFormat("a llama2.c file", ORIGINAL_WEIGHTS, has_content=is_llama2_c),
    UnsupportedFormat(
        "a TensorFlow Lite file", ORIGINAL_WEIGHTS, (".tflite",), has_content=has_tflite_mark
    ),
    UnsupportedFormat("an OpenVINO model", ORIGINAL_WEIGHTS, has_content=has_openvino_root),
    UnsupportedFormat(
        "a Keras file",
        "load the PyTorch or safetensors weights of the same model",
        (".keras",),
        has_content=contains_files("metadata.json", "model.weights.h5"),
    ),
    UnsupportedFormat(
        "an HDF5 file of TensorFlow", TENSORFLOW_FIX, (".h5", ".hdf5"), (b"\x89HDF",)
    ),
    UnsupportedFormat(
        "an Argos Translate package",
        "unzip it and load the folder `model` in it, which is a CTranslate2 model",
        (".argosmodel",),
        has_content=contains_files("metadata.json", "model/model.bin"),
    ),
    UnsupportedFormat(
        "a TorchScript archive",
        "save the state_dict of the module that it was traced from, with its config.json",
        (".torchscript",),
        has_content=contains_files("constants.pkl", "data.pkl"),
    ),
    UnsupportedFormat(
        "an ONNX file", ORIGINAL_WEIGHTS, (".onnx", ".onnx_data", ".ort"), has_content=is_onnx
    ),
    UnsupportedFormat(
        "a TensorFlow checkpoint",
        TENSORFLOW_FIX,
        (".ckpt.index", ".ckpt.meta", ".data-00000-of-00001", "checkpoint.index", "ckpt.index"),
    ),
    UnsupportedFormat(
        "a TensorFlow SavedModel", TENSORFLOW_FIX, ("saved_model.pb", "frozen_graph.pb")
    ),
    UnsupportedFormat(
        "a quantized model of Marian", "load the .npz file it was made from", (".alphas.bin",)
    ),
    UnsupportedFormat("a Flax file", FLAX_FIX, (".msgpack",)),
    UnsupportedFormat("a Core ML model", ORIGINAL_WEIGHTS, (".mlmodel", ".mlpackage", ".mlmodelc")),
    UnsupportedFormat("a TensorRT engine", ORIGINAL_WEIGHTS, (".engine", ".plan", ".trt")),
    UnsupportedFormat(
        "a Paddle file",
        "load the PyTorch or safetensors weights of the same model",
        (".pdparams", ".pdmodel"),
    ),
)


def check_supported_format(path: Path) -> None:
    """Raise ValueError if a file, or a file of a folder, has a format that qkv does not read."""
    if file_format := detect_unsupported_format(path):
        raise ValueError(f"{path}: {file_format.name}, which qkv does not read; {file_format.fix}")
    if path.is_dir():
        for folder in (path, path / "onnx", path / "saved_model"):
            for entry in sorted(folder.iterdir()) if folder.is_dir() else []:
                if detect_unsupported_format(entry):
                    check_supported_format(entry)


def detect_unsupported_format(path: Path) -> UnsupportedFormat | None:
    """Return the format of a file, by its content, then by its name; None if it is not in the table."""
    header = b""
    if path.is_file():
        try:
            with path.open("rb") as file:
                header = file.read(HEADER_SIZE)
        except OSError:
            return None
    for file_format in UNSUPPORTED_FORMATS:
        if file_format.magic and header.startswith(file_format.magic):
            return file_format
        if header and file_format.has_content(path, header):
            return file_format
    for file_format in UNSUPPORTED_FORMATS:
        if file_format.suffixes and path.name.endswith(file_format.suffixes):
            return file_format
    return None
