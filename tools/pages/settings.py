"""Reference pages of recipe keys, GenerationConfig fields and command flags, from their definitions.

The meaning of a dataclass field is the comment next to it or above it, or an entry of MEANINGS."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from textwrap import dedent
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from cyclopts import App

from qkv.cli import COMMAND_GROUPS, app
from qkv.decode import GenerationConfig
from qkv.families import list_families
from qkv.train.config import TRAIN_CHOICES
from qkv.train.objectives.registry import OBJECTIVE_SPECS
from qkv.train.recipe import OPEN_TABLES, TABLES, Recipe
from tools.pages.page import Page, format_table

REQUIRED = "required"
INTERNAL_ARGUMENTS = {"family"}  # of spec functions that several families share

# Meanings of keys whose definition has no comment. The keys of "objective" are those of all objectives.
MEANINGS: dict[str, dict[str, str]] = {
    "recipe": {
        "run": "output folder; default: `runs/` and the name of the recipe",
        "device": "`auto`, `cpu`, `cuda` or `mps`",
    },
    "model": {
        "family": "family of a new model",
        "size": "preset of the family; default: the first",
        "position_embedding_type": "position embeddings: none, sinusoid, learned, t5, alibi, rotary or xl",
    },
    "tokenizer": {
        "load": "folder of a pretrained tokenizer",
        "type": "char, word, wordpiece, bpe, byte (byte-level BPE) or unigram",
        "vocab_size": "vocabulary size, with special tokens",
        "lowercase": "lowercase the texts",
        "num_sentinels": "number of T5 sentinel tokens",
        "extra_tokens": "language or control codes, each one token",
    },
    "data": {
        "train": "training files, `-` for standard input, or `hf:owner/name:split`",
        "validation": "validation files, or the fraction of the training data to hold out",
        "test": "files for `qkv eval`",
        "format": "file format, if the file names do not show it: txt, jsonl, csv ...",
        "columns": "column names of qkv and of the file: `{ text = \"review\" }`",
        "column_names": "names of the columns of files without a header",
        "unit": "one text of a text file: line, document (between blank lines) or file",
        "max_length": "maximum number of tokens per row; 0: the maximum of the model",
        "batch_size": "rows per batch",
        "batch_tokens": "tokens per batch, including padding",
        "languages": "language codes of source and target",
        "fixed_noise": "use the same masks and noise in every epoch",
        "num_workers": "processes that encode texts and build batches",
    },
    "objective": {
        "name": "the objective",
        "alpha_ce": "weight of the distillation loss",
        "alpha_cos": "weight of the cosine loss of the hidden states",
        "alpha_mlm": "weight of the masked LM loss",
        "class_weights": "weights of the cross-entropy: balanced, a list by label id, `{ label = weight }`",
        "delete_prob": "fraction of deleted tokens",
        "discriminator_weight": "weight of the discriminator's loss",
        "generator": "sizes of the generator, or folder of a trained masked LM",
        "label_smoothing": "label smoothing of the cross-entropy",
        "mask_alpha": "one token in this many is predicted",
        "mask_prob": "fraction of tokens that are masked",
        "mask_token_prob": "fraction of masked positions that are replaced by the mask token",
        "max_answer_tokens": "maximum length of an answer in evaluation",
        "max_ngram": "longest masked run of words",
        "max_span_length": "longest predicted span",
        "mean_span_length": "mean length of a masked span",
        "noise_density": "fraction of corrupted tokens",
        "pair_task": "next (next sentence prediction) or order (sentence order prediction)",
        "permute_sentences": "shuffle the sentences",
        "problem_type": "single_label_classification, multi_label_classification or regression",
        "r_drop": "weight of R-Drop's divergence between two dropout masks",
        "random_token_prob": "fraction of masked positions that are replaced by a random token",
        "rotate_document": "start the text at a random token",
        "router_aux_loss_coef": "weight of the load balancing loss of a mixture of experts",
        "router_z_loss_coef": "weight of the router z-loss",
        "short_seq_prob": "fraction of pairs that are shorter than the maximum",
        "source": "template of the source, with column names: `{to} {source}`",
        "stride": "tokens by which windows of a long context overlap",
        "target": "template of the target",
        "teacher": "folder or hub id of the teacher",
        "temperature": "softmax temperature",
        "use_mems": "use the memory of the previous batch",
        "whole_word": "mask whole words",
    },
    "train": {
        "lr_schedule": "learning rate schedule",
        "warmup_steps": "steps of the linear warmup of the learning rate",
        "optimizer": "optimizer",
        "betas": "betas of AdamW",
        "eps": "epsilon of AdamW",
        "weight_decay": "weight decay of matrices",
        "precision": "autocast precision",
        "compile": "compile the layers and the loss",
        "seed": "random seed",
    },
    "lora": {
        "r": "rank",
        "lora_alpha": "scale of the update: lora_alpha / r",
        "lora_dropout": "dropout of the adapter's input",
    },
    "GenerationConfig": {
        "num_return_sequences": "number of results of a prompt, from beam search or sampling",
        "exponential_decay_length_penalty": "(n, factor): the EOS score grows by the factor after n tokens",
        "forced_bos_token_id": "the second token of a sequence, such as a language code",
        "decoder_start_token_id": "first token of the decoder; default: that of the model",
        "stop_strings": "strings that end a sequence when they are generated (tasks, `Model.generate`)",
        "num_beams": "number of beams; 1: no beam search",
        "do_sample": "sample instead of taking the most likely token",
        "temperature": "sampling temperature",
        "min_length": "minimum length of prompt and new tokens",
        "max_length": "maximum length of prompt and new tokens",
        "min_new_tokens": "minimum number of new tokens; takes precedence over min_length",
        "max_new_tokens": "maximum number of new tokens; takes precedence over max_length",
        "repetition_penalty": "penalty for tokens of the row; 1: none",
        "encoder_repetition_penalty": "penalty for tokens that are not in the source; 1: none",
        "bad_words_ids": "phrases that are never generated",
        "sequence_bias": "phrases and the bias that is added to their scores",
        "suppress_tokens": "tokens that are never generated",
        "renormalize_logits": "normalize the scores after all processors",
        "eos_token_id": "end-of-sequence tokens",
        "pad_token_id": "padding token",
        "bos_token_id": "beginning-of-sequence token",
    },
}  # fmt: skip


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
