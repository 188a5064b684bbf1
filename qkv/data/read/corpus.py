"""Corpus: files, folders or a hub dataset as one stream of records. Knows no tokens and no tensors."""

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
from qkv.data.read.captions import IMAGES, images
from qkv.data.read.lines import PACKED, STDIN, File
from qkv.data.read.record import Record, listed

HUB = "hf:"
# fmt: off
ENDINGS = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv", ".tsv": "tsv", ".txt": "txt",
    ".conll": "conll", ".parquet": "parquet",
}
# fmt: on
FORMS = (*dict.fromkeys(ENDINGS.values()), "labelled", "parallel", "images")
UNITS = dict(line=formats.lines, document=formats.documents, file=formats.whole)
SEPARATED = ("csv", "tsv")
NAMED = (*SEPARATED, "conll", "parallel")  # forms whose columns may have no names
MISSING = object()
Where = str | Path


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Examples to be read, each time from the start.

        Corpus("reviews.csv.gz", columns={"text": "review", "label": "sentiment"})
        Corpus(["train.de", "train.en"])                       # line by line: source, target
        Corpus("pairs.tsv", names=("target", "source"))        # a table without a header
        Corpus("books", unit="document")                       # a folder; blank lines between documents
        Corpus("hf:nyu-mll/glue/sst2:train", columns={"text": "sentence", "label": "label"})

    `path` is a file, a folder, a glob, several of these, `-` for standard input, or a dataset of the hub as
    `hf:owner/name/config:split`. `columns` picks columns and names them anew; `a.b` is what a holds under b.
    """

    path: Where | Sequence[Where] = field(kw_only=False)
    form: str | None = None  # one of FORMS; None: by the ending of the name
    columns: Mapping[str, str] | None = None  # our name: the file's
    names: Sequence[str] = ()  # the columns, where the file does not name them
    unit: Literal["line", "document", "file"] = "line"  # of plain text
    separator: str | None = None  # None: a comma in CSV, a tab in TSV
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        if self.form is not None and self.form not in FORMS:
            raise ValueError(f"form {self.form!r}, expected one of {', '.join(FORMS)}")
        if self.unit not in UNITS:
            raise ValueError(f"unit {self.unit!r}, expected one of {', '.join(UNITS)}")
        try:
            plain = codecs.encode("\n", self.encoding) == b"\n"
        except LookupError:
            plain = False
        if not plain:
            raise ValueError(f"encoding {self.encoding!r}, expected utf-8, latin-1 or one that extends ASCII")
        if isinstance(self.names, str) or len(set(self.names)) < len(self.names):
            raise ValueError(f"names {self.names!r}, expected different names, one a column")
        if self.columns is not None and not all(isinstance(name, str) for name in self.columns.values()):
            raise ValueError(f"columns {self.columns!r}, expected a column of the file for each name of ours")
        if self.separator is not None and len(self.separator) != 1:
            raise ValueError(f"separator {self.separator!r}, expected one character")

    def __iter__(self) -> Iterator[Record]:
        for record in self._records():
            yield record if self.columns is None else _picked(record, self.columns)

    def fingerprint(self) -> str:
        """Changes when a file (its name, size or time) or the way to read it does."""
        stats: list[object] = []
        for path in self.files():
            if path.startswith(HUB):
                held = [Path(file["filename"]) for file in _dataset(path).cache_files]
            else:
                held = _inside(Path(path)) if os.path.isdir(path) else [Path(path)]
            stats += [_stat(file) for file in held]
        options = {name: value for name, value in vars(self).items() if name != "path"}
        return hashlib.sha256(json.dumps([stats, options], sort_keys=True, default=dict).encode()).hexdigest()

    def files(self) -> list[str]:
        """The files that are there, in order; a folder of images and a hub dataset stand for themselves."""
        given = [self.path] if isinstance(self.path, str | Path) else list(self.path)
        found = {str(path): self._find(str(path)) for path in given}
        missing = [path for path, files in found.items() if not files]
        if missing or not found:
            expected = "a file, a folder, a glob, - or hf:owner/name; is the path right?"
            raise ValueError(f"{', '.join(missing) or 'no path'}: nothing there; expected {expected}")
        return [file for path in given for file in found[str(path)]]

    def _find(self, path: str) -> list[str]:
        if os.path.isdir(path):
            return self._folder(path)
        if path == STDIN or path.startswith(HUB) or os.path.exists(path):
            return [path]
        return sorted(file for file in glob.glob(path, recursive=True) if not os.path.isdir(file))

    def _folder(self, path: str) -> list[str]:
        files = [str(file) for file in _inside(Path(path))]
        if self.form == "images" or (self.form is None and any(map(_is_image, files))):
            return [path]
        if self.form is not None:
            return files
        known = {file: form for file in files if (form := _form(file))}
        if len(set(known.values())) == 1:
            return list(known)
        held = ", ".join(os.path.relpath(file, path) for file in known or files)[:200] or "nothing"
        advice = "give a form, or a glob such as *.txt"
        raise ValueError(f"{path}: expected files of one form ({', '.join(ENDINGS)}), found {held}; {advice}")

    def _records(self) -> Iterator[Record]:
        files = self.files()
        if self.form == "parallel" or (self.form is None and _beside(files)):
            names = self.names or ("source", "target")
            if len(names) != len(files):
                expected = f"{len(names)}: {listed(names)}"
                raise ValueError(f"{len(files)} files ({listed(files)}), expected {expected}")
            yield from formats.parallel([File(path, self.encoding) for path in files], names)
            return
        for path in files:
            empty = True
            for record in self._read(path):
                empty = False
                yield record
            if empty:
                raise ValueError(f"{path}: no records; is it empty, or is its form another?")

    def _read(self, path: str) -> Iterator[Record]:
        if path.startswith(HUB):
            return (Record(row, f"{path}, row {n}") for n, row in enumerate(_dataset(path), 1))
        columns = self.columns or {}
        form = "images" if os.path.isdir(path) else self.form or _form(path)
        if self.names and form not in NAMED:
            advice = f"but {form} names its columns; use `columns`"
            raise ValueError(f"{path}: names {listed(self.names)}, {advice}")
        if self.separator and form not in SEPARATED:
            expected = " and ".join(SEPARATED)
            raise ValueError(f"{path}: separator {self.separator!r}, but only {expected} have one")
        file = File(path, self.encoding)
        match form:
            case "jsonl":
                return formats.jsonl(file)
            case "json":
                return formats.json_list(file)
            case "csv":
                return formats.table(file, self.names, self.separator or ",", quoted=True)
            case "tsv":
                return formats.table(file, self.names, self.separator or "\t", quoted=False)
            case "txt":
                return UNITS[self.unit](file)
            case "labelled":
                return formats.labelled(file)
            case "conll":
                return formats.conll(file, self.names)
            case "parquet":
                return formats.parquet(file, [name.partition(".")[0] for name in columns.values()])
            case "images":
                return images(Path(path), columns.get("image", "image"), self.encoding)
        raise ValueError(f"{file}: a form that its name does not tell, expected one of {', '.join(FORMS)}")


def _form(path: str) -> str | None:
    """The form that a file's name tells."""
    return ENDINGS.get(_unpacked(path).suffix.lower())


def _unpacked(path: str) -> Path:
    name = Path(path)
    return name.with_suffix("") if name.suffix in PACKED else name


def _is_image(path: str) -> bool:
    return Path(path).suffix.lower() in IMAGES


def _beside(paths: list[str]) -> bool:
    """Whether these are one text in several languages: train.de, train.en."""
    names = [_unpacked(path) for path in paths]
    endings = {name.suffix for name in names}
    alike = len({name.stem for name in names}) == 1
    return len(paths) > 1 and alike and len(endings) == len(paths) and not endings & ENDINGS.keys()


def _inside(folder: Path) -> list[Path]:
    """The files in a folder and in those below, without hidden ones, in order of their names."""
    files = (file for file in folder.rglob("[!.]*") if file.is_file())
    return sorted(
        file for file in files if not any(part[0] == "." for part in file.relative_to(folder).parts)
    )


def _stat(file: Path) -> object:
    if not file.is_file():  # a pipe: nothing says that it gives the same again
        return uuid.uuid4().hex
    found = file.stat()
    return file.name, found.st_size, found.st_mtime_ns


def _dataset(path: str) -> Any:
    """A dataset of the hub, downloaded once and mapped from the disk."""
    datasets = formats.extra("datasets", path)
    place, _, split = path.removeprefix(HUB).partition(":")
    owner, _, rest = place.partition("/")
    name, _, config = rest.partition("/")
    try:
        return datasets.load_dataset(
            f"{owner}/{name}" if name else owner, config or None, split=split or "train"
        )
    except Exception as error:  # of the hub, of the network, of the dataset's own files
        cause = " ".join(str(error).split())[:200]
        raise ValueError(f"{path}: {cause}; expected hf:owner/name or hf:owner/name/config:split") from None


def _picked(record: Record, columns: Mapping[str, str]) -> Record:
    picked: dict[str, object] = {}
    missing = []
    for ours, theirs in columns.items():
        value: object = record
        for part in (theirs,) if theirs in record else theirs.split("."):
            value = value.get(part, MISSING) if isinstance(value, dict) else MISSING
        picked[ours] = value
        if value is MISSING:
            missing.append(f"{theirs!r} (for {ours})")
    if missing:
        found = listed(record)
        raise ValueError(
            f"{record.place}: no column {', '.join(missing)}; found {found}; check the names of columns"
        )
    return Record(picked, record.place, tuple(record))
