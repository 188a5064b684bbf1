"""The adapters of a model, written as PEFT's files; with them the modules that the base has not, the names of
labels and the tokenizer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.model.adapters.config import CONFIG, task_of
from qkv.model.adapters.names import Names, names_of, plain, tied
from qkv.model.adapters.read import FRONT, HEAD, TENSORS, TOLD
from qkv.model.model import Model
from qkv.nn.lora import Lora, adapters
from qkv.validate import counted
from qkv.weights.tensors import write_file, write_json


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
    pairs, by_module, wrong = paired(made, names)
    whole, modules, lost = saved_whole(model, names, by_module)
    if wrong + lost:
        raise ValueError(counted(wrong + lost))
    first = next(iter(made.values()))
    config = dict(
        peft_type="LORA", task_type=task_of(model), inference_mode=True, bias="none",
        r=first.rank, lora_alpha=first.alpha, lora_dropout=first.drop.p, use_rslora=first.root,
        target_modules=sorted(by_module), modules_to_save=sorted(modules) or None,
        fan_in_fan_out=any(names.places[module].turned for module in by_module),
        rank_pattern={module: x.rank for module, x in by_module.items() if x.rank != first.rank},
        alpha_pattern={module: x.alpha for module, x in by_module.items() if x.alpha != first.alpha},
    )  # fmt: skip
    return Layout(config, {f"{FRONT}{name}": tensor for name, tensor in (pairs | whole).items()})


def paired(made: Mapping[str, Lora], names: Names) -> tuple[dict[str, Tensor], dict[str, Lora], list[str]]:
    """A and B of each module of theirs, an adapter of it, and what is wrong."""
    wrong = [] if made else ["the model has no adapters"]
    if len({(each.root, each.drop.p) for each in made.values()}) > 1:
        wrong.append("adapters differ in drop or root, of which a file has one")
    tensors: dict[str, Tensor] = {}
    by_module: dict[str, Lora] = {}
    left = set(made)
    for module, place in names.places.items():
        mine = [made[path] for path in place.paths if path in made]
        if not mine:
            continue
        left -= set(place.paths)
        if len(mine) < len(place.paths) or len({(id(each.lora_a), each.alpha) for each in mine}) > 1:
            parts = ",".join(path.rpartition(".")[2] for path in place.paths)
            wrong.append(f"{module} holds {parts}, which need one A together: where='{parts}'")
        tensors[f"{module}.lora_A.weight"] = mine[0].lora_a.weight
        tensors[f"{module}.lora_B.weight"] = torch.cat([each.lora_b.weight for each in mine])
        by_module[module] = mine[0]
    return tensors, by_module, wrong + [f"{path} is no module of theirs" for path in sorted(left)]


def saved_whole(
    model: Model, names: Names, adapted: Collection[str]
) -> tuple[dict[str, Tensor], set[str], list[str]]:
    """The modules of theirs with what else learns or is not in the base, their tensors, and what is wrong."""
    every = dict(model.net.named_parameters(remove_duplicate=False))
    learns = {name for name, p in plain(model.net).items() if p.requires_grad or name in model.beside}
    asked = [link.theirs for link in names.links.values() if learns & {*link.ours}]
    modules, several = names.around(asked), tied(model.net)
    wrong = []
    for link in (names.links[name] for name in dict.fromkeys([*asked, *modules])):
        if modules.get(link.theirs, "") in {"", *adapted} or several & {*link.ours}:
            wrong.append(
                f"{link.ours[0]} must be saved whole, but {link.theirs} is tied, adapted or in no module"
            )
    tensors = {name: names.links[name].to_theirs(every) for name in modules}
    return tensors, {*modules.values()}, wrong
