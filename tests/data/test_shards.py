"""Shards hold what was encoded, to the byte the same however they were made; cut files and races are told."""

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

from qkv.data.store.prepare import prepare
from qkv.data.store.shards import INDEX, Index, Shards
from qkv.data.store.workers import in_order

ROOT = Path(__file__).resolve().parent.parent.parent
LETTERS = {"tokens": 256}


def letters(texts: list[str]) -> list[dict[str, list[int]]]:
    """The tokens of a text are its bytes."""
    return [{"tokens": list(text.encode())} for text in texts]


def slowly(texts: list[str]) -> list[dict[str, list[int]]]:
    """The same, slow enough to be killed; each process writes down its batches."""
    time.sleep(0.05)
    with (Path(os.environ["DONE"]) / str(os.getpid())).open("a") as file:
        file.write(".")
    return letters(texts)


def pairs(records: list[Mapping[str, str]]) -> list[dict[str, Any]]:
    return [
        {
            "source": list(r["de"].encode()),
            "target": np.array(list(r["en"].encode())) + 70_000,
            "label": [n % 2],
        }
        for n, r in enumerate(records)
    ]


def dies(texts: list[str]) -> list[dict[str, list[int]]]:
    os._exit(1)


def refuses(texts: list[str]) -> list[dict[str, list[int]]]:
    raise ValueError(f"not to be encoded: {texts[0]}")


def quickly(texts: list[str]) -> list[dict[str, np.ndarray[Any, Any]]]:
    return [{"tokens": np.frombuffer(text.encode(), np.uint8)} for text in texts]


def double(number: int) -> int:
    return 2 * number


def sample(number: int, seed: int = 0) -> list[str]:
    """Texts of many lengths, empty ones too."""
    choice = random.Random(seed)
    return ["".join(choice.choices("abcdeé ", k=choice.choice([0, 3, 40, 600]))) for _ in range(number)]


def make(folder: Path, texts: Any, encode: Any = letters, **options: Any) -> Shards:
    usual: dict[str, Any] = dict(fields=LETTERS, made_from={"corpus": "1"}, shard_tokens=2**20)
    return prepare(texts, encode, folder, **usual | options)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}


def complaint(run: Callable[[], object], *words: object, kind: type[Exception] = ValueError) -> None:
    with pytest.raises(kind) as caught:
        run()
    message = str(caught.value)
    assert message.isprintable(), "more than one line"
    missing = [word for word in words if str(word) not in message]
    assert not missing, f"{missing} not in: {message}"


TEXTS = sample(20_000)  # about 3 MB: 20 batches, three shards


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards") / "deep" / "made"
    make(folder, TEXTS)
    return folder


@pytest.fixture
def broken(made: Path, tmp_path: Path) -> Path:
    """The same, to be broken."""
    folder = tmp_path / "broken"
    folder.mkdir()
    for name, content in files(made).items():
        (folder / name).write_bytes(content)
    return folder


# --- what they hold -----------------------------------------------------------------------------------------


def test_documents_and_slices(made: Path) -> None:
    shards = Shards.open(made)
    assert len(shards.index.parts) >= 3
    assert len(shards) == len(TEXTS)
    for number, text in enumerate(TEXTS):
        assert (
            shards.document(number).tobytes()
            == np.frombuffer(text.encode(), np.uint8).astype("<u2").tobytes()
        )
    row = np.frombuffer("".join(TEXTS).encode(), np.uint8)
    assert shards.tokens() == len(row)
    choice = random.Random(0)
    for _ in range(300):
        start = choice.randrange(len(row))
        stop = min(len(row), start + choice.choice([0, 1, 100, 10**6, 10**7]))
        piece = shards.slice(start, stop)
        assert piece.dtype == np.dtype("<u2")
        assert np.array_equal(piece, row[start:stop])
    assert np.array_equal(shards.slice(0, len(row)), row)
    assert len(shards.slice(len(row), len(row))) == 0
    assert shards.lengths().tolist() == [len(text.encode()) for text in TEXTS]


def test_views_copy_nothing(made: Path) -> None:
    shards = Shards.open(made)
    for piece in (shards.slice(5, 900_000), shards.document(5)):
        assert not piece.flags.owndata
        assert not piece.flags.writeable
    again = pickle.dumps(shards)
    assert len(again) < 1000
    assert np.array_equal(pickle.loads(again).slice(0, 9), shards.slice(0, 9))


@pytest.mark.parametrize("number", [-1, len(TEXTS)])
def test_no_such_document(number: int, made: Path) -> None:
    shards = Shards.open(made)
    complaint(lambda: shards.document(number), number, len(TEXTS) - 1, kind=IndexError)


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 4), (0, 10**9)])
def test_no_such_slice(start: int, stop: int, made: Path) -> None:
    shards = Shards.open(made)
    complaint(lambda: shards.slice(start, stop), start, stop, shards.tokens(), kind=IndexError)


def test_no_such_field(made: Path) -> None:
    shards = Shards.open(made)
    complaint(lambda: shards.tokens("source"), made, "'source'", "tokens")
    complaint(lambda: shards.lengths("source"), made, "'source'", "tokens")
    complaint(lambda: shards.document(0, "source"), made, "'source'", "tokens")
    complaint(lambda: shards.slice(0, 1, "source"), made, "'source'", "tokens")


@pytest.mark.parametrize("workers", [0, 2])
def test_several_fields(workers: int, tmp_path: Path) -> None:
    records = [{"de": text, "en": text[::-1]} for text in sample(300)]
    fields = {"source": 2**16, "target": 2**16 + 5000, "label": 2}
    shards = make(tmp_path, records, pairs, fields=fields, workers=workers, shard_tokens=50_000)
    assert dict(shards.fields) == fields
    assert [shards.record(0)[field].dtype.str for field in fields] == ["<u2", "<u4", "<u2"]
    for number, record in enumerate(records):
        held = shards.record(number)
        assert held["source"].tolist() == list(record["de"].encode())
        assert (held["target"] - 70_000).tolist() == list(record["en"].encode())
        assert len(held["label"]) == 1
    assert shards.tokens("label") == len(shards) == 300
    complaint(shards.tokens, "'tokens'", "source, target, label")


def test_a_field_that_is_empty(tmp_path: Path) -> None:
    shards = make(tmp_path, ["", ""])
    assert (len(shards), shards.tokens(), len(shards.document(1)), len(shards.slice(0, 0))) == (2, 0, 0, 0)


@pytest.mark.parametrize(
    ("size", "kind", "width"), [(2**16, "<u2", 2), (2**16 + 1, "<u4", 4), (2**32, "<u4", 4)]
)
def test_ids_take_two_bytes_or_four(size: int, kind: str, width: int, tmp_path: Path) -> None:
    def last(texts: list[str]) -> list[dict[str, list[int]]]:
        return [{"tokens": [0, size - 1]} for _ in texts]

    shards = make(tmp_path, ["x"], last, fields={"tokens": size})
    assert shards.document(0).dtype.str == kind
    assert shards.document(0).tolist() == [0, size - 1]
    assert (tmp_path / "00000.tokens.bin").read_bytes() == b"".join(
        n.to_bytes(width, "little") for n in (0, size - 1)
    )
    assert (tmp_path / "00000.tokens.idx").read_bytes() == b"".join(n.to_bytes(8, "little") for n in (0, 2))


# --- the same however they were made ------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing(workers: int, made: Path, tmp_path: Path) -> None:
    make(tmp_path, iter(TEXTS), workers=workers)
    assert files(tmp_path) == files(made)


def test_progress(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    shards = make(tmp_path, TEXTS, progress=lambda documents, tokens: told.append((documents, tokens)))
    assert told == sorted(told)
    assert told[-1] == (len(shards), shards.tokens())
    assert len(told) > 3


def test_made_once(made: Path) -> None:
    before = files(made)
    assert len(make(made, refuses, refuses, workers=2)) == len(TEXTS)  # neither is asked for anything
    assert files(made) == before


@pytest.mark.parametrize(
    "change", [dict(made_from={"corpus": "2"}), dict(fields={"tokens": 2**17}), dict(shard_tokens=2**19)]
)
def test_made_anew_from_other_things(change: dict[str, Any], broken: Path, tmp_path: Path) -> None:
    (broken / "mine.txt").write_text("stays")
    texts = sample(1000, seed=1)
    shards = make(broken, texts, **change)
    assert len(shards) == 1000
    fresh = tmp_path / "fresh"
    make(fresh, texts, **change)
    held = files(broken)
    assert held.pop("mine.txt") == b"stays"
    assert held == files(fresh)


def test_an_interruption(made: Path, tmp_path: Path) -> None:
    """Stopped in the third shard, it has two; then only the rest is encoded."""
    seen: list[int] = []

    def interrupted(texts: list[str]) -> Iterator[str]:
        yield from texts[:18_000]
        raise KeyboardInterrupt

    def counting(texts: list[str]) -> list[dict[str, list[int]]]:
        seen.append(len(texts))
        return letters(texts)

    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, interrupted(TEXTS))
    index = Index.read(tmp_path)
    assert index is not None
    assert not index.complete
    assert len(index.parts) >= 2
    complaint(lambda: Shards.open(tmp_path), tmp_path, f"{len(index.parts)} shards", "interrupted", "again")
    make(tmp_path, TEXTS, counting)
    assert sum(seen) == len(TEXTS) - index.documents
    assert files(tmp_path) == files(made)


def test_a_source_that_shrank(tmp_path: Path) -> None:
    def interrupted() -> Iterator[str]:
        yield from TEXTS
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, interrupted())
    complaint(lambda: make(tmp_path, TEXTS[:5]), tmp_path, "only 5", "changed")


@contextmanager
def another(folder: Path, done: Path, workers: int) -> Iterator[subprocess.Popen[bytes]]:
    """Another process prepares the folder, until this is over."""
    done.mkdir(exist_ok=True)
    code = (
        "import sys; from pathlib import Path; from tests.data.test_shards import TEXTS, make, slowly\n"
        "make(Path(sys.argv[1]), TEXTS, slowly, workers=int(sys.argv[2]))"
    )
    command = [sys.executable, "-c", code, str(folder), str(workers)]
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, "DONE": str(done)}) as process:
        try:
            yield process
        finally:
            process.kill()


def until(happened: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def batches(done: Path) -> int:
    return sum(path.stat().st_size for path in done.iterdir())


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see which processes run")
@pytest.mark.parametrize("workers", [0, 2])
def test_kill_9(workers: int, made: Path, tmp_path: Path) -> None:
    """Killed again and again, it comes to the same bytes, and its workers go with it."""
    folder, done = tmp_path / "shards", tmp_path / "done"
    finished = []
    halves = 0
    done.mkdir()
    for number in (3, 14, 4):  # a shard takes seven batches; at most five are under way
        stop = batches(done) + number
        with another(folder, done, workers) as process:
            until(lambda: batches(done) >= stop or process.poll() is not None)  # noqa: B023
        until(lambda: not any(runs(int(path.name)) for path in done.iterdir()))
        index = Index.read(folder)
        assert index is not None
        finished.append(len(index.parts))
        halves += any(path.suffix == ".tmp" for path in folder.iterdir())
    assert finished == sorted(finished)
    assert finished[-1]
    assert halves
    kept = (folder / "00000.tokens.bin").stat().st_mtime_ns
    make(folder, TEXTS)
    assert (folder / "00000.tokens.bin").stat().st_mtime_ns == kept
    assert files(folder) == files(made)


def test_two_at_once(made: Path, tmp_path: Path) -> None:
    folder, done = tmp_path / "shards", tmp_path / "done"
    with another(folder, done, 0) as process:
        until(lambda: batches(done))
        complaint(lambda: make(folder, TEXTS), folder, f"process {process.pid}", "wait")
        assert process.wait(30) == 0
    make(folder, refuses)
    assert files(folder) == files(made)


MEMORY = """
import resource, sys
from pathlib import Path
from tests.data.test_shards import quickly, make

def most():
    kinds = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    return max(resource.getrusage(kind).ru_maxrss for kind in kinds) >> 10

def texts(number):
    return (f"{n:09} " * 100 for n in range(number))

folder, workers = Path(sys.argv[1]), int(sys.argv[2])
make(folder / "small", texts(20_000), quickly, workers=workers, shard_tokens=2**24)
before = most()
shards = make(folder / "large", texts(200_000), quickly, workers=workers, shard_tokens=2**24)
print(shards.tokens(), most() - before)
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_memory_stays_flat(workers: int, tmp_path: Path) -> None:
    """Ten times the text, 200 MB of it, in the same memory."""
    command = [sys.executable, "-c", MEMORY, str(tmp_path), str(workers)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    tokens, grown = map(int, done.stdout.split())
    assert tokens == 200_000_000
    assert grown < 20, f"{grown} MB more"


# --- what is wrong is told ----------------------------------------------------------------------------------

BREAKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder":     (shutil.rmtree,                                        "shards.json"),
    "no index":      (lambda f: (f / INDEX).unlink(),                       "shards.json"),
    "cut ids":       (lambda f: os.truncate(f / "00001.tokens.bin", 999),   "00001.tokens.bin 999"),
    "long ids":      (lambda f: os.truncate(f / "00000.tokens.bin", 2**24), "00000.tokens.bin 16777216"),
    "no ids":        (lambda f: (f / "00001.tokens.bin").unlink(),          "00001.tokens.bin missing"),
    "cut starts":    (lambda f: os.truncate(f / "00000.tokens.idx", 8),     "00000.tokens.idx 8"),
    "no starts":     (lambda f: (f / "00002.tokens.idx").unlink(),          "00002.tokens.idx missing"),
    "two":           (lambda f: cut(f, 0, 2),                               "00000.tokens 00002.tokens"),
    "cut index":     (lambda f: os.truncate(f / INDEX, 99),                 "shards.json index"),
    "empty index":   (lambda f: os.truncate(f / INDEX, 0),                  "shards.json index"),
    "binary index":  (lambda f: (f / INDEX).write_bytes(b"\xff\0"),         "shards.json index"),
    "another index": (lambda f: (f / INDEX).write_text("[1]"),              "shards.json index"),
    "later format":  (lambda f: change(f, format=2),                        "shards.json format~2"),
    "odd field":     (lambda f: change(f, fields={"x": 5}),                 "shards.json field"),
    "odd key":       (lambda f: change(f, rocket=5),                        "shards.json rocket"),
}  # fmt: skip


def cut(folder: Path, *numbers: int) -> None:
    for number in numbers:
        os.truncate(folder / f"{number:05}.tokens.idx", 0)


def change(folder: Path, **values: Any) -> None:
    path = folder / INDEX
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("case", BREAKS)
def test_broken_shards(case: str, broken: Path) -> None:
    spoil, words = BREAKS[case]
    Shards.open(broken)
    spoil(broken)
    complaint(lambda: Shards.open(broken), broken, *(word.replace("~", " ") for word in words.split()))


@pytest.mark.parametrize("case", ["cut ids", "no ids", "cut starts", "no starts", "two", "long ids"])
def test_prepare_mends_them(case: str, broken: Path, made: Path) -> None:
    BREAKS[case][0](broken)
    make(broken, TEXTS)
    assert files(broken) == files(made)


def test_prepare_leaves_an_index_it_cannot_read(broken: Path) -> None:
    (broken / INDEX).write_text("[1]")
    complaint(lambda: make(broken, TEXTS), broken, INDEX, "remove")
    assert (broken / INDEX).read_text() == "[1]"


WRONG: list[tuple[Any, dict[str, int], str]] = [
    (refuses, {"tokens": 256}, "not to be encoded: abc"),
    (letters, {"tokens": 99},  "'tokens' 99 98"),
    (letters, {"source": 256}, "'source' tokens"),
]  # fmt: skip


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("encode", "fields", "words"), WRONG)
def test_what_encodes_badly(
    encode: Any, fields: dict[str, int], words: str, workers: int, tmp_path: Path
) -> None:
    complaint(lambda: make(tmp_path, ["abc"], encode, fields=fields, workers=workers), *words.split())
    assert make(tmp_path, ["abc"], workers=workers).tokens() == 3


def test_other_complaints(tmp_path: Path) -> None:
    complaint(lambda: make(tmp_path, [], letters), tmp_path, "no texts")
    complaint(lambda: make(tmp_path, ["a", "b"], lambda texts: letters(texts)[:1]), "1 rows for 2")
    complaint(lambda: make(tmp_path, ["a"], lambda texts: [{"tokens": [-1]}]), "id -1", "0 to 255")
    complaint(
        lambda: make(tmp_path, ["a"], lambda texts: letters(texts), workers=1), "processes", "workers=0"
    )
    complaint(lambda: make(tmp_path, ["a"], dies, workers=1), "worker process ended", "memory")
    complaint(lambda: make(tmp_path, ["a"], fields={}), "fields {}")
    complaint(lambda: make(tmp_path, ["a"], fields={"a.b": 5}), "a.b")
    complaint(lambda: make(tmp_path, ["a"], fields={"a": 0}), "'a': 0", "2**32")
    complaint(lambda: make(tmp_path, ["a"], fields={"a": 2**33}), 2**33)
    complaint(lambda: make(tmp_path, ["a"], shard_tokens=0), "shard_tokens 0")
    complaint(lambda: make(tmp_path, ["a"], workers=-1), "workers -1")
    (tmp_path / "file").write_text("mine")
    complaint(lambda: make(tmp_path / "file", ["a"]), tmp_path / "file", kind=OSError)
    complaint(lambda: Shards.open(tmp_path / "file"), tmp_path / "file", INDEX)


def test_a_full_disk(tmp_path: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limit[1]))
    try:
        complaint(lambda: make(tmp_path, TEXTS), tmp_path, "not finished", "too large", kind=OSError)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    assert len(make(tmp_path, TEXTS)) == len(TEXTS)


@pytest.mark.parametrize("workers", [0, 2])
def test_results_come_in_order(workers: int) -> None:
    asked: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(50):
            asked.append(number)
            yield number

    results = in_order(double, numbers(), workers)
    assert next(results) == 0
    assert len(asked) <= 1 + 2 * workers  # no more than a few are taken ahead
    assert list(results) == [2 * number for number in range(1, 50)]
