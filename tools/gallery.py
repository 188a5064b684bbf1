"""Draw the pictures of docs/gallery.md by the commands of the page.

    python -m tools.gallery FOLDER             draw all pictures
    python -m tools.gallery FOLDER --train     make the data and train the models that FOLDER lacks before
    python -m tools.gallery FOLDER --only gpt3.svg modernbert.svg
    python -m tools.gallery FOLDER --numbers   print the numbers of the page

The commands run in FOLDER. Two things must be there: shakespeare.txt, the text of the recipe
shakespeare-cpu, and minilm, the folder of the model sentence-transformers/all-MiniLM-L6-v2."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch

from qkv.cli import main as run_command
from tools.gallery_numbers import print_numbers

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "gallery.md"
PICTURES = ROOT / "docs" / "gallery"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SAVED = re.compile(r'\.save\("([^"]+)"\)')
PREPARED = re.compile(r"\b(?:runs/|data/|minilm)")  # what is trained, made or fetched before


@dataclass(frozen=True, kw_only=True)
class Step:
    """A command of the page, or a block of Python code, and the files that it writes."""

    kind: str  # sh or python
    text: str
    outputs: tuple[str, ...]

    @property
    def is_picture(self) -> bool:
        return all(output.endswith(".svg") for output in self.outputs)

    @property
    def needs_preparation(self) -> bool:
        """Whether it reads a trained model, data or a model that was fetched."""
        return PREPARED.search(self.text) is not None

    def run(self) -> None:
        """Run it in the current folder; raise ValueError if it fails."""
        if self.kind == "python":
            exec(compile(self.text, PAGE, "exec"), {"__name__": "gallery"})
            return
        arguments = shlex.split(self.text)
        if self.is_picture:
            status = run_command(arguments[1:])
        else:
            module = arguments[2:] if arguments[0] == "python" else arguments
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            command = [sys.executable, "-m", *module]
            status = subprocess.run(command, env=environment, check=False).returncode
        if status:
            raise ValueError(f"{self.text}: status {status}, expected 0")


def list_steps() -> list[Step]:
    """Return the commands and blocks of the page that write files, in its order."""
    steps = []
    for kind, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        parts = [text] if kind == "python" else list_commands(text)
        for part in parts:
            outputs = tuple(SAVED.findall(part) if kind == "python" else find_outputs(part))
            if outputs:
                steps.append(Step(kind=kind, text=part, outputs=outputs))
    return steps


def list_commands(text: str) -> list[str]:
    """Return the commands of a block; a backslash continues a line."""
    lines = text.replace("\\\n", " ").splitlines()
    return [" ".join(line.split()) for line in lines if line.strip()]


def find_outputs(command: str) -> Iterator[str]:
    """Yield what a command writes: a picture, the best model of a run, or data."""
    words = shlex.split(command, comments=True)
    for flag, value in pairwise(words):
        if flag == "--save":
            yield value
        elif flag == "--run":
            yield f"{value}/best"
    if words[0] == "python":
        yield words[3]  # python -m tools.name OUT


def draw(step: Step, folder: Path) -> dict[str, Path]:
    """Run a step in a folder; return its files by name."""
    torch.manual_seed(0)
    with chdir(folder):
        step.run()
    return {output: folder / output for output in step.outputs}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where data, models and pictures are written")
    parser.add_argument("--train", action="store_true", help="first run what is missing")
    parser.add_argument("--only", nargs="+", metavar="PICTURE", help="names of pictures")
    parser.add_argument("--numbers", action="store_true", help="print numbers instead of drawing")
    args = parser.parse_args()
    folder = args.folder.resolve()
    torch.set_num_threads(1)
    steps = list_steps()
    if args.train:
        for step in steps:
            if not step.is_picture and not (folder / step.outputs[0]).exists():
                print(f"$ {step.text}", flush=True)
                draw(step, folder)
    if args.numbers:
        print_numbers(folder)
        return 0
    PICTURES.mkdir(exist_ok=True)
    for step in steps:
        if step.is_picture and (args.only is None or {*args.only} & {*step.outputs}):
            for name, path in draw(step, folder).items():
                shutil.move(path, PICTURES / name)
                print(f"wrote docs/gallery/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
