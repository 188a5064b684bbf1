"""Matrices of numbers as small PNG images inside of an SVG, one for light and one for dark pages.

A cell is one pixel, so that thousands of cells stay small."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.pictures.drawing.colors import (
    SIGNED_PALETTE,
    WEIGHT_PALETTE,
    Palette,
    interpolate_color,
)
from qkv.pictures.drawing.svg import StyleRules, draw_svg_text, format_pixels
from qkv.pictures.drawing.token_text import format_number

COLOR_LEVELS = 65  # odd: the middle is a level
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
RAMP_WIDTH = 128  # pixels
RAMP_HEIGHT = 12
RAMP_LABEL_WIDTH = 120  # before the ramp
HEAT_RULES: StyleRules = {
    "image": ("image-rendering: pixelated", ""),
    ".light": ("", "display: none"),
    ".dark": ("display: none", "display: inline"),
}


def draw_weight_image(weights: Tensor, x: float, y: float, width: float, height: float) -> str:
    """Draw weights (rows, columns) in [0, 1]; colors grow with the square root, which shows small
    weights."""
    fractions = weights.nan_to_num(0).clamp(0, 1).sqrt()
    return draw_heat_image(fractions, WEIGHT_PALETTE, x, y, width, height)


def draw_signed_image(
    numbers: Tensor, largest: float, x: float, y: float, width: float, height: float
) -> str:
    """Draw numbers (rows, columns) between -largest and largest."""
    fractions = (numbers.nan_to_num(0) / largest).clamp(-1, 1) / 2 + 0.5
    return draw_heat_image(fractions, SIGNED_PALETTE, x, y, width, height)


def draw_heat_image(
    fractions: Tensor, palette: Palette, x: float, y: float, width: float, height: float
) -> str:
    """Draw fractions (rows, columns) of a palette as two images, of which a page displays one."""
    levels = (fractions * (COLOR_LEVELS - 1)).round().to(torch.uint8)
    rows = [bytes(row) for row in levels.tolist()]
    position = (
        f'x="{format_pixels(x)}" y="{format_pixels(y)}" '
        f'width="{format_pixels(width)}" height="{format_pixels(height)}"'
    )
    images = []
    for css_class, stops in palette._asdict().items():
        data = base64.b64encode(encode_png(rows, build_color_table(stops))).decode()
        hidden = ' display="none"' if css_class == "dark" else ""
        images.append(
            f'<image class="{css_class}"{hidden} {position} preserveAspectRatio="none" '
            f'image-rendering="optimizeSpeed" href="data:image/png;base64,{data}"/>'
        )
    return "".join(images)


def build_color_table(stops: Sequence[str]) -> bytes:
    """Return the color of every level as bytes."""
    steps = COLOR_LEVELS - 1
    return b"".join(interpolate_color(stops, level / steps) for level in range(COLOR_LEVELS))


def encode_png(rows: Sequence[bytes], color_table: bytes) -> bytes:
    """Return a PNG file with one byte per pixel, its index in the table of colors."""

    def build_chunk(name: bytes, data: bytes) -> bytes:
        checksum = zlib.crc32(name + data)
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 3, 0, 0, 0)
    scanlines = b"".join(b"\0" + row for row in rows)  # 0: without a filter
    return b"".join(
        [
            PNG_SIGNATURE,
            build_chunk(b"IHDR", header),
            build_chunk(b"PLTE", color_table),
            build_chunk(b"IDAT", zlib.compress(scanlines, 9)),
            build_chunk(b"IEND", b""),
        ]
    )


def draw_weight_legend(x: float, y: float) -> str:
    """Draw the colors from weight 0 to weight 1."""
    ramp = torch.linspace(0, 1, COLOR_LEVELS)[None]
    image = draw_heat_image(ramp, WEIGHT_PALETTE, x + 56, y, RAMP_WIDTH, RAMP_HEIGHT)
    base = y + RAMP_HEIGHT - 2
    label = draw_svg_text(x + 50, base, "weight 0", "small", "end")
    end = draw_svg_text(x + 62 + RAMP_WIDTH, base, "1 (middle: 0.25)", "small")
    return label + image + end


def draw_signed_legend(x: float, y: float, name: str, largest: float) -> str:
    """Draw the colors from -largest to largest."""
    ramp = torch.linspace(0, 1, COLOR_LEVELS)[None]
    left = x + RAMP_LABEL_WIDTH
    image = draw_heat_image(ramp, SIGNED_PALETTE, left, y, RAMP_WIDTH, RAMP_HEIGHT)
    base = y + RAMP_HEIGHT - 2
    label = draw_svg_text(left - 6, base, f"{name} {format_number(-largest)}", "small", "end")
    end = draw_svg_text(left + RAMP_WIDTH + 6, base, f"+{format_number(largest)}", "small")
    return label + image + end
