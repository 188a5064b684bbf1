"""Portions: a text that is too long in parts that are not, alike in length. They end with sentences or lines
where they can, else before a blank, else anywhere."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator

from qkv.text import Encoding
from qkv.text.sentences import SENTENCE

END = re.compile(rf"{SENTENCE.pattern}|\s*\n")  # of a sentence, or of a line
BLANK = re.compile(r"\s+")


def portions(
    text: str, limit: int, encode: Callable[[str], Encoding], before: str = ""
) -> Iterator[tuple[str, str]]:
    """Parts of at most `limit` tokens, those of `before` among them, each after the blanks before it."""
    whole = encode(before + text)
    if len(whole) <= limit:
        yield "", text
        return
    own = zip(whole.offsets, whole.sequence, strict=True)
    starts = [start - len(before) for (start, end), owner in own if owner == 0 and end > len(before)]
    borders = [[found.start() for found in end.finditer(text)] for end in (END, BLANK)]
    around, gap, start = len(whole) - len(starts), "", 0
    while start < len(text):
        room, count = limit - around, limit + 1
        while count > limit:  # a part has a token more, now and then, than it had in the whole
            end = border(starts, borders, start, room, len(text))
            count = len(encode(before + text[start:end]))
            room -= max(count - limit, 0)
        yield gap, text[start:end]
        blanks = BLANK.match(text, end)
        gap = blanks[0] if blanks else ""
        start = end + len(gap)


def border(starts: list[int], borders: list[list[int]], start: int, room: int, last: int) -> int:
    """Where the part from `start` on ends that has at most `room` tokens, if what is left is cut evenly."""
    if room < 1:
        raise ValueError("too few tokens are read at once to cut a text; expected a greater length")
    first = bisect_left(starts, start)
    left = len(starts) - first
    if left <= room:
        return last
    count = -(left // -room)
    aim, most = starts[first + left // count], starts[first + room]
    for places in borders:
        near = places[bisect_right(places, start) : bisect_right(places, most)]
        if near:
            return min(near, key=lambda place: abs(place - aim))
    return max(most, start + 1)


def begins(parts: Iterable[tuple[str, str]]) -> list[int]:
    """Where in the text each part begins that says something."""
    found, place = [], 0
    for gap, body in parts:
        found += [place + len(gap)] if body else []
        place += len(gap + body)
    return found
