"""Names, both ways: a table whose rows pair our tensor names with theirs. Knows no files and no families.

    encoder.layers.{}.attend.q         bert.encoder.layer.{}.attention.self.query
    decoder.layers.{}.attend.q,k,v     h.{}.attn.c_attn                  conv1d

A row names a module (its weight and bias go along) or one tensor. `{}` is a number, `(a|b)` on both sides is two
rows, `@` is encoder and decoder. `q,k,v` on our side is one fused tensor on theirs. The third word is an invertible operation, or one of
    alias   may lie in a file as well: must equal ours, is never written
    copy    is written as well; reading, ours comes from another row
and `-` on our side is a name of theirs that holds no weight of the model (a buffer); `keep` writes it back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

Op = tuple[Callable[[Tensor, int], Tensor], Callable[[Tensor, int], Tensor]]

OPS: dict[str, Op] = {  # theirs -> ours, ours -> theirs; `n` is the number behind the colon
    "": (lambda x, n: x, lambda x, n: x),
    "conv1d": (lambda x, n: x.T if x.dim() == 2 else x, lambda x, n: x.T if x.dim() == 2 else x),
    "row": (lambda x, n: x[0], lambda x, n: x[None]),
    "heads": (lambda x, n: x.flatten(1).T, lambda x, n: x.T.unflatten(1, (n, -1))),  # (W, H, D) <-> (H*D, W)
    "back": (lambda x, n: x.flatten(1), lambda x, n: x.unflatten(1, (n, -1))),  # (W, H, D) <-> (W, H*D)
}


@dataclass(frozen=True)
class Row:
    ours: str
    theirs: str
    word: str

    @cached_property
    def find_ours(self) -> re.Pattern[str]:
        return _regex(self.ours)

    @cached_property
    def find_theirs(self) -> re.Pattern[str]:
        return _regex(self.theirs)


@dataclass(frozen=True)
class Link:
    """One tensor of theirs and the tensors of ours that it holds."""

    theirs: str
    ours: tuple[str, ...]
    word: str

    def op(self) -> tuple[Op, int]:
        name, _, number = self.word.partition(":")
        return OPS[name if name not in ("alias", "copy") else ""], int(number or 0)

    def to_theirs(self, tensors: Mapping[str, Tensor]) -> Tensor:
        (_, back), n = self.op()
        parts = [tensors[name] for name in self.ours]
        return back(torch.cat(parts) if len(parts) > 1 else parts[0], n)

    def to_ours(self, tensor: Tensor, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
        (forth, _), n = self.op()
        parts = forth(tensor, n).split([shapes[name][0] for name in self.ours]) if self.ours[1:] else [forth(tensor, n)]
        return dict(zip(self.ours, parts, strict=True))


class KeyMap:
    def __init__(self, table: str, rename: tuple[str, str] = ("", "")) -> None:
        """`rename` changes the beginning of their names (a head class prefixes what a bare one does not)."""
        self.rows = []
        for line in (row for line in table.splitlines() if line.strip() for row in _expand(line)):
            ours, theirs, *word = line.split()
            if rename[0] and theirs.startswith(rename[0]):
                theirs = rename[1] + theirs.removeprefix(rename[0])
            self.rows.append(Row(ours, theirs, word[0] if word else ""))

    def links(self, names: Iterable[str]) -> list[Link]:
        """How tensors of these names of ours are written; a name without a row is an error."""
        found: dict[tuple[str, str], dict[int, str]] = {}
        lost = []
        for name in names:
            matches = [(row, at, m) for row in self.rows for at, m in _match_ours(row, name)]
            if not any(row.word not in ("alias", "copy") for row, _, _ in matches):
                lost.append(name)
            for row, at, match in matches:
                if row.word != "alias":
                    found.setdefault((_fill(row.theirs, match), row.word), {})[at] = name
        if lost:
            raise ValueError(f"no row of the names table holds {', '.join(lost)}")
        return [Link(theirs, tuple(parts[i] for i in sorted(parts)), word) for (theirs, word), parts in found.items()]

    def ours(self, name: str) -> tuple[str, str] | None:
        """(our name, the row's word) for a name of theirs; None: no row knows it."""
        for row in self.rows:
            match = row.find_theirs.fullmatch(name)
            if match:
                return _fill(row.ours.partition(",")[0], match), row.word
        return None


def _expand(line: str) -> list[str]:
    """`(a|b) ... (c|d)` is two rows: the n-th group of our side goes with the n-th of theirs."""
    if "@" in line:
        return [row for side in ("encoder", "decoder") for row in _expand(line.replace("@", side))]
    groups = re.findall(r"\([^)]*\)", line)
    if not groups:
        return [line]
    ours, theirs = groups[0], groups[len(groups) // 2]
    pairs = zip(ours[1:-1].split("|"), theirs[1:-1].split("|"), strict=True)
    head, tail = line.split(ours, 1)
    return [row for a, b in pairs for row in _expand(head + a + tail.replace(theirs, b, 1))]


def _regex(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\{\}", r"(\d+)") + r"(?:\.(?P<leaf>weight|bias))?")


def _fill(pattern: str, match: re.Match[str]) -> str:
    """The other side's name: numbers and the leaf as they were matched."""
    numbers = [g for g in match.groups()[: match.re.groups - 1]]
    leaf = f".{match['leaf']}" if match["leaf"] else ""
    return re.sub(r"\{\}", lambda _: numbers.pop(0), pattern) + leaf


def _match_ours(row: Row, name: str) -> Iterable[tuple[int, re.Match[str]]]:
    """Where in a (fused) row this name of ours stands."""
    head, dot, last = row.ours.rpartition(".")
    for at, part in enumerate(last.split(",")):
        match = (_regex(head + dot + part) if "," in last else row.find_ours).fullmatch(name)
        if match:
            yield at, match
