"""Published folders of Transformer-XL, whose outputs are in `tests/goldens/xl`: transformers no longer
has its classes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.published.folder import source_file

GOLDEN = Path(__file__).parents[2] / "goldens" / "xl" / "xl-base"


@dataclass(frozen=True, kw_only=True)
class PublishedXL:
    """A folder that differs from the golden one."""

    name: str
    source: str  # where the spelling was seen
    seen: str  # what was seen there
    removed: str = "(?!)"  # names of tensors: a regular expression
    config: Mapping[str, Any] = field(default_factory=dict)  # None removes a key
    load: Mapping[str, Any] = field(default_factory=dict)
    reload: Mapping[str, Any] = field(default_factory=dict)
    compared: tuple[str, ...] = ("logits", "last_hidden_state", "mems")
    warns: str = ""

    def __repr__(self) -> str:
        return self.name

    def write(self, folder: Path) -> Path:
        """Write config.json and the weights."""
        config = json.loads((GOLDEN / "config.json").read_text()) | self.config
        (folder / "config.json").write_text(
            json.dumps({key: value for key, value in config.items() if value is not None})
        )
        tensors = load_file(GOLDEN / "model.safetensors")
        removed = [name for name in tensors if re.fullmatch(self.removed, name)]
        assert removed or self.removed == "(?!)"
        save_file(
            {name: x for name, x in tensors.items() if name not in removed},
            folder / "model.safetensors",
        )
        return folder

    def compute_expected(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return inputs and outputs."""
        golden = load_file(GOLDEN / "golden.safetensors")
        return {"input_ids": golden["ids"]}, {name: golden[name] for name in self.compared}


TRANSFORMER_XL = [
    PublishedXL(
        name="transfo-xl-wt103-config.json",
        source=source_file("v2.1.0", "transformers/configuration_transfo_xl.py"),
        seen="n_token, tie_weight, tgt_len, ext_len; no model_type, no architectures",
        config={
            "n_token": 40, "vocab_size": None, "tie_weight": True, "tgt_len": 128, "ext_len": 0,
            "model_type": None, "architectures": None, "torch_dtype": None,
            "transformers_version": None,
        },
        load={"family": "transformer-xl", "head": "lm"},
    ),
    PublishedXL(
        name="crit without its tied tensors",
        source=source_file(
            "v4.30.0", "src/transformers/models/transfo_xl/modeling_transfo_xl.py"
        ),
        seen="_keys_to_ignore_on_load_missing: crit.out_projs, crit.out_layers.*.weight",
        removed=r"crit\.out_projs\.[12]|crit\.out_layers\.\d\.weight",
    ),
    PublishedXL(
        name="transfo-xl-wt103 as TransfoXLModel",
        source=source_file("v1.0.0", "pytorch_transformers/modeling_transfo_xl.py"),
        seen="TransfoXLLMHeadModel has crit, which TransfoXLModel lacks; pos_emb.inv_freq is saved",
        config={"architectures": ["TransfoXLModel"]},
        compared=("last_hidden_state", "mems"), warns=r"crit\.cluster_bias, .*kept aside",
    ),
]  # fmt: skip
