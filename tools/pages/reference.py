"""Reference pages of the public names: signatures as in the source, and docstrings."""

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
from qkv import decode, words
from qkv.families.family import Family
from qkv.tasks.base import Task
from qkv.tasks.registry import TASK_CLASSES
from tools.pages.meanings import ARGUMENT_MEANINGS
from tools.pages.page import Page
from tools.pages.settings import argument_settings, format_settings, settings_pages

MAX_SIGNATURE_WIDTH = 84  # of a signature in one line
PUBLIC_METHODS = {  # of these classes; of others, all methods without an underscore
    Task: "__call__ map stream get_last_hidden_state compute_logits_per_image",
    qkv.Model: "spec tokenizer device dtype to train eval parameters __call__ generate save",
    decode.Engine: "__init__ has_unfinished_requests add_request step abort_request",
}
TASKS_INTRODUCTION = """
The objects that `qkv.task(name, model, **settings)` returns: for each task, its settings, then the
dataclasses of its results. [Tasks](../tasks.md) has examples. A task that generates text also takes the
fields of [GenerationConfig](settings.md#generationconfig).
""".strip()


def reference_pages() -> list[Page]:
    """Return the pages of the reference."""
    public = {f"qkv.{name}": getattr(qkv, name) for name in qkv.__all__}
    word_names = {f"qkv.words.{name}": getattr(words, name) for name in words.__all__}
    decoding = {f"qkv.decode.{name}": getattr(decode, name) for name in decode.__all__}
    return [
        make_page("qkv", "qkv", "The public names of `qkv`.", public | {"Family": Family}),
        make_page("tasks", "Tasks and results", TASKS_INTRODUCTION, collect_task_classes()),
        make_page("decode", "qkv.decode", "[Decoding](../decoding.md) has examples.", decoding),
        make_page("words", "qkv.words", "[Word vectors](../words.md) has examples.", word_names),
        *settings_pages(),
    ]


def collect_task_classes() -> dict[str, Any]:
    """Return every task by name, each followed by its result classes that are not listed yet."""
    classes: dict[str, Any] = {"Every task": Task}
    for name, (module_name, class_name) in TASK_CLASSES.items():
        module = import_module(f"qkv.tasks.{module_name}")
        classes[name] = getattr(module, class_name)
        for title, value in vars(module).items():
            if is_result_class(value) and value not in classes.values():
                classes[title if title not in classes else f"{title} of {name}"] = value
    return classes


def is_result_class(value: Any) -> bool:
    """Return whether a value is a dataclass of task results."""
    is_task_dataclass = (
        inspect.isclass(value) and is_dataclass(value) and value.__module__.startswith("qkv.tasks.")
    )
    return is_task_dataclass and not issubclass(value, Task)


def make_page(name: str, title: str, introduction: str, entries: dict[str, Any]) -> Page:
    parts = [
        f"# {title}",
        introduction,
        *(format_entry(path, value) for path, value in entries.items()),
    ]
    path = f"reference/{name}.md"
    return Page(path=path, title=title, text="\n\n".join(parts) + "\n", source=f"docs/{path}")


def format_entry(name: str, value: Any) -> str:
    """Return a heading, the signature and the docstring; for a class, its fields and methods."""
    if not inspect.isclass(value):
        return "\n\n".join([f"## {name}", *format_function(value, name)])
    docstring = inspect.cleandoc(value.__doc__ or "")
    is_generated = docstring.startswith(f"{value.__name__}(")  # by `dataclass`
    parts = [f"## {name}", "" if is_generated else docstring, format_code(format_fields(value))]
    for method in list_methods(value):
        parts += format_function(*method)
    return "\n\n".join(part for part in parts if part)


def format_function(
    function: Callable[..., Any], name: str, is_property: bool = False
) -> list[str]:
    """Return the signature, the docstring, and the table of the arguments if they have meanings."""
    parts = [format_code(format_signature(function, name, is_property)), inspect.getdoc(function)]
    if name in ARGUMENT_MEANINGS:
        parts.append(format_settings(argument_settings(name, function)))
    return [part for part in parts if part]


def list_methods(class_: type) -> Iterator[tuple[Callable[..., Any], str, bool]]:
    """Yield the public methods that a class defines: function, name, whether it is a property."""
    public = next(
        (names.split() for base, names in PUBLIC_METHODS.items() if issubclass(class_, base)), None
    )
    caller = "model" if class_ is qkv.Model else "task"
    names = {"__call__": caller, "__init__": class_.__name__}
    for name, value in vars(class_).items():
        getter = getattr(value, "fget", None) or getattr(value, "func", None)
        function = getter or getattr(value, "__func__", value)
        is_method = (
            inspect.isfunction(function) and function.__name__ == name
        )  # not a field's default
        if is_method and (name in public if public else not name.startswith("_")):
            yield function, names.get(name, f"{class_.__name__}.{name}"), getter is not None


def format_code(code: str) -> str:
    return f"```python\n{code}\n```" if code else ""


def format_signature(function: Callable[..., Any], name: str, is_property: bool = False) -> str:
    """Return a signature on one line, or one argument per line; for a property, its type."""
    source = dedent(inspect.getsource(function))
    node: Any = ast.parse(source).body[0]
    returns = name if node.name == "__init__" else ast.unparse(node.returns).strip("'")
    if is_property:
        return f"{name}: {returns}"
    arguments = [
        text for text in list_arguments(node.args, source) if not re.match(r"(self|cls)\b", text)
    ]
    arguments = arguments[1:] if arguments[:1] == ["/"] else arguments
    one_line = f"{name}({', '.join(arguments)}) -> {returns}"
    if len(one_line) <= MAX_SIGNATURE_WIDTH:
        return one_line
    lines = "".join(f"    {text},\n" for text in arguments)
    lines = lines.replace(" /,\n   ", " /,").replace(" *,\n   ", " *,")
    return f"{name}(\n{lines}) -> {returns}"


def list_arguments(args: ast.arguments, source: str) -> Iterator[str]:
    """Yield the arguments as in the source."""
    positional = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(positional) - len(args.defaults)) + args.defaults
    for index, (arg, default) in enumerate(zip(positional, defaults, strict=True), 1):
        yield format_argument(arg, default, source)
        if index == len(args.posonlyargs):
            yield "/"
    if args.vararg or args.kwonlyargs:
        yield f"*{ast.unparse(args.vararg) if args.vararg else ''}"
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        yield format_argument(arg, default, source)
    if args.kwarg:
        yield f"**{ast.unparse(args.kwarg)}"


def format_argument(arg: ast.arg, default: ast.expr | None, source: str) -> str:
    suffix = "" if default is None else f" = {ast.get_source_segment(source, default)}"
    return ast.unparse(arg) + suffix


def format_fields(class_: type) -> str:
    """Return the fields of a dataclass or named tuple as in the source, with comments."""
    source = dedent(inspect.getsource(class_))
    node: Any = ast.parse(source).body[0]
    if not is_dataclass(class_) and not issubclass(class_, tuple):
        return ""
    lines = source.splitlines()
    fields = [
        item
        for item in node.body
        if isinstance(item, ast.AnnAssign) and "ClassVar" not in ast.unparse(item.annotation)
    ]
    field_lines = [line for item in fields for line in lines[item.lineno - 1 : item.end_lineno]]
    bases = f"({', '.join(map(ast.unparse, node.bases))})" if node.bases else ""
    return "\n".join([f"class {node.name}{bases}:", *field_lines]) if field_lines else ""
