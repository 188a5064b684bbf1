"""Values of requests: every wrong one becomes a ValueError that names it and what was expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MAX_TEXT_LENGTH = 200_000  # characters
MAX_CHOSEN_TOKENS = 4096


def read_text(body: Mapping[str, Any], name: str) -> str | None:
    """Return a text of a request; None if it has none."""
    text = body.get(name)
    if text is not None and not isinstance(text, str):
        raise ValueError(f"{name} is a {type(text).__name__}, expected text")
    if text is not None and len(text) > MAX_TEXT_LENGTH:
        raise ValueError(
            f"{name} has {len(text):,} characters, expected at most {MAX_TEXT_LENGTH:,}"
        )
    # Lone surrogates, which JSON can carry, are no text.
    return text and text.encode("utf-8", errors="replace").decode("utf-8")


def read_token_ids(body: Mapping[str, Any]) -> list[int]:
    """Return the tokens that were chosen so far."""
    token_ids = body.get("token_ids", [])
    if not isinstance(token_ids, list) or len(token_ids) > MAX_CHOSEN_TOKENS:
        raise ValueError(f"token_ids: expected a list of at most {MAX_CHOSEN_TOKENS:,} token ids")
    return token_ids


def read_settings(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return generation settings by name."""
    settings = body.get("settings", {})
    if not isinstance(settings, dict):
        raise ValueError(f"settings is a {type(settings).__name__}, expected an object")
    return settings


def parse_integer(name: str, text: str) -> int:
    """Parse a whole number of at most nine digits."""
    if not text.isascii() or not text.removeprefix("-").isdigit() or len(text) > 9:
        raise ValueError(f"{name} {text[:20]!r}, expected a whole number")
    return int(text)


def parse_flag(name: str, text: str) -> bool:
    """Parse 1 (true) or 0."""
    if text not in ("0", "1"):
        raise ValueError(f"{name} {text[:20]!r}, expected 0 or 1")
    return text == "1"


def parse_range(name: str, text: str | None, count: int) -> slice:
    """Parse FIRST:LAST, a part of 0:count."""
    first, _, last = (text or f"0:{count}").partition(":")
    start, stop = parse_integer(name, first), parse_integer(name, last)
    if not 0 <= start < stop <= count:
        raise ValueError(f"{name} {start}:{stop}, expected a part of 0:{count}")
    return slice(start, stop)


def parse_heads(text: str, count: int) -> Sequence[int]:
    """Parse heads: 3, 0-7 or 0,2,5."""
    heads: list[int] = []
    for part in text[:10_000].split(","):
        first, dash, last = part.partition("-")
        start = parse_integer("heads", first)
        stop = parse_integer("heads", last) if dash else start
        if not 0 <= start <= stop < count:
            raise ValueError(f"heads {part[:20]!r}, expected heads from 0 to {count - 1}")
        heads += range(start, stop + 1)
    return list(dict.fromkeys(heads))
