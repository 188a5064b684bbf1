"""Shared functions of the golden tools: the reference library, random weights, and writing of results."""

import importlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

SPREAD = 0.6  # standard deviation of a matrix
CROSS = ("encoder_attn", "EncDecAttention")  # in the names of cross-attention modules
NOISE = 1e-5  # relative change of a weight that must not change a result


def reference(*versions: str) -> Any:
    """Return the transformers module, as Any because the installed version for type checks differs."""
    module: Any = importlib.import_module("transformers")
    if module.__version__ not in versions:
        raise SystemExit(f"transformers is {module.__version__}, expected {' or '.join(versions)}")
    module.logging.set_verbosity_error()
    torch.set_num_threads(1)
    return module


def randomize_parameters(model: nn.Module, seed: int) -> None:
    """Sample every trainable parameter and every bias of the logits from a normal distribution.

    Norm scales have mean 1 and biases mean 0. Cross-attention weights are small, so that the next token
    depends on the previous tokens."""
    generator = torch.Generator().manual_seed(seed)
    drawn: list[tuple[str, Tensor]] = [
        (name, p) for name, p in model.named_parameters() if p.requires_grad
    ]
    drawn += [(name, b) for name, b in model.named_buffers() if name.endswith("logits_bias")]
    with torch.no_grad():
        for name, tensor in drawn:
            noise = torch.randn(tensor.shape, generator=generator)
            if tensor.dim() == 0:  # CLIP's temperature
                tensor.copy_(2 + 0.2 * noise)
            elif tensor.dim() == 1 or name.endswith("logits_bias"):
                tensor.copy_(0.2 * noise + name.endswith("weight"))
            else:
                tensor.copy_(SPREAD * noise * (0.3 if any(word in name for word in CROSS) else 1))


def perturb_weights(model: nn.Module, seed: int) -> None:
    """Change every weight by the relative NOISE, which changes results that depend on a near tie."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.mul_(1 + NOISE * torch.randn(tensor.shape, generator=generator))


def save_tensors(file: Path, tensors: Mapping[str, Tensor], **words: str) -> None:
    """Write detached copies of tensors; `words` are the metadata of the file."""
    copies = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    save_file(copies, file, metadata=words)


def save_cases(file: Path, cases: Iterable[Mapping[str, Any]]) -> None:
    """Write a JSON list, one line per case; floats have nine digits, which is exact for float32."""
    lines = [json.dumps(short(case), ensure_ascii=False, allow_nan=False) for case in cases]
    file.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, Mapping):
        return {key: short(each) for key, each in value.items()}
    return [short(each) for each in value] if isinstance(value, list | tuple) else value


def print_size(folder: Path) -> None:
    """Print a folder and its size."""
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {size / 1000:.0f} kB")
