"""The bytes that each token adds to a text, for constraints on generated text.

Tokenizers mark spaces in one of three ways: a space is part of the token that follows it (byte-level
BPE, SentencePiece, WordPiece) or of the token before it (BPE with `</w>`, CTRL), or it is a token."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache, partial

import tokenizers

from qkv.text.backends.protocol import clean_up_tokenization

SPACE_SYMBOL = "▁"  # of SentencePiece
BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
TokenConverter = Callable[[str], bytes]


@cache
def byte_level_alphabet() -> dict[str, int]:
    """Return the byte that each character of a byte-level vocabulary stands for (GPT-2)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)]
    printable += range(ord("®"), ord("ÿ") + 1)
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + n): byte for n, byte in enumerate(others)
    }


def convert_byte_level(token: str, end_of_word_suffix: str | None = None) -> bytes:
    """Return the bytes of a token of byte-level BPE; the end of a word is a space (CLIP)."""
    alphabet = byte_level_alphabet()
    if end_of_word_suffix:
        token = token.replace(end_of_word_suffix, "Ġ")
    if all(character in alphabet for character in token):
        return bytes(alphabet[character] for character in token)
    return token.encode()


def convert_piece(token: str) -> bytes:
    """Return the bytes of a SentencePiece piece; `<0x0A>` is one byte."""
    byte = BYTE_PIECE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(SPACE_SYMBOL, " ").encode()


def convert_suffixed(token: str, suffix: str) -> bytes:
    """Return the bytes of a token that ends a word if it has the suffix."""
    is_end = token.endswith(suffix) and token != suffix
    return (token.removesuffix(suffix) + " " if is_end else token).encode()


def convert_wordpiece(token: str, prefix: str, cleans_up: bool) -> bytes:
    """Return the bytes of a token that begins a word unless it has the prefix."""
    if prefix and token.startswith(prefix):
        return token.removeprefix(prefix).encode()
    return (clean_up_tokenization(f" {token}") if cleans_up else f" {token}").encode()


def build_token_converter(tokenizer: tokenizers.Tokenizer) -> TokenConverter:
    """Return the function that converts the tokens of a tokenizer of the `tokenizers` library.

    It can be pickled, as a tokenizer can."""
    decoder = tokenizer.decoder
    state = {} if decoder is None else json.loads(decoder.__getstate__())
    text = json.dumps(state, ensure_ascii=False)
    suffix = getattr(tokenizer.model, "end_of_word_suffix", None)
    if '"ByteLevel"' in text:
        return partial(convert_byte_level, end_of_word_suffix=suffix)
    if SPACE_SYMBOL in text:
        return convert_piece
    if state.get("type") == "BPEDecoder":
        return partial(convert_suffixed, suffix=state["suffix"])
    if state.get("type") == "WordPiece":
        return partial(convert_wordpiece, prefix=state["prefix"], cleans_up=state["cleanup"])
    if state.get("type") == "Fuse":
        return str.encode
    # Tokens without a decoder are joined with spaces.
    return partial(convert_wordpiece, prefix="", cleans_up=False)
