"""Label the sentences of texts with a trained classifier, as training data for a smaller one.

    python tools/pseudo_labels.py MODEL texts.jsonl labelled.jsonl [--more FILE ...]
        [--min-score 0.95] [--max-words 20] [--num-spans 2]

`texts.jsonl` is the data of the classifier, with the fields `text`, which is split into sentences, and
`label`; `--more` are files with one sentence per line. `--num-spans` random spans of 2 to 6 words of each
sentence are labelled too. A distinct text is written with its label if the score of the label is at
least `--min-score`, and equally many texts of each label are written."""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import qkv

LINE_BREAK = re.compile(r"<br\s*/?>")
Label = int | str
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a review, whose line breaks are HTML."""
    sentences = SENTENCE_END.split(LINE_BREAK.sub(" ", text))
    return [" ".join(sentence.split()) for sentence in sentences]


def select_sentences(sentences: list[str], max_words: int) -> list[str]:
    """Return the distinct sentences that have a letter and at most this number of words."""
    return [
        sentence
        for sentence in dict.fromkeys(sentences)
        if len(sentence.split()) <= max_words and re.search(r"[^\W\d_]", sentence)
    ]


def sample_spans(sentence: str, num_spans: int, rng: random.Random) -> list[str]:
    """Return random spans of 2 to 6 words of a sentence."""
    words = sentence.split()
    spans = []
    for _ in range(num_spans if len(words) > 2 else 0):
        length = min(rng.randint(2, 6), len(words))
        start = rng.randint(0, len(words) - length)
        spans.append(" ".join(words[start : start + length]))
    return spans


def balance_labels(examples: dict[str, Label], rng: random.Random) -> list[tuple[str, Label]]:
    """Return equally many examples of each label, shuffled."""
    by_label: dict[Label, list[tuple[str, Label]]] = {}
    for text, label in examples.items():
        by_label.setdefault(label, []).append((text, label))
    size = min(map(len, by_label.values()), default=0)
    kept = [example for group in by_label.values() for example in rng.sample(group, size)]
    rng.shuffle(kept)
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("texts", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--more", type=Path, nargs="*", default=[], help="sentences, one per line")
    parser.add_argument("--min-score", type=float, default=0.95)
    parser.add_argument("--max-words", type=int, default=20)
    parser.add_argument("--num-spans", type=int, default=0, help="random spans per sentence")
    parser.add_argument("--batch-tokens", type=int, default=65536, help="tokens per batch")
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.texts.read_text("utf-8").splitlines()]
    sentences = [sentence for row in rows for sentence in split_sentences(row["text"])]
    for path in options.more:
        sentences += path.read_text("utf-8").splitlines()
    rng = random.Random(0)
    spans = [
        span for sentence in sentences for span in sample_spans(sentence, options.num_spans, rng)
    ]
    texts = select_sentences([*sentences, *spans], options.max_words)
    labels = {str(row["label"]): row["label"] for row in rows}
    results = qkv.task("classify", options.model).map(
        texts, batch_tokens=options.batch_tokens, progress=True
    )
    certain = {
        text: labels[result.label]
        for text, result in zip(texts, results, strict=True)
        if result.score >= options.min_score
    }
    kept = balance_labels(certain, rng)
    lines = (json.dumps({"text": text, "label": label}) + "\n" for text, label in kept)
    options.out.write_text("".join(lines), encoding="utf-8")
    print(f"{options.out}: {len(kept):,} of {len(texts):,} texts, {len(certain):,} certain")


if __name__ == "__main__":
    main()
