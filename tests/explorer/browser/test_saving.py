"""What the page saves: pictures, word pairs, and links that restore the view; the button Back."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from tests.explorer.browser.conftest import OpenPage
from tests.explorer.browser.models import TARGET, TEXT, compute_weights, load_model, split_tokens
from tests.explorer.browser.site import Site

SVG = "{http://www.w3.org/2000/svg}"


def strip_isolates(text: str | None) -> str:
    return (text or "").strip("\u2068\u2069")


def test_pictures_are_svg(open_page: OpenPage, site: Site) -> None:
    page = open_page(site.explore("transformer"))
    source, target = split_tokens("transformer", TEXT), split_tokens("transformer", TARGET)
    cells = {"matrix": len(source) ** 2, "alignment": 10 * 4}
    for view in ("head", "matrix", "alignment", "beams"):
        page.choose_view(view)
        root = ET.parse(page.download("Picture as SVG")).getroot()
        assert root.tag == f"{SVG}svg"
        texts = [strip_isolates(element.text) for element in root.iter(f"{SVG}text")]
        if view in cells:
            assert len([*root.iter(f"{SVG}rect")]) == cells[view] + 1  # and the background
        if view in ("head", "matrix"):
            assert {*source} <= {*texts}
        if view == "alignment":
            assert {"The", "quick", "lazy", *TARGET.split()} <= {*texts}
    assert len(target) > 4


def test_word_pairs_in_pharaoh_format(open_page: OpenPage, site: Site) -> None:
    page = open_page(site.explore("builtin:translate"))
    page.choose_view("alignment")
    sides = {}
    for side in ("source", "target"):
        sides[side] = page.texts(f".words.{side} span")
    pairs = [
        tuple(map(int, pair.split("-")))
        for pair in page.download("Word pairs (Pharaoh)").read_text().split()
    ]
    assert len(pairs) == len(sides["target"])
    words = {(sides["source"][i], sides["target"][j]) for i, j in pairs}
    assert {("Katze", "cat"), ("sitzt", "sitting"), (".", ".")} <= words


def test_a_link_restores_the_view(open_page: OpenPage, site: Site) -> None:
    page = open_page(site.explore("gpt2"))
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.submit("Don't say it isn't so")
    page.choose_view("matrix")
    page.choose("Layer", "decoder.layers.1.attention")
    page.choose("Head", "2")
    page.choose("Colors", "linear")
    page.find(".matrix-canvas").focus()
    page.press("+", "+", "+", "ArrowDown", "ArrowDown", "ArrowRight")
    page.page.click("summary")
    page.page.get_by_role("button", name="Copy link").click()
    page.page.wait_for_selector("text=Link copied.")
    link = page.evaluate("navigator.clipboard.readText()")
    assert link == page.page.url
    other = open_page(link)
    assert other.view == "matrix"
    assert other.select("Layer").input_value() == "decoder.layers.1.attention"
    assert other.select("Head").input_value() == "2"
    assert other.field().input_value() == "Don't say it isn't so"
    other.wait_until("document.querySelector('.status').textContent.includes('weight')")
    assert other.status == page.status
    state = page.get_state()
    assert other.get_state() == state
    assert len(state["zoom"]) == 3
    pictures = [
        one.find(".matrix-canvas").evaluate("canvas => canvas.toDataURL()") for one in (page, other)
    ]
    assert pictures[0] == pictures[1]


def test_the_address_has_the_state(open_page: OpenPage, site: Site) -> None:
    address = site.explore("gpt2")
    page = open_page(f"{address}#view=head&path=decoder.layers.1.attention&heads=0,2-3&focus=q4")
    assert page.view == "head"
    assert page.texts(".swatch[aria-pressed=true]") == ["0", "2", "3"]
    weights = compute_weights("gpt2")["decoder.layers.1.attention"][[0, 2, 3], 4].mean(0)
    assert abs(page.status_weights[0][1] - float(weights.max())) < 0.00501
    page.page.goto(f"{address}#view=generation&ids=70,80&at=1&settings=top_k%3D5")
    page.wait_until("qkvExplorer.state.view === 'generation'")
    tokenizer = load_model("gpt2").tokenizer
    assert tokenizer is not None
    assert page.texts(".chip") == [tokenizer.decode([70])]
    assert page.page.get_by_label("top-k").input_value() == "5"
    page.page.goto(f"{address}#view=beams&beams=2")
    page.wait_until("qkvExplorer.state.view === 'beams'")
    assert page.page.get_by_label("Beams").input_value() == "2"


def test_a_link_keeps_the_key_of_the_neurons(open_page: OpenPage, site: Site) -> None:
    address = site.explore("gpt2")
    page = open_page(f"{address}#view=neuron&focus=q4")
    page.find(".neuron-keys li").nth(2).click()
    sentence = page.status
    assert sentence.startswith("\u2068") and "weight" in sentence  # noqa: PT018
    page.wait_until("location.hash.includes('key=2')")
    other = open_page(page.page.url)
    assert other.status == sentence


def test_a_link_keeps_what_a_click_on_a_thumbnail_opens(open_page: OpenPage, site: Site) -> None:
    page = open_page(f"{site.explore('gpt2')}#view=model")
    page.choose("A click opens", "matrix")
    other = open_page(page.get_link())
    assert other.select("A click opens").input_value() == "matrix"
    other.click(".thumbnail >> nth=6")
    assert other.view == "matrix"
    other.choose_view("model")
    assert other.select("A click opens").input_value() == "matrix"


def test_the_matrix_keeps_the_token_of_other_views(open_page: OpenPage, site: Site) -> None:
    page = open_page(f"{site.explore('gpt2')}#view=head&focus=q4")
    page.choose_view("matrix")
    assert "(query 4) → " in page.status
    assert page.get_state()["focus"] == "q4k4"
    page.find(".matrix-canvas").hover()
    assert page.get_state()["focus"] == "q4k4"
    page.choose_view("head")
    assert page.find(".tokens.query li.here").get_attribute("data-index") == "4"
    page.choose_view("matrix")
    page.find(".matrix-canvas").focus()
    page.press("Escape")
    assert page.get_state()["focus"] == ""


def test_back_returns_to_the_view_before(open_page: OpenPage, site: Site) -> None:
    page = open_page(site.explore("gpt2"))
    page.click(".tokens.query li >> nth=3")
    page.choose_view("matrix")
    page.choose("Head", "1")
    page.choose_view("patterns")
    page.page.go_back()
    page.wait_until("qkvExplorer.state.view === 'matrix'")
    assert page.view == "matrix"
    assert page.select("Head").input_value() == "1"
    page.page.go_back()
    page.wait_until("qkvExplorer.state.view === 'head'")
    assert page.find(".tokens.query li.here").get_attribute("data-index") == "3"
    page.page.go_forward()
    page.wait_until("qkvExplorer.state.view === 'matrix'")
    assert page.view == "matrix"


def test_a_reload_keeps_the_state(open_page: OpenPage, site: Site) -> None:
    page = open_page(site.explore("gpt2"))
    page.submit("Run, rabbit run.")
    page.choose_view("matrix")
    page.wait_until("location.hash.includes('view=matrix')")
    page.page.reload()
    page.wait()
    assert page.view == "matrix"
    assert page.field().input_value() == "Run, rabbit run."
