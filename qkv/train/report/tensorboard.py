"""Board: reports as events of TensorBoard, where that is installed."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from qkv.train.loop.trainer import Report


def board(folder: Path) -> Callable[[Report], None]:
    """Writes every value of a report under its kind and name, into `board/` of a run."""
    if find_spec("tensorboard") is None:
        return lambda report: None
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "board"))

    def write(report: Report) -> None:
        values = dict(report.values)
        if report.kind == "train":
            values |= {"rate": report.rate, "tokens_per_second": report.tokens_per_second}
        for name, value in values.items():
            writer.add_scalar(f"{report.kind}/{name}", value, report.step)
        writer.flush()

    return write
