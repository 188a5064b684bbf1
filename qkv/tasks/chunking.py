"""Splitting a text that is too long into chunks of similar length.

A chunk ends at the end of a sentence or line if possible, else before whitespace, else anywhere."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator

from qkv.text import Encoding
from qkv.text.sentences import SENTENCE_BOUNDARY

SENTENCE_OR_LINE_END = re.compile(rf"{SENTENCE_BOUNDARY.pattern}|\s*\n")
WHITESPACE_RUN = re.compile(r"\s+")


def chunk_text(
    text: str, max_tokens: int, encode: Callable[[str], Encoding], prefix: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield chunks of at most `max_tokens`, each with the whitespace before it.

    Every chunk also contains the tokens of `prefix` and the special tokens."""
    encoding = encode(prefix + text)
    if len(encoding) <= max_tokens:
        yield "", text
        return
    token_starts = [
        start - len(prefix)
        for (start, end), sequence_id in zip(
            encoding.offset_mapping, encoding.sequence_ids, strict=True
        )
        if sequence_id == 0 and end > len(prefix)
    ]
    boundaries = [
        [match.start() for match in pattern.finditer(text)]
        for pattern in (SENTENCE_OR_LINE_END, WHITESPACE_RUN)
    ]
    num_other_tokens = len(encoding) - len(token_starts)
    gap = ""
    start = 0
    while start < len(text):
        budget = max_tokens - num_other_tokens
        num_tokens = max_tokens + 1
        while (
            num_tokens > max_tokens
        ):  # a chunk may have more tokens than the same part of the text
            end = find_chunk_end(token_starts, boundaries, start, budget, len(text))
            num_tokens = len(encode(prefix + text[start:end]))
            budget -= max(num_tokens - max_tokens, 0)
        yield gap, text[start:end]
        whitespace = WHITESPACE_RUN.match(text, end)
        gap = whitespace[0] if whitespace else ""
        start = end + len(gap)


def find_chunk_end(
    token_starts: list[int],
    boundaries: list[list[int]],
    start: int,
    max_tokens: int,
    text_length: int,
) -> int:
    """Return the end of the chunk at `start`: at most `max_tokens`, chunks of even length."""
    if max_tokens < 1:
        raise ValueError(
            "max_input_length leaves no token for the text after the prefix and special tokens; "
            "set a larger max_input_length"
        )
    first = bisect_left(token_starts, start)
    num_left = len(token_starts) - first
    if num_left <= max_tokens:
        return text_length
    num_chunks = -(num_left // -max_tokens)
    even_end = token_starts[first + num_left // num_chunks]
    last_end = token_starts[first + max_tokens]
    for positions in boundaries:
        candidates = positions[bisect_right(positions, start) : bisect_right(positions, last_end)]
        if candidates:
            return min(candidates, key=lambda position: abs(position - even_end))
    return max(last_end, start + 1)


def find_chunk_starts(chunks: Iterable[tuple[str, str]]) -> list[int]:
    """Return the offset of every chunk that is not empty."""
    starts = []
    position = 0
    for gap, body in chunks:
        if body:
            starts.append(position + len(gap))
        position += len(gap) + len(body)
    return starts
