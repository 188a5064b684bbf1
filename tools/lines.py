"""Counts the lines of code of the core's rooms beside Hugging Face's for the same families.

A line counts when it holds code: blanks, comments and docstrings do not. Nothing counted is imported.
Left out of ours: files, tokenizers, data, training, decoding, tasks. Left out of theirs: the shared code that
every modeling file imports (attention masks, caches, kernels, generation, weight loading).
"""

import ast
import io
import tokenize
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Whole rooms of the core.
CORE = {
    "spec": "qkv/spec.py",
    "batch": "qkv/batch.py",
    "kernels": "qkv/kernels/*.py",
    "nn": "qkv/nn/*.py",
    "look": "qkv/attention_weights.py",
    "names tables": "qkv/weights/names_table.py",
    "config and limits": "qkv/model/[cl]*[gs].py",
    "families": "qkv/families/*.py",
}

# The families of ours that transformers has files of its own for, and what was counted in one version of it.
THEIRS = (
    "bert roberta albert distilbert electra xlnet openai gpt2 ctrl "
    "bart mbart t5 marian switch_transformers clip"
).split()
RECORDED = (12_739, "5.22.2")

# fmt: off
SILENT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE,
    tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}
# fmt: on


def code_lines(source: str) -> set[int]:
    """The numbers of the lines that hold code."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    spans = [range(token.start[0], token.end[0] + 1) for token in tokens if token.type not in SILENT]
    return {line for span in spans for line in span} - set(docstring_lines(source))


def docstring_lines(source: str) -> Iterator[int]:
    """The numbers of the lines of every docstring."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case (
                ast.Module(body=[ast.Expr(ast.Constant(str()) as text), *_])
                | ast.ClassDef(body=[ast.Expr(ast.Constant(str()) as text), *_])
                | ast.FunctionDef(body=[ast.Expr(ast.Constant(str()) as text), *_])
                | ast.AsyncFunctionDef(body=[ast.Expr(ast.Constant(str()) as text), *_])
            ):
                yield from range(text.lineno, (text.end_lineno or text.lineno) + 1)


def count(file: Path) -> int:
    """How many lines of a file hold code."""
    return len(code_lines(file.read_text(encoding="utf-8")))


def core() -> dict[str, list[Path]]:
    """The files of the core by room."""
    return {room: sorted(ROOT.glob(pattern)) for room, pattern in CORE.items()}


def theirs() -> dict[str, list[Path]]:
    """The modeling and configuration files of the installed transformers, by family; empty without it."""
    found = find_spec("transformers")
    if found is None or found.origin is None:
        return {}
    models = Path(found.origin).parent / "models"
    files = {
        name: [models / name / f"{kind}_{name}.py" for kind in ("modeling", "configuration")]
        for name in THEIRS
    }
    return {name: pair for name, pair in files.items() if all(file.exists() for file in pair)}


def main() -> None:
    """Print the tables."""
    show("qkv", "lines")
    total = 0
    for room, files in core().items():
        for file in files:
            show(f"    {file.relative_to(ROOT)}", count(file))
        subtotal = sum(map(count, files))
        show(f"  {room}", subtotal)
        total += subtotal
    show("total of 21 families", total)

    print()
    show("Hugging Face", "lines", "modeling and configuration")
    counts = {name: sum(map(count, files)) for name, files in theirs().items()}
    for name, lines in counts.items():
        show(f"    {name}", lines)
    if counts:
        show(
            f"total of {len(counts)} families",
            sum(counts.values()),
            f"transformers {version('transformers')}",
        )
    else:
        show(f"total of {len(THEIRS)} families", RECORDED[0], f"transformers {RECORDED[1]}, as recorded")


def show(name: str, number: int | str, note: int | str = "") -> None:
    figure = f"{number:,}" if isinstance(number, int) else number
    print(f"{name:<34}{figure:>8}  {note}".rstrip())


if __name__ == "__main__":
    main()
