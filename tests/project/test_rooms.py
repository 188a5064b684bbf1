"""Imports go one way: a room (a top-level module or folder) imports only what its row names."""

import ast
import sys
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent.parent / "qkv"

# A room, and what it may import besides itself and the standard library: rooms above it, then other packages.
# fmt: off
ROOMS = {
    "formatting": "",
    "terminal":   "",
    "validate":   "",
    "files":      "",
    "torch_compat": "torch",
    "spec":       "",
    "batch":      "torch",
    "kernels":    "torch_compat spec torch",
    "nn":         "validate spec batch kernels torch",
    "attention_weights": "torch_compat nn torch",
    "weights":    "files torch safetensors numpy",
    "families":   "spec weights.names_table",
    "text":       "tokenizers sentencepiece",
    "decode":     "torch_compat spec batch kernels nn torch",
    "builtin":    "",
    "model":      "files validate spec batch nn weights families text decode builtin torch huggingface_hub",
    "data":       "validate files spec batch text torch numpy",
    "train":      "formatting terminal validate files torch_compat spec batch kernels nn weights families text model data torch safetensors numpy rich",
    "tasks":      "files validate torch_compat spec batch kernels nn attention_weights weights families text decode builtin model data torch numpy",
    "view":       "spec nn model tasks torch rich",
    "serve":      "spec batch nn text model data decode tasks view torch",
}
# fmt: on
FREE = {"__init__", "__main__", "cli"}  # these may import everything


def room_of(file: Path) -> str:
    return file.relative_to(PACKAGE).with_suffix("").parts[0]


def list_imports(file: Path) -> Iterator[str]:
    """Yield everything that a file imports, by its full name."""
    package = ".".join(file.relative_to(PACKAGE.parent).parent.parts)
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), package)
            yield from (f"{module}.{alias.name}" for alias in node.names)


def is_allowed(room: str, name: str) -> bool:
    """Return whether a room may import a name of this package, without `qkv.`, or of another."""
    row = [room, *ROOMS[room].split()]
    return name.split(".")[0] in sys.stdlib_module_names or any(
        f"{name}.".startswith(f"{prefix}.") for prefix in row
    )


def test_a_row_names_only_rooms_above_it() -> None:
    order = list(ROOMS)
    for index, row in enumerate(ROOMS.values()):
        assert not {name.split(".")[0] for name in row.split()} & set(order[index:])


def test_every_room_has_a_row() -> None:
    assert {room_of(file) for file in PACKAGE.rglob("*.py")} <= ROOMS.keys() | FREE


def test_a_room_imports_only_what_its_row_names() -> None:
    wrong = []
    for file in sorted(PACKAGE.rglob("*.py")):
        if (room := room_of(file)) in ROOMS:
            names = (name.removeprefix("qkv.") for name in list_imports(file))
            wrong += [
                f"{file.relative_to(PACKAGE)}: {name}"
                for name in names
                if not is_allowed(room, name)
            ]
    assert wrong == []
