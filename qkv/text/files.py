"""Tokenizer files: their names, and validated reading of text and JSON."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from qkv.files import DuplicateKeyError, format_error, merge_equal_keys

MAX_TOKENIZER_FILE_BYTES = 256 * 2**20  # the largest published vocabularies have a tenth
DAMAGED_TOKENIZER_HINT = "the file is truncated or damaged; download or copy it again"

# A folder with one of these has a tokenizer.
VOCABULARY_FILES = """
    tokenizer.json vocab.txt vocab.json encoder.json spiece.model sentencepiece.bpe.model
    tokenizer.model source.spm vocab-src.json bpe_simple_vocab_16e6.txt.gz
""".split()
TOKENIZER_CONFIG_FILES = """
    tokenizer_config.json special_tokens_map.json added_tokens.json merges.txt vocab.bpe target.spm
    target_vocab.json vocab-tgt.json
""".split()
TOKENIZER_FILES = {*VOCABULARY_FILES, *TOKENIZER_CONFIG_FILES}

JsonObject: TypeAlias = dict[str, object]


@dataclass(frozen=True)
class TokenizerFiles:
    """The tokenizer files of a folder, as they were when they were read; config.json, which may state
    the type of the tokenizer, is among them."""

    folder: Path
    contents: dict[str, bytes]

    @classmethod
    def read(cls, folder: Path) -> TokenizerFiles:
        """Read the tokenizer files of a folder; none if it has no vocabulary."""
        paths = list_tokenizer_files(folder)
        if paths and (folder / "config.json").is_file():
            paths.append(folder / "config.json")
        return cls(folder, {path.name: read_bytes(path, allow_empty=True) for path in paths})

    def write(self, folder: Path) -> None:
        """Write the tokenizer files unchanged."""
        for name in TOKENIZER_FILES & self.contents.keys():
            (folder / name).write_bytes(self.contents[name])


def list_tokenizer_files(folder: Path) -> list[Path]:
    """Return the tokenizer files of a folder; empty if it has no vocabulary."""
    names = (*VOCABULARY_FILES, *TOKENIZER_CONFIG_FILES)
    files = {name: folder / name for name in names if (folder / name).is_file()}
    return list(files.values()) if files.keys() & {*VOCABULARY_FILES} else []


def states_model_type(folder: Path) -> bool:
    """Return whether config.json of a folder is that of a model."""
    try:
        config = read_tokenizer_json_object(folder / "config.json")
    except ValueError:
        return False
    return not {"model_type", "architectures"}.isdisjoint(config)


@contextmanager
def reraise_as_value_error(source: Path | str) -> Iterator[None]:
    """Convert errors and Rust panics of libraries about invalid data to a one-line ValueError."""
    prefix = source.parent if isinstance(source, Path) else source
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:  # a panic in Rust is not an Exception
        if isinstance(error, ValueError) and str(error).startswith(str(prefix)):
            raise  # its message contains the file name
        cause = format_error(error)
        raise ValueError(f"{source}: {cause}") from None


def read_bytes(path: Path, *, allow_empty: bool = False) -> bytes:
    """Read a regular file; a pipe or device, which could block forever, is an error."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{path}: a folder, pipe or device; expected a regular file")
        if status.st_size > MAX_TOKENIZER_FILE_BYTES:
            raise ValueError(
                f"{path}: {status.st_size} bytes, expected at most {MAX_TOKENIZER_FILE_BYTES};"
                " is it the right file?"
            )
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; expected a readable file") from None
    if not data and not allow_empty:
        raise ValueError(f"{path}: empty; {DAMAGED_TOKENIZER_HINT}")
    return data


def read_utf8_text(path: Path) -> str:
    """Read a UTF-8 file; CRLF becomes LF."""
    try:
        text = read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: not UTF-8 text at byte {error.start}; {DAMAGED_TOKENIZER_HINT}"
        ) from None
    return text.replace("\r\n", "\n")


def read_tokenizer_json_object(path: Path, *, reject_duplicates: bool = False) -> JsonObject:
    """Read a file with a JSON object; a key with two different values is an error, and with
    `reject_duplicates` any duplicate key."""
    text = read_utf8_text(path)
    try:
        value = json.loads(
            text,
            object_pairs_hook=_reject_duplicate_keys if reject_duplicates else merge_equal_keys,
        )
    except RecursionError:
        raise ValueError(f"{path}: JSON nested too deep to read; is this the right file?") from None
    except DuplicateKeyError as error:
        raise ValueError(f"{path}: {error}; expected each key once") from None
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error}); {DAMAGED_TOKENIZER_HINT}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path}: a JSON {type(value).__name__}, expected an object {{...}}")
    return value


def _reject_duplicate_keys(pairs: list[tuple[str, object]]) -> JsonObject:
    result: JsonObject = {}
    for key, value in pairs:
        if key in result:
            raise DuplicateKeyError(f"{key[:80]!r} is a duplicate key")
        result[key] = value
    return result


def shorten(value: object) -> str:
    """Return the beginning of the repr of a value, for an error message."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:70]}..."


def encode_json(value: object) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")
