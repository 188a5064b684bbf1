"""Fill-mask: the most likely tokens for the masks of a text, inserted into the user's text."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from qkv.batch import Batch
from qkv.tasks.base import InputRow, OutputTensors, Task, trim_span
from qkv.tasks.checks import check_input_text, check_list
from qkv.tasks.requirements import TaskRequirement, can_fill_masks
from qkv.text import Encoding, Tokenizer
from qkv.validate import check_number

WORD_START_MARKS = ("Ġ", "▁")  # byte-level tokenizers, SentencePiece


@dataclass(frozen=True)
class TokenPrediction:
    """A token for a mask: its text, score and id, and the user's text with it inserted."""

    token_str: str
    score: float
    token: int
    sequence: str


@dataclass(frozen=True)
class MaskPrediction:
    """A mask, from `start` up to `end`, and the best tokens for it."""

    start: int
    end: int
    candidates: tuple[TokenPrediction, ...]


@dataclass(frozen=True)
class FillResult:
    """The user's text with the best token in every mask; masks are predicted independently."""

    text: str
    masks: tuple[MaskPrediction, ...]

    @property
    def candidates(self) -> tuple[TokenPrediction, ...]:
        """The best tokens for the first mask."""
        return self.masks[0].candidates


@dataclass(frozen=True, kw_only=True)
class FillTask(Task[str, FillResult]):
    """Fill-mask.

    `top_k`: number of tokens per mask. `targets`: restricts the tokens to these words; for a word of
    several tokens, the first token is used."""

    name: ClassVar[str] = "fill"
    requirement: ClassVar[TaskRequirement] = TaskRequirement(
        "a masked-lm head", can_fill_masks, ("masked-lm",)
    )
    top_k: int = 5
    targets: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("top_k", self.top_k, integer=True, at_least=1)
        if self.tokenizer.mask_token_id is None:
            raise ValueError(
                "`fill`: the tokenizer has no mask token; expected one such as [MASK] or <mask>"
            )

    def get_target_ids(self) -> list[int]:
        """Return the token ids of the targets, without duplicates."""
        targets = [self.targets] if isinstance(self.targets, str) else self.targets
        vocabulary = self.tokenizer.get_vocab()
        target_ids = set()
        for target in check_list("targets", targets):
            check_input_text(target, "a target")
            token_id = vocabulary.get(target)
            if token_id is None:
                ids = self.tokenizer.encode(target, add_special_tokens=False)
                if not {*ids} - {self.tokenizer.unk_token_id}:
                    raise ValueError(
                        f"target {target!r}: the tokenizer has no tokens for its characters"
                    )
                token_id = ids[0]
                if len(ids) > 1:
                    token = self.tokenizer.convert_ids_to_tokens(token_id)
                    warnings.warn(
                        f"target {target!r} is not a token of this model; using {token!r}",
                        stacklevel=5,
                    )
            target_ids.add(token_id)
        return sorted(target_ids)

    def list_token_ids(self, vocab_size: int) -> list[int]:
        """Return the ids that are tokens; the vocabulary of a model may be padded with unused ids."""
        if vocab_size <= len(self.tokenizer):
            return [*range(vocab_size)]
        return [token_id for token_id in range(vocab_size) if has_token(self.tokenizer, token_id)]

    def build_rows(self, encoding: Encoding, input_name: str) -> list[InputRow]:
        (part,) = self.split_encoding(encoding, input_name)
        mask_id = self.tokenizer.mask_token_id
        positions = tuple(i for i, token_id in enumerate(part.input_ids) if token_id == mask_id)
        if not positions:
            truncated = " after truncation" if part is not encoding else ""
            mask_token = self.tokenizer.mask_token
            raise ValueError(f"{input_name}: no {mask_token}{truncated}; expected at least one")
        return [InputRow(part, positions)]

    def extract_predictions(
        self, outputs: OutputTensors, batch: Batch, rows: Sequence[InputRow]
    ) -> list[Any]:
        scores = outputs["logits"].float().softmax(-1)  # (masks of all rows, vocabulary)
        ids = self.get_target_ids() if self.targets else self.list_token_ids(scores.shape[-1])
        token_ids = torch.tensor(ids).to(scores.device)
        scores = scores[:, token_ids]
        values, indices = scores.topk(min(self.top_k, scores.shape[-1]))
        best = iter(zip(values.tolist(), token_ids[indices].tolist(), strict=True))
        return [[next(best) for _ in row.target_positions] for row in rows]

    def postprocess(
        self, task_input: str, rows: Sequence[InputRow], predictions: Sequence[Any]
    ) -> FillResult:
        (row,) = rows
        (mask_predictions,) = predictions
        masks = []
        text = task_input
        # From the last mask on, so that the offsets of earlier masks stay valid.
        for position, (scores, token_ids) in reversed(
            [*zip(row.target_positions, mask_predictions, strict=True)]
        ):
            start, end = trim_span(task_input, *row.encoding.offset_mapping[position])
            candidates = tuple(
                TokenPrediction(
                    spell_token(self.tokenizer, token_id)[0],
                    score,
                    token_id,
                    self.insert_token(task_input, start, end, token_id),
                )
                for score, token_id in zip(scores, token_ids, strict=True)
            )
            masks.append(MaskPrediction(start, end, candidates))
            text = self.insert_token(text, start, end, token_ids[0])
        return FillResult(text, tuple(reversed(masks)))

    def insert_token(self, text: str, start: int, end: int, token_id: int) -> str:
        """Return the text with a mask replaced by a token.

        A token that continues a word removes the whitespace before it."""
        word, starts_word = spell_token(self.tokenizer, token_id)
        before = text[:start] if starts_word else text[:start].rstrip()
        return before + word + text[end:]


def has_token(tokenizer: Tokenizer, token_id: int) -> bool:
    try:
        return bool(tokenizer.convert_ids_to_tokens(token_id))
    except ValueError:
        return False


def spell_token(tokenizer: Tokenizer, token_id: int) -> tuple[str, bool]:
    """Return the text of a token and whether it starts a word."""
    token = tokenizer.convert_ids_to_tokens(token_id)
    if token_id in tokenizer.special_token_ids.values():
        return token, True
    prefix = tokenizer.continuing_subword_prefix
    if prefix:
        return token.removeprefix(prefix), not token.startswith(prefix)
    text = tokenizer.decode(token_id, skip_special_tokens=True)
    if token.startswith(WORD_START_MARKS):
        return text.lstrip(" "), True
    return text, False
