"""NumPy's .npz files, read as tensors. Does not depend on names of tensors."""

from collections.abc import Callable
from pathlib import Path

import numpy
import torch
from torch import Tensor

from qkv.files import DAMAGED_FILE_HINT, format_error
from qkv.weights.file_type import ZIP, check_zip_file, detect_file_type, suggest_fix


def read_npz(
    path: Path, is_selected: Callable[[str], bool] = lambda name: True
) -> dict[str, Tensor]:
    """Read the selected arrays of a file, which has no arrays of objects."""
    file_type = detect_file_type(path)
    if file_type != ZIP:
        raise ValueError(f"{path}: {file_type}, expected an .npz file; {suggest_fix(file_type)}")
    try:
        with path.open("rb") as file:
            check_zip_file(path, file, is_compressed_allowed=True)
            with numpy.load(file, allow_pickle=False) as arrays:
                return {
                    name: torch.from_numpy(arrays[name])
                    for name in arrays.files
                    if is_selected(name)
                }
    except Exception as error:  # zipfile, zlib, numpy and torch raise different exceptions
        cause = format_error(error)
        if isinstance(error, ValueError) and str(error).startswith(str(path)):
            raise
        raise ValueError(
            f"{path}: {cause}, expected arrays of numbers; {DAMAGED_FILE_HINT}"
        ) from None
