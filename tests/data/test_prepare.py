"""Preparation of shards: byte for byte the same for any number of workers and interruptions."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from qkv.data.store.shards import SHARD_INDEX_FILE, ShardIndex, Shards
from qkv.data.store.workers import map_in_order
from tests.conftest import ROOT
from tests.support.errors import assert_error
from tests.support.shards import (
    TEXTS,
    encode_bytes,
    exit_process,
    prepare,
    raise_error,
    read_files,
    sample_texts,
)


def double(number: int) -> int:
    return 2 * number


@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_write_the_same_bytes(
    num_workers: int, finished_folder: Path, tmp_path: Path
) -> None:
    prepare(tmp_path, iter(TEXTS), num_workers=num_workers)
    assert read_files(tmp_path) == read_files(finished_folder)


def test_progress_counts_documents_and_tokens(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    shards = prepare(
        tmp_path, TEXTS, progress=lambda documents, tokens: calls.append((documents, tokens))
    )
    assert calls == sorted(calls)
    assert calls[-1] == (len(shards), shards.count_tokens())
    assert len(calls) > 3


def test_finished_shards_are_reused(finished_folder: Path) -> None:
    before = read_files(finished_folder)
    shards = prepare(finished_folder, raise_error, raise_error, num_workers=2)  # neither is called
    assert len(shards) == len(TEXTS)
    assert read_files(finished_folder) == before


@pytest.mark.parametrize(
    "options",
    [
        dict(provenance={"corpus": "2"}),
        dict(field_sizes={"tokens": 2**17}),
        dict(shard_tokens=2**19),
    ],
)
def test_other_options_replace_the_shards(
    options: dict[str, Any], copied_folder: Path, tmp_path: Path
) -> None:
    (copied_folder / "other.txt").write_text("stays")
    texts = sample_texts(1000, seed=1)
    shards = prepare(copied_folder, texts, **options)
    assert len(shards) == 1000
    prepare(tmp_path / "fresh", texts, **options)
    files = read_files(copied_folder)
    assert files.pop("other.txt") == b"stays"
    assert files == read_files(tmp_path / "fresh")


def test_an_interrupted_run_is_continued(finished_folder: Path, tmp_path: Path) -> None:
    """Interrupted in the third shard, it has two; the next run encodes only the rest."""
    batch_sizes: list[int] = []

    def read_interrupted(texts: list[str]) -> Iterator[str]:
        yield from texts[:18_000]
        raise KeyboardInterrupt

    def encode_and_count(texts: list[str]) -> list[dict[str, list[int]]]:
        batch_sizes.append(len(texts))
        return encode_bytes(texts)

    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path, read_interrupted(TEXTS))
    index = ShardIndex.read(tmp_path)
    assert index is not None
    assert not index.is_complete
    assert len(index.shards) >= 2
    assert_error(
        lambda: Shards.open(tmp_path),
        tmp_path,
        f"{len(index.shards)} shards",
        "interrupted",
        "again",
    )
    prepare(tmp_path, TEXTS, encode_and_count)
    assert sum(batch_sizes) == len(TEXTS) - index.num_documents
    assert read_files(tmp_path) == read_files(finished_folder)


def test_fewer_texts_than_before_are_an_error(tmp_path: Path) -> None:
    def read_interrupted() -> Iterator[str]:
        yield from TEXTS
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path, read_interrupted())
    assert_error(lambda: prepare(tmp_path, TEXTS[:5]), tmp_path, "only 5", "changed")


PREPARE_SLOWLY = """
import sys
from pathlib import Path
from tests.support.shards import TEXTS, encode_slowly, prepare

prepare(Path(sys.argv[1]), TEXTS, encode_slowly, num_workers=int(sys.argv[2]))
"""


@contextmanager
def start_process(
    folder: Path, log_folder: Path, num_workers: int
) -> Iterator[subprocess.Popen[bytes]]:
    """Prepare the folder in another process, which is killed at the end of the context."""
    log_folder.mkdir(exist_ok=True)
    command = [sys.executable, "-c", PREPARE_SLOWLY, str(folder), str(num_workers)]
    environment = {**os.environ, "LOG_FOLDER": str(log_folder)}
    with subprocess.Popen(command, cwd=ROOT, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.005)


def count_batches(log_folder: Path) -> int:
    return sum(path.stat().st_size for path in log_folder.iterdir())


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="needs /proc to see which processes run"
)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_killed_run_is_continued(num_workers: int, finished_folder: Path, tmp_path: Path) -> None:
    """A run that is killed several times writes the same bytes, and its workers exit with it."""
    folder = tmp_path / "shards"
    log_folder = tmp_path / "log"
    log_folder.mkdir()
    num_shards = []
    num_partial = 0
    for num_batches in (3, 14, 4):  # a shard takes seven batches; at most five are pending
        stop = count_batches(log_folder) + num_batches
        with start_process(folder, log_folder, num_workers) as process:
            wait_until(lambda: count_batches(log_folder) >= stop or process.poll() is not None)  # noqa: B023
        wait_until(lambda: not any(is_running(int(path.name)) for path in log_folder.iterdir()))
        index = ShardIndex.read(folder)
        assert index is not None
        num_shards.append(len(index.shards))
        num_partial += any(path.suffix == ".tmp" for path in folder.iterdir())
    assert num_shards == sorted(num_shards)
    assert num_shards[-1]
    assert num_partial
    modified = (folder / "00000.tokens.bin").stat().st_mtime_ns
    prepare(folder, TEXTS)
    assert (folder / "00000.tokens.bin").stat().st_mtime_ns == modified
    assert read_files(folder) == read_files(finished_folder)


def test_two_processes_at_once_are_an_error(finished_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    log_folder = tmp_path / "log"
    with start_process(folder, log_folder, 0) as process:
        wait_until(lambda: count_batches(log_folder))
        assert_error(lambda: prepare(folder, TEXTS), folder, f"process {process.pid}", "wait")
        assert process.wait(30) == 0
    prepare(folder, raise_error)
    assert read_files(folder) == read_files(finished_folder)


MEASURE_MEMORY = """
import resource, sys
from pathlib import Path
from tests.support.shards import encode_quickly, prepare

def get_peak_memory():
    targets = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    return max(resource.getrusage(target).ru_maxrss for target in targets) >> 10

def make_texts(count):
    return (f"{n:09} " * 100 for n in range(count))

folder = Path(sys.argv[1])
options = dict(num_workers=int(sys.argv[2]), shard_tokens=2**24)
prepare(folder / "small", make_texts(20_000), encode_quickly, **options)
before = get_peak_memory()
shards = prepare(folder / "large", make_texts(200_000), encode_quickly, **options)
print(shards.count_tokens(), get_peak_memory() - before)
"""


@pytest.mark.parametrize("num_workers", [0, 2])
def test_memory_does_not_grow_with_the_text(num_workers: int, tmp_path: Path) -> None:
    """Ten times the text, 200 MB, needs no more memory."""
    command = [sys.executable, "-c", MEASURE_MEMORY, str(tmp_path), str(num_workers)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    num_tokens, growth = map(int, result.stdout.split())
    assert num_tokens == 200_000_000
    assert growth < 20, f"{growth} MB more"


ENCODE_ERRORS: list[tuple[Any, dict[str, int], str]] = [
    (raise_error, {"tokens": 256}, "cannot encode: abc"),
    (encode_bytes, {"tokens": 99},  "'tokens' 99 98"),
    (encode_bytes, {"source": 256}, "'source' tokens"),
]  # fmt: skip


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(("encode", "fields", "words"), ENCODE_ERRORS)
def test_errors_of_the_encoder_are_reported(
    encode: Any, fields: dict[str, int], words: str, num_workers: int, tmp_path: Path
) -> None:
    assert_error(
        lambda: prepare(tmp_path, ["abc"], encode, field_sizes=fields, num_workers=num_workers),
        *words.split(),
    )
    assert prepare(tmp_path, ["abc"], num_workers=num_workers).count_tokens() == 3


def test_bad_arguments_are_errors(tmp_path: Path) -> None:
    assert_error(lambda: prepare(tmp_path, [], encode_bytes), tmp_path, "no texts")
    assert_error(
        lambda: prepare(tmp_path, ["a", "b"], lambda texts: encode_bytes(texts)[:1]), "1 rows for 2"
    )
    assert_error(
        lambda: prepare(tmp_path, ["a"], lambda texts: [{"tokens": [-1]}]), "id -1", "0 to 255"
    )
    assert_error(
        lambda: prepare(tmp_path, ["a"], lambda texts: encode_bytes(texts), num_workers=1),
        "processes",
        "num_workers=0",
    )
    assert_error(
        lambda: prepare(tmp_path, ["a"], exit_process, num_workers=1),
        "worker process ended",
        "memory",
    )
    assert_error(lambda: prepare(tmp_path, ["a"], field_sizes={}), "field_sizes {}")
    assert_error(lambda: prepare(tmp_path, ["a"], field_sizes={"a.b": 5}), "a.b")
    assert_error(lambda: prepare(tmp_path, ["a"], field_sizes={"a": 0}), "'a': 0", "2**32")
    assert_error(lambda: prepare(tmp_path, ["a"], field_sizes={"a": 2**33}), 2**33)
    assert_error(lambda: prepare(tmp_path, ["a"], shard_tokens=0), "shard_tokens 0")
    assert_error(lambda: prepare(tmp_path, ["a"], num_workers=-1), "num_workers -1")
    (tmp_path / "file").write_text("content")
    assert_error(lambda: prepare(tmp_path / "file", ["a"]), tmp_path / "file", error=OSError)
    assert_error(lambda: Shards.open(tmp_path / "file"), tmp_path / "file", SHARD_INDEX_FILE)


def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limit[1]))
    try:
        assert_error(
            lambda: prepare(tmp_path, TEXTS), tmp_path, "not finished", "too large", error=OSError
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    assert len(prepare(tmp_path, TEXTS)) == len(TEXTS)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_results_come_in_order(num_workers: int) -> None:
    consumed: list[int] = []

    def read_numbers() -> Iterator[int]:
        for number in range(50):
            consumed.append(number)
            yield number

    results = map_in_order(double, read_numbers(), num_workers)
    assert next(results) == 0
    assert len(consumed) <= 1 + 2 * num_workers  # only a few batches are read ahead
    assert list(results) == [2 * number for number in range(1, 50)]
