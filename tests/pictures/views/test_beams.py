"""Beam search as a tree: boxes of hypotheses, links to their parents, the path of the result."""

import re
import xml.etree.ElementTree as ET

import pytest

from qkv.pictures.drawing.svg import measure_label
from qkv.pictures.views.beams import (
    BEAM_GAP,
    BEAM_HEIGHT,
    BEAM_WIDTH,
    BeamHypothesis,
    render_beams_svg,
)
from tests.pictures.pages import ODD_TOKENS, SVG, list_elements, list_page_texts, parse_page

STEPS = [
    [
        BeamHypothesis("The", -1, -0.4, is_kept=True, is_finished=False),
        BeamHypothesis("A", -1, -1.25, is_kept=True, is_finished=False),
    ],
    [
        BeamHypothesis("dog", 1, -0.9, is_kept=True, is_finished=False),
        BeamHypothesis("cat", 0, -1.9, is_kept=True, is_finished=False),
        BeamHypothesis("</s>", 1, -4.5, is_kept=False, is_finished=False),
    ],
    [BeamHypothesis("</s>", 0, -1.0, is_kept=True, is_finished=True)],
]
BEST = [1, 0, 0]
LEGEND_BOXES = 3


def list_boxes(root: ET.Element) -> dict[str, ET.Element]:
    """Return the boxes by their titles."""
    return {
        title: list_elements(group, "rect", "beam")[0]
        for group in root.iter(f"{SVG}g")
        if (title := group.findtext(f"{SVG}title"))
    }


def test_every_hypothesis_is_a_box_in_the_column_of_its_step() -> None:
    root = parse_page(render_beams_svg("Beams", "result", STEPS, BEST))
    boxes = list_boxes(root)
    assert [*boxes] == [
        "The: log p −0.40, kept",
        "A: log p −1.25, kept",
        "dog: log p −0.90, kept",
        "cat: log p −1.90, kept",
        "</s>: log p −4.50, dropped",
        "</s>: log p −1.00, kept, finished",
    ]
    columns = [float(box.attrib["x"]) for box in boxes.values()]
    assert columns[0] == columns[1] < columns[2] == columns[3] == columns[4] < columns[5]
    classes = [box.attrib["class"] for box in boxes.values()]
    assert classes == ["beam", "beam best", "beam best", "beam", "beam pruned", "beam best"]
    texts = list_page_texts(root)
    assert {"step 1", "step 2", "step 3", "log p −1.25"} <= {*texts}
    assert list_page_texts(root, "strong") == ["A", "dog", "</s>"]
    assert len(list_elements(root, "rect", "finished")) == 1 + 1  # and the legend
    assert root.findtext(f"{SVG}desc") == (
        "result; beam search of 3 steps: A −1.25; dog −0.90; </s> −1.00"
    )


def test_links_join_hypotheses_to_their_parents() -> None:
    root = parse_page(render_beams_svg("x", "", STEPS, BEST))
    boxes = list(list_boxes(root).values())
    links = list_elements(root, "path", "link")
    ends = {}
    for link in links:
        numbers = [float(number) for number in re.findall(r"-?[\d.]+", link.attrib["d"])]
        x1, y1, *_, x2, y2 = numbers
        start = find_box(boxes, x1 - BEAM_WIDTH, y1)
        end = find_box(boxes, x2, y2)
        ends[start, end] = link.attrib["class"]
    assert ends == {
        (1, 2): "link best",
        (0, 3): "link",
        (1, 4): "link pruned",
        (2, 5): "link best",
    }
    assert [link.attrib["class"] for link in links[-2:]] == ["link best"] * 2  # above the others


def find_box(boxes: list[ET.Element], x: float, y: float) -> int:
    """Return the index of the box whose left edge is at x and whose middle is at y."""
    (index,) = [
        index
        for index, box in enumerate(boxes)
        if float(box.attrib["x"]) == x and float(box.attrib["y"]) + BEAM_HEIGHT / 2 == y
    ]
    return index


def test_tokens_fit_their_boxes() -> None:
    tokens = [BeamHypothesis(token, -1, -1.0, True, True) for token in ODD_TOKENS]
    root = parse_page(render_beams_svg("x", "", [tokens], [0]))
    boxes = list_elements(root, "rect", "beam")[:-LEGEND_BOXES]
    assert len(boxes) == len(ODD_TOKENS)
    tops = [float(box.attrib["y"]) for box in boxes]
    assert tops == [tops[0] + i * (BEAM_HEIGHT + BEAM_GAP) for i in range(len(tops))]
    labels = [
        texts[0].text or ""
        for group in root.iter(f"{SVG}g")
        if group.find(f"{SVG}title") is not None and (texts := group.findall(f"{SVG}text"))
    ]
    assert {"</script>", "⏎", "⟨202E⟩evil", "∅"} <= {*labels}
    assert max(map(measure_label, labels)) <= BEAM_WIDTH - 20


def test_the_result_may_end_before_the_search() -> None:
    root = parse_page(render_beams_svg("x", "", STEPS, [0]))
    assert list_page_texts(root, "strong") == ["The"]
    assert not [
        link for link in list_elements(root, "path", "link") if "best" in link.attrib["class"]
    ]


def test_indices_are_checked() -> None:
    with pytest.raises(ValueError, match="0 steps"):
        render_beams_svg("x", "", [], [])
    with pytest.raises(
        ValueError, match="best hypothesis 3 of step 1, expected an index from 0 to 2"
    ):
        render_beams_svg("x", "", STEPS, [0, 3])
    orphan = STEPS[0][0]._replace(parent=0)
    with pytest.raises(ValueError, match="step 0: parent 0"):
        render_beams_svg("x", "", [[orphan]], [0])
