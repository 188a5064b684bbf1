"""Matrices as PNG images: the color of a pixel is its number."""

from __future__ import annotations

import base64
import io
import re
import xml.etree.ElementTree as ET

import pytest
import torch
from PIL import Image
from torch import Tensor

from qkv.pictures.drawing.colors import SIGNED_PALETTE, WEIGHT_PALETTE, interpolate_color
from qkv.pictures.drawing.heat_image import COLOR_LEVELS, draw_signed_image, draw_weight_image


def read_images(body: str) -> dict[str, Image.Image]:
    """Return the images of a drawing by their class."""
    images = ET.fromstring(f"<svg>{body}</svg>")
    return {
        image.attrib["class"]: Image.open(
            io.BytesIO(
                base64.b64decode(image.attrib["href"].removeprefix("data:image/png;base64,"))
            )
        ).convert("RGB")
        for image in images
    }


def read_colors(image: Image.Image) -> Tensor:
    """Return the colors (rows, columns, 3)."""
    width, height = image.size
    return torch.tensor([*image.tobytes()]).view(height, width, 3)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_pixel_is_the_square_root_of_its_weight(theme: str) -> None:
    weights = torch.rand(5, 7, generator=torch.Generator().manual_seed(0))
    weights[0, 0], weights[0, 1], weights[0, 2] = 0, 1, float("nan")
    image = read_images(draw_weight_image(weights, 0, 0, 70, 50))[theme]
    assert image.size == (7, 5)
    stops = getattr(WEIGHT_PALETTE, theme)
    fractions = weights.nan_to_num(0).sqrt().flatten().tolist()
    expected = [[*interpolate_color(stops, fraction)] for fraction in fractions]
    step = 4 * 256 / COLOR_LEVELS / 2 + 1  # half a level of the steepest part of the palette
    difference = read_colors(image) - torch.tensor(expected).view(5, 7, 3)
    assert difference.abs().max() <= step
    assert read_colors(image)[0, 0].tolist() == [*interpolate_color(stops, 0)]
    assert read_colors(image)[0, 1].tolist() == [*interpolate_color(stops, 1)]
    assert read_colors(image)[0, 2].tolist() == [*interpolate_color(stops, 0)]


def test_signed_numbers_are_neutral_at_zero() -> None:
    numbers = torch.tensor([[-2.0, 0.0, 2.0, 5.0]])
    image = read_images(draw_signed_image(numbers, 2, 0, 0, 4, 1))["light"]
    orange, neutral, blue = (SIGNED_PALETTE.light[i] for i in (0, 2, 4))
    colors = [bytes(color).hex() for color in read_colors(image)[0].tolist()]
    assert [f"#{color}" for color in colors] == [orange, neutral, blue, blue]


def test_only_the_image_of_light_pages_is_visible_without_css() -> None:
    body = draw_weight_image(torch.rand(2, 2), 3, 4.25, 20, 10)
    light, dark = ET.fromstring(f"<svg>{body}</svg>")
    assert (light.get("class"), light.get("display")) == ("light", None)
    assert (dark.get("class"), dark.get("display")) == ("dark", "none")
    assert re.search(r'x="3" y="4.2" width="20" height="10"', body)
