"""Overflow modes for texts with more tokens than a row, for all tasks and record encoders;
docs/long-texts.md lists the modes and the default of each.

    "error"     a ValueError with the number of tokens is raised
    "truncate"  tokens at the end are dropped until the text fits
    "window"    the text is split into windows of at most `max_length` tokens

Three tasks differ: TranslateTask and SummarizeTask split at sentences before a text is encoded
(qkv/tasks/chunking.py), and CompleteTask drops the beginning of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qkv.text import Encoding

OVERFLOW_MODES = ("error", "truncate", "window")
ONE_ROW_MODES = ("error", "truncate")  # for tasks and objectives that read a text in one row
DEFAULT_OVERFLOW = "error"
MAX_DEFAULT_STRIDE = 128  # tokens that neighboring windows share


def check_overflow(setting: str, overflow: object, modes: Sequence[str], reader: str) -> None:
    """Raise ValueError unless `overflow` is one of the modes that the reader supports."""
    if overflow not in modes:
        reason = f": {reader} reads a text in one row" if overflow in OVERFLOW_MODES else ""
        raise ValueError(f"{setting} is {overflow!r}, expected one of {', '.join(modes)}{reason}")


def check_overflow_unset(setting: str, overflow: str | None, reader: str, reason: str) -> None:
    """Raise ValueError if `overflow` is set although no text can be too long."""
    if overflow is not None:
        raise ValueError(
            f"{setting} is {overflow!r}, but overflow has no effect for {reader}: {reason}; "
            f"remove {setting}"
        )


def apply_overflow(
    encoding: Encoding,
    max_length: int,
    overflow: str,
    *,
    text_name: str,
    modes: Sequence[str] = OVERFLOW_MODES,
    setting: str = "overflow",
    remedy: str = "shorten the text",
    truncation: str = "longest_first",
    stride: int | None = None,
) -> list[Encoding]:
    """Return the rows of a text, each of at most `max_length` tokens.

    `stride` is the number of tokens that neighboring windows share, None: `compute_default_stride`.
    `truncation` is the strategy of `Encoding.truncate`: "longest_first" truncates the longer text of
    a pair, "only_second" keeps the first, such as a question. `modes`, `setting` and `remedy` are
    for the error message."""
    if len(encoding) <= max_length:
        return [encoding]
    if overflow == "window":
        if stride is None:
            stride = compute_default_stride(encoding, max_length)
        return encoding.split_into_windows(max_length, stride=stride)
    if overflow == "truncate":
        return [encoding.truncate(max_length, strategy=truncation)]
    others = " or ".join(f'"{mode}"' for mode in modes if mode != "error")
    raise ValueError(
        f"{text_name}: {len(encoding):,} tokens, expected at most {max_length:,}; "
        f"{remedy}, or set {setting} to {others}"
    )


def compute_default_stride(encoding: Encoding, max_length: int) -> int:
    """Return the default number of tokens that windows share: half a window, at most 128.

    Tokens that every window has, such as a question, do not count as part of the window."""
    stride = min(max_length // 2, MAX_DEFAULT_STRIDE)
    num_sliding = encoding.sequence_ids.count(1 if 1 in encoding.sequence_ids else 0)
    num_available = max_length - (len(encoding) - num_sliding)
    return stride if stride < num_available else num_available // 2
