"""Recipe: every setting of a run in one TOML file, each also a flag. It parses recipes, runs none."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from qkv.data.read.corpus import Corpus
from qkv.hints import NAME_HINTS, find_known_name
from qkv.train.config import TrainConfig
from qkv.validate import check_number


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A new model of a family, or a pretrained one; any other key is an argument of the family."""

    family: str | None = None
    size: str | None = None
    load: str | None = None  # folder or hub id of a pretrained model
    adapter: str | None = None  # LoRA adapter of the pretrained model, to train further
    head: str | None = None  # None: the head that the objective trains
    label_names: tuple[str, ...] = ()  # labels by id; none: those of the training data, sorted
    pooling: str | None = None  # adds a sentence embedding: mean, first or last
    position_embedding_type: str | None = None
    overrides: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """A pretrained tokenizer, or one to train on the training data."""

    load: str | None = None
    type: str = "byte"
    vocab_size: int = 8000
    template: str | None = None  # special tokens; None: those of the family and the objective
    lowercase: bool = False
    num_sentinels: int = 0
    extra_tokens: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Data files and batching: batches of `batch_size` rows, or of up to `batch_tokens` tokens."""

    train: str | list[str]
    validation: str | list[str] | float = (
        0.0  # files, or the fraction of the training data to hold out
    )
    test: str | list[str] | None = None
    format: str | None = None
    columns: dict[str, str] | None = None
    column_names: tuple[str, ...] = ()
    unit: str = "line"
    max_length: int = 0
    overflow: str | None = None  # for texts over max_length: error (default), truncate or window
    batch_size: int = 0
    batch_tokens: int = 0
    languages: tuple[str | None, str | None] = (None, None)
    fixed_noise: bool = False
    num_workers: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.validation, float) and not 0 <= self.validation < 1:
            raise ValueError(
                f"data.validation {self.validation!r}, "
                "expected files, or a fraction of at least 0 and below 1"
            )
        for name in ("max_length", "batch_size", "batch_tokens", "num_workers"):
            if getattr(self, name) < 0:
                raise ValueError(f"data.{name} {getattr(self, name)!r}, expected 0 or more")

    def open_corpus(self, paths: str | list[str]) -> Corpus:
        """Return the records of these files, read as this table says."""
        unit: Any = self.unit
        return Corpus(
            paths,
            format=self.format,
            columns=self.columns,
            column_names=self.column_names,
            unit=unit,
        )


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """The training objective; any other key is a setting of that objective."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def problem_type(self) -> str:
        """The problem type of sequence classification."""
        return self.settings.get("problem_type", "single_label_classification")


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """LoRA adapters on a pretrained model, trained in its place together with any new head."""

    r: int = 8
    lora_alpha: float = 16.0
    lora_dropout: float = 0.0
    use_rslora: bool = False  # scale by alpha / sqrt(r) instead of alpha / r
    # Patterns of layers: `q`, `attention.q,k,v`, `feed_forward.*`; none: queries and values.
    target_modules: str | tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_number("lora.r", self.r, integer=True, at_least=1)
        check_number("lora.lora_alpha", self.lora_alpha, more_than=0)
        check_number("lora.lora_dropout", self.lora_dropout, at_least=0, less_than=1)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    model: ModelConfig
    data: DataConfig
    objective: ObjectiveConfig
    train: TrainConfig
    tokenizer: TokenizerConfig = TokenizerConfig()
    lora: LoraConfig | None = None  # None: the full model is trained
    run: str = "runs/unnamed"  # output folder
    device: str = "auto"

    def __post_init__(self) -> None:
        if (self.lora or self.model.adapter) and not self.model.load:
            raise ValueError(
                f"{'lora' if self.lora else 'model.adapter'}: an adapter needs a pretrained model; "
                "expected model.load, a folder or hub id"
            )
        if self.lora and self.model.adapter:
            raise ValueError(
                f"lora with model.adapter {self.model.adapter!r}, which is trained further as it is: "
                "remove the table lora (--lora '')"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return every setting under its recipe key."""
        tables = asdict(self)
        for name, open_field in OPEN_TABLES.items():
            tables[name] |= tables[name].pop(open_field)
        return tables


TABLES: dict[str, type] = {
    "model": ModelConfig,
    "tokenizer": TokenizerConfig,
    "data": DataConfig,
    "objective": ObjectiveConfig,
    "train": TrainConfig,
    "lora": LoraConfig,
}
OPEN_TABLES = {  # tables that accept further keys, and the field that holds them
    "model": "overrides",
    "objective": "settings",
}
BARE_TOML_KEY = re.compile(r"[A-Za-z0-9_-]+")  # a key that needs no quotes
FILE_KEYS = ("data.train", "data.validation", "data.test")


def read_recipe(path: Path, flags: Sequence[str] = ()) -> Recipe:
    """Read a recipe from a file; flags such as `--train.lr 3e-4` override its settings."""
    try:
        return parse_recipe(path.read_text(encoding="utf-8"), path, flags)
    except FileNotFoundError:
        raise ValueError(f"{path}: no such recipe") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a recipe in TOML ({error})") from None


def parse_recipe(text: str, path: Path, flags: Sequence[str] = ()) -> Recipe:
    """Parse the text of the recipe at this path."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: not a recipe in TOML ({error})") from None
    for name, value in parse_flags(flags):
        parent_path, _, key = name.rpartition(".")
        table = tables
        for part in parent_path.split(".") if parent_path else ():
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise ValueError(f"--{name}: {part} is not a table of the recipe")
        table[key] = value
    tables.setdefault("run", f"runs/{path.stem}")
    try:
        return build_dataclass(Recipe, tables, "")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def parse_flags(flags: Sequence[str]) -> list[tuple[str, Any]]:
    """Parse `--a.b 1 --c=x` into names and values; a flag without a value is true."""
    settings: list[tuple[str, Any]] = []
    rest = list(flags)
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("--"):
            raise ValueError(f"{flag!r}, expected a flag such as --train.lr 3e-4")
        name, equals, value = flag[2:].partition("=")
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        settings.append((name, parse_toml_value(value)))
    return merge_repeated_flags(settings)


def merge_repeated_flags(settings: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Merge repeated file flags into a list; any other repeated flag is an error."""
    merged: dict[str, Any] = {}
    for name, value in settings:
        if name in merged:
            files = [*as_list(merged[name]), *as_list(value)]
            if name not in FILE_KEYS or not all(isinstance(file, str) for file in files):
                raise ValueError(
                    f"--{name} is given twice, {merged[name]!r} and {value!r}; expected once"
                )
            value = files
        merged[name] = value
    return [*merged.items()]


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def parse_toml_value(text: str) -> Any:
    """Parse a TOML value; anything else is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def build_dataclass(dataclass_type: type[Any], table: object, prefix: str) -> Any:
    """Build a dataclass from a table; reject unknown and missing keys and values of a wrong type."""
    if not isinstance(table, Mapping):
        raise ValueError(f"{prefix.rstrip('.')} is {table!r}, expected a table")
    hints = get_type_hints(dataclass_type)
    known_fields = {item.name: item for item in fields(dataclass_type)}
    values: dict[str, Any] = {}
    open_field = OPEN_TABLES.get(prefix.rstrip("."))
    for name, value in table.items():
        if name in known_fields and name != open_field:
            values[name] = convert_value(value, hints[name], prefix + name)
        elif open_field:
            values.setdefault(open_field, {})[name] = value
        else:
            raise ValueError(
                f"{prefix}{name} is unknown; {suggest_key(name, known_fields, prefix)}"
            )
    for name, item in known_fields.items():
        if name not in values and item.default is MISSING and item.default_factory is MISSING:
            raise ValueError(f"{prefix}{name} is missing")
    return dataclass_type(**values)


def suggest_key(name: str, known_names: Mapping[str, object], prefix: str) -> str:
    """Return the part of an error message that says which key an unknown one may stand for."""
    if known_name := find_known_name(name, known_names):
        return f"did you mean {prefix}{known_name}?"
    key = NAME_HINTS.get(name, name)
    for table, dataclass_type in TABLES.items():
        if key in [item.name for item in fields(dataclass_type)]:
            return f"did you mean {table}.{key}?"
    return f"expected one of {', '.join(known_names)}"


def convert_value(value: Any, hint: Any, key: str) -> Any:
    """Convert a TOML value to the type of an annotation."""
    if isinstance(hint, type) and hasattr(hint, "__dataclass_fields__"):
        return build_dataclass(hint, value, f"{key}.")
    origin = get_origin(hint)
    arguments = get_args(hint)
    if value == "" and type(None) in arguments:  # TOML has no null
        return None
    dataclass_types = [item for item in arguments if hasattr(item, "__dataclass_fields__")]
    if dataclass_types and value is not None:
        return build_dataclass(dataclass_types[0], value, f"{key}.")
    if origin in (Union, UnionType):
        for choice in arguments:
            try:
                return convert_value(value, choice, key)
            except ValueError:
                continue
    elif origin is tuple and isinstance(value, list | tuple):
        is_variadic = len(arguments) == 2 and arguments[1] is Ellipsis
        item_types = arguments[:1] * len(value) if is_variadic else arguments
        if len(item_types) == len(value):
            pairs = zip(value, item_types, strict=True)
            return tuple(convert_value(item, item_type, key) for item, item_type in pairs)
    elif origin in (list, dict) and isinstance(value, origin):
        return value
    elif hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    elif (hint is type(None) and value is None) or (isinstance(hint, type) and type(value) is hint):
        return value
    type_names = [getattr(item, "__name__", str(item)) for item in arguments or (hint,)]
    descriptions = {
        "int": "a whole number",
        "float": "a number",
        "str": "a text",
        "bool": "true or false",
        "tuple": "a list",
        "list": "a list",
    }
    expected = " or ".join(descriptions.get(name, name) for name in type_names)
    raise ValueError(f"{key} is {value!r}, expected {expected}")


def format_recipe(recipe: Recipe) -> str:
    """Return the recipe as TOML, with every setting written out."""
    lines = []
    tables = {}
    for name, value in recipe.to_dict().items():
        if isinstance(value, dict):
            tables[name] = value
        elif value is not None:
            lines.append(f"{name} = {format_toml_value(value)}")
    for name, table in tables.items():
        lines += ["", f"[{name}]"]
        lines += [
            f"{key} = {format_toml_value(value)}"
            for key, value in table.items()
            if value is not None
        ]
    return "\n".join(lines) + "\n"


def format_toml_value(value: Any) -> str:
    """Return a value in TOML syntax."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        body = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{body}"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(format_toml_value('' if item is None else item) for item in value)}]"
    if isinstance(value, dict):
        items = [
            f"{key if BARE_TOML_KEY.fullmatch(key) else format_toml_value(key)} = "
            f"{format_toml_value(item)}"
            for key, item in value.items()
        ]
        return f"{{{', '.join(items)}}}"
    return repr(value)
