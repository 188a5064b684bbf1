"""CTranslate2's files, read and written: model.bin (versions 2 to 6) as tensors, vocabularies as lists
of tokens. Does not depend on the ctranslate2 package or on model families.

    model.bin    version u32 · spec name · revision u32 · number u32, variables · number u32, aliases
    a variable   name · rank u8 · dimensions u32 each · dtype u8     · bytes u32 · data
                 before version 4:                      item size u8 · items u32 · data
    an alias     name · name of its variable; none before version 3
    a name       length u16, counting the NUL at its end · UTF-8
"""

import hashlib
import struct
from collections.abc import Mapping
from io import BufferedReader
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.files import (
    DAMAGED_FILE_HINT,
    escape_unprintable,
    get_file_size,
    read_json_object,
    read_json_value,
    read_text_file,
)
from qkv.weights.formats.checkpoint import CheckpointData

CTRANSLATE2_DTYPES = dict(
    enumerate((torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16))
)
CTRANSLATE2_DTYPES_BY_ITEM_SIZE = {4: torch.float32, 2: torch.int16, 1: torch.int8}
LEGACY_INT16_SCALE = torch.tensor(1000.0)  # for int16 weights saved without a scale
TOKENIZER_FILE_KINDS = {  # files beside a model.bin, and their kind
    "source.spm": "source_sentencepiece",
    "target.spm": "target_sentencepiece",
    "sentencepiece.model": "sentencepiece",
    "spm.model": "sentencepiece",
    "bpe.codes": "bpe_codes",
    "bpe.model": "bpe_codes",
}
ARGOS_FOLDER = "model"  # the model of Argos Translate, whose tokenizer lies one folder above
CTRANSLATE2_VERSION = 6  # the version that is written
MAX_VARIABLE_BYTES = 2**32 - 1
MAX_NAME_LENGTH = 1000

# quantization: dtype of matrices, dtype of other tensors (None: unchanged)
CTRANSLATE2_QUANTIZATIONS: dict[str, tuple[torch.dtype, torch.dtype | None]] = {
    "int8": (torch.int8, None),
    "int8_float32": (torch.int8, torch.float32),
    "int8_float16": (torch.int8, torch.float16),
    "int8_bfloat16": (torch.int8, torch.bfloat16),
    "int16": (torch.int16, torch.float32),
    "float16": (torch.float16, torch.float16),
    "bfloat16": (torch.bfloat16, torch.bfloat16),
    "float32": (torch.float32, torch.float32),
}


class _BinaryReader:
    """Reads a file from start to end; reading past the end is an error."""

    def __init__(self, file: BufferedReader, size: int) -> None:
        self.file = file
        self.remaining = size

    def read_bytes(self, size: int) -> bytearray:
        if size > self.remaining:
            raise ValueError(
                f"expected {size} more bytes, the file has {self.remaining}; {DAMAGED_FILE_HINT}"
            )
        self.remaining -= size
        data = bytearray(size)
        self.file.readinto(data)
        return data

    def read_number(self, format_code: str) -> int:
        return int(
            struct.unpack(f"<{format_code}", self.read_bytes(struct.calcsize(format_code)))[0]
        )

    def read_name(self) -> str:
        name = self.read_bytes(self.read_number("H")).decode("utf-8", "replace").removesuffix("\0")
        if len(name) > MAX_NAME_LENGTH:
            raise ValueError(f"a name of {len(name)} characters; {DAMAGED_FILE_HINT}")
        return escape_unprintable(name)


def read_ctranslate2(folder: Path) -> CheckpointData:
    """Return the content of a CTranslate2 model: config.json with `spec` and `revision` of model.bin,
    the variables, the vocabularies and the files of a tokenizer.

    Variables keep CTranslate2's names. Quantized variables are converted to float32, and their `_scale`
    is removed; an alias is the same tensor object."""
    path = folder / "model.bin"
    size = get_file_size(path)
    with path.open("rb") as file:
        try:
            spec, revision, variables = _read_model(_BinaryReader(file, size))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    config: dict[str, Any] = {}
    if (folder / "config.json").exists():
        config = dict(read_json_object(folder / "config.json"))
    elif "unk_token" in variables:  # before version 6, a variable
        stored = bytes(variables["unk_token"].flatten().view(torch.uint8))
        config["unk_token"] = stored.decode("utf-8", "replace")
    generation_config = folder / "generation_config.json"
    return CheckpointData(
        path=path,
        config={**config, "spec": spec, "revision": revision},
        tensors=variables,
        vocabularies=_read_vocabularies(folder, str(config.get("unk_token", "<unk>"))),
        tokenizer_files={
            kind: location / name
            for location in ([folder.parent, folder] if folder.name == ARGOS_FOLDER else [folder])
            for name, kind in TOKENIZER_FILE_KINDS.items()
            if (location / name).is_file()
        },
        generation_config=dict(read_json_object(generation_config))
        if generation_config.exists()
        else {},
    )


def _read_model(reader: _BinaryReader) -> tuple[str, int, dict[str, Tensor]]:
    version = reader.read_number("I")
    if not 2 <= version <= 6:
        raise ValueError(
            f"format version {version}, expected 2 to 6; is it a model.bin of CTranslate2?"
        )
    spec, revision = reader.read_name(), reader.read_number("I")
    variables = dict(_read_variable(reader, version) for _ in range(reader.read_number("I")))
    variables = {
        name: _dequantize(name, variables) for name in variables if not _is_scale(name, variables)
    }
    if version >= 3:
        for _ in range(reader.read_number("I")):
            alias, name = reader.read_name(), reader.read_name()
            if name not in variables:
                raise ValueError(
                    f"{alias} is an alias of {name}, which does not exist; {DAMAGED_FILE_HINT}"
                )
            variables[alias] = variables[name]
    if reader.remaining:
        raise ValueError(f"{reader.remaining} bytes after the end; {DAMAGED_FILE_HINT}")
    return spec, revision, variables


def _read_variable(reader: _BinaryReader, version: int) -> tuple[str, Tensor]:
    name = reader.read_name()
    shape = [reader.read_number("I") for _ in range(reader.read_number("B"))]
    code, length = reader.read_number("B"), reader.read_number("I")
    dtype = (CTRANSLATE2_DTYPES if version >= 4 else CTRANSLATE2_DTYPES_BY_ITEM_SIZE).get(code)
    if dtype is None:
        raise ValueError(f"{name}: unknown data type {code}; {DAMAGED_FILE_HINT}")
    size = length if version >= 4 else length * dtype.itemsize
    if size != prod(shape) * dtype.itemsize or not size:
        raise ValueError(f"{name}: {size} bytes for shape {shape} of {dtype}; {DAMAGED_FILE_HINT}")
    return name, torch.frombuffer(reader.read_bytes(size), dtype=dtype).reshape(shape)


def _is_scale(name: str, variables: dict[str, Tensor]) -> bool:
    scaled = variables.get(name.removesuffix("_scale"))
    return name.endswith("_scale") and scaled is not None and not scaled.is_floating_point()


def _dequantize(name: str, variables: dict[str, Tensor]) -> Tensor:
    """Return variable / scale, with one scale in total or one per row."""
    tensor, scale = variables[name], variables.get(f"{name}_scale")
    if tensor.dtype == torch.int16 and name.endswith("weight") and scale is None:
        scale = LEGACY_INT16_SCALE
    if tensor.is_floating_point() or (scale is None and not name.endswith("weight")):
        return tensor
    if scale is None or tensor.dtype == torch.int32 or scale.shape not in ((), tensor.shape[:1]):
        description = "no scale" if scale is None else f"a scale of shape {list(scale.shape)}"
        raise ValueError(
            f"{name}: {tensor.dtype} of shape {list(tensor.shape)} with {description}; "
            "expected int8 or int16, and one scale or one per row (AWQ models are not supported)"
        )
    return tensor.float() / scale.float().reshape(-1, *[1] * (tensor.dim() - 1))


def _read_vocabularies(folder: Path, unk_token: str) -> dict[str, list[str]]:
    """Read all vocabularies of a folder; a missing unknown token is appended, as in CTranslate2."""
    vocabularies: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*vocabulary.*")):  # .json comes before .txt
        name = path.stem.removesuffix("vocabulary").rstrip("_") or "shared"
        if path.suffix in (".json", ".txt") and name not in vocabularies:
            tokens = _read_tokens(path)
            vocabularies[name] = tokens if unk_token in tokens else [*tokens, unk_token]
    return vocabularies


def _read_tokens(path: Path) -> list[str]:
    if path.suffix == ".json":
        tokens = read_json_value(path)
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise ValueError(f"{path}: expected a JSON list of strings; is this the right file?")
        return tokens
    lines = (
        read_text_file(path).removesuffix("\n").split("\n")
    )  # other line separators can be tokens
    return [line[:-1] for line in lines] if all(line.endswith("\r") for line in lines) else lines


def save_ctranslate2_model(
    path: Path,
    spec: str,
    revision: int,
    variables: Mapping[str, Tensor],
    quantization: str | None = None,
) -> None:
    """Write a model.bin; equal variables are written once, with aliases.

    `quantization` is a key of CTRANSLATE2_QUANTIZATIONS; None keeps the dtypes."""
    aliases = _find_equal_variables(variables)
    unique = {name: variables[name] for name in sorted(variables) if name not in aliases}
    if quantization is not None:
        unique = dict(sorted(_quantize(unique, quantization).items()))
    with path.open("wb") as file:
        file.write(struct.pack("<I", CTRANSLATE2_VERSION) + _encode_name(spec))
        file.write(struct.pack("<II", revision, len(unique)))
        for name, tensor in unique.items():
            data = _to_bytes(tensor)
            code = next(code for code, dtype in CTRANSLATE2_DTYPES.items() if dtype == tensor.dtype)
            shape = struct.pack(f"<B{tensor.dim()}I", tensor.dim(), *tensor.shape)
            file.write(_encode_name(name) + shape + struct.pack("<BI", code, len(data)))
            file.write(data)
        file.write(struct.pack("<I", len(aliases)))
        for alias, name in sorted(aliases.items()):
            file.write(_encode_name(alias) + _encode_name(name))


def _encode_name(name: str) -> bytes:
    data = name.encode("utf-8") + b"\0"
    return struct.pack("<H", len(data)) + data


def _to_bytes(tensor: Tensor) -> bytes:
    return bytes(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def _find_equal_variables(variables: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the first name, in alphabetical order, of each tensor that occurs again."""
    first_names: dict[tuple[object, ...], str] = {}
    aliases = {}
    for name in sorted(variables):
        tensor = variables[name]
        if tensor.dim() == 0:
            continue
        digest = hashlib.blake2b(_to_bytes(tensor)).digest()
        first_name = first_names.setdefault((tensor.dtype, tensor.shape, digest), name)
        if first_name != name:
            aliases[name] = first_name
    return aliases


def _quantize(variables: Mapping[str, Tensor], quantization: str) -> dict[str, Tensor]:
    """Return variables with quantized matrices and their scales, as CTranslate2's converters do."""
    matrix_dtype, other_dtype = CTRANSLATE2_QUANTIZATIONS[quantization]
    quantized: dict[str, Tensor] = {}
    for name, tensor in variables.items():
        if tensor.dim() == 0 or not tensor.is_floating_point():
            quantized[name] = tensor
        elif not name.endswith("/weight"):
            quantized[name] = tensor if other_dtype is None else tensor.to(other_dtype)
        elif matrix_dtype.is_floating_point:
            quantized[name] = tensor.to(matrix_dtype)
        else:
            quantize = _quantize_int8 if matrix_dtype == torch.int8 else _quantize_int16
            quantized[name], quantized[f"{name}_scale"] = quantize(tensor.detach().float())
    return quantized


def _quantize_int8(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return a matrix in int8 and one scale per row, by which it was multiplied."""
    largest = matrix.abs().amax(1)
    largest = torch.where(largest == 0, 127.0, largest)
    largest = largest.clamp(min=127.0 / torch.finfo(torch.float32).max)  # finite scales
    scale = torch.tensor(127.0) / largest  # not 127.0 / largest, which torch rounds twice
    return (matrix * scale[:, None]).round().to(torch.int8), scale


def _quantize_int16(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return a matrix in int16, with values of 10 bits, and its scale."""
    scale = torch.tensor(2.0**10) / matrix.abs().max()
    return (matrix * scale).round().clamp(-(2**15), 2**15 - 1).to(torch.int16), scale
