"""Values of requests: texts, tokens, settings, numbers, ranges and heads."""

from __future__ import annotations

from typing import Any

import pytest

from qkv.explorer.server.requests import (
    MAX_CHOSEN_TOKENS,
    MAX_TEXT_LENGTH,
    parse_flag,
    parse_heads,
    parse_integer,
    parse_range,
    read_settings,
    read_text,
    read_token_ids,
)
from tests.support.errors import assert_error


def test_texts() -> None:
    assert read_text({}, "text") is None
    assert read_text({"text": None}, "text") is None
    for text in ("", "the cat", "a\x00b\u202e👍", "x" * MAX_TEXT_LENGTH):
        assert read_text({"text": text}, "text") == text
    assert read_text({"text": "a\ud800b\udcff"}, "text") == "a?b?"  # no text, but JSON
    for value in (1, 0, 1.5, True, [], ["a"], {}, {"a": "b"}):
        assert_error(lambda: read_text({"text": value}, "text"), "text is a ", "expected text")  # noqa: B023
    too_long = {"target": "x" * (MAX_TEXT_LENGTH + 1)}
    assert_error(lambda: read_text(too_long, "target"), "target has 200,001 characters", "200,000")


def test_token_ids() -> None:
    assert read_token_ids({}) == []
    assert read_token_ids({"token_ids": [3, 4]}) == [3, 4]
    for value in (None, "12", 5, {"0": 1}, (1,), [0] * (MAX_CHOSEN_TOKENS + 1)):
        assert_error(lambda: read_token_ids({"token_ids": value}), "token_ids", "a list of at most")  # noqa: B023


def test_settings() -> None:
    assert read_settings({}) == {}
    assert read_settings({"settings": {"top_k": 5}}) == {"top_k": 5}
    values: list[Any] = [None, [], "top_k", 5, True]
    for value in values:
        assert_error(lambda: read_settings({"settings": value}), "settings is a", "an object")  # noqa: B023


def test_integers() -> None:
    values = {"0": 0, "12": 12, "-3": -3, "007": 7, "999999999": 999_999_999}
    assert {text: parse_integer("row", text) for text in values} == values


@pytest.mark.parametrize(
    "text",
    ["", "-", "--1", "+1", "1.0", "1e3", "0x1", " 1", "1 ", "1_000", "٣", "²", "9" * 10, "9" * 5000, "None",
     "\x00"],
)  # fmt: skip
def test_wrong_integers(text: str) -> None:
    message = assert_error(lambda: parse_integer("row", text), "row", "expected a whole number")
    assert len(message) < 150


def test_flags() -> None:
    assert (parse_flag("rollout", "1"), parse_flag("rollout", "0")) == (True, False)
    for text in ("", "2", "true", "01", "-1", "x" * 5000):
        message = assert_error(lambda: parse_flag("rollout", text), "rollout", "expected 0 or 1")  # noqa: B023
        assert len(message) < 100


def test_ranges() -> None:
    assert parse_range("rows", None, 5) == slice(0, 5)
    assert parse_range("rows", "", 5) == slice(0, 5)
    assert parse_range("rows", "1:4", 5) == slice(1, 4)
    for text in (
        "3:3",
        "4:2",
        "-1:2",
        "0:6",
        "6:7",
        "2",
        ":",
        "1:",
        ":2",
        "1:2:3",
        "a:b",
        "1,2",
        "1.0:2",
    ):
        assert_error(lambda: parse_range("columns", text, 5), "columns", "expected")  # noqa: B023


def test_heads() -> None:
    expected = {
        "3": [3], "0-7": [*range(8)], "0,2,5": [0, 2, 5], "5,0-2,7": [5, 0, 1, 2, 7], "1,1,0-2": [1, 0, 2],
        "2-2": [2],
    }  # fmt: skip
    for text, heads in expected.items():
        assert parse_heads(text, 8) == heads
    assert parse_heads("0-7," * 2499 + "3", 8) == [*range(8)]
    for text in ("", "8", "-1", "0-8", "3-1", "0,", ",", "1-2-3", "a", "0 1", "mean,1", "0-", "-"):
        assert_error(lambda: parse_heads(text, 8), "heads", "expected")  # noqa: B023


def test_long_values_are_not_repeated() -> None:
    values: list[Any] = ["9" * 10_000, "0-7" * 10_000]
    for text in values:
        assert len(assert_error(lambda: parse_heads(text, 8))) < 150  # noqa: B023
        assert len(assert_error(lambda: parse_range("rows", text, 8))) < 150  # noqa: B023
