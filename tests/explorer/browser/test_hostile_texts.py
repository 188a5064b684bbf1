"""Hostile texts are shown as text and run nothing: in every view, in the address, in a saved page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from qkv.explorer.explorer import Explorer
from qkv.explorer.inputs.trace_inputs import UserInput
from qkv.explorer.view import View
from qkv.explorer.view_settings import ViewSettings
from tests.explorer.browser.conftest import OpenPage
from tests.explorer.browser.explorer_page import ExplorerPage
from tests.explorer.browser.hostile import ELEMENTS, HACK, INSPECT, LONE_SURROGATES, TEXTS
from tests.explorer.browser.models import load_model, name_model
from tests.explorer.browser.site import Site

NAME = f'"><img src=x onerror={HACK}></title></script>'
# Tokens of their own; the others are split into bytes or characters.
TOKENS = tuple(text for text in TEXTS if text.strip() == text and len(text) <= 300)
SHORT = [text for text in TOKENS if text.isascii() and text.isprintable() and len(text) <= 48]
# Characters that would be invisible, or change the order of the text around them.
CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2065\ufeff]")
LISTS = ".tokens .token"
# Scroll through the head view and return the tokens of its lists.
SCROLL = """async () => {
    const stage = document.querySelector(".head-stage");
    const tokens = new Set();
    for (let top = 0; top < stage.scrollHeight; top += stage.clientHeight) {
        stage.scrollTop = top;
        for (let frame = 0; frame < 3; frame++) await new Promise(requestAnimationFrame);
        for (const token of stage.querySelectorAll(".token")) tokens.add(token.textContent);
    }
    return [...tokens];
}"""


def assert_harmless(page: ExplorerPage) -> None:
    """Assert that the page has no element that a text brought, and that nothing of a text has run."""
    content: dict[str, Any] = page.evaluate(INSPECT)
    assert content["hacked"] is None
    assert {*content["names"]} <= ELEMENTS
    assert content["scripts"] == 2
    assert content["styles"] == 2
    assert content["handlers"] == content["links"] == 0
    assert all(source.startswith(("data:image/png", "blob:")) for source in content["images"])
    assert page.pop_problems() == []


def visit_views(page: ExplorerPage) -> set[str]:
    """Open every view, point at what it shows, and return the tokens of the lists."""
    tokens: set[str] = set()
    for view in page.views:
        page.choose_view(view)
        if view == "head":
            tokens |= {*page.evaluate(SCROLL)}
            page.find(".tokens.query").focus()
            for key in ["Home", *["PageDown"] * 8, "ArrowRight", "End"]:
                page.press(key)
                assert not CONTROLS.search(page.status)
        elif view in ("matrix", "compare"):
            page.find(".matrix-canvas").first.focus()
            page.press("ArrowDown", *["ArrowRight"] * 4, *["+"] * 12)
        elif view == "neuron":
            page.find(".neuron-keys .tokens").focus()
            page.press("End", "PageUp")
        elif view == "alignment":
            page.hover(".words.target >> span >> nth=1")
        elif view == "generation":
            page.page.get_by_role("button", name="Step", exact=True).click()
        assert_harmless(page.wait())
    return tokens


def explore(site: Site, family: str, user_input: UserInput, type_name: str = "byte") -> str:
    model = load_model(family, TOKENS, type_name)
    explorer = Explorer(name_model(model, NAME))
    return site.add(f"hostile-{family}-{type_name}", explorer, user_input)


def test_there_are_a_hundred_texts() -> None:
    assert len({*TEXTS}) == len(TEXTS) > 120
    assert len(TOKENS) > 100
    assert len(SHORT) > 60


def test_a_text_of_hostile_tokens(open_page: OpenPage, site: Site) -> None:
    page = open_page(explore(site, "gpt2", UserInput(text=" ".join(TOKENS))))
    assert page.text("h1") == NAME
    assert page.page.title() == f"{NAME} · attention explorer"
    tokens = visit_views(page)
    assert {*SHORT} <= tokens
    assert not [token for token in tokens if CONTROLS.search(token)]
    assert max(map(len, tokens)) <= 60


def test_a_pair_of_hostile_texts(open_page: OpenPage, site: Site) -> None:
    page = open_page(explore(site, "bert", UserInput(text="a", text_pair="b")))
    page.field("text_pair").fill(" ".join(TOKENS[60:]))
    page.submit(" ".join(TOKENS[:60]))
    assert page.error == ""
    assert {*SHORT} <= visit_views(page)


def test_a_hostile_source_and_target(open_page: OpenPage, site: Site) -> None:
    user_input = UserInput(text=" ".join(TOKENS[:60]), target=" ".join(TOKENS[60:]))
    page = open_page(explore(site, "transformer", user_input))
    visit_views(page)
    page.choose_view("alignment")
    words = {*page.texts(".words span")}
    assert {text for text in SHORT if len(text) <= 32 and " " not in text} <= words
    svg = page.download("Picture as SVG").read_text(encoding="utf-8")
    assert "<script" not in svg
    assert "onerror=window" in svg.replace("&quot;", '"')  # as text


def test_hostile_characters_are_visible(open_page: OpenPage, site: Site) -> None:
    page = open_page(explore(site, "bert", UserInput(text="a"), "char"))
    texts = [text for text in TEXTS if not text.isascii() or not text.isprintable()]
    page.page.get_by_label("Text", exact=True).first.evaluate(
        "(field, text) => { field.value = text }", " ".join(texts)[:400]
    )
    page.field().press("Enter")
    tokens = visit_views(page.wait())
    assert not [token for token in tokens if CONTROLS.search(token)]
    assert {"⟨202E⟩", "⟨2028⟩", "⟨200B⟩"} <= tokens
    assert "no such token" not in tokens


def test_strange_texts_are_answered(open_page: OpenPage, site: Site) -> None:
    page = open_page(site.explore("gpt2"))
    for script in (
        LONE_SURROGATES,
        "'A'.repeat(10000)",
        "'\\0'",
        "'👍🏽'.repeat(30)",
        "'\\n\\t a'",
    ):
        page.field().evaluate(f"field => {{ field.value = {script} }}")
        page.field().press("Enter")
        page.wait()
        assert page.error == "", script
        assert page.find(".tokens.query li").count() > 0
        assert_harmless(page)


def test_hostile_addresses(open_page: OpenPage, site: Site) -> None:
    page = open_page(site.explore("gpt2"))
    fields = [name for name in page.get_state() if name not in ("text", "pair", "target", "image")]
    for start in range(0, 3 * len(TEXTS), len(fields)):
        texts = [TEXTS[(start + i) % len(TEXTS)] for i in range(len(fields))]
        hash_text = urlencode(dict(zip(fields, texts, strict=True)))
        page.evaluate("hash => { location.hash = hash }", hash_text)
        page.wait()
    assert_harmless(page)
    for view in page.views:
        values = dict.fromkeys(fields, "</script>") | {"view": view}
        page.evaluate("hash => { location.hash = hash }", urlencode(values))
        page.wait_until(f"qkvExplorer.state.view === '{view}'")
        assert page.error == ""
        assert_harmless(page)
    inputs = urlencode({"text": " ".join(TEXTS)[:300], "pair": " ".join(TEXTS[9:])[:300]})
    page = open_page(f"{site.explore('bert')}#{inputs}")
    assert page.field().input_value() == " ".join(TEXTS)[:300]
    assert page.texts(LISTS)[1:3] == ["<", "s"]
    assert_harmless(page)


def test_numbers_out_of_range_in_the_address(open_page: OpenPage, site: Site) -> None:
    page = open_page(site.explore("gpt2"))
    for values in ("-1", "99999999", "1e999", "0-99999999", "NaN", "1,2,3,4,5"):
        names = "heads head focus top zoom at beams crossHead stepHead otherHead".split()
        for view in ("head", "matrix", "neuron"):
            hash_text = urlencode({"view": view, **dict.fromkeys(names, values)})
            page.evaluate("hash => { location.hash = hash }", hash_text)
            page.wait_until(f"qkvExplorer.state.view === '{view}'")
            assert page.error == "", (view, values)
    page.choose_view("matrix")
    assert page.count_colors(".matrix-canvas") > 5


def test_a_saved_page_of_hostile_tokens(open_page: OpenPage, site: Site, tmp_path: Path) -> None:
    model = load_model("transformer", TOKENS)
    user_input = UserInput(text=" ".join(TOKENS[:60]), target=" ".join(TOKENS[60:]))
    html = View(name_model(model, NAME), user_input, None, ViewSettings()).html()
    path = tmp_path / "saved.html"
    path.write_text(html, encoding="utf-8")
    page = open_page(path.as_uri())
    assert page.text("h1") == NAME
    assert page.text(".texts p >> nth=0").startswith("<script>window.hacked=1</script>")
    page.choose_view("head")
    assert {text for text in TOKENS[:60] if text in SHORT} <= {*page.evaluate(SCROLL)}
    for view in page.views:
        page.choose_view(view)
        assert_harmless(page)
