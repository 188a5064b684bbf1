"""Where sentences end: after a stop, and the quote or bracket that closes behind it. Knows no tokens."""

from __future__ import annotations

import re

STOP = r"[.!?…。！？]"
SENTENCE = re.compile(rf"(?:(?<={STOP})|(?<={STOP}[\"'”’)\]]))(\s+)")  # the blanks between two


def sentences(text: str) -> list[str]:
    """The sentences of a text, without the blanks between them."""
    return SENTENCE.split(text)[::2]
