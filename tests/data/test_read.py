"""Every format is read as records, compressed or not; a bad file is a one-line error."""

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import sys
import threading
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from qkv.data.read import lines
from qkv.data.read.corpus import CORPUS_FORMATS, Corpus
from qkv.data.read.record import Record
from qkv.text import Tokenizer

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def read(path: Any, **options: Any) -> list[dict[str, object]]:
    return [dict(record) for record in Corpus(path, **options)]


def check_error(function: Callable[[], object], *words: object) -> str:
    """Return the message of the function's ValueError: one line that contains all words."""
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        function()
    message = str(raised.value)
    assert message.isprintable(), "more than one line"
    assert len(message) < 600
    missing = [word for word in words if str(word) not in message]
    assert not missing, f"{missing} not in: {message}"
    return message


# --- formats --------------------------------------------------------------------------------------

VALUES: list[dict[str, Any]] = [{"text": "a", "label": 1}, {"text": "ü", "label": 0}]
CELLS: list[dict[str, Any]] = [{"text": "a", "label": "1"}, {"text": "ü", "label": "0"}]
SENTENCES: list[dict[str, Any]] = [
    {"words": ["EU", "rejects"], "tags": ["B", "O"]},
    {"words": ["Hi"], "tags": ["O"]},
]
ANSWER = {"text": "red", "answer_start": 7}
QUESTIONS = [
    {"id": "1", "question": "Which?", "answers": [ANSWER, ANSWER]},
    {
        "id": "2",
        "question": "Why?",
        "answers": [],
        "is_impossible": True,
        "plausible_answers": [ANSWER],
    },
    {"id": "3", "question": "Who?"},
]
SQUAD = {
    "version": "v2.0",
    "data": [{"title": "t", "paragraphs": [{"context": "It was red.", "qas": QUESTIONS}]}],
}
QUESTION_RECORDS: list[dict[str, Any]] = [
    {
        "id": "1",
        "context": "It was red.",
        "question": "Which?",
        "answers": [{"text": "red", "start": 7}] * 2,
    },
    {"id": "2", "context": "It was red.", "question": "Why?", "answers": []},
    {"id": "3", "context": "It was red.", "question": "Who?", "answers": []},
]

# File name, content, options, records.
FORMATS: dict[str, tuple[str, str, dict[str, Any], list[dict[str, Any]]]] = {
    "jsonl":             ("x.jsonl", '{"text": "a", "label": 1}\n\n{"text": "ü", "label": 0}', {}, VALUES),
    "ndjson":            ("x.ndjson", '{"text": "a", "label": 1}\r\n{"text": "ü", "label": 0}\r\n', {},
                          VALUES),
    "json":              ("x.json", json.dumps(VALUES, indent=1), {}, VALUES),
    "squad":             ("x.json", json.dumps(SQUAD), {}, QUESTION_RECORDS),
    "csv":               ("x.csv", "text,label\na,1\nü,0\n\n", {}, CELLS),
    "csv of Windows":    ("x.csv", "\ufefftext,label\r\na,1\r\nü,0", {}, CELLS),
    "csv, quoted":       ("x.csv", 'text,n\n"a, ""b""\nc",1\n', {}, [{"text": 'a, "b"\nc', "n": "1"}]),
    "csv, no header":    ("x.csv", "a,1\nü,0\n", dict(column_names=("text", "label")), CELLS),
    "csv, semicolons":   ("x.csv", "text;label\na;1\nü;0\n", dict(separator=";"), CELLS),
    "csv, long field":   ("x.csv", f"text\n{'a' * 200_000}\n", {}, [{"text": "a" * 200_000}]),
    "csv, empty fields": ("x.csv", "text,label\n,\n", {}, [{"text": "", "label": ""}]),
    "tsv":               ("x.tsv", 'text\tlabel\n"a\t1\n', {}, [{"text": '"a', "label": "1"}]),
    "tsv, spaces":       ("x.tsv", " text \tlabel\n a \t1\n", {}, [{"text": " a ", "label": "1"}]),
    "pairs":             ("x.tsv", "Hi.\tHallo!\n", dict(column_names=("target", "source")),
                          [{"target": "Hi.", "source": "Hallo!"}]),
    "labeled":           ("x", "NUM:dist How far ?\n", dict(format="labeled"),
                          [{"label": "NUM:dist", "text": "How far ?"}]),
    "lines":             ("x.txt", " a \n\nb", {}, [{"text": " a "}, {"text": ""}, {"text": "b"}]),
    "lines of Windows":  ("x.txt", "\ufeffa\r\nb\r\n", {}, [{"text": "a"}, {"text": "b"}]),
    "odd line ends":     ("x.txt", "a\u2028b\x0cc\x85\n", {}, [{"text": "a\u2028b\x0cc\x85"}]),
    "documents":         ("x.txt", "\n\na\nb\n \n\nc\n", dict(unit="document"),
                          [{"text": "a\nb"}, {"text": "c"}]),
    "a file":            ("x.txt", "\ufeffa\r\n\nb\n", dict(unit="file"), [{"text": "a\n\nb\n"}]),
    "another name":      ("x.md", "a\n", dict(format="txt"), [{"text": "a"}]),
    "upper case":        ("X.TXT", "a\n", {}, [{"text": "a"}]),
    "conll":             ("x.conll", "-DOCSTART-\tO\n\nEU\tB\nrejects\tO\n\t\nHi\tO\n\n", {}, SENTENCES),
    "conll of 2003":     ("x.conll", "-DOCSTART- -X- -X- O\n\nEU NNP I-NP B\nrejects V I-VP O\n\nHi U N O\n",
                          {}, SENTENCES),
    "conll, named":      ("x.conll", "EU\tN\tB\n", dict(column_names=("words", "pos", "tags")),
                          [{"words": ["EU"], "pos": ["N"], "tags": ["B"]}]),
    "columns":           ("x.jsonl", '{"a": "x", "b": {"c": 1}, "d": null, "e.f": 2}\n',
                          dict(columns={"text": "a", "label": "b.c", "none": "d", "dot": "e.f"}),
                          [{"text": "x", "label": 1, "none": None, "dot": 2}]),
}  # fmt: skip
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes, ".xz": lzma.compress, ".gz": gzip.compress, ".bz2": bz2.compress,
}  # fmt: skip


@pytest.mark.parametrize("suffix", COMPRESSORS)
@pytest.mark.parametrize("case", FORMATS)
def test_formats(case: str, suffix: str, write: Write) -> None:
    name, content, options, records = FORMATS[case]
    path = write(name + suffix, COMPRESSORS[suffix](content.encode()))
    assert read(path, **options) == records
    assert read(str(path), **options) == records


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_parallel_files(suffix: str, write: Write) -> None:
    texts = {"de": "Hallo\n\nWelt\n", "en": "Hello\r\n\r\nworld", "fr": "Bonjour\n\nmonde\n"}
    files = [
        write(f"train.{language}{suffix}", COMPRESSORS[suffix](text.encode()))
        for language, text in texts.items()
    ]
    pairs = [
        {"source": s, "target": t} for s, t in [("Hallo", "Hello"), ("", ""), ("Welt", "world")]
    ]
    assert read(files[:2]) == read(files[:2], format="parallel") == pairs
    assert read(files, column_names=("de", "en", "fr"))[0] == {
        "de": "Hallo",
        "en": "Hello",
        "fr": "Bonjour",
    }
    assert [record.location for record in Corpus(files[:2])][2] == f"{files[0]}, line 3"


def test_parquet(write: Write, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"text": f"ü{n}", "label": n, "more": {"deep": [n]}} for n in range(3000)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "x.parquet")
    assert read(tmp_path / "x.parquet") == rows
    selected = Corpus(tmp_path / "x.parquet", columns={"n": "label", "deep": "more.deep"})
    assert list(selected)[2999] == {"n": 2999, "deep": [2999]}
    assert [record.location for record in selected][2999].endswith("x.parquet, row 3000")
    compressed = write("y.parquet.gz", gzip.compress((tmp_path / "x.parquet").read_bytes()))
    assert read(compressed) == rows
    check_error(
        lambda: read(tmp_path / "x.parquet", columns={"text": "txt"}),
        "row 1",
        "'txt'",
        "'text', 'label'",
    )
    truncated = write("truncated.parquet", (tmp_path / "x.parquet").read_bytes()[:5000])
    check_error(lambda: read(truncated), "truncated.parquet", "Parquet")
    check_error(lambda: read(write("no.parquet", "text\n")), "no.parquet", "Parquet")


def test_images_and_captions(write: Write, tmp_path: Path) -> None:
    for name in ("a.jpg", "deep/b.PNG"):
        write(f"pictures/{name}", b"\xff\xd8\x00")
        write(f"pictures/{Path(name).with_suffix('.txt')}", f"caption of {name}\n")
    folder = tmp_path / "pictures"
    records = [
        {"image": str(folder / name), "caption": f"caption of {name}"}
        for name in ("a.jpg", "deep/b.PNG")
    ]
    assert read(folder) == read(folder, format="images") == records
    (folder / "a.txt").unlink()
    check_error(lambda: read(folder), "a.jpg", "a.txt", "captions")
    # One file for all images; the first of CAPTION_FILES counts.
    write("pictures/captions.jsonl", '{"image": "deep/b.PNG", "caption": "one"}\n')
    assert read(folder) == [{"image": str(folder / "deep/b.PNG"), "caption": "one"}]
    write("pictures/captions.csv.gz", gzip.compress(b'file,title\na.jpg,"one, two"\n'))
    columns = {"image": "file", "caption": "title"}
    assert read(folder, columns=columns) == [
        {"image": str(folder / "a.jpg"), "caption": "one, two"}
    ]
    check_error(lambda: read(folder), "captions.csv.gz, line 2", "'image'", "'file', 'title'")
    write("pictures/captions.tsv", "image\tcaption\na.jpg\tone\n")
    assert read(folder) == [{"image": str(folder / "a.jpg"), "caption": "one"}]
    write("pictures/captions.txt", "a.jpg#0\tone\na.jpg#1\ttwo\n")
    assert [record["caption"] for record in read(folder)] == ["one", "two"]
    write("pictures/captions.txt", "a.jpg\tone\nmissing.jpg\ttwo\n")
    check_error(lambda: read(folder), "captions.txt, line 2", "missing.jpg", folder)


# --- paths ----------------------------------------------------------------------------------------


def test_folders_globs_and_lists(write: Write, tmp_path: Path) -> None:
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
    check_error(lambda: read(folder), folder, "one format", "b.txt", "d.csv")
    write("none/LICENSE", "mine")
    check_error(lambda: read(tmp_path / "none"), "none", ".jsonl", "LICENSE")
    (tmp_path / "bare").mkdir()
    check_error(lambda: read(tmp_path / "bare"), "bare", "no files found")
    check_error(lambda: read(tmp_path / "bare", format="txt"), "bare", "no files found")


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def set_stdin(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))

    set_stdin(b"a\n\nb\n")
    assert read("-", format="txt") == [{"text": "a"}, {"text": ""}, {"text": "b"}]
    set_stdin(b'{"a": 1}\nb\n')
    check_error(lambda: read("-", format="jsonl"), "standard input, line 2", "b")
    check_error(lambda: read("-"), "standard input", "format", "jsonl")
    set_stdin(b"")
    check_error(lambda: read("-", format="txt"), "standard input", "empty")
    assert Corpus("-", format="txt").fingerprint() != Corpus("-", format="txt").fingerprint()


def test_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe.txt").write_text("a\nb\n"))
    writer.start()
    assert read(tmp_path / "pipe.txt") == [{"text": "a"}, {"text": "b"}]
    writer.join()


class Hub(ModuleType):
    """A fake of `datasets`: rows by name, configuration and split."""

    class Rows(list[dict[str, object]]):
        cache_files: list[dict[str, str]]

    def load_dataset(self, name: str, config: str | None, *, split: str) -> "Hub.Rows":
        if (name, config, split) not in [
            ("me/pairs", None, "train"),
            ("me/glue", "sst2", "test[:5]"),
        ]:
            raise FileNotFoundError(f"Dataset '{name}' doesn't exist\non the Hub")
        rows = Hub.Rows([{"translation": {"de": "Hallo", "en": "Hi"}}])
        rows.cache_files = [{"filename": __file__}]
        return rows


def test_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", Hub("datasets"))
    columns = {"source": "translation.de", "target": "translation.en"}
    assert read("hf:me/pairs", columns=columns) == [{"source": "Hallo", "target": "Hi"}]
    assert [record.location for record in Corpus("hf:me/glue/sst2:test[:5]")] == [
        "hf:me/glue/sst2:test[:5], row 1"
    ]
    check_error(lambda: read("hf:me/rocket:dev"), "hf:me/rocket:dev", "doesn't exist on the Hub")
    assert Corpus("hf:me/pairs").fingerprint() == Corpus("hf:me/pairs").fingerprint()


@pytest.mark.parametrize(
    ("module", "path"), [("pyarrow", "x.parquet"), ("datasets", "hf:me/pairs")]
)
def test_a_package_that_is_not_installed(
    module: str, path: str, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    location = path if path.startswith("hf:") else str(write(path, "PAR1"))
    check_error(lambda: read(location), path, module, "pip install 'qkv[data]'")


# --- bad input ------------------------------------------------------------------------------------

DEEP = "[" * 100_000
# File name, content, options, words of the message (~ is a space).
BAD_FILES: dict[str, tuple[str, str | bytes, dict[str, Any], str]] = {
    "empty":             ("x.jsonl", "", {}, "empty"),
    "empty text":        ("x.txt", "", dict(unit="file"), "empty"),
    "empty JSON":        ("x.json", "", {}, "empty"),
    "only blanks":       ("x.jsonl", "\n\n", {}, "no~records"),
    "only a header":     ("x.csv", "a,b\n", {}, "no~records"),
    "no sentences":      ("x.conll", "\n\n", {}, "no~records"),
    "empty list":        ("x.json", "[]", {}, "no~records"),
    "binary":            ("x.txt", b"a\nb\0c", {}, "line~2 NUL binary"),
    "binary file":       ("x.txt", b"a\nb\0c", dict(unit="file"), "line~2 NUL binary"),
    "binary JSON":       ("x.jsonl", bytes(range(256)), {}, "line~1 NUL binary"),
    "latin-1":           ("x.txt", "a\nbé".encode("latin-1"), {}, "line~2 0xe9 column~2 utf-8 latin-1"),
    "latin-1 file":      ("x.txt", "a\nbé".encode("latin-1"), dict(unit="file"), "line~2 0xe9 column~2"),
    "utf-16":            ("x.txt", "a\n".encode("utf-16"), {}, "UTF-16 iconv"),
    "gzip unnamed":      ("x.txt", gzip.compress(b"a"), {}, "gzip .gz"),
    "xz unnamed":        ("x.jsonl", lzma.compress(b"a"), {}, "xz .xz"),
    "zip":               ("x.csv", b"PK\x03\x04abc", {}, "zip"),
    "not gzip":          ("x.txt.gz", "a\n", {}, "line~1 gzipped damaged"),
    "not xz":            ("x.txt.xz", "a\n", {}, "line~1 damaged"),
    "not bzip2":         ("x.txt.bz2", "a\n", {}, "line~1 damaged"),
    "cut gzip":          ("x.txt.gz", gzip.compress(b"a\n" * 99)[:-9], {}, "line damaged"),
    "cut xz":            ("x.txt.xz", lzma.compress(b"a\n" * 99)[:-20], {}, "line damaged"),
    "damaged gzip":      ("x.txt.gz", gzip.compress(b"a\n" * 99)[:-15] + b"x" * 15, {}, "line damaged"),
    "broken JSON":       ("x.jsonl", '{"a": 1}\n{"a": rocket}\n', {}, "line~2 not~JSON rocket column~7"),
    "cut JSON":          ("x.jsonl", '{"a": 1}\n{"a": "roc', {}, "line~2 not~JSON truncated"),
    "JSON of words":     ("x.jsonl", '{"a": 1}\n"rocket"\n', {}, "line~2 'rocket' object"),
    "broken JSON list":  ("x.json", '[{"a": 1},\n{"a": rocket}]', {}, "line~2 not~JSON rocket"),
    "JSON lines":        ("x.json", '{"a": 1}\n{"a": 2}\n', {}, "line~2 not~JSON Extra"),
    "JSON number":       ("x.json", "12", {}, "12 list .jsonl"),
    "JSON of numbers":   ("x.json", '[{"a": 1}, 12]', {}, "item~2 12 object"),
    "deep JSON":         ("x.json", DEEP, {}, "not~JSON"),
    "deep JSON lines":   ("x.jsonl", DEEP, {}, "line~1 not~JSON"),
    "JSON digits":       ("x.jsonl", '{"a": ' + "9" * 9999 + "}", {}, "line~1 not~JSON digits"),
    "SQuAD, articles":   ("x.json", '{"data": [{"title": "x"}]}', {}, "SQuAD 'paragraphs'"),
    "SQuAD, questions":  ("x.json", '{"data": [{"paragraphs": [{"context": "c", "qas": [{"id": 1}]}]}]}', {},
                          "article~1 paragraph~1 question~1 SQuAD 'question'"),
    "SQuAD, words":      ("x.json", '{"data": ["rocket"]}', {}, "SQuAD data"),
    "long row":          ("x.csv", "a,b\n1,2\n1,2,3\n", {}, "line~3 3~fields '3' expected~2 'a',~'b'"),
    "short row":         ("x.csv", "a,b\n1,2\n1\n", {}, "line~3 1~fields expected~2"),
    "row after lines":   ("x.csv", 'a,b\n"1\n1",2\n1\n', {}, "line~4 1~fields expected~2"),
    "ragged TSV":        ("x.tsv", "a\tb\tc\n", dict(column_names=("source", "target")),
                          "line~1 3~fields 'source'"),
    "open quote":        ("x.csv", 'a,b\n1,2\n"1,2\n1,2\n', {}, "line~3 CSV quote"),
    "quote inside":      ("x.csv", 'a,b\n"1"2,2\n', {}, "line~2 CSV quote tsv"),
    "no header":         ("x.csv", "1,1\n2,2\n", {}, "line~1 header '1' column_names"),
    "blank name":        ("x.tsv", "a\t\n1\t2\n", {}, "line~1 header names"),
    "no label":          ("x", "rocket\n", dict(format="labeled"), "line~1 'rocket' label"),
    "no tag":            ("x.conll", "EU B\n\nrejects\n", {}, "line~3 'rejects' 2~columns"),
    "ragged sentence":   ("x.conll", "EU N B\nrejects O\n", {}, "line~2 'rejects~O' 3~columns"),
    "columns by name":   ("x.conll", "EU N B\n", dict(column_names=("words", "tags")),
                          "line~1 'EU~N~B' 2~columns"),
    "wrong column":      ("x.jsonl", '{"a": 1, "b": 2}', dict(columns={"text": "review", "label": "a.x"}),
                          "line~1 'review'~(for~text) 'a.x'~(for~label) 'a',~'b'"),
    "column of some":    ("x.jsonl", '{"a": 1}\n{"b": 2}', dict(columns={"text": "a"}), "line~2 'a' 'b'"),
    "unknown name":      ("x.rocket", "a", {}, "x.rocket format jsonl"),
    "needless names":    ("x.jsonl", '{"a": 1}', dict(column_names=("b",)), "'b' jsonl columns"),
    "needless comma":    ("x.jsonl", '{"a": 1}', dict(separator=","), "',' csv~and~tsv"),
    "images":            ("x.txt", "a", dict(format="images"), "folder~of~images"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_input(case: str, write: Write) -> None:
    name, content, options, words = BAD_FILES[case]
    path = write(name, content)
    check_error(
        lambda: read(path, **options), path, *(word.replace("~", " ") for word in words.split())
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(format="rocket"), "'rocket' jsonl"),
        (dict(unit="rocket"), "'rocket' line"),
        (dict(encoding="rocket"), "'rocket' utf-8"),
        (dict(encoding="utf-16"), "'utf-16' utf-8"),
        (dict(encoding="rot13"), "'rot13' utf-8"),
        (dict(column_names="text"), "'text'"),
        (dict(column_names=("a", "a")), "'a'"),
        (dict(columns={"text": 5}), "5"),
        (dict(separator=""), "''"),
        (dict(separator="::"), "'::'"),
    ],
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    check_error(lambda: Corpus("x.txt", **options), *words.split())


def test_bad_paths(write: Write, tmp_path: Path) -> None:
    check_error(lambda: read(tmp_path / "no.txt"), "no.txt", "no files found")
    check_error(lambda: read([tmp_path / "no.txt", tmp_path / "*.csv"]), "no.txt", "*.csv")
    check_error(lambda: read([]), "no path")
    write("a.de", "1\n2\n3\n")
    write("a.en", "1\n")
    message = check_error(
        lambda: read([tmp_path / "a.de", tmp_path / "a.en"]), "a.de has 3", "a.en has 1"
    )
    assert "expected the same number of lines" in message
    check_error(
        lambda: read([tmp_path / "a.de"], format="parallel"), "1 file", "'source', 'target'"
    )
    check_error(
        lambda: read([tmp_path / "a.de"] * 3, format="parallel"), "3 files", "'source', 'target'"
    )


def test_a_line_without_end(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("x.txt", f"a\n{'b' * 100}\n")
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 50)
    check_error(lambda: read(path), path, "line 2", "50 bytes")
    check_error(lambda: read(path, unit="file"), path, "line 2", "50 bytes")


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


# --- records and streams --------------------------------------------------------------------------


def test_a_record_knows_its_location(write: Write) -> None:
    path = write("x.csv", 'text,n\n"a\nb",1\nc,2\n')
    records = list(Corpus(path, columns={"t": "text"}))
    assert [record.location for record in records] == [f"{path}, line 2", f"{path}, line 4"]
    assert records[0].get_text("t") == "a\nb"
    check_error(lambda: records[0].get_text("x"), path, "line 2", "'x'", "'t'")
    check_error(
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


def test_fingerprint(write: Write, tmp_path: Path) -> None:
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


def test_every_format_is_tested() -> None:
    formats = {options.get("format") for _, _, options, _ in FORMATS.values()}
    suffixes = {name.partition(".")[2].lower() for name, *_ in FORMATS.values()}
    untested = set(CORPUS_FORMATS) - formats - suffixes
    assert untested == {"parallel", "parquet", "images"}  # these have their own tests


# --- real files -----------------------------------------------------------------------------------

# Files under shared/data, options, number of records, a column of the first record, its start.
# fmt: off
COLA = dict(column_names=("origin", "label", "mark", "text"))
TREC = dict(format="labeled", encoding="latin-1")
AESLC = dict(columns={"source": "body", "target": "subject"})
PAIRS = dict(column_names=("target", "source"))
REAL: list[tuple[str, Any, int, str, str]] = [
    ("imdb/train.jsonl.xz",                       {},    25_000,  "text",     "Story of a man"),
    ("imdb/test.jsonl.xz",                        {},    25_000,  "text",     "Once again"),
    ("sst2_glue/train.tsv.xz",                    {},    67_349,  "sentence", "hide new"),
    ("sst2_glue/dev.tsv.xz",                      {},    872,     "sentence", "it 's a charming"),
    ("cola/train.tsv.xz",                         COLA,  7_250,   "text",     "Our friends"),
    ("cola/test.tsv.xz",                          {},    1_063,   "sentence", "Bill whistled"),
    ("trec6/TREC.train.xz",                       TREC,  5_452,   "text",     "How did serfdom"),
    ("trec6/TREC.test.xz",                        TREC,  500,     "label",    "NUM:dist"),
    ("wnut17/wnut17train.conll.xz",               {},    3_394,   "words",    "@paulwalk"),
    ("wnut17/emerging.dev.conll.xz",              {},    1_009,   "words",    "Stabilized"),
    ("wnut17/emerging.test.annotated.xz",         dict(format="conll"), 1_287, "tags", "O"),
    ("squad_v1.1/train-v1.1.json.xz",             {},    87_599,  "context",  "Architecturally"),
    ("squad_v1.1/dev-v1.1.json.xz",               {},    10_570,  "question", "Which NFL team"),
    ("aeslc/train.jsonl.xz",                      AESLC, 14_436,  "source",   "Greg/Phillip"),
    ("multi30k/train.de.xz multi30k/train.en.xz", {},    29_000,  "target",   "Two young"),
    ("flores/dev.en.xz flores/dev.fr.xz",         {},    997,     "source",   "On Monday"),
    ("tatoeba/deu-eng.tsv.xz",                    PAIRS, 169_197, "source",   "Hallo!"),
    ("tatoeba/fra-eng.tsv.xz",                    PAIRS, 167_130, "target",   "Go."),
    ("wikitext2/valid.txt.xz",                    dict(unit="document"), 1_160, "text", " = Homarus"),
    ("tinyshakespeare/input.txt.xz",              dict(unit="file"), 18, "text", "First Citizen:\nBefore"),
]
# fmt: on


@pytest.mark.parametrize("row", REAL, ids=[row[0] for row in REAL])
def test_real_files(row: tuple[str, Any, int, str, str], shared: Path) -> None:
    names, options, num_records, column, start = row
    paths = [shared / "data" / name for name in names.split()]
    if not all(path.exists() for path in paths):
        pytest.skip(f"needs {names} in {shared / 'data'}")
    records = list(Corpus(paths, **options))
    assert len(records) == num_records
    value = records[0][column]
    assert (value[0] if isinstance(value, list) else str(value)).startswith(start)
    assert all(record.keys() == records[0].keys() for record in records)


def test_answers_are_where_squad_says(shared: Path) -> None:
    path = shared / "data" / "squad_v1.1" / "dev-v1.1.json.xz"
    if not path.exists():
        pytest.skip(f"needs {path}")
    for record in Corpus(path):
        answers: Any = record["answers"]
        assert answers
        for answer in answers:
            assert record.get_text("context")[answer["start"] :].startswith(answer["text"])


def test_every_character_is_read(shared: Path) -> None:
    path = shared / "data" / "tinyshakespeare" / "input.txt.xz"
    if not path.exists():
        pytest.skip(f"needs {path}")
    assert sum(len(record.get_text("text")) for record in Corpus(path, unit="file")) == 1_115_394
