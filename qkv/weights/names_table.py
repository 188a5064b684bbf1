"""Names, both ways: a table whose rows pair our tensor names with theirs. Knows no files and no families.

    encoder.layers.{}.attend.(q|k|v)   bert.encoder.layer.{}.attention.self.(query|key|value)
    decoder.layers.{}.attend.q,k,v     h.{}.attn.c_attn                  conv1d

A row names a module (its weight and bias go along) or one tensor. `{}` is a number, `(a|b)` on both sides is
two rows, `@` is encoder and decoder. `q,k,v` on our side is one fused tensor on theirs. The third word is an
invertible operation, or one of
    alias   may lie in a file as well: must equal ours, is never written
    copy    is written as well; reading, ours comes from another row
and `-` on our side is a name of theirs that holds no weight (a buffer); `keep` writes it back."""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

Op = Callable[[Tensor, int], Tensor]
OPS: dict[str, tuple[Op, Op]] = {  # theirs -> ours, ours -> theirs; `n` is the number behind the colon
    "": (lambda x, n: x, lambda x, n: x),
    "conv1d": (lambda x, n: x.T if x.dim() == 2 else x, lambda x, n: x.T if x.dim() == 2 else x),
    "row": (lambda x, n: x[0], lambda x, n: x[None]),
    "heads": (lambda x, n: x.flatten(1).T, lambda x, n: x.T.unflatten(1, (n, -1))),  # (W, H, D) <-> (H*D, W)
    "back": (lambda x, n: x.flatten(1), lambda x, n: x.unflatten(1, (n, -1))),  # (W, H, D) <-> (W, H*D)
}


class Link(NamedTuple):
    """One tensor of theirs and the tensors of ours that it holds."""

    theirs: str
    ours: tuple[str, ...]
    word: str

    def op(self) -> tuple[Op, Op, int]:
        name, _, number = self.word.partition(":")
        return *OPS["" if name in ("alias", "copy") else name], int(number or 0)

    def to_theirs(self, tensors: Mapping[str, Tensor]) -> Tensor:
        _, back, n = self.op()
        parts = [tensors[name] for name in self.ours]
        return back(torch.cat(parts) if len(parts) > 1 else parts[0], n)

    def to_ours(self, tensor: Tensor, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
        forth, _, n = self.op()
        sizes = [shapes[name][0] for name in self.ours] if len(self.ours) > 1 else []
        parts = forth(tensor, n).split(sizes) if sizes else [forth(tensor, n)]
        return dict(zip(self.ours, parts, strict=True))


class KeyMap:
    def __init__(self, table: str, prefixes: tuple[str, ...] = (), new: str = "") -> None:
        """Names of theirs with one of these prefixes get a new one: bare classes lack what a head's has."""
        self.rows: list[tuple[str, str, str]] = []
        for row in (row for line in table.splitlines() if line.strip() for row in expand(line)):
            ours, theirs, *word = row.split()
            for prefix in prefixes:
                theirs = new + theirs.removeprefix(prefix) if theirs.startswith(prefix) else theirs
            self.rows.append((ours, theirs, "".join(word)))

    def links(self, names: Iterable[str]) -> list[Link]:
        """How tensors of these names of ours are written; a name without a row is an error."""
        found: dict[tuple[str, str], dict[int, str]] = {}
        lost = []
        for name in names:
            hits = [(theirs, word, *hit) for ours, theirs, word in self.rows for hit in matches(ours, name)]
            if all(word in ("alias", "copy") for _, word, _, _ in hits):
                lost.append(name)
            for theirs, word, at, match in hits:
                if word != "alias":
                    found.setdefault((fill(theirs, match), word), {})[at] = name
        if lost:
            raise ValueError(f"no row of the names table holds {', '.join(lost)}")
        return [Link(name, tuple(x[i] for i in sorted(x)), word) for (name, word), x in found.items()]

    def ours(self, name: str) -> tuple[str, str] | None:
        """(our name, the row's word) for a name of theirs; None: no row knows it."""
        for ours, theirs, word in self.rows:
            if match := regex(theirs).fullmatch(name):
                return fill(ours.partition(",")[0], match), word
        return None


def expand(line: str) -> list[str]:
    """`(a|b) ... (c|d)` is two rows: the n-th group of our side goes with the n-th of theirs."""
    if "@" in line:
        return [row for side in ("encoder", "decoder") for row in expand(line.replace("@", side))]
    groups = re.findall(r"\([^)]*\)", line)
    if not groups:
        return [line]
    ours, theirs = groups[0], groups[len(groups) // 2]
    head, tail = line.split(ours, 1)
    pairs = zip(ours[1:-1].split("|"), theirs[1:-1].split("|"), strict=True)
    return [row for a, b in pairs for row in expand(head + a + tail.replace(theirs, b, 1))]


@cache
def regex(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\{\}", r"(\d+)") + r"(?:\.(?P<leaf>weight|bias))?")


def fill(pattern: str, match: re.Match[str]) -> str:
    """The other side's name: numbers and the leaf as they were matched."""
    numbers = list(match.groups())
    leaf = f".{match['leaf']}" if match["leaf"] else ""
    return re.sub(r"\{\}", lambda _: numbers.pop(0), pattern) + leaf


def matches(ours: str, name: str) -> Iterable[tuple[int, re.Match[str]]]:
    """Where in a (fused) row this name of ours stands."""
    head, dot, last = ours.rpartition(".")
    for at, part in enumerate(last.split(",")):
        if match := regex(head + dot + part).fullmatch(name):
            yield at, match
