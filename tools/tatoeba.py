"""Tatoeba's sentence pairs for the built-in model: both directions in one table, and pairs held out.

    python tools/tatoeba.py deu-eng.tsv.xz OUT [fra-eng.tsv.xz]

OUT/train.tsv   to, source, target: every pair twice; `to` is the language asked for, >>en<< or >>de<<
OUT/valid.tsv   the same of 1,000 pairs                 OUT/test.de, OUT/test.en   2,000 pairs, line by line
OUT/more.en     of a second file's English sentences those that are in no pair of the first

Neither side of a held-out pair occurs in the training data, in any pair."""

from __future__ import annotations

import lzma
import random
import sys
from collections.abc import Iterable
from pathlib import Path

VALID, TEST = 1000, 2000
Pair = tuple[str, str]  # English, German


def read(path: Path) -> list[Pair]:
    """Every different pair, in the order of the file; spaces are single, none at the ends."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        rows = (tuple(" ".join(side.split()) for side in line.split("\t")[:2]) for line in file)
        return list(dict.fromkeys((row[0], row[1]) for row in rows if len(row) == 2 and all(row)))


def split(pairs: list[Pair], rng: random.Random) -> tuple[list[Pair], list[Pair], list[Pair]]:
    """To learn from, to choose by, to test with: no sentence is in two of them."""
    order, held = rng.sample(pairs, len(pairs)), list[Pair]()
    english, german = set[str](), set[str]()
    for a, b in order:
        if len(held) == VALID + TEST:
            break
        if a not in english and b not in german:
            held.append((a, b))
            english.add(a)
            german.add(b)
    train = [(a, b) for a, b in pairs if a not in english and b not in german]
    return train, held[:VALID], held[VALID:]


def both_ways(pairs: Iterable[Pair]) -> str:
    rows = (row for a, b in pairs for row in ((">>en<<", b, a), (">>de<<", a, b)))
    return "to\tsource\ttarget\n" + "".join("\t".join(row) + "\n" for row in rows)


def main() -> None:
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    pairs, out, more = read(Path(sys.argv[1])), Path(sys.argv[2]), sys.argv[3:]
    train, valid, test = split(pairs, random.Random(0))
    out.mkdir(parents=True, exist_ok=True)
    (out / "train.tsv").write_text(both_ways(train), encoding="utf-8")
    (out / "valid.tsv").write_text(both_ways(valid), encoding="utf-8")
    for name, side in (("en", 0), ("de", 1)):
        (out / f"test.{name}").write_text("".join(pair[side] + "\n" for pair in test), encoding="utf-8")
    known = {english for english, _ in pairs}
    for path in more:
        new = dict.fromkeys(english for english, _ in read(Path(path)) if english not in known)
        (out / "more.en").write_text("".join(sentence + "\n" for sentence in new), encoding="utf-8")
    print(
        f"{out}: {len(train):,} pairs to learn from, {len(valid):,} to choose by, {len(test):,} to test with"
    )


if __name__ == "__main__":
    main()
