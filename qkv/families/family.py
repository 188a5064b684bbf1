"""Family: what one file of data says, and how its arguments are read from a config.json and written back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from qkv.spec import Head, Spec, Two
from qkv.weights.keymap import KeyMap

Args = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Family:
    name: str
    make: Callable[..., Spec | Two]
    sizes: Mapping[str, Args]
    config: Mapping[str, str]  # our argument -> their key
    keys: str | Callable[[Args], str]  # the names table
    heads: Mapping[str, str]  # our head -> their class
    model_types: tuple[str, ...] = ()
    prefix: str = ""  # of their names, as it stands in the table
    prefixed: Mapping[str, str] = field(default_factory=lambda: {"none": ""})  # heads whose class has another
    prefixes: tuple[str, ...] = ()  # others that files have
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # keys with the values that are supported
    older: Callable[[Args], Args] = dict  # older spellings of config.json -> newer
    newer: Callable[[Args, Args], Args] = lambda config, args: config  # the config.json of these arguments
    removed: bool = False  # Hugging Face had a class for it, and has no more
    shape: str = "encoder"
    paper: str = ""
    purpose: str = ""
    differs: str = ""

    @property
    def defaults(self) -> Args:
        return {p.name: p.default for p in inspect.signature(self.make).parameters.values()}

    def arguments(self, size: str | None = None, **changes: Any) -> Args:
        """All arguments: the defaults, then a size's, then the changes."""
        if size is not None and size not in self.sizes:
            raise ValueError(f"{self.name} size {size!r}: expected one of {', '.join(self.sizes)}")
        unknown = sorted(changes.keys() - self.defaults.keys())
        if unknown:
            known = ", ".join(self.defaults)
            raise ValueError(f"{self.name} has no argument {', '.join(unknown)}: expected some of {known}")
        return self.defaults | dict(self.sizes[size] if size else {}) | changes

    def read(self, config: Mapping[str, Any]) -> Args:
        """The arguments that a config.json states; a value that is not supported is an error that names the key."""
        config = self.older(dict(config))
        for key, allowed in self.only.items():
            if key in config and config[key] not in allowed:
                raise ValueError(f"config.json: {key} is {config[key]!r}, supported: {' or '.join(map(repr, allowed))}")
        args = {ours: config[key] for ours, key in self.config.items() if key in config}
        for name, value in args.items():
            check_type(self.config[name], value, self.defaults[name])
        if "labels" in self.defaults and ("id2label" in config or "num_labels" in config):
            table = config.get("id2label")
            args["labels"] = len(table) if isinstance(table, dict) else config.get("num_labels")
        names = config.get("architectures") or []
        if names and "head" in self.defaults:
            heads = [ours for ours, theirs in self.heads.items() if names[0] in theirs.split()]
            if not heads:
                known = ", ".join(self.heads.values())
                raise ValueError(f"config.json: architectures is {names!r}, expected one of {known}")
            args["head"] = heads[0]
        return self.arguments(None, **args)

    def write(self, args: Args) -> Args:
        """A config.json that states these arguments."""
        config = {key: args[ours] for ours, key in self.config.items()}
        labels = args.get("labels", 2)
        if labels != self.defaults.get("labels", 2):
            config["id2label"] = {str(i): f"LABEL_{i}" for i in range(labels)}
            config["label2id"] = {f"LABEL_{i}": i for i in range(labels)}
        names = [self.heads[args["head"]].split()[0]] if args.get("head") in self.heads else []
        return self.newer({"model_type": self.model_types[0], "architectures": names, **config}, args)

    def keymap(self, args: Args, prefix: str | None = None) -> KeyMap:
        """The names table for these arguments, under the prefix that a file uses."""
        table = self.keys if isinstance(self.keys, str) else self.keys(args)
        return KeyMap(table, (self.prefix, self.usual_prefix(args) if prefix is None else prefix))

    def usual_prefix(self, args: Args) -> str:
        return self.prefixed.get(args.get("head", ""), self.prefix)

    def prefix_in(self, names: Iterable[str], args: Args) -> str:
        """The prefix that a file really uses: bare and headed classes open each other's files."""
        usual = self.usual_prefix(args)
        found = [p for p in (self.prefix, *self.prefixed.values(), *self.prefixes) if p and any(n.startswith(p) for n in names)]
        return usual if usual in found or (not usual and not found) else found[0] if found else ""


def check_type(key: str, value: Any, default: Any) -> None:
    """A value of another kind than the default's is refused here, by its key."""
    kind = type(default)
    if default is None or value is None and kind in (float, int) or isinstance(value, kind) and kind is not int:
        return
    if kind is float and isinstance(value, int) or kind is int and isinstance(value, int) and not isinstance(value, bool):
        return
    if kind is tuple and isinstance(value, list):
        return
    raise ValueError(f"config.json: {key} is {value!r}, expected {kind.__name__}")


def label(labels: int, drop: float = 0.0, **more: Any) -> Head:
    """The last linear layer of a classifier."""
    return Head(name="label", size=labels, drop=drop, **more)


def tag(labels: int, drop: float = 0.0, **more: Any) -> Head:
    return Head(name="tag", size=labels, drop=drop, **more)


def choice(drop: float = 0.0, **more: Any) -> Head:
    return Head(name="choice", out=("choice",), size=1, drop=drop, **more)


def span(drop: float = 0.0, **more: Any) -> Head:
    return Head(name="span", out=("start", "end"), size=2, drop=drop, **more)


def summary(width: int | None, kind: str, project: bool, act: str | None, **more: Any) -> Head:
    """One vector for a row, as the `summary_*` keys state it; projected to `width`."""
    takes = {"cls_index": "choice", "first": "first", "last": "last", "mean": "mean"}
    if kind not in takes:
        raise ValueError(f"config.json: summary_type is {kind!r}, expected one of {', '.join(takes)}")
    return Head(name="summary", take=takes[kind], dense=width if project else None, act=act or "linear", **more)
