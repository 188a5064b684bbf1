"""Count the lines of code of the core, and of Hugging Face for the same families.

Blank lines, comments and docstrings are not counted. The counted files are parsed.
The count of qkv excludes file formats, tokenizers, data, training, decoding and tasks. The count of
Hugging Face excludes the shared code that every modeling file imports (attention masks, caches,
kernels, generation, weight loading)."""

import ast
import io
import tokenize
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from qkv.families import FAMILY_NAMES

ROOT = Path(__file__).resolve().parent.parent

# The parts of the core and their files.
CORE = {
    "spec": "qkv/spec/*.py",
    "batch": "qkv/batch.py",
    "kernels": "qkv/kernels/*.py",
    "nn": "qkv/nn/*.py qkv/nn/recurrent/*.py",
    "look": "qkv/attention_weights.py",
    "names tables": "qkv/weights/names_table.py",
    "config and limits": "qkv/model/config.py qkv/model/limits.py",
    "families": "qkv/families/*.py",
}

# The families that transformers has files for, and the count for one version of transformers.
HF_FAMILIES = (
    "bert roberta albert distilbert electra xlnet openai gpt2 ctrl "
    "bart mbart t5 marian switch_transformers clip"
).split()
RECORDED_COUNT = (12_739, "5.22.2")

# fmt: off
IGNORED_TOKENS = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE,
    tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}
# fmt: on


def code_lines(source: str) -> set[int]:
    """Return the numbers of the lines that contain code."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    spans = [
        range(token.start[0], token.end[0] + 1)
        for token in tokens
        if token.type not in IGNORED_TOKENS
    ]
    return {line for span in spans for line in span} - set(docstring_lines(source))


def docstring_lines(source: str) -> Iterator[int]:
    """Yield the numbers of the lines of every docstring."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case (
                ast.Module(body=[ast.Expr(ast.Constant(str()) as text), *_])
                | ast.ClassDef(body=[ast.Expr(ast.Constant(str()) as text), *_])
                | ast.FunctionDef(body=[ast.Expr(ast.Constant(str()) as text), *_])
                | ast.AsyncFunctionDef(body=[ast.Expr(ast.Constant(str()) as text), *_])
            ):
                yield from range(text.lineno, (text.end_lineno or text.lineno) + 1)


def count_lines(file: Path) -> int:
    """Return the number of lines of code of a file."""
    return len(code_lines(file.read_text(encoding="utf-8")))


def list_core_files() -> dict[str, list[Path]]:
    """Return the files of each part of the core."""
    return {
        part: sorted(file for pattern in patterns.split() for file in ROOT.glob(pattern))
        for part, patterns in CORE.items()
    }


def list_hf_files() -> dict[str, list[Path]]:
    """Return the files of each family in transformers; empty if it is not installed."""
    spec = find_spec("transformers")
    if spec is None or spec.origin is None:
        return {}
    models = Path(spec.origin).parent / "models"
    files = {
        name: [models / name / f"{kind}_{name}.py" for kind in ("modeling", "configuration")]
        for name in HF_FAMILIES
    }
    return {name: pair for name, pair in files.items() if all(file.exists() for file in pair)}


def main() -> None:
    """Print the tables."""
    print_row("qkv", "lines")
    total = 0
    for part, files in list_core_files().items():
        for file in files:
            print_row(f"    {file.relative_to(ROOT)}", count_lines(file))
        subtotal = sum(map(count_lines, files))
        print_row(f"  {part}", subtotal)
        total += subtotal
    print_row(f"total of {len(FAMILY_NAMES)} families", total)

    print()
    print_row("Hugging Face", "lines", "modeling and configuration")
    counts = {name: sum(map(count_lines, files)) for name, files in list_hf_files().items()}
    for name, lines in counts.items():
        print_row(f"    {name}", lines)
    if counts:
        print_row(
            f"total of {len(counts)} families",
            sum(counts.values()),
            f"transformers {version('transformers')}",
        )
    else:
        print_row(
            f"total of {len(HF_FAMILIES)} families",
            RECORDED_COUNT[0],
            f"transformers {RECORDED_COUNT[1]}, recorded",
        )


def print_row(name: str, number: int | str, note: int | str = "") -> None:
    figure = f"{number:,}" if isinstance(number, int) else number
    print(f"{name:<34}{figure:>8}  {note}".rstrip())


if __name__ == "__main__":
    main()
