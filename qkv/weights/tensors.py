"""Tensor files (safetensors, PyTorch, NumPy), as one file or as shards, in Hugging Face's layout. Does
not depend on models: `qkv.model.parameters` checks names and shapes."""

import os
import pickle
import re
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

import numpy
import torch
from safetensors import SafetensorError
from torch import Tensor

from qkv.files import (
    DAMAGED_FILE_HINT,
    format_error,
    get_file_size,
    read_json_object,
    resolve_inside,
    save_json,
)
from qkv.staging import read_folder, write_folder
from qkv.weights.formats.unsupported import check_supported_format
from qkv.weights.safetensors import read_safetensors, write_safetensors

# The weight files or indices of a folder, in order of preference.
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
SHARD_PATTERN = re.compile(r"(pytorch_)?model(-\d+)?-\d{5}-of-\d{5}\.(safetensors|bin)")


def read_torch_file(path: Path, allowed_types: tuple[type | tuple[type, str], ...] = ()) -> object:
    """Read a file of `torch.save` that contains only tensors, plain containers and objects of
    `allowed_types`: types, or pairs of a type and the full name of the type that it replaces.

    No code in the file is executed; other contents raise a ValueError."""
    file_type = _detect_file_type(path)
    if file_type not in ("a zip file", "a pickle"):
        check_supported_format(path)
        fix = _suggest_fix(file_type)
        raise ValueError(f"{path}: {file_type}, expected a file written by torch.save; {fix}")
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals(list(allowed_types)):
            warnings.simplefilter("ignore")  # warnings about pickle protocols
            # Only the zip format (torch >= 1.6) can be memory-mapped.
            is_zip = file_type == "a zip file"
            value: object = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError as error:
        match = re.search(r"(GLOBAL|operand) \S+", str(error))
        cause = match[0] if match else format_error(error)
        raise ValueError(
            f"{path}: contains objects other than tensors ({cause}) and was not loaded; save the "
            "tensors as safetensors, or copy the file again if it should contain only tensors"
        ) from None
    except Exception as error:  # a damaged pickle can raise any exception
        check_supported_format(path)
        raise ValueError(f"{path}: {format_error(error)}; {DAMAGED_FILE_HINT}") from None
    return value


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Read the weights of a folder or a file by name, on the CPU, memory-mapped if possible."""
    if not folder.is_dir():
        return _read_tensor_file(folder)
    with read_folder(folder):
        for name in WEIGHT_FILES:
            path = folder / name
            if os.path.lexists(path):
                return _read_index(path) if name.endswith(".json") else _read_tensor_file(path)
    check_supported_format(folder)
    entries = ", ".join(sorted(entry.name for entry in folder.iterdir())) or "nothing"
    expected = ", ".join(WEIGHT_FILES)
    raise ValueError(
        f"{folder}: no weights; expected one of {expected}; the folder contains {entries}"
    )


def write_tensors(
    folder: Path,
    tensors: Mapping[str, Tensor],
    *,
    file_format: Literal["safetensors", "bin"] = "safetensors",
    max_shard_size: int = 5_000_000_000,
) -> list[str]:
    """Replace the weights of a folder, in Hugging Face's layout, and return the names of the new
    files.

    Old weights in any of the four layouts are replaced in one step."""
    if file_format == "safetensors":
        stem, suffix, save = "model", ".safetensors", save_safetensors
    else:
        stem, suffix, save = "pytorch_model", ".bin", _save_torch
    shards = _split_into_shards(tensors, max_shard_size)
    with write_folder(folder, replace_weights) as staged:
        if len(shards) == 1:
            save(shards[0], staged / (stem + suffix))
            return [stem + suffix]
        names = [f"{stem}-{i:05}-of-{len(shards):05}{suffix}" for i in range(1, len(shards) + 1)]
        for name, shard in zip(names, shards, strict=True):
            save(shard, staged / name)
        total_size = sum(tensor.nbytes for tensor in tensors.values())
        weight_map = {
            tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard
        }
        index_file = f"{stem}{suffix}.index.json"
        index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
        save_json(index, staged / index_file)
        return [*names, index_file]


def list_weight_files(folder: Path) -> list[str]:
    """Return the names of the weight files, indices and shards of a folder."""
    return sorted(
        path.name
        for path in folder.iterdir()
        if path.name in WEIGHT_FILES or SHARD_PATTERN.fullmatch(path.name)
    )


def replace_weights(folder: Path, names: Collection[str]) -> Collection[str]:
    """Return the weight files of a folder, which new ones replace."""
    return list_weight_files(folder)


def find_nonfinite(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the tensors that contain NaN or infinite values."""
    return [name for name, tensor in tensors.items() if not _is_finite(tensor)]


def _is_finite(tensor: Tensor) -> bool:
    # Four-bit floats have no NaN, no infinity and no arithmetic.
    if (
        not tensor.is_floating_point()
        or not tensor.numel()
        or tensor.dtype == torch.float4_e2m1fn_x2
    ):
        return True
    values = tensor.float() if tensor.element_size() == 1 else tensor
    low, high = values.aminmax()  # a NaN anywhere makes both NaN
    return bool(low.isfinite() & high.isfinite())


def _detect_file_type(path: Path) -> str:
    """Return the type of a file by its first bytes, regardless of its name."""
    get_file_size(path)
    with path.open("rb") as file:
        start = file.read(9)
    if start[8:] == b"{":  # after the length of the header
        return "a safetensors file"
    if start.startswith(b"PK\x03\x04"):
        return "a zip file"
    if start.startswith(b"\x80"):
        return "a pickle"
    if start.startswith(b"version "):
        return "a Git LFS pointer"
    return "of unknown type"


def _suggest_fix(file_type: str) -> str:
    if file_type == "a Git LFS pointer":
        return "run `git lfs pull` to download the file"
    if file_type == "of unknown type":
        return DAMAGED_FILE_HINT
    return "rename it to the suffix of its type"


def _read_tensor_file(path: Path) -> dict[str, Tensor]:
    """Read the tensors of one file by its suffix."""
    readers = {
        ".safetensors": _read_safetensors,
        ".bin": _read_state_dict,
        ".pt": _read_state_dict,
        ".npz": _read_npz,
    }
    if path.suffix not in readers:
        check_supported_format(path)
        suffixes = ", ".join(readers)
        raise ValueError(
            f"{path}: neither a folder nor a file of weights ({suffixes}); is the path right?"
        )
    return readers[path.suffix](path)


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    file_type = _detect_file_type(path)
    if file_type != "a safetensors file":
        raise ValueError(
            f"{path}: {file_type}, expected a safetensors file; {_suggest_fix(file_type)}"
        )
    try:
        return read_safetensors(path)
    except SafetensorError as error:
        raise ValueError(f"{path}: {format_error(error)}; {DAMAGED_FILE_HINT}") from None


def _read_state_dict(path: Path) -> dict[str, Tensor]:
    value = read_torch_file(path)
    if not isinstance(value, dict):
        raise ValueError(f"{path}: contains a {type(value).__name__}, expected a state dict")
    others = [str(name) for name, item in value.items() if not isinstance(item, Tensor)]
    if others:
        names = ", ".join(others)[:200]
        raise ValueError(
            f"{path}: values that are not tensors ({names}), expected a state dict; is it a checkpoint?"
        )
    return {str(name): tensor.detach() for name, tensor in value.items()}


def _read_npz(path: Path) -> dict[str, Tensor]:
    file_type = _detect_file_type(path)
    if file_type != "a zip file":
        raise ValueError(f"{path}: {file_type}, expected an .npz file; {_suggest_fix(file_type)}")
    try:
        with path.open("rb") as file, numpy.load(file, allow_pickle=False) as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    except Exception as error:  # zipfile, zlib, numpy and torch raise different exceptions
        cause = format_error(error)
        raise ValueError(
            f"{path}: {cause}, expected arrays of numbers; {DAMAGED_FILE_HINT}"
        ) from None


def _read_index(path: Path) -> dict[str, Tensor]:
    """Read the tensors of all shards of an index; one error lists all problems."""
    weight_map = read_json_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(shard, str) for shard in weight_map.values()
    ):
        raise ValueError(
            f"{path}: no weight_map, expected an object that maps tensor names to file names; "
            f"{DAMAGED_FILE_HINT}"
        )
    tensors: dict[str, Tensor] = {}
    problems = []
    for shard in dict.fromkeys(weight_map.values()):
        try:
            shard_tensors = _read_tensor_file(resolve_inside(path.parent, shard))
        except ValueError as error:
            problems.append(str(error))
            continue
        for name, tensor in shard_tensors.items():
            if weight_map.get(name, shard) == shard:
                tensors[name] = tensor
        for name, file in weight_map.items():
            if file == shard and name not in shard_tensors:
                problems.append(f"{name} is not in {shard}")
    if problems:
        raise ValueError(
            f"{path}: shards are missing or wrong, copy them again: {'; '.join(problems)}"
        )
    return tensors


def _split_into_shards(
    tensors: Mapping[str, Tensor], max_shard_size: int
) -> list[dict[str, Tensor]]:
    """Split tensors, in order, into shards of at most `max_shard_size` bytes; a larger tensor is a
    shard by itself."""
    shards: list[dict[str, Tensor]] = [{}]
    remaining = max_shard_size
    for name, tensor in tensors.items():
        if tensor.nbytes > remaining and shards[-1]:
            shards.append({})
            remaining = max_shard_size
        shards[-1][name] = tensor
        remaining -= tensor.nbytes
    return shards


def _unshare_memory(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return each tensor contiguous, on the CPU, with separate storage."""
    unshared: dict[str, Tensor] = {}
    seen = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        storage = tensor.untyped_storage()
        if storage.nbytes() != tensor.nbytes or storage.data_ptr() in seen:
            tensor = tensor.clone()
        seen.add(storage.data_ptr())
        unshared[name] = tensor
    return unshared


def save_safetensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write one safetensors file; raise OSError if it cannot be written."""
    try:
        write_safetensors(path, tensors, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(format_error(error)) from error


def _save_torch(tensors: Mapping[str, Tensor], path: Path) -> None:
    try:
        torch.save(_unshare_memory(tensors), path)
    except RuntimeError as error:
        raise OSError(format_error(error)) from error
