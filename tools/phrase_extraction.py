"""Words and phrases of sentence pairs, by word alignment."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from tools.tatoeba import ENGLISH, GERMAN, Pair, Row
from tools.word_alignment import align_corpus, extract_phrases

WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*\.?|\d+|[^\w\s]")
NEGATIONS = (
    re.compile(r"\b(?:not|no|never|nothing|nobody|none|neither|without|cannot)\b|n['’]t\b", re.I),
    re.compile(r"\b(?:nicht|kein\w*|nie|niemals|nichts|niemand\w*|weder|ohne)\b", re.I),
)
# German phrases in the accusative, dative or genitive, as their first word shows.
OBLIQUE = re.compile(
    r"(?:de[nms]|(?:[mdsk]?ein|ihr|unser|eur)e[nmrs]|(?:dies|jed|jen)e[nm]|zu) .+|der \w+en .+",
    re.I,
)
MAX_PHRASE_WORDS = 4
NUM_FUNCTION_WORDS = 60


@dataclass(frozen=True)
class Corpus:
    """Sentence pairs as words, whose first word has the spelling that it has inside of sentences."""

    english: list[list[str]]
    german: list[list[str]]


def split_corpus(pairs: Iterable[Pair]) -> Corpus:
    sides = [[split_words(text) for text in side] for side in zip(*pairs, strict=True)]
    cases = map(collect_cases, sides)
    english, german = (
        [truecase(sentence, spellings) for sentence in side]
        for side, spellings in zip(sides, cases, strict=True)
    )
    return Corpus(english, german)


def split_words(text: str) -> list[str]:
    """Return words and punctuation marks; a full stop is a word of its own."""
    words = []
    for match in WORD.finditer(text):
        word = match[0]
        if len(word) > 1 and word.endswith("."):
            words += [word[:-1], "."]
        else:
            words.append(word)
    return words


def collect_cases(sentences: Iterable[list[str]]) -> dict[str, str]:
    """Return the most frequent spelling inside of sentences of every lower-case word."""
    spellings: dict[str, Counter[str]] = defaultdict(Counter)
    for sentence in sentences:
        for previous, word in pairwise(sentence):
            if previous[-1].isalnum() or previous == ",":
                spellings[word.lower()][word] += 1
    return {word: counts.most_common(1)[0][0] for word, counts in spellings.items()}


def truecase(sentence: list[str], cases: dict[str, str]) -> list[str]:
    """Return the sentence with the usual spelling of its first word."""
    first, *rest = sentence
    return [cases.get(first.lower(), first), *rest]


def count_phrases(corpus: Corpus) -> Counter[Pair]:
    """Return how often each phrase is translated with which phrase."""
    sides = (corpus.english, corpus.german)
    keys = [[[word.lower() for word in sentence] for sentence in side] for side in sides]
    function_words = [find_function_words(side) for side in keys]
    counts: Counter[Pair] = Counter()
    for links, *words in zip(align_corpus(keys[0], keys[1]), *sides, strict=True):
        for spans in extract_phrases(links, MAX_PHRASE_WORDS):
            phrases = [side[slice(*span)] for side, span in zip(words, spans, strict=True)]
            pair = (" ".join(phrases[0]), " ".join(phrases[1]))
            if all(map(is_phrase, phrases, function_words)) and has_equal_negation(pair):
                counts[pair] += 1
    return counts


def find_function_words(sentences: Iterable[list[str]]) -> set[str]:
    """Return the most frequent words of a language, lower case."""
    counts = Counter(word for sentence in sentences for word in sentence)
    return {word for word, _ in counts.most_common(NUM_FUNCTION_WORDS)}


def is_phrase(words: list[str], function_words: set[str]) -> bool:
    """Return whether these are one word, or several that do not end in a function word."""
    is_complete = len(words) == 1 or words[-1].lower() not in function_words
    return is_complete and all(word[0].isalpha() for word in words)


def has_equal_negation(pair: Pair) -> bool:
    """Return whether both phrases or none of them are negated; a word that is not aligned is lost."""
    english, german = (
        bool(pattern.search(text)) for pattern, text in zip(NEGATIONS, pair, strict=True)
    )
    return english == german


def select_rows(counts: Counter[Pair]) -> Iterator[Row]:
    """Yield the best translation of each phrase in both directions.

    German translations are in the nominative as far as the first word shows it."""
    yield from select_translations(counts, ENGLISH, source_side=1)
    nominative = {pair: count for pair, count in counts.items() if not OBLIQUE.match(pair[1])}
    yield from select_translations(Counter(nominative), GERMAN, source_side=0)


def select_translations(counts: Counter[Pair], to: str, source_side: int) -> Iterator[Row]:
    """Yield the translation that is most specific to each phrase, if both are frequent enough."""
    totals = [Counter[str](), Counter[str]()]
    for pair, count in counts.items():
        for total, text in zip(totals, pair, strict=True):
            total[text] += count
    best: dict[str, tuple[float, int, str]] = {}
    for pair, count in counts.items():
        source, target = pair[source_side], pair[1 - source_side]
        shares = count / totals[source_side][source], count / totals[1 - source_side][target]
        num_words = max(source.count(" "), target.count(" ")) + 1
        if count >= (2 if num_words == 1 else 3) and shares[0] >= 0.2 and shares[1] >= 0.05:
            candidate = (shares[0] * shares[1], count, target)
            best[source] = max(best.get(source, candidate), candidate)
    for source, (_, _, target) in best.items():
        yield to, source, target
