"""Excerpts: lines of the source by the name of what they stand in, so that a page cannot fall behind them.

In a page, a paragraph that is nothing but a link into the source becomes the lines themselves:

    [Feed.forward](../qkv/nn/feed_forward.py)     a class, a function, a method, or a name with its value
    [Feed.forward](../qkv/nn/feed_forward.py "y … z")  of it, from one line to another"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from posixpath import dirname, join, normpath
from textwrap import dedent

from tools.pages.page import ROOT, Page

MARK = re.compile(r'^\[([\w.]+)\]\((\S+\.py)(?: "(.+)")?\)$', re.MULTILINE)


def excerpted(page: Page) -> str:
    """The text of a page with its excerpts in place."""

    def fence(found: re.Match[str]) -> str:
        file = normpath(join(dirname(page.file), found[2]))
        line, text = excerpt(file, found[1], found[3] or "")
        return f'```python title="{file}, line {line}: {found[1]}"\n{text}\n```'

    return MARK.sub(fence, page.text)


def excerpt(file: str, name: str, span: str = "") -> tuple[int, str]:
    """The number of the first line, and the lines; ValueError where they are not there."""
    if not (ROOT / file).is_file():
        raise ValueError(f"excerpt of {name}: there is no {file}")
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    node = dict(named(ast.parse("\n".join(lines)))).get(name)
    if node is None:
        raise ValueError(f"excerpt: {file} has no {name}")
    first, last = node.lineno - 1, node.end_lineno or node.lineno
    if span:
        begins, _, ends = span.partition(" … ")
        first = where(lines, begins, range(first, last), f"{name} of {file}")
        last = where(lines, ends or begins, range(first, last), f"{name} of {file}") + 1
    return first + 1, dedent("\n".join(lines[first:last]))


def named(tree: ast.Module | ast.ClassDef, before: str = "") -> Iterator[tuple[str, ast.stmt]]:
    """Every class, function and name with a value, by its path."""
    for node in tree.body:
        match node:
            case ast.ClassDef() | ast.FunctionDef():
                yield before + node.name, node
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield before + name, node
        if isinstance(node, ast.ClassDef):
            yield from named(node, f"{before}{node.name}.")


def where(lines: list[str], begin: str, places: range, whose: str) -> int:
    """The first of these lines that begins so."""
    for place in places:
        if lines[place].strip().startswith(begin):
            return place
    raise ValueError(f"excerpt: no line of {whose} begins with {begin!r}")
