"""CheckpointData: the content of a checkpoint of another library, as plain data. Does not depend on
families or networks: `qkv.model.foreign` maps it to a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class CheckpointData:
    """Settings, tensors, vocabularies, tokenizer files and generation settings of a checkpoint.

    Settings and tensors have the names of the other library. `vocabularies` lists the tokens in the
    order of their ids: "source" and "target", or "shared". `tokenizer_files` has the paths of other
    files of the tokenizer by kind, such as "bpe_codes". `generation_config` has the keys of
    generation_config.json."""

    path: Path  # the file with the tensors, for error messages
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    vocabularies: dict[str, list[str]] = field(default_factory=dict)
    tokenizer_files: dict[str, Path] = field(default_factory=dict)
    generation_config: dict[str, Any] = field(default_factory=dict)

    def get_vocabulary(self, side: str) -> list[str] | None:
        """Return the vocabulary of a side, "source" or "target"; both may share one."""
        return self.vocabularies.get(side, self.vocabularies.get("shared"))
