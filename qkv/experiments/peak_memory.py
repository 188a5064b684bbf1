"""PeakMemory: the largest memory use of a block of code, on a GPU or in the process.

On a GPU, it is the memory of tensors. On a CPU with Linux, it is the resident memory of the process,
after free memory has been returned to the system; elsewhere it is not known."""

from __future__ import annotations

import ctypes
import gc
import re
from contextlib import suppress
from pathlib import Path

import torch

STATUS_FILE = Path("/proc/self/status")
RESET_FILE = Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # sets the peak of the resident memory to its current value (man 5 proc)


class PeakMemory:
    """Peak memory in bytes since `reset`, beyond what was in use when the object was created."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.reset()
        self.base = self.read_current()

    def reset(self) -> None:
        """Free what can be freed, and start a new peak at the current use."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        with suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)
            RESET_FILE.write_text(RESET_PEAK)

    def read_current(self) -> int | None:
        """Return the bytes in use."""
        if self.device.type == "cuda":
            return torch.cuda.memory_allocated(self.device)
        return read_status("VmRSS")

    def read_peak(self) -> int | None:
        """Return the peak since `reset`, beyond the use at the start; None: not known."""
        if self.device.type == "cuda":
            peak: int | None = torch.cuda.max_memory_allocated(self.device)
        else:
            peak = read_status("VmHWM")
        return None if peak is None or self.base is None else max(peak - self.base, 0)


def read_status(name: str) -> int | None:
    """Return a size of the status file of the process in bytes, or None without such a file."""
    try:
        text = STATUS_FILE.read_text()
    except OSError:
        return None
    match = re.search(rf"^{name}:\s*(\d+) kB", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else None
