"""Errors of one line."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def assert_error(
    call: Callable[[], object], *words: object, error: type[Exception] = ValueError
) -> str:
    """Assert that the call raises an error of one line with all words; return its message."""
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert message
    assert message.isprintable(), f"expected one line: {message!r}"
    missing = [word for word in words if str(word) not in message]
    assert not missing, f"{missing} not in: {message}"
    return message
