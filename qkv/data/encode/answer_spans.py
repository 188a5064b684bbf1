"""Extractive question answering: the best answer spans of all windows. Does not depend on networks.

    start and end logits (B, T) of the windows of a context
      ─ predict_spans      the best spans of each window
      ─ rank_answer_spans  the best spans of all windows

B windows, T tokens of the longest window, L maximum number of tokens of an answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from qkv.text import Encoding

MAX_ANSWER_TOKENS = 30  # as in BERT


class ContextWindow(NamedTuple):
    """The relation between the tokens of a window and the context."""

    offsets: NDArray[np.int32]  # (T, 2) the characters of the context that a token covers
    context_mask: NDArray[np.bool_]  # (T,) whether a token belongs to the context
    no_answer_index: int  # the token whose logits score "no answer"

    @staticmethod
    def from_encoding(encoding: Encoding, no_answer_index: int) -> ContextWindow:
        """Build a window from the encoding of (question, context)."""
        context_mask = np.array([sequence_id == 1 for sequence_id in encoding.sequence_ids])
        offsets = np.array(encoding.offset_mapping, np.int32).reshape(-1, 2)
        return ContextWindow(offsets, context_mask, no_answer_index)


class AnswerSpan(NamedTuple):
    """The characters of a context from `start` to `end`, exclusive; an empty span means no answer."""

    score: float
    start: int = 0
    end: int = 0

    def extract_text(self, context: str) -> str:
        """Return the text of the span without surrounding whitespace."""
        return context[self.start : self.end].strip()


class WindowPrediction(NamedTuple):
    """The best spans of a window, and its score for no answer."""

    spans: list[AnswerSpan]
    no_answer_score: float


def predict_spans(
    start_logits: Tensor,
    end_logits: Tensor,
    windows: Sequence[ContextWindow],
    *,
    pad_left: bool = False,
    max_answer_tokens: int = MAX_ANSWER_TOKENS,
    top_k: int = 1,
) -> list[WindowPrediction]:
    """Return the `top_k` best spans of every window; a span scores start logit + end logit.

    The logits are (B, T); `pad_left` is true if they are padded on the left."""
    start_logits = start_logits.float()
    end_logits = end_logits.float()
    context_mask = np.zeros(start_logits.shape, np.bool_)
    paddings = [
        start_logits.shape[1] - len(window.context_mask) if pad_left else 0 for window in windows
    ]
    for row, window, padding in zip(context_mask, windows, paddings, strict=True):
        row[padding : padding + len(window.context_mask)] = window.context_mask
    best = find_best_spans(
        start_logits,
        end_logits,
        torch.from_numpy(context_mask).to(start_logits.device),
        max_answer_tokens=max_answer_tokens,
        top_k=top_k,
    )
    no_answer_positions = [
        [padding + window.no_answer_index]
        for window, padding in zip(windows, paddings, strict=True)
    ]
    index = torch.tensor(no_answer_positions, device=start_logits.device)  # (B, 1)
    no_answer_scores = start_logits.gather(1, index) + end_logits.gather(1, index)
    predictions = []
    for window, padding, no_answer_score, scores, firsts, lasts in zip(
        windows, paddings, no_answer_scores[:, 0].tolist(), *(x.tolist() for x in best), strict=True
    ):
        spans = [
            AnswerSpan(
                score,
                int(window.offsets[first - padding, 0]),
                int(window.offsets[last - padding, 1]),
            )
            for score, first, last in zip(scores, firsts, lasts, strict=True)
            if score > -torch.inf
        ]
        predictions.append(WindowPrediction(spans, no_answer_score))
    return predictions


def find_best_spans(
    start_logits: Tensor,
    end_logits: Tensor,
    context_mask: Tensor,
    *,
    max_answer_tokens: int,
    top_k: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the scores, first and last tokens (B, top_k) of the best spans within the context.

    A span has at most `max_answer_tokens` tokens. If there are fewer spans, the scores are -inf."""
    start_logits = start_logits.masked_fill(~context_mask, -torch.inf)
    end_logits = end_logits.masked_fill(~context_mask, -torch.inf)
    padded = F.pad(end_logits, (0, max_answer_tokens - 1), value=-torch.inf)
    ends = padded.unfold(1, max_answer_tokens, 1)  # (B, T + L - 1) -> (B, T, L)
    scores = (start_logits[..., None] + ends).flatten(1)  # (B, T * L)
    best = scores.topk(min(top_k, scores.shape[1]), dim=-1)
    first = best.indices // max_answer_tokens
    return best.values, first, first + best.indices % max_answer_tokens


def rank_answer_spans(
    predictions: Iterable[WindowPrediction], *, allow_no_answer: bool = False
) -> list[AnswerSpan]:
    """Merge the spans of all windows of a question, the best first, each span once.

    With `allow_no_answer`, an empty span is included. Its score is the minimum over all windows,
    because a window without the answer predicts "no answer" even if another window has it."""
    predictions = list(predictions)
    best: dict[tuple[int, int], AnswerSpan] = {}
    for span in (span for prediction in predictions for span in prediction.spans):
        known = best.get(span[1:])
        if known is None or known.score < span.score:
            best[span[1:]] = span
    spans = [*best.values()]
    if allow_no_answer:
        spans.append(AnswerSpan(min(prediction.no_answer_score for prediction in predictions)))
    return sorted(spans, key=lambda span: -span.score)
