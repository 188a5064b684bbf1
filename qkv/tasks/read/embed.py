"""Text embeddings: one vector per text, or the last hidden states of its tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray

from qkv.batch import Batch
from qkv.files import read_json_object
from qkv.nn.heads import pool_states
from qkv.spec import DualSpec, HeadSpec
from qkv.tasks.base import InputRow, OutputTensors, Task
from qkv.tasks.batching import TaskProgress, evaluation_mode
from qkv.tasks.checks import check_choice
from qkv.tasks.requirements import TaskRequirement

EmbeddingArray: TypeAlias = NDArray[np.float32]
EMBED_POOLING_MODES = ("mean", "first", "last", "pooler_output")


@dataclass(frozen=True, kw_only=True)
class EmbedTask(Task[str, EmbeddingArray]):
    """Text embeddings.

    `pooling`: the mean, first or last hidden state, or the pooler's output.
    `normalize`: scale embeddings to length 1.
    The defaults come from 1_Pooling of the folder, else they are the mean without normalization.
    CLIP has its own text embeddings, of unit length."""

    name: ClassVar[str] = "embed"
    requirement: ClassVar[TaskRequirement] = TaskRequirement(
        "an encoder or a decoder alone",
        lambda spec: not (spec.encoder and spec.decoder),
        ("none",),
        lambda spec: spec.text is not None,
    )
    pooling: str | None = None
    normalize: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        is_dual = isinstance(self.model.spec, DualSpec)
        if self.pooling is not None:
            check_choice("pooling", self.pooling, EMBED_POOLING_MODES)
            if is_dual:
                raise ValueError(
                    f"pooling is {self.pooling!r}, expected none: "
                    "this model returns text embeddings without pooling"
                )
        if self.normalize is False and is_dual:
            raise ValueError(
                "normalize is False, expected none: the embeddings of this model have unit length"
            )
        if self.pooling == "pooler_output" and not self.has_pooler:
            raise ValueError(
                "pooling is 'pooler_output': this model has no pooler, expected mean, first or last"
            )

    @property
    def input_token_limit(self) -> int:
        return min(super().input_token_limit, self.max_seq_length or super().input_token_limit)

    @cached_property
    def max_seq_length(self) -> int | None:
        """Token limit of sentence-transformers, from sentence_bert_config.json."""
        folder = self.model.tokenizer_folder
        if folder is None or not (folder / "sentence_bert_config.json").is_file():
            return None
        value = read_json_object(folder / "sentence_bert_config.json").get("max_seq_length")
        return value if isinstance(value, int) and value > 0 else None

    @property
    def has_pooler(self) -> bool:
        spec = self.model.spec
        return not isinstance(spec, DualSpec) and any(
            "pooler_output" in getattr(head, "outputs", ()) for head in spec.heads
        )

    def map(  # type: ignore[override]  # one array, not a list of them
        self, inputs: Iterable[str], /, *, batch_tokens: int = 4096,
        progress: TaskProgress = False, **settings: Any,
    ) -> EmbeddingArray:  # fmt: skip
        """Return the embeddings of many texts: (texts, width)."""
        embeddings = super().map(inputs, batch_tokens=batch_tokens, progress=progress, **settings)
        return np.stack(embeddings) if embeddings else np.zeros((0, 0), np.float32)

    def get_last_hidden_state(self, text: str, /) -> EmbeddingArray:
        """Return the last hidden states of all tokens, including special tokens: (tokens, width)."""
        (rows,) = self.preprocess([text], ["text"])
        with evaluation_mode(self.model):
            outputs, _ = self.forward(rows)
            return outputs["last_hidden_state"][0].float().cpu().numpy()

    def extract_predictions(
        self, outputs: OutputTensors, batch: Batch, rows: Sequence[InputRow]
    ) -> list[EmbeddingArray]:
        model_pooling = self.model.pooling
        if isinstance(self.model.spec, DualSpec):
            embeddings = outputs["text_embeds"]
            default_normalize = True
        else:
            mode = self.pooling or (model_pooling.mode if model_pooling else "mean")
            embeddings = pool_states(HeadSpec(name="embedding", pooling=mode), outputs, batch)
            default_normalize = bool(model_pooling and model_pooling.normalize)
        embeddings = embeddings.float()
        if default_normalize if self.normalize is None else self.normalize:
            embeddings = F.normalize(embeddings, dim=-1)
        return list(embeddings.cpu().numpy())

    def postprocess(
        self, task_input: str, rows: Sequence[InputRow], predictions: Sequence[Any]
    ) -> EmbeddingArray:
        return predictions[0]
