"""Token shards hold what was encoded; damaged files are errors of one line, and are repaired."""

import json
import os
import pickle
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.data.store.shards import SHARD_INDEX_FILE, Shards
from tests.support.errors import assert_error
from tests.support.shards import TEXTS, prepare, read_files, sample_texts


def encode_pairs(records: list[Mapping[str, str]]) -> list[dict[str, Any]]:
    return [
        {
            "source": list(r["de"].encode()),
            "target": np.array(list(r["en"].encode())) + 70_000,
            "label": [n % 2],
        }
        for n, r in enumerate(records)
    ]


def test_documents_and_token_ranges_are_those_encoded(finished_folder: Path) -> None:
    shards = Shards.open(finished_folder)
    assert len(shards.index.shards) >= 3
    assert len(shards) == len(TEXTS)
    for i, text in enumerate(TEXTS):
        ids = np.frombuffer(text.encode(), np.uint8)
        assert shards.get_document(i).tobytes() == ids.tobytes()
    stream = np.frombuffer("".join(TEXTS).encode(), np.uint8)
    assert shards.count_tokens() == len(stream)
    rng = random.Random(0)
    for _ in range(300):
        start = rng.randrange(len(stream))
        stop = min(len(stream), start + rng.choice([0, 1, 100, 10**6, 10**7]))
        tokens = shards.get_token_range(start, stop)
        assert tokens.dtype == np.uint8
        assert np.array_equal(tokens, stream[start:stop])
    assert np.array_equal(shards.get_token_range(0, len(stream)), stream)
    assert len(shards.get_token_range(len(stream), len(stream))) == 0
    assert shards.lengths().tolist() == [len(text.encode()) for text in TEXTS]


def test_views_copy_nothing(finished_folder: Path) -> None:
    shards = Shards.open(finished_folder)
    for view in (shards.get_token_range(5, 900_000), shards.get_document(5)):
        assert not view.flags.owndata
        assert not view.flags.writeable
    pickled = pickle.dumps(shards)
    assert len(pickled) < 1000
    assert np.array_equal(pickle.loads(pickled).get_token_range(0, 9), shards.get_token_range(0, 9))


@pytest.mark.parametrize("index", [-1, len(TEXTS)])
def test_an_unknown_document_is_an_error(index: int, finished_folder: Path) -> None:
    shards = Shards.open(finished_folder)
    assert_error(lambda: shards.get_document(index), index, len(TEXTS) - 1, error=IndexError)


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 4), (0, 10**9)])
def test_an_unknown_token_range_is_an_error(start: int, stop: int, finished_folder: Path) -> None:
    shards = Shards.open(finished_folder)
    assert_error(
        lambda: shards.get_token_range(start, stop),
        start,
        stop,
        shards.count_tokens(),
        error=IndexError,
    )


def test_an_unknown_field_is_an_error(finished_folder: Path) -> None:
    shards = Shards.open(finished_folder)
    assert_error(lambda: shards.count_tokens("source"), finished_folder, "'source'", "tokens")
    assert_error(lambda: shards.lengths("source"), finished_folder, "'source'", "tokens")
    assert_error(lambda: shards.get_document(0, "source"), finished_folder, "'source'", "tokens")
    assert_error(
        lambda: shards.get_token_range(0, 1, "source"), finished_folder, "'source'", "tokens"
    )


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_document_may_have_several_fields(num_workers: int, tmp_path: Path) -> None:
    records = [{"de": text, "en": text[::-1]} for text in sample_texts(300)]
    sizes = {"source": 2**16, "target": 2**16 + 5000, "label": 2}
    shards = prepare(
        tmp_path,
        records,
        encode_pairs,
        field_sizes=sizes,
        num_workers=num_workers,
        shard_tokens=50_000,
    )
    assert dict(shards.field_sizes) == sizes
    assert [shards.get_fields(0)[field].dtype.str for field in sizes] == ["<u2", "<u4", "|u1"]
    for i, record in enumerate(records):
        fields = shards.get_fields(i)
        assert fields["source"].tolist() == list(record["de"].encode())
        assert (fields["target"] - 70_000).tolist() == list(record["en"].encode())
        assert len(fields["label"]) == 1
    assert shards.count_tokens("label") == len(shards) == 300
    assert_error(shards.count_tokens, "'tokens'", "source, target, label")


def test_a_field_may_be_empty(tmp_path: Path) -> None:
    shards = prepare(tmp_path, ["", ""])
    assert len(shards) == 2
    assert shards.count_tokens() == 0
    assert len(shards.get_document(1)) == 0
    assert len(shards.get_token_range(0, 0)) == 0


@pytest.mark.parametrize(
    ("size", "dtype", "width"),
    [
        (2**8, "|u1", 1),
        (2**8 + 1, "<u2", 2),
        (2**16, "<u2", 2),
        (2**16 + 1, "<u4", 4),
        (2**32, "<u4", 4),
    ],
)
def test_ids_take_one_two_or_four_bytes(size: int, dtype: str, width: int, tmp_path: Path) -> None:
    def encode_largest_id(texts: list[str]) -> list[dict[str, list[int]]]:
        return [{"tokens": [0, size - 1]} for _ in texts]

    shards = prepare(tmp_path, ["x"], encode_largest_id, field_sizes={"tokens": size})
    assert shards.get_document(0).dtype.str == dtype
    assert shards.get_document(0).tolist() == [0, size - 1]
    assert (tmp_path / "00000.tokens.bin").read_bytes() == b"".join(
        n.to_bytes(width, "little") for n in (0, size - 1)
    )
    assert (tmp_path / "00000.tokens.idx").read_bytes() == b"".join(
        n.to_bytes(8, "little") for n in (0, 2)
    )


INDEX = SHARD_INDEX_FILE
# How to damage a folder of shards, and the words of the error (~ is a space).
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder":         (shutil.rmtree,                                        "shards.json"),
    "no index":          (lambda f: (f / INDEX).unlink(),                       "shards.json"),
    "truncated ids":     (lambda f: os.truncate(f / "00001.tokens.bin", 999),   "00001.tokens.bin 999"),
    "long ids":          (lambda f: os.truncate(f / "00000.tokens.bin", 2**24), "00000.tokens.bin 16777216"),
    "no ids":            (lambda f: (f / "00001.tokens.bin").unlink(),          "00001.tokens.bin missing"),
    "truncated offsets": (lambda f: os.truncate(f / "00000.tokens.idx", 8),     "00000.tokens.idx 8"),
    "no offsets":        (lambda f: (f / "00002.tokens.idx").unlink(),          "00002.tokens.idx missing"),
    "two shards":        (lambda f: empty_offsets(f, 0, 2),                     "00000.tokens 00002.tokens"),
    "truncated index":   (lambda f: os.truncate(f / INDEX, 99),                 "shards.json index"),
    "empty index":       (lambda f: os.truncate(f / INDEX, 0),                  "shards.json index"),
    "binary index":      (lambda f: (f / INDEX).write_bytes(b"\xff\0"),         "shards.json index"),
    "another index":     (lambda f: (f / INDEX).write_text("[1]"),              "shards.json index"),
    "later format":      (lambda f: change_index(f, format=4),                  "shards.json format~4"),
    "format of 0.2":     (lambda f: change_index(f, format=1),                  "shards.json format~1"),
    "earlier format":    (lambda f: change_index(f, format=2),                  "shards.json format~2"),
    "other fields":      (lambda f: change_index(f, field_sizes={"x": 5}),      "shards.json field"),
    "unknown key":       (lambda f: change_index(f, rocket=5),                  "shards.json rocket"),
}  # fmt: skip


def empty_offsets(folder: Path, *shard_indices: int) -> None:
    for shard_index in shard_indices:
        os.truncate(folder / f"{shard_index:05}.tokens.idx", 0)


def change_index(folder: Path, **values: Any) -> None:
    path = folder / SHARD_INDEX_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("case", DAMAGES)
def test_damaged_shards_are_errors(case: str, copied_folder: Path) -> None:
    damage, words = DAMAGES[case]
    Shards.open(copied_folder)
    damage(copied_folder)
    assert_error(
        lambda: Shards.open(copied_folder),
        copied_folder,
        *(word.replace("~", " ") for word in words.split()),
    )


@pytest.mark.parametrize(
    "case", ["truncated ids", "no ids", "truncated offsets", "no offsets", "two shards", "long ids"]
)
def test_prepare_repairs_damaged_shards(
    case: str, copied_folder: Path, finished_folder: Path
) -> None:
    DAMAGES[case][0](copied_folder)
    prepare(copied_folder, TEXTS)
    assert read_files(copied_folder) == read_files(finished_folder)


def test_prepare_keeps_an_unreadable_index(copied_folder: Path) -> None:
    (copied_folder / SHARD_INDEX_FILE).write_text("[1]")
    assert_error(lambda: prepare(copied_folder, TEXTS), copied_folder, SHARD_INDEX_FILE, "remove")
    assert (copied_folder / SHARD_INDEX_FILE).read_text() == "[1]"
