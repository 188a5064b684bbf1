"""The weights of a training checkpoint, in the saved model of its run. Does not depend on training."""

from __future__ import annotations

from pathlib import Path

import torch

from qkv.model.hub import WEIGHTS_FILE
from qkv.model.model import Model
from qkv.model.parameters import warn_about_nonfinite
from qkv.weights.tensors import read_tensors

AVERAGE_FILE = "ema.safetensors"
# Of networks that train another one beside the model: the discriminator of ELECTRA, a student.
PREFIXES = ("", "discriminator.", "student.")


@torch.no_grad()
def load_checkpoint_weights(model: Model, folder: Path) -> None:
    """Replace the parameters of a model by those of a checkpoint, or by their moving average, which the
    saved models of a run with train.ema_decay have."""
    path = folder / WEIGHTS_FILE
    tensors = read_tensors(path)
    if (folder / AVERAGE_FILE).is_file():
        averages = read_tensors(folder / AVERAGE_FILE)
        tensors |= {name: x for name, x in averages.items() if name in tensors}
    parameters = dict(model.net.named_parameters())
    first = next(iter(parameters))
    prefix = next((prefix for prefix in PREFIXES if prefix + first in tensors), "")
    different = [
        name
        for name, parameter in parameters.items()
        if prefix + name not in tensors or tensors[prefix + name].shape != parameter.shape
    ]
    if different:
        raise ValueError(
            f"{path}: {', '.join(different[:5])} are missing or have other shapes than in the saved model "
            "of the run; was the recipe changed?"
        )
    for name, parameter in parameters.items():
        parameter.copy_(tensors[prefix + name])
    warn_about_nonfinite(path, parameters, stacklevel=5)
