"""What goes wrong is said in one sentence, and the page goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from qkv.explorer.explorer import MAX_TRACES, Explorer
from qkv.explorer.inputs.trace_inputs import UserInput
from tests.explorer.browser.conftest import OpenPage
from tests.explorer.browser.models import (
    TEXT,
    compute_weights,
    load_model,
    name_model,
    split_tokens,
)
from tests.explorer.browser.site import Site

FAILED_REQUEST = "console error: Failed to load resource: "


def assert_one_sentence(text: str) -> None:
    assert text
    assert "\n" not in text
    assert len(text) < 200


def test_a_server_that_is_gone(open_page: OpenPage) -> None:
    site = Site()
    try:
        page = open_page(site.explore("gpt2"))
    finally:
        site.close()
    page.submit("Run, rabbit run.")
    assert page.error == "The server does not answer; start qkv look again."
    assert page.find(".run").is_enabled()
    page.choose_view("matrix")  # the view stays usable, without new weights
    assert page.view == "matrix"
    assert page.error == "The server does not answer; start qkv look again."
    assert all("ERR_CONNECTION_REFUSED" in problem for problem in page.pop_problems())


def test_a_server_that_comes_back(open_page: OpenPage, site: Site) -> None:
    page = open_page(site.explore("gpt2"))
    page.page.route("**/api/trace*", lambda route: route.abort())
    page.submit("Run, rabbit run.")
    assert page.error
    page.page.unroute("**/api/trace*")
    page.submit("Run, rabbit run.")
    assert page.error == ""
    assert page.texts(".tokens.query .token") == split_tokens("gpt2", "Run, rabbit run.")
    assert page.pop_problems() == [f"{FAILED_REQUEST}net::ERR_FAILED"]


def test_a_text_that_is_too_long(open_page: OpenPage, site: Site) -> None:
    page = open_page(site.explore("gpt2"))
    page.submit("brown fox " * 60)
    assert page.error == ""
    notice = page.text(".notice")
    assert_one_sentence(notice)
    assert notice.startswith("Cut to 64 of ")
    assert page.find(".tokens.query li").first.get_attribute("aria-setsize") == "64"
    page.submit(TEXT)
    assert page.text(".notice") == ""


def test_an_empty_text(open_page: OpenPage, site: Site) -> None:
    page = open_page(site.explore("gpt2"))
    for text in ("", "   ", "\n"):
        page.submit(text)
        assert page.error == "Type a text."
        assert page.texts(".tokens.query .token") == split_tokens("gpt2", TEXT)
        page.submit(TEXT)
        assert page.error == ""


def test_a_text_beyond_the_limit_of_a_request(open_page: OpenPage, site: Site) -> None:
    page = open_page(site.explore("gpt2"))
    page.field().evaluate("field => { field.value = 'a '.repeat(100001) }")
    page.field().press("Enter")
    assert page.wait().error == "text has 200,002 characters, expected at most 200,000"
    assert len(page.pop_problems()) == 1


def test_a_file_that_is_no_picture(open_page: OpenPage, site: Site, tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image", reason="pictures need Pillow")
    path = tmp_path / "notes.png"
    page = open_page(site.explore("clip"))
    for content in (b"not a picture", b"", b"\x89PNG\r\n\x1a\n broken"):
        path.write_bytes(content)
        page.page.set_input_files("input[type=file]", [])
        page.page.set_input_files("input[type=file]", path)
        page.wait_until("document.querySelector('[role=alert]').textContent !== ''")
        assert_one_sentence(page.error)
        assert str(tmp_path) not in page.error
    assert page.view == "head"
    page.submit(TEXT)
    assert page.error == ""
    assert all(problem.startswith(FAILED_REQUEST) for problem in page.pop_problems())


def test_a_forgotten_trace_is_asked_for_again(open_page: OpenPage, site: Site) -> None:
    explorer = Explorer(name_model(load_model("gpt2"), "gpt2"))
    page = open_page(site.add("forgetful", explorer, UserInput(text=TEXT)))
    (first,) = explorer.traces
    for _ in range(MAX_TRACES):
        explorer.trace({"text": "a"})
    assert first not in explorer.traces
    page.press("]")
    page.click(".tokens.query li >> nth=5")
    weights = compute_weights("gpt2")["decoder.layers.1.attention"].mean(0)[5]
    assert abs(page.status_weights[0][1] - float(weights.max())) < 0.00501
    assert page.error == ""
    page.choose_view("generation")
    page.page.get_by_role("button", name="Step", exact=True).click()
    page.wait()
    for _ in range(MAX_TRACES):
        explorer.trace({"text": "a"})
    before = page.text(".generation .status")
    page.choose("Head", "1")
    assert page.text(".generation .status") != before
    assert page.error == ""
    problems = page.pop_problems()
    assert {*problems} == {f"{FAILED_REQUEST}the server responded with a status of 404 (Not Found)"}


def test_a_wrong_link_is_explained(open_page: OpenPage, site: Site) -> None:
    page = open_page(f"{site.explore('gpt2')}#text=a&pair=b")
    assert page.error.startswith("text_pair: this model")
    page.pop_problems()
    page = open_page(f"{site.explore('gpt2')}#view=generation&ids=999999&at=1")
    assert page.error.startswith("token id is 999999")
    page.pop_problems()
    page.page.get_by_role("button", name="Reset").click()
    page.wait()
    assert page.find(".candidates tbody tr").count() == 12
