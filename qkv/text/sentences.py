"""Where sentences end: after a stop, and the quote or bracket that closes behind it. Knows no tokens.

Not after what is short for a word (Dr., z. B., U.S.); not between a number and a month (3. Oktober); nor,
after a number, dots or a quote, where it goes on in small letters ("Why?" she asked)."""

from __future__ import annotations

import re

STOP, CLOSED = r"[.!?…。！？]", r"[\"'”’“‘»«)\]]"
SMALL = r"(?=[a-zäöüß])"
MONTHS = (
    r"Jan|Feb|Mär|Apr|Mai|Jun|Jul|Aug|Sep|Okt|Nov|Dez|Mar|May|Oct|Dec"  # as they begin, German and English
)
SHORT = ("[^\\W\\d_]", "Mr|Ms|Dr|St|Nr|Hr|Fr|ca|vs", "Mrs|bzw|Frl", "Prof|evtl")  # by their lengths
GOES_ON = (
    *(rf"(?<!\b(?:{words})\.)" for words in SHORT),
    rf"(?!(?<=\d\.)\s+(?:{MONTHS}|{SMALL}))",
    *(rf"(?!(?<={dots})\s+{SMALL})" for dots in (r"\.\.", "…")),
)
SENTENCE = re.compile(  # the blanks between two
    rf"(?:(?<={STOP}){''.join(GOES_ON)}|(?<={STOP}{CLOSED})(?!\s+{SMALL}))(\s+)"
)


def sentences(text: str) -> list[str]:
    """The sentences of a text, without the blanks between them."""
    return SENTENCE.split(text)[::2]
