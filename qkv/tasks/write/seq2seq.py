"""Seq2SeqTask: the base class of tasks of an encoder-decoder that map a text to a text."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, ClassVar, Literal

from qkv.data.encode.overflow import OVERFLOW_MODES
from qkv.decode import GenerationConfig, Result
from qkv.nn.network import Network
from qkv.spec import Spec
from qkv.tasks.alignment import Alignment, locate_source_tokens, locate_target_tokens
from qkv.tasks.base import DEFAULT_MAX_INPUT_LENGTH, InputRow, TextOrPair
from qkv.tasks.checks import check_input_text, check_string_settings
from qkv.tasks.chunking import chunk_text, find_chunk_starts
from qkv.tasks.cross_attention import (
    AttentionResult,
    check_alignment_layer,
    compute_cross_attention,
    resolve_alignment_layer,
)
from qkv.tasks.requirements import SEQ2SEQ_REQUIREMENT, TaskRequirement
from qkv.tasks.write.base import GenerationTask


@dataclass(frozen=True)
class GeneratedText:
    """A generated text, its score and its tokens.

    `score`: log-probability divided by length to the power of `length_penalty`.
    `candidates`: the best texts, this one first.
    `alignments`: with `alignment_layer`, one alignment per segment of the source."""

    text: str
    score: float
    tokens: tuple[str, ...]
    candidates: tuple[GeneratedText, ...] = ()
    alignments: tuple[Alignment, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Seq2SeqTask(GenerationTask[str, GeneratedText]):
    """A task of an encoder-decoder that maps a text to a text.

    `prefix`: text before every source, such as T5's task names, None: that of the folder.
    `alignment_layer`: decoder layer whose cross-attention gives the alignments: an index,
    "penultimate", or "mean" for all layers. It needs one additional forward pass."""

    requirement: ClassVar[TaskRequirement] = SEQ2SEQ_REQUIREMENT
    overflow_modes: ClassVar[tuple[str, ...]] = OVERFLOW_MODES
    prefix: str | None = None
    alignment_layer: str | int | None = None

    def __post_init__(self) -> None:
        check_string_settings(prefix=self.prefix)
        super().__post_init__()
        assert isinstance(self.model.net, Network)
        check_alignment_layer(self.alignment_layer, len(self.model.net.last_stack.layer_order))
        if self.alignment_layer is not None and self.generation_config.context_overflow == "slide":
            raise ValueError(
                "context_overflow is 'slide' with alignment_layer, which needs one context: "
                "set it to 'stop', or remove one of the two"
            )

    def derive_generation_settings(self, defaults: GenerationConfig) -> dict[str, Any]:
        """Stop at the last position if the cross-attention of the whole result is needed."""
        return {} if self.alignment_layer is None else {"context_overflow": "stop"}

    @property
    def resolved_alignment_layer(self) -> int | Literal["mean"] | None:
        """The decoder layer of `alignment_layer`, counted from 0."""
        if self.alignment_layer is None:
            return None
        assert isinstance(self.model.net, Network)
        depth = len(self.model.net.last_stack.layer_order)
        return resolve_alignment_layer(self.alignment_layer, depth)

    @property
    def input_token_limit(self) -> int:
        """Maximum number of source tokens.

        With relative positions only, as in T5, the limit of the tokenizer applies only if longer texts
        are truncated or split."""
        spec = self.model.spec
        assert isinstance(spec, Spec)
        assert spec.encoder is not None
        if self.overflow != "error" or spec.encoder.embedding.positions is not None:
            return super().input_token_limit
        return self.max_input_length or DEFAULT_MAX_INPUT_LENGTH

    def build_request(self, row: InputRow) -> dict[str, Any]:
        return {"source": row.encoding.input_ids}

    def chunk_long_text(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield the text with overflow "window" in chunks that fit, each after its whitespace."""
        if self.overflow == "window":
            return chunk_text(
                text,
                self.input_token_limit,
                lambda part: self.encode([part])[0],
                self.source_prefix,
            )
        return iter([("", text)])

    @property
    def source_prefix(self) -> str:
        """The prefix of the task, else that of the folder."""
        if self.prefix is not None:
            return self.prefix
        params = self.task_specific_params.get(self.task_specific_key or "")
        prefix = params.get("prefix") if isinstance(params, dict) else None
        return str(prefix if prefix is not None else self.model.config.get("prefix") or "")

    def predict(self, rows: Sequence[InputRow]) -> list[list[Result] | Exception]:
        row_results = super().predict(rows)
        layer = self.resolved_alignment_layer
        if layer is None:
            return row_results
        net = self.model.net
        assert isinstance(net, Network)
        sources: list[list[int]] = []
        flat_results: list[Result] = []
        for row, results in zip(rows, row_results, strict=True):
            if not isinstance(results, Exception):
                sources += [row.encoding.input_ids] * len(results)
                flat_results += results
        if not flat_results:
            return row_results
        attention_results = iter(
            compute_cross_attention(net, sources, flat_results, self.generation_config, layer)
        )
        return [
            results
            if isinstance(results, Exception)
            else [next(attention_results) for _ in results]
            for results in row_results
        ]

    def build_output(
        self, result: Result, row: InputRow | None = None, source_text: str = "", offset: int = 0
    ) -> GeneratedText:
        """Return the text of a result.

        With cross-attention weights, it has the alignment with the row, whose text starts at `offset`
        in the user's text."""
        token_ids = self.filter_vocabulary_ids(result.token_ids)
        text = self.tokenizer.decode(token_ids, skip_special_tokens=True).strip()
        output = GeneratedText(text, result.score, self.convert_ids_to_tokens(token_ids))
        if row is None or not isinstance(result, AttentionResult):
            return output
        source = locate_source_tokens(
            self.tokenizer, row.encoding, source_text, offset, self.source_prefix
        )
        target = locate_target_tokens(self.tokenizer, token_ids, text)
        weights = tuple(
            tuple(token_weights[: len(source)])
            for token_id, token_weights in zip(
                result.token_ids, result.cross_attention_weights, strict=True
            )
            if self.filter_vocabulary_ids([token_id])
        )
        alignment = Alignment(source, target, weights, self.resolved_alignment_layer)
        return replace(output, alignments=(alignment,))

    def segment_text(self, task_input: str) -> Iterator[tuple[str, str]]:
        """Yield the segments that are processed separately, each after its whitespace."""
        return self.chunk_long_text(task_input)

    def prepare_texts(self, task_input: str, input_name: str) -> list[TextOrPair]:
        text = check_input_text(task_input, input_name)
        return [self.source_prefix + body for _, body in self.segment_text(text) if body]

    def postprocess(
        self, task_input: str, rows: Sequence[InputRow], predictions: Sequence[list[Result]]
    ) -> GeneratedText:
        segments = [*self.segment_text(task_input)]
        if not rows:  # nothing to change
            unchanged = GeneratedText("".join(gap for gap, _ in segments), 0.0, ())
            return replace(unchanged, candidates=(unchanged,))
        source_offset = self.get_source_offset(task_input)
        segment_outputs = [
            [
                self.build_output(result, row, task_input, start + source_offset)
                for result in results
            ]
            for row, start, results in zip(
                rows, find_chunk_starts(segments), predictions, strict=True
            )
        ]
        candidates = tuple(
            concatenate_outputs(outputs, self.join_outputs(segments, outputs))
            for outputs in zip(*segment_outputs, strict=False)
        )
        return replace(candidates[0], candidates=candidates)

    def get_source_offset(self, task_input: str) -> int:
        """Return the number of characters before the source, such as a language code."""
        return 0

    @abstractmethod
    def join_outputs(
        self, segments: Sequence[tuple[str, str]], outputs: Sequence[GeneratedText]
    ) -> list[str]:
        """Return the outputs and the whitespace between them, which concatenated form the text."""


def concatenate_outputs(outputs: Sequence[GeneratedText], texts: Sequence[str]) -> GeneratedText:
    """Concatenate the outputs of segments; their scores are added."""
    tokens = tuple(token for output in outputs for token in output.tokens)
    ends = accumulate(map(len, texts))
    alignments = tuple(
        alignment.shift_target(end - len(output.text))
        for output, end in zip(outputs, ends, strict=False)
        for alignment in output.alignments
    )
    score = math.fsum(output.score for output in outputs)
    return GeneratedText("".join(texts), score, tokens, alignments=alignments)
