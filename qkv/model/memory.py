"""The memory of this machine, and whether the weights of a network fit into it. Without /proc (macOS),
nothing is known and nothing is refused."""

from __future__ import annotations

from pathlib import Path

from qkv.formatting import format_count
from qkv.spec import DualSpec, Spec

BYTES_PER_PARAMETER = 4  # fp32
MEMORY_UNITS = (" B", " kB", " MB", " GB", " TB")
# Limit and use of the memory of a container, by version of cgroups.
CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    ),
)


def get_available_memory() -> int | None:
    """Return the number of bytes that this process can still allocate; None if it is unknown.

    The least of free memory and swap, the limit of the container, and the limit of the process."""
    meminfo = read_numbers("/proc/meminfo", scale=1024)
    if "MemAvailable" not in meminfo:
        return None
    available = meminfo["MemAvailable"] + meminfo.get("SwapFree", 0)
    for limit_file, use_file in CGROUP_FILES:
        limit = read_number(limit_file)
        use = read_number(use_file)
        if limit is not None and use is not None:
            available = min(available, limit - use)
    import resource  # not on Windows, which has no /proc

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        used = read_numbers("/proc/self/status", scale=1024).get("VmSize", 0)
        available = min(available, limit - used)
    return max(available, 0)


def read_numbers(path: str, *, scale: int) -> dict[str, int]:
    """Return the numbers of a file with lines such as `MemFree:  1234 kB`."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return {}
    words = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
    return {
        name: int(rest[0]) * scale for name, rest in words.items() if rest and rest[0].isdecimal()
    }


def read_number(path: str) -> int | None:
    """Return the number in a file; None if there is none."""
    try:
        text = Path(path).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def check_memory(num_bytes: int, purpose: str, advice: str) -> None:
    """Raise ValueError if this process cannot allocate so much memory."""
    available = get_available_memory()
    if available is not None and num_bytes > available:
        needed, rest = (format_count(size, MEMORY_UNITS) for size in (num_bytes, available))
        raise ValueError(
            f"{purpose}: {needed} of memory, expected at most the {rest} that are available; {advice}"
        )


def check_spec_memory(spec: Spec | DualSpec) -> None:
    """Raise ValueError if the weights of a network do not fit into the memory, before it is built."""
    import torch

    if torch.get_default_device().type == "meta":  # no memory is needed
        return
    from qkv.model.parameters import build_meta_network  # it imports qkv.model.build

    num_parameters = sum(parameter.numel() for parameter in build_meta_network(spec).parameters())
    check_memory(
        num_parameters * BYTES_PER_PARAMETER,
        f"a model of {num_parameters:,} parameters",
        "choose smaller sizes, such as width, depth or vocab_size",
    )
