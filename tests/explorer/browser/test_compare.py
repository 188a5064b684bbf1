"""The view of two models: what they share, and what its address restores."""

from __future__ import annotations

import re

from qkv.explorer.explorer import Explorer
from qkv.explorer.inputs.trace_inputs import UserInput
from tests.explorer.browser.conftest import OpenPage
from tests.explorer.browser.explorer_page import ExplorerPage
from tests.explorer.browser.models import TEXT, load_model, name_model
from tests.explorer.browser.site import Site

LAYER = "decoder.layers.{}.attention"


def list_pictures(page: ExplorerPage) -> list[str]:
    """Return the pixels of both heat maps."""
    return page.find(".matrix-canvas").evaluate_all("list => list.map(x => x.toDataURL())")


def wait_for_weights(page: ExplorerPage, count: int = 2) -> list[str]:
    """Return the status lines once this number of them has a weight."""
    page.wait_until(
        "[...document.querySelectorAll('.columns .status')]"
        f".filter(({{ textContent }}) => textContent.includes(': weight')).length === {count}"
    )
    return page.texts(".columns .status")


def list_layers(page: ExplorerPage) -> list[str]:
    selects = page.find('.columns label:has(> span:text-is("Layer")) select')
    return selects.evaluate_all("list => list.map(select => select.value)")


def explore_different_tokens(site: Site) -> str:
    """Serve two models, the second with a token for each character."""
    models = [
        name_model(load_model("gpt2"), "words"),
        name_model(load_model("gpt2", type_name="char"), "characters"),
    ]
    return site.add("different-tokens", Explorer(*models), UserInput(text=TEXT), view="compare")


def test_a_link_restores_the_comparison(open_page: OpenPage, site: Site) -> None:
    page = open_page(site.explore("gpt2", other="sparse"))
    page.choose_view("compare")
    page.find(".matrix-canvas").first.focus()
    page.press("+", "+", "+", "ArrowDown", "ArrowDown", "ArrowRight", "]")
    status = wait_for_weights(page)
    state = page.get_state()
    assert re.fullmatch(r"q\d+k\d+", state["focus"])
    assert len(state["zoom"]) == 3
    other = open_page(page.get_link())
    assert other.view == "compare"
    assert wait_for_weights(other) == status
    assert other.get_state() == state
    assert list_pictures(other) == list_pictures(page)
    page.page.reload()
    page.wait()
    assert wait_for_weights(page) == status
    assert list_pictures(page) == list_pictures(other)


def test_keys_change_the_layer_of_both_models(open_page: OpenPage, site: Site) -> None:
    page = open_page(site.explore("gpt2", other="sparse"))
    page.choose_view("compare")
    for key, layer in {"]": 1, "[": 0}.items():
        page.press(key)
        assert list_layers(page) == [LAYER.format(layer)] * 2
    titles = page.texts(".columns .status")
    assert all("layer 0" in title for title in titles)


def test_models_of_the_same_tokens_share_cell_and_zoom(open_page: OpenPage, site: Site) -> None:
    page = open_page(f"{site.explore('gpt2', other='sparse')}#view=compare&focus=q3k2")
    first = wait_for_weights(page)
    assert all("\u2069 → " in text for text in first)
    before = list_pictures(page)
    page.find(".matrix-canvas").last.hover(position={"x": 200, "y": 200})  # the cell is kept
    page.wait()
    assert page.texts(".columns .status") == first
    page.find(".matrix-canvas").last.focus()
    page.press("+", "+")
    assert all(x != y for x, y in zip(before, list_pictures(page), strict=True))
    assert page.get_state()["otherZoom"] is None
    page.press("0")
    assert page.get_state()["zoom"] is None
    assert list_pictures(page) == before
    page.press("Escape")
    assert page.get_state()["focus"] == ""
    assert all(text.endswith("head 0") for text in page.texts(".columns .status"))


def test_models_of_different_tokens_have_their_own(open_page: OpenPage, site: Site) -> None:
    page = open_page(explore_different_tokens(site))
    for canvas, count, keys in (
        (0, 1, ["ArrowDown"] * 3),
        (1, 2, ["+", "ArrowDown", "ArrowRight"]),
    ):
        page.find(".matrix-canvas").nth(canvas).focus()
        page.press(*keys)
        status = wait_for_weights(page, count)
    state = page.get_state()
    assert state["focus"] == "q2k0"
    assert state["otherFocus"] != state["focus"]
    assert state["zoom"] is None
    assert len(state["otherZoom"]) == 3
    other = open_page(page.get_link())
    assert wait_for_weights(other) == status
    assert list_pictures(other) == list_pictures(page)
    other.submit("Run, rabbit run.")
    state = other.get_state()
    assert [state[name] for name in ("focus", "otherFocus", "zoom", "otherZoom")] == [
        "",
        "",
        None,
        None,
    ]


def check_failure(page: ExplorerPage, name: str, message: str, working: str) -> None:
    """The panel of a model has the reason in place of weights, and the other one works."""
    assert {*page.texts(".columns h2")} == {name, working}
    failed, working_panel = (
        page.find(f'.columns section[aria-label="{x}"]') for x in (name, working)
    )
    reason = failed.locator("[role=alert]")
    assert reason.is_visible()
    assert message in reason.inner_text()
    assert failed.locator("canvas").count() == 0
    working_panel.locator(".matrix-canvas").focus()
    page.press("ArrowDown", "ArrowDown")
    assert ": weight" in wait_for_weights(page, 1)[0]
    assert working_panel.locator(".status").inner_text().count(": weight") == 1


def test_the_other_model_does_not_read_the_input(open_page: OpenPage, site: Site) -> None:
    page = open_page(site.explore("bert", other="vit"))
    page.choose_view("compare")
    check_failure(page, "vit", "no image is given", working="bert")
    assert page.error == ""  # of the header: the model of the page has read the input
    page.press("]")
    assert list_layers(page) == ["encoder.layers.1.attention"]
    assert len(page.pop_problems()) == 1  # the console has the answer of the server


def test_the_other_model_reads_a_part_of_the_input(open_page: OpenPage, site: Site) -> None:
    """A decoder reads the first text of a pair."""
    page = open_page(site.explore("bert", other="gpt2"))
    page.choose_view("compare")
    assert page.find(".columns [role=alert]").count() == 0
    assert page.find(".matrix-canvas").count() == 2


def test_the_main_model_does_not_read_the_input(open_page: OpenPage, site: Site) -> None:
    address = site.explore("gpt2", other="bert")
    page = open_page(f"{address}#view=compare")
    assert page.find(".matrix-canvas").count() == 2
    page.page.goto(f"{address}#view=compare&pair=b")
    page.wait_until("document.querySelector('.columns [role=alert]') !== null")
    check_failure(page, "gpt2", "text_pair: this model", working="bert")
    assert page.error.startswith("text_pair: this model")
    page.pop_problems()
    page.page.goto(f"{address}#view=compare")
    page.wait_until("document.querySelectorAll('.matrix-canvas').length === 2")
    assert page.error == ""
