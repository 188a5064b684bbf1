"""Attention to an image: shades over the patches, the image once in the file; captions."""

from __future__ import annotations

import base64
import math
import xml.etree.ElementTree as ET
from typing import Any

import pytest
import torch

from qkv.pictures.caption import MAX_CAPTION_SHADE, render_caption_svg
from qkv.pictures.views.image_weights import (
    MAX_PANEL_COLUMNS,
    MAX_SHADE,
    PANEL_GAP,
    PANEL_SIZE,
    ImageWeights,
    render_image_weights_svg,
)
from qkv.tasks.write.caption import Caption
from tests.pictures.pages import SVG, list_elements, list_page_texts, parse_page

PICTURE = b"not decoded: \x00\xff"


def render(panels: Any, image: bytes = PICTURE, mime_type: str = "image/png", **fields: Any) -> str:
    """Return the SVG of one image."""
    weights = ImageWeights(image=image, mime_type=mime_type, panels=panels, **fields)
    return render_image_weights_svg("ViT", "query", [weights])


def list_panels(root: ET.Element) -> list[ET.Element]:
    return [group for group in root.iter(f"{SVG}g") if group.find(f"{SVG}use") is not None]


def list_opacities(panel: ET.Element) -> list[float]:
    shades = panel.find(f"{SVG}g")
    assert shades is not None
    assert shades.attrib["fill"] == "#000"
    return [float(shade.attrib["fill-opacity"]) for shade in shades]


def test_a_patch_is_dark_where_its_weight_is_small() -> None:
    weights = torch.tensor([[0.4, 0.1], [0.0, 0.2]])
    svg = render([("head 3", weights)], image=PICTURE, mime_type="image/png")
    root = parse_page(svg)
    (panel,) = list_panels(root)
    assert list_opacities(panel) == pytest.approx(
        [0, MAX_SHADE / 2, MAX_SHADE, MAX_SHADE * (1 - math.sqrt(0.5))], abs=0.0005
    )
    places = [(shade.attrib["x"], shade.attrib["y"]) for shade in panel.find(f"{SVG}g") or []]
    assert places == [("0.00", "0.00"), ("64.00", "0.00"), ("0.00", "64.00"), ("64.00", "64.00")]
    assert {"ViT", "query", "head 3"} <= {*list_page_texts(root)}
    assert root.findtext(f"{SVG}desc") == "query; head 3: largest weight 0.40, row 0, column 0"


def test_the_image_is_once_in_the_file_for_each_shape() -> None:
    panels = [("a", torch.rand(4, 4)), ("b", torch.rand(7, 7)), ("c", torch.rand(2, 4))]
    svg = render(panels, image=PICTURE, mime_type="image/png")
    root = parse_page(svg)
    images = {image.attrib["id"]: image for image in root.iter(f"{SVG}image")}
    assert svg.count(base64.b64encode(PICTURE).decode()) == len(images) == 2
    uses = [use.attrib["href"].removeprefix("#") for use in root.iter(f"{SVG}use")]
    sizes = [(images[use].attrib["width"], images[use].attrib["height"]) for use in uses]
    assert sizes == [("128", "128"), ("128", "128"), ("181", "90.5")]  # of one area
    assert {image.attrib["preserveAspectRatio"] for image in images.values()} == {"xMidYMid slice"}


def test_ids_of_other_images_differ() -> None:
    panels = [("a", torch.rand(4, 4))]
    ids = {
        image.attrib["id"]
        for data in (b"one", b"two")
        for image in parse_page(render(panels, image=data, mime_type="image/png")).iter(
            f"{SVG}image"
        )
    }
    assert len(ids) == 2


def test_panels_are_wrapped_into_rows() -> None:
    panels = [(f"head {i}", torch.rand(2, 2)) for i in range(MAX_PANEL_COLUMNS + 1)]
    root = parse_page(render(panels, image=PICTURE, mime_type="image/jpeg"))
    places = [
        tuple(map(float, panel.attrib["transform"][10:-1].split())) for panel in list_panels(root)
    ]
    step = PANEL_SIZE + PANEL_GAP
    assert [x for x, _ in places] == [*range(0, MAX_PANEL_COLUMNS * step, step), 0]
    assert places[0][1] == places[-2][1] < places[-1][1] - PANEL_SIZE


def test_a_patch_is_outlined() -> None:
    panels = [("a", torch.rand(4, 8)), ("b", torch.rand(4, 8))]
    svg = render(panels, image=PICTURE, mime_type="image/png", patches=[(3, 5), None])
    (patch,) = list_elements(parse_page(svg), "rect", "patch")
    values = [float(patch.attrib[name]) for name in ("x", "y", "width", "height")]
    side = PANEL_SIZE * 2**0.5 / 8
    assert values == pytest.approx([5 * side, 3 * side, side, side], abs=0.01)


def test_names_may_be_any_text_and_weights_may_be_zero() -> None:
    panels = [("</g>\u202e" + "x" * 500, torch.zeros(2, 2)), ("b", torch.full((2, 2), math.nan))]
    root = parse_page(render(panels, image=PICTURE, mime_type="image/png"))
    assert "</g>⟨202E⟩xxx…" in list_page_texts(root)
    for panel in list_panels(root):
        assert list_opacities(panel) == [MAX_SHADE] * 4


def test_inputs_are_checked() -> None:
    panels = [("a", torch.rand(2, 2))]
    with pytest.raises(ValueError, match="type 'text/html', expected that of an image"):
        render(panels, image=PICTURE, mime_type="text/html")
    with pytest.raises(ValueError, match="no panels"):
        render([], image=PICTURE, mime_type="image/png")
    with pytest.raises(ValueError, match="2 patches, expected one for each of 1 panels"):
        render(panels, image=PICTURE, mime_type="image/png", patches=[None, None])
    with pytest.raises(ValueError, match=r"patch \(2, 0\), expected a row below 2"):
        render(panels, image=PICTURE, mime_type="image/png", patches=[(2, 0)])
    with pytest.raises(ValueError, match=r"weights of a of shape \(4,\), expected rows"):
        render([("a", torch.rand(4))], image=PICTURE, mime_type="image/png")


def test_two_images_have_titles() -> None:
    images = [
        ImageWeights(
            image=PICTURE, mime_type="image/png", panels=[("red", torch.rand(4, 4))], title=title
        )
        for title in ("soft", "hard")
    ]
    root = parse_page(render_image_weights_svg("x", "", images))
    assert {"soft", "hard", "red"} <= {*list_page_texts(root)}
    assert len(list_panels(root)) == 2
    with pytest.raises(ValueError, match="no images"):
        render_image_weights_svg("x", "", [])


# --- captions ---


def test_a_caption_has_a_panel_for_each_token() -> None:
    attention = ((0.5, 0.25, 0.25, 0.0), (0.0, 0.0, 0.0, 0.0))
    caption = Caption("a <cat>", -1.0, ("a", "</svg>"), (), attention)
    svg = render_caption_svg(PICTURE, "image/png", caption)
    root = ET.fromstring(svg)
    assert root.findtext(f"{SVG}title") == "a <cat>"
    assert list_page_texts(root) == ["a", "</svg>"]
    first, second = list_panels(root)
    shade = MAX_CAPTION_SHADE
    assert list_opacities(first) == pytest.approx([0, shade / 2, shade / 2, shade], abs=0.0005)
    assert list_opacities(second) == [shade] * 4
    assert svg.count(base64.b64encode(PICTURE).decode()) == 1
    size = (float(root.attrib["width"]), float(root.attrib["height"]))
    assert size == (2 * PANEL_SIZE + 3 * PANEL_GAP, 20 + PANEL_SIZE + PANEL_GAP)


def test_a_caption_without_tokens() -> None:
    root = ET.fromstring(render_caption_svg(PICTURE, "image/png", Caption("", 0.0, ())))
    assert list_panels(root) == []
    assert float(root.attrib["width"]) > 0
