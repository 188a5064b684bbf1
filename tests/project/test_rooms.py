"""The rooms of the house go one way: a room imports only what its row names."""

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
    "spec":       "",
    "batch":      "torch",
    "kernels":    "spec torch",
    "nn":         "validate spec batch kernels torch",
    "attention_weights": "nn torch",
    "weights":    "torch safetensors numpy",
    "families":   "spec weights.names_table",
    "text":       "tokenizers sentencepiece",
    "decode":     "spec batch kernels nn torch",
    "builtin":    "",
    "model":      "validate spec batch nn weights families text builtin torch huggingface_hub",
    "data":       "spec batch text torch numpy",
    "train":      "formatting terminal validate spec batch kernels nn weights families text model data torch safetensors numpy rich",
    "tasks":      "validate spec batch kernels nn attention_weights weights families text decode builtin model data torch numpy",
    "view":       "spec nn model tasks torch rich",
    "serve":      "spec batch nn text model data decode tasks view torch",
}
# fmt: on
FREE = {"__init__", "__main__", "cli"}  # these may import everything


def room_of(file: Path) -> str:
    return file.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(file: Path) -> Iterator[str]:
    """Everything a file imports, wherever it does, by its full name."""
    package = ".".join(file.relative_to(PACKAGE.parent).parent.parts)
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), package)
            yield from (f"{module}.{alias.name}" for alias in node.names)


def allowed(room: str, name: str) -> bool:
    """Whether a file of this room may import that name (of ours, without `qkv.`; or another package's)."""
    row = [room, *ROOMS[room].split()]
    return name.split(".")[0] in sys.stdlib_module_names or any(
        f"{name}.".startswith(f"{each}.") for each in row
    )


def test_a_row_names_only_rooms_above_it() -> None:
    order = list(ROOMS)
    for place, row in enumerate(ROOMS.values()):
        assert not {each.split(".")[0] for each in row.split()} & set(order[place:])


def test_every_room_has_a_row() -> None:
    assert {room_of(file) for file in PACKAGE.rglob("*.py")} <= ROOMS.keys() | FREE


def test_a_room_imports_only_what_its_row_names() -> None:
    wrong = []
    for file in sorted(PACKAGE.rglob("*.py")):
        if (room := room_of(file)) in ROOMS:
            names = (name.removeprefix("qkv.") for name in imports(file))
            wrong += [f"{file.relative_to(PACKAGE)}: {name}" for name in names if not allowed(room, name)]
    assert wrong == []
