"""Source excerpts of pages, found by the name of a definition, so that pages stay up to date.

A paragraph that consists of a link to a Python file is replaced by an excerpt:

    [FeedForward.forward](../qkv/nn/feed_forward.py)          a class, a function, a method, or an assignment
    [FeedForward.forward](../qkv/nn/feed_forward.py "y … z")  the part from one line to another"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from posixpath import dirname, join, normpath
from textwrap import dedent

from tools.pages.page import ROOT, Page

EXCERPT_LINK = re.compile(r'^\[([\w.]+)\]\((\S+\.py)(?: "(.+)")?\)$', re.MULTILINE)


def insert_excerpts(page: Page) -> str:
    """Return the text of a page with its links replaced by excerpts."""

    def format_excerpt(match: re.Match[str]) -> str:
        file = normpath(join(dirname(page.file), match[2]))
        line, text = find_excerpt(file, match[1], match[3] or "")
        return f'```python title="{file}, line {line}: {match[1]}"\n{text}\n```'

    return EXCERPT_LINK.sub(format_excerpt, page.text)


def find_excerpt(file: str, name: str, span: str = "") -> tuple[int, str]:
    """Return the number of the first line, and the lines; raise ValueError if there are none."""
    if not (ROOT / file).is_file():
        raise ValueError(f"excerpt of {name}: file {file} not found")
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    node = dict(iter_definitions(ast.parse("\n".join(lines)))).get(name)
    if node is None:
        raise ValueError(f"excerpt of {name}: {file} has no such definition")
    first = node.lineno - 1
    last = node.end_lineno or node.lineno
    if span:
        begin, _, end = span.partition(" … ")
        first = find_line(lines, begin, range(first, last), f"{name} of {file}")
        last = find_line(lines, end or begin, range(first, last), f"{name} of {file}") + 1
    return first + 1, dedent("\n".join(lines[first:last]))


def iter_definitions(
    tree: ast.Module | ast.ClassDef, prefix: str = ""
) -> Iterator[tuple[str, ast.stmt]]:
    """Yield every class, function and assignment by its qualified name."""
    for node in tree.body:
        match node:
            case ast.ClassDef() | ast.FunctionDef():
                yield prefix + node.name, node
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield prefix + name, node
        if isinstance(node, ast.ClassDef):
            yield from iter_definitions(node, f"{prefix}{node.name}.")


def find_line(lines: list[str], begin: str, indices: range, where: str) -> int:
    """Return the index of the first line that begins with a text."""
    for index in indices:
        if lines[index].strip().startswith(begin):
            return index
    raise ValueError(f"excerpt: no line of {where} begins with {begin!r}")
