"""Words and phrases for the built-in translation model, and variants of its sentence pairs.

    python tools/phrase_pairs.py train.tsv OUT [--without FILE ...] [--cldr FOLDER] [--po FILE ...]

OUT/phrases.tsv        to, source, target: words and phrases in both directions
OUT/phrases-valid.tsv  the same for 1,000 rows; no text of these is in phrases.tsv
OUT/variants.tsv       short sentences and phrases without their final stop, in lower case, in upper
                       case, and copies of texts that are already in the target language

`train.tsv` is the table of tools/tatoeba.py. Words and phrases are those that its sentences are
consistently translated with (tools/word_alignment.py), unless they are sentences by themselves.
`--cldr` is a folder with the npm packages cldr-annotations-full, cldr-dates-full and
cldr-localenames-full (Unicode License v3): names of things, days, months, countries and languages.
`--po` are message catalogs, whose short messages are headings and labels. No text of the files
`--without` is written."""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from tools.word_alignment import align_corpus, extract_phrases

HEADER = "to\tsource\ttarget\n"
GERMAN, ENGLISH = ">>de<<", ">>en<<"  # codes of the target language
WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*\.?|\d+|[^\w\s]")
FINAL_STOP = re.compile(r"[.!?…]+$")
MAX_PHRASE_WORDS = 4
NUM_VALID = 1000
NUM_FUNCTION_WORDS = 60
Pair = tuple[str, str]  # English, German
Row = tuple[str, str, str]  # code of the target language, source, target


def read_sentence_pairs(path: Path) -> list[Pair]:
    """Return the distinct pairs of a table that has every pair in both directions."""
    rows = (line.split("\t") for line in path.read_text("utf-8").splitlines()[1:])
    return list(dict.fromkeys((source, target) for to, source, target in rows if to == GERMAN))


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


def extract_phrase_rows(pairs: list[Pair]) -> list[Row]:
    """Return the words and phrases of sentence pairs, each with its most frequent translation."""
    sides = [[split_words(pair[side]) for pair in pairs] for side in (0, 1)]
    keys = [[[word.lower() for word in sentence] for sentence in side] for side in sides]
    function_words = [find_function_words(side) for side in keys]
    cases = [collect_cases(side) for side in sides]
    counts: Counter[Pair] = Counter()
    for links, english, german in zip(align_corpus(keys[0], keys[1]), *sides, strict=True):
        words = truecase(english, cases[0]), truecase(german, cases[1])
        for spans in extract_phrases(links, MAX_PHRASE_WORDS):
            phrases = [side[slice(*span)] for side, span in zip(words, spans, strict=True)]
            if all(map(is_phrase, phrases, function_words)):
                counts[" ".join(phrases[0]), " ".join(phrases[1])] += 1
    return [
        *select_rows(counts, ENGLISH, source_side=1),
        *select_rows(counts, GERMAN, source_side=0),
    ]


def find_function_words(sentences: Iterable[list[str]]) -> set[str]:
    """Return the most frequent words of a language, lower case."""
    counts = Counter(word for sentence in sentences for word in sentence)
    return {word for word, _ in counts.most_common(NUM_FUNCTION_WORDS)}


def is_phrase(words: list[str], function_words: set[str]) -> bool:
    """Return whether these are one word, or several that do not end in a function word."""
    is_complete = len(words) == 1 or words[-1].lower() not in function_words
    return is_complete and all(word[0].isalpha() for word in words)


def select_rows(counts: Counter[Pair], to: str, source_side: int) -> Iterator[Row]:
    """Yield the most frequent translation of each phrase, if both are frequent enough."""
    totals = [Counter[str](), Counter[str]()]
    best: dict[str, tuple[int, str]] = {}
    for pair, count in counts.items():
        source, target = pair[source_side], pair[1 - source_side]
        totals[0][source] += count
        totals[1][target] += count
        best[source] = max(best.get(source, (0, "")), (count, target))
    for source, (count, target) in best.items():
        num_words = max(source.count(" "), target.count(" ")) + 1
        is_frequent = count >= (2 if num_words == 1 else 3)
        if is_frequent and count >= 0.2 * totals[0][source] and count >= 0.05 * totals[1][target]:
            yield to, source, target


def read_cldr_pairs(folder: Path) -> list[Pair]:
    """Return the names that English and German data of CLDR have in common."""
    sides = []
    for language in ("en", "de"):
        names: dict[str, str] = {}
        annotations = folder / f"cldr-annotations-full/annotations/{language}/annotations.json"
        entries = json.loads(annotations.read_text("utf-8"))["annotations"]["annotations"]
        names |= {key: entry["tts"][0] for key, entry in entries.items() if "tts" in entry}
        for package, file in (
            ("localenames", "territories"), ("localenames", "languages"),
            ("dates", "ca-gregorian"), ("dates", "dateFields"),
        ):  # fmt: skip
            path = folder / f"cldr-{package}-full/main/{language}/{file}.json"
            names |= dict(flatten_json(json.loads(path.read_text("utf-8"))["main"][language]))
        sides.append(names)
    english, german = sides
    return [(english[key], german[key]) for key in english if key in german]


def flatten_json(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the texts of nested objects by path; short forms and formats are left out."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in ("abbreviated", "narrow", "short", "dateFormats", "timeFormats"):
                yield from flatten_json(item, f"{path}/{key}")
    elif isinstance(value, str):
        yield path, value


def read_po_pairs(path: Path) -> list[Pair]:
    """Return the one-line messages of a catalog and their translations."""
    pattern = re.compile(r'^msgid "(.+)"\nmsgstr "(.+)"\n\n', flags=re.MULTILINE)
    return pattern.findall(path.read_text("utf-8"))


def is_plain(text: str) -> bool:
    """Return whether a text is a short phrase of words."""
    return (
        bool(re.fullmatch(r"[^\W\d_][^\d_%{}<>\\/()\[\]:;“”\"&=…]*", text))
        and len(text.split()) <= 6
    )


def format_rows(pairs: Iterable[Row]) -> str:
    return HEADER + "".join("\t".join(row) + "\n" for row in pairs)


def both_directions(pairs: Iterable[Pair]) -> Iterator[Row]:
    for a, b in pairs:
        yield ENGLISH, b, a
        yield GERMAN, a, b


def make_variants(rows: Iterable[Row], rng: random.Random) -> Iterator[Row]:
    """Yield variants of short rows; each kind is drawn independently, more often for shorter rows."""
    for to, source, target in rows:
        num_words = len(source.split())
        if num_words > 10:
            continue
        share = 0.5 if num_words <= 3 else 0.1
        bare_source = FINAL_STOP.sub("", source)
        bare_target = FINAL_STOP.sub("", target)
        if rng.random() < share and bare_source != source:
            yield to, bare_source, bare_target
        if rng.random() < share:
            yield to, bare_source.lower(), bare_target
        if rng.random() < share / 2:
            yield to, source.lower(), target
        if rng.random() < share / 2:
            yield to, source.upper(), target.upper()
        if rng.random() < share / 2:
            yield to, target, target  # a copy: the text is already in the target language


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--without", type=Path, nargs="*", default=[], help="held-out texts")
    parser.add_argument("--cldr", type=Path, help="folder of CLDR's npm packages")
    parser.add_argument("--po", type=Path, nargs="*", default=[], help="message catalogs")
    options = parser.parse_args()
    rng = random.Random(0)
    sentence_pairs = read_sentence_pairs(options.table)
    sentences = {FINAL_STOP.sub("", text).lower() for pair in sentence_pairs for text in pair}
    sources = {
        "extracted": [
            row for row in extract_phrase_rows(sentence_pairs) if row[1].lower() not in sentences
        ]
    }
    if options.cldr:
        sources["CLDR"] = [*both_directions(read_cldr_pairs(options.cldr))]
    catalog_pairs = [pair for path in options.po for pair in read_po_pairs(path)]
    sources["catalogs"] = [*both_directions(catalog_pairs)]
    held_out = {
        field
        for path in options.without
        for line in path.read_text("utf-8").splitlines()
        for field in line.split("\t")
    }
    rows: dict[Row, None] = {}
    for name, candidates in sources.items():
        kept = [row for row in candidates if is_plain(row[1]) and is_plain(row[2])]
        rows |= dict.fromkeys(row for row in kept if not held_out & {*row[1:]})
        print(f"{name}: {len(kept):,} rows")
    valid = rng.sample([*rows], NUM_VALID)
    valid_texts = {text.lower() for row in valid for text in row[1:]}
    train = [row for row in rows if not valid_texts & {text.lower() for text in row[1:]}]
    options.out.mkdir(parents=True, exist_ok=True)
    variants = [*make_variants([*train, *both_directions(sentence_pairs)], rng)]
    files = {"phrases": train, "phrases-valid": valid, "variants": variants}
    for name, table in files.items():
        (options.out / f"{name}.tsv").write_text(format_rows(table), encoding="utf-8")
        print(f"{name}.tsv: {len(table):,} rows")


if __name__ == "__main__":
    main()
