"""Candidates of generated tokens: bars and numbers before and after the logits processors."""

import xml.etree.ElementTree as ET

import pytest

from qkv.pictures.drawing.svg import measure_label
from qkv.pictures.views.candidates import (
    CANDIDATE_WIDTH,
    MAX_STEP_COLUMNS,
    PROBABILITY_WIDTH,
    CandidateStep,
    TokenCandidate,
    render_candidates_svg,
)
from tests.pictures.pages import ODD_TOKENS, SVG, list_elements, list_page_texts, parse_page

STEPS = [
    CandidateStep("cat", [TokenCandidate("dog", 0.5, 0.75), TokenCandidate("cat", 0.25, 0.125)], 1),
    CandidateStep("emu", [TokenCandidate("</s>", 0.0004, 0.0, is_end=True)], None),
]


def list_steps(root: ET.Element) -> list[ET.Element]:
    """Return the groups of the steps, in the order of the file."""
    return [
        group
        for group in root.iter(f"{SVG}g")
        if group.find(f"{SVG}path[@class='rule']") is not None
    ]


def list_widths(group: ET.Element, css_class: str) -> list[float]:
    bars = list_elements(group, "rect", css_class)
    assert {bar.attrib["x"] for bar in bars} <= {str(CANDIDATE_WIDTH)}
    return [float(bar.attrib["width"]) for bar in bars]


def test_bars_are_probabilities_before_and_after() -> None:
    root = parse_page(render_candidates_svg("Generation", "text", STEPS))
    first, second = list_steps(root)
    assert list_widths(first, "before") == [0.5 * PROBABILITY_WIDTH, 0.25 * PROBABILITY_WIDTH]
    assert list_widths(first, "after") == [0.75 * PROBABILITY_WIDTH, 0.125 * PROBABILITY_WIDTH]
    texts = list_page_texts(first)
    assert texts == [
        "1.", "cat", "before", "after", "dog", "0.50", "0.75", "cat", "0.25", "0.12",
    ]  # fmt: skip
    assert {"2.", "emu", "not among the candidates", "</s>", "<0.001", "0.000"} <= {
        *list_page_texts(second)
    }
    titles = [title.text for title in root.iter(f"{SVG}title")][1:]
    assert titles == [
        "dog: 0.50, after the processors 0.75",
        "cat: 0.25, after the processors 0.12, chosen",
        "</s>: <0.001, after the processors 0.000, ends the text",
    ]
    assert root.findtext(f"{SVG}desc") == "text; cat 0.25; emu"


def test_the_chosen_candidate_is_marked() -> None:
    root = parse_page(render_candidates_svg("x", "", STEPS))
    first, second = list_steps(root)
    (mark,) = list_elements(first, "rect", "chosen")
    (chosen,) = [text for text in list_elements(first, "text", "strong") if text.get("x") == "18"]
    assert chosen.text == "cat"
    assert 0 < float(chosen.attrib["y"]) - float(mark.attrib["y"]) < 20
    assert len(list_elements(first, "path", "check")) == 1
    assert not list_elements(second, "rect", "chosen") + list_elements(second, "path", "check")


def test_steps_are_wrapped_into_rows() -> None:
    root = parse_page(render_candidates_svg("x", "", STEPS[:1] * (MAX_STEP_COLUMNS + 2)))
    places = [group.attrib["transform"] for group in list_steps(root)]
    assert len({*places}) == len(places) == MAX_STEP_COLUMNS + 2
    tops = [float(place.removesuffix(")").split()[-1]) for place in places]
    assert tops[:MAX_STEP_COLUMNS] == [0] * MAX_STEP_COLUMNS
    assert tops[MAX_STEP_COLUMNS] == tops[-1] > 42 + 2 * 20


def test_tokens_fit_their_columns() -> None:
    candidates = [TokenCandidate(token, 0.1, 0.1) for token in ODD_TOKENS]
    root = parse_page(
        render_candidates_svg(
            "x", "", [CandidateStep(token, candidates, None) for token in ODD_TOKENS]
        )
    )
    labels = [text.text or "" for text in root.iter(f"{SVG}text") if text.get("x") == "18"]
    assert len(labels) == len(ODD_TOKENS) ** 2
    assert {"</script>", "␀␇", "⟨202E⟩evil", "\u2068مرحبا!\u2069", "∅"} <= {*labels}
    assert max(map(measure_label, labels)) <= CANDIDATE_WIDTH - 18


def test_indices_are_checked() -> None:
    with pytest.raises(ValueError, match="no steps"):
        render_candidates_svg("x", "", [])
    with pytest.raises(ValueError, match="step 0: chosen candidate 2, expected an index of the 2"):
        render_candidates_svg("x", "", [STEPS[0]._replace(chosen=2)])
