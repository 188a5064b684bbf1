"""What models say, as data for another: every source of a table with a target of their own.

    python tools/retold.py MODEL [MODEL ...] train.tsv told.tsv [--more more.en]
        [--without test.de test.en valid.tsv]

The table has the columns `to`, `source` and `target`, as tools/tatoeba.py writes it, in two languages. Each
different source is told once by each model and stands in the result both ways: as a source with the model's
target (sequence-level distillation, Kim and Rush 2016), and as the target, which people wrote, of what the
model said (back-translation, Sennrich et al. 2016; both, by several models, are data diversification, Nguyen
et al. 2020). So do English sentences without a translation, those of `--more`. A pair stands there once; what
people wrote stays in the first table, to learn from all. What is held out is not told: a pair with a
sentence of the files `--without` is left out, whichever side it is on."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import qkv
from qkv.tasks.write.translate import Translate

HEAD = "to\tsource\ttarget"
GERMAN, ENGLISH = ">>de<<", ">>en<<"  # asked for


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
    parser.add_argument("models", nargs="+")
    parser.add_argument("table", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--more", type=Path, help="English sentences, one a line")
    parser.add_argument("--without", type=Path, nargs="*", default=[])
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--batch", type=int, default=131072, help="tokens at once, room to write included")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()

    def told(tell: Translate, texts: list[str], to: str) -> list[tuple[str, str]]:
        found = tell.many(
            texts, target=to.strip("<>"), beams=options.beams, max_new=128, long="cut",
            batch_tokens=options.batch, progress=True,
        )  # fmt: skip
        return [(text, " ".join(each.text.split())) for text, each in zip(texts, found, strict=True)]

    texts: dict[str, list[str]] = {GERMAN: [], ENGLISH: [], **sources(options.table)}
    if options.more:
        texts[GERMAN] += options.more.read_text("utf-8").splitlines()
    rows: dict[tuple[str, str, str], None] = {}
    for name in options.models:
        model = qkv.load(name, device=options.device)
        model.net.to(torch.float32 if options.device == "cpu" else torch.bfloat16)
        tell = qkv.task("translate", model)
        for to, back in ((GERMAN, ENGLISH), (ENGLISH, GERMAN)):
            for source, target in told(tell, texts[to], to):
                rows |= {(to, source, target): None, (back, target, source): None}
    held, own = held_out(options.without), {*options.table.read_text("utf-8").splitlines()}
    kept = [row for row in rows if all(row) and not held.intersection(row[1:]) and "\t".join(row) not in own]
    options.out.write_text(
        "".join("\t".join(row) + "\n" for row in [HEAD.split("\t"), *kept]), encoding="utf-8"
    )
    out = len(rows) - len(kept)
    print(f"{options.out}: {len(kept):,} pairs, {out:,} left out (people's own, held out, or no target)")


if __name__ == "__main__":
    main()
