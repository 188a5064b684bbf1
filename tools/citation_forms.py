"""Words in the form in which dictionaries list them: nouns with articles, infinitives, numerals.

Sentences show these forms rarely: “the apple” is most often an object, `den Apfel`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise

from tools.phrase_extraction import Corpus, select_translations
from tools.tatoeba import ENGLISH, GERMAN, Pair, Row

PREPOSITIONS = "an auf aus bei hinter in mit nach neben seit über unter von vor während zu".split()
OBLIQUE_DER = "oblique der"  # `der` after a preposition or a noun: dative or genitive
# The nominative articles of masculine, feminine and neuter nouns, and how much the articles before a
# noun tell about its gender. The plural has the same article as the feminine.
ARTICLES = {"masculine": ("der", "ein"), "feminine": ("die", "eine"), "neuter": ("das", "ein")}
EVIDENCE = {
    "masculine": {"einen": 2, "den": 1, "der": 1, "ein": 1},
    "feminine": {"eine": 2, "die": 1, "einer": 1, OBLIQUE_DER: 1},
    "neuter": {"das": 2, "ein": 1},
}
INDEFINITE = {"ein", "eine", "einen", "einem", "einer"}
GERMAN_ARTICLES = {*INDEFINITE, "der", "die", "das", "den", OBLIQUE_DER}
MIN_ARTICLES = 3  # fewer say little about the gender of a noun
SEPARABLE = re.compile(
    r"(ab|an|auf|aus|bei|ein|fest|her|hin|los|mit|nach|vor|weg|zurück|zu)zu(\w+n)"
)

UNITS = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen
""".split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
GERMAN_UNITS = """
    null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn
    sechzehn siebzehn achtzehn neunzehn
""".split()
GERMAN_TENS = "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()


def list_citation_forms(corpus: Corpus, counts: Counter[Pair]) -> Iterator[Row]:
    """Yield nouns with articles and infinitives, in both directions."""
    words = Counter({pair: count for pair, count in counts.items() if " " not in "".join(pair)})
    yield from list_nouns(corpus, words)
    verbs = count_infinitives(counts) + count_verbs(corpus, words)
    yield from select_translations(verbs, ENGLISH, source_side=1)
    yield from select_translations(verbs, GERMAN, source_side=0)


def list_nouns(corpus: Corpus, words: Counter[Pair]) -> Iterator[Row]:
    """Yield every noun with a definite and an indefinite article."""
    german_articles = count_followers(map(mark_oblique, corpus.german), GERMAN_ARTICLES)
    english_articles = count_followers(corpus.english, {"the", "a", "an"})
    rows = [
        *select_translations(words, ENGLISH, source_side=1),
        *select_translations(words, GERMAN, source_side=0),
    ]
    for to, source, target in rows:
        english, german = (target, source) if to == ENGLISH else (source, target)
        if not german[0].isupper() or not english_articles["the", english]:
            continue
        num_articles = sum(german_articles[article, german] for article in GERMAN_ARTICLES)
        if num_articles < MIN_ARTICLES:
            continue
        definite, indefinite = choose_articles(german_articles, german)
        pairs = []
        if german_articles[definite, german]:
            pairs.append((f"the {english}", f"{definite} {german}"))
        article = max(("a", "an"), key=lambda word: english_articles[word, english])
        is_singular = any(german_articles[word, german] for word in INDEFINITE)
        if is_singular and english_articles[article, english]:
            pairs.append((f"{article} {english}", f"{indefinite} {german}"))
        for pair in pairs:
            yield (to, *pair[::-1]) if to == ENGLISH else (to, *pair)


def mark_oblique(sentence: list[str]) -> list[str]:
    """Return a German sentence in which `der` is marked where it cannot be a nominative."""
    previous_words = ["", *sentence]
    return [
        OBLIQUE_DER
        if word == "der" and (previous in PREPOSITIONS or previous[:1].isupper())
        else word
        for previous, word in zip(previous_words, sentence, strict=False)
    ]


def count_followers(sentences: Iterable[list[str]], first_words: set[str]) -> Counter[Pair]:
    """Return how often each word stands after each of these words."""
    return Counter(
        (previous.lower(), word)
        for sentence in sentences
        for previous, word in pairwise(sentence)
        if previous.lower() in first_words
    )


def choose_articles(counts: Counter[Pair], noun: str) -> tuple[str, str]:
    """Return the articles of the gender that the articles before a noun show."""
    scores = {
        gender: sum(weight * counts[article, noun] for article, weight in evidence.items())
        for gender, evidence in EVIDENCE.items()
    }
    return ARTICLES[max(scores, key=lambda gender: scores[gender])]


def count_infinitives(counts: Counter[Pair]) -> Counter[Pair]:
    """Return the pairs of `to` and `zu` with a verb, as pairs of infinitives: (to open, öffnen)."""
    verbs: Counter[Pair] = Counter()
    for (english, german), count in counts.items():
        if not re.fullmatch(r"to [a-z]+(?: [a-z]+)?", english):
            continue
        if match := re.fullmatch(r"zu ([a-zäöüß]+n)", german):
            verbs[english, match[1]] += count
        elif match := SEPARABLE.fullmatch(german):
            verbs[english, match[1] + match[2]] += count
    return verbs


def count_verbs(corpus: Corpus, words: Counter[Pair]) -> Counter[Pair]:
    """Return the pairs of words that stand after `to` and `zu` elsewhere, as pairs of infinitives."""
    after_to = count_followers(corpus.english, {"to"})
    after_zu = count_followers(corpus.german, {"zu"})
    return Counter(
        {
            (f"to {english}", german): count
            for (english, german), count in words.items()
            if after_to["to", english] > 1
            and after_zu["zu", german] > 1
            and re.fullmatch(r"[a-zäöüß]+n", german)
        }
    )


def list_numerals() -> Iterator[Pair]:
    """Yield the numbers from 0 to 100, and the hundreds, in words."""
    for number in range(100):
        yield spell_number(number), spell_german_number(number)
    for number in range(1, 10):
        unit = "ein" if number == 1 else GERMAN_UNITS[number]
        yield f"{UNITS[number]} hundred", f"{unit}hundert"
    yield "one thousand", "eintausend"


def spell_number(number: int) -> str:
    """Return a number below 100 in English."""
    if number < 20:
        return UNITS[number]
    ten, unit = TENS[number // 10 - 2], number % 10
    return f"{ten}-{UNITS[unit]}" if unit else ten


def spell_german_number(number: int) -> str:
    """Return a number below 100 in German."""
    if number < 20:
        return GERMAN_UNITS[number]
    ten, unit = GERMAN_TENS[number // 10 - 2], number % 10
    prefix = "ein" if unit == 1 else GERMAN_UNITS[unit]
    return f"{prefix}und{ten}" if unit else ten
