"""Every format is read as records, compressed or not."""

import bz2
import codecs
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qkv.data.read.corpus import CORPUS_FORMATS, Corpus
from tests.support.corpora import Write, assert_short_error, read

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
    "csv of Excel":      ("x.csv", '\ufefftext;label\r\n"a\n;b, c";1,5\r\n', {},
                          [{"text": "a\n;b, c", "label": "1,5"}]),
    "csv, commas; no header": ("x.csv", "a, b;1\nc;0\n", dict(column_names=("text", "label")),
                               [{"text": "a, b", "label": "1"}, {"text": "c", "label": "0"}]),
    "csv, tabs":         ("x.csv", "text\tlabel\na\t1\nü\t0\n", {}, CELLS),
    "csv, bars":         ("x.csv", "text|label\na|1\nü|0\n", {}, CELLS),
    "csv, marks in text": ("x.csv", "text,n\na; b | c,1\nd; e | f,2\n", {},
                           [{"text": "a; b | c", "n": "1"}, {"text": "d; e | f", "n": "2"}]),
    "csv, one column":   ("x.csv", "text\na; b\nc; d\n", {}, [{"text": "a; b"}, {"text": "c; d"}]),
    "csv, one, no header": ("x.csv", "a; b\nc; d\n", dict(column_names=("text",)),
                            [{"text": "a; b"}, {"text": "c; d"}]),
    "csv, long field":   ("x.csv", f"text\n{'a' * 200_000}\n", {}, [{"text": "a" * 200_000}]),
    "csv, empty fields": ("x.csv", "text,label\n,\n", {}, [{"text": "", "label": ""}]),
    "csv, index":        ("x.csv", ",text\n0,a\n", {}, [{"column1": "0", "text": "a"}]),
    "csv, last comma":   ("x.csv", "text,label, \na,1,\n", {},
                          [{"text": "a", "label": "1", "column3": ""}]),
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
def test_a_format_is_read(case: str, suffix: str, write: Write) -> None:
    name, content, options, records = FORMATS[case]
    path = write(name + suffix, COMPRESSORS[suffix](content.encode()))
    assert read(path, **options) == records
    assert read(str(path), **options) == records


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("mark", [codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE])
@pytest.mark.parametrize(
    "case", ["csv, quoted", "csv of Excel", "tsv", "json", "odd line ends", "a file"]
)
def test_utf_16_is_read(case: str, mark: bytes, suffix: str, write: Write) -> None:
    name, content, options, records = FORMATS[case]
    encoding = "utf-16-le" if mark == codecs.BOM_UTF16_LE else "utf-16-be"
    data = mark + content.removeprefix("\ufeff").encode(encoding)
    path = write(name + suffix, COMPRESSORS[suffix](data))
    assert read(path, **options) == records


def test_a_long_file_of_utf_16_is_read(write: Write) -> None:
    texts = ["a😀ü" * 70_000, "", "b" * 200_000, "\u2028"]
    path = write("x.txt", "\n".join(texts).encode("utf-16"))
    assert [record["text"] for record in read(path)] == texts


def test_a_separator_is_detected_by_the_first_rows(write: Write) -> None:
    """A field that continues after the lines of the sample does not count."""
    rows = "".join(f"text {i};{i}\n" for i in range(18))
    path = write("x.csv", f'text;label\n{rows}"a\n{"x;y" * 9}";9\n')
    records = read(path)
    assert len(records) == 19
    assert records[-1] == {"text": "a\n" + "x;y" * 9, "label": "9"}


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_parallel_files_are_read(suffix: str, write: Write) -> None:
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


def test_parquet_is_read(write: Write, tmp_path: Path) -> None:
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
    assert_short_error(
        lambda: read(tmp_path / "x.parquet", columns={"text": "txt"}),
        "row 1",
        "'txt'",
        "'text', 'label'",
    )
    truncated = write("truncated.parquet", (tmp_path / "x.parquet").read_bytes()[:5000])
    assert_short_error(lambda: read(truncated), "truncated.parquet", "Parquet")
    assert_short_error(lambda: read(write("no.parquet", "text\n")), "no.parquet", "Parquet")


def test_images_and_captions_are_read(write: Write, tmp_path: Path) -> None:
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
    assert_short_error(lambda: read(folder), "a.jpg", "a.txt", "captions")
    # One file for all images; the first of TABLE_FILES counts.
    write("pictures/captions.jsonl", '{"image": "deep/b.PNG", "caption": "one"}\n')
    assert read(folder) == [{"image": str(folder / "deep/b.PNG"), "caption": "one"}]
    write("pictures/captions.csv.gz", gzip.compress(b'file,title\na.jpg,"one, two"\n'))
    columns = {"image": "file", "caption": "title"}
    assert read(folder, columns=columns) == [
        {"image": str(folder / "a.jpg"), "caption": "one, two"}
    ]
    assert_short_error(
        lambda: read(folder), "captions.csv.gz, line 2", "'image'", "'file', 'title'"
    )
    write("pictures/captions.tsv", "image\tcaption\na.jpg\tone\n")
    assert read(folder) == [{"image": str(folder / "a.jpg"), "caption": "one"}]
    write("pictures/captions.txt", "a.jpg#0\tone\na.jpg#1\ttwo\n")
    assert [record["caption"] for record in read(folder)] == ["one", "two"]
    write("pictures/captions.txt", "a.jpg\tone\nmissing.jpg\ttwo\n")
    assert_short_error(lambda: read(folder), "captions.txt, line 2", "missing.jpg", folder)


def test_every_format_is_tested() -> None:
    formats = {options.get("format") for _, _, options, _ in FORMATS.values()}
    suffixes = {name.partition(".")[2].lower() for name, *_ in FORMATS.values()}
    untested = set(CORPUS_FORMATS) - formats - suffixes
    assert untested == {
        "parallel",
        "parquet",
        "images",
        "idx",
        "clips",
    }  # these have their own tests


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
def test_real_files_are_read(row: tuple[str, Any, int, str, str], shared: Path) -> None:
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
