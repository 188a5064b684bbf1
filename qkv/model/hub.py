"""Model folders: a path, a built-in model, or a download from the Hugging Face hub. A checkpoint of a
run has the config and tokenizer of a saved model:

    RUN/last, RUN/best             saved models of the run
    RUN/checkpoints/00000100/      net.safetensors, state.json; ema.safetensors with train.ema_decay
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from qkv.builtin import find_builtin, is_builtin
from qkv.staging import finish_save

WEIGHTS_FILE = "net.safetensors"
CHECKPOINT_FILES = (WEIGHTS_FILE, "state.json")
SAVED_MODELS = ("last", "best")  # folders of a run
MODEL_CONFIG_FILES = ("config.json", "adapter_config.json")


def find_model_folder(
    name_or_path: str | Path, revision: str | None, *, download: bool = True
) -> Path:
    """Return the folder, or the snapshot of a hub id; without `download`, only from the cache."""
    if name_or_path == "":
        raise ValueError("the model name is empty, expected a folder or a hub id")
    folder = Path(name_or_path)
    finish_save(folder)
    if (folder / "recipe.toml").is_file() and not (folder / "config.json").exists():
        models = [folder / name for name in ("best", "last") if (folder / name).is_dir()]
        hint = f"its model is in {models[0]}" if models else "it has saved no model yet"
        raise ValueError(f"{folder}: the folder of a run, expected that of a model; {hint}")
    if folder.exists():
        return folder
    if is_builtin(name_or_path):
        return find_builtin(str(name_or_path))
    if str(name_or_path).count("/") > 1 or str(name_or_path).startswith((".", "/", "~")):
        raise ValueError(
            f"{name_or_path}: no such folder, and not a hub id (expected `name` or `owner/name`)"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = ["*.json", "*.safetensors", "*.txt", "*.model", "*.spm", "*/config.json"]
    patterns.append("*_Dense/pytorch_model.bin")  # of sentence-transformers
    snapshot = partial(
        snapshot_download, str(name_or_path), revision=revision, local_files_only=not download
    )
    try:
        path = Path(snapshot(allow_patterns=patterns))
        if any(path.glob("*.safetensors")):
            return path
        return Path(snapshot(allow_patterns=[*patterns, "*.bin"]))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"{name_or_path}: no such folder, and the download from the hub failed ({cause})"
        ) from None


def is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE forbids downloads."""
    from huggingface_hub.constants import HF_HUB_OFFLINE

    return bool(HF_HUB_OFFLINE)


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
