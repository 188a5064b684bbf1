"""Family: the Spec function of a model family, and the names of its arguments and tensors in published
checkpoints. Also the heads and class names that many families share. Does not depend on torch."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cache
from typing import Any

from qkv.spec import DualSpec, HeadSpec, Spec, SpecPart
from qkv.weights.names_table import NamesTable

Args = dict[str, Any]
SpecFunction = Callable[..., Spec | DualSpec]

COMMON_CONFIG = dict(  # argument = key of config.json, in most families
    vocab_size="vocab_size", width="hidden_size", depth="num_hidden_layers",
    heads="num_attention_heads", activation="hidden_act", ffn_width="intermediate_size",
    max_positions="max_position_embeddings", attention_dropout="attention_dropout",
    pad_token_id="pad_token_id", init_std="initializer_range", tie_embeddings="tie_word_embeddings",
)  # fmt: skip
# sentence-transformers' linear layer after pooling, which any family may have.
SENTENCE_DENSE_NAMES = "\nheads.sentence_dense.dense 2_Dense.linear\n"
# An image as ViT reads it: resized to a square, values from -1 to 1.
VIT_PREPROCESSOR: Args = dict(
    image_processor_type="ViTImageProcessor", do_center_crop=False, resample=2,
    image_mean=[0.5, 0.5, 0.5], image_std=[0.5, 0.5, 0.5],
)  # fmt: skip
CONDITIONAL_GENERATION = "ForConditionalGeneration"
CLASS_SUFFIXES = {  # head: the suffix of its class name in Hugging Face
    "none": "Model",
    "encoder": "EncoderModel",
    "lm": "LMHeadModel",
    "causal-lm": "ForCausalLM",
    "masked-lm": "ForMaskedLM",
    "pretraining": "ForPreTraining",
    "next-sentence-prediction": "ForNextSentencePrediction",
    "sequence-classification": "ForSequenceClassification",
    "image-classification": "ForImageClassification",
    "token-classification": "ForTokenClassification",
    "multiple-choice": "ForMultipleChoice",
    "question-answering": "ForQuestionAnswering",
    "double-heads": "DoubleHeadsModel",
}


class Family(SpecPart):
    """A model family: `build_spec` maps arguments to a Spec; the other fields describe checkpoints.

    `doc` is the docstring of the family's file: a title and the lines paper, purpose, differs."""

    name: str
    doc: str | None
    shape: str = "encoder"
    build_spec: SpecFunction
    # The function that `build_spec` passes its **kwargs to.
    base_function: SpecFunction | None = None
    # Defaults that differ from those in the signatures.
    default_overrides: Args = field(default_factory=dict)
    sizes: Mapping[str, Args]

    # config.json: argument -> key; argument -> (key of an object, its argument -> key)
    config: Mapping[str, str] = field(default_factory=dict)
    nested: Mapping[str, tuple[str, Mapping[str, str]]] = field(default_factory=dict)
    supported_values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    # Converts older keys of a config.json to newer ones when it is read.
    upgrade_config: Callable[[Args], Args] = dict
    # Returns the keys of config.json that follow from other keys, with the values they must have.
    derive_config: Callable[[Args], Args] = lambda config: {}
    # Completes a config.json, given the arguments, before it is written.
    finish_config: Callable[[Args, Args], Args] = lambda config, args: config

    # Keys of preprocessor_config.json that differ from those of CLIP's image processor.
    preprocessor_config: Mapping[str, Any] = field(default_factory=dict)

    model_types: tuple[str, ...] = ()
    # Head -> class in Hugging Face, or one class per `model_type`.
    heads: Mapping[str, str] = field(default_factory=dict)
    # Names that classes had before -> head.
    former_classes: Mapping[str, str] = field(default_factory=dict)
    removed_from_hf: bool = False  # Hugging Face no longer has the classes
    hf_family: str = ""  # a family that Hugging Face has, which can hold this one
    names_table: str | Callable[[Args], str] = ""
    prefixes: tuple[str, ...] = ()  # prefixes of tensor names in the table
    # Heads whose class has another prefix.
    head_prefixes: Mapping[str, str] = field(default_factory=lambda: {"none": ""})

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The parameters of `base_function` and `build_spec` by name."""
        functions = [function for function in (self.base_function, self.build_spec) if function]
        parameters = [p for function in functions for p in list_parameters(function)]
        return {p.name: p for p in parameters if p.kind is not p.VAR_KEYWORD}

    @property
    def defaults(self) -> Args:
        return {name: p.default for name, p in self.parameters.items()} | self.default_overrides

    def arguments(self, size: str | None = None, **changes: Any) -> Args:
        """Return all arguments: the defaults, overridden by those of the size and by the changes."""
        defaults = self.defaults
        for name in changes:
            lookup(f"{self.name} argument", name, defaults)
        preset = lookup(f"{self.name} size", size, self.sizes) if size is not None else {}
        args = defaults | dict(preset) | changes
        if self.heads:
            lookup(f"{self.name} head", args["head"], self.heads)
        return args

    def find_head(self, class_name: str) -> str | None:
        """Return the head of a class of Hugging Face; None if the family does not have the class."""
        heads = [head for head, names in self.heads.items() if class_name in names.split()]
        return heads[0] if heads else self.former_classes.get(class_name)

    def build_names_table(self, args: Args, prefix: str | None = None) -> NamesTable:
        """Return the names table for these arguments; `prefix` defaults to that of the head's class."""
        table = self.names_table if isinstance(self.names_table, str) else self.names_table(args)
        table += SENTENCE_DENSE_NAMES
        prefix = self.find_prefix(args, prefix)
        return NamesTable(table) if prefix is None else NamesTable(table, self.prefixes, prefix)

    def find_prefix(self, args: Args, prefix: str | None) -> str | None:
        """Return the prefix of tensor names: the given one, else that of the head's class.

        None means those of the table, if it has several."""
        if prefix is not None:
            return prefix
        table_prefix = self.prefixes[0] if len(self.prefixes) == 1 else None
        return self.head_prefixes.get(args.get("head", ""), table_prefix)


def lookup(what: str, value: Any, options: Mapping[Any, Any]) -> Any:
    """Return options[value]; raise ValueError with the options if the value is not one of them."""
    if value not in [*options]:
        raise ValueError(f"{what} is {value!r}: expected one of {', '.join(map(str, options))}")
    return options[value]


def head_classes(class_prefixes: str, heads: str, **suffixes: str) -> dict[str, str]:
    """Return Hugging Face's class names of each head, one per class prefix.

    `suffixes` override CLASS_SUFFIXES."""
    suffix_by_head = {
        head: suffixes.get(head, CLASS_SUFFIXES.get(head, "")) for head in heads.split()
    }
    return {
        head: " ".join(prefix + suffix for prefix in class_prefixes.split())
        for head, suffix in suffix_by_head.items()
    }


def common_heads(
    num_labels: int,
    dropout: float,
    lm: HeadSpec | None = None,
    pooling: Args | None = None,
    **shared: Any,
) -> dict[str, Any]:
    """Return the heads that most families have, by name.

    `pooling` are the settings of heads with one vector per sequence (None: the last token, no bias, no
    dropout), `shared` those of every head except the LM head."""
    per_token = {"dropout": dropout, **shared}
    pooled = per_token | (pooling or {"pooling": "last", "bias": False, "dropout": 0.0})
    return {
        "none": (),
        "lm": (lm,),
        "masked-lm": (lm,),
        "token-classification": (
            HeadSpec(name="token_classification", out_features=num_labels, **per_token),
        ),
        "sequence-classification": (
            HeadSpec(name="sequence_classification", out_features=num_labels, **pooled),
        ),
        "multiple-choice": (
            HeadSpec(name="multiple_choice", outputs=("mc_logits",), out_features=1, **pooled),
        ),
        "question-answering": (
            HeadSpec(
                name="question_answering",
                outputs=("start_logits", "end_logits"),
                out_features=2,
                **shared,
            ),
        ),
    }


@cache
def list_parameters(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    """Return the parameters of a function."""
    return tuple(inspect.signature(function).parameters.values())


def summary_head(
    width: int | None,
    summary_type: str,
    use_projection: bool,
    activation: str | None,
    **settings: Any,
) -> HeadSpec:
    """Return the head that Hugging Face's `summary_*` keys describe: one vector per sequence."""
    poolings = {"cls_index": "mc_token", "first": "first", "last": "last", "mean": "mean"}
    return HeadSpec(
        name="summary",
        pooling=lookup("summary_type", summary_type, poolings),
        dense_width=width if use_projection else None,
        activation=activation or "linear",
        **settings,
    )
