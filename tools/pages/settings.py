"""Reference tables of recipe keys, GenerationConfig fields, command flags and function arguments.

The meaning of a dataclass field is the comment next to it or above it, or an entry of MEANINGS."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from textwrap import dedent
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from cyclopts import App

from qkv.cli import COMMAND_GROUPS, app
from qkv.decode import GenerationConfig
from qkv.families import list_families
from qkv.train.config import TRAIN_CHOICES
from qkv.train.objectives.registry import OBJECTIVE_SPECS
from qkv.train.objectives.reinforce import REINFORCE_DEFAULTS
from qkv.train.recipe import OPEN_TABLES, TABLES, Recipe
from tools.pages.meanings import ARGUMENT_MEANINGS, MEANINGS
from tools.pages.page import Page, format_table

REQUIRED = "required"
INTERNAL_ARGUMENTS = {"family"}  # of spec functions that several families share


class Setting(NamedTuple):
    """One row of a reference table."""

    name: str
    type: str
    default: str
    meaning: str


def settings_pages() -> list[Page]:
    """Return the pages on settings and on commands."""
    return [
        make_page("settings", "Settings", format_settings_page()),
        make_page("commands", "Commands", format_commands_page()),
    ]


def make_page(name: str, title: str, text: str) -> Page:
    path = f"reference/{name}.md"
    return Page(path=path, title=title, text=text, source=f"docs/{path}")


def format_settings(settings: list[Setting]) -> str:
    rows = [
        (
            f"`{row.name}`",
            escape_cell(code(row.type)),
            escape_cell(code(row.default)),
            escape_cell(row.meaning),
        )
        for row in settings
    ]
    return format_table("name|type|default|meaning", rows)


def code(text: str) -> str:
    return f"`{text}`" if text and text != REQUIRED else text


def escape_cell(text: str) -> str:
    return text.replace("|", "\\|")


# --- recipes and GenerationConfig ---


def format_settings_page() -> str:
    """Return recipe keys, settings of objectives, arguments of families and GenerationConfig."""
    parts = [
        "# Settings",
        "The keys of a recipe, which are also flags of `qkv train` (`--train.lr 3e-4`), and the fields of"
        " `GenerationConfig`. [Training](../training.md) and [Decoding](../decoding.md) describe their use.",
        f"## Recipe\n\n{format_settings(recipe_settings())}",
    ]
    for name in TABLES:
        parts.append(f"## [{name}]\n\n{format_settings(table_settings(name))}")
        if name == "model":
            parts.append(f"### Arguments of families\n\n{format_family_arguments()}")
        if name == "objective":
            parts += [
                f"### {objective}\n\n{format_settings(settings)}"
                for objective in OBJECTIVE_SPECS
                if (settings := objective_settings(objective))
            ]
            parts.append(f"### Hard attention\n\n{format_settings(hard_attention_settings())}")
    intro = (
        "Fields of `qkv.decode.GenerationConfig`, settings of tasks that generate text, and keys of"
    )
    parts.append(
        f"## GenerationConfig\n\n{intro} generation_config.json.\n\n{format_settings(generation_settings())}"
    )
    return "\n\n".join(parts) + "\n"


def recipe_settings() -> list[Setting]:
    """Return the keys above all tables."""
    return [row for row in field_settings(Recipe, "recipe") if row.name not in TABLES]


def table_settings(name: str) -> list[Setting]:
    """Return the keys of a table, without the field for open keys."""
    rows = [row for row in field_settings(TABLES[name], name) if row.name != OPEN_TABLES.get(name)]
    if name == "train":
        rows = [
            row._replace(meaning=f"{row.meaning}: {', '.join(TRAIN_CHOICES[row.name])}")
            if row.name in TRAIN_CHOICES
            else row
            for row in rows
        ]
    return rows


def generation_settings() -> list[Setting]:
    return field_settings(GenerationConfig, "GenerationConfig")


def field_settings(dataclass_type: type, section: str) -> list[Setting]:
    """Return the fields of a dataclass with the annotations, defaults and comments of the source."""
    source = dedent(inspect.getsource(dataclass_type))
    lines = source.splitlines()
    node: Any = ast.parse(source).body[0]
    settings = []
    for field in node.body:
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        name = field.target.id
        default = ast.get_source_segment(source, field.value) if field.value else REQUIRED
        if isinstance(field.value, ast.Name):  # a constant
            default = repr(getattr(dataclass_type, name))
        if default and default.startswith("field("):
            default = ""
        meaning = MEANINGS.get(section, {}).get(name) or find_comment(lines, field)
        settings.append(Setting(name, ast.unparse(field.annotation), default or "", meaning))
    return settings


def find_comment(lines: list[str], field: ast.AnnAssign) -> str:
    """Return the comment on the line of a field, or the comment lines above it."""
    beside = re.search(r"  # (.+)$", lines[(field.end_lineno or field.lineno) - 1])
    if beside:
        return beside[1]
    above: list[str] = []
    for line in reversed(lines[: field.lineno - 1]):
        comment = re.match(r"\s+# (.+)$", line)
        if comment is None:
            break
        above.insert(0, comment[1])
    return " ".join(above)


def hard_attention_settings() -> list[Setting]:
    """Return the settings of every objective for a model with hard attention."""
    return [
        Setting(name, "float", format_value(default), MEANINGS["objective"].get(name, ""))
        for name, default in REINFORCE_DEFAULTS.items()
    ]


def objective_settings(name: str) -> list[Setting]:
    """Return the settings of an objective: those of its builder, and the extra settings of its row."""
    spec = OBJECTIVE_SPECS[name]
    meanings = MEANINGS["objective"]
    parameters = [
        parameter
        for parameter in inspect.signature(spec.build_objective).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    rows = [
        Setting(
            parameter.name,
            str(parameter.annotation),
            format_value(parameter.default),
            meanings.get(parameter.name, ""),
        )
        for parameter in parameters
    ]
    return rows + [Setting(name, "", "", meanings.get(name, "")) for name in spec.extra_settings]


def format_family_arguments() -> str:
    """Return the arguments of all families, with their keys in config.json."""
    families: dict[str, list[str]] = {}
    keys: dict[str, dict[str, None]] = {}
    for family in list_families():
        for name in family.defaults.keys() - INTERNAL_ARGUMENTS:
            families.setdefault(name, []).append(family.name)
            key = family.config.get(name)
            if isinstance(key, str):
                keys.setdefault(name, {})[key] = None
    num_families = len(list_families())
    rows = [
        (
            f"`{name}`",
            ", ".join(f"`{key}`" for key in keys.get(name, {})) or "—",
            "all" if len(users) == num_families else ", ".join(users),
        )
        for name, users in sorted(families.items())
    ]
    return format_table("argument|keys in config.json|families", rows)


# --- functions ---


def argument_settings(name: str, function: Callable[..., Any]) -> list[Setting]:
    """Return the arguments of a public function, such as `qkv.fit`, with the annotations of the source."""
    meanings = ARGUMENT_MEANINGS[name]
    return [
        Setting(
            f"**{parameter.name}" if parameter.kind is parameter.VAR_KEYWORD else parameter.name,
            str(parameter.annotation),
            REQUIRED if is_required(parameter) else repr_default(parameter),
            meanings.get(parameter.name, ""),
        )
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name not in ("self", "cls")
    ]


def is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD


def repr_default(parameter: inspect.Parameter) -> str:
    return "" if parameter.default is parameter.empty else repr(parameter.default)


# --- commands ---


def format_commands_page() -> str:
    """Return the arguments and flags of every command."""
    parts = [
        "# Commands",
        "All commands with their arguments and flags. See also [The command line](../command-line.md).",
    ]
    for name, command in list_commands():
        summary, example = parse_command_help(command)
        rows = format_settings(command_settings(command))
        parts += [f"## qkv {name}", summary, f"```sh\n{example}\n```", rows]
    return "\n\n".join(part for part in parts if part) + "\n"


def list_commands() -> Iterator[tuple[str, App]]:
    """Yield every command with its name, including subcommands such as `tokenizer train`."""
    for commands in COMMAND_GROUPS.values():
        for name, command in commands.items():
            if isinstance(command, App):
                subcommands = [sub for sub in command if not sub.startswith("-")]
                yield from ((f"{name} {sub}", command[sub]) for sub in subcommands)
            else:
                yield name, app[name]


def parse_command_help(command: App) -> tuple[str, str]:
    """Return the summary and the example of a command's docstring."""
    summary, example, *_ = inspect.cleandoc(inspect.getdoc(command.default_command) or "").split(
        "\n\n"
    )
    return " ".join(summary.split()), example


def command_settings(command: App) -> list[Setting]:
    """Return the arguments and flags of a command."""
    settings = []
    for argument in command.assemble_argument_collection(parse_docstring=True):
        if not argument.show:
            continue
        default = argument.field_info.default
        is_empty = default is inspect.Parameter.empty
        settings.append(
            Setting(
                argument.names[0],
                format_type(argument.hint),
                REQUIRED if argument.required else "" if is_empty else format_value(default),
                argument.parameter.help or "",
            )
        )
    return settings


def format_type(hint: Any) -> str:
    """Return the name of a type as users write its values."""
    if get_origin(hint) is Literal:
        return ", ".join(map(str, get_args(hint)))
    if get_origin(hint) in (Union, UnionType):
        return " | ".join(format_type(part) for part in get_args(hint) if part is not NoneType)
    if get_origin(hint) is tuple:
        return f"{format_type(get_args(hint)[0])} ..."
    return {"Path": "path"}.get(getattr(hint, "__name__", ""), getattr(hint, "__name__", str(hint)))


def format_value(value: Any) -> str:
    """Return a default as Python source; an empty string for None, an empty tuple and False."""
    return "" if value is None or value == () or value is False else repr(value)
