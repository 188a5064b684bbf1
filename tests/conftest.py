"""Fixtures and settings of all tests: no network, one thread, a fixed seed, data folders."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
# Processes that tests start use as many threads as the tests: their threads would compete.
os.environ.setdefault("OMP_NUM_THREADS", os.environ.get("QKV_THREADS", "1"))

import random
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent

torch.set_num_threads(int(os.environ.get("QKV_THREADS", "1")))


@pytest.fixture(scope="session", autouse=True)
def _create_cuda_context() -> None:
    """Create the CUDA context of autograd's thread here, because creating it raises a warning."""
    if os.environ.get("QKV_DEVICE", "cpu") != "cpu":
        x = torch.ones(2, 2, device=os.environ["QKV_DEVICE"], requires_grad=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (x @ x).sum().backward()


@pytest.fixture(scope="session", autouse=True)
def _use_cpu() -> Iterator[None]:
    """Make the device `auto` the CPU, or QKV_DEVICE: results are compared with those of a CPU."""
    name = os.environ.get("QKV_DEVICE", "cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qkv.model.device.find_fastest_device", lambda: name)
        yield


@pytest.fixture(autouse=True)
def _seed() -> None:
    random.seed(0)
    np.random.seed(0)
    if os.environ.get("QKV_DEVICE", "cpu") == "cpu":
        torch.default_generator.manual_seed(0)  # the seeds of other devices take a millisecond
    else:
        torch.manual_seed(0)


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """A temporary folder, in memory if possible: for tests with thousands of waits for the disk."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared data: `QKV_SHARED`, or `shared` beside the checkout."""
    return find_data_folder("QKV_SHARED", ROOT.parent / "shared")


@pytest.fixture(scope="session")
def checkpoints() -> Path:
    """The folder of published checkpoints: `QKV_MORE_DATA`, or `more-data` in the checkout."""
    return find_data_folder("QKV_MORE_DATA", ROOT / "more-data")


def find_data_folder(variable: str, default: Path) -> Path:
    """Return the folder that an environment variable names; skip the test if there is none."""
    path = Path(os.environ.get(variable, default))
    if not path.is_dir():
        pytest.skip(f"data folder {path} not found: set {variable} to its path")
    return path
