"""Inputs of the page: a text and Enter, a pair of texts, the target of an encoder-decoder."""

from __future__ import annotations

import qkv
from qkv.explorer.explorer import Explorer
from qkv.explorer.inputs.trace_inputs import UserInput
from tests.explorer.browser.conftest import OpenPage
from tests.explorer.browser.models import (
    GERMAN,
    PAIR,
    TARGET,
    TEXT,
    load_model,
    name_model,
    split_tokens,
)
from tests.explorer.browser.site import Site

QUERIES, KEYS = ".tokens.query .token", ".tokens.key .token"


def test_enter_shows_the_tokens_of_a_text(open_page: OpenPage, site: Site) -> None:
    explorer = Explorer(name_model(load_model("gpt2"), "gpt2"))
    page = open_page(site.add("empty", explorer, UserInput()))
    assert page.text("main") == "Type a text and press Enter, or choose an example."
    field = page.field()
    field.press_sequentially(TEXT)
    field.press("Shift+Enter")  # a new line
    assert page.views == []
    field.press("Backspace")
    page.press("Enter")
    assert page.view == "head"
    assert page.texts(QUERIES) == page.texts(KEYS) == split_tokens("gpt2", TEXT)
    assert page.find("h1").inner_text() == "gpt2"
    assert page.count_colors(".head-stage canvas") > 10


def test_an_example_is_run(open_page: OpenPage, site: Site) -> None:
    page = open_page(site.explore("bert"))
    page.choose("Examples", "0")
    assert page.field().input_value() != TEXT
    assert "".join(page.texts(QUERIES)).startswith("[CLS]Helookedathis")


def test_a_pair_and_its_filters(open_page: OpenPage, site: Site) -> None:
    page = open_page(site.explore("bert"))
    first, second = split_tokens("bert", TEXT), split_tokens("bert", PAIR)[1:]
    assert page.texts(QUERIES) == first + second
    page.find(".tokens.query li").nth(2).click()
    page.wait()
    tokens_by_name = {}
    for name, keys in (("ab", second), ("aa", first)):
        page.choose("Sentences", name)
        tokens_by_name[name] = [token for token, _ in page.status_weights]
        dimmed = page.texts(".tokens.key li.dim .token")
        assert len(tokens_by_name[name]) == 5
        assert {*tokens_by_name[name]} <= {*keys}
        assert len(dimmed) >= len(first + second) - len(keys)
    page.choose("Sentences", "bb")
    assert "no weight above" in page.status  # the query is in A
    page.choose("Sentences", "all")
    assert {token for token, _ in page.status_weights} <= {*first, *second}


def test_a_text_without_a_pair_has_no_filters(open_page: OpenPage, site: Site) -> None:
    page = open_page(site.explore("bert"))
    assert page.select("Sentences").is_visible()
    page.submit("", "text_pair")
    assert page.texts(QUERIES) == split_tokens("bert", TEXT)
    assert not page.select("Sentences").is_visible()


def test_the_target_of_an_encoder_decoder(open_page: OpenPage, site: Site) -> None:
    page = open_page(site.explore("transformer"))
    page.submit("seven eight", "target")
    page.choose_view("alignment")
    assert page.texts(".words.target span") == ["seven", "eight"]
    page.choose_view("head")
    page.choose("Attention", "decoder self-attention")
    tokens = split_tokens("transformer", "seven eight")
    assert page.texts(QUERIES) == ["<pad>", *tokens]
    page.choose("Attention", "cross-attention")
    assert page.texts(KEYS) == split_tokens("transformer", TEXT)
    assert TARGET not in page.text("main")


def test_an_empty_target_is_the_output_of_the_model(open_page: OpenPage, site: Site) -> None:
    page = open_page(site.explore("builtin:translate"))
    expected = qkv.task("translate", load_model("builtin:translate"))(GERMAN).text
    target = page.field("target")
    assert target.input_value() == ""
    assert target.get_attribute("placeholder") == expected
    page.choose_view("alignment")
    assert "".join(page.texts(".words.target span")) == expected.replace(" ", "")
    assert "".join(page.texts(".words.source span")) == GERMAN.replace(" ", "")


def test_a_second_segment_attends_to_the_first(open_page: OpenPage, site: Site) -> None:
    page = open_page(site.explore("transformer-xl"))
    segment = split_tokens("transformer-xl", PAIR)
    assert page.texts(QUERIES) == segment
    assert page.texts(KEYS) == split_tokens("transformer-xl", TEXT)[-12:] + segment
