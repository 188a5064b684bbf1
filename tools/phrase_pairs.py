"""Words and phrases for the built-in translation model, and variants of its sentence pairs.

    python -m tools.phrase_pairs train.tsv OUT [--without FILE ...] [--cldr FOLDER] [--po FILE ...]
        [--json EN.json DE.json ...]

OUT/phrases.tsv        to, source, target: words and phrases in both directions
OUT/phrases-valid.tsv  the same for 1,000 rows; no text of these is in phrases.tsv
OUT/variants.tsv       short sentences and phrases without their final stop, in lower case, in upper
                       case, and copies of texts that are already in the target language

`train.tsv` is the table of tools/tatoeba.py. Words and phrases are those that its sentences are
consistently translated with (tools/phrase_extraction.py), unless they are sentences by themselves;
nouns with articles, infinitives and numerals are added (tools/citation_forms.py).
`--cldr` is a folder with the npm packages cldr-annotations-full, cldr-dates-full and
cldr-localenames-full (Unicode License v3): names of things, days, months, countries and languages.
`--po` and `--json` are message catalogs, whose short messages are headings and labels. No text of the
files `--without` is written."""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tools.citation_forms import list_citation_forms, list_numerals
from tools.phrase_extraction import count_phrases, select_rows, split_corpus
from tools.tatoeba import GERMAN, Pair, Row, both_directions, read_held_out, write_table

FINAL_STOP = re.compile(r"[.!?…]+$")
NOUN_WITH_ARTICLE = re.compile(r"(?:the|an?) \S+")  # their German articles are chosen by gender
OMITTED_KEYS = "abbreviated narrow short dateFormats timeFormats terms".split()
NUM_VALID = 1000


def read_sentence_pairs(path: Path) -> list[Pair]:
    """Return the distinct pairs of a table that has every pair in both directions."""
    rows = (line.split("\t") for line in path.read_text("utf-8").splitlines()[1:])
    return list(dict.fromkeys((source, target) for to, source, target in rows if to == GERMAN))


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
    """Yield the texts of nested objects by path; short forms, formats and search terms are
    left out."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in OMITTED_KEYS:
                yield from flatten_json(item, f"{path}/{key}")
    elif isinstance(value, str):
        yield path, value


def read_po_pairs(path: Path) -> list[Pair]:
    """Return the one-line messages of a catalog and their translations."""
    pattern = re.compile(r'^msgid "(.+)"\nmsgstr "(.+)"\n\n', flags=re.MULTILINE)
    return pattern.findall(path.read_text("utf-8"))


def read_json_pairs(english: Path, german: Path) -> list[Pair]:
    """Return the messages of two catalogs that have the same path in both."""
    sides = []
    for path in (english, german):
        value = json.loads(path.read_text("utf-8"))
        sides.append(dict(flatten_json(value.get(path.stem, value))))  # iD: the language is a key
    return [(text, sides[1][key]) for key, text in sides[0].items() if key in sides[1]]


def is_plain(text: str) -> bool:
    """Return whether a text is a short phrase of words."""
    return (
        bool(re.fullmatch(r"[^\W\d_](?:[^\d_%{}<>\\/()\[\]:;“”\"&=…,]|, )*", text))
        and len(text.split()) <= 6
        and text.split() == text.split(" ")
    )


def make_variants(rows: Iterable[Row], rng: random.Random) -> Iterator[Row]:
    """Yield variants of short rows; each kind is drawn independently, more often for shorter rows."""
    for to, source, target in rows:
        num_words = len(source.split())
        if num_words > 10:
            continue
        share = 1.0 if num_words <= 4 else 0.1
        bare_source = FINAL_STOP.sub("", source)
        bare_target = FINAL_STOP.sub("", target)
        if rng.random() < share and bare_source != source:
            yield to, bare_source, bare_target
        if rng.random() < share and bare_source != bare_source.lower():
            yield to, bare_source.lower(), bare_target
        if rng.random() < share / 4:
            yield to, source.lower(), target
        if rng.random() < share / 8:
            yield to, source.upper(), target.upper()
        if rng.random() < share / 8:
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
    parser.add_argument(
        "--json",
        type=Path,
        nargs=2,
        action="append",
        default=[],
        help="English and German catalogs",
    )
    options = parser.parse_args()
    rng = random.Random(0)
    sentence_pairs = read_sentence_pairs(options.table)
    sentences = {FINAL_STOP.sub("", text).lower() for pair in sentence_pairs for text in pair}
    corpus = split_corpus(sentence_pairs)
    counts = count_phrases(corpus)
    catalog_pairs = [pair for path in options.po for pair in read_po_pairs(path)]
    catalog_pairs += [pair for paths in options.json for pair in read_json_pairs(*paths)]
    sources = {
        "citation forms": [*list_citation_forms(corpus, counts)],
        "extracted": [
            (to, source, target)
            for to, source, target in select_rows(counts)
            if source.lower() not in sentences
            and not (to == GERMAN and NOUN_WITH_ARTICLE.fullmatch(source))
        ],
        "numerals": [*both_directions(list_numerals())],
        "CLDR": [*both_directions(read_cldr_pairs(options.cldr))] if options.cldr else [],
        "catalogs": [*both_directions(catalog_pairs)],
    }
    held_out = read_held_out(options.without)
    translations: dict[Pair, str] = {}  # by code and source; the first source of data decides
    for name, candidates in sources.items():
        counts_by_row = Counter(
            row for row in candidates if all(map(is_plain, row[1:])) and not held_out & {*row[1:]}
        )
        for to, source, target in sorted(counts_by_row, key=lambda row: -counts_by_row[row]):
            translations.setdefault((to, source), target)
        print(f"{name}: {len(counts_by_row):,} rows")
    rows = [(to, source, target) for (to, source), target in translations.items()]
    valid = rng.sample(rows, NUM_VALID)
    valid_texts = {text.lower() for row in valid for text in row[1:]}
    train = [row for row in rows if not valid_texts & {text.lower() for text in row[1:]}]
    options.out.mkdir(parents=True, exist_ok=True)
    variants = [*make_variants([*train, *both_directions(sentence_pairs)], rng)]
    files = {"phrases": train, "phrases-valid": valid, "variants": variants}
    for name, table in files.items():
        write_table(options.out / f"{name}.tsv", table)
        print(f"{name}.tsv: {len(table):,} rows")


if __name__ == "__main__":
    main()
