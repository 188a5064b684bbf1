"""The head view: pointer and keyboard, heads, layers, the table of the focused token."""

from __future__ import annotations

import pytest
from torch import Tensor

from tests.explorer.browser.conftest import OpenPage
from tests.explorer.browser.explorer_page import ExplorerPage
from tests.explorer.browser.models import TEXT, compute_weights, split_tokens
from tests.explorer.browser.site import Site

PATHS = [f"decoder.layers.{layer}.attention" for layer in range(2)]
ROUNDING = 0.00501
NAME_FOCUSED = """() => {
    const { id, className, tagName } = document.activeElement;
    return id || document.activeElement.getAttribute("aria-label") || className || tagName;
}"""
QUERY, KEY = ".tokens.query li >> nth={}", ".tokens.key li >> nth={}"


@pytest.fixture
def page(open_page: OpenPage, site: Site) -> ExplorerPage:
    return open_page(site.explore("gpt2"))


def assert_shows(page: ExplorerPage, expected: Tensor, queries: bool = False) -> None:
    """Assert that status line and table have the largest of these weights of all tokens."""
    tokens = split_tokens("gpt2", TEXT)
    order = expected.argsort(descending=True, stable=True).tolist()
    status_weights = page.status_weights
    count = min(5, int((expected >= 0.0005).sum()))
    assert [token for token, _ in status_weights] == [tokens[i] for i in order[:count]]
    rows = page.texts(".details tbody tr th")
    assert [row.strip("\u2068\u2069") for row in rows[:count]] == [tokens[i] for i in order[:count]]
    values = [float(text.strip("<")) for text in page.texts(".details tbody tr .weighted")]
    for (_, in_status), in_table, index in zip(status_weights, values, order, strict=False):
        assert abs(in_status - float(expected[index])) < ROUNDING
        assert abs(in_table - float(expected[index])) < ROUNDING
    assert (" ← " if queries else " → ") in page.status


def test_a_query_under_the_pointer(page: ExplorerPage) -> None:
    weights = compute_weights("gpt2")[PATHS[0]]
    for index in (7, 12):
        page.hover(QUERY.format(index))
        assert_shows(page, weights.mean(0)[index])
        assert page.status.startswith(f"\u2068{split_tokens('gpt2', TEXT)[index]}\u2069 → ")
    page.hover("h1")
    assert page.status.startswith("Point at a token")
    assert page.text(".details") == "No token is focused."


def test_a_key_under_the_pointer(page: ExplorerPage) -> None:
    page.hover(KEY.format(3))
    assert_shows(page, compute_weights("gpt2")[PATHS[0]].mean(0)[:, 3], queries=True)
    assert page.text(".details caption").endswith("is attended to by")


def test_a_click_keeps_a_token(page: ExplorerPage) -> None:
    weights = compute_weights("gpt2")[PATHS[0]].mean(0)
    page.hover(QUERY.format(4))
    page.click(QUERY.format(4))
    page.hover("h1")
    assert_shows(page, weights[4])
    page.hover(QUERY.format(9))  # the pointer has precedence
    assert_shows(page, weights[9])
    page.hover("h1")
    assert_shows(page, weights[4])
    page.click(".details tbody button >> nth=1")  # the second key is focused instead
    key = int(weights[4].argsort(descending=True)[1])
    assert_shows(page, weights[:, key], queries=True)
    page.click(KEY.format(key))  # a second click releases it
    page.hover("h1")
    assert page.status.startswith("Point at a token")


def test_heads_are_switched_on_and_off(page: ExplorerPage) -> None:
    weights = compute_weights("gpt2")[PATHS[0]]
    page.click(QUERY.format(10))
    images = {page.find(".head-stage canvas").first.evaluate("canvas => canvas.toDataURL()")}
    page.click(".swatch >> nth=1")
    page.click(".swatch >> nth=3")
    page.hover("h1")
    assert page.texts(".swatch[aria-pressed=true]") == ["0", "2"]
    assert_shows(page, weights[[0, 2]].mean(0)[10])
    assert "mean of heads 0, 2" in page.status
    images.add(page.find(".head-stage canvas").first.evaluate("canvas => canvas.toDataURL()"))
    page.find(".swatch >> nth=3").click(modifiers=["Shift"])
    assert_shows(page.wait(), weights[3, 10])
    assert "head 3" in page.status
    page.find(".swatch >> nth=1").dblclick()
    assert_shows(page.wait(), weights[1, 10])
    images.add(page.find(".head-stage canvas").first.evaluate("canvas => canvas.toDataURL()"))
    assert len(images) == 3
    page.page.get_by_role("button", name="none").click()
    assert page.wait().status.endswith("no head is switched on.")
    page.page.get_by_role("button", name="all").click()
    assert_shows(page.wait(), weights.mean(0)[10])
    assert "mean of 4 heads" in page.status


def test_the_table_names_the_head_of_the_largest_weight(page: ExplorerPage) -> None:
    weights = compute_weights("gpt2")[PATHS[0]][:, 10]
    page.click(QUERY.format(10))
    order = weights.mean(0).argsort(descending=True)
    for row, index in zip(page.texts(".details tbody td:last-child"), order[:3], strict=False):
        head, _, value = row.removeprefix("head ").partition(": ")
        assert int(head) == int(weights[:, index].argmax())
        assert abs(float(value) - float(weights[:, index].max())) < ROUNDING


def test_arrow_keys_move_the_focus(page: ExplorerPage) -> None:
    weights = compute_weights("gpt2")
    page.find(".tokens.query").focus()
    page.press("ArrowDown", "ArrowDown", "ArrowDown")
    assert_shows(page, weights[PATHS[0]].mean(0)[2])
    page.press("End")
    assert_shows(page, weights[PATHS[0]].mean(0)[-1])
    page.press("PageUp", "ArrowUp")
    assert_shows(page, weights[PATHS[0]].mean(0)[-12])
    active = page.find(".tokens.query").get_attribute("aria-activedescendant")
    row = page.find(f"#{active}")
    assert row.get_attribute("aria-selected") == "true"
    assert row.get_attribute("aria-posinset") == str(len(split_tokens("gpt2", TEXT)) - 11)
    page.press("ArrowRight", "Home")  # the other column
    assert_shows(page, weights[PATHS[0]].mean(0)[:, 0], queries=True)
    page.press("Escape")
    assert page.status.startswith("Point at a token")


def test_brackets_change_the_layer(page: ExplorerPage) -> None:
    weights = compute_weights("gpt2")
    page.click(QUERY.format(6))
    page.press("]")
    assert page.select("Layer").input_value() == PATHS[1]
    assert_shows(page, weights[PATHS[1]].mean(0)[6])
    page.press("]")  # there is no third layer
    assert page.select("Layer").input_value() == PATHS[1]
    page.press("[")
    assert page.select("Layer").input_value() == PATHS[0]
    field = page.field()
    field.press("]")  # in a text, it is a character
    assert field.input_value() == f"{TEXT}]"
    assert page.select("Layer").input_value() == PATHS[0]


def test_the_order_of_tab(page: ExplorerPage) -> None:
    names = []
    for _ in range(17):
        page.page.keyboard.press("Tab")
        names.append(page.evaluate(NAME_FOCUSED))
    assert names[0] == "TEXTAREA"
    expected = [
        "run", "tab-head", "head 0", "head 1", "head 2", "head 3", "small", "small", "SUMMARY",
        "What this view shows: Heads", "Queries", "Keys",
    ]  # fmt: skip
    places = [names.index(name) for name in expected]
    assert places == sorted(places)
    assert sum(name.startswith("tab-") for name in names) == 1


def test_arrow_keys_choose_a_tab(page: ExplorerPage) -> None:
    page.find("#tab-head").focus()
    page.press("ArrowRight")
    assert page.view == "model"
    page.press("End")
    assert page.view == "patterns"
    page.press("ArrowRight")
    assert page.view == "head"
    page.press("ArrowLeft", "Home")
    assert page.view == "head"
    assert page.evaluate("document.activeElement.id") == "tab-head"


def test_a_long_text_scrolls(open_page: OpenPage, site: Site) -> None:
    page = open_page(site.explore("gpt2"))
    page.submit(" ".join(["brown fox"] * 11))
    count = page.find(".tokens.query li").first.get_attribute("aria-setsize")
    assert count is not None
    assert page.find(".tokens.query li").count() < int(count)
    page.find(".tokens.query").focus()
    page.press("End")
    assert page.find(".tokens.query li.here").get_attribute("aria-posinset") == count
    box = page.find(".tokens.query li.here").bounding_box()
    stage = page.find(".head-stage").bounding_box()
    assert box is not None
    assert stage is not None
    assert stage["y"] <= box["y"] < stage["y"] + stage["height"]
    page.find(".overview").click(position={"x": 5, "y": 2})
    page.wait()
    assert page.find(".head-stage").evaluate("stage => stage.scrollTop") == 0
