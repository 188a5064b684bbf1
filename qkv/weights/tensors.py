"""Tensors and JSON from and to files: safetensors, PyTorch and NumPy, whole or in shards, laid out as a
Hugging Face folder. Knows no model: which names and shapes are right is for others to say.
"""

import json
import os
import pickle
import re
import stat
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from typing import Literal

import numpy
import torch
from safetensors import SafetensorError
from torch import Tensor

from qkv.weights.safetensors import read_safetensors, write_safetensors

TEXT_BYTES = 64 * 2**20
DAMAGED = "the file is cut or damaged; download or copy it again"

# The files a folder's weights start from; the first one there is the one that counts.
HEADS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
SHARD = re.compile(r"(pytorch_)?model(-\d+)?-\d{5}-of-\d{5}\.(safetensors|bin)")
TEMPORARY = ".tmp"


def file_size(path: Path) -> int:
    """The size of a regular file that can be read; opening a pipe or a device could wait for ever."""
    try:
        found = path.stat()
    except OSError as error:
        cause = error.strerror
        raise ValueError(f"{path}: {cause}; expected a file; is the path right, the copy whole?") from None
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{path}: a folder, pipe or device; expected a regular file; is the path right?")
    if not os.access(path, os.R_OK):
        raise ValueError(f"{path}: not readable by this user; expected a file that is; check its permissions")
    if not found.st_size:
        raise ValueError(f"{path}: empty; {DAMAGED}")
    return found.st_size


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, line ends as they are."""
    size = file_size(path)
    if size > TEXT_BYTES:
        raise ValueError(f"{path}: {size} bytes, expected at most {TEXT_BYTES}; is this the right file?")
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text at byte {error.start}; {DAMAGED}") from None


def read_value(path: Path) -> object:
    """The JSON value in a file."""
    text = read_text(path)
    try:
        value: object = json.loads(text)
    except RecursionError:
        raise ValueError(f"{path}: JSON nested too deep to read; is this the right file?") from None
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({_line(error)}); {DAMAGED}") from None
    return value


def read_json(path: Path) -> dict[str, object]:
    """The JSON object in a file."""
    value = read_value(path)
    if not isinstance(value, dict):
        found = type(value).__name__
        raise ValueError(f"{path}: a JSON {found}, expected an object {{...}}; is this the right file?")
    return value


def write_json(path: Path, data: object) -> None:
    """Write JSON, keys in the order given; the old file stays until the new one is whole."""
    _replace({path: partial(_save_json, data)})


def read_torch(path: Path, allow: tuple[type, ...] = ()) -> object:
    """What `torch.save` wrote, if that is tensors in plain containers and objects of the types in `allow`.

    No code in the file is run: anything else in it is a ValueError.
    """
    kind = _kind(path)
    if kind not in ("a zip file", "a pickle"):
        raise ValueError(f"{path}: {kind}, expected a file written by torch.save; {_remedy(kind)}")
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals(list(allow)):
            warnings.simplefilter("ignore")  # about pickle protocols that are then refused or read
            # Only the zip form (torch >= 1.6) can be mapped.
            found: object = torch.load(path, map_location="cpu", weights_only=True, mmap=kind == "a zip file")
    except pickle.UnpicklingError as error:
        cause = re.search(r"(GLOBAL|operand) \S+", str(error))
        what = cause[0] if cause else _line(error)
        raise ValueError(
            f"{path}: holds more than tensors ({what}); not opened; save the tensors alone as safetensors, "
            "or copy it again if it should hold nothing else"
        ) from None
    except Exception as error:  # a damaged pickle fails anywhere in the unpickler, with any exception
        raise ValueError(f"{path}: {_line(error)}; {DAMAGED}") from None
    return found


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """The weights in a folder, or in one file, by name: on the CPU, mapped from the file if possible."""
    if not folder.is_dir():
        return _read_file(folder)
    for name in HEADS:
        if os.path.lexists(folder / name):
            return _read_index(folder / name) if name.endswith(".json") else _read_file(folder / name)
    held = ", ".join(sorted(entry.name for entry in folder.iterdir())) or "nothing"
    raise ValueError(f"{folder}: no weights; looked for {', '.join(HEADS)}; the folder holds {held}")


def write_tensors(
    folder: Path,
    tensors: Mapping[str, Tensor],
    *,
    form: Literal["safetensors", "bin"] = "safetensors",
    shard_bytes: int = 5_000_000_000,
) -> list[str]:
    """Make these the weights of a folder, in files as Hugging Face lays them out; return the files' names.

    Whenever it is interrupted, `read_tensors` finds all of the old weights or all of the new; old weights in
    any of the four layouts are removed at the end.
    """
    stem, suffix = ("model", ".safetensors") if form == "safetensors" else ("pytorch_model", ".bin")
    save = _save_safetensors if form == "safetensors" else _save_torch
    head = stem + suffix
    shards = _split(tensors, shard_bytes)
    files: dict[Path, Callable[[Path], None]] = {}
    if len(shards) == 1:
        files[folder / head] = partial(save, shards[0])
    else:
        names = _free_names(folder, stem, suffix, len(shards))
        total = sum(tensor.nbytes for tensor in tensors.values())
        weight_map = {name: file for file, shard in zip(names, shards, strict=True) for name in shard}
        for file, shard in zip(names, shards, strict=True):
            files[folder / file] = partial(save, shard)
        head += ".index.json"
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        files[folder / head] = partial(_save_json, index)
    _replace(files)
    # Heads in reverse: of old ones, the one that readers still prefer goes last.
    stale = [folder / name for name in reversed(HEADS) if name != head]
    # Then shards, and what a killed write left behind.
    for path in folder.iterdir():
        name = path.name.removesuffix(TEMPORARY)
        if path not in files and (SHARD.fullmatch(name) or (name in HEADS and name != path.name)):
            stale.append(path)
    for path in stale:
        path.unlink(missing_ok=True)
    return [path.name for path in files]


def write_file(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write one file of safetensors; the old file stays until the new one is whole."""
    _replace({path: partial(_save_safetensors, tensors)})


def nonfinite(tensors: Mapping[str, Tensor]) -> list[str]:
    """The names of the tensors that hold a NaN or an infinity."""
    return [name for name, tensor in tensors.items() if not _finite(tensor)]


def _finite(tensor: Tensor) -> bool:
    # Four-bit floats have no NaN and no infinity (nor any arithmetic).
    if not tensor.is_floating_point() or not tensor.numel() or tensor.dtype == torch.float4_e2m1fn_x2:
        return True
    wide = tensor.float() if tensor.element_size() == 1 else tensor
    low, high = wide.aminmax()  # a NaN anywhere makes both NaN
    return bool(low.isfinite() & high.isfinite())


def _line(error: Exception) -> str:
    """The message of an error, on one line of reasonable length."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def _kind(path: Path) -> str:
    """What a file is by its first bytes, whatever its name says."""
    file_size(path)
    with path.open("rb") as file:
        start = file.read(9)
    if start[8:] == b"{":  # after the length of the header, whose bytes can be anything
        return "a safetensors file"
    if start.startswith(b"PK\x03\x04"):
        return "a zip file"
    if start.startswith(b"\x80"):
        return "a pickle"
    if start.startswith(b"version "):
        return "a Git LFS pointer"
    return "of no known form"


def _remedy(kind: str) -> str:
    if kind == "a Git LFS pointer":
        return "run `git lfs pull` to fetch the file itself"
    return DAMAGED if kind == "of no known form" else "give it the ending of what it is"


def _read_file(path: Path) -> dict[str, Tensor]:
    """The tensors of one file, read by its ending."""
    readers = {".safetensors": _read_safetensors, ".bin": _read_state, ".pt": _read_state, ".npz": _read_npz}
    if path.suffix not in readers:
        endings = ", ".join(readers)
        raise ValueError(f"{path}: neither a folder nor a file of weights ({endings}); is the path right?")
    return readers[path.suffix](path)


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    kind = _kind(path)
    if kind != "a safetensors file":
        raise ValueError(f"{path}: {kind}, expected a safetensors file; {_remedy(kind)}")
    try:
        return read_safetensors(path)
    except SafetensorError as error:
        raise ValueError(f"{path}: {_line(error)}; {DAMAGED}") from None


def _read_state(path: Path) -> dict[str, Tensor]:
    found = read_torch(path)
    if not isinstance(found, dict):
        raise ValueError(f"{path}: holds a {type(found).__name__}, expected tensors by name (a state dict)")
    other = [str(name) for name, value in found.items() if not isinstance(value, Tensor)]
    if other:
        what = ", ".join(other)[:200]
        raise ValueError(f"{path}: more than tensors ({what}), expected a state dict; is it a checkpoint?")
    return {str(name): tensor.detach() for name, tensor in found.items()}


def _read_npz(path: Path) -> dict[str, Tensor]:
    kind = _kind(path)
    if kind != "a zip file":
        raise ValueError(f"{path}: {kind}, expected an .npz file; {_remedy(kind)}")
    try:
        with path.open("rb") as file, numpy.load(file, allow_pickle=False) as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    except Exception as error:  # zipfile, zlib, numpy and torch each have their own
        raise ValueError(f"{path}: {_line(error)}, expected arrays of numbers; {DAMAGED}") from None


def _read_index(path: Path) -> dict[str, Tensor]:
    """The tensors of all shards that an index names; every problem is in one message."""
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise ValueError(f"{path}: no weight_map, expected one from tensor names to file names; {DAMAGED}")
    tensors: dict[str, Tensor] = {}
    problems = []
    for shard in dict.fromkeys(weight_map.values()):
        try:
            held = _read_file(_inside(path.parent, shard))
        except ValueError as error:
            problems.append(str(error))
        else:
            tensors |= {name: tensor for name, tensor in held.items() if weight_map.get(name, shard) == shard}
            lost = (name for name, place in weight_map.items() if place == shard and name not in held)
            problems += [f"{name} is not in {shard}" for name in lost]
    if problems:
        raise ValueError(f"{path}: shards are missing or wrong, copy them again: {'; '.join(problems)}")
    return tensors


def _inside(folder: Path, name: str) -> Path:
    """The file of that name in the folder, refused if the name or a link leads out of it."""
    path = folder / name
    if Path(name).name != name or "\\" in name or not name.isprintable() or len(name) > 255:
        raise ValueError(f"{name[:255]!r}: not a plain file name; not opened")
    home, target = Path(os.path.realpath(folder)), Path(os.path.realpath(path))
    # The cache of huggingface_hub: models--X/snapshots/REVISION/file -> models--X/blobs/HASH
    blobs = [
        place.parent / "blobs"
        for place in home.parents
        if place.name == "snapshots" and place.parent.name.startswith("models--")
    ]
    if not any(target.is_relative_to(place) for place in (home, *blobs)):
        raise ValueError(f"{path}: leads out of the folder, to {target}; not opened")
    return path


def _split(tensors: Mapping[str, Tensor], limit: int) -> list[dict[str, Tensor]]:
    """The tensors in order, in shards of at most `limit` bytes; a larger tensor is a shard of its own."""
    shards: list[dict[str, Tensor]] = [{}]
    room = limit
    for name, tensor in tensors.items():
        if tensor.nbytes > room and shards[-1]:
            shards.append({})
            room = limit
        shards[-1][name] = tensor
        room -= tensor.nbytes
    return shards


def _free_names(folder: Path, stem: str, suffix: str, number: int) -> list[str]:
    """Names for shards that no file has yet: the shards of an old index must not change under it."""
    for turn in count(1):
        start = stem if turn == 1 else f"{stem}-{turn}"
        names = [f"{start}-{i:05}-of-{number:05}{suffix}" for i in range(1, number + 1)]
        if not any(os.path.lexists(folder / name) for name in names):
            break
    return names


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor contiguous, on the CPU, and alone in its memory."""
    alone: dict[str, Tensor] = {}
    seen = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        memory = tensor.untyped_storage()
        if memory.nbytes() != tensor.nbytes or memory.data_ptr() in seen:
            tensor = tensor.clone()
        seen.add(memory.data_ptr())
        alone[name] = tensor
    return alone


def _save_safetensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    write_safetensors(path, tensors, metadata={"format": "pt"})


def _save_torch(tensors: Mapping[str, Tensor], path: Path) -> None:
    torch.save(_apart(tensors), path)


def _save_json(data: object, path: Path) -> None:
    path.write_bytes((json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode("utf-8"))


def _replace(files: Mapping[Path, Callable[[Path], None]]) -> None:
    """Write files of one folder under temporary names; once all are whole on disk, name them, in order."""
    temporary = {path: path.with_name(path.name + TEMPORARY) for path in files}
    folder = next(iter(files)).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, save in files.items():
            save(temporary[path])
            _sync(temporary[path])
        for path in files:
            temporary[path].replace(path)
        _sync(folder)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise OSError(f"{folder}: not written, what was there is as before: {_line(error)}") from error
    finally:
        for path in temporary.values():
            path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
