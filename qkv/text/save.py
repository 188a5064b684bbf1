"""Saving of tokenizers in Hugging Face format."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from qkv.staging import replace_nothing, write_folder
from qkv.text.backends.protocol import TokenizerBackend
from qkv.text.config import (
    EXTRA_SPECIAL_TOKENS_KEYS,
    SPECIAL_TOKENS_MAP_FILE,
    TOKENIZER_CONFIG_FILE,
    TokenizerFileConfig,
)
from qkv.text.files import encode_json, list_tokenizer_files, states_model_type
from qkv.text.load import TOKENIZER_FILE


def save_tokenizer_files(
    folder: Path,
    backend: TokenizerBackend,
    config: TokenizerFileConfig,
    files: Mapping[str, bytes],
    special_tokens: Mapping[str, str],
    extra_special_tokens: list[str],
) -> None:
    """Write tokenizer.json, its configs, and `files`, which are saved unchanged."""
    values = dict(config.values)
    new_files = dict(files)
    tokenizer_json = backend.serialize()
    if tokenizer_json is not None:
        new_files[TOKENIZER_FILE] = tokenizer_json
        values = {
            key: value
            for key, value in values.items()
            if key not in EXTRA_SPECIAL_TOKENS_KEYS or isinstance(value, dict)
        }
    for role, token in special_tokens.items():
        declared = config.get_special_token(role)
        if declared is None or declared.content != token:  # set after loading
            values[f"{role}_token"] = token
    special_tokens_map: dict[str, object] = {
        f"{role}_token": token for role, token in special_tokens.items()
    }
    if extra_special_tokens:
        special_tokens_map[EXTRA_SPECIAL_TOKENS_KEYS[0]] = extra_special_tokens
    new_files |= {
        TOKENIZER_CONFIG_FILE: encode_json(dict(sorted(values.items()))),
        SPECIAL_TOKENS_MAP_FILE: encode_json(special_tokens_map),
    }
    with write_folder(folder, replace_tokenizer) as staged:
        for name, data in new_files.items():
            (staged / name).write_bytes(data)


def replace_tokenizer(folder: Path, names: Collection[str]) -> Collection[str]:
    """Return the tokenizer files of a folder; raise ValueError if it holds neither a tokenizer nor a
    model and a new file has the name of an old one."""
    marks = (TOKENIZER_CONFIG_FILE, SPECIAL_TOKENS_MAP_FILE)
    if not any((folder / name).is_file() for name in marks) and not states_model_type(folder):
        return replace_nothing(folder, names)
    return [path.name for path in list_tokenizer_files(folder)]
