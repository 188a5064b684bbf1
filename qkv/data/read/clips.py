"""Clips: frames with a label each, in an .npz file. Loads no pickled objects.

`frames` is (N, T, height, width) or (N, T, height, width, 3), bytes; `labels` (N, T), numbers or texts."""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from qkv.data.read.lines import DAMAGED_FILE_ADVICE, MAX_COMPRESSION_RATIO, MIN_DECOMPRESSED_BYTES
from qkv.data.read.record import Record
from qkv.files import format_error

MAX_CLIP_BYTES = 2**28
MAX_LABEL_BYTES = 2**28
HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_clips(path: str) -> Iterator[Record]:
    """Read the clips of a file one by one."""
    try:
        with zipfile.ZipFile(path) as archive:
            with open_array(archive, "labels.npy") as (stream, shape, dtype):
                labels = read_labels(stream, shape, dtype)
            with open_array(archive, "frames.npy") as (stream, shape, dtype):
                yield from read_frames(stream, shape, dtype, labels, path)
    except FileNotFoundError:
        raise ValueError(f"{path}: not found; is the path right?") from None
    except (ValueError, KeyError, OSError, EOFError, zlib.error, zipfile.BadZipFile,
            NotImplementedError, RuntimeError, struct.error) as error:  # fmt: skip
        raise ValueError(
            f"{path}: not a file of clips ({format_error(error)}); expected an .npz file with the arrays "
            "frames (N, T, height, width), of bytes, and labels (N, T)"
        ) from None


@contextmanager
def open_array(
    archive: zipfile.ZipFile, name: str
) -> Iterator[tuple[IO[bytes], tuple[int, ...], np.dtype[Any]]]:
    """Open an array of an archive: its stream after the header, its shape and its dtype."""
    info = archive.getinfo(name)
    if info.file_size > MIN_DECOMPRESSED_BYTES + MAX_COMPRESSION_RATIO * info.compress_size:
        raise ValueError(f"{name}: {info.file_size:,} bytes in {info.compress_size:,}")
    with archive.open(info) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in HEADER_READERS:
            raise ValueError(f"{name}: version {version}")
        shape, is_fortran, dtype = HEADER_READERS[version](stream)
        num_bytes = math.prod(shape) * dtype.itemsize
        if is_fortran or dtype.hasobject or not 0 < num_bytes < info.file_size:
            raise ValueError(f"{name} has the shape {shape} and the dtype {dtype}")
        yield stream, shape, dtype


def read_labels(stream: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the labels (N, T), numbers or texts."""
    if (
        len(shape) != 2
        or dtype.kind not in "iuU"
        or math.prod(shape) * dtype.itemsize > MAX_LABEL_BYTES
    ):
        raise ValueError(f"labels have the shape {shape} and the dtype {dtype}")
    data = read_array_bytes(stream, math.prod(shape) * dtype.itemsize)
    return np.frombuffer(data, dtype).reshape(shape)


def read_frames(
    stream: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any], labels: NDArray[Any], path: str
) -> Iterator[Record]:
    """Read every clip with its labels."""
    clip_shape = shape[1:]
    is_valid = len(shape) == 4 or (len(shape) == 5 and shape[4] == 3)
    if not is_valid or dtype != np.uint8 or math.prod(clip_shape) > MAX_CLIP_BYTES:
        raise ValueError(f"frames have the shape {shape} and the dtype {dtype}")
    if shape[:2] != labels.shape:
        raise ValueError(f"frames are {shape[:2]} and labels {labels.shape}, one label per frame")
    for number, clip_labels in enumerate(labels.tolist(), 1):
        frames = np.frombuffer(read_array_bytes(stream, math.prod(clip_shape)), np.uint8)
        values = {"frames": frames.reshape(clip_shape), "labels": [str(x) for x in clip_labels]}
        yield Record(values, f"{path}, clip {number}")


def read_array_bytes(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise ValueError(DAMAGED_FILE_ADVICE)
    return data


def write_clips(path: Path, frames: NDArray[np.uint8], labels: NDArray[Any]) -> None:
    """Write clips (N, T, height, width) and their labels (N, T) as an .npz file."""
    with path.open("wb") as file:
        np.savez(file, frames=frames, labels=labels)
