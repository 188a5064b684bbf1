"""Zero-shot image classification by a dual encoder (CLIP): scores of images with texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkv.batch import Batch
from qkv.data.encode.images import ImageProcessor
from qkv.model.inputs import build_input_batch
from qkv.nn.network import DualEncoder
from qkv.tasks.base import InputRow, OutputTensors, Task
from qkv.tasks.batching import TaskProgress, build_progress_reporter
from qkv.tasks.checks import (
    check_hypothesis_template,
    check_list,
    check_top_k,
    parse_candidate_labels,
)
from qkv.tasks.images import (
    ImageInput,
    check_image_inputs,
    get_image_features,
    load_image_processor,
    read_pixel_values,
)
from qkv.tasks.read.classify import Classification
from qkv.tasks.requirements import TaskRequirement
from qkv.validate import check_number


@dataclass(frozen=True, kw_only=True)
class MatchTask(Task[str, Tensor]):
    """Zero-shot image classification.

    Every label of `candidate_labels` is inserted into `hypothesis_template`; scores sum to 1 over
    the labels. `top_k`: number of labels, None: all."""

    name: ClassVar[str] = "match"
    requirement: ClassVar[TaskRequirement] = TaskRequirement(
        "two towers, for texts and images",
        lambda spec: False,
        ("both",),
        lambda spec: None not in (spec.text, spec.image, spec.logit_scale),
    )
    top_k: int | None = None
    candidate_labels: Sequence[str] = ()
    hypothesis_template: str = "{}"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_top_k(self.top_k)
        check_hypothesis_template(self.hypothesis_template)
        labels = parse_candidate_labels(self.candidate_labels)
        object.__setattr__(self, "candidate_labels", labels)

    def __call__(  # type: ignore[override]
        self, image: ImageInput, candidate_labels: Sequence[str] = (), /, **settings: Any
    ) -> Classification:
        """Return the labels of an image."""
        if candidate_labels:
            settings["candidate_labels"] = candidate_labels
        return self.map([image], **settings)[0]

    def map(  # type: ignore[override]  # images, not texts
        self, inputs: Iterable[ImageInput], /, *, batch_tokens: int = 4096,
        progress: TaskProgress = False, **settings: Any,
    ) -> list[Classification]:  # fmt: skip
        """Return the labels of many images."""
        task = self.with_settings(settings)
        labels = task.candidate_labels
        if not labels:
            raise ValueError("candidate_labels is empty; expected at least one label")
        texts = [task.hypothesis_template.replace("{}", label) for label in labels]
        logits = task.compute_logits_per_image(
            check_list("inputs", inputs, "images"),
            texts,
            batch_tokens=batch_tokens,
            progress=progress,
        )
        scores = torch.from_numpy(logits).softmax(-1)
        return [Classification.from_scores(labels, row, task.top_k) for row in scores]

    def compute_logits_per_image(
        self, images: Iterable[ImageInput], texts: Iterable[str], *, batch_tokens: int = 4096,
        progress: TaskProgress = False,
    ) -> NDArray[np.float32]:  # fmt: skip
        """Return the logits of every image with every text: (images, texts)."""
        image_embeds = self.embed_images(list(images), batch_tokens, progress)
        text_embeds = self.compute_results(list(texts), batch_tokens)
        net = self.model.net
        assert isinstance(net, DualEncoder)
        assert net.logit_scale is not None
        if not image_embeds or not text_embeds:
            return np.zeros((len(image_embeds), len(text_embeds)), np.float32)
        scale = net.logit_scale.detach().float().exp().cpu()
        return (scale * torch.stack(image_embeds) @ torch.stack(text_embeds).T).numpy()

    @cached_property
    def image_processor(self) -> ImageProcessor:
        return load_image_processor(self.model)

    def embed_images(
        self, images: Sequence[ImageInput], batch_tokens: int, progress: TaskProgress
    ) -> list[Tensor]:
        """Return the embedding of every image, of unit length."""
        check_number("batch_tokens", batch_tokens, integer=True, at_least=1)
        report_progress = build_progress_reporter("match", 0, len(images), len(images), progress)
        batch_size = max(batch_tokens // get_image_features(self.model).num_tokens, 1)
        check_image_inputs(images)
        embeddings: list[Tensor] = []
        for start in range(0, len(images), batch_size):
            pixel_values = read_pixel_values(
                self.model, self.image_processor, images[start : start + batch_size]
            )
            batch = build_input_batch(self.model.spec, pixel_values=pixel_values)
            with self.evaluation_mode() as task:
                outputs = task.model.net(batch)
            embeddings += list(outputs["image_embeds"].float().cpu())
            report_progress(len(embeddings) / len(images))
        return embeddings

    def extract_predictions(
        self, outputs: OutputTensors, batch: Batch, rows: Sequence[InputRow]
    ) -> list[Tensor]:
        return list(outputs["text_embeds"].float().cpu())

    def postprocess(
        self, task_input: str, rows: Sequence[InputRow], predictions: Sequence[Any]
    ) -> Tensor:
        return predictions[0]
