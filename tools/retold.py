"""What a teacher says, as data for a smaller model: every source of a table with the teacher's own target.

    python tools/retold.py MODEL train.tsv told.tsv [--beams 4] [--device cuda]

The table has the columns `to`, `source` and `target`, as tools/tatoeba.py writes it. A source that comes
several times is told once; the targets that people wrote stay in the first table, to learn from both
(sequence-level distillation, Kim and Rush 2016)."""

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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("table", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16384, help="tokens read at once, pads included")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    model = qkv.load(options.model, device=options.device)
    if options.device != "cpu":
        model.net.to(torch.bfloat16)
    tell = qkv.task("translate", model)
    rows = [HEAD]
    for to, texts in sources(options.table).items():
        found = tell.many(
            texts, target=to.strip("<>"), beams=options.beams, max_new=128, long="cut",
            batch_tokens=options.batch, progress=True,
        )  # fmt: skip
        rows += [
            "\t".join((to, text, " ".join(each.text.split())))
            for text, each in zip(texts, found, strict=True)
        ]
    whole = [row for row in rows if not row.endswith("\t")]
    options.out.write_text("\n".join(whole) + "\n", encoding="utf-8")
    print(f"{options.out}: {len(whole) - 1:,} pairs, {len(rows) - len(whole):,} sources without a target")


if __name__ == "__main__":
    main()
