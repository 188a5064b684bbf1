"""Adapters in PEFT's files, adapter_config.json and adapter_model.safetensors, under Hugging Face's names.

    encoder.layers.0.attend.q     base_model.model.bert.encoder.layer.0.attention.self.query.lora_A.weight
    decoder.layers.0.attend.q,k,v        base_model.model.transformer.h.0.attn.c_attn.lora_A.weight

A setting that changes numbers and is not known here is an error, and so is a tensor without a place."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from qkv.learn.check import number
from qkv.learn.lora import Group, adapt, adapters, linears
from qkv.model import Model
from qkv.weights.files import read_json, read_tensors, write_json

CONFIG, TENSORS = "adapter_config.json", ("adapter_model.safetensors", "adapter_model.bin")
TENSOR = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
READ = set("peft_type r lora_alpha lora_dropout use_rslora alpha_pattern".split())
ASIDE = set(  # how it came to be; which layers have an adapter, and of what rank, the tensors say
    "task_type auto_mapping peft_version base_model_name_or_path revision inference_mode target_modules "
    "exclude_modules layers_to_transform layers_pattern fan_in_fan_out rank_pattern eva_config megatron_core "
    "qalora_group_size runtime_config ensure_weight_tying".split()
)
ALLOWED = {  # other starts change the weights of the base as well
    "bias": ("none",), "init_lora_weights": (True, False, "gaussian", "orthogonal", "eva"),
}  # fmt: skip
NOTHING: tuple[object, ...] = (None, False, "", [], {})


class Settings(NamedTuple):
    alpha: float
    alphas: Mapping[str, float]  # by a pattern on the end of a module's name
    drop: float
    root: bool

    def alpha_of(self, module: str) -> float:
        own = (x for end, x in self.alphas.items() if re.fullmatch(rf"(.*\.)?({end})", module))
        return next(own, self.alpha)


class Place(NamedTuple):
    """What of ours a module of theirs holds, and whether its weight lies transposed."""

    paths: tuple[str, ...]
    turned: bool


def read_adapter(model: Model, folder: str | Path) -> list[str]:
    """Adds the adapters of a folder to a model, to run or to train on; returns the paths that have one."""
    folder = Path(folder)
    settings = read_settings(folder / CONFIG)
    path = next((folder / name for name in TENSORS if (folder / name).exists()), folder / TENSORS[0])
    pairs: dict[str, dict[str, Tensor]] = {}
    problems = []
    for name, tensor in read_tensors(path).items():
        if match := TENSOR.fullmatch(name):
            pairs.setdefault(match["module"], {})[match["side"]] = tensor
        else:
            problems.append(f"{name} is no tensor of a plain LoRA")
    found, layers = fitting(model, pairs), linears(model.net)
    tensors: dict[Group, tuple[Tensor, list[Tensor]]] = {}
    for module, pair in pairs.items():
        if module not in found or len(pair) < 2:
            problems.append(f"{module} {'lacks its A or B' if module in found else 'is not in this model'}")
            continue
        paths, a, b = found[module].paths, pair["A"], pair["B"]
        sizes, inner = [len(layers[each].weight) for each in paths], layers[paths[0]].weight.shape[1]
        rank = a.shape[0] if a.numel() and a.dim() == 2 else 0
        if not rank or a.shape[1] != inner or b.shape != (sum(sizes), rank):
            wanted = f"[r, {inner}] and [{sum(sizes)}, r]"
            problems.append(f"{module} has A {list(a.shape)} and B {list(b.shape)}, expected {wanted}")
            continue
        tensors[Group(paths, rank, settings.alpha_of(module))] = a, list(b.split(sizes))
    if problems or not pairs:
        raise ValueError(f"{path}: {'; '.join(problems) or 'no adapters in it'}")
    try:
        adapt(model.net, list(tensors), drop=settings.drop, root=settings.root)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    made = adapters(model.net)
    with torch.no_grad():
        for group, (a, parts) in tensors.items():
            made[group.paths[0]].lora_a.weight.copy_(a)
            for each, part in zip(group.paths, parts, strict=True):
                made[each].lora_b.weight.copy_(part)
    return [each for group in tensors for each in group.paths]


def write_adapter(model: Model, folder: str | Path, *, base: str | None = None) -> None:
    """Writes the adapters of a model, for PEFT to open; `base` names the model that they belong to."""
    folder, made = Path(folder), adapters(model.net)
    problems = [] if made else ["the model has no adapters"]
    inside = {id(p) for each in made.values() for p in (each.lora_a.weight, each.lora_b.weight)}
    for name, p in model.net.named_parameters():
        if p.requires_grad and id(p) not in inside:
            problems.append(f"{name} learns too and has no place in such a file")
    if len({(each.root, each.drop.p) for each in made.values()}) > 1:
        problems.append("adapters differ in drop or root, of which a file has one")
    tensors: dict[str, Tensor] = {}
    ranks, alphas, turned = {}, {}, False
    left = set(made)
    for module, place in places(model).items():
        mine = [made[path] for path in place.paths if path in made]
        if not mine:
            continue
        left -= set(place.paths)
        if len(mine) < len(place.paths) or len({(id(each.lora_a), each.alpha) for each in mine}) > 1:
            parts = ",".join(path.rpartition(".")[2] for path in place.paths)
            problems.append(f"{module} holds {parts}, which need one A together: where='{parts}'")
        tensors[f"base_model.model.{module}.lora_A.weight"] = mine[0].lora_a.weight
        tensors[f"base_model.model.{module}.lora_B.weight"] = torch.cat([each.lora_b.weight for each in mine])
        ranks[module], alphas[module], turned = mine[0].rank, mine[0].alpha, turned or place.turned
    problems += [f"{path} is no module of theirs" for path in sorted(left)]
    if problems:
        raise ValueError(f"{folder}: not written: {'; '.join(problems)}")
    any_one = next(iter(made.values()))
    config = dict(
        peft_type="LORA", task_type=None, base_model_name_or_path=base, inference_mode=True, bias="none",
        r=any_one.rank, lora_alpha=any_one.alpha, lora_dropout=any_one.drop.p, use_rslora=any_one.root,
        target_modules=sorted(ranks), fan_in_fan_out=turned,
        rank_pattern={name: rank for name, rank in ranks.items() if rank != any_one.rank},
        alpha_pattern={name: alpha for name, alpha in alphas.items() if alpha != any_one.alpha},
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f"{TENSORS[0]}.tmp"  # the old file stays until the new one is whole
    save_file({name: x.detach().cpu().contiguous() for name, x in tensors.items()}, new, {"format": "pt"})
    new.replace(folder / TENSORS[0])
    write_json(folder / CONFIG, config)


def read_settings(path: Path) -> Settings:
    """What a config says; whatever makes of it another thing than LoRA is named."""
    config = read_json(path)
    if config.get("peft_type") != "LORA":
        raise ValueError(f"{path}: peft_type is {config.get('peft_type')!r}: expected 'LORA'")
    wrong = [
        f"{key} is {value!r}"
        for key, value in config.items()
        if key not in READ | ASIDE and value not in ALLOWED.get(key, NOTHING)
    ]
    if wrong:
        raise ValueError(f"{path}: not supported: {', '.join(wrong)}")
    found: Any = {"lora_alpha": 8, "lora_dropout": 0.0, "use_rslora": False, **config}
    alphas = found.get("alpha_pattern") or {}
    try:
        number("lora_alpha", found["lora_alpha"], more_than=0)
        number("lora_dropout", found["lora_dropout"], at_least=0, less_than=1)
        for end, alpha in alphas.items():
            number(f"alpha_pattern[{end!r}]", alpha, more_than=0)
            re.compile(end)
    except (ValueError, AttributeError, re.error) as error:
        raise ValueError(f"{path}: {error}") from None
    return Settings(found["lora_alpha"], alphas, found["lora_dropout"], bool(found["use_rslora"]))


def places(model: Model, prefix: str | None = None) -> dict[str, Place]:
    """The modules of theirs that hold our linear layers; `prefix` as in the family's names table."""
    names = model.family.keymap(model.args, prefix).links(f"{path}.weight" for path in linears(model.net))
    return {
        link.theirs.removesuffix(".weight"): Place(
            tuple(name.removesuffix(".weight") for name in link.ours), link.word == "conv1d"
        )
        for link in names
        if link.word in ("", "conv1d") and link.theirs.endswith(".weight")
    }


def fitting(model: Model, modules: Iterable[str]) -> dict[str, Place]:
    """Their modules under the prefix these have: a bare class and one with a head name them differently."""
    kin = model.family
    choices = [places(model, prefix) for prefix in (None, "", *kin.prefixes, *kin.prefixed.values())]
    return max(choices, key=lambda held: sum(module in held for module in modules))
