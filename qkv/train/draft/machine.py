"""The machine that a drafted recipe is for, and the pretrained encoder that fits it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from qkv.formatting import format_count
from qkv.model.hub import find_model_folder, is_offline

GIGABYTE = 2**30


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The device that `auto` selects, and its memory in bytes."""

    has_gpu: bool
    memory: int

    def __str__(self) -> str:
        device = "a GPU" if self.has_gpu else "a CPU"
        memory = format_count(self.memory, (" B", " kB", " MB", " GB", " TB"))
        return f"{device} with {memory} of memory"


def detect_machine() -> Machine:
    """Return the GPU of this machine, or its CPU."""
    import torch

    if torch.cuda.is_available():
        return Machine(has_gpu=True, memory=torch.cuda.get_device_properties(0).total_memory)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(has_gpu=torch.backends.mps.is_available(), memory=memory)


@dataclass(frozen=True, kw_only=True)
class PretrainedEncoder:
    """A published encoder: what training it needs, and a learning rate for it."""

    name: str
    description: str
    lr: float
    min_memory: float = 0  # gigabytes: 16 bytes per parameter, and the activations of a batch
    needs_gpu: bool = False  # too slow on a CPU

    def fits(self, machine: Machine) -> bool:
        has_memory = machine.memory >= self.min_memory * GIGABYTE
        return has_memory and (machine.has_gpu or not self.needs_gpu)


BERT_UNCASED = PretrainedEncoder(
    name="google-bert/bert-base-uncased",
    description="110M parameters, English",
    lr=5e-5,
    min_memory=8,
    needs_gpu=True,
)
BERT_CASED = replace(BERT_UNCASED, name="google-bert/bert-base-cased")
MINILM = PretrainedEncoder(
    name="sentence-transformers/all-MiniLM-L6-v2",
    description="22.7M parameters, English",
    lr=2e-4,
    min_memory=2,
)
DISTILBERT_UNCASED = PretrainedEncoder(
    name="distilbert/distilbert-base-uncased",
    description="66M parameters, English",
    lr=1e-4,
    min_memory=4,
)
DISTILBERT_CASED = replace(
    DISTILBERT_UNCASED,
    name="distilbert/distilbert-base-cased",
    description="65M parameters, English",
)
BUILTIN_ENCODER = PretrainedEncoder(
    name="builtin:classify",
    description="2.3M parameters, one layer, English; in the package, no download",
    lr=1e-3,
)
# By task, the best first; the last one needs no network.
ENCODERS: dict[str, tuple[PretrainedEncoder, ...]] = {
    "classify": (BERT_UNCASED, MINILM, BUILTIN_ENCODER),
    "tag": (BERT_CASED, DISTILBERT_CASED, BUILTIN_ENCODER),
    "answer": (BERT_UNCASED, DISTILBERT_UNCASED, BUILTIN_ENCODER),
}


def select_encoder(task: str, machine: Machine) -> PretrainedEncoder:
    """Return the first encoder that fits the machine and can be loaded."""
    return next(
        encoder for encoder in ENCODERS[task] if encoder.fits(machine) and is_available(encoder)
    )


def is_available(encoder: PretrainedEncoder) -> bool:
    """Return whether an encoder is in the package or the cache, or may be downloaded."""
    if not is_offline():
        return True
    try:
        find_model_folder(encoder.name, None, download=False)
    except ValueError:
        return False
    return True
