"""Vocabulary files as they are published: vocab.txt, vocab.json, merges.txt, CLIP's. Knows no tokenizer."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Mapping
from pathlib import Path

from qkv.text.files import DAMAGED, LIMIT, read_bytes, read_json, read_text
from qkv.text.pipelines import Bpe

MOST = 2**31  # ids are whole numbers below this
CLIP_MERGES = 49152 - 256 - 2  # of the many in OpenAI's file, those that CLIP has


def read_lines(path: Path) -> dict[str, int]:
    """vocab.txt: a token a line, numbered from 0."""
    found: dict[str, int] = {}
    for number, line in enumerate(read_text(path).removesuffix("\n").split("\n")):
        token = line.rstrip()
        if token in found and token:
            raise ValueError(f"{path}: {token!r} on lines {found[token] + 1} and {number + 1}, expected once")
        found[token] = number
    return found


def read_numbers(path: Path) -> dict[str, int]:
    """vocab.json: ids by token."""
    return check_numbers(read_json(path, strict=True), path)


def check_numbers(values: Mapping[str, object], path: Path) -> dict[str, int]:
    owner: dict[int, str] = {}
    for token, number in values.items():
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < MOST:
            raise ValueError(f"{path}: {token!r} has id {number!r}, expected a whole number from 0")
        if number in owner:
            raise ValueError(f"{path}: id {number} is of {owner[number]!r} and of {token!r}, expected one")
        owner[number] = token
    if not owner:
        raise ValueError(f"{path}: no tokens; {DAMAGED}")
    return {token: number for number, token in owner.items()}


def read_merges(path: Path) -> list[tuple[str, str]]:
    """merges.txt: two pieces a line, the earliest learned first."""
    return _merges(read_text(path).split("\n"), path)


def _merges(lines: list[str], path: Path) -> list[tuple[str, str]]:
    found = []
    for number, line in enumerate(lines):
        if not line or (number == 0 and line.startswith(("#version", '"bpe_simple_vocab'))):
            continue
        first, _, second = line.partition(" ")
        if not first or not second or " " in second:
            raise ValueError(f"{path}: line {number + 1} is {line[:80]!r}, expected two pieces; {DAMAGED}")
        found.append((first, second))
    return found


def read_clip(path: Path) -> Bpe:
    """OpenAI's bpe_simple_vocab_16e6.txt.gz: merges only; the vocabulary follows from them."""
    try:
        with gzip.open(io.BytesIO(read_bytes(path))) as file:
            data = file.read(LIMIT + 1)
        lines = data.decode("utf-8").split("\n")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError):
        raise ValueError(f"{path}: not text in gzip; {DAMAGED}") from None
    if len(data) > LIMIT:
        raise ValueError(f"{path}: more than {LIMIT} bytes of text; is it the right file?")
    merges = _merges(lines[: CLIP_MERGES + 1], path)
    letters = visible_bytes()
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), *(a + b for a, b in merges)]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    return Bpe({token: number for number, token in enumerate(tokens)}, merges)


def visible_bytes() -> list[str]:
    """The characters that stand for the 256 bytes, in GPT-2's order: those one can see, then the others."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    return [chr(byte) for byte in seen] + [chr(256 + place) for place in range(256 - len(seen))]
