"""Saving of tokenizers in Hugging Face format."""

from __future__ import annotations

from collections.abc import Mapping
from operator import methodcaller
from pathlib import Path

from qkv.files import write_files_atomically
from qkv.text.backends.protocol import TokenizerBackend
from qkv.text.config import (
    ADDED_TOKENS_FILE,
    EXTRA_SPECIAL_TOKENS_KEYS,
    SPECIAL_TOKENS_MAP_FILE,
    TOKENIZER_CONFIG_FILE,
    TokenizerFileConfig,
)
from qkv.text.files import encode_json
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
    write_files_atomically(
        {folder / name: methodcaller("write_bytes", data) for name, data in new_files.items()}
    )
    # Files of an older tokenizer in the folder would take precedence over this one.
    for name in {TOKENIZER_FILE, ADDED_TOKENS_FILE} - new_files.keys():
        (folder / name).unlink(missing_ok=True)
