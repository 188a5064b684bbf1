"""Moses tokenization: words and punctuation separated by spaces, as statistical and early neural
translation systems expect texts. Hyphens in words become `@-@`, and XML characters are escaped.

Abbreviations that end with a period are known for a few languages only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

ALPHA = r"[^\W\d_]"
NOT_ALPHA = r"[\W\d_]"
ALNUM = r"(?![²³¹¼-¾⁰-₉⅐-⅟①-⒛])[^\W_]"  # without fractions and raised digits
MULTIPLE_DOTS = "\ue000"  # a dot of several in a row, which are one token
HYPHEN = "@-@"
# fmt: off
ESCAPES = {
    "&": "&amp;", "|": "&#124;", "<": "&lt;", ">": "&gt;", "'": "&apos;", '"': "&quot;", "[": "&#91;",
    "]": "&#93;",
}
# The parts around an apostrophe, and their replacement, in order.
ENGLISH_APOSTROPHES = (
    (rf"({NOT_ALPHA})'({NOT_ALPHA})", r"\1 ' \2"), (rf"([^\w]|_)'({ALPHA})", r"\1 ' \2"),
    (rf"({ALPHA})'({NOT_ALPHA})", r"\1 ' \2"), (rf"({ALPHA})'({ALPHA})", r"\1 '\2"), (r"(\d)'(s)", r"\1 '\2"),
)
ROMANCE_APOSTROPHES = (
    (rf"({NOT_ALPHA})'({NOT_ALPHA})", r"\1 ' \2"), (rf"({NOT_ALPHA})'({ALPHA})", r"\1 ' \2"),
    (rf"({ALPHA})'({NOT_ALPHA})", r"\1 ' \2"), (rf"({ALPHA})'({ALPHA})", r"\1' \2"),
)
APOSTROPHES = {"en": ENGLISH_APOSTROPHES, "fr": ROMANCE_APOSTROPHES, "it": ROMANCE_APOSTROPHES}
OTHER_APOSTROPHES = ((r"'", r" ' "),)
# Words whose period belongs to them; before a number only: `No. 5`.
MOSES_ABBREVIATIONS = {
    "en": {
        *"Mr Mrs Ms Dr Prof St Sr Gen Sen Rep Gov Capt Col Lt Sgt Rev Hon Corp Bros vs v".split(),
        *"Jan Feb Mar Apr Jun Jul Aug Sep Oct Nov Dec".split(),
    },
    "de": {
        *"Dr Prof St Mio Mrd Nr Art Chr bzw usw ca evtl ggf etc".split(),
        *map(str, range(100)),  # ordinals
        *"II III IV VI VII VIII IX XI XII XIII XIV XV XVI XVII XVIII XIX XX".split(),
    },
    "fr": {*"MM etc av al sec".split()},
}
NUMBER_ABBREVIATIONS = {"en": {"No", "Art", "pp"}}
# fmt: on
OPENING = re.compile(r"[$£€¥(\[{¿¡]+")
CLOSING = re.compile(r"[,.?!:;\\%}\])]+")
QUOTES = re.compile(r"['\"„“`]+")


def tokenize_moses(text: str, language: str = "en") -> list[str]:
    """Return the tokens of a text."""
    text = re.sub(r"[\x00-\x1f]", "", re.sub(r"\s+", " ", text)).strip()
    text = re.sub(rf"((?!{ALNUM})[^\s.'`,\-])", r" \1 ", text)
    text = re.sub(rf"({ALNUM})-(?={ALNUM})", rf"\1 {HYPHEN} ", text)
    text = re.sub(r"\.{2,}", lambda match: f" {MULTIPLE_DOTS * len(match[0])} ", text)
    text = re.sub(r"(\D),", r"\1 , ", text)
    text = re.sub(r",(\D)", r" , \1", text)
    text = re.sub(r"(\d),$", r"\1 , ", text)
    for pattern, replacement in APOSTROPHES.get(language, OTHER_APOSTROPHES):
        text = re.sub(pattern, replacement, text)
    text = " ".join(_split_periods(text.split(), language))
    text = re.sub(r"\.' ?$", " . ' ", text).replace(MULTIPLE_DOTS, ".")
    return "".join(ESCAPES.get(character, character) for character in text).split()


def _split_periods(words: Sequence[str], language: str) -> Iterator[str]:
    """Yield the words, with the period of a sentence as a word of its own."""
    for i, word in enumerate(words):
        stem = word[:-1]
        following = words[i + 1] if i + 1 < len(words) else ""
        is_abbreviation = (
            ("." in stem and any(character.isalpha() for character in stem))
            or (len(stem) == 1 and stem.isalpha() and (stem.isupper() or language in ("de", "fr")))
            or stem in MOSES_ABBREVIATIONS.get(language, ())
            or following[:1].islower()
            or (following[:1].isdecimal() and stem in NUMBER_ABBREVIATIONS.get(language, ()))
        )
        if not word.endswith(".") or not stem or is_abbreviation:
            yield word
        else:
            yield from (stem, ".")


def unescape_moses(token: str) -> str:
    """Return the characters of a token without escapes."""
    if token == HYPHEN:
        return "-"
    for character, escape in reversed(ESCAPES.items()):
        token = token.replace(escape, character)
    return token


def detokenize_moses(tokens: Sequence[str], language: str = "en") -> str:
    """Return the text of tokens, with punctuation attached to words."""
    text = " ".join(tokens).replace(f" {HYPHEN} ", "-")
    words = [unescape_moses(word) for word in text.split()]
    parts: list[str] = []
    is_open = dict.fromkeys("'\"`", False)
    space = ""
    for i, word in enumerate(words):
        quote = '"' if word in ("„", "“") else word[:1]
        is_contraction = language == "en" and i > 0 and re.match(rf"'{ALPHA}", word)
        is_possessive = (
            language == "en"
            and word == "'"
            and not is_open["'"]
            and words[i - 1].endswith("s")
            and i > 0
        )
        is_elided = language in ("fr", "it", "ga") and re.search(rf"{ALPHA}'$", word)
        next_space = " "
        if OPENING.fullmatch(word):
            next_space = ""
        elif CLOSING.fullmatch(word):
            space = " " if language == "fr" and word in ("?", "!", ":", ";", "%") else ""
        elif is_contraction or is_possessive:
            space = ""
        elif is_elided and re.match(ALPHA, "".join(words[i + 1 : i + 2])):
            next_space = ""
        elif QUOTES.fullmatch(word):
            if is_open[quote]:
                space = ""
            else:
                next_space = ""
            is_open[quote] = not is_open[quote]
        parts += [space if parts else "", word]
        space = next_space
    return "".join(parts)


def locate_moses_tokens(text: str, tokens: Sequence[str]) -> list[tuple[int, int]]:
    """Return the characters of the text that each token covers."""
    spans = []
    end = 0
    for token in tokens:
        surface = unescape_moses(token)
        start = text.find(surface, end)
        if start < 0:  # of several characters with a removed one between them
            start, stop = end, end
        else:
            stop = start + len(surface)
        spans.append((start, stop))
        end = stop
    return spans
