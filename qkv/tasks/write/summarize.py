"""Summarization of a text by an encoder-decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from qkv.tasks.batching import TaskProgress
from qkv.tasks.write.seq2seq import GeneratedText, Seq2SeqTask


@dataclass(frozen=True, kw_only=True)
class SummarizeTask(Seq2SeqTask):
    """Summarization.

    Defaults, such as lengths and T5's prefix, come from the entry `summarization` of the folder's
    `task_specific_params`. With overflow "window", a text that is too long is summarized in chunks;
    `recursive` summarizes the joined summaries again until they fit into one chunk."""

    name: ClassVar[str] = "summarize"
    recursive: bool = False

    @property
    def task_specific_key(self) -> str | None:
        return "summarization"

    def join_outputs(
        self, segments: Sequence[tuple[str, str]], outputs: Sequence[GeneratedText]
    ) -> list[str]:
        return [" " * (i > 0) + output.text for i, output in enumerate(outputs)]

    def compute_outcomes(
        self,
        inputs: Sequence[str],
        batch_tokens: int = 4096,
        progress: TaskProgress = False,
        return_exceptions: bool = False,
    ) -> list[GeneratedText | Exception]:
        outcomes = super().compute_outcomes(inputs, batch_tokens, progress, return_exceptions)
        if not self.recursive:
            return outcomes
        summaries = {
            i: outcome.text
            for i, (text, outcome) in enumerate(zip(inputs, outcomes, strict=True))
            if isinstance(outcome, GeneratedText)
            and 0 < len(outcome.text) < len(text)
            and len(self.prepare_texts(text, "text")) > 1
        }
        if summaries:
            shorter = self.compute_outcomes(
                [*summaries.values()], batch_tokens, progress, return_exceptions
            )
            for i, outcome in zip(summaries, shorter, strict=True):
                outcomes[i] = outcome
        return outcomes
