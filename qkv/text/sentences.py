"""Sentence splitting for German and English. Does not depend on tokenizers.

A sentence ends after a stop character and a closing quote or bracket that follows it, but not after
an abbreviation (Dr., z. B., U.S.), not between a number and a month (3. Oktober), and not before a
lowercase letter that follows a number, an ellipsis or a quote ("Why?" she asked)."""

from __future__ import annotations

import re

STOP_CHARACTERS = r"[.!?…。！？]"
CLOSING_CHARACTERS = r"[\"'”’“‘»«)\]]"
LOWERCASE_AHEAD = r"(?=[a-zäöüß])"
MONTH_PREFIXES = "Jan|Feb|Mär|Apr|Mai|Jun|Jul|Aug|Sep|Okt|Nov|Dez|Mar|May|Oct|Dec"
# One pattern per length, because a lookbehind needs a fixed width.
ABBREVIATIONS = ("[^\\W\\d_]", "Mr|Ms|Dr|St|Nr|Hr|Fr|ca|vs", "Mrs|bzw|Frl", "Prof|evtl")
NO_BOUNDARY_PATTERNS = (
    *(rf"(?<!\b(?:{words})\.)" for words in ABBREVIATIONS),
    rf"(?!(?<=\d\.)\s+(?:{MONTH_PREFIXES}|{LOWERCASE_AHEAD}))",
    *(rf"(?!(?<={dots})\s+{LOWERCASE_AHEAD})" for dots in (r"\.\.", "…")),
)
SENTENCE_BOUNDARY = re.compile(  # the whitespace between two sentences
    rf"(?:(?<={STOP_CHARACTERS}){''.join(NO_BOUNDARY_PATTERNS)}"
    rf"|(?<={STOP_CHARACTERS}{CLOSING_CHARACTERS})(?!\s+{LOWERCASE_AHEAD}))(\s+)"
)


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text, without the whitespace between them."""
    return SENTENCE_BOUNDARY.split(text)[::2]
