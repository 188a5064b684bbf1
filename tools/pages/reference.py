"""The reference: public names with their signatures as the source has them, and their docstrings."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from importlib import import_module
from textwrap import dedent
from typing import Any

import qkv
from qkv import decode
from qkv.families.family import Family
from qkv.tasks.base import Task
from qkv.tasks.registry import TASKS
from tools.pages.page import Page

WIDTH = 84  # of a signature in one line
USED = {  # what users call of these; of other classes, all that has no underscore
    Task: "__call__ many changed stream states scores",
    qkv.Model: "spec tokenizer device run save",
    decode.Engine: "__init__ busy admit step drop",
}
OF_TASKS = """
What `qkv.task(name, model, **settings)` gives: under the name of each task its settings, then what its
results are made of. How they are used: [Tasks](../tasks.md). A task that writes takes the settings of
[How](decode.md#qkvdecodehow) too.
""".strip()


def reference_pages() -> list[Page]:
    public = {f"qkv.{name}": getattr(qkv, name) for name in qkv.__all__}
    ids = {f"qkv.decode.{name}": getattr(decode, name) for name in decode.__all__}
    return [
        page("qkv", "qkv", "What `import qkv` gives.", public | {"Family": Family}),
        page("tasks", "Tasks and results", OF_TASKS, task_names()),
        page("decode", "qkv.decode", "How it is used: [Decoding](../decoding.md).", ids),
    ]


def task_names() -> dict[str, Any]:
    """Every task under its name, and after it those of its results that were not told before."""
    found: dict[str, Any] = {"Every task": Task}
    for name, (home, kind) in TASKS.items():
        module = import_module(f"qkv.tasks.{home}")
        found[name] = getattr(module, kind)
        for title, one in vars(module).items():
            if result(one) and one not in found.values():
                found[title if title not in found else f"{title} of {name}"] = one
    return found


def result(thing: Any) -> bool:
    """Is it what a task's results are made of?"""
    ours = inspect.isclass(thing) and is_dataclass(thing) and thing.__module__.startswith("qkv.tasks.")
    return ours and not issubclass(thing, Task)


def page(name: str, title: str, said: str, found: dict[str, Any]) -> Page:
    text = "\n\n".join([f"# {title}", said, *(entry(path, each) for path, each in found.items())]) + "\n"
    return Page(path=f"reference/{name}.md", title=title, text=text, source=f"docs/reference/{name}.md")


def entry(name: str, thing: Any) -> str:
    """A heading, the signature, what is said of it; of a class its fields and methods."""
    if not inspect.isclass(thing):
        return f"## {name}\n\n{fenced(signature(thing, name))}\n\n{inspect.getdoc(thing) or ''}"
    said = inspect.cleandoc(thing.__doc__ or "")
    given = said.startswith(f"{thing.__name__}(")  # by dataclass itself, where nobody says anything
    parts = [f"## {name}", "" if given else said, fenced(fields(thing))]
    for method in methods(thing):
        parts += [fenced(signature(*method)), inspect.cleandoc(method[0].__doc__ or "")]
    return "\n\n".join(part for part in parts if part)


def methods(thing: type) -> Iterator[tuple[Callable[..., Any], str, bool]]:
    """What users call of what it defines itself: the function, its name, whether it is a property."""
    used = next((names.split() for kind, names in USED.items() if issubclass(thing, kind)), None)
    names = {"__call__": "task", "__init__": thing.__name__}
    for name, value in vars(thing).items():
        inner = getattr(value, "fget", None) or getattr(value, "func", None)
        function = inner or getattr(value, "__func__", value)
        own = inspect.isfunction(function) and function.__name__ == name  # no function that a field holds
        if own and (name in used if used else not name.startswith("_")):
            yield function, names.get(name, f"{thing.__name__}.{name}"), inner is not None


def fenced(code: str) -> str:
    return f"```python\n{code}\n```" if code else ""


def signature(thing: Callable[..., Any], name: str, is_property: bool = False) -> str:
    """In one line, or an argument a line; of a property, what it is."""
    source = dedent(inspect.getsource(thing))
    node: Any = ast.parse(source).body[0]
    back = name if node.name == "__init__" else ast.unparse(node.returns).strip("'")
    if is_property:
        return f"{name}: {back}"
    given = [each for each in arguments(node.args, source) if not re.match(r"(self|cls)\b", each)]
    given = given[1:] if given[:1] == ["/"] else given
    one = f"{name}({', '.join(given)}) -> {back}"
    many = "".join(f"    {each},\n" for each in given).replace(" /,\n   ", " /,").replace(" *,\n   ", " *,")
    return one if len(one) <= WIDTH else f"{name}(\n{many}) -> {back}"


def arguments(args: ast.arguments, source: str) -> Iterator[str]:
    """One after another, as the source has them."""
    plain = [*args.posonlyargs, *args.args]
    values = [None] * (len(plain) - len(args.defaults)) + args.defaults
    for place, (arg, value) in enumerate(zip(plain, values, strict=True), 1):
        yield argument(arg, value, source)
        if place == len(args.posonlyargs):
            yield "/"
    if args.vararg or args.kwonlyargs:
        yield f"*{ast.unparse(args.vararg) if args.vararg else ''}"
    for arg, value in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        yield argument(arg, value, source)
    if args.kwarg:
        yield f"**{ast.unparse(args.kwarg)}"


def argument(arg: ast.arg, value: ast.expr | None, source: str) -> str:
    given = "" if value is None else f" = {ast.get_source_segment(source, value)}"
    return ast.unparse(arg) + given


def fields(thing: type) -> str:
    """The fields of a dataclass or a named tuple as its source has them, comments included."""
    source = dedent(inspect.getsource(thing))
    node: Any = ast.parse(source).body[0]
    lines, plain = source.splitlines(), not is_dataclass(thing) and not issubclass(thing, tuple)
    held = [each for each in node.body if isinstance(each, ast.AnnAssign) and not plain]
    kept = [line for each in held for line in lines[each.lineno - 1 : each.end_lineno]]
    bases = f"({', '.join(map(ast.unparse, node.bases))})" if node.bases else ""
    return "\n".join([f"class {node.name}{bases}:", *kept]) if kept else ""
