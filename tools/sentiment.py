"""Training and validation data of the built-in sentiment classifier.

    python tools/sentiment.py imdb/train.jsonl.xz sst2/train.tsv.xz sst2/dev.tsv.xz OUT

OUT/train.jsonl   reviews of IMDb; sentences and phrases of SST-2; short closing sentences of the reviews
OUT/valid.jsonl   1,000 reviews and the dev sentences of SST-2, none of which is in train.jsonl

Reviews alone teach little about short texts: half of a review is not about the verdict."""

from __future__ import annotations

import json
import lzma
import random
import re
import sys
from pathlib import Path
from typing import Any

NUM_VALID = 1000
MAX_CLOSING_WORDS = 10
Example = dict[str, Any]


def read_reviews(path: Path) -> list[Example]:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [{"text": row["text"], "label": row["label"]} for row in rows]


def read_phrases(path: Path) -> list[Example]:
    """Return the phrases of SST-2, with the usual spacing around punctuation and contractions."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file][1:]
    return [{"text": join_tokens(text), "label": int(label)} for text, label in rows]


def join_tokens(text: str) -> str:
    """Undo the tokenization of the Penn Treebank."""
    text = re.sub(r" (n't|'\w+|[.,!?;:)])(?= |$)", r"\1", text.strip())
    return text.replace("( ", "(").replace("-lrb- ", "(").replace(" -rrb-", ")")


def find_closing_sentence(review: Example) -> Example | None:
    """Return the last sentence of a review, if it is short: often the verdict."""
    sentences = re.split(r"(?<=[.!?])\s+", re.sub(r"<br\s*/?>", " ", review["text"]).strip())
    last = sentences[-1].strip()
    is_short = 1 <= len(last.split()) <= MAX_CLOSING_WORDS and not re.search(r"\d", last)
    return {"text": last, "label": review["label"]} if is_short and len(sentences) > 1 else None


def write_examples(path: Path, examples: list[Example]) -> None:
    path.write_text("".join(json.dumps(example) + "\n" for example in examples), encoding="utf-8")
    print(f"{path}: {len(examples):,} examples")


def main() -> None:
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    reviews_path, train_path, dev_path, out = map(Path, sys.argv[1:])
    reviews = read_reviews(reviews_path)
    random.Random(0).shuffle(reviews)
    valid_reviews, train_reviews = reviews[:NUM_VALID], reviews[NUM_VALID:]
    closing = [sentence for review in train_reviews if (sentence := find_closing_sentence(review))]
    dev = read_phrases(dev_path)
    dev_texts = {example["text"] for example in dev}
    phrases = [example for example in read_phrases(train_path) if example["text"] not in dev_texts]
    out.mkdir(parents=True, exist_ok=True)
    write_examples(out / "train.jsonl", train_reviews + phrases + closing)
    write_examples(out / "valid.jsonl", valid_reviews + dev)


if __name__ == "__main__":
    main()
