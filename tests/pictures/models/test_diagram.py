"""Diagrams: every family is drawn from its Spec, with norms, sums and stacks where the Spec has them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

import pytest

from qkv.families import FAMILY_NAMES, get_family
from qkv.model.build import build_model_spec
from qkv.pictures.drawing.canvas import DETAIL_SIZE, TITLE_SIZE
from qkv.pictures.drawing.svg import estimate_text_width
from qkv.pictures.models.blocks import group_layers
from qkv.pictures.models.diagram import MAX_GROUPS, render_diagram_svg
from qkv.spec import DualSpec, Spec, StackSpec

SVG = "{http://www.w3.org/2000/svg}"
KINDS = ("embedding", "attention", "feed-forward", "norm", "head")


def build_spec(name: str, size: str | None = None, **changes: Any) -> Spec | DualSpec:
    family = get_family(name)
    return build_model_spec(family, family.arguments(size, **changes))


def build_transformer_spec(name: str, **changes: Any) -> Spec:
    spec = build_spec(name, **changes)
    assert isinstance(spec, Spec)
    return spec


def draw(name: str, **changes: Any) -> ET.Element:
    return ET.fromstring(render_diagram_svg(name, build_spec(name, **changes)))


def list_texts(root: ET.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def list_names(root: ET.Element) -> list[str]:
    """Return the titles of stacks and blocks in the order of drawing: upwards, stack by stack."""
    return [text.text or "" for text in root.iter(f"{SVG}text") if text.get("class") == "name"]


def list_boxes(root: ET.Element, kind: str) -> list[ET.Element]:
    return [rect for rect in root.iter(f"{SVG}rect") if rect.get("class") == kind]


def test_original_transformer() -> None:
    root = draw("transformer")
    encoder = ["Self-attention", "Layer norm", "Feed-forward", "Layer norm"]
    decoder = [*encoder[:2], "Cross-attention", "Layer norm", *encoder[2:]]
    assert list_names(root) == [
        "Encoder", "Tokens", "Positions", *encoder,
        "Decoder", "Tokens", "Positions", *decoder, "Head: lm",
    ]  # fmt: skip
    texts = list_texts(root)
    assert texts.count("layers 0-5 ×6") == 2
    assert {"sines and cosines", "times √512", "shared with the encoder"} <= {*texts}
    assert {"8 heads of 64", "512 → 2,048 → 512, relu", "tied to the token embedding"} <= {*texts}
    plus = [circle for circle in root.iter(f"{SVG}circle") if circle.get("class") == "plus"]
    assert len(plus) == 2 + 3 + 2  # residual connections and sums of embeddings
    (left, right) = (float(box.attrib["x"]) for box in list_boxes(root, "layer"))
    assert left < right


def test_pre_norm_decoder() -> None:
    root = draw("gpt2")
    assert list_names(root) == [
        "Decoder", "Tokens", "Positions", "Layer norm", "Self-attention", "Layer norm", "Feed-forward",
        "Layer norm", "Head: lm",
    ]  # fmt: skip
    assert "attends to itself and earlier tokens" in list_texts(root)
    assert "encoder_last_hidden_state" not in list_texts(root)


def test_post_norm_encoder() -> None:
    root = draw("bert")
    assert list_names(root) == [
        "Encoder", "Tokens", "Positions", "Token types", "Layer norm",
        "Self-attention", "Layer norm", "Feed-forward", "Layer norm", "Head: pooler",
    ]  # fmt: skip
    assert "pooler_output" in list_texts(root)


def test_norm_position_moves_the_norms() -> None:
    """With post-norm, the sum is below the norm; with pre-norm, it is above the sublayer."""
    spec = build_transformer_spec("gpt2")
    assert isinstance(spec.decoder, StackSpec)
    layers = tuple(replace(layer, norm_position="post") for layer in spec.decoder.layers)
    post = replace(spec, decoder=replace(spec.decoder, layers=layers))
    names = [list_names(ET.fromstring(render_diagram_svg("x", item))) for item in (spec, post)]
    assert names[0][3:7] == ["Layer norm", "Self-attention", "Layer norm", "Feed-forward"]
    assert names[1][3:7] == ["Self-attention", "Layer norm", "Feed-forward", "Layer norm"]


def test_layers_that_differ_are_drawn_separately() -> None:
    texts = list_texts(draw("modernbert"))
    assert {"layer 0", "layers 1-2, 4-5 … 19-20 ×14", "layers 3, 6 … 21 ×7"} <= {*texts}
    spec = build_transformer_spec("modernbert")
    assert isinstance(spec.encoder, StackSpec)
    assert [len(group.depths) for group in group_layers(spec.encoder)] == [1, 14, 7]
    assert list_texts(draw("switch")).count("Mixture of experts") == 2
    assert "layers 0-11 ×12, shared parameters" in list_texts(draw("albert"))


def test_many_kinds_of_layers_are_counted() -> None:
    spec = build_transformer_spec("gpt2", depth=MAX_GROUPS + 3)
    assert isinstance(spec.decoder, StackSpec)
    layers = tuple(
        replace(layer, attention=replace(layer.attention, heads=depth + 1))
        for depth, layer in enumerate(spec.decoder.layers)
    )
    many = replace(spec, decoder=replace(spec.decoder, layers=layers))
    root = ET.fromstring(render_diagram_svg("x", many))
    assert len(list_boxes(root, "layer")) == MAX_GROUPS
    assert "… 3 more kinds of layers" in list_texts(root)


def test_heads_that_read_other_heads() -> None:
    texts = list_texts(draw("clip"))
    assert {"Text encoder", "Image encoder", "Cosine similarity", "pixel_values"} <= {*texts}
    assert texts.index("Head: pooler") < texts.index("Head: projection")
    root = draw("bert", head="pretraining")
    boxes = list_boxes(root, "head")
    assert len({box.attrib["x"] for box in boxes}) == 2  # the masked LM beside the pooler
    assert len(boxes) == 3


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_every_family_and_head_is_drawn_inside_the_page(name: str) -> None:
    for head in get_family(name).heads:
        svg = render_diagram_svg(f"{name} & <{head}>", build_spec(name, head=head))
        root = ET.fromstring(svg)
        assert root.findtext(f"{SVG}title") == f"{name} & <{head}>"
        assert root.findtext(f"{SVG}desc")
        assert {*re.findall(r"\w+://[^\"'\s]+", svg)} == {"http://www.w3.org/2000/svg"}
        width, height = float(root.attrib["width"]), float(root.attrib["height"])
        (group,) = root.findall(f"{SVG}g")
        match = re.fullmatch(r"translate\((\S+) (\S+)\)", group.attrib["transform"])
        assert match is not None
        boxes = [rect for kind in (*KINDS, "layer") for rect in list_boxes(root, kind)]
        assert boxes
        for box in boxes:
            x, y, w, h = (float(box.attrib[key]) for key in ("x", "y", "width", "height"))
            assert 0 < x + float(match[1]) < x + w + float(match[1]) < width
            assert 0 < y + float(match[2]) < y + h + float(match[2]) < height
        assert_no_overlap(boxes)
        assert_texts_fit(group)


def assert_no_overlap(boxes: list[ET.Element]) -> None:
    """Assert that no two boxes overlap, except the frame of a layer and its blocks."""
    corners = []
    for box in boxes:
        if box.get("class") != "layer":
            x, y, w, h = (float(box.attrib[key]) for key in ("x", "y", "width", "height"))
            corners.append((x, y, x + w, y + h))
    for i, a in enumerate(corners):
        for b in corners[:i]:
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


def assert_texts_fit(group: ET.Element) -> None:
    """Assert that the texts of a box, which follow it, are not wider."""
    width = 0.0
    for element in group:
        if element.get("class") in KINDS:
            width = float(element.attrib["width"])
        elif element.tag == f"{SVG}text" and width:
            size = TITLE_SIZE if element.get("class") == "name" else DETAIL_SIZE
            assert estimate_text_width(element.text or "", size) <= width
        elif element.tag != f"{SVG}text":
            width = 0.0
