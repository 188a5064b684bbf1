"""Names of an adapter: PEFT's modules and tensors, and the layers and parameters of the model to which
they belong.

    encoder.layers.0.attention.q              bert.encoder.layer.0.attention.self.query.lora_A.weight
    decoder.layers.0.attention.q,k,v          transformer.h.0.attn.c_attn.lora_A.weight
    heads.sequence_classification.out.weight  classifier.weight

A model that Hugging Face has no class for keeps its parameter names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import NamedTuple

from torch import nn

from qkv.model.model import Model
from qkv.nn.lora import LoraLinear, linear_layers
from qkv.weights.names_table import NamesTable, TensorMapping


class ModuleMapping(NamedTuple):
    """The linear layers that a module of the checkpoint contains, and whether its weight is
    transposed."""

    paths: tuple[str, ...]
    fan_in_fan_out: bool


class AdapterNames(NamedTuple):
    """The modules and tensors of a checkpoint by name."""

    modules: dict[str, ModuleMapping]
    mappings: dict[str, TensorMapping]
    names_table: NamesTable

    def find_modules_to_save(self, tensor_names: Collection[str]) -> dict[str, str]:
        """Map all tensors of the modules that contain these tensors to the largest module with only
        such tensors."""
        inner = {name.rpartition(".")[0] for name in tensor_names} - {""}
        saved = {
            name for name in self.mappings if any(name.startswith(f"{module}.") for module in inner)
        }
        modules = {}
        for name in sorted(saved):
            parts = name.split(".")
            parents = (".".join(parts[:count]) for count in range(1, len(parts)))
            modules[name] = next(
                parent for parent in parents if saved >= self.list_module_tensors(parent)
            )
        return modules

    def list_module_tensors(self, module: str) -> set[str]:
        """Return the names of a module's tensors."""
        return {name for name in self.mappings if name.startswith(f"{module}.")}


def get_base_parameters(net: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters by name, without duplicates of tied ones and without adapters."""
    adapter_ids = {
        id(p)
        for module in net.modules()
        if isinstance(module, LoraLinear)
        for p in (module.lora_a.weight, module.lora_b.weight)
    }
    return {name: p for name, p in net.named_parameters() if id(p) not in adapter_ids}


def find_tied_parameters(net: nn.Module) -> set[str]:
    """Return the names of parameters that several modules share."""
    ids = [(name, id(p)) for name, p in net.named_parameters(remove_duplicate=False)]
    counts = Counter(parameter_id for _, parameter_id in ids)
    return {name for name, parameter_id in ids if counts[parameter_id] > 1}


def build_adapter_names_table(model: Model, prefix: str | None = None) -> NamesTable:
    """Return the names table of the family, or of the parameter names if Hugging Face has no class."""
    if model.find_hf_incompatibility() is None:
        return model.family.build_names_table(model.args, prefix)
    names = [name for name, _ in model.net.named_parameters(remove_duplicate=False)]
    return NamesTable("\n".join(f"{name} {name}" for name in names))


def build_adapter_names(model: Model, prefix: str | None = None) -> AdapterNames:
    """Return the names under a prefix of the family's names table (None: the default of its class)."""
    layers = [f"{path}.weight" for path in linear_layers(model.net)]
    names_table = build_adapter_names_table(model, prefix)
    mappings = names_table.map_parameters(dict.fromkeys([*get_base_parameters(model.net), *layers]))
    modules = {}
    for mapping in mappings:
        is_linear = mapping.operation in ("", "conv1d") and {*mapping.parameter_names} <= {*layers}
        if is_linear and mapping.checkpoint_name.endswith(".weight"):
            paths = tuple(name.removesuffix(".weight") for name in mapping.parameter_names)
            module = mapping.checkpoint_name.removesuffix(".weight")
            modules[module] = ModuleMapping(paths, fan_in_fan_out=mapping.operation == "conv1d")
    return AdapterNames(
        modules=modules,
        mappings={
            mapping.checkpoint_name: mapping for mapping in mappings if mapping.operation != "copy"
        },
        names_table=names_table,
    )


def match_adapter_names(
    model: Model, modules: Collection[str], tensor_names: Iterable[str] = ()
) -> AdapterNames:
    """Return the names under the prefix of these tensors, which differs between classes with and
    without a head."""
    tensor_names = [*tensor_names]
    prefixes: list[str | None] = [None]
    if model.find_hf_incompatibility() is None:
        prefixes += ["", *model.family.prefixes, *model.family.head_prefixes.values()]

    def count_matches(names: AdapterNames) -> int:
        num_modules = sum(module in names.modules for module in modules)
        return num_modules + sum(name in names.mappings for name in tensor_names)

    return max(
        (build_adapter_names(model, prefix) for prefix in dict.fromkeys(prefixes)),
        key=count_matches,
    )


def find_default_target_modules(model: Model) -> list[str]:
    """Return patterns for queries and values, as in the LoRA paper, with the layers that checkpoints
    fuse with them."""
    groups = [module.paths for module in build_adapter_names(model).modules.values()]
    targets = [paths for paths in groups if any(path.endswith((".q", ".v")) for path in paths)]
    if not targets:
        raise ValueError(
            f"lora.target_modules: the queries and values of {model.family.name} are not modules in "
            "its files; "
            'name other layers, such as lora.target_modules = ["up", "down"]'
        )
    return [
        f"{paths[0].rpartition('.')[0]}.{','.join(path.rpartition('.')[2] for path in paths)}"
        for paths in targets
    ]
