"""Replaced token detection by ELECTRA's discriminator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from qkv.batch import Batch
from qkv.data.encode.overflow import OVERFLOW_MODES
from qkv.tasks.base import InputRow, OutputTensors, Task
from qkv.tasks.requirements import TaskRequirement, require_head
from qkv.validate import check_number


@dataclass(frozen=True)
class TokenDetection:
    """A token, the text from `start` up to `end`, and the probability that it was replaced."""

    text: str
    score: float
    is_replaced: bool
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class DetectTask(Task[str, tuple[TokenDetection, ...]]):
    """Replaced token detection. `threshold`: minimum score of a replaced token."""

    name: ClassVar[str] = "detect"
    requirement: ClassVar[TaskRequirement] = TaskRequirement(
        "a replaced-token-detection head",
        require_head("replaced_token_detection"),
        ("replaced-token-detection",),
    )
    overflow_modes: ClassVar[tuple[str, ...]] = OVERFLOW_MODES
    uses_stride: ClassVar[bool] = True
    overflow: str = "window"
    threshold: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("threshold", self.threshold, at_least=0, at_most=1)

    def extract_predictions(
        self, outputs: OutputTensors, batch: Batch, rows: Sequence[InputRow]
    ) -> list[list[float]]:
        scores = outputs["logits"].float().sigmoid().cpu().tolist()
        return [
            row_scores[: len(row.encoding)] for row_scores, row in zip(scores, rows, strict=True)
        ]

    def postprocess(
        self, task_input: str, rows: Sequence[InputRow], predictions: Sequence[Any]
    ) -> tuple[TokenDetection, ...]:
        """Return one detection per token, with the mean of its scores in overlapping windows."""
        scores: dict[tuple[int, int, int], list[float]] = {}
        for row, row_scores in zip(rows, predictions, strict=True):
            num_seen: dict[tuple[int, int], int] = {}  # bytes of one character have equal offsets
            for offsets, is_special, score in zip(
                row.encoding.offset_mapping,
                row.encoding.special_tokens_mask,
                row_scores,
                strict=True,
            ):
                if not is_special:
                    index = num_seen.get(offsets, 0)
                    num_seen[offsets] = index + 1
                    scores.setdefault((*offsets, index), []).append(score)
        detections = []
        for (start, end, _), token_scores in sorted(scores.items()):
            score = sum(token_scores) / len(token_scores)
            is_replaced = score >= self.threshold
            text = task_input[start:end]
            detections.append(TokenDetection(text, score, is_replaced, start, end))
        return tuple(detections)
