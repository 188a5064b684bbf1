"""Mutations of files: bytes, JSON values, headers, and members of archives. Does not import torch."""

from __future__ import annotations

import gzip
import io
import json
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

Mutation = Callable[[bytes, random.Random], bytes]

MAX_CHANGES = 4
HOSTILE_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 2**31, 2**63 - 1, 2**63, 10**30, -(2**63), 0.5, -0.0, 1e308,
    float("inf"), float("nan"), "", "x", "\x00", "\ud800", "../x", "/etc/passwd", "\x1b[31m", "a\nb",
    "x" * 10_000, [], {}, [[]], [None], [1, "a"], {"": None}, {"type": "x"}, {"Regex": "(a+)+$"},
    {"String": ""}, [0] * 1000, [2**40, 2**40], "float32", "F64", "(a+)+$", "[", "int8", "gelu", "bert",
    "https://localhost/x", {"a": {"a": {"a": {}}}},
)  # fmt: skip
HOSTILE_NUMBERS = (0, 1, 7, 127, 255, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
HOSTILE_WORDS = (
    b"9" * 5000, b"1e999", b"nan", b"-1", b"[" * 2000, b"{" * 2000, b'"', b"'", b",", b"\t", b"\0",
    b"\r\n", b"\n\n", b"=", b"#", b"\xff\xfe", b"\xef\xbb\xbf", b"../../x", b"a." * 200, b"\\u0000",
    b"<s>", b"\xe2\x96\x81", b" " * 3000,
)  # fmt: skip


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Change bits, numbers, blocks or the length."""
    for _ in range(rng.randint(1, MAX_CHANGES)):
        start = _draw_position(data, rng)
        end = min(len(data), start + rng.choice((1, 2, 8, 64, 1000)))
        number = rng.choice(HOSTILE_NUMBERS)
        size = rng.choice((1, 2, 4, 8))
        encoded = (number % 256**size).to_bytes(size, rng.choice(("little", "big")))
        block = _draw_position(data, rng)
        data = rng.choice(
            (
                data[:start],
                data[:start] + data[end:],
                data[:end] + data[start:end] * rng.choice((1, 2, 100)) + data[end:],
                data[:start] + rng.randbytes(end - start) + data[end:],
                data[:start] + encoded + data[start + size :],
                data[:start] + data[block : block + end - start] + data[end:],
                data[:start] + bytes([rng.randrange(256)]) + data[start + 1 :],
            )
        )
    return data


def mutate_text(data: bytes, rng: random.Random) -> bytes:
    """Insert or repeat words and lines, or remove them."""
    for _ in range(rng.randint(1, MAX_CHANGES)):
        lines = data.split(b"\n")
        index = rng.randrange(len(lines))
        position = rng.randrange(len(lines[index]) + 1)
        word = rng.choice(HOSTILE_WORDS)
        changed = rng.choice(
            (
                lines[index][:position] + word + lines[index][position:],
                lines[index][:position] + word,
                word + lines[index][position:],
                b"\n".join([lines[index]] * rng.choice((2, 50))),
                b"",
                rng.choice(lines),
            )
        )
        data = b"\n".join([*lines[:index], changed, *lines[index + 1 :]])
    return data


def mutate_json(data: bytes, rng: random.Random) -> bytes:
    """Change, remove, add or repeat values of a JSON file."""
    value = json.loads(data)
    for _ in range(rng.randint(1, MAX_CHANGES)):
        value = _mutate_value(value, rng)
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    if rng.random() < 0.1 and isinstance(value, dict) and value:
        key = json.dumps(rng.choice([*value]))
        text = f"{{{key}: {json.dumps(rng.choice(HOSTILE_VALUES))}, {text[1:]}"
    return text.encode("utf-8", errors="surrogatepass")


def mutate_safetensors(data: bytes, rng: random.Random) -> bytes:
    """Change the header of a safetensors file; its length is right."""
    (length,) = struct.unpack("<Q", data[:8])
    header = mutate_json(data[8 : 8 + length], rng)
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


def mutate_zip(data: bytes, rng: random.Random) -> bytes:
    """Change one member of a zip file, whose checksums are right, or the compression."""
    result = io.BytesIO()
    compression = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(result, "w", compression) as new:
        names = old.namelist()
        pickles = [name for name in names if name.endswith(".pkl")]
        chosen = rng.choice(pickles if pickles and rng.random() < 0.7 else names)
        for name in names:
            content = old.read(name)
            new.writestr(name, mutate_bytes(content, rng) if name == chosen else content)
    return result.getvalue()


def mutate_gzip(data: bytes, rng: random.Random) -> bytes:
    """Change the content of a gzip file."""
    return gzip.compress(mutate_text(gzip.decompress(data), rng), 1)


def mutate_png(data: bytes, rng: random.Random) -> bytes:
    """Change the content of a chunk of a PNG file, whose checksum is right."""
    chunks = []
    position = 8
    while position + 8 <= len(data):
        (size,) = struct.unpack(">I", data[position : position + 4])
        chunks.append((data[position + 4 : position + 8], data[position + 8 : position + 8 + size]))
        position += 12 + size
    index = rng.randrange(len(chunks))
    kind, content = chunks[index]
    if kind == b"IDAT" and rng.random() < 0.5:
        content = zlib.compress(mutate_bytes(zlib.decompress(content), rng))
    else:
        content = mutate_bytes(content, rng)
    if rng.random() < 0.2:
        kind = rng.choice((b"iTXt", b"zTXt", b"iCCP", b"eXIf", b"fcTL", b"acTL", b"PLTE", b"tRNS"))
    chunks[index] = (kind, content)
    encoded = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )
    return data[:8] + b"".join(encoded)


MUTATIONS_BY_SUFFIX: dict[str, Mutation] = {
    ".json": mutate_json, ".safetensors": mutate_safetensors, ".bin": mutate_zip, ".pt": mutate_zip,
    ".npz": mutate_zip, ".gz": mutate_gzip, ".png": mutate_png,
    **dict.fromkeys((".txt", ".csv", ".tsv", ".jsonl", ".conll", ".toml", ".yml", ".bpe"), mutate_text),
}  # fmt: skip


def mutate_file(name: str, data: bytes, rng: random.Random) -> bytes:
    """Change a file by the rules of its format, or its bytes."""
    mutation = MUTATIONS_BY_SUFFIX.get(name[name.rfind(".") :], mutate_bytes)
    if mutation is not mutate_bytes and rng.random() < 0.65:
        try:
            return mutation(data, rng)
        except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error, RecursionError):
            pass  # the file has another format than its suffix says
    return mutate_bytes(data, rng)


def _draw_position(data: bytes, rng: random.Random) -> int:
    """Return a position, often near the start, where headers are."""
    end = len(data) if rng.random() < 0.5 else min(len(data), 400)
    return rng.randrange(end + 1)


def _mutate_value(value: Any, rng: random.Random) -> Any:
    """Return a JSON value with one change somewhere in it."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice([*value])
        choice = rng.randrange(8)
        if choice == 0:
            return {name: item for name, item in value.items() if name != key}
        if choice == 1:
            new_name = rng.choice(("x", "", "model_type", "auto_map", "type", f"{key}2"))
            return value | {new_name: rng.choice(HOSTILE_VALUES)}
        if choice == 2:
            return value | {key: value[rng.choice([*value])]}
        return value | {key: _mutate_value(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        index = rng.randrange(len(value))
        choice = rng.randrange(5)
        if choice == 0:
            return value[:index] + value[index + 1 :]
        if choice == 1:
            return value[:index] + [value[index]] * rng.choice((2, 3, 50)) + value[index:]
        return [*value[:index], _mutate_value(value[index], rng), *value[index + 1 :]]
    if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.4:
        return value + rng.choice((-1, 1, 2, -value, value, 10**9))
    if rng.random() < 0.02:
        return json.loads("[" * 500 + "]" * 500)
    return rng.choice(HOSTILE_VALUES)
