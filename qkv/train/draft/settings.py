"""Settings of drafted recipes: lengths, batch sizes, models and schedules, with their reasons."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from qkv.data.encode.labels import sort_label_names
from qkv.data.profile import MAX_RECORDS, Table, TextProfile
from qkv.model.hub import is_offline
from qkv.train.draft.document import Setting, format_setting
from qkv.train.draft.machine import BUILTIN_ENCODER, ENCODERS, Machine, select_encoder

TOKENS_PER_WORD = 1.4  # of subword tokenizers, for English text; an estimate
MAX_LENGTH = 512  # tokens, of BERT's position embeddings
MAX_LISTED_LABELS = 50
OFFLINE_NOTE = "chosen from the models that are on this machine, because HF_HUB_OFFLINE is set"
MAX_CPU_STEPS = 2000
IMBALANCE = 3.0  # ratio of label counts from which class weights are suggested


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """The data file of a draft and what the user said about it."""

    path: str | list[str]
    columns: dict[str, str]
    model: str | None
    machine: Machine

    @property
    def name(self) -> str:
        return self.path if isinstance(self.path, str) else ", ".join(self.path)


# --- what was found ---


def describe_table(table: Table, texts: TextProfile, name: str = "texts") -> dict[str, str]:
    """Return what was found in a table: records, columns, lengths, duplicates and empty texts."""
    columns = ", ".join(f"{role} is {column!r}" for role, column in table.columns.items())
    records = (
        f"{texts.count:,} records" if table.is_complete else f"the first {MAX_RECORDS:,} records"
    )
    facts = {
        "data": f"{records}; columns: {columns}",
        f"words per {name.removesuffix('s')}": describe_lengths(texts),
    }
    problems = []
    if texts.num_duplicates and name in ("texts", "sentences"):
        problems.append(f"duplicate {name}: {texts.num_duplicates:,}")
    if texts.num_empty:
        problems.append(f"empty {name}: {texts.num_empty:,}")
    if problems:
        facts["note"] = "; ".join(problems)
    return facts


def describe_lengths(texts: TextProfile) -> str:
    return (
        f"median {texts.median_words:,}, 99% at most {texts.long_words:,},"
        f" longest {texts.max_words:,}"
    )


def describe_labels(counts: Counter[str]) -> str:
    """Return the number of labels, and the share of the most frequent ones."""
    total = sum(counts.values())
    shares = [f"{name!r} {count:,} ({count / total:.1%})" for name, count in counts.most_common(10)]
    more = f" and {len(counts) - 10:,} more" if len(counts) > 10 else ""
    return f"{len(counts):,}: {', '.join(shares)}{more}"


# --- settings ---


def describe_source(source: DataSource, table: Table) -> list[Setting]:
    """Return the settings of the file, its columns, and the part that is held out."""
    settings = [Setting("train", source.path)]
    if table.column_names:
        settings.append(Setting("column_names", table.column_names, "the file has no header"))
    elif any(role != column for role, column in table.columns.items()):
        settings.append(Setting("columns", table.columns))
    validation = 0.1 if len(table.records) >= 100 else 0.2
    settings.append(Setting("validation", validation, "the fraction that is held out"))
    return settings


def choose_encoder(task: str, source: DataSource) -> list[Setting]:
    """Return the pretrained encoder that fits the machine, with the others as a comment."""
    if source.model is not None:
        return [Setting("load", source.model)]
    encoder = select_encoder(task, source.machine)
    others = [item for item in ENCODERS[task] if item != encoder]
    return [
        Setting("", comment=f"{encoder.description}; for {source.machine}"),
        *([Setting("", comment=OFFLINE_NOTE)] if is_offline() else []),
        *(
            Setting(
                "", comment=f'or load = "{item.name}", train.lr {item.lr:g}: {item.description}'
            )
            for item in others
        ),
        Setting("load", encoder.name, "a new head is added"),
    ]


def choose_rows(texts: TextProfile, source: DataSource) -> list[Setting]:
    """Return the length of rows, by the lengths of the texts, and the batch size."""
    length = suggest_max_length(texts.long_words)
    num_longer = sum(words * TOKENS_PER_WORD > length for words in texts.lengths)
    share = f"about {num_longer / texts.count:.0%}" if num_longer else "none"
    return [
        Setting("max_length", length, f"tokens; {share} of the texts are longer"),
        Setting("overflow", "truncate", "a longer text loses its end"),
        Setting("batch_size", 32 if source.machine.has_gpu else 16, f"for {source.machine}"),
    ]


def suggest_max_length(num_words: int, at_most: int = MAX_LENGTH) -> int:
    """Return a row length for texts of so many words: a multiple of 32."""
    return min(at_most, 32 * math.ceil((num_words * TOKENS_PER_WORD + 2) / 32))


def is_imbalanced(counts: Counter[str]) -> bool:
    return max(counts.values()) >= IMBALANCE * min(counts.values())


def suggest_class_weights(counts: Counter[str]) -> list[Setting]:
    """Return a comment with weights that balance the labels, if they are not balanced."""
    if not is_imbalanced(counts) or len(counts) > MAX_LISTED_LABELS:
        return []
    total = sum(counts.values())
    weights = {
        name: round(total / len(counts) / counts[name], 3) for name in sort_label_names(counts)
    }
    ratio = max(counts.values()) / min(counts.values())
    line = Setting("class_weights", weights)
    return [
        Setting(
            "", comment=f"The most frequent label is {ratio:.1f} times as frequent as the rarest."
        ),
        Setting("", comment="Remove the # to give all labels the same weight in the loss:"),
        Setting("", comment=format_setting(line)),
    ]


def choose_finetuning(
    task: str, source: DataSource, num_records: int, best_metric: str
) -> list[Setting]:
    """Return the settings of the training loop for a pretrained encoder."""
    epochs = 10 if num_records < 1000 else 4 if num_records < 20_000 else 2
    batch_size = 32 if source.machine.has_gpu else 8 if task == "answer" else 16
    steps_per_epoch = max(1, math.ceil(0.9 * num_records / batch_size))
    lr = select_encoder(task, source.machine).lr if source.model is None else 5e-5
    if source.model == BUILTIN_ENCODER.name:
        lr = BUILTIN_ENCODER.lr
    return [
        *choose_duration(source.machine, epochs, steps_per_epoch, warmup_ratio=1 / 16),
        Setting("lr", lr, "peak learning rate, after the warmup"),
        Setting("lr_schedule", "linear"),
        Setting("best_metric", best_metric, "selects the model in best/"),
        *choose_precision(source.machine),
    ]


def choose_duration(
    machine: Machine, epochs: int, steps_per_epoch: int, *, warmup_ratio: float
) -> list[Setting]:
    """Return the epochs, or fewer steps on a CPU, and the steps between reports."""
    steps = epochs * steps_per_epoch
    settings = [Setting("epochs", epochs, f"about {steps:,} steps")]
    if not machine.has_gpu and steps > MAX_CPU_STEPS:
        note = f"for a CPU; on a GPU: epochs = {epochs}, about {steps:,} steps"
        settings = [Setting("steps", MAX_CPU_STEPS, note)]
        steps = MAX_CPU_STEPS
    return [
        *settings,
        Setting("warmup_steps", min(800, max(1, int(steps * warmup_ratio)))),
        Setting("eval_every", max(1, min(steps_per_epoch, steps // 4)), "steps"),
        Setting("log_every", max(1, min(50, steps // 20))),
    ]


def choose_precision(machine: Machine) -> list[Setting]:
    return [Setting("precision", "bf16")] if machine.has_gpu else []
