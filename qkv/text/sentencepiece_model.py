"""SentencePiece model files (.model, .spm): pieces, scores and normalizer.

A file is one protocol buffer message (sentencepiece_model.proto); the few fields needed here are
parsed without the protobuf library."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from qkv.text.files import DAMAGED_TOKENIZER_HINT

# ModelProto.SentencePiece.Type
NORMAL_PIECE = 1
UNKNOWN_PIECE = 2
CONTROL_PIECE = 3
USER_DEFINED_PIECE = 4
# TrainerSpec.ModelType
UNIGRAM_MODEL = 1
BPE_MODEL = 2


@dataclass(frozen=True)
class SentencePiece:
    piece: str
    score: float
    type: int


@dataclass(frozen=True)
class SentencePieceModel:
    """The contents of a SentencePiece model file."""

    pieces: list[SentencePiece]
    model_type: int
    unk_id: int
    precompiled_charsmap: bytes  # compiled normalizer; empty: none

    def get_special_pieces(self) -> list[SentencePiece]:
        """Return the pieces that are matched before the text is split."""
        return [piece for piece in self.pieces if piece.type in (CONTROL_PIECE, USER_DEFINED_PIECE)]


def parse_sentencepiece_model(data: bytes, path: Path) -> SentencePieceModel:
    """Parse the bytes of a model file; `path` is for error messages."""
    try:
        return _parse_model(data)
    except (ValueError, KeyError, IndexError, struct.error):
        raise ValueError(f"{path}: not a SentencePiece model; {DAMAGED_TOKENIZER_HINT}") from None


def _parse_model(data: bytes) -> SentencePieceModel:
    pieces: list[SentencePiece] = []
    specs: dict[int, dict[int, int | bytes]] = {3: {}}
    for field_number, value in _read_fields(data):
        if field_number == 1:
            fields = dict(_read_fields(_expect_bytes(value)))
            (score,) = struct.unpack("<f", _expect_bytes(fields.get(2, bytes(4))))
            pieces.append(
                SentencePiece(
                    _expect_bytes(fields[1]).decode("utf-8"),
                    score,
                    _expect_int(fields.get(3, NORMAL_PIECE)),
                )
            )
        elif field_number in (2, 3):
            specs[field_number] = dict(_read_fields(_expect_bytes(value)))
    trainer = specs[2]
    normalizer = specs[3]
    unk_id = _expect_int(trainer.get(40, 0))
    if not pieces or unk_id >= len(pieces):
        raise ValueError
    return SentencePieceModel(
        pieces,
        _expect_int(trainer.get(3, UNIGRAM_MODEL)),
        unk_id,
        _expect_bytes(normalizer.get(2, b"")),
    )


def _expect_int(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError
    return value


def _expect_bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError
    return value


def _read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (field number, value) of a message; a value is an integer or bytes."""
    position = 0
    while position < len(data):
        key, position = _read_varint(data, position)
        wire_type = key & 7
        if wire_type == 0:
            value, position = _read_varint(data, position)
            yield key >> 3, value
            continue
        if wire_type == 2:
            size, position = _read_varint(data, position)
        else:
            size = {1: 8, 5: 4}[wire_type]
        if position + size > len(data):
            raise ValueError
        yield key >> 3, data[position : position + size]
        position += size


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the variable-length integer at a position, and the position after it."""
    value = 0
    shift = 0
    while True:
        byte = data[position]
        value |= (byte & 127) << shift
        position += 1
        shift += 7
        if byte < 128:
            return value, position
        if shift > 63:
            raise ValueError
