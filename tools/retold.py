"""What a teacher says, as data for a smaller model: every source of a table with the teacher's own target.

    python tools/retold.py MODEL train.tsv told.tsv [--more more.en] [--without test.de test.en valid.tsv]

The table has the columns `to`, `source` and `target`, as tools/tatoeba.py writes it. A source that comes
several times is told once; the targets that people wrote stay in the first table, to learn from both
(sequence-level distillation, Kim and Rush 2016). English sentences without a translation are told in German
and stand in the result both ways: the one to learn German from the teacher, the other to learn the English
that people wrote (back-translation, Sennrich et al. 2016). What is held out is not told: a pair with a
sentence of the files `--without` is left out, whichever side it is on."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import qkv

HEAD = "to\tsource\ttarget"


def sources(path: Path) -> dict[str, list[str]]:
    """The different sources by the language that is asked for, in their order."""
    head, *rows = path.read_text("utf-8").splitlines()
    if head != HEAD:
        sys.exit(f"{path}: its first line is {head!r}, expected {HEAD!r}")
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        to, source, _ = row.split("\t")
        found.setdefault(to, {})[source] = None
    return {to: [*texts] for to, texts in found.items()}


def held_out(paths: list[Path]) -> set[str]:
    """Every sentence of text files and of tables."""
    return {
        field for path in paths for line in path.read_text("utf-8").splitlines() for field in line.split("\t")
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("table", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--more", type=Path, help="English sentences, one a line")
    parser.add_argument("--without", type=Path, nargs="*", default=[])
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--batch", type=int, default=131072, help="tokens at once, room to write included")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    model = qkv.load(options.model, device=options.device)
    if options.device != "cpu":
        model.net.to(torch.bfloat16)
    tell = qkv.task("translate", model)

    def told(texts: list[str], to: str) -> list[tuple[str, str]]:
        found = tell.many(
            texts, target=to.strip("<>"), beams=options.beams, max_new=128, long="cut",
            batch_tokens=options.batch, progress=True,
        )  # fmt: skip
        return [(text, " ".join(each.text.split())) for text, each in zip(texts, found, strict=True)]

    rows = [
        (to, source, target)
        for to, texts in sources(options.table).items()
        for source, target in told(texts, to)
    ]
    if options.more:
        texts = options.more.read_text("utf-8").splitlines()
        for english, german in told(texts, ">>de<<"):
            rows += [(">>de<<", english, german), (">>en<<", german, english)]
    held = held_out(options.without)
    kept = [row for row in rows if row[2] and not held.intersection(row[1:])]
    options.out.write_text(
        "".join("\t".join(row) + "\n" for row in [HEAD.split("\t"), *kept]), encoding="utf-8"
    )
    print(f"{options.out}: {len(kept):,} pairs, {len(rows) - len(kept):,} left out (held out, or no target)")


if __name__ == "__main__":
    main()
