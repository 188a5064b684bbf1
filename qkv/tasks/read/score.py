"""Log-probabilities of the tokens of a text, and its perplexity.

A causal model predicts a token from the tokens before it; the first token has no score, unless a BOS
token precedes it. A masked model masks each token in turn (Salazar et al. 2020, arXiv:1910.14659). In
a window after the first, only tokens that no earlier window contains are scored; the tokens that
windows share are context."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from qkv.batch import Batch
from qkv.data.encode.overflow import OVERFLOW_MODES, compute_default_stride
from qkv.nn.network import Network
from qkv.spec import Spec
from qkv.tasks.base import InputRow, OutputTensors, Task
from qkv.tasks.requirements import TaskRequirement, can_score_text, is_causal_spec
from qkv.text import Encoding

MAX_LOGITS = 2**24  # maximum number of logits that are computed at a time
MAX_EXPONENT = 700.0  # its exp is a finite float


@dataclass(frozen=True)
class TokenScore:
    """A token, the text from `start` up to `end`, and its log-probability or None."""

    text: str
    score: float | None
    start: int
    end: int


@dataclass(frozen=True)
class TextScore:
    """The sum of the log-probabilities of the tokens, and the perplexity."""

    score: float
    perplexity: float
    tokens: tuple[TokenScore, ...]


@dataclass(frozen=True, kw_only=True)
class ScoreTask(Task[str, TextScore]):
    """Log-probabilities and perplexity of a text."""

    name: ClassVar[str] = "score"
    requirement: ClassVar[TaskRequirement] = TaskRequirement(
        "a decoder with the head lm, or a masked-lm head", can_score_text, ("lm", "masked-lm")
    )
    overflow_modes: ClassVar[tuple[str, ...]] = OVERFLOW_MODES
    uses_stride: ClassVar[bool] = True
    overflow: str = "window"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.is_causal and self.tokenizer.mask_token_id is None:
            raise ValueError(
                "`score`: the tokenizer has no mask token; expected one, or a decoder model"
            )

    @property
    def is_causal(self) -> bool:
        assert isinstance(self.model.spec, Spec)
        return is_causal_spec(self.model.spec)

    def build_rows(self, encoding: Encoding, input_name: str) -> list[InputRow]:
        """Return one row per window for a causal model, one row per token for a masked model."""
        overlap = self.stride
        if overlap is None:
            overlap = compute_default_stride(encoding, self.input_token_limit)
        rows = []
        for index, part in enumerate(self.split_encoding(encoding, input_name)):
            positions = [i for i, special in enumerate(part.special_tokens_mask) if not special]
            new_positions = positions[overlap:] if index else positions
            if self.is_causal:
                rows.append(InputRow(part, tuple(new_positions)))
            else:
                rows += [InputRow(part, (position,)) for position in new_positions]
        if self.is_causal and not any(
            position for row in rows for position in row.target_positions
        ):
            raise ValueError(
                f"{input_name}: one token, expected at least two: a causal model does not predict "
                "the first token"
            )
        return rows

    def get_input_ids(self, row: InputRow) -> list[int]:
        if self.is_causal:
            return row.encoding.input_ids
        input_ids = list(row.encoding.input_ids)
        input_ids[row.target_positions[0]] = self.tokenizer.mask_token_id or 0
        return input_ids

    def forward(self, rows: Sequence[InputRow]) -> tuple[OutputTensors, Batch]:
        """Compute only hidden states, because the logits of all tokens would need too much memory."""
        batch = self.build_batch(rows)
        no_positions = torch.zeros(0, dtype=torch.long, device=self.model.device)
        batch = replace(batch, logit_positions=no_positions)
        return self.model.net(batch), batch

    def extract_predictions(
        self, outputs: OutputTensors, batch: Batch, rows: Sequence[InputRow]
    ) -> list[list[float | None]]:
        hidden_states = outputs["last_hidden_state"]  # (B, T, W)
        shift = int(self.is_causal)  # the state before a token predicts it
        targets = [
            (i, position)
            for i, row in enumerate(rows)
            for position in row.target_positions
            if position >= shift
        ]
        max_length = hidden_states.shape[1]
        indices = [i * max_length + position - shift for i, position in targets]
        token_ids = [rows[i].encoding.input_ids[position] for i, position in targets]
        device = hidden_states.device
        log_probs = iter(
            self.compute_log_probs(
                hidden_states.flatten(0, 1),
                torch.tensor(indices, dtype=torch.long, device=device),
                torch.tensor(token_ids, dtype=torch.long, device=device),
            )
        )
        return [
            [next(log_probs) if position >= shift else None for position in row.target_positions]
            for row in rows
        ]

    def compute_log_probs(
        self, hidden_states: Tensor, indices: Tensor, token_ids: Tensor
    ) -> list[float]:
        """Return the log-probability of each token (N,), given the state at its index (N,)."""
        net = self.model.net
        assert isinstance(net, Network)
        log_probs: list[float] = []
        chunk_size = max(MAX_LOGITS // net.last_stack.spec.embedding.vocab_size, 1)
        for chunk_indices, chunk_ids in zip(
            indices.split(chunk_size), token_ids.split(chunk_size), strict=True
        ):
            outputs = {"last_hidden_state": hidden_states[chunk_indices][None]}
            logits = net.heads["lm"](outputs, Batch())["logits"][0]
            chunk_log_probs = logits.float().log_softmax(-1).gather(1, chunk_ids[:, None])
            log_probs += chunk_log_probs[:, 0].tolist()
        return log_probs

    def postprocess(
        self, task_input: str, rows: Sequence[InputRow], predictions: Sequence[Any]
    ) -> TextScore:
        tokens = []
        for row, scores in zip(rows, predictions, strict=True):
            for position, score in zip(row.target_positions, scores, strict=True):
                start, end = row.encoding.offset_mapping[position]
                tokens.append(TokenScore(task_input[start:end], score, start, end))
        token_scores = [token.score for token in tokens if token.score is not None]
        mean_loss = -sum(token_scores) / len(token_scores)
        perplexity = math.exp(min(mean_loss, MAX_EXPONENT))
        return TextScore(sum(token_scores), perplexity, tuple(tokens))
