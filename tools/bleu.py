"""BLEU of a translation model, both ways, on files that lie side by side, a sentence a line.

    python tools/bleu.py MODEL test.de test.en [flores.de.xz flores.en.xz ...] [--beams 5]

A file's ending, before .xz, is its language. BLEU is sacreBLEU's, cased."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import qkv
from qkv.data.read.lines import File
from qkv.train.evaluate.metrics import bleu


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--beams", type=int, default=None, help="those of the model, unless given")
    options = parser.parse_args()
    if len(options.files) % 2:
        sys.exit(f"{len(options.files)} files, expected pairs of them: test.de test.en")
    tell = qkv.task("translate", options.model)
    beams = {} if options.beams is None else {"beams": options.beams}
    for pair in zip(options.files[::2], options.files[1::2], strict=True):
        texts = {path.name.removesuffix(".xz").rsplit(".", 1)[-1]: read(path) for path in pair}
        for source, target in (tuple(texts), tuple(texts)[::-1]):
            found = tell.many(texts[source], source=source, target=target, progress=True, **beams)
            score = bleu([each.text for each in found], texts[target])
            print(
                f"{pair[0].name:<32} {source} to {target}  {score.value:.1f}  {score.signature}", flush=True
            )


def read(path: Path) -> list[str]:
    return [line for _, line in File(str(path)).lines()]


if __name__ == "__main__":
    main()
