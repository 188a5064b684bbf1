"""Optimisers of a network: what decays, how fast each tensor moves, what stands still. Knows no loss.

    kind        hidden matrices   embeddings, heads, norms, biases, adapters
    adamw       AdamW             AdamW
    muon        Muon              AdamW
    adafactor   Adafactor         Adafactor

Adafactor's rate is a share of how large a tensor is, so that each learns as fast as it was drawn wide: T5's
embeddings have a deviation of 1 and its queries of a hundredth, and no one rate of AdamW suits both.

Decay is for tensors of two or more dimensions that are no biases, embeddings included: "all non bias or gain
weights" (GPT, section 4.1), as in BERT's code. T5's table of distances and XLNet's u, v and s are biases."""

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, islice
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Adafactor, AdamW, Optimizer

from qkv.train.config import OPTIMISERS
from qkv.train.loop.muon import SCALES, Muon, whole
from qkv.validate import matching, number

FUSED = {"cpu", "cuda", "mps", "xpu"}  # where torch has AdamW in one kernel
BIAS = re.compile(r"\bbias\b|\.relative\.[uvs]$")
HIDDEN = re.compile(r"\.layers\.\d+\.(.+\.)?(q|k|v|o|r|up|gate|down)\.weight$")
TOWER = re.compile(r"(?P<name>(.+\.)?(en|de)coder)\.((?P<norm>norm)\.|layers\.(?P<layer>\d+)\.)?")


class Joint(Optimizer):
    """Several optimisers as one: their groups in a row, one state, one state dict."""

    def __init__(self, parts: list[Optimizer]) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = parts
        self.join()

    def join(self) -> None:
        """The parts look at the groups and the state of the whole."""
        groups = iter(self.param_groups)
        for part in self.parts:
            part.param_groups = list(islice(groups, len(part.param_groups)))
            part.state = self.state

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None if closure is None else closure()
        for part in self.parts:
            part.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on where the saved one stood, to the bit; it must hold the same tensors."""
        old, new = names_of(state_dict["param_groups"]), names_of(self.param_groups)
        if old != new:
            saved, own = {*chain(*old)}, {*chain(*new)}
            lost, odd = sorted(own - saved) or ["none"], sorted(saved - own) or ["none"]
            raise ValueError(
                "the optimiser's state is of other tensors, or in other groups: "
                f"missing {', '.join(lost)}; unknown {', '.join(odd)}"
            )
        super().load_state_dict(state_dict)
        self.join()


def names_of(groups: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    return [group.get("param_names", []) for group in groups]


def make_optimiser(
    net: nn.Module, *, kind: str = "adamw", rate: float, betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8, decay: float = 0.01, layer_decay: float = 1.0, momentum: float = 0.95,
    scale: str = "rms", matrix_rate: float | None = None,
) -> Joint:  # fmt: skip
    """An optimiser of all tensors that are not frozen; tied ones count once.

    A group's rate is `rate` times its `factor`; whoever changes the rate keeps the factor. `layer_decay` lets
    lower layers move less (ELECTRA, appendix B). Only Muon has a `momentum`, a `scale`, and a `matrix_rate`
    where its rate is another; only AdamW has `betas` and `eps`."""
    if kind not in OPTIMISERS:
        raise ValueError(f"optimiser {kind!r}: expected one of {', '.join(OPTIMISERS)}")
    if scale not in SCALES:
        raise ValueError(f"scale {scale!r}: expected one of {', '.join(SCALES)}")
    number("rate", rate, more_than=0)
    number("eps", eps, more_than=0)
    number("matrix_rate", rate if matrix_rate is None else matrix_rate, more_than=0)
    number("decay", decay, at_least=0)
    number("layer_decay", layer_decay, more_than=0, at_most=1)
    if len(betas) != 2:
        raise ValueError(f"betas is {betas!r}: expected two numbers")
    for name, value in {"betas[0]": betas[0], "betas[1]": betas[1], "momentum": momentum}.items():
        number(name, value, at_least=0, less_than=1)
    depths = below_heads(name for name, _ in net.named_parameters())
    groups: dict[tuple[str, float, float, bool], list[tuple[str, Tensor]]] = {}
    for name, tensor in net.named_parameters():
        if tensor.requires_grad:
            mine = "adamw" if kind == "muon" and not HIDDEN.search(name) else kind
            factor = (matrix_rate or rate) / rate if mine == "muon" else 1.0
            pull = decay if decays(name, tensor) else 0.0
            factor *= layer_decay ** depths[name]
            parted = hasattr(tensor, "full_tensor")  # kernels take slices, or whole tensors, not both
            if parted and mine == "adafactor":
                raise ValueError(
                    "optimiser 'adafactor': tensors that are spread over processes, expected whole ones; "
                    'learn.parallel = "copy" keeps them whole, adamw and muon take parts'
                )
            groups.setdefault((mine, pull, factor, parted), []).append((name, tensor))
    if not groups:
        raise ValueError("nothing to optimise: every tensor of the network is frozen")
    made: dict[str, list[dict[str, Any]]] = {}
    for (mine, pull, factor, _), held in groups.items():
        group = dict(params=held, lr=rate * factor, factor=factor, weight_decay=pull)
        made.setdefault(mine, []).append(group)
    if kind not in made:
        raise ValueError(f"optimiser {kind!r}: no hidden matrix is left to train, expected adamw")
    parts: list[Optimizer] = []
    if "muon" in made:
        parts.append(Muon(made["muon"], lr=rate, momentum=momentum, scale=scale))
    if "adafactor" in made:
        parts.append(Adafactor(made["adafactor"], lr=rate))
    if "adamw" in made:
        fused = all(tensor.device.type in FUSED for tensor in net.parameters())
        parts.append(AdamW(made["adamw"], lr=rate, betas=betas, eps=eps, fused=fused))
    return Joint(parts)


def decays(name: str, tensor: Tensor) -> bool:
    return tensor.dim() >= 2 and not BIAS.search(name)


def below_heads(names: Iterable[str]) -> dict[str, int]:
    """How far below the heads each tensor lies, as ELECTRA's code counts, in each tower by itself.

    Heads 0, the final norm 1, the last layer 2, the first of n layers n + 1, what enters it n + 2."""
    places = {name: TOWER.match(name) for name in names}
    tops: dict[str, int] = {}
    for place in places.values():
        if place and place["layer"]:
            tops[place["name"]] = max(tops.get(place["name"], 0), int(place["layer"]) + 1)
    depths = {}
    for name, place in places.items():
        if place is None:
            depths[name] = 0
        elif place["norm"]:
            depths[name] = 1
        else:
            at = int(place["layer"]) + 1 if place["layer"] else 0
            depths[name] = tops.get(place["name"], 0) + 2 - at
    return depths


def freeze(net: nn.Module, patterns: str | Iterable[str]) -> list[str]:
    """Stops the tensors of these names from learning; returns the names.

    A pattern is a name, whole or from a dot on: `encoder.embed.*`, `layers.[0-5].*`, `bias`."""
    named = dict(net.named_parameters(remove_duplicate=False))
    found = matching("parameter", patterns, named)
    for name in found:
        named[name].requires_grad_(False)
    return found


def clip(tensors: Iterable[Tensor], limit: float) -> tuple[Tensor, Tensor]:
    """Scales the gradients of all these tensors so that their norm is at most `limit` (0: no limit).

    Returns the norm that they had and whether it is finite, both on the device: nothing waits for them. Where
    it is not finite, the gradients are of no use and no step may be made with them."""
    number("clip", limit, at_least=0)
    alike: dict[object, list[Tensor]] = {}
    for p in tensors:
        if p.grad is not None:
            alike.setdefault(getattr(p, "placements", None), []).append(p)
    norms = [whole(get_total_norm([p.grad for p in held if p.grad is not None])) for held in alike.values()]
    norm = norms[0] if len(norms) == 1 else get_total_norm(norms)
    if limit:
        for held in alike.values():
            clip_grads_with_norm_(held, limit, norm)
    return norm, norm.isfinite()
