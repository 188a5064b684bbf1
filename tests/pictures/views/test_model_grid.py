"""Thumbnails of all heads: a row per layer, a column per head, a pixel per weight or block."""

from __future__ import annotations

import base64
import io
import re
import xml.etree.ElementTree as ET

import pytest
import resvg_py
import torch
from PIL import Image
from torch import Tensor

from qkv.pictures.views.model_grid import (
    MAX_THUMBNAIL_CELLS,
    pool_to_thumbnails,
    render_model_grid_svg,
)
from tests.pictures.pages import SVG, list_elements, list_page_texts, parse_page


def make_weights(*shape: int) -> Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 2).softmax(-1)


def read_thumbnail(image: ET.Element) -> Image.Image:
    data = image.attrib["href"].removeprefix("data:image/png;base64,")
    return Image.open(io.BytesIO(base64.b64decode(data)))


def list_thumbnails(root: ET.Element) -> dict[str, ET.Element]:
    """Return the images of light pages by the titles of their groups, without the legend."""
    return {
        title: list_elements(group, "image", "light")[0]
        for group in root.iter(f"{SVG}g")
        if (title := group.findtext(f"{SVG}title"))
    }


def test_every_head_of_every_layer_is_a_thumbnail() -> None:
    layers = [("layer 0", make_weights(3, 4, 4)), ("layer 7", make_weights(2, 4, 4))]
    root = parse_page(render_model_grid_svg("Model", "encoder", layers))
    thumbnails = list_thumbnails(root)
    names = [title.partition(":")[0] for title in thumbnails]
    assert names == [
        *(f"layer 0, head {head}" for head in range(3)),
        *(f"layer 7, head {head}" for head in range(2)),
    ]
    places = [(float(image.attrib["x"]), float(image.attrib["y"])) for image in thumbnails.values()]
    assert len({y for _, y in places[:3]}) == len({y for _, y in places[3:]}) == 1
    assert places[0][1] < places[3][1]
    assert [x for x, _ in places[:2]] == [x for x, _ in places[3:]]
    assert {"Model", "encoder", "layer 0", "layer 7", "head 0", "head 2"} <= {
        *list_page_texts(root)
    }
    assert root.findtext(f"{SVG}desc") == (
        "encoder; layer 0: 3 heads, 4 queries, 4 keys; layer 7: 2 heads, 4 queries, 4 keys"
    )


def test_a_pixel_is_a_weight() -> None:
    weights = torch.zeros(1, 2, 3)
    weights[0, 0, 2] = weights[0, 1, 0] = 1
    root = parse_page(render_model_grid_svg("x", "", [("layer", weights)]))
    ((title, image),) = list_thumbnails(root).items()
    assert title == "layer, head 0: largest weight 1.00, query 0, key 2"
    levels = [*read_thumbnail(image).tobytes()]  # indices in the table of colors
    assert levels == [0, 0, 64, 64, 0, 0]
    assert float(image.attrib["width"]) / float(image.attrib["height"]) == 1.5


@pytest.mark.parametrize(
    ("shape", "cells", "block"),
    [((64, 64), (64, 64), (1, 1)), ((65, 10), (33, 10), (2, 1)), ((1, 300), (1, 60), (1, 5))],
)
def test_many_weights_are_pooled(
    shape: tuple[int, int], cells: tuple[int, int], block: tuple[int, int]
) -> None:
    weights = make_weights(2, *shape)
    pooled, size = pool_to_thumbnails(weights)
    assert (tuple(pooled.shape), size) == ((2, *cells), block)
    for row in range(cells[0]):
        for column in range(cells[1]):
            rows = slice(row * block[0], (row + 1) * block[0])
            columns = slice(column * block[1], (column + 1) * block[1])
            expected = weights[:, rows, columns].amax((1, 2))
            assert torch.equal(pooled[:, row, column], expected)
    svg = render_model_grid_svg("x", "", [("layer", weights)])
    (image, *_) = list_thumbnails(parse_page(svg)).values()
    assert read_thumbnail(image).size == cells[::-1]
    assert max(cells) <= MAX_THUMBNAIL_CELLS
    note = f"A cell is the largest of a block of {block[0]} × {block[1]} weights."
    assert (note in svg) == (block != (1, 1))


def test_weights_that_are_blocks_already() -> None:
    svg = render_model_grid_svg("x", "", [("layer", make_weights(1, 100, 50))], pool=16)
    assert "A cell is the largest of a block of 32 × 16 weights." in svg
    ((title, _),) = list_thumbnails(parse_page(svg)).items()
    assert re.search(r"query (\d+) to (\d+), key (\d+) to (\d+)$", title)
    first, last = map(int, re.findall(r"query (\d+) to (\d+)", title)[0])
    assert (first % 16, last - first) == (0, 15)
    assert "100 queries, 50 keys, in blocks of 16" in svg


def test_a_png_has_the_colors_of_light_pages() -> None:
    """resvg ignores @media: the images of dark pages are hidden by their attribute."""
    weights = torch.tensor([[[0.0, 1.0]]])
    svg = render_model_grid_svg("x", "", [("layer", weights)])
    (thumbnail,) = list_thumbnails(parse_page(svg)).values()
    png = Image.open(io.BytesIO(bytes(resvg_py.svg_to_bytes(svg_string=svg)))).convert("RGB")
    (place,) = re.findall(r"translate\((\d+) (\d+)\)", svg)
    x, y = (int(place[i]) + float(thumbnail.attrib[axis]) for i, axis in enumerate("xy"))
    width, height = (float(thumbnail.attrib[name]) for name in ("width", "height"))
    pixels = [png.getpixel((int(x + width * part), int(y + height / 2))) for part in (0.25, 0.75)]
    assert pixels == [(0xF3, 0xF4, 0xF5), (0x08, 0x31, 0x5C)]


def test_a_model_of_twelve_layers_is_small() -> None:
    layers = [(f"layer {i}", make_weights(12, 64, 64)) for i in range(12)]
    assert len(render_model_grid_svg("x", "", layers)) < 2_000_000


def test_names_of_layers_and_missing_weights() -> None:
    weights = torch.full((1, 1, 1), float("nan"), dtype=torch.float16)
    root = parse_page(render_model_grid_svg("x", "", [("</g>\u202e", weights)]))
    assert "</g>⟨202E⟩" in list_page_texts(root)
    assert [*list_thumbnails(root)] == ["</g>⟨202E⟩, head 0: largest weight 0.000, query 0, key 0"]


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="no layers"):
        render_model_grid_svg("x", "", [])
    with pytest.raises(ValueError, match=r"weights of a of shape \(2, 2\), expected heads \(any\)"):
        render_model_grid_svg("x", "", [("a", torch.ones(2, 2))])
    with pytest.raises(ValueError, match=r"shape \(1, 0, 2\)"):
        render_model_grid_svg("x", "", [("a", torch.ones(1, 0, 2))])
