"""Language detectors for translation models, by name.

config.json selects a detector with `task_specific_params.translation.language_detector`."""

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

MAX_NGRAM = 4
# Log odds of German against English by n-gram, in tenths; tools/language_detector.py computes them.
GERMAN_ENGLISH_FILE = Path(__file__).with_name("german_english.json")


def iter_ngrams(text: str) -> Iterator[str]:
    """Yield the words of a text and their character n-grams, lower case; `_` is the end of a word."""
    for word in re.findall(r"[^\W\d_]+", text.lower()):
        padded = f"_{word}_"
        yield f"={word}"
        for n in range(1, MAX_NGRAM + 1):
            yield from (padded[i : i + n] for i in range(len(padded) - n + 1))


@cache
def load_german_english_odds() -> dict[str, int]:
    odds: dict[str, int] = json.loads(GERMAN_ENGLISH_FILE.read_text("utf-8"))
    return odds


def detect_german_or_english(text: str) -> str:
    """Return `de` or `en`, the more probable language of a text; `de` if both are equally probable.

    A naive Bayes classifier over words and character n-grams."""
    odds = load_german_english_odds()
    return "en" if sum(odds.get(ngram, 0) for ngram in iter_ngrams(text)) < 0 else "de"


LANGUAGE_DETECTORS: dict[str, Callable[[str], str]] = {"german-english": detect_german_or_english}
