"""Token classification: the entities of a text and their offsets.

The schemes IOB2, BIOES and BILOU, and labels without prefixes are supported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkv.batch import Batch
from qkv.data.encode.overflow import OVERFLOW_MODES
from qkv.tasks.base import InputRow, OutputTensors, Task, get_model_label_names, trim_span
from qkv.tasks.checks import check_choice, check_list
from qkv.tasks.requirements import TaskRequirement, require_head
from qkv.text import Encoding

AGGREGATIONS = ("none", "simple", "first", "average", "max")
TAG_PREFIXES = ("B-", "I-", "E-", "S-", "L-", "U-")


@dataclass(frozen=True)
class NamedEntity:
    """An entity: its label, and the text from `start` up to `end`."""

    label: str
    score: float
    text: str
    start: int
    end: int


class LabelScores(NamedTuple):
    """A token or word and the scores of all labels (N,)."""

    start: int
    end: int
    scores: NDArray[np.float32]


class TagSpan(NamedTuple):
    label: str
    score: float
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class TagTask(Task[str, tuple[NamedEntity, ...]]):
    """Token classification, such as named entity recognition.

    `aggregation`: "none" returns tokens; "simple" groups tokens into entities; "first", "average" and
    "max" first merge the tokens of a word, with the scores of its first token, their mean, or the
    scores of the token with the highest score.
    `ignore_labels`: labels that are excluded from the result."""

    name: ClassVar[str] = "tag"
    requirement: ClassVar[TaskRequirement] = TaskRequirement(
        "a token-classification head",
        require_head("token_classification"),
        ("token-classification",),
    )
    overflow_modes: ClassVar[tuple[str, ...]] = OVERFLOW_MODES
    uses_stride: ClassVar[bool] = True
    overflow: str = "window"
    aggregation: str = "first"
    ignore_labels: Sequence[str] = ("O",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("aggregation", self.aggregation, AGGREGATIONS)
        check_list("ignore_labels", self.ignore_labels, "labels")

    def extract_predictions(
        self, outputs: OutputTensors, batch: Batch, rows: Sequence[InputRow]
    ) -> list[NDArray[np.float32]]:
        scores = outputs["logits"].float().softmax(-1).cpu().numpy()
        return [scores[i, : len(row.encoding)] for i, row in enumerate(rows)]

    def postprocess(
        self, task_input: str, rows: Sequence[InputRow], predictions: Sequence[Any]
    ) -> tuple[NamedEntity, ...]:
        labels = get_model_label_names(self.model, self.model.args["num_labels"])
        tags = [
            tag
            for row, scores in zip(rows, predictions, strict=True)
            for tag in self.tag_window(task_input, row.encoding, scores, labels)
            if tag.label not in self.ignore_labels
        ]
        if len(rows) > 1:
            tags = aggregate_overlapping_entities(tags)
        entities = []
        for tag in tags:
            start, end = trim_span(task_input, tag.start, tag.end)
            if start < end:
                text = task_input[start:end]
                entities.append(NamedEntity(tag.label, tag.score, text, start, end))
        return tuple(entities)

    def tag_window(
        self, text: str, encoding: Encoding, scores: NDArray[np.float32], labels: Sequence[str]
    ) -> list[TagSpan]:
        """Return the tags of one window."""
        positions = [i for i, special in enumerate(encoding.special_tokens_mask) if not special]
        tokens = [LabelScores(*encoding.offset_mapping[i], scores[i]) for i in positions]
        if self.aggregation == "simple":
            tokens = [aggregate_word(group, "first") for group in group_word_tokens(tokens)]
        elif self.aggregation != "none":
            if self.tokenizer.continuing_subword_prefix:
                word_ids: Sequence[int | None] = [encoding.word_ids[i] for i in positions]
            else:
                word_ids = assign_words_by_whitespace(text, tokens)
            groups = group_word_tokens(tokens, word_ids)
            tokens = [aggregate_word(group, self.aggregation) for group in groups]
        tags = []
        for token in tokens:
            best = int(token.scores.argmax())
            tags.append(TagSpan(labels[best], float(token.scores[best]), token.start, token.end))
        return tags if self.aggregation == "none" else list(group_entities(tags))


def assign_words_by_whitespace(text: str, tokens: Sequence[LabelScores]) -> list[int]:
    """Return the word number of every token, for tokenizers without word boundaries."""
    word_id = 0
    word_ids = []
    for token in tokens:
        characters = text[token.start - 1 : token.start + 1]
        word_id += token.start == 0 or any(map(str.isspace, characters))
        word_ids.append(word_id)
    return word_ids


def group_word_tokens(
    tokens: Sequence[LabelScores], word_ids: Sequence[int | None] | None = None
) -> Iterator[list[LabelScores]]:
    """Yield the tokens of each word; without `word_ids`, group only the bytes of a character."""
    group: list[LabelScores] = []
    for i, token in enumerate(tokens):
        is_same_word = (
            word_ids is not None and word_ids[i] is not None and word_ids[i] == word_ids[i - 1]
        )
        if group and not is_same_word and token.start >= group[-1].end:
            yield group
            group = []
        group.append(token)
    if group:
        yield group


def aggregate_word(tokens: Sequence[LabelScores], aggregation: str) -> LabelScores:
    """Merge the tokens of a word."""
    token_scores = [token.scores for token in tokens]
    if aggregation == "first" or len(token_scores) == 1:
        scores = token_scores[0]
    elif aggregation == "average":
        scores = np.mean(token_scores, 0)
    else:
        scores = max(token_scores, key=np.max)
    return LabelScores(tokens[0].start, tokens[-1].end, scores)


def split_tag(label: str) -> tuple[str, str]:
    """Return prefix and entity type: B-PER is B and PER. A label without a prefix counts as I."""
    return (label[0], label[2:]) if label[:2] in TAG_PREFIXES else ("I", label)


def group_entities(tags: Sequence[TagSpan]) -> Iterator[TagSpan]:
    """Merge neighboring tags of one entity type, as far as their prefixes allow."""
    group: list[TagSpan] = []
    for tag in tags:
        prefix, entity_type = split_tag(tag.label)
        if group:
            last_prefix, last_type = split_tag(group[-1].label)
            if entity_type != last_type or prefix in "BSU" or last_prefix in "ESLU":
                yield merge_entity_tags(group)
                group = []
        group.append(tag)
    if group:
        yield merge_entity_tags(group)


def merge_entity_tags(tags: Sequence[TagSpan]) -> TagSpan:
    score = sum(tag.score for tag in tags) / len(tags)
    return TagSpan(split_tag(tags[0].label)[1], score, tags[0].start, tags[-1].end)


def aggregate_overlapping_entities(entities: Sequence[TagSpan]) -> list[TagSpan]:
    """Keep the longest of overlapping entities of several windows; if equal, the best score."""
    longest: list[TagSpan] = []
    for entity in sorted(entities, key=lambda entity: entity.start):
        if longest and longest[-1].start <= entity.start < longest[-1].end:
            last = longest[-1]
            if (entity.end - entity.start, entity.score) > (last.end - last.start, last.score):
                longest[-1] = entity
        else:
            longest.append(entity)
    return longest
