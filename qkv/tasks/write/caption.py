"""Captions of images, by a model whose encoder reads images and whose decoder generates text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from qkv.data.encode.images import ImageProcessor
from qkv.decode import Result
from qkv.decode.encoder_states import encode_images
from qkv.memory import is_memory_error
from qkv.nn.network import Network
from qkv.tasks.base import InputRow
from qkv.tasks.batching import (
    TaskProgress,
    build_progress_reporter,
    is_any_error,
    map_in_parts,
    raise_first_error,
)
from qkv.tasks.cross_attention import AttentionResult, compute_cross_attention
from qkv.tasks.images import (
    ImageInput,
    check_image_inputs,
    get_image_features,
    load_image_processor,
    read_pixel_values,
)
from qkv.tasks.requirements import CAPTION_REQUIREMENT, TaskRequirement
from qkv.tasks.write.base import GenerationTask
from qkv.validate import check_number


@dataclass(frozen=True)
class Caption:
    """A caption, its score and its tokens.

    `score`: log-probability divided by length to the power of `length_penalty`.
    `candidates`: the best captions, this one first.
    `attention`: with `return_attention`, the weights of the places of the image, row by row, for each
    token: the mean over layers and heads."""

    text: str
    score: float
    tokens: tuple[str, ...]
    candidates: tuple[Caption, ...] = ()
    attention: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, kw_only=True)
class CaptionTask(GenerationTask[ImageInput, Caption]):
    """Image captioning; an image is a path or a Pillow image.

    `return_attention`: also return the attention to the image, by one more forward pass."""

    name: ClassVar[str] = "caption"
    requirement: ClassVar[TaskRequirement] = CAPTION_REQUIREMENT
    overflow_modes: ClassVar[tuple[str, ...]] = ("error",)
    return_attention: bool = False

    @cached_property
    def image_processor(self) -> ImageProcessor:
        return load_image_processor(self.model)

    def compute_outcomes(
        self,
        inputs: Sequence[ImageInput],
        batch_tokens: int = 4096,
        progress: TaskProgress = False,
        return_exceptions: bool = False,
    ) -> list[Caption | Exception]:
        check_number("batch_tokens", batch_tokens, integer=True, at_least=1)
        num_tokens = get_image_features(self.model).num_tokens * self.sequences_per_row
        batch_size = max(batch_tokens // num_tokens, 1)
        report_progress = build_progress_reporter("caption", 0, len(inputs), len(inputs), progress)
        outcomes: list[Caption | Exception] = []
        with self.evaluation_mode() as task:
            for start in range(0, len(inputs), batch_size):
                images = inputs[start : start + batch_size]
                can_split = is_any_error if return_exceptions else is_memory_error
                outcomes += map_in_parts(task.caption_images, images, can_split)
                if not return_exceptions:
                    raise_first_error(outcomes)
                report_progress(len(outcomes) / len(inputs))
        return outcomes

    def caption_images(self, images: Sequence[ImageInput]) -> list[Caption | Exception]:
        """Return the captions of one batch of images, or their errors."""
        check_image_inputs(images)
        assert isinstance(self.model.net, Network)
        pixel_values = read_pixel_values(self.model, self.image_processor, images)
        rows: list[Any] = encode_images(self.model.net, pixel_values)
        return [
            self.build_outcome(image, [row], [results])
            for image, row, results in zip(images, rows, self.predict(rows), strict=True)
        ]

    def predict(self, rows: Sequence[Any]) -> list[list[Result] | Exception]:
        row_results = super().predict(rows)
        if not self.return_attention:
            return row_results
        assert isinstance(self.model.net, Network)
        return [
            results
            if isinstance(results, Exception)
            else [
                *compute_cross_attention(
                    self.model.net, [row] * len(results), results, self.generation_config, "mean"
                )
            ]
            for row, results in zip(rows, row_results, strict=True)
        ]

    def build_request(self, row: Any) -> dict[str, Any]:
        return {"source": row}  # the encoder states of an image

    def postprocess(
        self, task_input: ImageInput, rows: Sequence[InputRow], predictions: Sequence[list[Result]]
    ) -> Caption:
        candidates = tuple(map(self.build_caption, predictions[0]))
        return replace(candidates[0], candidates=candidates)

    def build_caption(self, result: Result) -> Caption:
        """Return the text of a result."""
        token_ids = self.filter_vocabulary_ids(result.token_ids)
        text = self.tokenizer.decode(token_ids, skip_special_tokens=True).strip()
        attention: tuple[tuple[float, ...], ...] = ()
        if isinstance(result, AttentionResult):
            attention = tuple(
                tuple(weights)
                for token_id, weights in zip(
                    result.token_ids, result.cross_attention_weights, strict=True
                )
                if self.filter_vocabulary_ids([token_id])
            )
        tokens = self.convert_ids_to_tokens(token_ids)
        return Caption(text, result.score, tokens, attention=attention)
