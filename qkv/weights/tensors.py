"""Tensor files (safetensors, PyTorch, NumPy), as one file or as shards, in Hugging Face's layout. Does
not depend on models: `qkv.model.parameters` checks names and shapes."""

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from torch import Tensor

from qkv.files import (
    DAMAGED_FILE_HINT,
    format_error,
    join_problems,
    read_json_object,
    resolve_inside,
    save_json,
)
from qkv.staging import read_folder, write_folder
from qkv.weights.file_type import SAFETENSORS, detect_file_type, suggest_fix
from qkv.weights.formats.unsupported import check_supported_format
from qkv.weights.npz import read_npz
from qkv.weights.safetensors import read_safetensors, write_safetensors
from qkv.weights.torch_file import read_state_dict

# The weight files or indices of a folder, in order of preference.
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
SHARD_PATTERN = re.compile(r"(pytorch_)?model(-\d+)?-\d{5}-of-\d{5}\.(safetensors|bin)")


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
    entries = ", ".join(sorted(entry.name for entry in folder.iterdir())[:20]) or "nothing"
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


def _read_tensor_file(path: Path) -> dict[str, Tensor]:
    """Read the tensors of one file by its suffix."""
    readers = {
        ".safetensors": _read_safetensors,
        ".bin": read_state_dict,
        ".pt": read_state_dict,
        ".npz": read_npz,
    }
    if path.suffix not in readers:
        check_supported_format(path)
        suffixes = ", ".join(readers)
        raise ValueError(
            f"{path}: neither a folder nor a file of weights ({suffixes}); is the path right?"
        )
    return readers[path.suffix](path)


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    file_type = detect_file_type(path)
    if file_type != SAFETENSORS:
        raise ValueError(
            f"{path}: {file_type}, expected a safetensors file; {suggest_fix(file_type)}"
        )
    try:
        return read_safetensors(path)
    except SafetensorError as error:
        raise ValueError(f"{path}: {format_error(error)}; {DAMAGED_FILE_HINT}") from None


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
    names_by_shard: dict[str, list[str]] = {}
    for name, shard in weight_map.items():
        names_by_shard.setdefault(shard, []).append(name)
    tensors: dict[str, Tensor] = {}
    problems = []
    for shard, names in names_by_shard.items():
        try:
            shard_tensors = _read_tensor_file(resolve_inside(path.parent, shard))
        except ValueError as error:
            problems.append(str(error))
            continue
        for name, tensor in shard_tensors.items():
            if name in tensors and not _is_equal(tensor, tensors[name]):
                problems.append(f"{name} is in two shards, with different values")
            if name not in tensors or weight_map.get(name) == shard:
                tensors[name] = tensor
        problems += [f"{name} is not in {shard}" for name in names if name not in shard_tensors]
    if problems:
        raise ValueError(
            f"{path}: shards are missing or wrong, copy them again: {join_problems(problems)}"
        )
    return tensors


def _is_equal(left: Tensor, right: Tensor) -> bool:
    """Return whether two tensors have the same bytes; a NaN equals itself."""
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and torch.equal(*(x.contiguous().view(-1).view(torch.uint8) for x in (left, right)))
    )


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
