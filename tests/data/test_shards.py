"""Shards hold what was encoded, byte for byte the same for any number of workers and interruptions;
damaged files and concurrent runs are errors."""

import json
import os
import pickle
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.data.store.prepare import prepare_shards
from qkv.data.store.shards import (
    SHARD_INDEX_FILE,
    ShardIndex,
    Shards,
)
from qkv.data.store.workers import map_in_order

ROOT = Path(__file__).resolve().parent.parent.parent
BYTE_FIELDS = {"tokens": 256}


def encode_bytes(texts: list[str]) -> list[dict[str, list[int]]]:
    """Encode texts as their bytes."""
    return [{"tokens": list(text.encode())} for text in texts]


def encode_slowly(texts: list[str]) -> list[dict[str, list[int]]]:
    """Encode slowly enough to be killed; each process logs its batches."""
    time.sleep(0.05)
    with (Path(os.environ["LOG_FOLDER"]) / str(os.getpid())).open("a") as file:
        file.write(".")
    return encode_bytes(texts)


def encode_pairs(records: list[Mapping[str, str]]) -> list[dict[str, Any]]:
    return [
        {
            "source": list(r["de"].encode()),
            "target": np.array(list(r["en"].encode())) + 70_000,
            "label": [n % 2],
        }
        for n, r in enumerate(records)
    ]


def exit_process(texts: list[str]) -> list[dict[str, list[int]]]:
    os._exit(1)


def raise_error(texts: list[str]) -> list[dict[str, list[int]]]:
    raise ValueError(f"cannot encode: {texts[0]}")


def encode_quickly(texts: list[str]) -> list[dict[str, np.ndarray[Any, Any]]]:
    return [{"tokens": np.frombuffer(text.encode(), np.uint8)} for text in texts]


def double(number: int) -> int:
    return 2 * number


def sample_texts(count: int, seed: int = 0) -> list[str]:
    """Return texts of many lengths, some of them empty."""
    rng = random.Random(seed)
    return ["".join(rng.choices("abcdeé ", k=rng.choice([0, 3, 40, 600]))) for _ in range(count)]


def prepare(folder: Path, texts: Any, encode: Any = encode_bytes, **options: Any) -> Shards:
    defaults: dict[str, Any] = dict(
        field_sizes=BYTE_FIELDS, provenance={"corpus": "1"}, shard_tokens=2**20
    )
    return prepare_shards(texts, encode, folder, **defaults | options)


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}


def check_error(
    function: Callable[[], object], *words: object, error: type[Exception] = ValueError
) -> None:
    """Check that the function raises an error of one line that contains all words."""
    with pytest.raises(error) as raised:
        function()
    message = str(raised.value)
    assert message.isprintable(), "more than one line"
    missing = [word for word in words if str(word) not in message]
    assert not missing, f"{missing} not in: {message}"


TEXTS = sample_texts(20_000)  # about 3 MB: 20 batches, three shards


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of finished shards; tests must not change it."""
    folder = tmp_path_factory.mktemp("shards") / "deep" / "finished"
    prepare(folder, TEXTS)
    return folder


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished shards, which tests may damage."""
    folder = tmp_path / "copied"
    folder.mkdir()
    for name, content in read_files(finished).items():
        (folder / name).write_bytes(content)
    return folder


# --- content --------------------------------------------------------------------------------------


def test_documents_and_token_ranges(finished: Path) -> None:
    shards = Shards.open(finished)
    assert len(shards.index.shards) >= 3
    assert len(shards) == len(TEXTS)
    for i, text in enumerate(TEXTS):
        ids = np.frombuffer(text.encode(), np.uint8).astype("<u2")
        assert shards.get_document(i).tobytes() == ids.tobytes()
    stream = np.frombuffer("".join(TEXTS).encode(), np.uint8)
    assert shards.count_tokens() == len(stream)
    rng = random.Random(0)
    for _ in range(300):
        start = rng.randrange(len(stream))
        stop = min(len(stream), start + rng.choice([0, 1, 100, 10**6, 10**7]))
        tokens = shards.get_token_range(start, stop)
        assert tokens.dtype == np.dtype("<u2")
        assert np.array_equal(tokens, stream[start:stop])
    assert np.array_equal(shards.get_token_range(0, len(stream)), stream)
    assert len(shards.get_token_range(len(stream), len(stream))) == 0
    assert shards.lengths().tolist() == [len(text.encode()) for text in TEXTS]


def test_views_copy_nothing(finished: Path) -> None:
    shards = Shards.open(finished)
    for view in (shards.get_token_range(5, 900_000), shards.get_document(5)):
        assert not view.flags.owndata
        assert not view.flags.writeable
    pickled = pickle.dumps(shards)
    assert len(pickled) < 1000
    assert np.array_equal(pickle.loads(pickled).get_token_range(0, 9), shards.get_token_range(0, 9))


@pytest.mark.parametrize("index", [-1, len(TEXTS)])
def test_no_such_document(index: int, finished: Path) -> None:
    shards = Shards.open(finished)
    check_error(lambda: shards.get_document(index), index, len(TEXTS) - 1, error=IndexError)


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 4), (0, 10**9)])
def test_no_such_token_range(start: int, stop: int, finished: Path) -> None:
    shards = Shards.open(finished)
    check_error(
        lambda: shards.get_token_range(start, stop),
        start,
        stop,
        shards.count_tokens(),
        error=IndexError,
    )


def test_no_such_field(finished: Path) -> None:
    shards = Shards.open(finished)
    check_error(lambda: shards.count_tokens("source"), finished, "'source'", "tokens")
    check_error(lambda: shards.lengths("source"), finished, "'source'", "tokens")
    check_error(lambda: shards.get_document(0, "source"), finished, "'source'", "tokens")
    check_error(lambda: shards.get_token_range(0, 1, "source"), finished, "'source'", "tokens")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_several_fields(num_workers: int, tmp_path: Path) -> None:
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
    assert [shards.get_fields(0)[field].dtype.str for field in sizes] == ["<u2", "<u4", "<u2"]
    for i, record in enumerate(records):
        fields = shards.get_fields(i)
        assert fields["source"].tolist() == list(record["de"].encode())
        assert (fields["target"] - 70_000).tolist() == list(record["en"].encode())
        assert len(fields["label"]) == 1
    assert shards.count_tokens("label") == len(shards) == 300
    check_error(shards.count_tokens, "'tokens'", "source, target, label")


def test_a_field_that_is_empty(tmp_path: Path) -> None:
    shards = prepare(tmp_path, ["", ""])
    assert len(shards) == 2
    assert shards.count_tokens() == 0
    assert len(shards.get_document(1)) == 0
    assert len(shards.get_token_range(0, 0)) == 0


@pytest.mark.parametrize(
    ("size", "dtype", "width"), [(2**16, "<u2", 2), (2**16 + 1, "<u4", 4), (2**32, "<u4", 4)]
)
def test_ids_take_two_bytes_or_four(size: int, dtype: str, width: int, tmp_path: Path) -> None:
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


# --- workers and interruptions --------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_change_nothing(num_workers: int, finished: Path, tmp_path: Path) -> None:
    prepare(tmp_path, iter(TEXTS), num_workers=num_workers)
    assert read_files(tmp_path) == read_files(finished)


def test_progress(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    shards = prepare(
        tmp_path, TEXTS, progress=lambda documents, tokens: calls.append((documents, tokens))
    )
    assert calls == sorted(calls)
    assert calls[-1] == (len(shards), shards.count_tokens())
    assert len(calls) > 3


def test_finished_shards_are_reused(finished: Path) -> None:
    before = read_files(finished)
    shards = prepare(finished, raise_error, raise_error, num_workers=2)  # neither is called
    assert len(shards) == len(TEXTS)
    assert read_files(finished) == before


@pytest.mark.parametrize(
    "options",
    [
        dict(provenance={"corpus": "2"}),
        dict(field_sizes={"tokens": 2**17}),
        dict(shard_tokens=2**19),
    ],
)
def test_other_options_replace_the_shards(
    options: dict[str, Any], copied: Path, tmp_path: Path
) -> None:
    (copied / "mine.txt").write_text("stays")
    texts = sample_texts(1000, seed=1)
    shards = prepare(copied, texts, **options)
    assert len(shards) == 1000
    prepare(tmp_path / "fresh", texts, **options)
    files = read_files(copied)
    assert files.pop("mine.txt") == b"stays"
    assert files == read_files(tmp_path / "fresh")


def test_an_interruption(finished: Path, tmp_path: Path) -> None:
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
    check_error(
        lambda: Shards.open(tmp_path),
        tmp_path,
        f"{len(index.shards)} shards",
        "interrupted",
        "again",
    )
    prepare(tmp_path, TEXTS, encode_and_count)
    assert sum(batch_sizes) == len(TEXTS) - index.num_documents
    assert read_files(tmp_path) == read_files(finished)


def test_a_source_with_fewer_texts(tmp_path: Path) -> None:
    def read_interrupted() -> Iterator[str]:
        yield from TEXTS
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path, read_interrupted())
    check_error(lambda: prepare(tmp_path, TEXTS[:5]), tmp_path, "only 5", "changed")


PREPARE_SLOWLY = """
import sys
from pathlib import Path
from tests.data.test_shards import TEXTS, encode_slowly, prepare

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
def test_kill_9(num_workers: int, finished: Path, tmp_path: Path) -> None:
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
    assert read_files(folder) == read_files(finished)


def test_two_processes_at_once(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    log_folder = tmp_path / "log"
    with start_process(folder, log_folder, 0) as process:
        wait_until(lambda: count_batches(log_folder))
        check_error(lambda: prepare(folder, TEXTS), folder, f"process {process.pid}", "wait")
        assert process.wait(30) == 0
    prepare(folder, raise_error)
    assert read_files(folder) == read_files(finished)


MEASURE_MEMORY = """
import resource, sys
from pathlib import Path
from tests.data.test_shards import encode_quickly, prepare

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
def test_memory_stays_flat(num_workers: int, tmp_path: Path) -> None:
    """Ten times the text, 200 MB, needs no more memory."""
    command = [sys.executable, "-c", MEASURE_MEMORY, str(tmp_path), str(num_workers)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    num_tokens, growth = map(int, result.stdout.split())
    assert num_tokens == 200_000_000
    assert growth < 20, f"{growth} MB more"


# --- errors ---------------------------------------------------------------------------------------

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
    "later format":      (lambda f: change_index(f, format=3),                  "shards.json format~3"),
    "format of 0.2":     (lambda f: change_index(f, format=1),                  "shards.json format~1"),
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
def test_damaged_shards(case: str, copied: Path) -> None:
    damage, words = DAMAGES[case]
    Shards.open(copied)
    damage(copied)
    check_error(
        lambda: Shards.open(copied), copied, *(word.replace("~", " ") for word in words.split())
    )


@pytest.mark.parametrize(
    "case", ["truncated ids", "no ids", "truncated offsets", "no offsets", "two shards", "long ids"]
)
def test_prepare_repairs_damaged_shards(case: str, copied: Path, finished: Path) -> None:
    DAMAGES[case][0](copied)
    prepare(copied, TEXTS)
    assert read_files(copied) == read_files(finished)


def test_prepare_keeps_an_unreadable_index(copied: Path) -> None:
    (copied / SHARD_INDEX_FILE).write_text("[1]")
    check_error(lambda: prepare(copied, TEXTS), copied, SHARD_INDEX_FILE, "remove")
    assert (copied / SHARD_INDEX_FILE).read_text() == "[1]"


ENCODE_ERRORS: list[tuple[Any, dict[str, int], str]] = [
    (raise_error, {"tokens": 256}, "cannot encode: abc"),
    (encode_bytes, {"tokens": 99},  "'tokens' 99 98"),
    (encode_bytes, {"source": 256}, "'source' tokens"),
]  # fmt: skip


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(("encode", "fields", "words"), ENCODE_ERRORS)
def test_encode_errors(
    encode: Any, fields: dict[str, int], words: str, num_workers: int, tmp_path: Path
) -> None:
    check_error(
        lambda: prepare(tmp_path, ["abc"], encode, field_sizes=fields, num_workers=num_workers),
        *words.split(),
    )
    assert prepare(tmp_path, ["abc"], num_workers=num_workers).count_tokens() == 3


def test_other_errors(tmp_path: Path) -> None:
    check_error(lambda: prepare(tmp_path, [], encode_bytes), tmp_path, "no texts")
    check_error(
        lambda: prepare(tmp_path, ["a", "b"], lambda texts: encode_bytes(texts)[:1]), "1 rows for 2"
    )
    check_error(
        lambda: prepare(tmp_path, ["a"], lambda texts: [{"tokens": [-1]}]), "id -1", "0 to 255"
    )
    check_error(
        lambda: prepare(tmp_path, ["a"], lambda texts: encode_bytes(texts), num_workers=1),
        "processes",
        "num_workers=0",
    )
    check_error(
        lambda: prepare(tmp_path, ["a"], exit_process, num_workers=1),
        "worker process ended",
        "memory",
    )
    check_error(lambda: prepare(tmp_path, ["a"], field_sizes={}), "field_sizes {}")
    check_error(lambda: prepare(tmp_path, ["a"], field_sizes={"a.b": 5}), "a.b")
    check_error(lambda: prepare(tmp_path, ["a"], field_sizes={"a": 0}), "'a': 0", "2**32")
    check_error(lambda: prepare(tmp_path, ["a"], field_sizes={"a": 2**33}), 2**33)
    check_error(lambda: prepare(tmp_path, ["a"], shard_tokens=0), "shard_tokens 0")
    check_error(lambda: prepare(tmp_path, ["a"], num_workers=-1), "num_workers -1")
    (tmp_path / "file").write_text("mine")
    check_error(lambda: prepare(tmp_path / "file", ["a"]), tmp_path / "file", error=OSError)
    check_error(lambda: Shards.open(tmp_path / "file"), tmp_path / "file", SHARD_INDEX_FILE)


def test_a_full_disk(tmp_path: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limit[1]))
    try:
        check_error(
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
