"""Heads as lines: their ends are the tokens, their opacity the weight, their color the head."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from qkv.pictures.views.heads import MIN_LINE_WEIGHT, TOKEN_ROW, render_heads_svg
from tests.pictures.pages import ODD_TOKENS, SVG, list_elements, list_page_texts, parse_page

NUMBER = r"(-?[\d.]+)"
CURVE = re.compile(rf"M{NUMBER} {NUMBER}C[\d.]+ [\d.]+ [\d.]+ [\d.]+ {NUMBER} {NUMBER}")


class Line(NamedTuple):
    """A line of the picture: its head, its tokens, its opacity."""

    head: str
    query: int
    key: int
    opacity: float


def make_weights(*shape: int, scale: float = 2.0) -> Tensor:
    scores = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    return (scores * scale).softmax(-1)


def list_lines(root: ET.Element, queries: list[str]) -> Iterator[Line]:
    """Yield the lines; the rows are those of the labels of the queries."""
    texts = [text for text in root.iter(f"{SVG}text") if text.get("text-anchor") == "end"]
    first = next(text for text in texts if text.text == queries[0])
    top = float(first.attrib["y"]) - 0.7 * TOKEN_ROW
    for group in root.iter(f"{SVG}g"):
        for path in group.findall(f"{SVG}path"):
            curves = CURVE.findall(path.attrib["d"])
            assert len(curves) == path.attrib["d"].count("M")
            for _, start, _, end in curves:
                query, key = (int((float(y) - top) // TOKEN_ROW) for y in (start, end))
                head = group.findtext(f"{SVG}title") or ""
                yield Line(head, query, key, float(path.attrib["stroke-opacity"]))


def test_every_visible_weight_is_a_line() -> None:
    weights = make_weights(3, 5, 7)
    queries, keys = list("abcde"), list("tuvwxyz")
    root = parse_page(render_heads_svg("Model", "layer 0", weights, queries, keys, [0, 4, 9]))
    lines = {(line.head, line.query, line.key): line.opacity for line in list_lines(root, queries)}
    expected = {
        (f"head {head}", query, key): float(weights[lane, query, key])
        for lane, head in enumerate([0, 4, 9])
        for query in range(5)
        for key in range(7)
        if weights[lane, query, key] >= MIN_LINE_WEIGHT
    }
    assert 0 < len(expected) < weights.numel()
    assert lines == pytest.approx(expected, abs=0.00501)
    texts = list_page_texts(root)
    assert {"Model", "layer 0", "queries", "keys", "heads", "0", "4", "9", *queries, *keys} <= {
        *texts
    }


def test_a_line_has_the_color_of_its_head() -> None:
    root = parse_page(
        render_heads_svg("x", "", make_weights(2, 2, 2), ["a", "b"], ["c", "d"], [2, 19])
    )
    light, dark = (root.findtext(f"{SVG}style") or "").split("@media")
    assert ".heads .h2 { fill: #3c2593; stroke: #3c2593 }" in light
    assert ".heads .h3 { fill: #a84700; stroke: #a84700 }" in light
    assert ".heads .h3 { fill: #fc935d; stroke: #fc935d }" in dark
    groups = {group.get("class"): group.findtext(f"{SVG}title") for group in root.iter(f"{SVG}g")}
    assert groups["h2"] == "head 2"
    assert groups["h3"] == "head 19"
    assert [swatch.get("class") for swatch in root.iter(f"{SVG}rect")] == ["page", "h2", "h3"]


def test_a_focused_query_has_the_only_lines() -> None:
    weights = make_weights(2, 4, 4)
    weights[1, 2] = torch.tensor([0.004, 0.25, 0.25, 0.496])
    tokens = ["the", "cat", "sat", "down"]
    root = parse_page(render_heads_svg("x", "", weights, tokens, tokens, [0, 1], focus=2))
    lines = list(list_lines(root, tokens))
    assert {line.query for line in lines} == {2}
    assert len(lines) == int((weights[:, 2] >= MIN_LINE_WEIGHT).sum())
    assert list_page_texts(root, "strong") == ["sat"]
    assert list_page_texts(root, "faded") == ["the", "cat", "down"]
    means = [f"{mean:.2f}" for mean in weights[:, 2].mean(0).tolist()]
    assert [
        text for text in list_page_texts(root, "small") if "." in text and len(text) < 6
    ] == means
    (_, group) = list_elements(root, "g", "h1")
    opacities = [float(cell.attrib["fill-opacity"]) for cell in group.iter(f"{SVG}rect")]
    assert opacities == pytest.approx([0.25, 0.25, 0.496], abs=0.005)  # 0.004 is not visible
    assert (root.findtext(f"{SVG}desc") or "").startswith("sat → ")


def test_tokens_may_be_any_text() -> None:
    size = len(ODD_TOKENS)
    root = parse_page(
        render_heads_svg("x", "", make_weights(1, size, size), ODD_TOKENS, ODD_TOKENS, [0])
    )
    texts = list_page_texts(root)
    for label in (
        "</script>",
        "a&b<c>\"'",
        "⏎",
        "␀␇",
        "⟨202E⟩evil",
        "\u2068مرحبا!\u2069",
        "東京",
        "∅",
    ):
        assert texts.count(label) == 2
    assert "x" * 31 + "…" in texts


def test_one_token() -> None:
    root = parse_page(render_heads_svg("x", "", torch.ones(1, 1, 1), ["a"], ["b"], [5]))
    assert list(list_lines(root, ["a"])) == [Line("head 5", 0, 0, 1.0)]
    assert root.findtext(f"{SVG}desc") == "a → b 1.00 (head 5)"


def test_a_row_without_weights_has_no_lines() -> None:
    weights = torch.full((1, 1, 2), float("nan"), dtype=torch.bfloat16)
    root = parse_page(render_heads_svg("x", "", weights, ["a"], ["b", "c"], [0]))
    assert list(list_lines(root, ["a"])) == []


def test_shapes_are_checked() -> None:
    with pytest.raises(
        ValueError, match=r"shape \(1, 1, 1\), expected heads 2 × queries 1 × keys 1"
    ):
        render_heads_svg("x", "", torch.ones(1, 1, 1), ["a"], ["b"], [0, 1])
    with pytest.raises(ValueError, match="focus 1, expected a query from 0 to 0"):
        render_heads_svg("x", "", torch.ones(1, 1, 1), ["a"], ["b"], [0], focus=1)
