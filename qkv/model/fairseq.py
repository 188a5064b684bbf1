"""RoBERTa checkpoints of fairseq. Runs no code in a file."""

from __future__ import annotations

import argparse
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.families import family
from qkv.families.family import Args
from qkv.families.roberta import FAIRSEQ
from qkv.model.config import write_config
from qkv.model.foreign import Foreign, _arguments, _check_heads, _open, _table
from qkv.model.model import Model
from qkv.weights.tensors import read_torch


def is_fairseq(path: str | Path) -> bool:
    """Is it a .pt file, or a folder without a config.json that holds one? Nothing is opened."""
    path = Path(path)
    if path.is_dir():
        return not (path / "config.json").exists() and any(path.glob("*.pt"))
    return path.suffix == ".pt" and path.is_file()


def open_fairseq(path: str | Path, head: str | None = None) -> Model:
    """A RoBERTa that fairseq saved: a .pt file, or the folder with it and its dict.txt.

    `head` is "lm" or the name of a classification head; None: the only classification head, else "lm"."""
    return _open(read_fairseq(Path(path), head))


# Settings that change the numbers, with the only value that the family has for each.
FAIRSEQ_ONLY: dict[str, Any] = dict(
    activation_fn="gelu", adaptive_input=False, encoder_layers_to_keep=None, encoder_learned_pos=True,
    encoder_normalize_before=False, layernorm_embedding=True, no_scale_embedding=True,
    no_token_positional_embeddings=False, pooler_activation_fn="tanh",
    spectral_norm_classification_head=False,
)  # fmt: skip


FAIRSEQ_SIZES = dict(width="encoder_embed_dim", depth="encoder_layers", feed="encoder_ffn_embed_dim")


FAIRSEQ_NUMBERS = dict(heads="encoder_attention_heads", drop="dropout", attend_drop="attention_dropout")


FAIRSEQ_MORE = """
    encoder.embed.types                  types
    heads.label.(dense|out)              classifier.(dense|out_proj)
"""


STACK = "encoder.sentence_encoder"


PAD = 1  # fairseq's dictionaries begin with <s> <pad> </s> <unk>


def read_fairseq(path: Path, head: str | None = None) -> Foreign:
    """The settings and the tensors of a checkpoint, names of older versions made new."""
    path = _checkpoint(path)
    state = read_torch(path, allow=(argparse.Namespace,))
    held = state.get("model") if isinstance(state, dict) else None
    if not isinstance(state, dict) or not isinstance(held, dict) or not _is_roberta(held):
        raise ValueError(f"{path}: no RoBERTa of fairseq in it; expected `model` with a sentence_encoder")
    settings = _settings(state, path)
    tensors = _respelled(held, path)
    chosen, left = _choose_head(tensors, head, path)
    if left:
        warnings.warn(f"{path}: opened with the head {chosen}, without {', '.join(left)}", stacklevel=4)
    gone = tuple("encoder.lm_head." if name == "lm" else f"classification_heads.{name}." for name in left)
    start = f"classification_heads.{chosen}."
    tensors = {
        f"classifier.{name.removeprefix(start)}" if name.startswith(start) else name: x
        for name, x in tensors.items()
        if not name.startswith(gone)
    }
    tokens = _table(tensors, f"{STACK}.embed_tokens.weight", path)
    places = _table(tensors, f"{STACK}.embed_positions.weight", path)
    feed = len(_table(tensors, f"{STACK}.layers.0.fc1.weight", path))
    layers = {name.split(".")[3] for name in tensors if name.startswith(f"{STACK}.layers.")}
    args: Args = dict(width=tokens.shape[1], depth=len(layers), feed=feed)
    for ours, theirs in FAIRSEQ_SIZES.items():
        if settings.get(theirs, args[ours]) != args[ours]:
            raise ValueError(f"{path}: {theirs} is {settings[theirs]!r}, but its tensors say {args[ours]}")
    args |= {ours: settings[theirs] for ours, theirs in FAIRSEQ_NUMBERS.items() if theirs in settings}
    if "heads" not in args:
        raise ValueError(f"{path}: no {FAIRSEQ_NUMBERS['heads']} in its settings, expected a number")
    _check_heads(args["width"], args["heads"], path)
    if chosen == "lm":
        out = tensors.get("encoder.lm_head.weight", tokens)
        args |= dict(head="masked-lm", tied=torch.equal(out, tokens))
    else:
        labels = len(_table(tensors, "classifier.out_proj.weight", path))
        args |= dict(head="label", labels=labels, label_drop=settings.get("pooler_dropout"))
    kin = family("roberta")
    args |= dict(vocab=len(tokens), length=len(places), types=1, eps=1e-5, pad=PAD)
    args = _arguments(kin, path, **args)
    tensors["types.weight"] = tokens.new_zeros(1, tokens.shape[1])  # fairseq has no types: ours adds 0
    rows = [row for row in FAIRSEQ.splitlines() if "in_proj" not in row]
    return Foreign(path, kin, args, write_config(kin, args), "\n".join(rows) + FAIRSEQ_MORE, tensors)


def _checkpoint(path: Path) -> Path:
    """The file itself, or the one that counts in a folder."""
    if not path.is_dir():
        return path
    found = sorted(path.glob("*.pt"))
    names = ("model.pt", "checkpoint_best.pt", "checkpoint_last.pt", "checkpoint.pt")
    usual = [path / name for name in names if path / name in found]
    if usual or len(found) == 1:
        return (usual or found)[0]
    held = ", ".join(each.name for each in found) or "none"
    raise ValueError(f"{path}: which .pt file? It holds {held}; give the path of one")


def _is_roberta(held: Mapping[Any, Any]) -> bool:
    named = any(".sentence_encoder." in str(name) for name in held)
    return named and all(isinstance(x, Tensor) for x in held.values())


def _settings(state: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """`args`, or the part `model` of `cfg` in newer files: a Namespace, or a dict."""
    cfg = state.get("cfg")
    stated = state.get("args") or (cfg.get("model") if isinstance(cfg, dict) else None)
    settings = vars(stated) if isinstance(stated, argparse.Namespace) else stated
    if not isinstance(settings, dict):
        raise ValueError(f"{path}: neither args nor cfg.model in it; expected the settings of its training")
    wrong = [
        f"{key} is {settings[key]!r}, supported: {value!r}"
        for key, value in FAIRSEQ_ONLY.items()
        if key in settings and settings[key] != value
    ]
    for key in (*FAIRSEQ_NUMBERS.values(), "pooler_dropout"):
        number, kinds = settings.get(key, 0), (int, float) if key.endswith("dropout") else (int,)
        if type(number) not in kinds:
            wrong.append(f"{key} is {number!r}, expected a number")
    if wrong:
        raise ValueError(f"{path}: {'; '.join(wrong)}")
    return settings


def _respelled(held: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Tensors as the newest fairseq names and splits them; buffers that hold no weight go."""
    found: dict[str, Tensor] = {}
    for name, tensor in held.items():
        new = re.sub(r"^decoder\.", "encoder.", name).replace(".layernorm_embedding.", ".emb_layer_norm.")
        at, fused, leaf = new.partition(".in_proj_")  # before 0.8: q, k and v in one
        if name.endswith((".version", "._float_tensor")):
            continue
        parts = {f"{at}.{q}_proj.{leaf}": x for q, x in zip("qkv", tensor.chunk(3), strict=False)}
        for each, x in parts.items() if fused else [(new, tensor)]:
            if each in found:
                raise ValueError(f"{path}: {each} is there twice, once under an older name; is it damaged?")
            found[each] = x
    return found


def _choose_head(tensors: Mapping[str, Tensor], head: str | None, path: Path) -> tuple[str, list[str]]:
    """The head to open, and the others that the file holds."""
    starts = ("classification_heads.", "encoder.lm_head.")
    held = [name.split(".")[:2] for name in tensors if name.startswith(starts)]
    heads = list(dict.fromkeys("lm" if first == "encoder" else name for first, name in held))
    heads.sort(key="lm".__eq__)  # the last
    if head is None and (len(heads) == 1 or heads[1:] == ["lm"]):
        head = heads[0]
    if head is None or head not in heads:
        what = f"no head {head!r} in it" if head else "which head" if heads else "no head in it"
        known = ", ".join(heads) or "encoder.lm_head, classification_heads"
        raise ValueError(f"{path}: {what}; expected one of {known}")
    return head, [name for name in heads if name != head]
