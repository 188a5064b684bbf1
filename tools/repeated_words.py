"""A text of made-up words that are repeated in a random order: only its own past predicts it.

    python -m tools.repeated_words words.txt

Each passage has new words of 2 to 5 letters, and no letter is in two of them. The next letter is
therefore the one that followed the last occurrence of the current letter, except at the end of a word."""

from __future__ import annotations

import argparse
import random
import string
from collections.abc import Iterator
from pathlib import Path

NUM_LETTERS = 10  # of the words of a passage
WORD_LENGTHS = (2, 5)
PASSAGE_LENGTH = 256  # characters, at least


def write_passages(count: int, seed: int) -> Iterator[str]:
    """Yield passages without spaces."""
    rng = random.Random(seed)
    for _ in range(count):
        letters = "".join(rng.sample(string.ascii_lowercase, NUM_LETTERS))
        words = []
        while letters:
            length = rng.randint(*WORD_LENGTHS)
            words.append(letters[:length])
            letters = letters[length:]
        passage = ""
        while len(passage) < PASSAGE_LENGTH:
            passage += rng.choice(words)
        yield passage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="text file to write")
    parser.add_argument("--passages", type=int, default=8_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("".join(write_passages(args.passages, args.seed)), encoding="utf-8")


if __name__ == "__main__":
    main()
