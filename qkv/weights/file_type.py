"""Types of weight files, and limits of zip files. Reads no tensors."""

import zipfile
from pathlib import Path
from typing import BinaryIO

from qkv.files import DAMAGED_FILE_HINT, get_file_size

SAFETENSORS = "a safetensors file"
ZIP = "a zip file"
PICKLE = "a pickle"
GIT_LFS_POINTER = "a Git LFS pointer"
UNKNOWN = "of unknown type"
# Data may be larger than the file that holds them, but not by more than these.
MAX_EXPANSION = 16
MAX_EXTRA_BYTES = 16 * 2**20


def detect_file_type(path: Path) -> str:
    """Return the type of a file by its first bytes, regardless of its name."""
    get_file_size(path)
    with path.open("rb") as file:
        start = file.read(9)
    if start[8:] == b"{":  # after the length of the header
        return SAFETENSORS
    if start.startswith(b"PK\x03\x04"):
        return ZIP
    if start.startswith(b"\x80"):
        return PICKLE
    if start.startswith(b"version "):
        return GIT_LFS_POINTER
    return UNKNOWN


def suggest_fix(file_type: str) -> str:
    """Return what to do about a file of another type than expected."""
    if file_type == GIT_LFS_POINTER:
        return "run `git lfs pull` to download the file"
    if file_type == UNKNOWN:
        return DAMAGED_FILE_HINT
    return "rename it to the suffix of its type"


def check_expansion(path: Path, num_bytes: int, content: str) -> None:
    """Raise ValueError if the content of a file is far larger than the file."""
    size = get_file_size(path)
    if num_bytes > MAX_EXPANSION * size + MAX_EXTRA_BYTES:
        raise ValueError(
            f"{path}: {num_bytes:,} bytes of {content} in a file of {size:,} bytes, expected at most "
            f"{MAX_EXPANSION} times as many; write the file again without compression or expanded tensors"
        )


def check_zip_file(path: Path, file: BinaryIO, *, is_compressed_allowed: bool) -> None:
    """Raise ValueError if the members of a zip file are far larger than the file, or compressed
    although they must not be."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
    if not is_compressed_allowed:
        for member in members:
            if member.compress_type != zipfile.ZIP_STORED:
                raise ValueError(
                    f"{path}: {member.filename} is compressed, which torch.save never does; "
                    "unzip the file and zip it again without compression (zip -0)"
                )
    check_expansion(path, sum(member.file_size for member in members), "unpacked data")
