"""A CTranslate2 model folder, model.bin and its vocabularies, as tensors and lists of tokens.
Knows the file format, versions 2 to 6; not what the variables mean, nor the ctranslate2 package.

    model.bin    version u32 · spec name · revision u32 · number u32, variables · number u32, aliases
    a variable   name · rank u8 · dimensions u32 each · dtype u8     · bytes u32 · data
                 before version 4:                      item size u8 · items u32 · data
    an alias     name · name of the variable it stands for; none before version 3
    a name       length u16, counting the NUL at its end · UTF-8
"""

import struct
from io import BufferedReader
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from qkv.weights.tensors import DAMAGED, file_size, read_json, read_text, read_value

DTYPES = dict(enumerate((torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)))
DTYPES_BY_ITEM_SIZE = {4: torch.float32, 2: torch.int16, 1: torch.int8}
OLD_INT16_SCALE = torch.tensor(1000.0)  # of int16 weights saved without a scale


class _Bytes:
    """A file read from front to back, never past its end."""

    def __init__(self, file: BufferedReader, size: int) -> None:
        self.file = file
        self.left = size

    def take(self, size: int) -> bytearray:
        if size > self.left:
            raise ValueError(f"wants {size} bytes where {self.left} are left; {DAMAGED}")
        self.left -= size
        data = bytearray(size)
        self.file.readinto(data)
        return data

    def number(self, form: str) -> int:
        return int(struct.unpack(f"<{form}", self.take(struct.calcsize(form)))[0])

    def name(self) -> str:
        return self.take(self.number("H")).decode("utf-8", "replace").removesuffix("\0")


def read_ctranslate2(folder: Path) -> tuple[str, int, dict[str, Tensor], dict[str, list[str]]]:
    """The spec's name, its revision, the variables and the vocabularies of a CTranslate2 model.

    Variables keep CTranslate2's names. Quantised ones come as float32, without their `_scale`; an alias is
    the very tensor it stands for. Vocabularies are "source" and "target", or "shared".
    """
    path = folder / "model.bin"
    size = file_size(path)
    with path.open("rb") as file:
        try:
            spec, revision, variables = _read_model(_Bytes(file, size))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    return spec, revision, variables, _read_vocabularies(folder, _unknown(folder, variables))


def _read_model(data: _Bytes) -> tuple[str, int, dict[str, Tensor]]:
    version = data.number("I")
    if not 2 <= version <= 6:
        raise ValueError(f"binary version {version}, expected 2 to 6; is it a model.bin of CTranslate2?")
    spec, revision = data.name(), data.number("I")
    variables = dict(_read_variable(data, version) for _ in range(data.number("I")))
    variables = {name: _dequantised(name, variables) for name in variables if not _is_scale(name, variables)}
    if version >= 3:
        for _ in range(data.number("I")):
            alias, name = data.name(), data.name()
            if name not in variables:
                raise ValueError(f"{alias} stands for {name}, which is not there; {DAMAGED}")
            variables[alias] = variables[name]
    if data.left:
        raise ValueError(f"{data.left} bytes after the end; {DAMAGED}")
    return spec, revision, variables


def _read_variable(data: _Bytes, version: int) -> tuple[str, Tensor]:
    name = data.name()
    shape = [data.number("I") for _ in range(data.number("B"))]
    code, length = data.number("B"), data.number("I")
    dtype = (DTYPES if version >= 4 else DTYPES_BY_ITEM_SIZE).get(code)
    if dtype is None:
        raise ValueError(f"{name}: data type {code} is unknown; {DAMAGED}")
    size = length if version >= 4 else length * dtype.itemsize
    if size != prod(shape) * dtype.itemsize or not size:
        raise ValueError(f"{name}: {size} bytes for shape {shape} of {dtype}; {DAMAGED}")
    return name, torch.frombuffer(data.take(size), dtype=dtype).reshape(shape)


def _is_scale(name: str, variables: dict[str, Tensor]) -> bool:
    scaled = variables.get(name.removesuffix("_scale"))
    return name.endswith("_scale") and scaled is not None and not scaled.is_floating_point()


def _dequantised(name: str, variables: dict[str, Tensor]) -> Tensor:
    """The variable before it became round(variable * scale), with one scale or one a row."""
    tensor, scale = variables[name], variables.get(f"{name}_scale")
    if tensor.dtype == torch.int16 and name.endswith("weight") and scale is None:
        scale = OLD_INT16_SCALE
    if tensor.is_floating_point() or (scale is None and not name.endswith("weight")):
        return tensor
    if scale is None or tensor.dtype == torch.int32 or scale.shape not in ((), tensor.shape[:1]):
        found = "no scale" if scale is None else f"a scale of shape {list(scale.shape)}"
        raise ValueError(
            f"{name}: {tensor.dtype} of shape {list(tensor.shape)} with {found}; "
            "expected int8 or int16, and one scale or one a row (AWQ models are not read)"
        )
    return tensor.float() / scale.float().reshape(-1, *[1] * (tensor.dim() - 1))


def _unknown(folder: Path, variables: dict[str, Tensor]) -> str:
    """The token for all that a vocabulary lacks: in config.json from version 6 on, before that a variable."""
    config = folder / "config.json"
    if config.exists():
        return str(read_json(config).get("unk_token", "<unk>"))
    stored = variables.get("unk_token")
    return "<unk>" if stored is None else bytes(stored.flatten().view(torch.uint8)).decode("utf-8", "replace")


def _read_vocabularies(folder: Path, unknown: str) -> dict[str, list[str]]:
    """Every vocabulary of a folder; where a file has no unknown token it is appended, as CTranslate2 does."""
    vocabularies: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*vocabulary.*")):  # .json comes before .txt
        name = path.stem.removesuffix("vocabulary").rstrip("_") or "shared"
        if path.suffix in (".json", ".txt") and name not in vocabularies:
            tokens = _read_tokens(path)
            vocabularies[name] = tokens if unknown in tokens else [*tokens, unknown]
    return vocabularies


def _read_tokens(path: Path) -> list[str]:
    if path.suffix == ".json":
        tokens = read_value(path)
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise ValueError(f"{path}: expected a JSON list of strings; is this the right file?")
        return tokens
    lines = read_text(path).removesuffix("\n").split("\n")  # other line separators can be tokens
    return [line[:-1] for line in lines] if all(line.endswith("\r") for line in lines) else lines
