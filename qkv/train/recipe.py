"""Recipe: the settings of a run, parsed from a TOML file and command-line flags."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import tomlkit

from qkv.data.read.corpus import Corpus
from qkv.files import parse_toml
from qkv.hints import NAME_HINTS, find_known_name
from qkv.model.device import DEFAULT_DEVICE
from qkv.recipes import About
from qkv.spec import VARIANT_KEYS
from qkv.train.config import TrainConfig
from qkv.validate import check_number, shorten_repr

MAX_BATCH_TOKENS = 2**31 - 1  # upper limit of rows and tokens
MIN_WORKERS_LIMIT = 64  # processes; the limit is higher with more than 32 cores


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A new model of a family, or a pretrained one; any other key is an argument of the family."""

    family: str | None = None
    size: str | None = None
    load: str | None = None  # folder or hub id of a pretrained model
    adapter: str | None = None  # LoRA adapter of the pretrained model, to train further
    head: str | None = None  # None: the head that the objective trains
    label_names: tuple[str, ...] = ()  # labels by id; default: those of the training data, sorted
    pooling: str | None = None  # adds a sentence embedding: mean, first or last
    position_embedding_type: str | None = None
    attention_score: str | dict[str, str | int | float] | None = None  # default: scaled-dot
    attention_select: str | dict[str, str | int | float] | None = None  # default: softmax
    embeddings: str | None = None  # vector file, or model folder: initial token embeddings
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
class ImageTokenizerConfig:
    """A pretrained image tokenizer, or one to train on the images of the training data."""

    load: str | None = None
    type: str = "patches"  # patches (k-means) or pixels (gray levels)
    image_size: int = 32  # pixels per side
    patch_size: int | None = None  # pixels per side; default: 2, or 1 of pixels
    vocab_size: int | None = None  # number of codes; default: 512, or 256 of pixels


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
        for name in ("max_length", "batch_size", "batch_tokens"):
            check_number(
                f"data.{name}",
                getattr(self, name),
                integer=True,
                at_least=0,
                at_most=MAX_BATCH_TOKENS,
            )
        limit = max(MIN_WORKERS_LIMIT, 2 * (os.cpu_count() or 1))
        check_number("data.num_workers", self.num_workers, integer=True, at_least=0, at_most=limit)
        if self.batch_size and self.batch_tokens:
            raise ValueError(
                f"data.batch_size {self.batch_size} and data.batch_tokens {self.batch_tokens}, "
                "expected only one of them: remove the other, or set it to 0"
            )

    def open_corpus(self, paths: str | list[str]) -> Corpus:
        """Return the records of these files, read with the settings of this table."""
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

    @property
    def has_single_label(self) -> bool:
        """Whether every text or image has exactly one label."""
        return self.name == "image-classification" or (
            self.name == "sequence-classification"
            and self.problem_type == "single_label_classification"
        )


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """LoRA adapters on a frozen pretrained model, trained together with any new head."""

    r: int = 8
    lora_alpha: float = 16.0
    lora_dropout: float = 0.0
    use_rslora: bool = False  # scale by alpha / sqrt(r) instead of alpha / r
    # Patterns of layers: `q`, `attention.q,k,v`, `feed_forward.*`; default: queries and values.
    target_modules: str | tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_number("lora.r", self.r, integer=True, at_least=1, at_most=2**16)
        check_number("lora.lora_alpha", self.lora_alpha, more_than=0)
        check_number("lora.lora_dropout", self.lora_dropout, at_least=0, less_than=1)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    model: ModelConfig
    data: DataConfig
    objective: ObjectiveConfig
    train: TrainConfig
    tokenizer: TokenizerConfig = TokenizerConfig()
    image_tokenizer: ImageTokenizerConfig | None = None  # None: the model has none, or loads it
    lora: LoraConfig | None = None  # None: the full model is trained
    run: str = "runs/unnamed"  # output folder
    device: str = DEFAULT_DEVICE

    def __post_init__(self) -> None:
        if not self.run or any(unicodedata.category(letter) in ("Cc", "Cs") for letter in self.run):
            raise ValueError(
                f"run {self.run!r}, expected the path of a folder, without control characters"
            )
        if (self.lora or self.model.adapter) and not self.model.load:
            raise ValueError(
                f"{'lora' if self.lora else 'model.adapter'}: an adapter needs a pretrained model; "
                "expected model.load, a folder or hub id"
            )
        if self.lora and self.model.adapter:
            raise ValueError(
                f"lora with model.adapter {self.model.adapter!r}, which is trained further without changes: "
                "remove the table lora (--lora '')"
            )
        self.check_ineffective_settings()

    def check_ineffective_settings(self) -> None:
        """Raise ValueError for a setting of a new model or tokenizer if a pretrained one is loaded, and
        for more micro-batches than rows."""
        model = self.model
        for name in ("size", *VARIANT_KEYS):
            value = getattr(model, name)
            if model.load and value is not None:
                raise ValueError(
                    f"model.{name} {value!r} with model.load {model.load!r}, which determines it; "
                    f"remove model.{name}"
                )
        sources = {
            "tokenizer.load": self.tokenizer.load,
            "model.load": model.load,
            "objective.teacher": self.objective.settings.get("teacher"),
        }
        source = next((name for name, value in sources.items() if value), None)
        for item in fields(TokenizerConfig):
            value = getattr(self.tokenizer, item.name)
            if source and item.name != "load" and value != item.default:
                raise ValueError(
                    f"tokenizer.{item.name} {value!r} with {source}, whose tokenizer is used as it is; "
                    "remove the table tokenizer (--tokenizer '{}')"
                )
        max_rows = self.data.batch_size or self.data.batch_tokens
        if max_rows and self.train.grad_accum > max_rows:
            name = "batch_size" if self.data.batch_size else "batch_tokens"
            raise ValueError(
                f"train.grad_accum {self.train.grad_accum}, expected at most data.{name}, {max_rows}: "
                "a micro-batch has at least one row"
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
    "image_tokenizer": ImageTokenizerConfig,
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
        raise ValueError(f"{path}: recipe not found") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a recipe in TOML ({error})") from None


def parse_recipe(text: str, path: Path, flags: Sequence[str] = ()) -> Recipe:
    """Parse the text of the recipe at this path."""
    try:
        tables = parse_toml(text)
    except ValueError as error:
        raise ValueError(f"{path}: not a recipe in TOML ({error})") from None
    check_empty_names(tables, path)
    for name, value in parse_flags(flags):
        parent_path, _, key = name.rpartition(".")
        table = tables
        for part in parent_path.split(".") if parent_path else ():
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise ValueError(f"--{name}: {part} is not a table of the recipe")
        table[key] = value
    tables.setdefault("run", f"runs/{path.stem}")
    about = tables.pop("about", None)  # describes the recipe; a run of other settings differs
    try:
        if about is not None:
            build_dataclass(About, about, "about.")
        return build_dataclass(Recipe, tables, "")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def check_empty_names(tables: Mapping[str, Any], path: Path) -> None:
    """Raise ValueError for an empty name in the file; as a flag, it selects the default."""
    model = tables.get("model")
    for name in VARIANT_KEYS:
        if isinstance(model, Mapping) and model.get(name) == "":
            raise ValueError(
                f"{path}: model.{name} is '', expected a name; remove it for the default"
            )


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
        return parse_toml(f"value = {text}")["value"]
    except ValueError:
        return text


TYPE_DESCRIPTIONS = {  # for error messages
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    tuple: "a list",
    list: "a list",
    dict: "a table",
}


def describe_type(hint: Any) -> str:
    """Return what a value of this type is, for an error message."""
    members = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    types = [get_origin(member) or member for member in members if member is not NoneType]
    return " or ".join(TYPE_DESCRIPTIONS[member] for member in types)


def build_dataclass(dataclass_type: type[Any], table: object, prefix: str) -> Any:
    """Build a dataclass from a table; reject unknown and missing keys and values of a wrong type."""
    if not isinstance(table, Mapping):
        raise ValueError(f"{prefix.rstrip('.')} is {shorten_repr(table)}, expected a table")
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
    """Return the part of an error message that suggests a known key for an unknown one."""
    if known_name := find_known_name(name, known_names):
        return f"did you mean {prefix}{known_name}?"
    key = NAME_HINTS.get(name, name)
    for table, dataclass_type in TABLES.items():
        if key in [item.name for item in fields(dataclass_type)]:
            return f"did you mean {table}.{key}?"
    return f"expected one of {', '.join(known_names)}"


def convert_value(value: Any, hint: Any, key: str) -> Any:
    """Convert a TOML value to the type of an annotation."""
    arguments = get_args(hint)
    if any(type(None) in (item, *get_args(item)) for item in arguments):
        value = read_null(value)
    tables = [item for item in (hint, *arguments) if is_dataclass(item)]
    if tables and value is not None:
        return build_dataclass(tables[0], value, f"{key}.")  # type: ignore[arg-type]
    try:
        return msgspec.convert(value, hint)
    except (msgspec.ValidationError, OverflowError):
        raise ValueError(
            f"{key} is {shorten_repr(value)}, expected {describe_type(hint)}"
        ) from None


def read_null(value: Any) -> Any:
    """Replace empty strings by None, also in lists: TOML has no null."""
    if isinstance(value, list | tuple):
        return [read_null(item) for item in value]
    return None if value == "" else value


def write_null(value: Any) -> Any:
    """Replace None in lists by the empty string, and tables by tables without None."""
    if isinstance(value, Mapping):
        return {key: write_null(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return ["" if item is None else write_null(item) for item in value]
    return value


def format_recipe(recipe: Recipe) -> str:
    """Return the recipe as TOML, with all settings."""
    return tomlkit.dumps(write_null(recipe.to_dict()))
