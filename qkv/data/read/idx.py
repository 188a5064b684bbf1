"""idx files: images and labels as MNIST and its successors are published.

A file is two zero bytes, the type of its values (8: bytes), the number of its axes, the size of each axis
as a big-endian 32-bit integer, and the values. The labels are in a second file beside that of the images:
train-images-idx3-ubyte and train-labels-idx1-ubyte. Does not depend on the suffix of a file."""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Iterator
from lzma import LZMAError
from pathlib import Path
from typing import BinaryIO

import numpy as np

from qkv.data.read.lines import COMPRESSION_OPENERS, DAMAGED_FILE_ADVICE, TextFile
from qkv.data.read.record import Record
from qkv.files import format_error

MAGIC = b"\0\0\x08"  # the values are bytes
MAX_IMAGE_BYTES = 2**24
IMAGE_AXES, LABEL_AXES = 3, 1


def is_idx_file(path: str) -> bool:
    """Return whether a file begins as an idx file of bytes."""
    try:
        with TextFile(path).open() as stream:
            start = stream.read(len(MAGIC) + 1)
    except (ValueError, OSError, EOFError, zlib.error, LZMAError):
        return False
    return start[:-1] == MAGIC and start[-1] in (LABEL_AXES, IMAGE_AXES)


def read_idx_images(file: TextFile) -> Iterator[Record]:
    """Read images (height, width) and their labels, the numbers of the second file as texts."""
    labels_file = TextFile(find_labels_file(file.path))
    with file.open() as images, labels_file.open() as labels:
        count, height, width = read_header(images, file, IMAGE_AXES)
        (num_labels,) = read_header(labels, labels_file, LABEL_AXES)
        if num_labels != count:
            raise ValueError(
                f"{file} has {count:,} images, but {labels_file} has {num_labels:,} labels; expected "
                "the same number: do the files belong together?"
            )
        if not 0 < height * width <= MAX_IMAGE_BYTES:
            raise ValueError(
                f"{file}: images of {height} × {width} pixels, expected 1 to {MAX_IMAGE_BYTES:,} pixels"
            )
        for number in range(1, count + 1):
            pixels = read_exactly(images, height * width, file, number)
            label = read_exactly(labels, 1, labels_file, number)
            image = np.frombuffer(pixels, np.uint8).reshape(height, width)
            yield Record({"image": image, "label": str(label[0])}, f"{file}, image {number}")
        for stream, source in ((images, file), (labels, labels_file)):
            if read_idx_bytes(stream, 1, source):
                raise ValueError(
                    f"{source}: more bytes than the {count:,} items of its header; {DAMAGED_FILE_ADVICE}"
                )


def find_labels_file(path: str) -> str:
    """Return the file of the labels of an image file: the same name with `labels` and `idx1`."""
    images = Path(path)
    name = images.name
    if images.suffix in COMPRESSION_OPENERS:
        name = images.stem
    expected = name.replace("images", "labels").replace("idx3", "idx1")
    if "images" not in name or expected == name:
        raise ValueError(
            f"{path}: expected a file of images, with `images` in its name, such as "
            "train-images-idx3-ubyte; its labels are in train-labels-idx1-ubyte"
        )
    for suffix in ("", *COMPRESSION_OPENERS):
        candidate = images.with_name(expected + suffix)
        if os.path.exists(candidate):
            return str(candidate)
    raise ValueError(f"{path}: no labels; expected the file {expected} in the same folder")


def read_header(stream: BinaryIO, file: TextFile, num_axes: int) -> tuple[int, ...]:
    """Read the magic number and the sizes of the axes."""
    magic = read_idx_bytes(stream, len(MAGIC) + 1, file)
    expected = MAGIC + bytes([num_axes])
    if magic != expected:
        raise ValueError(
            f"{file}: it begins with {magic.hex(' ') or 'nothing'}, expected {expected.hex(' ')}, an idx "
            f"file of bytes with {num_axes} {'axes' if num_axes > 1 else 'axis'}"
        )
    sizes = read_idx_bytes(stream, 4 * num_axes, file)
    if len(sizes) < 4 * num_axes:
        raise ValueError(f"{file}: the header is incomplete; {DAMAGED_FILE_ADVICE}")
    shape = struct.unpack(f">{num_axes}I", sizes)
    if not math.prod(shape):
        raise ValueError(f"{file}: the shape {shape} is empty, expected at least one item")
    return shape


def read_idx_bytes(stream: BinaryIO, size: int, file: TextFile) -> bytes:
    """Read at most this many bytes; errors of decompression become errors about the file."""
    try:
        return stream.read(size)
    except (OSError, EOFError, zlib.error, LZMAError) as error:
        raise ValueError(f"{file}: {format_error(error)}; {DAMAGED_FILE_ADVICE}") from None


def read_exactly(stream: BinaryIO, size: int, file: TextFile, number: int) -> bytes:
    """Read the bytes of one item."""
    data = read_idx_bytes(stream, size, file)
    if len(data) < size:
        raise ValueError(f"{file}: the file ends in item {number:,}; {DAMAGED_FILE_ADVICE}")
    return data
