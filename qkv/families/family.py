"""Family: what one file of data says. The rest are heads that many families share."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from qkv.spec import Head, Part, Spec, Two
from qkv.weights.names_table import KeyMap

Args = dict[str, Any]
Make = Callable[..., Spec | Two]

COMMON = dict(  # the words that most config.json have
    vocab="vocab_size", width="hidden_size", depth="num_hidden_layers", heads="num_attention_heads",
    act="hidden_act", feed="intermediate_size", length="max_position_embeddings",
    attend_drop="attention_dropout", pad="pad_token_id", std="initializer_range", tied="tie_word_embeddings",
)  # fmt: skip
WRITER = "ForConditionalGeneration"
CLASSES = {  # how Hugging Face names the class of a head
    "none": "Model", "encoder": "EncoderModel", "lm": "LMHeadModel", "causal": "ForCausalLM",
    "span": "ForQuestionAnswering", "masked-lm": "ForMaskedLM", "pretrain": "ForPreTraining",
    "pair": "ForNextSentencePrediction", "tag": "ForTokenClassification",
    "label": "ForSequenceClassification", "choice": "ForMultipleChoice", "double": "DoubleHeadsModel",
}  # fmt: skip


class Family(Part):
    """`make` turns arguments into a Spec; `config` and `keys` are what others call the arguments and tensors.

    `doc`, the docstring of the family's file, has a title, then a line each: paper, purpose, differs."""

    name: str
    doc: str | None
    make: Make
    base: Make | None = None  # takes the arguments that `make` hands on
    given: Args = field(default_factory=dict)  # arguments with another default here
    sizes: Mapping[str, Args]
    config: Mapping[str, str] = field(default_factory=dict)  # our argument -> their key
    nested: Mapping[str, tuple[str, Mapping[str, str]]] = field(
        default_factory=dict
    )  # an object in config.json
    keys: str | Callable[[Args], str] = ""  # the names table
    heads: Mapping[str, str] = field(default_factory=dict)  # our head -> their class
    model_types: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()  # of their names, as they stand in the table
    prefixed: Mapping[str, str] = field(default_factory=lambda: {"none": ""})  # heads whose class has another
    only: Mapping[str, tuple[Any, ...]] = field(
        default_factory=dict
    )  # keys with the values that are supported
    older: Callable[[Args], Args] = dict  # older spellings of config.json -> newer
    newer: Callable[[Args, Args], Args] = lambda config, args: config  # the finished config.json
    removed: bool = False  # Hugging Face had a class for it, and has no more
    shape: str = "encoder"

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """What `make` takes, with what it hands on."""
        both = [p for f in (self.base, self.make) if f for p in inspect.signature(f).parameters.values()]
        return {p.name: p for p in both if p.kind is not p.VAR_KEYWORD}

    @property
    def defaults(self) -> Args:
        return {name: p.default for name, p in self.parameters.items()} | self.given

    def arguments(self, size: str | None = None, **changes: Any) -> Args:
        """All arguments: the defaults, then a size's, then the changes."""
        defaults = self.defaults
        for name in changes:
            one_of(f"{self.name} argument", name, defaults)
        chosen = one_of(f"{self.name} size", size, self.sizes) if size is not None else {}
        args = defaults | dict(chosen) | changes
        if self.heads:
            one_of(f"{self.name} head", args["head"], self.heads)
        return args

    def keymap(self, args: Args, prefix: str | None = None) -> KeyMap:
        """The names table for these arguments, under the prefix that a file uses; None: the usual one."""
        table = self.keys if isinstance(self.keys, str) else self.keys(args)
        prefix = self.prefixed.get(args.get("head", "")) if prefix is None else prefix
        return KeyMap(table) if prefix is None else KeyMap(table, self.prefixes, prefix)


def one_of(what: str, value: Any, options: Mapping[Any, Any]) -> Any:
    """The option of that name; what is not among them is an error that lists them."""
    if value not in [*options]:
        raise ValueError(f"{what} is {value!r}: expected one of {', '.join(map(str, options))}")
    return options[value]


def classes(stems: str, heads: str, **own: str) -> dict[str, str]:
    """Our heads and the classes of theirs, for one or several stems."""
    ends = {head: own.get(head, CLASSES.get(head, "")) for head in heads.split()}
    return {head: " ".join(stem + end for stem in stems.split()) for head, end in ends.items()}


def readers(
    labels: int, drop: float, lm: Head | None = None, vector: Args | None = None, **each: Any
) -> dict[str, Any]:
    """The heads that most families have; `vector` is how a row is read, `each` how every state is."""
    row = {"drop": drop, **each, **(vector or {"take": "last", "bias": False, "drop": 0.0})}
    return {
        "none": (), "lm": (lm,), "masked-lm": (lm,),
        "tag": (Head(name="tag", size=labels, **{"drop": drop, **each}),),
        "label": (Head(name="label", size=labels, **row),),
        "choice": (Head(name="choice", out=("choice",), size=1, **row),),
        "span": (Head(name="span", out=("start", "end"), size=2, **each),),
    }  # fmt: skip


def summary(width: int | None, kind: str, project: bool, act: str | None, **more: Any) -> Head:
    """One vector for a row, as the `summary_*` keys state it; projected to `width`."""
    take = one_of("summary_type", kind, dict(cls_index="choice", first="first", last="last", mean="mean"))
    return Head(name="summary", take=take, dense=width if project else None, act=act or "linear", **more)
