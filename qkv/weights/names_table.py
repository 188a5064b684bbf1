"""Names tables: rows that map parameter names of qkv to tensor names of a checkpoint. Does not depend
on files or families.

    encoder.layers.{}.attention.(q|k|v)   bert.encoder.layer.{}.attention.self.(query|key|value)
    decoder.layers.{}.attention.q,k,v     h.{}.attn.c_attn             conv1d

A row names a module (its weight and bias) or one tensor: first the parameter name, then the name in
the checkpoint. `{}` is a number, `(a|b)` on both sides stands for two rows, `@` for encoder and
decoder. `q,k,v` on the left is one fused tensor in the checkpoint. The third column is an invertible
operation, or one of

    alias   another name in the checkpoint, older or of a tied tensor; must equal the parameter if the
            checkpoint has both; never written
    copy    a second name that is also written; the parameter is read from another row

`-` on the left is a checkpoint name without a parameter (a buffer); `keep` writes it back. The first
row that matches a checkpoint name is used."""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

LEAVES = ("weight", "bias")  # which a row may leave out
NUMBER = re.compile(r"\d+|\{\}")
UNUSED = "-"  # stands for the parameter in the row of a tensor that no parameter is read from

TensorOperation = Callable[[Tensor, int], Tensor]
# Checkpoint -> parameter, parameter -> checkpoint; `n` is the number after the colon.
TENSOR_OPERATIONS: dict[str, tuple[TensorOperation, TensorOperation]] = {
    "": (lambda x, n: x, lambda x, n: x),
    "conv1d": (lambda x, n: x.T if x.dim() == 2 else x, lambda x, n: x.T if x.dim() == 2 else x),
    "row": (lambda x, n: x[0], lambda x, n: x[None]),
    "vector": (lambda x, n: x[0, 0], lambda x, n: x[None, None]),
    "heads": (
        lambda x, n: x.flatten(1).T,
        lambda x, n: x.T.unflatten(1, (n, -1)),
    ),  # (W, H, D) <-> (H*D, W)
    "back": (
        lambda x, n: x.flatten(1),
        lambda x, n: x.unflatten(1, (n, -1)),
    ),  # (W, H, D) <-> (W, H*D)
    # The first or last n rows are not in the checkpoint: zero, or no probability for n tokens.
    "without_first": (lambda x, n: F.pad(x, (0, 0, n, 0)), lambda x, n: x[n:]),
    "without_last": (lambda x, n: F.pad(x, (0, 0, 0, n)), lambda x, n: x[:-n]),
    "without_last_bias": (lambda x, n: F.pad(x, (0, n), value=-1e4), lambda x, n: x[:-n]),
}


class TensorMapping(NamedTuple):
    """A tensor of a checkpoint and the parameters that it contains."""

    checkpoint_name: str
    parameter_names: tuple[str, ...]
    operation: str

    def get_conversions(self) -> tuple[TensorOperation, TensorOperation, int]:
        """Return the operations from and to the checkpoint, and their number argument."""
        name, _, number = self.operation.partition(":")
        return *TENSOR_OPERATIONS["" if name in ("alias", "copy") else name], int(number or 0)

    def to_checkpoint(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return the checkpoint's tensor for these parameters."""
        _, convert, n = self.get_conversions()
        parts = [parameters[name] for name in self.parameter_names]
        return convert(torch.cat(parts) if len(parts) > 1 else parts[0], n)

    def to_parameters(self, tensor: Tensor, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
        """Return the parameters in a tensor of the checkpoint."""
        convert, _, n = self.get_conversions()
        converted = convert(tensor, n)
        if len(self.parameter_names) == 1:
            return {self.parameter_names[0]: converted}
        sizes = [shapes[name][0] for name in self.parameter_names]
        return dict(zip(self.parameter_names, converted.split(sizes), strict=True))


class NamesTable:
    """A names table in which `new_prefix` replaces the `prefixes` of checkpoint names.

    Classes with a head have a prefix that base classes lack."""

    def __init__(self, table: str, prefixes: tuple[str, ...] = (), new_prefix: str = "") -> None:
        self.rows: list[
            tuple[str, str, str]
        ] = []  # parameter pattern, checkpoint pattern, operation
        for line in table.splitlines():
            for row in expand_row(line) if line.strip() else []:
                parameter, name, *operation = row.split()
                for prefix in prefixes:
                    if name.startswith(prefix):
                        name = new_prefix + name.removeprefix(prefix)
                self.rows.append((parameter, name, "".join(operation)))

    def map_parameters(self, parameter_names: Iterable[str]) -> list[TensorMapping]:
        """Return the checkpoint tensors of these parameters; a parameter without a row is an error."""
        groups: dict[tuple[str, str], dict[int, str]] = {}
        unmapped = []
        for parameter_name in parameter_names:
            matches = [
                (self.rows[row][1], self.rows[row][2], index, match)
                for row, index, pattern in self.find_patterns(parameter_name)
                if (match := compile_name_pattern(pattern).fullmatch(parameter_name))
            ]
            if all(operation in ("alias", "copy") for _, operation, _, _ in matches):
                unmapped.append(parameter_name)
            for name, operation, index, match in matches:
                if operation != "alias":
                    parts = groups.setdefault((fill_name_pattern(name, match), operation), {})
                    parts[index] = parameter_name
        if unmapped:
            raise ValueError(f"the names table has no row for {', '.join(unmapped)}")
        return [
            TensorMapping(name, tuple(parts[i] for i in sorted(parts)), operation)
            for (name, operation), parts in groups.items()
        ]

    def find_patterns(self, parameter_name: str) -> list[tuple[int, int, str]]:
        """Return the parameter patterns that may match a name, in the order of the table: the row, the
        part of a fused row, and the pattern."""
        key = erase_numbers(parameter_name)
        head, _, last = key.rpartition(".")
        patterns = self.patterns.get(key, [])
        return sorted([*patterns, *self.patterns.get(head, [])]) if last in LEAVES else patterns

    @cached_property
    def patterns(self) -> dict[str, list[tuple[int, int, str]]]:
        """The parameter patterns of all rows, by their text without numbers."""
        patterns: dict[str, list[tuple[int, int, str]]] = {}
        for row, (parameter, _, _) in enumerate(self.rows):
            head, dot, last = parameter.rpartition(".")
            for index, part in enumerate(last.split(",")):
                pattern = head + dot + part
                patterns.setdefault(erase_numbers(pattern), []).append((row, index, pattern))
        return patterns

    def find_parameter(self, checkpoint_name: str) -> tuple[str, str] | None:
        """Return the parameter name and operation of a checkpoint name; None if it has no row.

        The parameter name of a tensor without a parameter is UNUSED."""
        for parameter, name, operation in self.rows:
            if match := compile_name_pattern(name).fullmatch(checkpoint_name):
                if parameter == UNUSED:
                    return UNUSED, operation
                return fill_name_pattern(parameter.partition(",")[0], match), operation
        return None

    def find_aliases(self, checkpoint_names: Iterable[str]) -> dict[str, str]:
        """Return the names of a checkpoint that are aliases, by parameter name."""
        rows = [row for row in self.rows if row[2] == "alias"]
        return {
            fill_name_pattern(parameter, match): checkpoint_name
            for checkpoint_name in checkpoint_names
            for parameter, pattern, _ in rows
            if (match := compile_name_pattern(pattern).fullmatch(checkpoint_name))
        }


def expand_row(line: str) -> list[str]:
    """Expand `(a|b) ... (c|d)` to two rows; the n-th groups of both sides correspond."""
    if "@" in line:
        return [
            row for stack in ("encoder", "decoder") for row in expand_row(line.replace("@", stack))
        ]
    groups = re.findall(r"\([^)]*\)", line)
    if not groups:
        return [line]
    left = groups[0]
    right = groups[len(groups) // 2]
    head, tail = line.split(left, 1)
    pairs = zip(left[1:-1].split("|"), right[1:-1].split("|"), strict=True)
    return [row for a, b in pairs for row in expand_row(head + a + tail.replace(right, b, 1))]


@cache
def compile_name_pattern(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a name with `{}` for numbers and an optional `weight` or
    `bias`."""
    return re.compile(
        re.escape(pattern).replace(r"\{\}", r"(\d+)") + r"(?:\.(?P<leaf>weight|bias))?"
    )


def fill_name_pattern(pattern: str, match: re.Match[str]) -> str:
    """Return the name on the other side, with the numbers and the leaf of the match."""
    numbers = list(match.groups())
    leaf = f".{match['leaf']}" if match["leaf"] else ""
    return re.sub(r"\{\}", lambda _: numbers.pop(0), pattern) + leaf


@cache
def erase_numbers(name: str) -> str:
    """Return a name or a pattern without its numbers."""
    return NUMBER.sub("{}", name)
