"""Vocabulary files: vocab.txt, vocab.json, merges.txt and OpenAI's file of CLIP."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Mapping
from pathlib import Path

from qkv.text.files import (
    DAMAGED_TOKENIZER_HINT,
    MAX_TOKENIZER_FILE_BYTES,
    read_bytes,
    read_tokenizer_json_object,
    read_utf8_text,
    shorten,
)
from qkv.text.pipelines import BpeVocabulary

TOKEN_ID_LIMIT = 2**31  # ids are below
NUM_CLIP_MERGES = 49152 - 256 - 2  # OpenAI's file has more merges than CLIP uses


def read_vocab_txt(path: Path) -> dict[str, int]:
    """Read vocab.txt: one token per line, ids from 0."""
    vocabulary: dict[str, int] = {}
    for token_id, line in enumerate(read_utf8_text(path).removesuffix("\n").split("\n")):
        token = line.rstrip()
        if token in vocabulary and token:
            lines = f"{vocabulary[token] + 1} and {token_id + 1}"
            raise ValueError(f"{path}: {shorten(token)} on lines {lines}, expected once")
        vocabulary[token] = token_id
    return vocabulary


def read_vocab_json(path: Path) -> dict[str, int]:
    """Read vocab.json: ids by token."""
    return check_token_ids(read_tokenizer_json_object(path, reject_duplicates=True), path)


def check_token_ids(vocabulary: Mapping[str, object], path: Path) -> dict[str, int]:
    """Return the vocabulary; raise ValueError unless its ids are valid and unique."""
    tokens_by_id: dict[int, str] = {}
    for token, token_id in vocabulary.items():
        if (
            not isinstance(token_id, int)
            or isinstance(token_id, bool)
            or not 0 <= token_id < TOKEN_ID_LIMIT
        ):
            raise ValueError(
                f"{path}: {shorten(token)} has id {shorten(token_id)}, expected a whole number from 0"
            )
        if token_id in tokens_by_id:
            raise ValueError(
                f"{path}: {shorten(tokens_by_id[token_id])} and {shorten(token)} have id {token_id},"
                " expected unique ids"
            )
        tokens_by_id[token_id] = token
    if not tokens_by_id:
        raise ValueError(f"{path}: no tokens; {DAMAGED_TOKENIZER_HINT}")
    return {token: token_id for token_id, token in tokens_by_id.items()}


def read_merges(path: Path) -> list[tuple[str, str]]:
    """Read merges.txt: two pieces per line, in order of priority."""
    return _parse_merges(read_utf8_text(path).split("\n"), path)


def _parse_merges(lines: list[str], path: Path) -> list[tuple[str, str]]:
    merges = []
    for line_index, line in enumerate(lines):
        if not line or (line_index == 0 and line.startswith(("#version", '"bpe_simple_vocab'))):
            continue
        first, _, second = line.partition(" ")
        if not first or not second or " " in second:
            raise ValueError(
                f"{path}: line {line_index + 1} is {line[:80]!r}, expected two pieces;"
                f" {DAMAGED_TOKENIZER_HINT}"
            )
        merges.append((first, second))
    return merges


def read_openai_clip_bpe(path: Path) -> BpeVocabulary:
    """Read OpenAI's bpe_simple_vocab_16e6.txt.gz: merges, which determine the vocabulary."""
    try:
        with gzip.open(io.BytesIO(read_bytes(path))) as file:
            data = file.read(MAX_TOKENIZER_FILE_BYTES + 1)
        lines = data.decode("utf-8").split("\n")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError):
        raise ValueError(f"{path}: not gzipped text; {DAMAGED_TOKENIZER_HINT}") from None
    if len(data) > MAX_TOKENIZER_FILE_BYTES:
        raise ValueError(
            f"{path}: more than {MAX_TOKENIZER_FILE_BYTES} bytes of text; is it the right file?"
        )
    merges = _parse_merges(lines[: NUM_CLIP_MERGES + 1], path)
    letters = bytes_to_unicode()
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), *(a + b for a, b in merges)]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    return BpeVocabulary({token: token_id for token_id, token in enumerate(tokens)}, merges)


def bytes_to_unicode() -> list[str]:
    """Return the characters for the 256 bytes in GPT-2's order: printable bytes first."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    return [chr(byte) for byte in printable] + [chr(256 + i) for i in range(256 - len(printable))]
