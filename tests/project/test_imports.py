"""Imports go one way: a top-level package or module of qkv imports only what its row lists."""

import ast
import sys
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent.parent / "qkv"

# A package, and what it may import besides itself and the standard library: packages above it, then third parties.
# fmt: off
ALLOWED_IMPORTS = {
    "formatting": "",
    "terminal":   "",
    "validate":   "",
    "hints":      "",
    "files":      "",
    "staging":    "files",
    "image_tokenizer": "validate files staging numpy safetensors",
    "torch_compat": "torch",
    "memory":     "",
    "correlation": "",
    "spec":       "",
    "batch":      "torch",
    "kernels":    "torch_compat spec torch",
    "nn":         "validate memory torch_compat spec batch kernels torch",
    "attention_weights": "torch_compat kernels nn torch",
    "weights":    "files staging torch safetensors numpy",
    "families":   "spec weights.names_table",
    "text":       "files staging tokenizers sentencepiece torch numpy",
    "decode":     "validate memory torch_compat spec batch kernels nn torch",
    "builtin":    "",
    "recipes":    "hints",
    "model":      "formatting files staging validate hints image_tokenizer spec batch nn weights families text decode builtin torch huggingface_hub",
    "export":     "files staging batch nn spec weights families text model torch",
    "data":       "validate files image_tokenizer spec batch text torch numpy",
    "words":      "formatting validate hints files staging correlation data torch safetensors numpy",
    "train":      "formatting terminal validate hints files staging correlation image_tokenizer torch_compat spec batch kernels nn weights families text decode recipes model data words torch safetensors numpy rich msgspec tomlkit",
    "tasks":      "files validate hints image_tokenizer memory torch_compat spec batch kernels nn attention_weights weights families text decode builtin model data torch numpy llguidance",
    "pictures":   "formatting spec nn model tasks torch rich",
    "experiments": "validate hints files staging memory spec batch kernels nn attention_weights text decode model data train tasks pictures torch numpy msgspec",
    "explorer":   "validate hints files staging formatting memory attention_weights torch_compat spec batch kernels nn text decode data model tasks pictures torch numpy starlette uvicorn resvg_py",
}
# fmt: on
UNRESTRICTED = {"__init__", "__main__", "cli"}


def package_of(file: Path) -> str:
    """Return the name of the top-level package or module that a file belongs to."""
    return file.relative_to(PACKAGE).with_suffix("").parts[0]


def list_imports(file: Path) -> Iterator[str]:
    """Yield the full name of everything that a file imports."""
    package = ".".join(file.relative_to(PACKAGE.parent).parent.parts)
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), package)
            yield from (f"{module}.{alias.name}" for alias in node.names)


def is_allowed(package: str, name: str) -> bool:
    """Return whether a package may import a name; names of qkv are without `qkv.`."""
    row = [package, *ALLOWED_IMPORTS[package].split()]
    return name.split(".")[0] in sys.stdlib_module_names or any(
        f"{name}.".startswith(f"{prefix}.") for prefix in row
    )


def test_a_row_lists_only_packages_above_it() -> None:
    order = list(ALLOWED_IMPORTS)
    for index, row in enumerate(ALLOWED_IMPORTS.values()):
        assert not {name.split(".")[0] for name in row.split()} & set(order[index:])


def test_every_package_has_a_row() -> None:
    packages = {package_of(file) for file in PACKAGE.rglob("*.py")}
    assert packages == ALLOWED_IMPORTS.keys() | UNRESTRICTED


def test_a_package_imports_only_what_its_row_lists() -> None:
    wrong = []
    for file in sorted(PACKAGE.rglob("*.py")):
        if (package := package_of(file)) in ALLOWED_IMPORTS:
            names = (name.removeprefix("qkv.") for name in list_imports(file))
            wrong += [
                f"{file.relative_to(PACKAGE)}: {name}"
                for name in names
                if not is_allowed(package, name)
            ]
    assert wrong == []
