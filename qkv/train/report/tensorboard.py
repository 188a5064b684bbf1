"""Reports as TensorBoard events, if TensorBoard is installed."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from qkv.train.loop.trainer import Report


def make_tensorboard_callback(folder: Path) -> Callable[[Report], None]:
    """Return a callback that writes every metric as `phase/name` into the run's `tensorboard/`."""
    if find_spec("tensorboard") is None:
        return lambda report: None
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "tensorboard"))

    def write_report(report: Report) -> None:
        metrics = dict(report.metrics)
        if report.phase == "train":
            metrics |= {"lr": report.lr, "tokens_per_second": report.tokens_per_second}
        for name, value in metrics.items():
            writer.add_scalar(f"{report.phase}/{name}", value, report.step)
        writer.flush()

    return write_report
