"""The built-in models of the package, one folder each, named `builtin:` plus their task.

The name can be used wherever a folder or hub id is expected. Does not load the models."""

from pathlib import Path

BUILTIN_FOLDER = Path(__file__).parent
BUILTIN_TASKS = ("translate", "complete", "classify")  # tasks with a built-in model
BUILTIN_PREFIX = "builtin:"


def get_builtin_name(task: str) -> str:
    """Return the name of the built-in model of a task."""
    return f"{BUILTIN_PREFIX}{task}"


def is_builtin(name: object) -> bool:
    return isinstance(name, str) and name.startswith(BUILTIN_PREFIX)


def find_builtin(name: str) -> Path:
    """Return the folder of a built-in model; a source checkout may not have its weights."""
    task = name.removeprefix(BUILTIN_PREFIX)
    if task not in BUILTIN_TASKS:
        names = ", ".join(map(get_builtin_name, BUILTIN_TASKS))
        raise ValueError(f"{name}: unknown built-in model; expected one of {names}")
    folder = BUILTIN_FOLDER / task
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"{name}: the weights are not in this copy of qkv ({folder}); "
            "install the package, or use another model: a folder or a hub id"
        )
    return folder
