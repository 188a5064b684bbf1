"""An adapter's files, read onto a model: LoRA's pairs, modules that were saved whole, the head they are of.

A tensor without a place is an error that names it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.model.adapters.config import CONFIG, Settings, read_settings
from qkv.model.adapters.names import Names, fitting, plain, tied
from qkv.model.build import make_spec
from qkv.model.model import Model
from qkv.model.parameters import skeleton
from qkv.model.transforms.heads import headed
from qkv.model.transforms.pooling import read_vector
from qkv.nn.lora import Group, adapt, adapters, linears
from qkv.validate import counted
from qkv.weights.tensors import nonfinite, read_json, read_tensors

TENSORS = ("adapter_model.safetensors", "adapter_model.bin")
FRONT = "base_model.model."
PAIR = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
HEAD = "head.json"  # ours: the head and the names of its labels, which PEFT's files do not tell
TOLD = ("id2label", "label2id", "problem_type")  # keys of config.json that go with a head
Groups = dict[Group, tuple[Tensor, list[Tensor]]]  # an A, and a B for each layer


class Held(NamedTuple):
    """What a file holds, by names of theirs; and what in it is of no adapter at all."""

    pairs: dict[str, dict[str, Tensor]]  # A and B by module
    whole: dict[str, Tensor]
    wrong: list[str]


def read_adapter(model: Model, folder: str | Path) -> Model:
    """The model with the adapters of a folder on it, to run or to train on.

    It is the model given, or a new one where the adapter is of another head."""
    folder = Path(folder)
    settings = read_settings(folder / CONFIG)
    path = next((folder / name for name in TENSORS if (folder / name).exists()), folder / TENSORS[0])
    held = sorted_out(read_tensors(path))
    said: dict[str, Any] = read_json(folder / HEAD) if (folder / HEAD).exists() else {}
    head = said.get("head", settings.head(model.family))
    made, fresh = with_head(model, folder, head, held.whole)
    names = fitting(made, held.pairs, held.whole)
    groups, odd = grouped(made, names, settings, held.pairs)
    values, lost = placed(made, names, held.whole)
    known = [*model.family.heads]
    if not held.wrong + odd and known and head not in (None, *known):
        raise ValueError(f"{folder / HEAD}: head is {head!r}, expected one of {', '.join(known)}")
    if wrong := held.wrong + odd + lost:
        raise ValueError(f"{path}: {counted(wrong)}; is it the adapter of another model?")
    if missing := [name for name in fresh if name not in values]:
        raise ValueError(
            f"{path}: {counted(missing)} of its head is neither in the file nor in the model; "
            "expected the model that it was trained on"
        )
    if not groups:
        raise ValueError(f"{path}: no adapters in it")
    told = labels_told(said, folder / HEAD, made.args.get("labels"))
    try:
        adapt(made.net, list(groups), drop=settings.drop, root=settings.root, whole=values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    fill(made, groups, values)
    for name in nonfinite({name: p.detach() for name, p in made.net.named_parameters() if p.requires_grad}):
        warnings.warn(f"{path}: {name} holds values that are not finite", stacklevel=2)
    made.beside = tuple(dict.fromkeys([*made.beside, *values]))
    made.config |= told
    return made


def sorted_out(tensors: Mapping[str, Tensor]) -> Held:
    held = Held({}, {}, [])
    for name, tensor in tensors.items():
        theirs = name.removeprefix(FRONT)
        if theirs == name:
            held.wrong.append(f"{name} {list(tensor.shape)} is no tensor of an adapter")
        elif not tensor.is_floating_point():
            held.wrong.append(f"{name} is {tensor.dtype}, expected floating point")
        elif match := PAIR.fullmatch(theirs):
            held.pairs.setdefault(match["module"], {})[match["side"]] = tensor
        else:
            held.whole[theirs] = tensor
    return held


def with_head(
    model: Model, folder: Path, head: object, whole: Mapping[str, Tensor]
) -> tuple[Model, tuple[str, ...]]:
    """The model with the adapter's head, if its family has such a one, and which tensors of it are new."""
    known = head if isinstance(head, str) and head in model.family.heads else None
    try:
        labels = labels_in(model, known, whole) if known in ("label", "tag") else 0
        made, fresh = headed(model, known, labels, read_vector(folder))
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from None
    if made is not model:
        made.net.to(device=model.device, dtype=next(model.net.parameters()).dtype)
    return made, fresh


def labels_in(model: Model, head: str, whole: Mapping[str, Tensor]) -> int:
    """For how many labels the last layer of this head is, where it was saved for such a model; else 0."""
    kin, args, ours = model.family, {**model.args, "head": head}, f"heads.{head}.out.weight"
    theirs = ours if model.no_class() else kin.keymap(args).links([ours])[0].theirs
    held = whole.get(theirs)
    if held is None or not held.numel() or held.dim() != 2:
        return 0
    net = skeleton(make_spec(kin, {**args, "labels": len(held)}, model.positions))  # no memory is taken yet
    return len(held) if net.get_parameter(ours).shape == held.shape else 0


def labels_told(said: Mapping[str, Any], path: Path, count: int | None) -> dict[str, Any]:
    """What of head.json goes into the model's config; it must have a name for each label."""
    named = said.get("id2label", {})
    if not isinstance(named, dict) or (named and len(named) != count):
        raise ValueError(f"{path}: id2label is {named!r}, expected the names of {count} labels by number")
    return {key: said[key] for key in TOLD if key in said}


def grouped(
    model: Model, names: Names, settings: Settings, pairs: Mapping[str, Mapping[str, Tensor]]
) -> tuple[Groups, list[str]]:
    """The pairs by the layers that they belong to, and what is wrong with them."""
    layers = linears(model.net)
    groups: Groups = {}
    wrong = []
    for module, pair in pairs.items():
        if module not in names.places:
            side, tensor = next(iter(pair.items()))
            name = f"{FRONT}{module}.lora_{side}.weight"
            wrong.append(f"{name} {list(tensor.shape)}: there is no such module in this {model.family.name}")
            continue
        if len(pair) < 2:
            wrong.append(f"{module} lacks its {'B' if 'A' in pair else 'A'}")
            continue
        paths, a, b = names.places[module].paths, pair["A"], pair["B"]
        sizes, inner = [len(layers[each].weight) for each in paths], layers[paths[0]].weight.shape[1]
        rank = a.shape[0] if a.numel() and a.dim() == 2 else 0
        if not rank or a.shape[1] != inner or b.shape != (sum(sizes), rank):
            wanted = f"[r, {inner}] and [{sum(sizes)}, r]"
            wrong.append(f"{module} has A {list(a.shape)} and B {list(b.shape)}, expected {wanted}")
            continue
        groups[Group(paths, rank, settings.alpha_of(module))] = a, list(b.split(sizes))
    return groups, wrong


def placed(model: Model, names: Names, whole: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Whole tensors by our names, and what is wrong with them."""
    every = dict(model.net.named_parameters(remove_duplicate=False))
    own, shapes = plain(model.net), {name: p.shape for name, p in every.items()}
    several = tied(model.net)
    values: dict[str, Tensor] = {}
    wrong, again = [], []
    for theirs, tensor in whole.items():
        link, known = names.links.get(theirs), names.table.ours(theirs)
        called = f"{FRONT}{theirs} {list(tensor.shape)}"
        if link is None and known is not None and known[1] == "alias" and known[0] in own:
            again.append((called, known[0], tensor))
        elif link is None:
            wrong.append(f"{called}: there is no such tensor in this {model.family.name}")
        elif tensor.shape != (expected := link.to_theirs(every).shape):
            wrong.append(f"{called}: expected {list(expected)}")
        elif link.ours[0] in several:
            again.append((called, next(n for n, p in own.items() if p is every[link.ours[0]]), tensor))
        else:
            values |= link.to_ours(tensor, shapes)
    for called, name, tensor in again:
        if not torch.equal(tensor, values.get(name, own[name]).detach().to(tensor)):
            wrong.append(f"{called} differs from {name}, to which it is tied here")
    return values, wrong


@torch.no_grad()
def fill(model: Model, groups: Groups, values: Mapping[str, Tensor]) -> None:
    made = adapters(model.net)
    for group, (a, parts) in groups.items():
        made[group.paths[0]].lora_a.weight.copy_(a)
        for path, part in zip(group.paths, parts, strict=True):
            made[path].lora_b.weight.copy_(part)
    for name, tensor in values.items():
        model.net.get_parameter(name).copy_(tensor)
