"""Errors of torch and Python that mean that there is not enough memory. Does not depend on torch."""

from __future__ import annotations

# In the messages of RuntimeError: the allocators of the CPU on Linux, macOS and Windows, CUDA's, and its
# libraries, which allocate work space of their own.
MEMORY_ERROR_PHRASES = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "bad_alloc",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
TORCH_MEMORY_ERROR = "OutOfMemoryError"  # the name of the class of torch


def is_memory_error(error: BaseException) -> bool:
    """Return whether an error is, or follows from, a lack of memory of the CPU or of a GPU."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError) or type(cause).__name__ == TORCH_MEMORY_ERROR:
            return True
        if isinstance(cause, RuntimeError) and any(
            phrase in str(cause) for phrase in MEMORY_ERROR_PHRASES
        ):
            return True
        cause = cause.__cause__ or cause.__context__  # such as the end of a failed CUDA graph
    return False
