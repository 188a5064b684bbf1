"""Family: what one file of data says. The rest are heads that many families share."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from qkv.spec import Head, Part, Spec, Two, positive
from qkv.weights.keymap import KeyMap

Args = dict[str, Any]

CLASSES = {  # how Hugging Face names the class of a head
    "none": "Model", "encoder": "EncoderModel", "lm": "LMHeadModel", "causal": "ForCausalLM", "masked-lm": "ForMaskedLM",
    "pretrain": "ForPreTraining", "pair": "ForNextSentencePrediction",
    "label": "ForSequenceClassification", "choice": "ForMultipleChoice", "tag": "ForTokenClassification",
    "span": "ForQuestionAnswering", "double": "DoubleHeadsModel",
}  # fmt: skip


WRITER = "ForConditionalGeneration"


class Family(Part):
    """`make` turns arguments into a Spec; `config` and `keys` say what others call the arguments and the tensors.

    The docstring of the family's file is part of it: a title, then a line each for paper, purpose and difference."""

    name: str
    doc: str | None
    make: Callable[..., Spec | Two]
    base: Callable[..., Spec | Two] | None = None  # takes the arguments that `make` hands on
    given: Args = field(default_factory=dict)  # arguments with another default here
    sizes: Mapping[str, Args]
    config: Mapping[str, str] = field(default_factory=dict)  # our argument -> their key
    keys: str | Callable[[Args], str] = ""  # the names table
    heads: Mapping[str, str] = field(default_factory=dict)  # our head -> their class
    model_types: tuple[str, ...] = ()
    prefix: str = ""  # of their names, as it stands in the table
    prefixed: Mapping[str, str] = field(default_factory=lambda: {"none": ""})  # heads whose class has another
    prefixes: tuple[str, ...] = ()  # others that files have
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # keys with the values that are supported
    older: Callable[[Args], Args] = dict  # older spellings of config.json -> newer
    newer: Callable[[Args, Args], Args] = lambda config, args: config  # the finished config.json of these arguments
    removed: bool = False  # Hugging Face had a class for it, and has no more
    shape: str = "encoder"

    @property
    def about(self) -> dict[str, str]:
        """title, paper, purpose and difference, out of the docstring."""
        title, *lines = [line for line in (self.doc or "").splitlines() if line.strip()]
        return {"title": title, **{word: rest.strip() for word, _, rest in (line.partition(" ") for line in lines)}}

    @property
    def defaults(self) -> Args:
        signatures = [inspect.signature(f).parameters.values() for f in (self.base, self.make) if f]
        plain = {p.name: p.default for each in signatures for p in each if p.kind is not p.VAR_KEYWORD}
        return plain | self.given

    def arguments(self, size: str | None = None, **changes: Any) -> Args:
        """All arguments: the defaults, then a size's, then the changes."""
        if size is not None and size not in self.sizes:
            raise ValueError(f"{self.name} size {size!r}: expected one of {', '.join(self.sizes)}")
        unknown = changes.keys() - self.defaults.keys()
        if unknown:
            raise ValueError(f"{self.name} has no argument {sorted(unknown)}: expected some of {[*self.defaults]}")
        args = self.defaults | dict(self.sizes[size] if size else {}) | changes
        if "head" in args and self.heads and args["head"] not in self.heads:
            raise ValueError(f"{self.name} head {args['head']!r}: expected one of {', '.join(self.heads)}")
        counts = {k: v for k, v in args.items() if k.endswith("depth") or k in ("experts", "groups", "inner", "labels")}
        positive(limit=10_000, **{k: v for k, v in counts.items() if v is not None or self.defaults[k] is not None})
        return args

    def keymap(self, args: Args, prefix: str | None = None) -> KeyMap:
        """The names table for these arguments, under the prefix that a file uses."""
        table = self.keys if isinstance(self.keys, str) else self.keys(args)
        usual = self.prefixed.get(args.get("head", ""), self.prefix)
        return KeyMap(table, (self.prefix, usual if prefix is None else prefix))


def classes(stems: str, heads: str, **own: str) -> dict[str, str]:
    """Our heads and the classes of theirs, for one or several stems."""
    ends = {head: own.get(head, CLASSES.get(head, "")) for head in heads.split()}
    return {head: " ".join(stem + end for stem in stems.split()) for head, end in ends.items()}


def label(labels: int, drop: float = 0.0, **more: Any) -> Head:
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
        raise ValueError(f"summary_type is {kind!r}, supported: {', '.join(takes)}")
    return Head(name="summary", take=takes[kind], dense=width if project else None, act=act or "linear", **more)
