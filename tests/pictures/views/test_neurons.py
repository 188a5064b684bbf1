"""How scores come about: strips of vectors, numbers of terms, bars of weights."""

from __future__ import annotations

import base64
import io
import xml.etree.ElementTree as ET

import pytest
import torch
from PIL import Image

from qkv.pictures.views.neurons import (
    CONTRIBUTIONS_LABEL,
    PRODUCTS_LABEL,
    WEIGHT_BAR_WIDTH,
    render_neurons_svg,
)
from tests.pictures.pages import ODD_TOKENS, SVG, list_elements, list_page_texts, parse_page

MASKED = float("nan")


def list_strips(root: ET.Element) -> list[Image.Image]:
    """Return the images of vectors on light pages, without those of the legend."""
    return [
        Image.open(io.BytesIO(base64.b64decode(image.attrib["href"].partition(",")[2])))
        for image in list_elements(root, "image", "light")
        if image.attrib["height"] != "12"
    ]


def test_vectors_terms_and_weights() -> None:
    query = torch.tensor([2.0, -1.0])
    keys = torch.tensor([[1.0, 0.0], [0.0, 4.0], [-4.0, 2.0]])
    terms = [
        ("q·k", torch.tensor([2.0, -4.0, -10.0])),
        ("score", torch.tensor([1.0, -2.5, MASKED])),
    ]
    weights = torch.tensor([0.9, 0.1, 0.0])
    svg = render_neurons_svg(
        "Model", "layer 0", "cat", query, ["a", "b", "c"], keys, query * keys, terms, weights
    )
    root = parse_page(svg)
    strip_q, strip_k, strip_products = list_strips(root)
    # level 32 of 0 to 64 is zero; vectors have the scale -4 to 4, products -8 to 8
    assert [*strip_q.tobytes()] == [48, 24]
    assert [*strip_k.tobytes()] == [40, 32, 32, 64, 0, 48]
    assert strip_k.size == (2, 3)
    assert [*strip_products.tobytes()] == [40, 32, 32, 16, 0, 24]
    texts = list_page_texts(root)
    for text in ("cat", "a", "b", "c", "q·k", "score", "key vector k", "query vector q"):
        assert text in texts
    for text in (PRODUCTS_LABEL, "−4.00", "−10.00", "−2.50", "0.90", "0.10", "0.000"):
        assert text in texts
    assert texts.count("masked") == 1
    assert {"vectors −4.00", "+4.00", "products −8.00", "+8.00"} <= {*texts}
    bars = [float(bar.attrib["width"]) for bar in list_elements(root, "rect", "bar")]
    assert bars == pytest.approx([0.9 * WEIGHT_BAR_WIDTH, 0.1 * WEIGHT_BAR_WIDTH])
    assert root.findtext(f"{SVG}desc") == "layer 0; cat → a 0.90; cat → b 0.10; cat → c 0.000"


def test_scores_that_are_no_dot_products() -> None:
    products = torch.tensor([[1.0, -2.0, 0.5]])
    svg = render_neurons_svg(
        "x", "", "\n", None, ["a"], None, products, [("score", torch.zeros(1))], torch.ones(1)
    )
    root = parse_page(svg)
    (strip,) = list_strips(root)
    assert strip.size == (3, 1)
    texts = list_page_texts(root)
    assert "query: ⏎" in texts
    assert CONTRIBUTIONS_LABEL in texts
    assert PRODUCTS_LABEL not in texts
    assert not {"key vector k", "query vector q"} & {*texts}
    assert f"{CONTRIBUTIONS_LABEL} −2.00" in texts


def test_keys_may_be_any_text() -> None:
    size = len(ODD_TOKENS)
    vectors = torch.randn(size, 200, dtype=torch.bfloat16)
    root = parse_page(
        render_neurons_svg(
            "x", "", "q", vectors[0], ODD_TOKENS, vectors, vectors, [], torch.zeros(size)
        )
    )
    assert {"</script>", "⟨202E⟩evil", "␀␇", "\u2068مرحبا!\u2069"} <= {*list_page_texts(root)}
    assert not list_elements(root, "rect", "bar")
    width = float(root.attrib["width"])
    for element in root.iter():
        if "width" in element.attrib and element is not root:
            assert float(element.get("x", 0)) + float(element.attrib["width"]) <= width


def test_infinite_numbers_have_no_color() -> None:
    products = torch.tensor([[float("-inf"), 1.0, MASKED]])
    terms = [("score", torch.tensor([float("-inf")]))]
    root = parse_page(
        render_neurons_svg("x", "", "q", None, ["a"], None, products, terms, torch.tensor([MASKED]))
    )
    (strip,) = list_strips(root)
    assert [*strip.tobytes()] == [0, 64, 32]
    assert "−∞" in list_page_texts(root)
    assert "contributions −1.00" in list_page_texts(root)


def test_shapes_are_checked() -> None:
    one = torch.ones(1)
    with pytest.raises(ValueError, match=r"products of shape \(2, 3\), expected keys 1 × elements"):
        render_neurons_svg("x", "", "q", None, ["a"], None, torch.ones(2, 3), [], one)
    with pytest.raises(ValueError, match=r"term score of shape \(2,\), expected keys 1"):
        render_neurons_svg(
            "x", "", "q", None, ["a"], None, torch.ones(1, 3), [("score", torch.ones(2))], one
        )
