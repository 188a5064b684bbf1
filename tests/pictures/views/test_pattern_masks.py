"""Masks as grids and position biases as curves."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from qkv.pictures.views.pattern_masks import MASK_NAME_LINES, find_runs, render_pattern_masks_svg
from tests.pictures.pages import SVG, list_elements, list_page_texts, parse_page

RUN = re.compile(r"M(\d+) (\d+)h(\d+)v(\d+)h-(\d+)z")
POINT = re.compile(r"[ML](-?[\d.]+) (-?[\d.]+)")


def read_mask(root: ET.Element, index: int, shape: tuple[int, int]) -> Tensor:
    """Return which cells are filled."""
    path = list_elements(root, "path", "visible")[index].attrib["d"]
    ground = list_elements(root, "rect", "masked")[index]
    cell = float(ground.attrib["height"]) / shape[0]
    assert float(ground.attrib["width"]) / shape[1] == cell
    runs = RUN.findall(path)
    assert len(runs) == path.count("M")
    mask = torch.zeros(shape, dtype=torch.bool)
    for run in runs:
        x, y, width, height, back = map(float, run)
        assert (height, back) == (cell, width)
        mask[int(y / cell), int(x / cell) : int((x + width) / cell)] = True
    return mask


@pytest.mark.parametrize("shape", [(1, 1), (8, 8), (3, 12), (48, 96), (300, 300)])
def test_filled_cells_are_visible_pairs(shape: tuple[int, int]) -> None:
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(0)) > 0.4
    root = parse_page(render_pattern_masks_svg("Patterns", "two", [("random", mask)]))
    assert torch.equal(read_mask(root, 0, shape), mask)
    assert {"Patterns", "two", "random"} <= {*list_page_texts(root)}
    count = f"{int(mask.sum()):,} of {mask.numel():,} pairs are visible"
    assert root.findtext(f"{SVG}desc") == f"two; random: {count}"
    assert len(list_elements(root, "path", "gap")) == (max(shape) <= 64)


def test_an_empty_mask_has_no_filled_cells() -> None:
    root = parse_page(render_pattern_masks_svg("x", "", [("none", torch.zeros(4, 4))]))
    assert list_elements(root, "path", "visible")[0].attrib["d"] == ""


def test_runs() -> None:
    assert find_runs([True, True, False, True]) == [(0, 2), (3, 1)]
    assert find_runs([False]) == find_runs([]) == []


def test_masks_are_wrapped_into_rows_with_their_names() -> None:
    names = [f"mask {i}" for i in range(5)] + ["</g>\u202e " + "word " * 100]
    root = parse_page(
        render_pattern_masks_svg("x", "", [(name, torch.ones(4, 4)) for name in names])
    )
    places = [
        tuple(map(float, group.attrib["transform"][10:-1].split()))
        for group in root.iter(f"{SVG}g")
        if group.find(f"{SVG}rect") is not None
    ]
    assert len({*places}) == 6
    assert [y for _, y in places[:4]] == [0] * 4
    assert places[4][1] == places[5][1] > 0
    texts = list_page_texts(root, "small")
    assert {*names[:5]} <= {*texts}
    assert sum("word" in text for text in texts) == MASK_NAME_LINES
    assert any(text.startswith("</g>⟨202E⟩ word") for text in texts)


def read_curves(root: ET.Element) -> list[list[tuple[float, float]]]:
    return [
        [(float(x), float(y)) for x, y in POINT.findall(path.attrib["d"])]
        for path in list_elements(root, "path", "curve")
    ]


def test_a_curve_for_each_head() -> None:
    distances = [-2, -1, 0, 1]
    bias = torch.tensor([[0.0, 1.0, 2.0, 4.0], [-4.0, 0.0, 0.0, -2.0]])
    root = parse_page(
        render_pattern_masks_svg("x", "", [], [("T5 bias, layer 0", distances, bias)])
    )
    first, second = read_curves(root)
    assert len(first) == len(second) == 4
    xs, ys = zip(*first, strict=True)
    steps = [after - before for before, after in pairwise(xs)]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.11)
    unit = ys[0] - ys[1]  # of the bias 1, upwards
    assert unit > 0
    values = [(ys[0] - y) / unit for _, y in (*first, *second)]
    assert values == pytest.approx(bias.flatten().tolist(), abs=0.02)
    classes = [path.attrib["class"] for path in list_elements(root, "path", "curve")]
    assert classes == ["curve h0", "curve h1"]
    assert [path.findtext(f"{SVG}title") for path in list_elements(root, "path", "curve")] == [
        "head 0", "head 1",
    ]  # fmt: skip
    numbers = {text.text: float(text.attrib["y"]) for text in list_elements(root, "text", "number")}
    assert numbers["0"] < numbers["1"]
    assert root.findtext(f"{SVG}desc") == "T5 bias, layer 0: 2 heads, bias from -4 to 4"
    style = root.findtext(f"{SVG}style") or ""
    assert ".masks .curve.h1 { stroke: #76031a }" in style
    assert ".masks .number.h1 { fill: #da404d }" in style.split("@media")[1]


def test_a_curve_is_interrupted_where_the_bias_is_not_finite() -> None:
    bias = torch.tensor([[float("-inf"), 1.0, float("nan"), 2.0, 3.0]])
    root = parse_page(render_pattern_masks_svg("x", "", [], [("bias", [0, 1, 2, 3, 4], bias)]))
    (path,) = list_elements(root, "path", "curve")
    assert re.sub(r"[^ML]", "", path.attrib["d"]) == "MML"


def test_numbers_of_many_heads_do_not_overlap() -> None:
    bias = torch.zeros(40, 3)
    root = parse_page(render_pattern_masks_svg("x", "", [], [("bias", [0, 1, 2], bias)]))
    heights = sorted(float(text.attrib["y"]) for text in list_elements(root, "text", "number"))
    assert len(heights) == 40
    assert min(b - a for a, b in pairwise(heights)) >= 11.5
    assert heights[-1] < float(root.attrib["height"])


def test_one_distance() -> None:
    root = parse_page(render_pattern_masks_svg("x", "", [], [("bias", [0], torch.zeros(1, 1))]))
    (points,) = read_curves(root)
    assert len(points) == 1


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="no masks and no curves"):
        render_pattern_masks_svg("x", "", [])
    with pytest.raises(ValueError, match=r"mask a of shape \(3,\), expected queries"):
        render_pattern_masks_svg("x", "", [("a", torch.ones(3))])
    with pytest.raises(
        ValueError, match=r"bias b of shape \(1, 2\), expected heads .* distances 3"
    ):
        render_pattern_masks_svg("x", "", [], [("b", [0, 1, 2], torch.ones(1, 2))])
