"""Recipe: every setting of a run in one TOML file, each also a flag. Knows what may be in it, runs none."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from qkv.train.config import Learn, nearest
from qkv.validate import number


@dataclass(frozen=True, kw_only=True)
class ModelPart:
    """A fresh model of a family, or one that is loaded; any other key is an argument of the family."""

    family: str | None = None
    size: str | None = None
    load: str | None = None
    adapter: str | None = None  # on the loaded one; it goes on learning
    positions: str | None = None
    changes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TextPart:
    """The tokenizer: one that is loaded, or trained on the training data."""

    load: str | None = None
    kind: str = "byte"
    vocab: int = 8000
    purpose: str | None = None  # None: what the family and the objective need
    lower: bool = False
    sentinels: int = 0
    codes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DataPart:
    """What is read, and how it becomes batches: so many `rows`, or rows of so many `tokens` in all."""

    train: str | list[str]
    valid: str | list[str] | float = 0.0  # files, or the share of the training data that is kept for it
    test: str | list[str] | None = None
    form: str | None = None
    columns: dict[str, str] | None = None
    names: tuple[str, ...] = ()
    unit: str = "line"
    length: int = 0
    long: str = "refuse"
    rows: int = 0
    tokens: int = 0
    languages: tuple[str | None, str | None] = (None, None)
    static: bool = False
    workers: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.valid, float) and not 0 <= self.valid < 1:
            raise ValueError(
                f"data.valid {self.valid!r}, expected files, or a share of at least 0 and below 1"
            )
        for name in ("length", "rows", "tokens", "workers"):
            if getattr(self, name) < 0:
                raise ValueError(f"data.{name} {getattr(self, name)!r}, expected 0 or more")


@dataclass(frozen=True, kw_only=True)
class ObjectivePart:
    """What is taught; any other key is a setting of that objective."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LoraPart:
    """Adapters on a loaded model, which learn in its place; what is new in it learns too."""

    rank: int = 8
    alpha: float = 16.0
    drop: float = 0.0
    root: bool = False  # alpha is divided by the root of the rank
    where: str | tuple[str, ...] = ()  # layers: `q`, `attend.q,k,v`, `feed.*`; none: queries and values

    def __post_init__(self) -> None:
        number("lora.rank", self.rank, whole=True, at_least=1)
        number("lora.alpha", self.alpha, more_than=0)
        number("lora.drop", self.drop, at_least=0, less_than=1)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    model: ModelPart
    data: DataPart
    objective: ObjectivePart
    learn: Learn
    text: TextPart = TextPart()
    lora: LoraPart | None = None  # None: the whole model learns
    run: str = "runs/unnamed"  # the folder that everything is written to
    device: str = "auto"

    def __post_init__(self) -> None:
        if (self.lora or self.model.adapter) and not self.model.load:
            raise ValueError(
                f"{'lora' if self.lora else 'model.adapter'}: an adapter is of no use without its model, and "
                "a fresh one is saved nowhere; expected model.load, a folder or hub id"
            )
        if self.lora and self.model.adapter:
            raise ValueError(
                f"lora with model.adapter {self.model.adapter!r}, which learns on as it is: leave lora out "
                "(--lora '')"
            )

    def as_dict(self) -> dict[str, Any]:
        """Every setting, under the name that a recipe has for it."""
        tables = asdict(self)
        for name, own in OPEN.items():
            tables[name] |= tables[name].pop(own)
        return tables


OPEN = {"model": "changes", "objective": "settings"}  # tables with keys of their own, and where those go
FILES = ("data.train", "data.valid", "data.test")


def read_recipe(path: Path, flags: Sequence[str] = ()) -> Recipe:
    """The recipe in a file, changed by flags such as `--learn.rate 3e-4`."""
    try:
        return parse_recipe(path.read_text(encoding="utf-8"), path, flags)
    except FileNotFoundError:
        raise ValueError(f"{path}: no such recipe") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a recipe in TOML ({error})") from None


def parse_recipe(text: str, path: Path, flags: Sequence[str] = ()) -> Recipe:
    """The recipe in the text of that file."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: not a recipe in TOML ({error})") from None
    for name, value in pairs(flags):
        table, _, key = name.rpartition(".")
        inner = tables
        for part in table.split(".") if table else ():
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                raise ValueError(f"--{name}: {part} is no table of the recipe")
        inner[key] = value
    tables.setdefault("run", f"runs/{path.stem}")
    try:
        set_saves(tables.get("learn"))
        return make(Recipe, tables, "")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def set_saves(learn: object) -> None:
    """A recipe that says nothing of it saves ten times; how far apart those are that `last` takes is said."""
    if isinstance(learn, dict) and type(steps := learn.get("steps")) is int and not learn.get("last"):
        learn.setdefault("save", max(1, steps // 10))


def pairs(flags: Sequence[str]) -> list[tuple[str, Any]]:
    """`--a.b 1 --c=x` as names and values; a flag without a value is true."""
    found: list[tuple[str, Any]] = []
    rest = list(flags)
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("--"):
            raise ValueError(f"{flag!r}, expected a flag such as --learn.rate 3e-4")
        name, equals, value = flag[2:].partition("=")
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        found.append((name, toml_value(value)))
    return merged(found)


def merged(given: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Files that are given one by one are a list; any other setting is given once."""
    found: dict[str, Any] = {}
    for name, value in given:
        if name in found:
            files = [*several(found[name]), *several(value)]
            if name not in FILES or not all(isinstance(file, str) for file in files):
                raise ValueError(f"--{name} is given twice, {found[name]!r} and {value!r}; expected once")
            value = files
        found[name] = value
    return [*found.items()]


def several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def toml_value(text: str) -> Any:
    """A value as TOML writes it; anything else is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def make(kind: type[Any], table: object, path: str) -> Any:
    """A dataclass from a table; an unknown or missing key, or a value of the wrong kind, is named."""
    if not isinstance(table, Mapping):
        raise ValueError(f"{path.rstrip('.')} is {table!r}, expected a table")
    hints, known = get_type_hints(kind), {each.name: each for each in fields(kind)}
    values: dict[str, Any] = {}
    own = OPEN.get(path.rstrip("."))
    for name, value in table.items():
        if name in known and name != own:
            values[name] = typed(value, hints[name], path + name)
        elif own:
            values.setdefault(own, {})[name] = value
        else:
            near = nearest(name, known)
            hint = f"did you mean {path}{near}?" if near else f"expected one of {', '.join(known)}"
            raise ValueError(f"{path}{name} is unknown; {hint}")
    for name, each in known.items():
        if name not in values and each.default is MISSING and each.default_factory is MISSING:
            raise ValueError(f"{path}{name} is missing")
    return kind(**values)


def typed(value: Any, hint: Any, path: str) -> Any:
    """The value as the annotation has it."""
    if isinstance(hint, type) and hasattr(hint, "__dataclass_fields__"):
        return make(hint, value, f"{path}.")
    origin, inside = get_origin(hint), get_args(hint)
    if value == "" and type(None) in inside:  # TOML has no word for nothing
        return None
    tables = [kind for kind in inside if hasattr(kind, "__dataclass_fields__")]
    if tables and value is not None:
        return make(tables[0], value, f"{path}.")
    if origin in (Union, UnionType):
        for choice in inside:
            try:
                return typed(value, choice, path)
            except ValueError:
                continue
    elif origin is tuple and isinstance(value, list | tuple):
        each = inside[:1] * len(value) if len(inside) == 2 and inside[1] is Ellipsis else inside
        if len(each) == len(value):
            return tuple(typed(x, kind, path) for x, kind in zip(value, each, strict=True))
    elif origin in (list, dict) and isinstance(value, origin):
        return value
    elif hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    elif (hint is type(None) and value is None) or (isinstance(hint, type) and type(value) is hint):
        return value
    names = [getattr(kind, "__name__", str(kind)) for kind in inside or (hint,)]
    wanted = {"int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false"}
    wanted |= {"tuple": "a list", "list": "a list"}
    raise ValueError(f"{path} is {value!r}, expected {' or '.join(wanted.get(name, name) for name in names)}")


def to_toml(recipe: Recipe) -> str:
    """The recipe with every setting written out."""
    lines, tables = [], {}
    for name, value in recipe.as_dict().items():
        if isinstance(value, dict):
            tables[name] = value
        elif value is not None:
            lines.append(f"{name} = {written(value)}")
    for name, table in tables.items():
        lines += ["", f"[{name}]"]
        lines += [f"{key} = {written(value)}" for key, value in table.items() if value is not None]
    return "\n".join(lines) + "\n"


def written(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        body = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{body}"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(written('' if each is None else each) for each in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {written(each)}" for key, each in value.items()) + "}"
    return repr(value)
