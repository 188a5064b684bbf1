"""The adapters of a model, written as PEFT's files; with them the modules that the base has not, the names of
labels and the tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.adapter.names import names_of, plain, tied
from qkv.adapter.read import FRONT, HEAD, TENSORS, TOLD
from qkv.adapter.settings import CONFIG, task_of
from qkv.check import counted
from qkv.lora import adapters
from qkv.model import Model
from qkv.weights.files import write_file, write_json


class Layout(NamedTuple):
    config: dict[str, Any]
    tensors: dict[str, Tensor]


def write_adapter(model: Model, folder: str | Path, *, base: str | None = None) -> None:
    """Writes the adapters of a model, for PEFT to open; `base` names the model that they are of.

    Whatever else learns, or is not in the base, is written with them."""
    folder = Path(folder)
    try:
        config, tensors = layout(model)
    except ValueError as error:
        raise ValueError(f"{folder}: not written: {error}") from None
    write_file(folder / TENSORS[0], tensors)
    if "head" in model.args:
        told = {key: model.config[key] for key in TOLD if key in model.config}
        write_json(folder / HEAD, {"head": model.args["head"], **told})
    model.save_text(folder)
    write_json(folder / CONFIG, {**config, "base_model_name_or_path": base or model.base})


def layout(model: Model) -> Layout:
    """The config and the tensors of a model's adapters; what PEFT's files cannot hold is an error."""
    made, names = adapters(model.net), names_of(model)
    wrong = [] if made else ["the model has no adapters"]
    if len({(each.root, each.drop.p) for each in made.values()}) > 1:
        wrong.append("adapters differ in drop or root, of which a file has one")
    tensors: dict[str, Tensor] = {}
    ranks, alphas, turned = {}, {}, False
    left = set(made)
    for module, place in names.places.items():
        mine = [made[path] for path in place.paths if path in made]
        if not mine:
            continue
        left -= set(place.paths)
        if len(mine) < len(place.paths) or len({(id(each.lora_a), each.alpha) for each in mine}) > 1:
            parts = ",".join(path.rpartition(".")[2] for path in place.paths)
            wrong.append(f"{module} holds {parts}, which need one A together: where='{parts}'")
        tensors[f"{FRONT}{module}.lora_A.weight"] = mine[0].lora_a.weight
        tensors[f"{FRONT}{module}.lora_B.weight"] = torch.cat([each.lora_b.weight for each in mine])
        ranks[module], alphas[module], turned = mine[0].rank, mine[0].alpha, turned or place.turned
    wrong += [f"{path} is no module of theirs" for path in sorted(left)]
    every = dict(model.net.named_parameters(remove_duplicate=False))
    learns = {name for name, p in plain(model.net).items() if p.requires_grad or name in model.beside}
    saved = [link for link in names.links.values() if learns & {*link.ours}]
    modules = {link.theirs: names.module(link.theirs, {link.theirs for link in saved}) for link in saved}
    for link in saved:
        if modules[link.theirs] is None or tied(model.net) & {*link.ours}:
            wrong.append(f"{link.ours[0]} learns too, and {link.theirs} is tied or in no module of its own")
        tensors[FRONT + link.theirs] = link.to_theirs(every)
    if wrong:
        raise ValueError(counted(wrong))
    any_one = next(iter(made.values()))
    config = dict(
        peft_type="LORA", task_type=task_of(model), inference_mode=True, bias="none",
        r=any_one.rank, lora_alpha=any_one.alpha, lora_dropout=any_one.drop.p, use_rslora=any_one.root,
        target_modules=sorted(ranks), fan_in_fan_out=turned,
        modules_to_save=sorted({str(module) for module in modules.values()}) or None,
        rank_pattern={name: rank for name, rank in ranks.items() if rank != any_one.rank},
        alpha_pattern={name: alpha for name, alpha in alphas.items() if alpha != any_one.alpha},
    )  # fmt: skip
    return Layout(config, tensors)
