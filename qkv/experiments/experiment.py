"""Experiment: cells (a measure, its settings and a seed) and panels of a figure, parsed from TOML.

[about]              title, question, data
[[cells]]            measure = "..."
[cells.settings]     settings of all cells of the group
[cells.variants.X]   settings of the variant X; tables are merged
[cells.axes]         lists of values: a cell per combination, with `variant` and `seed`
[cells.reduced]      settings, variants and axes of the reduced form
[[panels]]           one chart of the figure

Does not depend on torch."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import msgspec

from qkv.files import format_error, parse_toml, read_text_file
from qkv.hints import find_known_name
from qkv.validate import check_number

Settings = dict[str, Any]
VARIANT = "variant"
SEED = "seed"
MAX_SEED = 2**63  # exclusive


class ExperimentAbout(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What an experiment asks, and the data files that it reads."""

    title: str
    question: str
    data: str = ""


class Reduced(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings, variants and axes that replace those of a group in the reduced form."""

    settings: dict[str, Any] = {}
    variants: dict[str, dict[str, Any]] = {}
    axes: dict[str, Any] = {}  # lists


class CellGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Cells of one measure: a cell for every combination of the values of the axes."""

    measure: str
    settings: dict[str, Any] = {}
    variants: dict[str, dict[str, Any]] = {}
    axes: dict[str, Any] = {}  # lists
    reduced: Reduced = Reduced()


class Panel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A chart: points of the results table with the coordinates `x` and `y`, a line per `series`.

    `y` is a metric, or a table of metrics and the names of their lines. `series` is empty if the
    lines are those of the metrics."""

    title: str
    x: str
    y: str | dict[str, str]
    series: str = VARIANT
    measure: str | None = None  # only points of this measure
    where: dict[str, Any] = {}  # only points with these values
    x_label: str
    y_label: str
    x_scale: Literal["linear", "log2", "log10", "names"] = "linear"
    y_scale: Literal["linear", "log2", "log10"] = "linear"
    y_min: float | None = None
    y_max: float | None = None
    mark_x: float | None = None  # a vertical line, such as the trained length
    mark_label: str = ""


class ExperimentFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    about: ExperimentAbout
    cells: list[CellGroup]
    panels: list[Panel] = []


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One measurement: the name of a measure, its settings, and the values that select the cell."""

    measure: str
    coordinates: Settings = field(compare=False)  # of the axes, with `variant`; without the seed
    settings: Settings  # resolved: of the group, the variant and the axes
    seed: int

    @property
    def name(self) -> str:
        """The name that `--cells` matches: the measure, the values of the axes and the seed."""
        values = self.coordinates | {SEED: self.seed}
        return ",".join([self.measure, *(f"{key}={value}" for key, value in values.items())])

    @property
    def variant(self) -> str:
        """The name of the variant, empty without variants."""
        name: str = self.coordinates.get(VARIANT, "")
        return name

    @property
    def key(self) -> str:
        """A hash of all that determines the result: a changed setting is a new cell."""
        text = json.dumps([self.measure, self.settings, self.seed], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """An experiment in its full or its reduced form."""

    name: str
    about: ExperimentAbout
    cells: tuple[Cell, ...]
    panels: tuple[Panel, ...]
    is_reduced: bool = False

    @property
    def file_stem(self) -> str:
        """The name of the results table and of the figure, without suffix."""
        return f"{self.name}-reduced" if self.is_reduced else self.name

    def select_cells(self, patterns: Sequence[str] = ()) -> list[Cell]:
        """Return the cells whose name matches a pattern such as `*variant=gru*seed=0`."""
        if not patterns:
            return list(self.cells)
        cells = [
            cell
            for cell in self.cells
            if any(fnmatchcase(cell.name, pattern) for pattern in patterns)
        ]
        if not cells:
            raise ValueError(
                f"--cells {' '.join(patterns)}: matches none of {len(self.cells)} cells of {self.name}, "
                f"such as {self.cells[0].name}"
            )
        return cells


def read_experiment(path: Path, *, is_reduced: bool = False) -> Experiment:
    """Read an experiment from a TOML file, in its full or its reduced form."""
    try:
        tables = parse_toml(read_text_file(path))
    except ValueError as error:
        message = format_error(error).removeprefix(f"{path}: ")
        raise ValueError(f"{path}: not an experiment in TOML ({message})") from None
    try:
        file = msgspec.convert(tables, ExperimentFile)
        cells = [cell for group in file.cells for cell in expand_cells(group, is_reduced)]
    except (msgspec.ValidationError, ValueError) as error:
        raise ValueError(f"{path}: {format_error(error)}") from None
    if not cells:
        raise ValueError(f"{path}: no cells; expected a table [[cells]] with axes")
    cells.sort(key=lambda cell: cell.seed)  # stable: one seed of everything, then the next
    return Experiment(
        name=path.stem,
        about=file.about,
        cells=tuple(cells),
        panels=tuple(file.panels),
        is_reduced=is_reduced,
    )


def expand_cells(group: CellGroup, is_reduced: bool) -> list[Cell]:
    """Return the cells of a group: the product of its axes; variants default to all, the seed to 0."""
    reduced = group.reduced if is_reduced else Reduced()
    settings = merge_settings(group.settings, reduced.settings)
    variants = merge_settings(group.variants, reduced.variants)
    axes = group.axes | reduced.axes
    if variants:
        axes = {VARIANT: list(variants)} | axes
    for name, values in axes.items():
        if name in settings:
            raise ValueError(f"{name} is a setting and an axis of {group.measure}; expected one")
        if not isinstance(values, list):
            raise ValueError(f"axis {name} is {values!r}, expected a list of values")
    seeds = axes.pop(SEED, [0])
    for seed in seeds:
        check_number("seed", seed, integer=True, at_least=0, less_than=MAX_SEED)
    cells = []
    for seed, *values in itertools.product(seeds, *axes.values()):
        coordinates = dict(zip(axes, values, strict=True))
        changes = dict(coordinates)
        if variants:
            variant = changes.pop(VARIANT)
            if variant not in variants:
                known_name = find_known_name(str(variant), variants)
                hint = f"did you mean {known_name}?" if known_name else "add its table"
                raise ValueError(f"variant {variant!r} has no table in cells.variants; {hint}")
            changes = merge_settings(variants[variant], changes)
        resolved = merge_settings(settings, changes)
        cells.append(
            Cell(measure=group.measure, coordinates=coordinates, settings=resolved, seed=seed)
        )
    return cells


def merge_settings(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Settings:
    """Return settings with changes; tables are merged, a key `a.b` changes b in the table a."""
    merged = {key: dict(value) if isinstance(value, dict) else value for key, value in base.items()}
    for key, value in changes.items():
        table, _, inner = key.partition(".")
        if inner:
            merged[table] = merge_settings(merged.get(table, {}), {inner: value})
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = merge_settings(merged[key], value)
        else:
            merged[key] = value
    return merged
