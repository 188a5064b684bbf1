"""A saved page shows every view that needs no model, without a server and without the network."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import qkv
from tests.explorer.browser.conftest import OpenPage
from tests.explorer.browser.models import GIVEN, TEXT, compute_weights, load_model
from tests.explorer.browser.test_views import CHECKS


def save(name: str, folder: Path, **settings: object) -> str:
    """Save a page, and return its address."""
    path = folder / "saved.html"
    inputs = GIVEN.get(name, {"text": TEXT})
    qkv.view(load_model(name), **inputs, **settings).save(path)  # type: ignore[arg-type]
    return path.as_uri()


@pytest.mark.parametrize("name", ["transformer", "bert", "t5", "transformer-xl", "bahdanau"])
def test_a_saved_page_works_without_a_server(
    open_page: OpenPage, tmp_path: Path, name: str
) -> None:
    page = open_page(save(name, tmp_path))
    requests: list[str] = []
    page.page.on("request", lambda request: requests.append(request.url))
    has_cross = any("cross" in path for path in compute_weights(name))
    expected = [
        "head",
        "model",
        "matrix",
        *(["alignment"] if has_cross else []),
        "neuron",
        "patterns",
    ]
    assert page.views == expected
    assert page.view == ("alignment" if has_cross else "head")
    for view in page.views:
        page.choose_view(view)
        CHECKS[view](page, name)
        assert page.error == ""
    assert [url for url in requests if not url.startswith(("blob:", "data:"))] == []
    assert page.find("textarea, .run").count() == 0
    assert TEXT in page.text(".texts")


def test_a_saved_page_opens_with_its_settings(open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page(save("gpt2", tmp_path, view="matrix", layer=1, head=2))
    assert page.view == "matrix"
    assert page.select("Layer").input_value() == "decoder.layers.1.attention"
    assert page.select("Head").input_value() == "2"
    page.find(".matrix-canvas").focus()
    page.press("ArrowDown", "ArrowDown")
    match = re.search(r"weight ([0-9.]+)", page.status)
    assert match is not None
    weights = compute_weights("gpt2")["decoder.layers.1.attention"]
    assert abs(float(match[1]) - float(weights[2, 1, 0])) < 0.0001


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_rollout_of_a_saved_page(open_page: OpenPage, tmp_path: Path, name: str) -> None:
    page = open_page(save(name, tmp_path, view="matrix", layer=1, rollout=True))
    page.find(".matrix-canvas").focus()
    page.press(*["ArrowDown"] * 4)
    match = re.search(r"weight ([0-9.]+)", page.status)
    assert match is not None
    view = qkv.view(load_model(name), **GIVEN.get(name, {"text": TEXT}))  # type: ignore[arg-type]
    path = [*view.trace.shapes][1]
    expected = view.trace.compute_rollout(path, slice(3, 4), slice(0, 1))
    assert abs(float(match[1]) - float(expected)) < 0.0001
    assert "rollout" in page.status


def test_layers_before_are_needed_for_rollout(open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page(save("gpt2", tmp_path, view="matrix", paths=r".*\.1\..*"))
    assert "rollout" not in page.text(".tools")


def test_a_saved_page_has_links_and_pictures(open_page: OpenPage, tmp_path: Path) -> None:
    address = save("gpt2", tmp_path)
    page = open_page(address)
    page.choose_view("matrix")
    page.choose("Head", "3")
    assert page.download("Picture as SVG").read_text(encoding="utf-8").startswith("<svg")
    other = open_page(page.get_link())
    assert other.page.url.startswith(f"{address}#")
    assert other.view == "matrix"
    assert other.select("Head").input_value() == "3"


def test_a_page_of_two_models(open_page: OpenPage, tmp_path: Path) -> None:
    path = tmp_path / "compare.html"
    qkv.view(load_model("gpt2"), TEXT, compare=load_model("sparse"), layer=1, head=2).save(path)
    page = open_page(path.as_uri())
    assert page.view == "compare"
    canvases = page.find(".columns .matrix-canvas")
    assert canvases.count() == 2
    canvases.first.focus()
    page.press(*["ArrowDown"] * 5, "ArrowRight")
    page.wait_until(
        "[...document.querySelectorAll('.columns .status')]"
        ".every(status => status.textContent.includes(': weight'))"
    )
    numbers = [float(text.rpartition(" ")[2]) for text in page.texts(".columns .status")]
    for name, number in zip(("gpt2", "sparse"), numbers, strict=True):
        weights = compute_weights(name)["decoder.layers.1.attention"]
        assert abs(number - float(weights[2, 4, 1])) < 0.0001
    assert page.error == ""


def test_a_page_of_an_image(open_page: OpenPage, tmp_path: Path, picture: Path) -> None:
    path = tmp_path / "image.html"
    qkv.view(load_model("vit"), image=picture).save(path)
    page = open_page(path.as_uri())
    assert page.view == "image"
    assert page.count_colors(".overlay canvas") > 3
    assert page.evaluate("document.querySelector('.overlay img').naturalWidth") == 12


def test_a_page_in_a_notebook(open_page: OpenPage, tmp_path: Path) -> None:
    """A notebook shows the page in a frame that has neither an address nor an origin."""
    html = qkv.view(load_model("gpt2"), TEXT)._repr_html_()
    path = tmp_path / "notebook.html"
    path.write_text(f"<!DOCTYPE html><title>notebook</title>{html}", encoding="utf-8")
    page = open_page(path.as_uri(), is_ready=False)
    frame = page.page.frame_locator("iframe")
    frame.locator(".tokens.query li").nth(2).click()
    frame.locator("#tab-matrix").click()
    frame.locator("#tab-head").click()
    assert frame.locator(".tokens.query li.here").get_attribute("data-index") == "2"
