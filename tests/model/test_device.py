"""The device of a model: one default, `auto`, in the library, in recipes and on the command line."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import fields

import pytest
import torch

import qkv
from qkv.cli.options import ModelOptions
from qkv.model.device import DEFAULT_DEVICE, find_fastest_device, pick_device
from qkv.tasks.registry import create_task
from qkv.train.recipe import Recipe
from tests.conftest import ROOT
from tests.support.errors import assert_error


def test_the_default_is_auto_everywhere() -> None:
    assert DEFAULT_DEVICE == "auto"
    for function in (qkv.load, qkv.build, qkv.task, create_task):
        assert inspect.signature(function).parameters["device"].default == "auto", function
    for options in (ModelOptions, Recipe):
        defaults = {item.name: item.default for item in fields(options)}
        assert defaults["device"] == "auto", options


def test_auto_is_the_fastest_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.model.device.find_fastest_device", find_fastest_device)
    for has_cuda, has_mps, expected in (
        (True, True, "cuda"),
        (False, True, "mps"),
        (False, False, "cpu"),
    ):
        monkeypatch.setattr(torch.cuda, "is_available", lambda has_cuda=has_cuda: has_cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda has_mps=has_mps: has_mps)
        assert pick_device("auto") == expected
    assert pick_device("cpu") == "cpu"


def test_the_default_needs_no_torch() -> None:
    code = "import sys, qkv.cli, qkv.train.recipe; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.parametrize(
    "device", ["meta", "meta:0", "cpu:1", "cuda:99", "", "abacus", "xla", "fpga"]
)
def test_devices_that_hold_no_values(device: str) -> None:
    message = assert_error(lambda: pick_device(device), f"device {device!r}: expected auto, cpu")
    assert len(message) < 300
