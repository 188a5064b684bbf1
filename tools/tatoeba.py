"""Training, validation and test data of the built-in translation model from Tatoeba's sentence pairs.

    python tools/tatoeba.py deu-eng.tsv.xz OUT [fra-eng.tsv.xz]

OUT/train.tsv                to, source, target: every pair in both directions; `to` is >>en<< or >>de<<
OUT/valid.tsv                the same for 1,000 pairs
OUT/test.de, OUT/test.en     2,000 pairs, one sentence per line
OUT/more.en                  the English sentences of the second file that are not in the first

No sentence of a validation or test pair occurs in the training data."""

from __future__ import annotations

import lzma
import random
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

VALID, TEST = 1000, 2000
HEADER = "to\tsource\ttarget"
GERMAN, ENGLISH = ">>de<<", ">>en<<"  # codes of the target language
Pair = tuple[str, str]  # English, German
Row = tuple[str, str, str]  # code of the target language, source, target


def read_pairs(path: Path) -> list[Pair]:
    """Return the distinct pairs in the order of the file, with normalized whitespace."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        rows = (tuple(" ".join(side.split()) for side in line.split("\t")[:2]) for line in file)
        return list(dict.fromkeys((row[0], row[1]) for row in rows if len(row) == 2 and all(row)))


def split_pairs(pairs: list[Pair], rng: random.Random) -> tuple[list[Pair], list[Pair], list[Pair]]:
    """Return training, validation and test pairs; no sentence is in two of them."""
    held_out: list[Pair] = []
    english: set[str] = set()
    german: set[str] = set()
    for a, b in rng.sample(pairs, len(pairs)):
        if len(held_out) == VALID + TEST:
            break
        if a not in english and b not in german:
            held_out.append((a, b))
            english.add(a)
            german.add(b)
    train = [(a, b) for a, b in pairs if a not in english and b not in german]
    return train, held_out[:VALID], held_out[VALID:]


def read_held_out(paths: Iterable[Path]) -> set[str]:
    """Return every sentence of text files and of tables."""
    return {
        field
        for path in paths
        for line in path.read_text("utf-8").splitlines()
        for field in line.split("\t")
    }


def both_directions(pairs: Iterable[Pair]) -> Iterator[Row]:
    for english, german in pairs:
        yield ENGLISH, german, english
        yield GERMAN, english, german


def write_table(path: Path, rows: Iterable[Row]) -> None:
    lines = [HEADER, *("\t".join(row) for row in rows)]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def main() -> None:
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    pairs = read_pairs(Path(sys.argv[1]))
    out = Path(sys.argv[2])
    more = sys.argv[3:]
    train, valid, test = split_pairs(pairs, random.Random(0))
    out.mkdir(parents=True, exist_ok=True)
    write_table(out / "train.tsv", both_directions(train))
    write_table(out / "valid.tsv", both_directions(valid))
    for name, side in (("en", 0), ("de", 1)):
        (out / f"test.{name}").write_text(
            "".join(pair[side] + "\n" for pair in test), encoding="utf-8"
        )
    known = {english for english, _ in pairs}
    for path in more:
        new = dict.fromkeys(
            english for english, _ in read_pairs(Path(path)) if english not in known
        )
        (out / "more.en").write_text("".join(sentence + "\n" for sentence in new), encoding="utf-8")
    print(f"{out}: {len(train):,} training, {len(valid):,} validation and {len(test):,} test pairs")


if __name__ == "__main__":
    main()
