"""Errors of one line."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def assert_value_error(call: Callable[[], object], *words: object) -> str:
    """Assert that the call raises a ValueError of one line with all words; return its message."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        call()
    message = str(caught.value)
    assert message
    assert message.isprintable(), f"expected one line: {message!r}"
    missing = [word for word in words if str(word) not in message]
    assert not missing, f"{missing} not in: {message}"
    return message
