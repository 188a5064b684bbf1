"""The files of a tokenizer, read with care and written whole. Knows no format but JSON."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

LIMIT = 256 * 2**20  # bytes: the largest published vocabularies are a tenth of it
DAMAGED = "the file is cut or damaged; download or copy it again"
TEMPORARY = ".tmp"

Json: TypeAlias = dict[str, object]


@contextmanager
def one_line(what: Path | str) -> Iterator[None]:
    """Whatever a library says, or panics, about bad data becomes a ValueError of one line."""
    home = what.parent if isinstance(what, Path) else what
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:  # a panic in Rust is not an Exception
        if isinstance(error, ValueError) and str(error).startswith(str(home)):
            raise  # it says which file already
        cause = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(f"{what}: {cause}") from None


def read_bytes(path: Path) -> bytes:
    """What a regular file holds; opening a pipe or a device could wait for ever."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{path}: a folder, pipe or device; expected a regular file")
        if found.st_size > LIMIT:
            raise ValueError(
                f"{path}: {found.st_size} bytes, expected at most {LIMIT}; is it the right file?"
            )
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; expected a file that can be read") from None
    if not data:
        raise ValueError(f"{path}: empty; {DAMAGED}")
    return data


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, with plain line ends."""
    try:
        text = read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text at byte {error.start}; {DAMAGED}") from None
    return text.replace("\r\n", "\n")


def read_json(path: Path, *, strict: bool = False) -> Json:
    """The JSON object in a file; a strict one names nothing twice."""
    try:
        value = json.loads(read_text(path), object_pairs_hook=_once if strict else None)
    except RecursionError:
        raise ValueError(f"{path}: JSON nested too deep to read; is this the right file?") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not JSON ({error}); {DAMAGED}") from None
    except KeyError as error:
        raise ValueError(f"{path}: {error.args[0]!r} is there twice, expected once") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path}: a JSON {type(value).__name__}, expected an object {{...}}")
    return value


def _once(pairs: list[tuple[str, object]]) -> Json:
    found: Json = {}
    for key, value in pairs:
        if key in found:
            raise KeyError(key)
        found[key] = value
    return found


def to_json(value: object) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files under temporary names; once all are whole on disk, name them."""
    temporary = {name: folder / (name + TEMPORARY) for name in files}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            with temporary[name].open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        for name, path in temporary.items():
            path.replace(folder / name)
    except OSError as error:
        raise OSError(f"{folder}: not written: {error.strerror}") from error
    finally:
        for path in temporary.values():
            with suppress(OSError):
                path.unlink()
