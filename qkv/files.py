"""Text and JSON files: reading with size and type checks, writing. Does not depend on torch."""

import errno
import json
import os
import re
import stat
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MAX_TEXT_BYTES = 64 * 2**20
MAX_TOML_DEPTH = 100
DAMAGED_FILE_HINT = "the file is truncated or damaged; download or copy it again"


def get_file_size(path: Path) -> int:
    """Return the size of a readable, non-empty regular file.

    Pipes and devices are rejected, because opening them could block."""
    try:
        status = path.stat()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; expected a file; is the path right?") from None
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(
            f"{path}: a folder, pipe or device; expected a regular file; is the path right?"
        )
    if not os.access(path, os.R_OK):
        raise ValueError(f"{path}: not readable by this user; check its permissions")
    if not status.st_size:
        raise ValueError(f"{path}: empty; {DAMAGED_FILE_HINT}")
    return status.st_size


def read_text_file(path: Path) -> str:
    """Return the text of a UTF-8 file, with unchanged line ends."""
    size = get_file_size(path)
    if size > MAX_TEXT_BYTES:
        raise ValueError(
            f"{path}: {size} bytes, expected at most {MAX_TEXT_BYTES}; is this the right file?"
        )
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: not UTF-8 text at byte {error.start}; {DAMAGED_FILE_HINT}"
        ) from None


class DuplicateKeyError(ValueError):
    """A JSON object has a key twice."""


def merge_equal_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object; raise DuplicateKeyError if a key has two different values."""
    values = dict(pairs)
    if len(values) < len(pairs):
        for key, value in pairs:
            if value != values[key]:
                raise DuplicateKeyError(f"the key {key[:80]!r} occurs twice, with different values")
    return values


def read_json_value(path: Path) -> object:
    """Return the JSON value in a file; a key with two different values is an error."""
    text = read_text_file(path)
    try:
        value: object = json.loads(text, object_pairs_hook=merge_equal_keys)
    except RecursionError:
        raise ValueError(f"{path}: JSON nested too deep to read; is this the right file?") from None
    except DuplicateKeyError as error:
        raise ValueError(f"{path}: {error}; remove one of them") from None
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({format_error(error)}); {DAMAGED_FILE_HINT}") from None
    return value


def read_json_object(path: Path) -> dict[str, object]:
    """Return the JSON object in a file."""
    value = read_json_value(path)
    if not isinstance(value, dict):
        type_name = type(value).__name__
        raise ValueError(
            f"{path}: a JSON {type_name}, expected an object {{...}}; is this the right file?"
        )
    return value


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text; raise ValueError if it is not TOML or nested too deep."""
    too_deep = ValueError(f"nested deeper than {MAX_TOML_DEPTH} levels")
    # The parser needs time proportional to the parts of a key, for each part and each line below it.
    num_parts = max(part.count(".") for part in re.split(r"[,=\[\]{}\n]", text))
    if num_parts * (num_parts + text.count("\n")) > 10**7:
        raise too_deep
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise too_deep from None
    level: list[object] = [tables]
    for _ in range(MAX_TOML_DEPTH):
        level = [
            item
            for value in level
            if isinstance(value, dict | list)
            for item in (value.values() if isinstance(value, dict) else value)
        ]
    if level:
        raise too_deep
    return tables


def save_json(data: object, path: Path) -> None:
    """Write a JSON file; keys keep the order of `data`."""
    path.write_bytes((json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode("utf-8"))


def sync_file(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, are on disk.

    A file system that cannot sync a folder is not waited for."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def resolve_inside(folder: Path, name: str) -> Path:
    """Return the path of a file in a folder; raise ValueError if the name or a symbolic link leads
    out of it."""
    path = folder / name
    if Path(name).name != name or "\\" in name or not name.isprintable() or len(name) > 255:
        raise ValueError(f"{name[:255]!r}: not a plain file name; not opened")
    root = Path(os.path.realpath(folder))
    target = Path(os.path.realpath(path))
    # The cache of huggingface_hub: models--X/snapshots/REVISION/file -> models--X/blobs/HASH
    blobs = [
        parent.parent / "blobs"
        for parent in root.parents
        if parent.name == "snapshots" and parent.parent.name.startswith("models--")
    ]
    if not any(target.is_relative_to(allowed) for allowed in (root, *blobs)):
        raise ValueError(f"{path}: leads out of the folder, to {target}; not opened")
    return path


def join_problems(problems: Iterable[str], max_listed: int = 10) -> str:
    """Return the first problems, each of at most 300 characters, and the number of the others."""
    problems = list(problems)
    listed = [escape_unprintable(problem[:300]) for problem in problems[:max_listed]]
    if num_others := len(problems) - len(listed):
        listed.append(f"and {num_others:,} more")
    return "; ".join(listed)


def format_error(error: BaseException) -> str:
    """Return the message of an error on one line of at most 200 characters."""
    return escape_unprintable(" ".join(str(error).split())[:200]) or type(error).__name__


def escape_unprintable(text: str) -> str:
    """Return a text with escapes in place of control characters, such as \\x1b."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
