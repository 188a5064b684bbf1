"""SentencePiece: the pieces, scores and rules in a .model or .spm file. Knows no tokenizer.

The file is one protocol-buffer message (sentencepiece_model.proto); the few fields wanted here are read from
the bytes themselves.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from qkv.text.files import DAMAGED

NORMAL, UNKNOWN, CONTROL, USER = 1, 2, 3, 4  # kinds of piece
UNIGRAM, BPE = 1, 2  # kinds of model


@dataclass(frozen=True)
class Piece:
    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class Pieces:
    """What a SentencePiece model holds."""

    pieces: list[Piece]
    model: int
    unk: int
    charsmap: bytes  # the normaliser, compiled; empty: none

    def marked(self) -> list[Piece]:
        """Pieces that are matched whole, before the text is cut."""
        return [piece for piece in self.pieces if piece.kind in (CONTROL, USER)]


def read(data: bytes, path: Path) -> Pieces:
    """The model in these bytes; the path is for complaints."""
    try:
        return _model(data)
    except (ValueError, KeyError, IndexError, struct.error):
        raise ValueError(f"{path}: not a SentencePiece model; {DAMAGED}") from None


def _model(data: bytes) -> Pieces:
    pieces: list[Piece] = []
    specs: dict[int, dict[int, int | bytes]] = {3: {}}
    for number, value in _fields(data):
        if number == 1:
            piece = dict(_fields(_bytes(value)))
            (score,) = struct.unpack("<f", _bytes(piece.get(2, bytes(4))))
            pieces.append(Piece(_bytes(piece[1]).decode("utf-8"), score, _int(piece.get(3, NORMAL))))
        elif number in (2, 3):
            specs[number] = dict(_fields(_bytes(value)))
    trainer, normalizer = specs[2], specs[3]
    unk = _int(trainer.get(40, 0))
    if not pieces or unk >= len(pieces):
        raise ValueError
    return Pieces(pieces, _int(trainer.get(3, UNIGRAM)), unk, _bytes(normalizer.get(2, b"")))


def _int(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError
    return value


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError
    return value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: a number each, and an integer or the bytes of anything else."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        kind, value, size = key & 7, 0, 0
        if kind == 0:
            value, place = _varint(data, place)
            yield key >> 3, value
            continue
        if kind == 2:
            size, place = _varint(data, place)
        else:
            size = {1: 8, 5: 4}[kind]
        if place + size > len(data):
            raise ValueError
        yield key >> 3, data[place : place + size]
        place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """Seven bits a byte, the lowest first."""
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
        if shift > 63:
            raise ValueError
