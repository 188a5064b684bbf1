"""Bad files, options and paths give a short error of one line."""

import bz2
import gzip
import lzma
from pathlib import Path
from typing import Any

import pytest

from qkv.data.read import lines
from qkv.data.read.corpus import Corpus
from tests.support.corpora import Write, assert_short_error, read
from tests.support.limits import get_error_message

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
    "two values":        ("x.jsonl", '{"a": 1}\n{"a": 1, "a": 2}\n', {}, "line~2 'a' twice different"),
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
    "same names":        ("x.tsv", "a\t\ta\n1\t2\t3\n", {}, "line~1 header different~names"),
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
def test_a_bad_file_is_an_error(case: str, write: Write) -> None:
    name, content, options, words = BAD_FILES[case]
    path = write(name, content)
    assert_short_error(
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
def test_bad_options_are_errors(options: dict[str, Any], words: str) -> None:
    assert_short_error(lambda: Corpus("x.txt", **options), *words.split())


def test_bad_paths_are_errors(write: Write, tmp_path: Path) -> None:
    assert_short_error(lambda: read(tmp_path / "no.txt"), "no.txt", "no files found")
    assert_short_error(lambda: read([tmp_path / "no.txt", tmp_path / "*.csv"]), "no.txt", "*.csv")
    assert_short_error(lambda: read([]), "no path")
    write("a.de", "1\n2\n3\n")
    write("a.en", "1\n")
    message = assert_short_error(
        lambda: read([tmp_path / "a.de", tmp_path / "a.en"]), "a.de has 3", "a.en has 1"
    )
    assert "expected the same number of lines" in message
    assert_short_error(
        lambda: read([tmp_path / "a.de"], format="parallel"), "1 file", "'source', 'target'"
    )
    assert_short_error(
        lambda: read([tmp_path / "a.de"] * 3, format="parallel"), "3 files", "'source', 'target'"
    )


def test_a_line_without_end_is_an_error(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("x.txt", f"a\n{'b' * 100}\n")
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 50)
    assert_short_error(lambda: read(path), path, "line 2", "50 bytes")
    assert_short_error(lambda: read(path, unit="file"), path, "line 2", "50 bytes")


@pytest.mark.parametrize(("suffix", "module"), [("gz", gzip), ("bz2", bz2), ("xz", lzma)])
def test_a_compressed_file_of_one_repeated_character_is_refused(
    tmp_path: Path, suffix: str, module: Any
) -> None:
    path = tmp_path / f"x.json.{suffix}"
    with module.open(path, "wb") as file:
        for _ in range(32):
            file.write(b" " * 2**20)
    assert path.stat().st_size < 100_000
    message = get_error_message(lambda: read(str(path)))
    assert "100 bytes of text for each byte" in message


@pytest.mark.parametrize("name", ["x.conll", "x.txt"])
def test_a_document_of_very_many_lines_is_an_error(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkv.data.read.formats.MAX_BLOCK_LINES", 1000)
    options: dict[str, Any] = {} if name == "x.conll" else {"unit": "document"}
    (tmp_path / name).write_text("a b\n" * 1000)
    assert len(read(str(tmp_path / name), **options)) == 1
    (tmp_path / name).write_text("a b\n" * 1001)
    with pytest.raises(ValueError, match="1,000 lines without a blank line"):
        read(str(tmp_path / name), **options)
