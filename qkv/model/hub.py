"""Model folders: a path, a built-in model, or a download from the Hugging Face hub."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from qkv.builtin import find_builtin, is_builtin
from qkv.staging import finish_save


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
