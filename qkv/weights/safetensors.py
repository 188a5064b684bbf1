"""The safetensors format: reading and writing of one file, with tensors aligned to 64 bytes.

    8 bytes   length of the header
    header    JSON: name -> dtype, shape, data_offsets; padded with spaces to a multiple of 64 bytes
    data      tensors without gaps, first those whose size is a multiple of 64 bytes

The order of summation in matrix kernels depends on the alignment of the operands. A file is
memory-mapped at a page boundary, so that a tensor that is aligned in the file needs no copy."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

ALIGNMENT = 64  # bytes: a cache line, an AVX-512 register, and the alignment of torch's allocator
SAFETENSORS_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2: "F8_E5M2", torch.float8_e5m2fnuz: "F8_E5M2FNUZ", torch.float8_e8m0fnu: "F8_E8M0",
    torch.float4_e2m1fn_x2: "F4", torch.complex64: "C64",
}  # fmt: skip


def align_tensor(tensor: Tensor) -> Tensor:
    """Return the tensor, contiguous and aligned to 64 bytes; it is copied only if necessary."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file, memory-mapped; raise SafetensorError if it is damaged."""
    tensors = load_file(path)  # validates every offset of the header
    _check_unique_names(path)
    return tensors


def _check_unique_names(path: Path) -> None:
    """Raise SafetensorError if a name occurs twice in a valid header."""

    def reject_duplicates(pairs: list[tuple[str, object]]) -> None:
        names = Counter(name for name, _ in pairs)
        if len(names) < len(pairs):
            name = names.most_common(1)[0][0]
            raise SafetensorError(f"the header has {name[:80]!r} twice, expected each name once")

    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        json.loads(file.read(size), object_pairs_hook=reject_duplicates)


def write_safetensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors to a new file with the default permissions of new files."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    names = sorted(tensors, key=lambda name: (tensors[name].nbytes % ALIGNMENT != 0, name))
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name in names:
        tensor = tensors[name]
        if tensor.dtype not in SAFETENSORS_DTYPES:
            raise SafetensorError(f"{name} is {tensor.dtype}, which safetensors does not support")
        shape = list(tensor.shape)
        if tensor.dtype is torch.float4_e2m1fn_x2:  # two values per byte
            shape[-1] *= 2
        end = offset + tensor.nbytes
        header[name] = {
            "dtype": SAFETENSORS_DTYPES[tensor.dtype],
            "shape": shape,
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            file.write(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
