"""Tokens as text: control characters are visible, long tokens short, writing directions isolated."""

import re

import pytest

from qkv.pictures.drawing.token_text import (
    count_columns,
    fit_token,
    format_number,
    format_token,
    format_weight,
    make_visible,
    shorten_token,
)
from tests.conftest import ROOT
from tests.pictures.pages import ODD_TOKENS


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        ("cat", "cat"),
        ("a b", "a b"),
        ("\n\t\x7f", "⏎⇥␡"),
        ("\u202eevil\u200b", "⟨202E⟩evil⟨200B⟩"),
        ("\x85\ufeff", "⟨0085⟩⟨FEFF⟩"),
        ("می\u200cخواهم", "می\u200cخواهم"),  # the zero-width non-joiner is a part of words
        ("\ud800\uffff", "\ufffd\ufffd"),
        (" ", "␣"),
        ("\u3000" * 9, "␣␣␣"),
        ("", "∅"),
    ],
)
def test_control_characters_are_visible(text: str, visible: str) -> None:
    assert make_visible(text) == visible


def test_the_page_replaces_the_same_characters() -> None:
    script = (ROOT / "qkv/explorer/page/widgets/token-text.js").read_text(encoding="utf-8")
    match = re.search(r"const INVISIBLE = /(.*)/g;", script)
    assert match is not None
    pattern = re.compile(match[1])
    for code in (*range(0x80, 0x3000), 0xFEFF, *range(0xFFF0, 0xFFFC)):
        assert (make_visible(f"a{chr(code)}") == f"a⟨{code:04X}⟩") == bool(pattern.match(chr(code)))


def test_long_tokens_are_shortened() -> None:
    assert shorten_token("x" * 10_000) == "x" * 31 + "…"
    assert shorten_token("x" * 32) == "x" * 32
    assert shorten_token("x" * 33, 4) == "xxx…"
    assert shorten_token("\u202e" * 50, 7) == "⟨202E⟩…"


def test_right_to_left_tokens_are_isolated() -> None:
    assert format_token("مرحبا!") == "\u2068مرحبا!\u2069"
    assert format_token("שלום") == "\u2068שלום\u2069"
    assert format_token("cat") == "cat"


@pytest.mark.parametrize("columns", [1, 2, 5, 11.5, 40])
@pytest.mark.parametrize("token", ODD_TOKENS)
def test_a_label_fits_its_box(token: str, columns: float) -> None:
    label = fit_token(token, columns)
    assert sum(map(count_columns, label)) <= max(columns, count_columns("…"))
    assert label
    if sum(map(count_columns, make_visible(token[:100]))) <= columns and len(token) < 100:
        assert label == format_token(token, 200)


def test_wide_characters_take_more_room() -> None:
    assert fit_token("abcdefgh", 8) == "abcdefgh"
    assert fit_token("東京東京東京", 8) == "東京東…"
    assert fit_token("e\u0301e\u0301", 2) == "e\u0301e\u0301"


@pytest.mark.parametrize(
    ("weight", "text"),
    [(0, "0.000"), (0.0004, "<0.001"), (0.005, "0.005"), (0.125, "0.12"), (1, "1.00")],
)
def test_weights(weight: float, text: str) -> None:
    assert format_weight(weight) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (-1.234, "−1.23"),
        (0.5, "0.50"),
        (-0.001, "0.00"),
        (float("nan"), "masked"),
        (float("-inf"), "−∞"),
        (float("inf"), "∞"),
    ],
)
def test_numbers(number: float, text: str) -> None:
    assert format_number(number) == text
