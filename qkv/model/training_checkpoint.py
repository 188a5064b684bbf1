"""The model of a training checkpoint: the weights of one step, with config and tokenizer of its run.

    RUN/last, RUN/best             saved models of the run
    RUN/checkpoints/00000100/      net.safetensors, state.json; ema.safetensors with train.ema_decay

Does not depend on training."""

from __future__ import annotations

from pathlib import Path

import torch

from qkv.model.model import Model
from qkv.model.parameters import warn_about_nonfinite
from qkv.weights.tensors import read_tensors

WEIGHTS_FILE = "net.safetensors"
AVERAGE_FILE = "ema.safetensors"
CHECKPOINT_FILES = (WEIGHTS_FILE, "state.json")
SAVED_MODELS = ("last", "best")  # folders of a run
MODEL_CONFIG_FILES = ("config.json", "adapter_config.json")
# Of networks that train another one beside the model: the discriminator of ELECTRA, a student.
PREFIXES = ("", "discriminator.", "student.")


def find_run_model(folder: Path) -> Path | None:
    """Return the saved model of the run of a checkpoint; None if the folder is no checkpoint."""
    is_checkpoint = all((folder / name).is_file() for name in CHECKPOINT_FILES)
    if not is_checkpoint or any((folder / name).is_file() for name in MODEL_CONFIG_FILES):
        return None
    run = folder.absolute().parent.parent
    for name in SAVED_MODELS:
        if any((run / name / file).is_file() for file in MODEL_CONFIG_FILES):
            return run / name
    raise ValueError(
        f"{folder}: a checkpoint of a run that has saved no model yet; expected {run / 'best'} or "
        f"{run / 'last'}, which have its config and tokenizer: training writes them at an evaluation "
        "and at the end"
    )


def find_settings_folder(folder: Path) -> Path:
    """Return the folder with config and tokenizer: of a checkpoint, the saved model of its run."""
    return find_run_model(folder) or folder


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
