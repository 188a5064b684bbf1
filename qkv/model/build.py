"""build: a new model of a family, with weights initialized as in its paper."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection
from typing import Unpack, cast

import torch
from torch import Tensor, nn

from qkv.families import get_family
from qkv.families.arguments import FamilyArguments
from qkv.families.family import Args, Family
from qkv.hints import describe_unknown_name
from qkv.model.config import build_hf_config
from qkv.model.device import DEFAULT_DEVICE, pick_device
from qkv.model.limits import check_argument_combinations, check_argument_types
from qkv.model.memory import check_spec_memory
from qkv.model.model import Model
from qkv.model.transforms.pooling import Pooling, add_pooling
from qkv.model.transforms.variant import FAMILY_VARIANT, AttentionFunction, Variant
from qkv.nn.network import DualEncoder, Network, build_network
from qkv.nn.scores import Scale, Score
from qkv.nn.selections import Selection
from qkv.spec import DualSpec, Initialization, Spec, Uniform

# Parts with an initialization of their own, unless a row of the spec names them.
SELF_INITIALIZED = (Score, Scale, Selection)


def build(
    family: str,
    size: str | None = None,
    *,
    position_embedding_type: str | None = None,
    attention_score: AttentionFunction | None = None,
    attention_select: AttentionFunction | None = None,
    pooling: str | None = None,
    device: str = DEFAULT_DEVICE,
    **arguments: Unpack[FamilyArguments],
) -> Model:
    """Return a new model of a family, with weights initialized as in its paper.

    `size` is one of the family's `sizes`, by default the first; `arguments` of the family override
    single values. `attention_score` and `attention_select` replace scaled dot products and softmax in
    all layers, by a name or a table such as `{"name": "top-k", "k": 4}`. `pooling` (mean, first or
    last) adds a normalized sentence embedding. `device` is "auto" (the fastest there is), "cpu", "cuda"
    or "mps". The weights are the same on every device."""
    target_device = pick_device(device)
    definition = get_family(family)
    changes = cast(Args, arguments)
    for name in changes:
        if name not in definition.defaults:
            raise ValueError(f"{family}: {describe_unknown_name(name, definition.defaults)}")
    check_argument_types(definition, changes)
    args = definition.arguments(size or next(iter(definition.sizes)), **changes)
    check_argument_combinations(definition, args)
    pooling_config = None if pooling is None else Pooling(pooling)
    variant = Variant(
        position_embedding_type=position_embedding_type,
        attention_score=attention_score,
        attention_select=attention_select,
    ).without_parts_of(definition.build_spec(**args))
    spec = build_model_spec(definition, args, variant, pooling_config)
    check_spec_memory(spec)
    net = build_network(spec)
    initialize_weights(net)
    if target_device != "cpu":
        net.to(target_device)
    has_hf_config = variant == FAMILY_VARIANT and definition.model_types
    return Model(
        definition,
        args,
        net.eval(),
        build_hf_config(definition, args) if has_hf_config else {},
        variant=variant,
        pooling=pooling_config,
    )


def build_model_spec(
    family: Family,
    args: Args,
    variant: Variant = FAMILY_VARIANT,
    pooling: Pooling | None = None,
) -> Spec | DualSpec:
    """Return the spec of a family with these arguments, variant and pooling."""
    spec = variant.apply(family.build_spec(**args))
    return add_pooling(spec, pooling) if pooling else spec


@torch.no_grad()
def initialize_weights(net: Network | DualEncoder, names: Collection[str] | None = None) -> None:
    """Set norms to one and biases to zero; sample other tensors with the standard deviation of the
    spec. `names`: only these parameters."""
    towers = {"": net} if isinstance(net, Network) else {"text.": net.text, "image.": net.image}
    for prefix, tower in towers.items():
        if tower is None:
            continue
        for name, tensor in tower.named_parameters():
            if names is not None and prefix + name not in names:
                continue
            module = tower.get_submodule(name.rpartition(".")[0])
            pattern, value = next(row for row in tower.spec.init if fnmatch.fnmatch(name, row[0]))
            if isinstance(module, SELF_INITIALIZED) and pattern == "*":
                module.reset_parameters()
                continue
            is_bias = name.rpartition(".")[2].startswith("bias")
            if isinstance(module, nn.LayerNorm | nn.RMSNorm | nn.GroupNorm):
                tensor.zero_() if is_bias else tensor.normal_(1.0, tower.spec.norm_init_std)
            elif is_bias and not isinstance(value, Uniform):
                tensor.zero_()
            else:
                initialize_tensor(tensor, value, tower.spec.init_truncation)
                if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                    tensor[module.padding_idx] = 0
    if (
        isinstance(net, DualEncoder)
        and net.logit_scale is not None
        and net.spec.logit_scale is not None
        and (names is None or "logit_scale" in names)
    ):
        net.logit_scale.fill_(net.spec.logit_scale)


def initialize_tensor(tensor: Tensor, value: Initialization, truncation: float | None) -> None:
    """Fill a tensor from a distribution; a normal one is truncated at a multiple of its standard
    deviation."""
    if isinstance(value, Uniform):
        nn.init.uniform_(tensor, -value.bound, value.bound)
    elif value == "zeros":
        nn.init.zeros_(tensor)
    elif value == "orthogonal":  # each square block of the matrices of several gates
        for block in tensor.split(tensor.shape[1]):
            nn.init.orthogonal_(block)
    elif value == "xavier" and tensor.dim() > 1:
        nn.init.xavier_uniform_(tensor)
    else:
        std = 0.02 if isinstance(value, str) else value
        if truncation:
            nn.init.trunc_normal_(tensor, 0.0, std, -truncation * std, truncation * std)
        else:
            tensor.normal_(0.0, std)
