"""The registry of measures: functions of a context and settings that return a Measurement.

The settings of a measure are its keyword arguments. Modules are imported when a measure runs."""

from __future__ import annotations

import inspect
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from qkv.experiments.experiment import Cell
from qkv.experiments.table import Measurement
from qkv.files import format_error
from qkv.hints import describe_unknown_name, find_known_name
from qkv.validate import check_number, shorten_repr

MEASURES = {  # name -> module of this package, function
    "attention-gradient": ("scaling", "measure_attention_gradient"),
    "language-model": ("language_model", "measure_language_model"),
    "equivariance": ("positions", "measure_equivariance"),
    "previous-token": ("positions", "measure_previous_token"),
    "retrieval": ("retrieval", "measure_retrieval"),
    "translation": ("translation", "measure_translation"),
    "cost": ("cost", "measure_cost"),
    "heads": ("heads", "measure_heads"),
    "selection-speed": ("selection", "measure_selection_speed"),
    "pretraining": ("pretraining", "measure_pretraining"),
}
# Settings that are whole numbers are 1 or more, except these.
CELL_SETTING_BOUNDS: dict[str, dict[str, float]] = {
    **{name: dict(at_least=0) for name in ("segment", "eval_length", "num_pictures")},
    "num_lines": dict(at_least=0, at_most=2**40),
    "eval_lengths": dict(at_least=2),
    "test_fraction": dict(more_than=0, less_than=1),
}
MAX_SETTING = 2**20  # sizes are multiplied


@dataclass(frozen=True, kw_only=True)
class CellContext:
    """What a measure may use besides its settings."""

    seed: int
    device: str
    data: Path  # folder of the data files
    scratch: Path  # empty folder, removed after the cell
    results: Path  # folder for pictures, created on first use
    name: str  # of the cell
    variant: str  # name of the variant of the cell, or empty
    report: Callable[[str], None]

    def find_data(self, name: str) -> Path:
        """Return the path of a data file."""
        path = self.data / name
        if not path.is_file():
            raise ValueError(f"{path}: data file not found; set its folder with --data")
        return path

    def describe_machine(self) -> dict[str, str]:
        """Return the device and the version of torch."""
        import torch

        device = platform.machine()
        if self.device.startswith("cuda"):
            device = torch.cuda.get_device_name()
        return {"device": f"{self.device} ({device})", "torch": torch.__version__}


Measure = Callable[..., Measurement]


def load_measure(name: str) -> Measure:
    """Return the function of a measure."""
    if name not in MEASURES:
        known_name = find_known_name(name, MEASURES)
        hint = (
            f"did you mean {known_name}?"
            if known_name
            else f"expected one of {', '.join(MEASURES)}"
        )
        raise ValueError(f"measure {name!r} is unknown; {hint}")
    module, function = MEASURES[name]
    measure: Measure = getattr(import_module(f"{__name__}.{module}"), function)
    return measure


def check_cell_settings(cell: Cell) -> None:
    """Raise ValueError unless the settings of a cell are those of its measure, by its annotations."""
    measure = load_measure(cell.measure)
    parameters: dict[str, Any] = dict(inspect.signature(measure).parameters)
    parameters.pop("context")
    for name in cell.settings:
        if name not in parameters:
            raise ValueError(f"{cell.measure}: {describe_unknown_name(name, parameters)}")
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and name not in cell.settings
    ]
    if missing:
        raise ValueError(
            f"{cell.measure}: settings {', '.join(missing)} are missing in {cell.name}"
        )
    hints = get_type_hints(measure)
    for name, value in cell.settings.items():
        try:
            check_setting(name, value, hints[name])
        except ValueError as error:
            raise ValueError(f"{cell.measure}: {error}") from None


def check_setting(name: str, value: object, hint: Any) -> None:
    """Raise ValueError unless the value of a setting has the type of the annotation, and each number
    is within its bounds."""
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        is_choice = get_origin(hint) is Literal
        problem = (
            f"expected one of {', '.join(get_args(hint))}" if is_choice else format_error(error)
        )
        raise ValueError(f"{name} is {shorten_repr(value)}: {problem}") from None
    is_integer = hint is int or hint == Sequence[int]
    bounds = CELL_SETTING_BOUNDS.get(name, dict(at_least=1))
    if not bounds.keys() & {"at_most", "less_than"}:
        bounds = bounds | {"at_most": MAX_SETTING}
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, int | float) and not isinstance(number, bool):
            check_number(name, number, integer=is_integer, **bounds)
