"""Corpus: files, folders or a hub dataset as one stream of records. Does not depend on tokenizers."""

import codecs
import glob
import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from qkv.data.read import formats
from qkv.data.read.clips import read_clips
from qkv.data.read.idx import is_idx_file, read_idx_images
from qkv.data.read.image_folder import is_image_name, read_image_folder
from qkv.data.read.lines import COMPRESSION_OPENERS, STDIN, TextFile
from qkv.data.read.record import Record, quote_names

HUB_PREFIX = "hf:"
# fmt: off
FORMAT_BY_SUFFIX = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv", ".tsv": "tsv", ".txt": "txt",
    ".conll": "conll", ".parquet": "parquet", ".npz": "clips",
}
# fmt: on
CORPUS_FORMATS = (*dict.fromkeys(FORMAT_BY_SUFFIX.values()), "labeled", "parallel", "images", "idx")
UNIT_READERS = {
    "line": formats.read_text_lines,
    "document": formats.read_text_documents,
    "file": formats.read_text_chunks,
}
DELIMITED_FORMATS = ("csv", "tsv")
HEADERLESS_FORMATS = (*DELIMITED_FORMATS, "conll", "parallel")  # may lack column names
MISSING = object()
CorpusPath = str | Path


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Records of files, folders or a hub dataset; iteration reads them from the start.

        Corpus("reviews.csv.gz", columns={"text": "review", "label": "sentiment"})
        Corpus(["train.de", "train.en"])                        # line by line: source, target
        Corpus("pairs.tsv", column_names=("target", "source"))  # a table without a header
        Corpus("books", unit="document")                        # documents between blank lines
        Corpus("hf:nyu-mll/glue/sst2:train", columns={"text": "sentence", "label": "label"})

    `path` is a file, a folder, a glob, a list of these, `-` for standard input, or a hub dataset as
    `hf:owner/name/config:split`. `columns` selects columns and renames them; `a.b` is key b of
    column a.
    """

    path: CorpusPath | Sequence[CorpusPath] = field(kw_only=False)
    format: str | None = None  # one of CORPUS_FORMATS; None: by the suffix
    columns: Mapping[str, str] | None = None  # new name: column of the file
    column_names: Sequence[str] = ()  # column names of a file without a header
    unit: Literal["line", "document", "file"] = "line"  # unit of plain text
    separator: str | None = None  # None: a tab in TSV; of CSV, the one that splits the first rows
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        if self.format is not None and self.format not in CORPUS_FORMATS:
            raise ValueError(f"format {self.format!r}, expected one of {', '.join(CORPUS_FORMATS)}")
        if self.unit not in UNIT_READERS:
            raise ValueError(f"unit {self.unit!r}, expected one of {', '.join(UNIT_READERS)}")
        try:
            extends_ascii = codecs.encode("\n", self.encoding) == b"\n"
        except LookupError:
            extends_ascii = False
        if not extends_ascii:
            raise ValueError(
                f"encoding {self.encoding!r}, expected utf-8, latin-1 or one that extends ASCII"
            )
        if isinstance(self.column_names, str) or len(set(self.column_names)) < len(
            self.column_names
        ):
            raise ValueError(
                f"column_names {self.column_names!r}, expected a list of different names"
            )
        if self.columns is not None and not all(
            isinstance(name, str) for name in self.columns.values()
        ):
            raise ValueError(
                f"columns {self.columns!r}, expected a column of the file for each new name"
            )
        if self.separator is not None and len(self.separator) != 1:
            raise ValueError(f"separator {self.separator!r}, expected one character")

    def __iter__(self) -> Iterator[Record]:
        for record in self._read_records():
            yield record if self.columns is None else select_columns(record, self.columns)

    def fingerprint(self) -> str:
        """Return a hash of the files (name, size, modification time) and the options."""
        signatures: list[object] = []
        for path in self.list_files():
            if path.startswith(HUB_PREFIX):
                files = [Path(file["filename"]) for file in _load_hub_dataset(path).cache_files]
            else:
                files = _list_files(Path(path)) if os.path.isdir(path) else [Path(path)]
            signatures += [_get_file_signature(file) for file in files]
        options = {name: value for name, value in vars(self).items() if name != "path"}
        content = json.dumps([signatures, options], sort_keys=True, default=dict)
        return hashlib.sha256(content.encode()).hexdigest()

    def list_files(self) -> list[str]:
        """Return all files in order; a folder of images or a hub dataset is one item."""
        paths = [self.path] if isinstance(self.path, str | Path) else list(self.path)
        files_by_path = {str(path): self._find_files(str(path)) for path in paths}
        missing = [path for path, files in files_by_path.items() if not files]
        if missing or not files_by_path:
            raise ValueError(
                f"{', '.join(missing) or 'no path'}: no files found; "
                "expected a file, a folder, a glob, - or hf:owner/name; is the path right?"
            )
        return [file for path in paths for file in files_by_path[str(path)]]

    def _find_files(self, path: str) -> list[str]:
        if os.path.isdir(path):
            return self._list_folder(path)
        if path == STDIN or path.startswith(HUB_PREFIX) or os.path.exists(path):
            return [path]
        return sorted(file for file in glob.glob(path, recursive=True) if not os.path.isdir(file))

    def _list_folder(self, path: str) -> list[str]:
        files = [str(file) for file in _list_files(Path(path))]
        if self.format == "images" or (
            self.format is None and any(is_image_name(Path(file)) for file in files)
        ):
            return [path]
        if self.format is not None:
            return files
        formats_by_file = {
            file: file_format for file in files if (file_format := _guess_format(file))
        }
        if len(set(formats_by_file.values())) == 1:
            return list(formats_by_file)
        names = ", ".join(os.path.relpath(file, path) for file in formats_by_file or files)[:200]
        raise ValueError(
            f"{path}: expected files of one format ({', '.join(FORMAT_BY_SUFFIX)}), "
            f"found {names or 'nothing'}; set `format`, or use a glob such as *.txt"
        )

    def _read_records(self) -> Iterator[Record]:
        files = self.list_files()
        if self.format == "parallel" or (self.format is None and _are_parallel_files(files)):
            names = self.column_names or ("source", "target")
            if len(names) != len(files):
                raise ValueError(
                    f"{len(files)} files ({quote_names(files)}), expected {len(names)}: {quote_names(names)}"
                )
            yield from formats.read_parallel_files(
                [TextFile(path, self.encoding) for path in files], names
            )
            return
        for path in files:
            is_empty = True
            for record in self._read_file(path):
                is_empty = False
                yield record
            if is_empty:
                raise ValueError(f"{path}: no records; is it empty, or in another format?")

    def _read_file(self, path: str) -> Iterator[Record]:
        if path.startswith(HUB_PREFIX):
            return (
                Record(row, f"{path}, row {n}") for n, row in enumerate(_load_hub_dataset(path), 1)
            )
        columns = self.columns or {}
        file_format = "images" if os.path.isdir(path) else self.format or _guess_format(path)
        if file_format is None and path != STDIN and (is_idx_file(path) or "-idx" in path):
            file_format = "idx"
        if self.column_names and file_format not in HEADERLESS_FORMATS:
            raise ValueError(
                f"{path}: column_names {quote_names(self.column_names)}, "
                f"but a {file_format} file names its columns; use `columns`"
            )
        if self.separator and file_format not in DELIMITED_FORMATS:
            raise ValueError(
                f"{path}: separator {self.separator!r}, but only {' and '.join(DELIMITED_FORMATS)} have one"
            )
        file = TextFile(path, self.encoding)
        match file_format:
            case "jsonl":
                return formats.read_jsonl(file)
            case "json":
                return formats.read_json_records(file)
            case "csv":
                return formats.read_delimited_table(
                    file, self.column_names, self.separator, has_quotes=True
                )
            case "tsv":
                return formats.read_delimited_table(
                    file, self.column_names, self.separator, has_quotes=False
                )
            case "txt":
                return UNIT_READERS[self.unit](file)
            case "labeled":
                return formats.read_labeled_lines(file)
            case "conll":
                return formats.read_conll(file, self.column_names)
            case "parquet":
                return formats.read_parquet(
                    file, [name.partition(".")[0] for name in columns.values()]
                )
            case "images":
                return read_image_folder(Path(path), columns.get("image", "image"), self.encoding)
            case "idx":
                return read_idx_images(file)
            case "clips":
                return read_clips(path)
        raise ValueError(
            f"{file}: unknown format; set `format` to one of {', '.join(CORPUS_FORMATS)}"
        )


def _guess_format(path: str) -> str | None:
    """Return the format by the suffix of a file."""
    return FORMAT_BY_SUFFIX.get(_strip_compression_suffix(path).suffix.lower())


def _strip_compression_suffix(path: str) -> Path:
    name = Path(path)
    return name.with_suffix("") if name.suffix in COMPRESSION_OPENERS else name


def _are_parallel_files(paths: list[str]) -> bool:
    """Return whether the files are one text in several languages, such as train.de and train.en."""
    names = [_strip_compression_suffix(path) for path in paths]
    suffixes = {name.suffix for name in names}
    if len(paths) < 2 or len({name.stem for name in names}) > 1:
        return False
    return len(suffixes) == len(paths) and not suffixes & FORMAT_BY_SUFFIX.keys()


def _list_files(folder: Path) -> list[Path]:
    """Return the files of a folder and its subfolders, sorted, without hidden files."""
    files = (file for file in folder.rglob("[!.]*") if file.is_file())
    return sorted(
        file for file in files if not any(part[0] == "." for part in file.relative_to(folder).parts)
    )


def _get_file_signature(file: Path) -> object:
    if not file.is_file():  # a pipe, whose content may differ each time
        return uuid.uuid4().hex
    stat = file.stat()
    return file.name, stat.st_size, stat.st_mtime_ns


def _load_hub_dataset(path: str) -> Any:
    """Load a hub dataset, which is downloaded once and memory-mapped."""
    datasets = formats.import_optional("datasets", path)
    location, _, split = path.removeprefix(HUB_PREFIX).partition(":")
    owner, _, rest = location.partition("/")
    name, _, config = rest.partition("/")
    try:
        return datasets.load_dataset(
            f"{owner}/{name}" if name else owner, config or None, split=split or "train"
        )
    except Exception as error:  # the hub, the network or the dataset's files
        cause = " ".join(str(error).split())[:200]
        raise ValueError(
            f"{path}: {cause}; expected hf:owner/name or hf:owner/name/config:split"
        ) from None


def select_columns(record: Record, columns: Mapping[str, str]) -> Record:
    """Return the selected columns of a record under their new names; `a.b` is key b of column a."""
    selected: dict[str, object] = {}
    missing = []
    for new_name, column in columns.items():
        value: object = record
        for key in (column,) if column in record else column.split("."):
            value = value.get(key, MISSING) if isinstance(value, dict) else MISSING
        selected[new_name] = value
        if value is MISSING:
            missing.append(f"{column!r} (for {new_name})")
    if missing:
        raise ValueError(
            f"{record.location}: no column {', '.join(missing)}; found {quote_names(record)}; "
            "check data.columns"
        )
    return Record(selected, record.location, tuple(record))
