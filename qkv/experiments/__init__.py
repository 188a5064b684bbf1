"""The experiments of the package, found by name: each is a TOML file of cells and panels."""

from __future__ import annotations

from pathlib import Path

from qkv.hints import find_known_name

EXPERIMENTS_FOLDER = Path(__file__).parent
EXPERIMENT_SUFFIX = ".toml"


def list_experiments() -> list[str]:
    """Return the names of the experiments of the package, in the order of docs/why-attention.md."""
    paths = EXPERIMENTS_FOLDER.glob(f"*{EXPERIMENT_SUFFIX}")
    names = {path.stem for path in paths}
    return [name for name in EXPERIMENT_ORDER if name in names] + sorted(
        names - {*EXPERIMENT_ORDER}
    )


EXPERIMENT_ORDER = (
    "sentence-length", "cost", "retrieval", "positions", "scaling", "heads", "norms", "selection",
    "pretraining",
)  # fmt: skip


def find_experiment(name: str) -> Path:
    """Return the path of an experiment: a file, which takes precedence, or one of the package."""
    path = Path(name)
    if path.is_file():
        return path
    names = list_experiments()
    if name.removesuffix(EXPERIMENT_SUFFIX) in names:
        return EXPERIMENTS_FOLDER / f"{name.removesuffix(EXPERIMENT_SUFFIX)}{EXPERIMENT_SUFFIX}"
    known_name = find_known_name(path.stem, names)
    hint = f"did you mean {known_name}?" if known_name else f"the package has {', '.join(names)}"
    raise ValueError(f"{name}: experiment not found; expected a TOML file or a name; {hint}")
