"""Optimizers: parameter groups, weight decay, layer-wise learning rates, freezing, gradient clipping.

    optimizer   hidden matrices   embeddings, heads, norms, biases, adapters
    adamw       AdamW             AdamW
    muon        Muon              AdamW
    adafactor   Adafactor         Adafactor

Adafactor's learning rate is relative to the scale of a parameter: T5's embeddings are initialized with
a standard deviation of 1 and its queries with 0.01, and no single learning rate of AdamW suits both.

Weight decay applies to parameters of two or more dimensions that are not biases, including embeddings:
"all non bias or gain weights" (GPT, section 4.1), as in BERT's code. T5's relative position table and
XLNet's u, v and s count as biases."""

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, islice
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Adafactor, AdamW, Optimizer

from qkv.train.config import OPTIMIZERS
from qkv.train.loop.muon import Muon, gather_full_tensor
from qkv.validate import check_number, match_names

FUSED_DEVICES = {"cpu", "cuda", "mps", "xpu"}  # devices with a fused AdamW
BIAS_PATTERN = re.compile(r"\b(position_)?bias\b|\.relative\.[uvs]$")
HIDDEN_MATRIX_PATTERN = re.compile(
    r"\.layers\.\d+\.(.+\.)?((q|k|v|o|r|up|gate|down)\.weight|weight_[ih]h_l0(_reverse)?)$"
)
LAYER_PATTERN = re.compile(
    r"(?P<stack>(.+\.)?(en|de)coder)\.((?P<norm>final_norm)\.|layers\.(?P<layer>\d+)\.)?"
)


class CombinedOptimizer(Optimizer):
    """Several optimizers as one, with all parameter groups in order, one state and one state dict."""

    def __init__(self, optimizers: list[Optimizer]) -> None:
        super().__init__([group for part in optimizers for group in part.param_groups], {})
        self.optimizers = optimizers
        self.share_groups_and_state()

    def share_groups_and_state(self) -> None:
        """Make each optimizer use the groups and the state of the combined optimizer."""
        groups = iter(self.param_groups)
        for optimizer in self.optimizers:
            optimizer.param_groups = list(islice(groups, len(optimizer.param_groups)))
            optimizer.state = self.state

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None if closure is None else closure()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a saved state exactly; it must have the same parameters."""
        saved_groups = list_parameter_names(state_dict["param_groups"])
        groups = list_parameter_names(self.param_groups)
        if saved_groups != groups:
            saved_names = {*chain(*saved_groups)}
            names = {*chain(*groups)}
            missing = sorted(names - saved_names) or ["none"]
            unknown = sorted(saved_names - names) or ["none"]
            raise ValueError(
                "the optimizer state has other parameters, or other groups: "
                f"missing {', '.join(missing)}; unknown {', '.join(unknown)}"
            )
        super().load_state_dict(state_dict)
        self.share_groups_and_state()


def list_parameter_names(groups: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    return [group.get("param_names", []) for group in groups]


def build_optimizer(
    net: nn.Module, *, optimizer: str = "adamw", lr: float, betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8, weight_decay: float = 0.01, layer_lr_decay: float = 1.0,
) -> CombinedOptimizer:  # fmt: skip
    """Build the optimizer of all trainable parameters; tied parameters are included once.

    The learning rate of a group is `lr` times its `lr_factor`. `layer_lr_decay` lowers the learning
    rate of lower layers (ELECTRA, appendix B). Only AdamW uses `betas` and `eps`."""
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"optimizer {optimizer!r}: expected one of {', '.join(OPTIMIZERS)}")
    check_number("lr", lr, more_than=0)
    check_number("eps", eps, more_than=0)
    check_number("weight_decay", weight_decay, at_least=0)
    check_number("layer_lr_decay", layer_lr_decay, more_than=0, at_most=1)
    if len(betas) != 2:
        raise ValueError(f"betas is {betas!r}: expected two numbers")
    for index, beta in enumerate(betas):
        check_number(f"betas[{index}]", beta, at_least=0, less_than=1)
    depths = compute_layer_depths(name for name, _ in net.named_parameters())
    members: dict[tuple[str, float, float, bool], list[tuple[str, Tensor]]] = {}
    for name, parameter in net.named_parameters():
        if parameter.requires_grad:
            is_muon = optimizer == "muon" and HIDDEN_MATRIX_PATTERN.search(name)
            algorithm = "adamw" if optimizer == "muon" and not is_muon else optimizer
            decay = weight_decay if has_weight_decay(name, parameter) else 0.0
            lr_factor = layer_lr_decay ** depths[name]
            # A fused kernel takes either sharded or full parameters.
            is_sharded = hasattr(parameter, "full_tensor")
            if is_sharded and algorithm == "adafactor":
                raise ValueError(
                    "optimizer 'adafactor' does not support sharded parameters: set "
                    'train.parallelism = "ddp", or use adamw or muon'
                )
            key = (algorithm, decay, lr_factor, is_sharded)
            members.setdefault(key, []).append((name, parameter))
    if not members:
        raise ValueError(
            "no trainable parameters: every parameter of the network is frozen; check train.freeze"
        )
    groups: dict[str, list[dict[str, Any]]] = {}
    for (algorithm, decay, lr_factor, _), named_parameters in members.items():
        group = dict(
            params=named_parameters, lr=lr * lr_factor, lr_factor=lr_factor, weight_decay=decay
        )
        groups.setdefault(algorithm, []).append(group)
    if optimizer not in groups:
        raise ValueError(f"optimizer {optimizer!r}: no hidden matrix is trainable, expected adamw")
    optimizers: list[Optimizer] = []
    if "muon" in groups:
        optimizers.append(Muon(groups["muon"], lr=lr))
    if "adafactor" in groups:
        optimizers.append(Adafactor(groups["adafactor"], lr=lr))
    if "adamw" in groups:
        fused = all(parameter.device.type in FUSED_DEVICES for parameter in net.parameters())
        optimizers.append(AdamW(groups["adamw"], lr=lr, betas=betas, eps=eps, fused=fused))
    return CombinedOptimizer(optimizers)


def has_weight_decay(name: str, tensor: Tensor) -> bool:
    return tensor.dim() >= 2 and not BIAS_PATTERN.search(name)


def compute_layer_depths(parameter_names: Iterable[str]) -> dict[str, int]:
    """Return the distance of each parameter from the heads in its stack, as in ELECTRA's code.

    Heads are 0, the final norm 1, the last layer 2, the first of n layers n + 1, embeddings n + 2."""
    matches = {name: LAYER_PATTERN.match(name) for name in parameter_names}
    num_layers: dict[str, int] = {}
    for match in matches.values():
        if match and match["layer"]:
            stack = match["stack"]
            num_layers[stack] = max(num_layers.get(stack, 0), int(match["layer"]) + 1)
    depths = {}
    for name, match in matches.items():
        if match is None:
            depths[name] = 0
        elif match["norm"]:
            depths[name] = 1
        else:
            height = int(match["layer"]) + 1 if match["layer"] else 0
            depths[name] = num_layers.get(match["stack"], 0) + 2 - height
    return depths


def freeze_parameters(net: nn.Module, patterns: str | Iterable[str]) -> list[str]:
    """Freeze the parameters whose names match a pattern; return their names.

    A pattern matches a full name or the part after a dot: `encoder.embedding.*`, `layers.[0-5].*`,
    `bias`."""
    named_parameters = dict(net.named_parameters(remove_duplicate=False))
    names = match_names("parameter", patterns, named_parameters)
    for name in names:
        named_parameters[name].requires_grad_(False)
    return names


def clip_grad_norm(parameters: Iterable[Tensor], max_norm: float) -> tuple[Tensor, Tensor]:
    """Scale the gradients so that their total norm is at most `max_norm` (0: no limit).

    Return the norm before clipping and whether it is finite, both on the device, without a
    synchronization. If it is not finite, the step must be skipped."""
    check_number("grad_clip", max_norm, at_least=0)
    by_placement: dict[object, list[Tensor]] = {}
    for p in parameters:
        if p.grad is not None:
            by_placement.setdefault(getattr(p, "placements", None), []).append(p)
    norms = [
        gather_full_tensor(get_total_norm([p.grad for p in group if p.grad is not None]))
        for group in by_placement.values()
    ]
    norm = norms[0] if len(norms) == 1 else get_total_norm(norms)
    if max_norm:
        for group in by_placement.values():
            clip_grads_with_norm_(group, max_norm, norm)
    return norm, norm.isfinite()
