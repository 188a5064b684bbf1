"""BLEU of a translation model in both directions, on parallel files with one sentence per line.

    python tools/bleu.py MODEL test.de test.en [flores.de.xz flores.en.xz ...] [--num-beams 5]

The suffix of a file, before .xz, is its language. BLEU is sacreBLEU's, cased."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import qkv
from qkv.data.read.lines import TextFile
from qkv.train.evaluate.metrics import corpus_bleu


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--num-beams", type=int, help="number of beams; default: that of the model")
    options = parser.parse_args()
    if len(options.files) % 2:
        sys.exit(f"{len(options.files)} files, expected pairs of files: test.de test.en")
    task = qkv.task("translate", options.model)
    settings = {} if options.num_beams is None else {"num_beams": options.num_beams}
    for pair in zip(options.files[::2], options.files[1::2], strict=True):
        texts = {get_language(path): read_lines(path) for path in pair}
        first, second = texts
        for source, target in ((first, second), (second, first)):
            results = task.map(
                texts[source], src_lang=source, tgt_lang=target, progress=True, **settings
            )
            score = corpus_bleu([result.text for result in results], texts[target])
            direction = f"{pair[0].name:<32} {source} to {target}"
            print(f"{direction}  {score.value:.1f}  {score.signature}", flush=True)


def get_language(path: Path) -> str:
    """Return the language of a file: `de` for test.de.xz."""
    return path.name.removesuffix(".xz").rsplit(".", 1)[-1]


def read_lines(path: Path) -> list[str]:
    return [line for _, line in TextFile(str(path)).iter_lines()]


if __name__ == "__main__":
    main()
