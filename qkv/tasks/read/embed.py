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
from qkv.model.transforms.pooling import POOLING_CONFIG_KEYS
from qkv.model.transforms.sentence_transformers import find_transformer_folder, read_modules
from qkv.nn.heads import pool_states
from qkv.spec import DualSpec, HeadSpec, find_patches
from qkv.tasks.base import InputRow, OutputTensors, Task, TextOrPair
from qkv.tasks.batching import TaskProgress
from qkv.tasks.checks import check_choice, check_input_text
from qkv.tasks.requirements import TaskRequirement

EmbeddingArray: TypeAlias = NDArray[np.float32]
EMBED_POOLING_MODES = (*POOLING_CONFIG_KEYS, "pooler_output")
# The settings of sentence-transformers' first module; the first versions named them by the model.
SENTENCE_CONFIG_FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)


@dataclass(frozen=True, kw_only=True)
class EmbedTask(Task[str, EmbeddingArray]):
    """Text embeddings.

    `pooling`: the mean, first, last or another pooling of the hidden states, or the pooler's output;
    without the linear layer of the folder.
    `normalize`: scale embeddings to length 1.
    The defaults come from 1_Pooling of the folder, else they are the mean without normalization.
    CLIP has its own text embeddings, of unit length."""

    name: ClassVar[str] = "embed"
    requirement: ClassVar[TaskRequirement] = TaskRequirement(
        "an encoder or a decoder alone",
        lambda spec: not (spec.encoder and spec.decoder) and find_patches(spec) is None,
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
    def sentence_config(self) -> dict[str, object]:
        """sentence-transformers' settings of the folder: max_seq_length and do_lower_case."""
        folder = self.model.tokenizer_folder
        paths = [folder / name for name in SENTENCE_CONFIG_FILES] if folder is not None else []
        return next((read_json_object(path) for path in paths if path.is_file()), {})

    @property
    def max_seq_length(self) -> int | None:
        """Token limit of sentence-transformers."""
        value = self.sentence_config.get("max_seq_length")
        return value if isinstance(value, int) and value > 0 else None

    @cached_property
    def default_prompt(self) -> str:
        """The text that sentence-transformers adds before every text; empty if there is none."""
        folder = self.model.tokenizer_folder
        path = None if folder is None else folder / "config_sentence_transformers.json"
        if path is None or not path.is_file():
            return ""
        config = read_json_object(path)
        prompts = config.get("prompts")
        name = config.get("default_prompt_name")
        return str(prompts.get(name, "")) if name and isinstance(prompts, dict) else ""

    def prepare_texts(self, task_input: str, input_name: str) -> list[TextOrPair]:
        if self.pooling is None and self.model.pooling is None and self.has_unread_modules:
            raise ValueError(
                f"{self.model.tokenizer_folder}: its modules.json has modules that qkv does not read; "
                "set pooling, such as 'mean', for another embedding"
            )
        text = self.default_prompt + check_input_text(task_input, input_name)
        return [text.lower() if self.sentence_config.get("do_lower_case") is True else text]

    @cached_property
    def has_unread_modules(self) -> bool:
        """Whether the folder is of sentence-transformers, with modules other than its first."""
        folder = self.model.tokenizer_folder
        roots = [] if folder is None else [folder, folder.parent]
        return any(
            find_transformer_folder(root) == folder and len(read_modules(root)) > 1
            for root in roots
        )

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
        with self.evaluation_mode() as task:
            outputs, _ = task.forward(rows)
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
            if self.pooling is None and model_pooling and model_pooling.dense:
                mode = "sentence_dense"
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
