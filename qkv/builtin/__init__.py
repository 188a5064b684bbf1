"""The models that come with the package, each a folder here. Wherever a folder or a hub id may stand, it is
called `builtin:` and its task. Knows where they lie, and nothing of what is in them."""

from pathlib import Path

HOME = Path(__file__).parent
TASKS = ("translate", "complete", "classify")  # that have one
NAME = "builtin:"


def builtin(task: str) -> str:
    """What the model of a task is called."""
    return f"{NAME}{task}"


def is_builtin(name: object) -> bool:
    return isinstance(name, str) and name.startswith(NAME)


def find_builtin(name: str) -> Path:
    """The folder of a model by that name; a checkout may be without it."""
    task = name.removeprefix(NAME)
    if task not in TASKS:
        raise ValueError(f"{name}: no such model; expected one of {', '.join(map(builtin, TASKS))}")
    folder = HOME / task
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"{name}: this copy of qkv came without its weights (looked in {folder}); expected an installed "
            "package, or another model: a folder or a hub id"
        )
    return folder
