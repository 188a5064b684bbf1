"""The folder of a model: a path, a built-in model, or a download from the Hugging Face hub."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from qkv.builtin import find_builtin, is_builtin


def find(folder_or_id: str | Path, revision: str | None, *, fetch: bool = True) -> Path:
    """The folder itself, or the hub's snapshot of that id; without `fetch`, from its cache alone."""
    if folder_or_id == "":
        raise ValueError("the name of the model is empty, expected a folder or a hub id")
    folder = Path(folder_or_id)
    if (folder / "recipe.toml").is_file() and not (folder / "config.json").exists():
        held = [f"its model is in {folder / name}" for name in ("best", "last") if (folder / name).is_dir()]
        raise ValueError(f"{folder}: the folder of a run; {(*held, 'it has saved no model yet')[0]}")
    if folder.exists():
        return folder
    if is_builtin(folder_or_id):
        return find_builtin(str(folder_or_id))
    if str(folder_or_id).count("/") > 1 or str(folder_or_id).startswith((".", "/", "~")):
        raise ValueError(
            f"{folder_or_id}: no such folder, and no hub id either (expected `name` or `owner/name`)"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    wanted = ["*.json", "*.safetensors", "*.txt", "*.model", "*.spm", "*/config.json"]
    snapshot = partial(snapshot_download, str(folder_or_id), revision=revision, local_files_only=not fetch)
    try:
        path = Path(snapshot(allow_patterns=wanted))
        return path if any(path.glob("*.safetensors")) else Path(snapshot(allow_patterns=[*wanted, "*.bin"]))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{folder_or_id}: no such folder, and the hub did not give it ({cause})") from None
