"""Mutations of files: they depend on the seed alone, change the file, and keep its format."""

import json
import random
import struct

from tools.attack.mutate import mutate_bytes, mutate_file, mutate_json, mutate_safetensors

HEADER = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
FILES = {
    "a.json": b'{"a": [1, 2, {"b": null}], "c": "d", "e": 1.5}',
    "a.safetensors": struct.pack("<Q", len(HEADER)) + HEADER + bytes(8),
    "a.txt": b"the cat sat on the mat\n" * 5,
}


def test_a_mutation_depends_on_the_seed_alone() -> None:
    for name, data in FILES.items():
        mutations = [mutate_file(name, data, random.Random(seed)) for seed in range(50)]
        assert mutations == [mutate_file(name, data, random.Random(seed)) for seed in range(50)]
        assert sum(mutation != data for mutation in mutations) > 45
        assert len({*mutations}) > 40


def test_json_stays_json() -> None:
    for seed in range(200):
        json.loads(
            mutate_json(FILES["a.json"], random.Random(seed)).decode("utf-8", "surrogatepass")
        )


def test_a_header_has_the_right_length() -> None:
    for seed in range(100):
        data = mutate_safetensors(FILES["a.safetensors"], random.Random(seed))
        (length,) = struct.unpack("<Q", data[:8])
        json.loads(data[8 : 8 + length].decode("utf-8", "surrogatepass"))
        assert data[8 + length :] == bytes(8)


def test_bytes_of_an_empty_file() -> None:
    for seed in range(100):
        mutate_bytes(b"", random.Random(seed))
