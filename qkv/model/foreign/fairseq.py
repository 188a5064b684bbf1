"""Loading of fairseq checkpoints: RoBERTa, and translation models of the architecture `transformer`."""

from __future__ import annotations

from pathlib import Path

from qkv.model.foreign.checkpoint import ForeignCheckpoint, build_foreign_model
from qkv.model.foreign.fairseq_roberta import is_roberta, map_roberta
from qkv.model.foreign.fairseq_transformer import is_transformer, map_transformer
from qkv.model.model import Model
from qkv.weights.formats.fairseq import read_fairseq


def is_fairseq(path: str | Path) -> bool:
    """Return whether a path is a .pt file, or a folder with one and without a config.json."""
    path = Path(path)
    if path.is_dir():
        return not (path / "config.json").exists() and any(path.glob("*.pt"))
    return path.suffix == ".pt" and path.is_file()


def load_fairseq(path: str | Path, head: str | None = None) -> Model:
    """Load a model of fairseq: a .pt file, or its folder with its dictionaries.

    `head` is that of a RoBERTa: "lm" or the name of a classification head; the default is the only
    classification head, else "lm"."""
    return build_foreign_model(read_fairseq_checkpoint(Path(path), head))


def read_fairseq_checkpoint(path: Path, head: str | None = None) -> ForeignCheckpoint:
    """Read a checkpoint and map it to a family."""
    data = read_fairseq(path)
    if is_roberta(data):
        return map_roberta(data, head)
    if not is_transformer(data):
        architecture = data.config.get("arch", data.config.get("_name"))
        raise ValueError(
            f"{data.path}: a fairseq model of the architecture {architecture!r}, which qkv does not "
            "read; supported: RoBERTa, BART and transformer (encoder and decoder)"
        )
    if head is not None:
        raise ValueError(
            f"{data.path}: head {head!r}, expected none: a translation model has one head"
        )
    return map_transformer(data)
