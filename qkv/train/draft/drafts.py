"""The drafts of `qkv new`, one function per task, each from a look at its data file."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from qkv.data.encode.labels import sort_label_names
from qkv.data.profile import (
    MAX_LABELS,
    Table,
    count_label_values,
    is_number,
    profile_plain_text,
    profile_texts,
    read_table,
)
from qkv.formatting import format_count
from qkv.train.draft.document import RecipeDraft, Setting
from qkv.train.draft.settings import (
    MAX_LISTED_LABELS,
    TOKENS_PER_WORD,
    DataSource,
    choose_duration,
    choose_encoder,
    choose_finetuning,
    choose_precision,
    choose_rows,
    describe_labels,
    describe_lengths,
    describe_source,
    describe_table,
    is_imbalanced,
    suggest_class_weights,
    suggest_max_length,
)
from qkv.train.evaluate.metrics import ENTITY_TAG_PATTERN

MAX_CHAR_TOKENIZER_CHARACTERS = 10_000_000  # longer texts get a subword tokenizer


def draft_classification(source: DataSource) -> RecipeDraft:
    """Draft sequence classification of a table with texts and labels, or numbers."""
    table = read_table(source.path, ("label", "text", "pair"), source.columns)
    texts = profile_texts(
        [" ".join(pair) for pair in zip(table.get_texts("text"), list_pairs(table), strict=True)]
    )
    labels = table.get_values("label")
    for record, label in zip(table.records, labels, strict=True):
        if label is None or not str(label).strip():
            count = sum(value is None or not str(value).strip() for value in labels)
            raise ValueError(
                f"{record.location}: no label in column {table.columns['label']!r}"
                f" ({count:,} such records); remove them, or set --columns label=NAME"
            )
    counts = count_label_values(labels)
    max_labels = min(MAX_LABELS, texts.count // 2)
    objective = [Setting("name", "sequence-classification")]
    model = [*choose_encoder("classify", source)]
    facts = describe_table(table, texts)
    best_metric = "accuracy"
    if any(isinstance(label, list) for label in labels):
        objective.append(Setting("problem_type", "multi_label_classification"))
        facts["labels"] = f"{describe_labels(counts)}; a text may have several"
        best_metric = "macro_f1"
    elif len(counts) > max_labels and all(map(is_number, counts)):
        objective.append(Setting("problem_type", "regression", "the labels are numbers"))
        facts["labels"] = f"numbers from {min(map(float, counts)):g} to {max(map(float, counts)):g}"
        best_metric = "pearson"
    else:
        facts["labels"] = describe_labels(counts)
        column = table.columns["label"]
        if len(counts) < 2:
            raise ValueError(
                f"{source.name}: column {column!r} has only the label"
                f" {next(iter(counts))!r}; expected two or more; set --columns label=NAME"
            )
        if len(counts) > max_labels and "label" not in source.columns:
            raise ValueError(
                f"{source.name}: column {column!r} has {len(counts):,} labels in {texts.count:,}"
                f" records; expected at most {max_labels:,}; set --columns label=NAME, or"
                f" label={column} if these are the labels"
            )
        if table.is_complete and len(counts) <= MAX_LISTED_LABELS:
            model.append(Setting("label_names", sort_label_names(counts), "by label id"))
        objective += suggest_class_weights(counts)
        if is_imbalanced(counts):
            best_metric = "macro_f1"
    return RecipeDraft(
        title=f"Classification of texts, drafted from {source.name!r} by `qkv new classify`",
        facts=facts,
        tables={
            "model": model,
            "data": [*describe_source(source, table), *choose_rows(texts, source)],
            "objective": objective,
            "train": choose_finetuning("classify", source, texts.count, best_metric),
        },
    )


def list_pairs(table: Table) -> list[str]:
    if "pair" in table.columns:
        return table.get_texts("pair")
    return [""] * len(table.records)


def draft_tagging(source: DataSource) -> RecipeDraft:
    """Draft token classification of words with tags."""
    is_table = isinstance(source.path, str) and source.path.endswith(
        (".json", ".jsonl", ".parquet")
    )
    data_format = None if is_table else "conll"
    table = read_table(source.path, ("words", "tags"), source.columns, data_format)
    sentences = profile_texts([" ".join(map(str, words)) for words in list_lists(table, "words")])
    counts = count_label_values(table.get_values("tags"))
    has_entities = all(ENTITY_TAG_PATTERN.fullmatch(tag) for tag in counts)
    facts = describe_table(table, sentences, "sentences")
    facts["tags"] = describe_labels(counts)
    data = describe_source(source, table)
    if data_format:
        data.insert(1, Setting("format", data_format, "a word and its tag on each line"))
    return RecipeDraft(
        title=f"Tags of words, drafted from {source.name!r} by `qkv new tag`",
        facts=facts,
        tables={
            "model": choose_encoder("tag", source),
            "data": [*data, *choose_rows(sentences, source)],
            "objective": [Setting("name", "token-classification")],
            "train": choose_finetuning(
                "tag", source, sentences.count, "f1" if has_entities else "macro_f1"
            ),
        },
    )


def list_lists(table: Table, role: str) -> list[list[object]]:
    return [value if isinstance(value, list) else [] for value in table.get_values(role)]


def draft_answering(source: DataSource) -> RecipeDraft:
    """Draft extractive question answering on SQuAD's JSON, or on records of the same columns."""
    roles = ("context", "question", "answers")
    table = read_table(source.path, roles, source.columns)
    contexts = profile_texts(table.get_texts("context"))
    num_unanswerable = sum(not record.get_answers() for record in table.records)
    facts = describe_table(table, contexts, "contexts")
    facts["questions"] = f"{contexts.count:,}, {num_unanswerable:,} of them without an answer"
    length = suggest_max_length(contexts.long_words + 20, at_most=384)
    rows = [
        Setting("max_length", length, "tokens of question and context"),
        Setting("overflow", "window", "a longer context is read in windows"),
        Setting("batch_size", 32 if source.machine.has_gpu else 8),
    ]
    return RecipeDraft(
        title=f"Extractive question answering, drafted from {source.name!r} by `qkv new answer`",
        facts=facts,
        tables={
            "model": choose_encoder("answer", source),
            "data": [*describe_source(source, table), *rows],
            "objective": [
                Setting("name", "question-answering"),
                Setting("stride", length // 3, "tokens that neighboring windows share"),
            ],
            "train": choose_finetuning("answer", source, contexts.count, "f1"),
        },
    )


def draft_translation(source: DataSource) -> RecipeDraft:
    """Draft translation of a table of pairs, or of two parallel files, by a new Transformer."""
    table = read_table(source.path, ("source", "target"), source.columns)
    sources = profile_texts(table.get_texts("source"))
    targets = profile_texts(table.get_texts("target"))
    has_gpu = source.machine.has_gpu
    if sources.count >= 100_000 and has_gpu:
        sizes = dict(width=512, depth=6, heads=8, ffn_width=2048, dropout=0.1)
        epochs, lr, vocab_size = 10, 1e-3, 16000
    elif sources.count >= 5_000:
        sizes = dict(width=256, depth=4, heads=4, ffn_width=1024, dropout=0.3)
        epochs, lr, vocab_size = 30, 2e-3, 8000
    else:
        sizes = dict(width=128, depth=2, heads=4, ffn_width=512, dropout=0.3)
        epochs, lr, vocab_size = 60, 2e-3, 2000
    decoder_sizes = {f"decoder_{name}": sizes[name] for name in ("depth", "heads", "ffn_width")}
    batch_tokens = 8192 if has_gpu else 2048
    words = sources.count * (sources.median_words + targets.median_words)
    steps_per_epoch = max(1, math.ceil(words * TOKENS_PER_WORD / batch_tokens))
    longest = max(sources.long_words, targets.long_words)
    facts = describe_table(table, sources, "sources")
    facts["words per target"] = describe_lengths(targets)
    if targets.num_empty:
        facts["empty targets"] = f"{targets.num_empty:,}"
    model: list[Setting] = [
        Setting("", comment=f"A new Transformer, of a size for {sources.count:,} pairs."),
        Setting(
            "", comment="To fine-tune a published model instead, remove the other keys and the"
        ),
        Setting("", comment='table [tokenizer]: load = "Helsinki-NLP/opus-mt-de-en"'),
        Setting("family", "transformer"),
        *(Setting(name, value) for name, value in (sizes | decoder_sizes).items()),
        Setting("norm_position", "pre"),
        Setting("final_norm", True),
    ]
    if source.model is not None:
        model = [Setting("load", source.model)]
    tokenizer = [Setting("type", "bpe"), Setting("vocab_size", vocab_size)]
    return RecipeDraft(
        title=f"Translation, drafted from {source.name!r} by `qkv new translate`",
        facts=facts,
        tables={
            "model": model,
            **({} if source.model else {"tokenizer": tokenizer}),
            "data": [
                *describe_source(source, table),
                Setting("max_length", suggest_max_length(longest), "tokens of a text"),
                Setting("overflow", "truncate"),
                Setting("batch_tokens", batch_tokens, f"for {source.machine}"),
            ],
            "objective": [Setting("name", "seq2seq"), Setting("label_smoothing", 0.1)],
            "train": [
                *choose_duration(source.machine, epochs, steps_per_epoch, warmup_ratio=1 / 5),
                Setting("lr", lr),
                Setting("lr_schedule", "noam"),
                Setting("betas", [0.9, 0.98]),
                *choose_precision(source.machine),
            ],
        },
    )


def draft_language_model(source: DataSource) -> RecipeDraft:
    """Draft a causal language model of plain text."""
    text = profile_plain_text(source.path)
    has_gpu = source.machine.has_gpu
    max_length, batch_size = (256, 64) if has_gpu else (64, 12)
    sizes = (
        dict(depth=6, width=384, heads=6, dropout=0.2)
        if has_gpu
        else dict(depth=4, width=128, heads=4, dropout=0.0)
    )
    if text.num_characters < 20 * max_length:
        raise ValueError(
            f"{source.name}: {text.num_characters:,} characters; expected at least {20 * max_length:,}"
        )
    tokenizer = [
        Setting("type", "char"),
        Setting("vocab_size", text.num_distinct + 10, "every character of the text"),
        Setting("template", "plain"),
    ]
    if text.num_characters > MAX_CHAR_TOKENIZER_CHARACTERS:
        tokenizer = [Setting("type", "byte"), Setting("vocab_size", 8000, "subwords")]
    # Each of a few chunks of the text is a large part of it.
    validation = 0.3 if 1 < text.num_chunks < 5 else 0.1
    steps = 4000 if has_gpu else 2000
    model = [
        Setting(
            "", comment=f"A new GPT-2, of a size for {source.machine}. To fine-tune the published"
        ),
        Setting("", comment="one instead, remove the other keys and the table [tokenizer]:"),
        Setting(
            "", comment='load = "openai-community/gpt2", with data.max_length 512, train.lr 5e-5'
        ),
        Setting("family", "gpt2"),
        *(Setting(name, value) for name, value in sizes.items()),
        Setting("embedding_dropout", sizes["dropout"]),
        Setting("attention_dropout", sizes["dropout"]),
    ]
    if source.model is not None:
        model = [Setting("load", source.model)]
    return RecipeDraft(
        title=f"A language model, drafted from {source.name!r} by `qkv new complete`",
        facts={
            "data": f"{format_count(text.num_characters)} characters, {text.num_lines:,} lines,"
            f" {text.num_distinct:,} different characters"
        },
        tables={
            "model": model,
            **({} if source.model else {"tokenizer": tokenizer}),
            "data": [
                Setting("train", source.path),
                Setting("unit", "file", "one long text"),
                Setting("validation", validation, "the fraction at the end that is held out"),
                Setting("max_length", max_length, "tokens of a row"),
                Setting("batch_size", batch_size),
            ],
            "objective": [Setting("name", "causal-lm")],
            "train": [
                Setting("steps", steps),
                Setting("lr", (1e-3 if has_gpu else 3e-3) if source.model is None else 5e-5),
                Setting("warmup_steps", 100),
                Setting("min_lr_ratio", 0.1),
                Setting("betas", [0.9, 0.99]),
                Setting("weight_decay", 0.1),
                Setting("eval_every", 250, "steps"),
                Setting("log_every", 50),
                *choose_precision(source.machine),
            ],
        },
    )


@dataclass(frozen=True, kw_only=True)
class DraftSpec:
    """A row of the drafts: the data that a draft needs, and the function that makes it."""

    data: str
    draft: Callable[[DataSource], RecipeDraft]


DRAFT_SPECS = {
    "classify":  DraftSpec(data="a table of texts and labels", draft=draft_classification),
    "tag":       DraftSpec(data="CoNLL, or JSON lines of words and tags", draft=draft_tagging),
    "answer":    DraftSpec(data="SQuAD's JSON", draft=draft_answering),
    "translate": DraftSpec(data="a table of pairs, or two parallel files", draft=draft_translation),
    "complete":  DraftSpec(data="plain text", draft=draft_language_model),
}  # fmt: skip
