"""Files of torch.save, read without running code. Does not depend on names of tensors."""

import io
import os
import pickle
import pickletools
import re
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from qkv.files import DAMAGED_FILE_HINT, escape_unprintable, format_error
from qkv.weights.file_type import (
    PICKLE,
    ZIP,
    check_expansion,
    check_zip_file,
    detect_file_type,
    suggest_fix,
)
from qkv.weights.formats.unsupported import check_supported_format

MAX_PICKLE_OBJECTS = 10**7
NUM_LEGACY_PICKLES = (
    5  # before torch 1.6: magic number, protocol, system, content, names of storages
)


def read_torch_file(path: Path, allowed_types: tuple[type | tuple[type, str], ...] = ()) -> object:
    """Read a file of `torch.save` that contains only tensors, plain containers and objects of
    `allowed_types`: types, or pairs of a type and the full name of the type that it replaces.

    No code in the file is executed; other contents raise a ValueError."""
    file_type = detect_file_type(path)
    if file_type not in (ZIP, PICKLE):
        check_supported_format(path)
        fix = suggest_fix(file_type)
        raise ValueError(f"{path}: {file_type}, expected a file written by torch.save; {fix}")
    try:
        _check_references(path)
        with warnings.catch_warnings(), torch.serialization.safe_globals(list(allowed_types)):
            warnings.simplefilter("ignore")  # warnings about pickle protocols
            # Only the zip format (torch >= 1.6) can be memory-mapped.
            is_zip = file_type == ZIP
            value: object = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError as error:
        match = re.search(r"(GLOBAL|operand) \S+", str(error))
        cause = escape_unprintable(match[0][:200]) if match else format_error(error)
        raise ValueError(
            f"{path}: contains objects other than tensors ({cause}) and was not loaded; save the "
            "tensors as safetensors, or copy the file again if it should contain only tensors"
        ) from None
    except Exception as error:  # a damaged pickle can raise any exception
        check_supported_format(path)
        if isinstance(error, ValueError) and str(error).startswith(str(path)):
            raise
        raise ValueError(f"{path}: {format_error(error)}; {DAMAGED_FILE_HINT}") from None
    return value


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Read a file of `torch.save` that contains tensors by name."""
    value = read_torch_file(path)
    if not isinstance(value, dict):
        raise ValueError(f"{path}: contains a {type(value).__name__}, expected a state dict")
    others = [str(name) for name, item in value.items() if not isinstance(item, Tensor)]
    if others:
        names = escape_unprintable(", ".join(others)[:200])
        raise ValueError(
            f"{path}: values that are not tensors ({names}), expected a state dict; is it a checkpoint?"
        )
    tensors = {str(name): tensor.detach() for name, tensor in value.items()}
    check_dense_tensors(path, tensors)
    return tensors


def check_dense_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Raise ValueError unless the tensors are dense, on the CPU, and together not far larger than
    the file: a tensor with stride 0 repeats the bytes of the file."""
    for name, tensor in tensors.items():
        kind = (
            "on the meta device, without values" if tensor.is_meta else
            "nested" if tensor.is_nested else
            "quantized" if tensor.is_quantized else
            "sparse" if tensor.layout != torch.strided else ""
        )  # fmt: skip
        if kind:
            raise ValueError(
                f"{path}: {escape_unprintable(name[:80])} is {kind}, expected a dense tensor; "
                "convert it before torch.save, or save the model as safetensors"
            )
    check_expansion(path, sum(tensor.nbytes for tensor in tensors.values()), "tensors")


def list_pickles(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Yield the streams of a torch file that hold pickles, and the number of pickles in each.

    A zip file with compressed members raises ValueError."""
    with path.open("rb") as file:
        if zipfile.is_zipfile(file):
            check_zip_file(path, file, is_compressed_allowed=False)
            with zipfile.ZipFile(file) as archive:
                for name in archive.namelist():
                    if name.endswith("/data.pkl"):
                        yield io.BytesIO(archive.read(name)), 1
        else:
            file.seek(0)
            yield file, NUM_LEGACY_PICKLES


def _check_references(path: Path) -> None:
    """Raise ValueError if the objects of a pickle refer to each other so often that hashing or
    printing them would not end."""
    for stream, num_pickles in list_pickles(path):
        for _ in range(num_pickles):
            if not stream.read(1):
                break
            stream.seek(-1, os.SEEK_CUR)
            if _has_too_many_objects(pickletools.genops(stream)):
                raise ValueError(
                    f"{path}: objects in objects, more than {MAX_PICKLE_OBJECTS:,} of them, expected "
                    f"tensors by name; {DAMAGED_FILE_HINT}"
                )


def _has_too_many_objects(
    opcodes: Iterable[tuple[pickletools.OpcodeInfo, object, object]],
) -> bool:
    """Return whether an object of a pickle has more than MAX_PICKLE_OBJECTS parts, each counted as
    often as it is referred to, without building it.

    The stack of the unpickler is run with the number of parts in place of each object."""
    stack: list[int | None] = []  # None is a mark
    memo: dict[object, int | None] = {}

    def pop() -> int:
        return (stack.pop() if stack else 1) or 1

    for opcode, argument, _ in opcodes:
        if opcode.name == "MARK":
            stack.append(None)
        elif opcode.name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if argument is None else int(str(argument))] = stack[-1] if stack else 1
        elif opcode.name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo.get(int(str(argument)), 1))
        else:
            size = 1
            for item in reversed(opcode.stack_before):
                if item is pickletools.stackslice:
                    while stack and stack[-1] is not None:
                        size += pop()
                    pop()
                elif item is not pickletools.markobject:
                    size += pop()
            stack += [size] * len(opcode.stack_after)
            if size > MAX_PICKLE_OBJECTS:
                return True
    return False
