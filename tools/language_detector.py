"""Compute the table of the language detector of the built-in translation model.

    python -m tools.language_detector OUT.json TABLE.tsv [TABLE.tsv ...] [--valid TABLE.tsv ...]

The tables have the columns `to`, `source` and `target`: those of tools/tatoeba.py and of
tools/phrase_pairs.py. The output maps words and n-grams to the log odds of German against English, in
tenths. The accuracy on the sources of the tables `--valid` is printed."""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from qkv.builtin.language import detect_german_or_english, iter_ngrams, load_german_english_odds

NUM_NGRAMS = 6000
MIN_COUNT = 20
PRIOR_COUNT = 2.0  # added to every count


def read_sources(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the language and the text of every source."""
    for line in path.read_text("utf-8").splitlines()[1:]:
        to, source, _ = line.split("\t")
        yield ("de" if to == ">>en<<" else "en"), source


def compute_odds(texts: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Return the log odds of the most informative n-grams, in tenths."""
    counts: dict[str, Counter[str]] = {"de": Counter(), "en": Counter()}
    for language, text in texts:
        counts[language].update(iter_ngrams(text))
    totals = counts["de"] + counts["en"]
    num_types = len(totals) * PRIOR_COUNT
    sizes = {language: counter.total() + num_types for language, counter in counts.items()}

    def log_probability(ngram: str, language: str) -> float:
        return math.log((counts[language][ngram] + PRIOR_COUNT) / sizes[language])

    odds = {
        ngram: log_probability(ngram, "de") - log_probability(ngram, "en")
        for ngram, count in totals.items()
        if count >= MIN_COUNT
    }
    by_information = sorted(odds, key=lambda n: (-math.sqrt(totals[n]) * abs(odds[n]), n))
    return {ngram: round(10 * odds[ngram]) for ngram in sorted(by_information[:NUM_NGRAMS])}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--valid", nargs="*", type=Path, default=[])
    options = parser.parse_args()
    odds = compute_odds(row for path in options.tables for row in read_sources(path))
    text = json.dumps(odds, ensure_ascii=False, separators=(",", ":"))
    options.out.write_text(text + "\n", encoding="utf-8")
    load_german_english_odds.cache_clear()
    for path in options.valid:
        rows = [*read_sources(path)]
        num_correct = sum(detect_german_or_english(text) == language for language, text in rows)
        print(f"{path.name}: {num_correct / len(rows):.1%} of {len(rows):,} texts")


if __name__ == "__main__":
    main()
