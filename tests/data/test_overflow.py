"""Overflow: a text that is too long is an error, truncated, or split into windows."""

import re

import pytest

from qkv.data.encode.overflow import (
    ONE_ROW_MODES,
    OVERFLOW_MODES,
    apply_overflow,
    check_overflow,
    check_overflow_unset,
    compute_default_stride,
)
from qkv.text import Encoding, Tokenizer

WORDS = " ".join("abcdefghij" * 2)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([WORDS] * 9, type="wordpiece", vocab_size=60, template="bert")


def encode(tokenizer: Tokenizer, *texts: str) -> Encoding:
    (encoding,) = tokenizer.encode_batch([texts if len(texts) == 2 else texts[0]])
    return encoding


def get_tokens(encoding: Encoding, sequence_id: int = 0) -> list[int]:
    """The ids of one text of a pair, without special tokens."""
    return [
        token_id
        for token_id, other in zip(encoding.input_ids, encoding.sequence_ids, strict=True)
        if other == sequence_id
    ]


@pytest.mark.parametrize("overflow", OVERFLOW_MODES)
def test_a_text_that_fits_is_kept(tokenizer: Tokenizer, overflow: str) -> None:
    encoding = encode(tokenizer, WORDS)
    assert len(encoding) == 22
    assert apply_overflow(encoding, 22, overflow, text_name="text") == [encoding]


def test_error_gives_the_number_of_tokens_and_the_modes(tokenizer: Tokenizer) -> None:
    encoding = encode(tokenizer, WORDS)
    message = '3: 22 tokens, expected at most 21; shorten the text, or set overflow to "truncate"'
    with pytest.raises(ValueError, match=rf'^{re.escape(message)} or "window"$'):
        apply_overflow(encoding, 21, "error", text_name="3")
    with pytest.raises(ValueError, match=rf"^{re.escape(message)}$"):
        apply_overflow(encoding, 21, "error", text_name="3", modes=ONE_ROW_MODES)


def test_truncate_keeps_the_beginning_and_the_special_tokens(tokenizer: Tokenizer) -> None:
    encoding = encode(tokenizer, WORDS)
    (part,) = apply_overflow(encoding, 12, "truncate", text_name="text")
    assert part.input_ids == [*encoding.input_ids[:11], tokenizer.sep_token_id]


def test_a_pair_is_truncated_longest_first_or_in_its_second_text(tokenizer: Tokenizer) -> None:
    encoding = encode(tokenizer, "a b c d", WORDS)
    (longest_first,) = apply_overflow(encoding, 9, "truncate", text_name="text")
    (only_second,) = apply_overflow(
        encoding, 9, "truncate", text_name="text", truncation="only_second"
    )
    assert [len(get_tokens(longest_first, i)) for i in (0, 1)] == [3, 3]
    assert [len(get_tokens(only_second, i)) for i in (0, 1)] == [4, 2]


def test_windows_share_stride_tokens_and_drop_none(tokenizer: Tokenizer) -> None:
    encoding = encode(tokenizer, WORDS)
    windows = apply_overflow(encoding, 12, "window", text_name="text", stride=4)
    tokens = [get_tokens(window) for window in windows]
    assert [len(window) for window in windows] == [12, 12, 10]
    assert [*tokens[0], *tokens[1][4:], *tokens[2][4:]] == get_tokens(encoding)
    assert tokens[0][-4:] == tokens[1][:4]


def test_default_stride_is_half_a_window_and_at_most_128(tokenizer: Tokenizer) -> None:
    encoding = encode(tokenizer, WORDS)
    assert compute_default_stride(encoding, 12) == 6
    assert compute_default_stride(encoding, 512) == 128
    pair = encode(tokenizer, "a b c d e", WORDS)  # 8 tokens that every window has
    assert compute_default_stride(pair, 12) == 2
    windows = apply_overflow(encoding, 12, "window", text_name="text")
    assert windows == apply_overflow(encoding, 12, "window", text_name="text", stride=6)


def test_an_unknown_mode_and_a_mode_without_support_are_errors() -> None:
    check_overflow("overflow", "window", OVERFLOW_MODES, "`tag`")
    with pytest.raises(ValueError, match=r"^overflow is 'drop', expected one of error, truncate$"):
        check_overflow("overflow", "drop", ONE_ROW_MODES, "`classify`")
    message = r"expected one of error, truncate: `classify` reads a text in one row$"
    with pytest.raises(ValueError, match=rf"^overflow is 'window', {message}"):
        check_overflow("overflow", "window", ONE_ROW_MODES, "`classify`")


def test_a_mode_without_effect_is_an_error() -> None:
    check_overflow_unset("data.overflow", None, "causal-lm", "rows")
    with pytest.raises(
        ValueError,
        match=r"^data\.overflow is 'error', but overflow has no effect for causal-lm: rows; remove",
    ):
        check_overflow_unset("data.overflow", "error", "causal-lm", "rows")
