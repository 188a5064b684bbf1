"""Every view in the light and the dark theme on narrow, usual and very wide screens: nothing makes the page
scroll sideways, and axe-core finds no serious violation of the accessibility guidelines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.explorer.browser.conftest import OpenPage
from tests.explorer.browser.explorer_page import ExplorerPage
from tests.explorer.browser.site import Site

SCREENS = {360: 780, 1280: 800, 3840: 2160}
# The rules that axe-core checks; themes differ in their colors alone. None: all.
AUDITED = {(360, "light"): None, (1280, "light"): None, (1280, "dark"): ["color-contrast"]}
# What lies outside of the screen; a part that scrolls may be wider.
OVERFLOW = """() => ({
    page: document.scrollingElement.scrollWidth - innerWidth,
    clipped: [...document.querySelectorAll("button, h1, label > span, figcaption, th, .status")]
        .filter(element => element.getBoundingClientRect().right > innerWidth + 1)
        .filter(element => !element.closest(".tabs, .scroll"))
        .map(element => element.outerHTML.slice(0, 80)),
})"""
SERIOUS = ("serious", "critical")


@pytest.fixture(scope="module")
def axe_script() -> str:
    axe = pytest.importorskip("axe_playwright_python.base", reason="needs axe-playwright-python")
    script: str = axe.AXE_SCRIPT
    return script


def audit(page: ExplorerPage, rules: list[str] | None = None) -> list[str]:
    """Return the serious violations of rules, or of all, that axe-core finds in the page."""
    options: dict[str, Any] = {"resultTypes": ["violations"], "elementRef": False}
    if rules is not None:
        options["runOnly"] = rules
    results: dict[str, Any] = page.evaluate("options => axe.run(document, options)", options)
    return [
        f"{violation['id']}: {node['html'][:120]}"
        for violation in results["violations"]
        if violation["impact"] in SERIOUS
        for node in violation["nodes"]
    ]


def focus_something(page: ExplorerPage, view: str) -> None:
    """Show what a view shows of a token or a cell."""
    if view in ("head", "neuron"):
        page.click(".tokens.query li >> nth=2")
    elif view in ("matrix", "compare"):
        page.find(".matrix-canvas").first.focus()
        page.press("ArrowDown")
    elif view == "alignment":
        page.find(".words.target span").nth(1).focus()
    elif view == "generation":
        page.page.get_by_role("button", name="Step", exact=True).click()
    page.wait()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("model", ["transformer", "vit", "gpt2", "t5"])
def test_views_fit_the_screen_and_are_accessible(
    open_page: OpenPage, site: Site, picture: Path, axe_script: str, model: str, theme: str
) -> None:
    arguments: dict[str, dict[str, Any]] = {"vit": {"image": picture}, "gpt2": {"other": "sparse"}}
    page = open_page(site.explore(model, **arguments.get(model, {})), width=360, theme=theme)
    page.evaluate(axe_script)
    views = {"vit": ["image"], "gpt2": ["compare"], "t5": ["patterns"]}.get(model, page.views)
    for view in views:
        page.choose_view(view)
        focus_something(page, view)
        button = page.find(".corner .round")
        assert button.get_attribute("aria-expanded") == "false"
        button.click()
        assert page.find(".help .equation").is_visible()
        assert len(page.text(".help p >> nth=0")) > 80
        for width, height in SCREENS.items():
            page.page.set_viewport_size({"width": width, "height": height})
            page.wait()
            overflow = page.evaluate(OVERFLOW)
            assert overflow["page"] <= 0, (view, width)
            assert overflow["clipped"] == [], (view, width)
            if (width, theme) in AUDITED:
                assert audit(page, AUDITED[width, theme]) == [], (view, width)


def test_the_menu_is_accessible(open_page: OpenPage, site: Site, axe_script: str) -> None:
    page = open_page(site.explore("transformer"))
    page.choose_view("alignment")
    page.evaluate(axe_script)
    page.find("summary").click()
    page.page.wait_for_selector(".menu button")
    assert page.texts(".menu button") == ["Picture as SVG", "Word pairs (Pharaoh)", "Copy link"]
    assert audit(page) == []
    page.find("summary").press("Escape")
    assert not page.find(".menu").is_visible()
    assert page.evaluate("document.activeElement.localName") == "summary"
    page.find("summary").click()
    page.find(".body").click()
    assert not page.find(".menu").is_visible()


def test_the_theme_of_the_system_is_followed(open_page: OpenPage, site: Site) -> None:
    page = open_page(site.explore("gpt2"))
    page.choose_view("matrix")
    draw = "document.querySelector('.matrix-canvas').toDataURL()"
    pixels, backgrounds = [page.evaluate(draw)], set()
    for theme in ("dark", "light"):
        page.page.emulate_media(color_scheme=theme)
        page.wait_until(f"{draw} !== '{pixels[-1]}'")
        backgrounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        pixels.append(page.evaluate(draw))
    assert len(backgrounds) == 2
    assert pixels[0] == pixels[2] != pixels[1]


def test_text_grows_on_very_wide_screens(open_page: OpenPage, site: Site) -> None:
    page = open_page(site.explore("gpt2"))
    sizes = []
    for width, height in SCREENS.items():
        page.page.set_viewport_size({"width": width, "height": height})
        sizes.append(
            page.evaluate("parseFloat(getComputedStyle(document.documentElement).fontSize)")
        )
    assert sizes[0] == sizes[1] == 16
    assert 24 <= sizes[2] <= 32


def test_the_picture_stays_under_the_pointer(open_page: OpenPage, site: Site) -> None:
    """A status line of another height would move the tokens, and another one would be under the pointer."""
    page = open_page(site.explore("gpt2"))
    page.submit("antidisestablishmentarianism " + "Привет мир " * 3)
    row = page.find(".tokens.query li").nth(8)
    for width in (700, 1000, 1280):
        page.page.set_viewport_size({"width": width, "height": 900})
        places = set()
        for selector in ("h1", *(f".tokens.query li >> nth={index}" for index in (0, 8, 12))):
            page.hover(selector)
            box = row.bounding_box()
            assert box is not None
            places.add(box["y"])
        assert len(places) == 1, width
