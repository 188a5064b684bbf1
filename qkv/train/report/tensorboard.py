"""Reports as TensorBoard events, if TensorBoard is installed. Written without the thread of its writers,
which prints a traceback if the folder is removed."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from qkv.train.loop.trainer import Report

EVENT_FILE_VERSION = "brain.Event:2"


def make_tensorboard_callback(folder: Path) -> Callable[[Report], None]:
    """Return a callback that writes every metric as `phase/name` into the run's `tensorboard/`.

    Every process appends to a file of its own, whose first event hides later steps of earlier files."""
    if find_spec("tensorboard") is None:
        return lambda report: None
    events = import_module("tensorboard.compat.proto.event_pb2")
    summaries = import_module("tensorboard.compat.proto.summary_pb2")
    record_writer = import_module("tensorboard.summary.writer.record_writer")
    name = f"events.out.tfevents.{int(time.time()):010}.{socket.gethostname()}.{os.getpid()}"
    path = folder / "tensorboard" / name

    def write_report(report: Report) -> None:
        metrics = dict(report.metrics)
        if report.phase == "train":
            metrics |= {"lr": report.lr, "tokens_per_second": report.tokens_per_second}
        new_events = [
            events.Event(
                wall_time=time.time(),
                step=report.step,
                summary=summaries.Summary(
                    value=[
                        summaries.Summary.Value(tag=f"{report.phase}/{name}", simple_value=value)
                        for name, value in metrics.items()
                    ]
                ),
            )
        ]
        if not path.exists():
            start = events.SessionLog(status=events.SessionLog.START)
            new_events = [
                events.Event(wall_time=time.time(), file_version=EVENT_FILE_VERSION),
                events.Event(wall_time=time.time(), step=report.step, session_log=start),
                *new_events,
            ]
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as file:
            writer = record_writer.RecordWriter(file)
            for event in new_events:
                writer.write(event.SerializeToString())

    return write_report
