"""Language detectors for translation models, by name.

config.json selects a detector with `task_specific_params.translation.language_detector`."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MAX_NGRAM = 4
# Log odds in tenths: no validation sentence, and 0.2% of words and phrases, are beyond on the wrong side.
CERTAIN_ODDS = 300
# Log odds of German against English by n-gram, in tenths; tools/language_detector.py computes them.
GERMAN_ENGLISH_FILE = Path(__file__).with_name("german_english.json")


def iter_ngrams(text: str) -> Iterator[str]:
    """Yield the words of a text and their character n-grams, lower case; `_` is the end of a word."""
    for word in re.findall(r"[^\W\d_]+", text.lower()):
        padded = f"_{word}_"
        yield f"={word}"
        yield from word
        for n in range(2, MAX_NGRAM + 1):
            yield from (padded[i : i + n] for i in range(len(padded) - n + 1))


@cache
def load_german_english_odds() -> dict[str, int]:
    odds: dict[str, int] = json.loads(GERMAN_ENGLISH_FILE.read_text("utf-8"))
    return odds


def compute_german_english_odds(text: str) -> int:
    """Return the log odds of German against English, in tenths.

    A naive Bayes classifier over words and character n-grams."""
    odds = load_german_english_odds()
    return sum(odds.get(ngram, 0) for ngram in iter_ngrams(text))


def detect_german_or_english(text: str) -> str:
    """Return `de` or `en`, the more probable language of a text; `de` if both are equally probable."""
    return "en" if compute_german_english_odds(text) < 0 else "de"


def is_certainly_german_or_english(text: str, language: str) -> bool:
    """Return whether a text is in the language `de` or `en` with near certainty; a few words are not.

    A text without letters, such as a date, is in every language."""
    if not any(map(str.isalpha, text)):
        return True
    odds = compute_german_english_odds(text)
    return abs(odds) >= CERTAIN_ODDS and language == ("en" if odds < 0 else "de")


@dataclass(frozen=True)
class LanguageDetector:
    """Detection of the language of a text: the most probable one, and whether it is one of them."""

    detect: Callable[[str], str]
    is_certainly: Callable[[str, str], bool]


LANGUAGE_DETECTORS = {
    "german-english": LanguageDetector(detect_german_or_english, is_certainly_german_or_english)
}
