"""Generate synthetic sentence pairs: translations of all sources of a table by trained models.

    python tools/synthetic_pairs.py MODEL [MODEL ...] train.tsv synthetic.tsv [--more more.en]
        [--without test.de test.en valid.tsv]

The table has the columns `to`, `source` and `target`, as tools/tatoeba.py writes it, in two
languages. Each model translates each distinct source once, and the pair is written in both
directions: with the translation as the target (sequence-level distillation, Kim and Rush 2016) and
as the source (back-translation, Sennrich et al. 2016; both with several models: data
diversification, Nguyen et al. 2020). The monolingual English sentences of `--more` are translated
as well. Duplicates, pairs of the table, and pairs that contain a sentence of the files `--without`
are omitted."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import qkv
from qkv.tasks.write.translate import TranslateTask
from tools.tatoeba import ENGLISH, GERMAN, HEADER, Row, read_held_out, write_table

MAX_NEW_TOKENS = 128


def read_sources(path: Path) -> dict[str, list[str]]:
    """Return the distinct sources of each target language, in the order of the table."""
    header, *rows = path.read_text("utf-8").splitlines()
    if header != HEADER:
        sys.exit(f"{path}: the first line is {header!r}, expected {HEADER!r}")
    sources: dict[str, dict[str, None]] = {}
    for row in rows:
        code, source, _ = row.split("\t")
        sources.setdefault(code, {})[source] = None
    return {code: [*texts] for code, texts in sources.items()}


def translate_texts(
    task: TranslateTask, texts: list[str], code: str, options: argparse.Namespace
) -> list[tuple[str, str]]:
    """Return pairs of a text and its translation."""
    results = task.map(
        texts,
        tgt_lang=code.strip("<>"),
        num_beams=options.num_beams,
        max_new_tokens=MAX_NEW_TOKENS,
        overflow="truncate",
        batch_tokens=options.batch_tokens,
        progress=True,
    )
    translations = [" ".join(result.text.split()) for result in results]
    return list(zip(texts, translations, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+")
    parser.add_argument("table", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--more", type=Path, help="English sentences, one per line")
    parser.add_argument("--without", type=Path, nargs="*", default=[], help="held-out sentences")
    parser.add_argument("--num-beams", type=int, default=4)
    parser.add_argument("--batch-tokens", type=int, default=131072, help="tokens per batch")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()

    texts: dict[str, list[str]] = {GERMAN: [], ENGLISH: [], **read_sources(options.table)}
    if options.more:
        texts[GERMAN] += options.more.read_text("utf-8").splitlines()
    rows: dict[Row, None] = {}
    for name in options.models:
        model = qkv.load(name, device=options.device)
        model.net.to(torch.float32 if options.device == "cpu" else torch.bfloat16)
        task = qkv.task("translate", model)
        for code, reverse_code in ((GERMAN, ENGLISH), (ENGLISH, GERMAN)):
            for source, target in translate_texts(task, texts[code], code, options):
                rows[code, source, target] = None
                rows[reverse_code, target, source] = None
    held_out = read_held_out(options.without)
    table_lines = {*options.table.read_text("utf-8").splitlines()}
    kept = [
        row
        for row in rows
        if all(row) and not held_out.intersection(row[1:]) and "\t".join(row) not in table_lines
    ]
    write_table(options.out, kept)
    num_dropped = len(rows) - len(kept)
    print(
        f"{options.out}: {len(kept):,} pairs, {num_dropped:,} omitted (known, held out, or empty)"
    )


if __name__ == "__main__":
    main()
