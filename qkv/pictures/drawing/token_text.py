"""Tokens as text that is safe to draw: control characters are visible, long tokens shortened, writing
directions isolated. Does not depend on SVG."""

from __future__ import annotations

import math
import re
import unicodedata

MAX_TOKEN_CHARACTERS = 32
EMPTY_TOKEN = "∅"
FIRST_STRONG_ISOLATE = "\u2068"
POP_DIRECTIONAL_ISOLATE = "\u2069"
CONTROL_PICTURES: dict[int, int | str] = {
    **{code: 0x2400 + code for code in range(0x20)},
    0x7F: 0x2421,
    0x09: "⇥",  # more fonts have these than the symbols with letters
    0x0A: "⏎",
}
SURROGATES_AND_NONCHARACTERS = re.compile("[\ud800-\udfff\ufffe\uffff]")
# C1 controls, soft hyphen, zero-width space, bidirectional controls, line and paragraph separators,
# byte order mark, interlinear annotation
INVISIBLE_CHARACTERS = re.compile(
    "[\x80-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)
WIDE_LATIN = frozenset("MWmw@%—…")
WIDE_LATIN_COLUMNS = 1.625


def make_visible(text: str) -> str:
    """Return the text with every control character replaced by a visible symbol."""
    text = SURROGATES_AND_NONCHARACTERS.sub("\ufffd", text).translate(CONTROL_PICTURES)
    text = INVISIBLE_CHARACTERS.sub(lambda match: f"⟨{ord(match[0]):04X}⟩", text)
    return text if text.strip() else "␣" * min(len(text), 3) or EMPTY_TOKEN


def shorten_token(text: str, max_characters: int = MAX_TOKEN_CHARACTERS) -> str:
    """Return the visible text, shortened to a number of characters."""
    head = text[: max_characters * 8]  # enough: a visible symbol is at least one character
    visible = make_visible(head)
    if len(visible) <= max_characters and head == text:
        return visible
    return visible[: max_characters - 1] + "…"


def isolate_direction(text: str) -> str:
    """Wrap a text with right-to-left characters so that it does not affect its surroundings."""
    if not any(unicodedata.bidirectional(character) in ("R", "AL") for character in text):
        return text
    return FIRST_STRONG_ISOLATE + text + POP_DIRECTIONAL_ISOLATE


def format_token(text: str, max_characters: int = MAX_TOKEN_CHARACTERS) -> str:
    """Return the label of a token: visible, short and isolated."""
    return isolate_direction(shorten_token(text, max_characters))


def fit_token(text: str, max_columns: float) -> str:
    """Return the label of a token for a box, whose width is given in characters of mean width."""
    visible = shorten_token(text, max(math.ceil(max_columns), 1) * 2)
    if sum(map(count_columns, visible)) <= max_columns:
        return isolate_direction(visible)
    columns = WIDE_LATIN_COLUMNS  # of the ellipsis
    for end, character in enumerate(visible):
        columns += count_columns(character)
        if columns > max_columns:
            return isolate_direction(visible[:end].removesuffix("…") + "…")
    return isolate_direction(visible)


def count_columns(character: str) -> float:
    """Return the width of a character as a multiple of the mean width."""
    if unicodedata.east_asian_width(character) in "WF":
        return 2
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return WIDE_LATIN_COLUMNS if character in WIDE_LATIN else 1


def format_weight(weight: float) -> str:
    """Return a weight or a probability with the digits that matter."""
    if 0 < weight < 0.001:
        return "<0.001"
    return f"{weight:.{3 if weight < 0.01 else 2}f}"


def format_number(number: float, digits: int = 2) -> str:
    """Return a number with a true minus sign; NaN is the score of a masked key."""
    if math.isnan(number):
        return "masked"
    text = "∞" if math.isinf(number) else f"{abs(number):.{digits}f}"
    return f"−{text}" if number < 0 and text.strip("0.") else text
