"""Mutations of files: bytes, JSON values and the headers of safetensors files. Does not import torch."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

MAX_MUTATIONS = 4
HOSTILE_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63 - 1, 2**63, 10**30, -(2**63), 0.5, -0.0, 1e308,
    float("inf"), float("nan"), "", "x", "\x00", "\ud800", "../x", "/etc/passwd", "\x1b[31m", "a\nb",
    "x" * 10_000, [], {}, [[]], [None], [1, "a"], {"": None}, {"type": "x"}, {"type": None}, [0] * 1000,
    [2**40, 2**40], "float32", "F64", "I8", "(a+)+$", "[", "int8", "gelu", "bert", "qkv", "https://localhost/x",
)  # fmt: skip
HOSTILE_NUMBERS = (0, 1, 7, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Return the data with a few changes: bits, numbers, blocks, or its length."""
    for _ in range(rng.randint(1, MAX_MUTATIONS)):
        start = _draw_position(data, rng)
        end = min(len(data), start + rng.choice((1, 2, 8, 64, 1000)))
        match rng.randrange(8):
            case 0:
                data = data[:start]
            case 1:
                data = data[:start] + data[end:]
            case 2:
                data = data[:end] + data[start:end] * rng.choice((1, 2, 100)) + data[end:]
            case 3:
                data = data[:start] + rng.randbytes(end - start) + data[end:]
            case 4:
                data = (
                    data[:start]
                    + bytes([rng.choice((0, 255, 10, 32, 34, 123))])
                    + data[start + 1 :]
                )
            case 5:
                size = rng.choice((1, 2, 4, 8))
                number = rng.choice(HOSTILE_NUMBERS) % 2 ** (8 * size)
                data = data[:start] + number.to_bytes(size, "little") + data[start + size :]
            case 6:
                position = _draw_position(data, rng)
                data = data[:start] + data[position : position + end - start] + data[end:]
            case _:
                if start < len(data):
                    flipped = data[start] ^ (1 << rng.randrange(8))
                    data = data[:start] + bytes([flipped]) + data[start + 1 :]
    return data


def mutate_json(data: bytes, rng: random.Random) -> bytes:
    """Return a JSON file with a few changed, missing, additional or repeated values."""
    value = json.loads(data)
    for _ in range(rng.randint(1, MAX_MUTATIONS)):
        value = _mutate_value(value, rng)
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    if rng.random() < 0.1 and text.startswith("{") and len(text) > 2:
        name = rng.choice([*value]) if isinstance(value, dict) and value else "x"
        text = f"{{{json.dumps(name)}: {json.dumps(rng.choice(HOSTILE_VALUES))}, {text[1:]}"
    return text.encode("utf-8", errors="surrogatepass")


def mutate_safetensors(data: bytes, rng: random.Random) -> bytes:
    """Return a safetensors file with a changed header, whose length is right."""
    (length,) = struct.unpack("<Q", data[:8])
    header = mutate_json(data[8 : 8 + length], rng)
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


def mutate_file(name: str, data: bytes, rng: random.Random) -> bytes:
    """Return a mutation that fits the format of a file, or one of its bytes."""
    if rng.random() < 0.6:
        if name.endswith(".json"):
            return mutate_json(data, rng)
        if name.endswith(".safetensors"):
            return mutate_safetensors(data, rng)
    return mutate_bytes(data, rng)


def _draw_position(data: bytes, rng: random.Random) -> int:
    """Return a position, often near the start, where headers are."""
    end = len(data) if rng.random() < 0.5 else min(len(data), 400)
    return rng.randrange(end + 1)


def _mutate_value(value: Any, rng: random.Random) -> Any:
    """Return a JSON value with one change somewhere in it."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice([*value])
        match rng.randrange(8):
            case 0:
                return {name: item for name, item in value.items() if name != key}
            case 1:
                new_name = rng.choice(("x", "", "model_type", "dtype", "__proto__", key + "2"))
                return value | {new_name: rng.choice(HOSTILE_VALUES)}
            case 2:
                return value | {key: value[rng.choice([*value])]}
        return value | {key: _mutate_value(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        index = rng.randrange(len(value))
        match rng.randrange(5):
            case 0:
                return value[:index] + value[index + 1 :]
            case 1:
                return value[:index] + [value[index]] * rng.choice((2, 3, 50)) + value[index:]
        return [*value[:index], _mutate_value(value[index], rng), *value[index + 1 :]]
    if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.4:
        return value + rng.choice((-1, 1, 2, -value, value, 10**9))
    if rng.random() < 0.02:
        return json.loads("[" * 500 + "]" * 500)
    return rng.choice(HOSTILE_VALUES)
