"""Images: sizes are limited, only formats that Pillow decodes itself are opened."""

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.data.encode.images import ImageProcessor
from tests.support.errors import assert_error
from tests.support.limits import get_error_message

Image = pytest.importorskip("PIL.Image", reason="needs Pillow")
CLIP = ImageProcessor.from_config({})


def encode_png(width: int, height: int) -> bytes:
    """Return a PNG of one color, with one bit for each pixel."""

    def encode_chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    rows = zlib.compress((b"\0" + bytes((width + 7) // 8)) * height, 9)
    chunks = ((b"IHDR", header), (b"IDAT", rows), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(encode_chunk(*chunk) for chunk in chunks)


@pytest.mark.parametrize("size", [(1, 20_000), (20_000, 1)])
def test_a_thin_image_is_not_resized_to_billions_of_pixels(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    path = tmp_path / "thin.png"
    path.write_bytes(encode_png(*size))
    message = get_error_message(lambda: CLIP(path))
    assert f"{size[0]} × {size[1]} pixels, resized to" in message
    assert CLIP(Image.new("RGB", (100, 10_000))).shape == (3, 224, 224)


def test_pixels_are_limited_by_the_size_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "flat.png"
    path.write_bytes(encode_png(9_000, 9_000))
    assert "too many pixels, 9000 × 9000" in get_error_message(lambda: CLIP(path))
    path.write_bytes(encode_png(40_000, 40_000)[:2_000])
    get_error_message(lambda: CLIP(path))
    path.write_bytes(encode_png(2_000, 2_000))
    assert CLIP(path).shape == (3, 224, 224)


@pytest.mark.parametrize(
    "config",
    [
        {"size": float("inf")},
        {"size": float("nan")},
        {"size": 16384},
        {"size": {"shortest_edge": 10**30}},
        {"size": {"height": 2**14, "width": 2**14}},
        {"size": 0},
        {"size": -1},
        {"crop_size": float("inf")},
        {"crop_size": {"height": 1, "width": 2**40}},
        {"crop_size": 10**400},
        {"rescale_factor": 10**400},
        {"rescale_factor": float("inf")},
        {"rescale_factor": 0},
        {"image_mean": [0.5, float("nan"), 0.5]},
        {"image_std": [float("inf")] * 3},
        {"image_mean": [10**400] * 3},
        {"resample": float("inf")},
        {"resample": 6},
        {"size": [1] * 100_000},
    ],
    ids=lambda config: str(config)[:40],
)
def test_sizes_and_numbers_of_a_config_are_limited(config: dict[str, Any]) -> None:
    message = get_error_message(lambda: ImageProcessor.from_config(config))
    assert next(iter(config)) in message
    assert len(message) < 400


def test_a_format_that_needs_another_program_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    assert_error(lambda: CLIP(path), str(path), "not a readable image")


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"])
def test_common_formats_are_read(tmp_path: Path, format: str) -> None:
    pixels = np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3)
    path = tmp_path / "a.png"  # the content determines the format
    Image.fromarray(pixels).save(path, format)
    assert CLIP(path).shape == (3, 224, 224)
