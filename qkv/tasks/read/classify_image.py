"""Classification of images, and a label for every frame of a clip."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkv.data.encode.images import ImageProcessor
from qkv.memory import is_memory_error
from qkv.model.inputs import build_input_batch, check_inputs
from qkv.tasks.base import InputRow, ResultT, Task, get_model_label_names
from qkv.tasks.batching import (
    TaskProgress,
    build_progress_reporter,
    catch_error,
    group_rows_by_length,
    is_any_error,
    map_in_parts,
    raise_first_error,
)
from qkv.tasks.checks import check_choice, check_top_k
from qkv.tasks.images import (
    ImageInput,
    check_image_inputs,
    get_image_features,
    load_image_processor,
    read_clip_frames,
)
from qkv.tasks.read.classify import (
    SCORE_FUNCTIONS,
    Classification,
    apply_score_function,
    infer_score_function,
)
from qkv.tasks.requirements import (
    FRAME_CLASSIFICATION_REQUIREMENT,
    IMAGE_CLASSIFICATION_REQUIREMENT,
    TaskRequirement,
)
from qkv.validate import check_number

INPUTS_PER_CHUNK = 256  # images or clips that are decoded at a time
PixelValues = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class PixelTask(Task[ImageInput, ResultT]):
    """A task of a model that reads pixels alone: no tokenizer, one row per input."""

    reads_text: ClassVar[bool] = False

    @cached_property
    def image_processor(self) -> ImageProcessor:
        return load_image_processor(self.model)

    @property
    def model_labels(self) -> tuple[str, ...]:
        """The labels that the model was trained with."""
        return get_model_label_names(self.model, self.model.args["num_labels"])

    @abstractmethod
    def read_pixel_values(self, task_input: ImageInput) -> PixelValues:
        """Return the pixel values of an input, without the axis of the batch."""

    @abstractmethod
    def compute_logits(self, rows: Sequence[PixelValues]) -> Sequence[Tensor]:
        """Return the logits of every row of a batch."""

    @abstractmethod
    def build_result(self, logits: Tensor) -> ResultT:
        """Return the result of an input, given its logits."""

    @abstractmethod
    def count_tokens(self, row: PixelValues) -> int:
        """Return the number of positions that the encoder has for a row."""

    def compute_outcomes(
        self,
        inputs: Sequence[ImageInput],
        batch_tokens: int = 4096,
        progress: TaskProgress = False,
        return_exceptions: bool = False,
    ) -> list[ResultT | Exception]:
        check_number("batch_tokens", batch_tokens, integer=True, at_least=1)
        total = len(inputs)
        report_progress = build_progress_reporter(self.name, 0, total, total, progress)
        outcomes: list[ResultT | Exception] = []
        with self.evaluation_mode() as task:
            for start in range(0, total, INPUTS_PER_CHUNK):
                chunk = inputs[start : start + INPUTS_PER_CHUNK]
                outcomes += task.classify_chunk(chunk, batch_tokens, return_exceptions)
                report_progress(len(outcomes) / total)
        return outcomes

    def classify_chunk(
        self, inputs: Sequence[ImageInput], batch_tokens: int, return_exceptions: bool
    ) -> list[ResultT | Exception]:
        """Return the result of every input, or its error with `return_exceptions`."""
        rows: list[Any] = [catch_error(partial(self.read_pixel_values, x)) for x in inputs]
        if not return_exceptions:
            raise_first_error(rows)
        outcomes: list[Any] = [row if isinstance(row, Exception) else None for row in rows]
        valid = [i for i, row in enumerate(rows) if not isinstance(row, Exception)]
        lengths = [self.count_tokens(rows[i]) for i in valid]
        can_split = is_any_error if return_exceptions else is_memory_error
        for group in group_rows_by_length(lengths, batch_tokens):
            indices = [valid[i] for i in group]
            logits = map_in_parts(self.compute_logits, [rows[i] for i in indices], can_split)
            for i, row_logits in zip(indices, logits, strict=True):
                outcomes[i] = (
                    row_logits
                    if isinstance(row_logits, Exception)
                    else self.build_result(row_logits)
                )
        return outcomes if return_exceptions else [*raise_first_error(outcomes)]

    def run_network(self, inputs: dict[str, Any]) -> Tensor:
        """Return the logits of a batch, in fp32 on the CPU."""
        check_inputs(self.model.spec, inputs)
        parameter = next(self.model.net.parameters())
        inputs["pixel_values"] = inputs["pixel_values"].to(parameter.dtype)
        tensors = {name: tensor.to(parameter.device) for name, tensor in inputs.items()}
        outputs = self.model.net(build_input_batch(self.model.spec, **tensors))
        logits: Tensor = outputs["logits"].float().cpu()
        return logits

    def postprocess(
        self, task_input: ImageInput, rows: Sequence[InputRow], predictions: Sequence[Any]
    ) -> ResultT:
        return self.build_result(predictions[0])


@dataclass(frozen=True, kw_only=True)
class ImageClassifyTask(PixelTask[Classification]):
    """Image classification; an image is a path, a Pillow image or an array of bytes.

    `top_k`: number of labels, None: all.
    `function_to_apply`: softmax, sigmoid or none, None: by `problem_type` of the config."""

    name: ClassVar[str] = "classify"
    requirement: ClassVar[TaskRequirement] = IMAGE_CLASSIFICATION_REQUIREMENT
    top_k: int | None = None
    function_to_apply: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_top_k(self.top_k)
        if self.function_to_apply is not None:
            check_choice("function_to_apply", self.function_to_apply, SCORE_FUNCTIONS)

    def read_pixel_values(self, task_input: ImageInput) -> PixelValues:
        check_image_inputs([task_input])
        return self.image_processor(task_input)  # (C, H, W)

    def count_tokens(self, row: PixelValues) -> int:
        return get_image_features(self.model).num_tokens

    def compute_logits(self, rows: Sequence[PixelValues]) -> Sequence[Tensor]:
        pixel_values = torch.from_numpy(np.stack(rows))
        return list(self.run_network({"pixel_values": pixel_values}))  # (B, labels)

    def build_result(self, logits: Tensor) -> Classification:
        labels = self.model_labels
        function = self.function_to_apply or infer_score_function(self.model, len(labels))
        return Classification.from_scores(
            labels, apply_score_function(logits, function), self.top_k
        )


@dataclass(frozen=True)
class FrameLabel:
    """The label of a frame, which are numbered from 0, and its score."""

    frame: int
    label: str
    score: float


@dataclass(frozen=True, kw_only=True)
class FrameTagTask(PixelTask[tuple[FrameLabel, ...]]):
    """Frame classification: a label for every frame of a clip.

    A clip is the path of an animated image or of a folder of images, or an array of bytes (frames,
    height, width) or (frames, height, width, 3)."""

    name: ClassVar[str] = "tag"
    requirement: ClassVar[TaskRequirement] = FRAME_CLASSIFICATION_REQUIREMENT

    def read_pixel_values(self, task_input: ImageInput) -> PixelValues:
        frames = read_clip_frames(self.model, task_input)
        return np.stack([self.image_processor(frame) for frame in frames])  # (T, C, H, W)

    def count_tokens(self, row: PixelValues) -> int:
        return len(row)

    def compute_logits(self, rows: Sequence[PixelValues]) -> Sequence[Tensor]:
        lengths = torch.tensor([len(row) for row in rows])
        length = int(lengths.max())
        padded = np.zeros((len(rows), length, *rows[0].shape[1:]), np.float32)
        for i, row in enumerate(rows):
            padded[i, : len(row)] = row
        mask = torch.arange(length) < lengths[:, None]
        pixel_values = torch.from_numpy(padded)
        logits = self.run_network({"pixel_values": pixel_values, "attention_mask": mask})
        return [row[: len(clip)] for row, clip in zip(logits, rows, strict=True)]  # (T, labels)

    def build_result(self, logits: Tensor) -> tuple[FrameLabel, ...]:
        scores, labels = logits.softmax(-1).max(-1)
        names = self.model_labels
        return tuple(
            FrameLabel(frame, names[label], score)
            for frame, (label, score) in enumerate(
                zip(labels.tolist(), scores.tolist(), strict=True)
            )
        )
