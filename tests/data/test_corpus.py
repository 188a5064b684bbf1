"""A corpus: its paths, standard input and the hub; records, streams and fingerprints."""

import gzip
import io
import os
import pickle
import sys
import threading
from itertools import islice
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from qkv.data.read import lines
from qkv.data.read.corpus import Corpus
from qkv.data.read.record import Record
from qkv.text import Tokenizer
from tests.support.corpora import Write, assert_short_error, read


def test_a_path_may_be_a_folder_a_glob_or_a_list(write: Write, tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt.gz", "deep/c.txt", ".hidden.txt", ".git/d.txt", "LICENSE"):
        write(f"all/{name}", gzip.compress(name.encode()) if name.endswith(".gz") else name)
    folder = tmp_path / "all"
    texts = [{"text": text} for text in ("a.txt.gz", "b.txt", "deep/c.txt")]
    assert read(folder) == texts
    assert read(f"{folder}/*.txt*") == texts[:2]
    assert read(f"{folder}/**/*.txt") == texts[1:]
    assert read([folder / "b.txt", f"{folder}/a*", folder / "b.txt"]) == [
        texts[1],
        texts[0],
        texts[1],
    ]
    assert len(read(folder, format="txt")) == 4  # the format applies to every file
    write("[odd].txt", "odd")
    assert read(tmp_path / "[odd].txt") == [{"text": "odd"}]
    write("all/d.csv", "x\n1\n")
    assert_short_error(lambda: read(folder), folder, "one format", "b.txt", "d.csv")
    write("none/LICENSE", "mine")
    assert_short_error(lambda: read(tmp_path / "none"), "none", ".jsonl", "LICENSE")
    (tmp_path / "bare").mkdir()
    assert_short_error(lambda: read(tmp_path / "bare"), "bare", "found nothing")
    assert_short_error(lambda: read(tmp_path / "bare", format="txt"), "bare", "no files found")


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def set_stdin(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))

    set_stdin(b"a\n\nb\n")
    assert read("-", format="txt") == [{"text": "a"}, {"text": ""}, {"text": "b"}]
    set_stdin(b'{"a": 1}\nb\n')
    assert_short_error(lambda: read("-", format="jsonl"), "standard input, line 2", "b")
    assert_short_error(lambda: read("-"), "standard input", "format", "jsonl")
    set_stdin(b"")
    assert_short_error(lambda: read("-", format="txt"), "standard input", "empty")
    assert Corpus("-", format="txt").fingerprint() != Corpus("-", format="txt").fingerprint()


def test_a_pipe_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe.txt").write_text("a\nb\n"))
    writer.start()
    assert read(tmp_path / "pipe.txt") == [{"text": "a"}, {"text": "b"}]
    writer.join()


class FakeDatasets(ModuleType):
    """A fake of `datasets`: rows by name, configuration and split."""

    class FakeDataset(list[dict[str, object]]):
        cache_files: list[dict[str, str]]

    def load_dataset(
        self, name: str, config: str | None, *, split: str
    ) -> "FakeDatasets.FakeDataset":
        if (name, config, split) not in [
            ("me/pairs", None, "train"),
            ("me/glue", "sst2", "test[:5]"),
        ]:
            raise FileNotFoundError(f"Dataset '{name}' doesn't exist\non the Hub")
        rows = FakeDatasets.FakeDataset([{"translation": {"de": "Hallo", "en": "Hi"}}])
        rows.cache_files = [{"filename": __file__}]
        return rows


def test_datasets_of_the_hub_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", FakeDatasets("datasets"))
    columns = {"source": "translation.de", "target": "translation.en"}
    assert read("hf:me/pairs", columns=columns) == [{"source": "Hallo", "target": "Hi"}]
    assert [record.location for record in Corpus("hf:me/glue/sst2:test[:5]")] == [
        "hf:me/glue/sst2:test[:5], row 1"
    ]
    assert_short_error(
        lambda: read("hf:me/rocket:dev"), "hf:me/rocket:dev", "doesn't exist on the Hub"
    )
    assert Corpus("hf:me/pairs").fingerprint() == Corpus("hf:me/pairs").fingerprint()


@pytest.mark.parametrize(
    ("module", "path"), [("pyarrow", "x.parquet"), ("datasets", "hf:me/pairs")]
)
def test_a_missing_package_is_named(
    module: str, path: str, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    location = path if path.startswith("hf:") else str(write(path, "PAR1"))
    assert_short_error(lambda: read(location), path, module, "pip install 'qkv[data]'")


def test_chunks_have_the_tokens_of_the_whole_text(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "One two.\nThree \n\nFour\n  five\n\n\nsix\nseven\neight, nine ten\n" * 20
    monkeypatch.setattr(lines, "CHUNK_CHARACTERS", 30)
    chunks = list(lines.TextFile(str(write("x.txt", text))).iter_chunks())
    assert len(chunks) > 20
    assert "".join(chunk for _, chunk in chunks) == text
    for line_number, chunk in chunks:
        assert text.split("\n")[line_number - 1] == chunk.split("\n")[0]
    tokenizer = Tokenizer.train(iter([text]), type="byte", vocab_size=300)
    ids = tokenizer.encode_ids([chunk for _, chunk in chunks], add_special_tokens=False)
    (expected,) = tokenizer.encode_ids([text], add_special_tokens=False)
    assert [i for chunk_ids in ids for i in chunk_ids] == expected


def test_a_record_knows_its_location(write: Write) -> None:
    path = write("x.csv", 'text,n\n"a\nb",1\nc,2\n')
    records = list(Corpus(path, columns={"t": "text"}))
    assert [record.location for record in records] == [f"{path}, line 2", f"{path}, line 4"]
    assert records[0].get_text("t") == "a\nb"
    assert_short_error(lambda: records[0].get_text("x"), path, "line 2", "'x'", "'t'")
    assert_short_error(
        lambda: Record({"n": [1] * 99}, "x, line 1").get_text("n"),
        "x, line 1",
        "'n'",
        "[1, 1",
        "text",
    )
    copy = pickle.loads(pickle.dumps(records[0]))
    assert copy == records[0]
    assert copy.location == records[0].location


def test_a_corpus_streams_and_restarts(write: Write) -> None:
    path = write("x.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 100_000 + b"rocket"))
    corpus = Corpus(path)
    for _ in range(2):
        assert [record["a"] for record in islice(corpus, 3)] == [1, 1, 1]


def test_the_fingerprint_depends_on_files_and_options(write: Write, tmp_path: Path) -> None:
    path = write("all/x.tsv", "a\tb\n1\t2\n")
    old = Corpus(tmp_path / "all").fingerprint()
    assert Corpus(tmp_path / "all").fingerprint() == old
    assert Corpus(tmp_path / "all", columns={"x": "a"}).fingerprint() != old
    assert Corpus(tmp_path / "all", column_names=("x", "y")).fingerprint() != old
    os.utime(path, ns=(1, 1))
    touched = Corpus(tmp_path / "all").fingerprint()
    assert touched != old
    write("all/y.tsv", "a\tb\n1\t2\n")
    assert Corpus(tmp_path / "all").fingerprint() != touched
    write("pictures/a.jpg", "x")
    write("pictures/a.txt", "x")
    pictures = Corpus(tmp_path / "pictures").fingerprint()
    write("pictures/a.txt", "longer")
    assert Corpus(tmp_path / "pictures").fingerprint() != pictures
