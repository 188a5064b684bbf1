"""The reference model of a case: random parameters, and a folder in Hugging Face's format."""

from __future__ import annotations

import json
import os
import zlib
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from tests.support.oracle.cases import FP32_PARTS, Case
from tests.support.oracle.variants import Config

RENAMED_MODULES = {"vit"}  # families whose files have other names than their modules

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

# The device of both models; QKV_DEVICE=cuda is a GPU. Results are compared on the CPU.
DEVICE = os.environ.get("QKV_DEVICE", "cpu")
torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False


@cache
def build_reference(case: Case, dtype: torch.dtype = torch.float32) -> Any:
    """Return the reference model with random tensors."""
    if dtype != torch.float32:
        model = deepcopy(build_reference(case)).to(dtype)
        if case.family == "xlnet":  # its query stream multiplies an fp32 table with fp64 weights
            base = getattr(model, "transformer", model)
            table = type(base).relative_positional_encoding
            base.relative_positional_encoding = lambda *a, **k: table(base, *a, **k).to(dtype)
        return model
    model_class = getattr(transformers, case.class_name)
    config = model_class.config_class(**deepcopy(case.sizes), attn_implementation="eager")
    model = model_class(config).eval()
    if "loose" in case.traits:
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
        model.all_tied_weights_keys.pop("lm_head.weight")
    generator = torch.Generator().manual_seed(zlib.crc32(case.name.encode()))
    tensors = dict(model.named_parameters())
    tensors |= {name: x for name, x in model.named_buffers() if "logits_bias" in name}
    with torch.no_grad():
        for name, tensor in tensors.items():
            noise = torch.randn(tensor.shape, generator=generator)
            if name.endswith("embed_positions.weight") and case.family == "marian":
                continue  # sinusoids
            if tensor.ndim == 0:
                tensor.copy_(0.7 + 0.1 * noise)
            elif tensor.ndim == 1 and name.endswith("weight"):
                tensor.copy_(1 + 0.2 * noise)
            else:  # small values where every layer computes in fp32, so that its error does not grow
                is_small = case.family in FP32_PARTS
                is_small = is_small and case.family not in ("xlnet", "ctrl", "marian")
                is_embedding = "embed" in name or "shared" in name
                tensor.copy_((0.25 if not is_small else 0.3 if is_embedding else 0.1) * noise)
    return model.to(DEVICE)


def find_published_name(case: Case, name: str) -> str:
    """Return the name of a parameter in files; since 5.22 the modules of some families have others."""
    convert = getattr(transformers.core_model_loading, "revert_weight_conversion", None)
    if case.family not in RENAMED_MODULES or convert is None:
        return name
    (published_name,) = convert(build_reference(case), {name: torch.empty(0)})
    return str(published_name)


def save_reference(case: Case, folder: Path, **options: Any) -> Path:
    """Save the reference model, then add an unknown key and the case's changes to config.json."""
    model = build_reference(case)
    model.save_pretrained(folder, **options)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    if "bare" in case.traits:
        required = {key: config[key] for key in ("architectures", "model_type")}
        default = json.loads(type(model.config)().to_json_string(use_diff=False))
        config = find_changed_keys(config, default) | required
    config |= {"made_up": {"of": [1, "two", None]}} | case.config_changes
    config = {
        key: value
        for key, value in config.items()
        if value is not None or key not in case.config_changes
    }
    path.write_text(json.dumps(config))
    return folder


def find_changed_keys(config: Config, default: Config) -> Config:
    """Return the keys that differ from the default."""
    nested = {
        key: find_changed_keys(value, default[key])
        for key, value in config.items()
        if key.endswith("_config")
    }
    return {key: value for key, value in config.items() if value != default.get(key, ...)} | nested
