"""Optimisers: which tensor is in which group, the steps against torch's, and going on to the bit."""

import copy
import io
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

import qkv
from qkv.nn.lora import add_lora
from qkv.train.config import OPTIMISERS
from qkv.train.loop.ema import Average
from qkv.train.loop.muon import STACK, Muon, orthogonal
from qkv.train.loop.optim import Joint, clip, freeze, make_optimiser
from tests.support import tiny


def group_of(optimiser: Joint) -> dict[str, dict[str, Any]]:
    """The group of every tensor, by name."""
    return {name: group for group in optimiser.param_groups for name in group["param_names"]}


def backward(made: qkv.Model, seed: int = 0) -> Tensor:
    made.net.zero_grad()
    out = made.net(tiny.batch(made, tiny.ids(2, 9, seed=seed)))["logits"]
    loss = -out.log_softmax(-1)[..., 3].mean()
    loss.backward()
    return loss.detach()


def train(made: qkv.Model, optimiser: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        backward(made, step)
        optimiser.step()


def weights(net: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in net.named_parameters()}


# Groups


@pytest.mark.parametrize("kind", OPTIMISERS)
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_tensor_that_learns_is_in_one_group(family: str, kind: str) -> None:
    net = tiny.model(family).net
    optimiser = make_optimiser(net, kind=kind, rate=0.1, decay=0.3, layer_decay=0.9)
    held = [id(p) for group in optimiser.param_groups for p in group["params"]]
    assert sorted(held) == sorted({id(p) for p in net.parameters() if p.requires_grad})
    for name, group in group_of(optimiser).items():
        assert group["weight_decay"] in (0, 0.3), name
        assert group["weight_decay"] == 0 or net.get_parameter(name).dim() > 1


@pytest.mark.parametrize(
    ("family", "pattern", "decays"),
    [
        ("bert", r"embed\.(tokens|positions|types)\.weight", True),
        ("bert", r"layers\.\d\.(attend\.[qkvo]|feed\.(up|down))\.weight", True),
        ("bert", r"bias$|norm\.|after_", False),
        ("t5", r"bias\.table\.weight", False),
        ("t5", r"before_", False),
        ("xlnet", r"relative\.[uvs]$", False),
        ("xlnet", r"relative\.(e$|r\.weight)", True),
        ("switch", r"router\.weight|experts\.\d\.up\.weight", True),
        ("clip", r"patches\.weight|vector\.out\.weight", True),
        ("clip", r"temperature|embed\.first", False),
    ],
)
def test_matrices_decay_and_biases_do_not(family: str, pattern: str, decays: bool) -> None:
    groups = group_of(make_optimiser(tiny.model(family).net, rate=0.1, decay=0.3))
    found = [group["weight_decay"] for name, group in groups.items() if re.search(pattern, name)]
    assert found
    assert set(found) == {0.3 if decays else 0.0}


def test_muon_has_the_hidden_matrices_alone() -> None:
    for family in tiny.FAMILIES:
        optimiser = make_optimiser(tiny.model(family).net, kind="muon", rate=0.1)
        muon = [part for part in optimiser.parts if isinstance(part, Muon)]
        names = [name for part in muon for group in part.param_groups for name in group["param_names"]]
        assert names
        assert all(re.search(r"\.layers\.\d+\.(attend|cross|feed)\.", name) for name in names)
        assert all("router" not in name and name.endswith("weight") for name in names)
        left = {*group_of(optimiser)} - {*names}
        assert not [n for n in left if re.search(r"(attend|cross)\.[qkvo]\.weight|(up|down|gate)\.weight", n)]


def test_frozen_tensors_are_left_out() -> None:
    net = tiny.model("bert").net
    freeze(net, ["encoder.embed.*", "layers.0.*"])
    names = {*group_of(make_optimiser(net, rate=0.1))}
    assert names == {
        n for n, _ in net.named_parameters() if not n.startswith(("encoder.embed", "encoder.layers.0"))
    }
    net.requires_grad_(False)
    with pytest.raises(ValueError, match="nothing to optimise"):
        make_optimiser(net, rate=0.1)


def test_adapters_are_no_hidden_matrices() -> None:
    net = tiny.model("bert").net
    add_lora(net)
    assert {group["weight_decay"] for group in make_optimiser(net, rate=0.1, decay=0.2).param_groups} == {0.2}
    with pytest.raises(ValueError, match="'muon': no hidden matrix is left to train, expected adamw"):
        make_optimiser(net, kind="muon", rate=0.1)


# Layer-wise rates


def test_lower_layers_move_less_as_electra_counts() -> None:
    depth, rate, factor = 4, 0.1, 0.8
    net = tiny.model("electra", depth=depth, head="label").net
    groups = group_of(make_optimiser(net, rate=rate, layer_decay=factor))
    depths = {"embed": 0} | {f"layers.{i}": i + 1 for i in range(depth)} | {"heads": depth + 2}
    for name, group in groups.items():
        at = next(d for key, d in depths.items() if re.search(rf"(^|\.){key}\.", name))
        assert group["lr"] == pytest.approx(rate * factor ** (depth + 2 - at)), name
        assert group["lr"] == pytest.approx(rate * group["factor"])


def test_each_tower_counts_its_own_layers() -> None:
    net = tiny.model("t5", depth=2, decoder_depth=3).net
    groups = group_of(make_optimiser(net, rate=1.0, layer_decay=0.5))
    below = {
        "encoder.embed.tokens.weight": 4, "encoder.layers.0.attend.q.weight": 3,
        "encoder.layers.1.attend.q.weight": 2, "encoder.norm.weight": 1, "decoder.bias.table.weight": 5,
        "decoder.layers.0.cross.q.weight": 4, "decoder.layers.2.cross.q.weight": 2, "decoder.norm.weight": 1,
    }  # fmt: skip
    assert {name: groups[name]["lr"] for name in below} == {name: 0.5**n for name, n in below.items()}
    two = group_of(make_optimiser(tiny.model("clip").net, rate=1.0, layer_decay=0.5))
    assert two["temperature"]["lr"] == two["text.heads.vector.out.weight"]["lr"] == 1
    assert two["image.encoder.layers.1.attend.q.weight"]["lr"] == 0.25


# Steps


def test_adamw_is_torchs() -> None:
    made, twin = tiny.model("bert"), tiny.model("bert")
    ours = make_optimiser(made.net, rate=0.01, betas=(0.8, 0.99), eps=1e-6, decay=0.1)
    named = dict(twin.net.named_parameters())
    groups = [
        dict(params=[p for p in named.values() if p.dim() > 1], weight_decay=0.1),
        dict(params=[p for p in named.values() if p.dim() < 2], weight_decay=0.0),
    ]
    theirs = torch.optim.AdamW(groups, lr=0.01, betas=(0.8, 0.99), eps=1e-6, foreach=False, fused=False)
    train(made, ours, range(4))
    train(twin, theirs, range(4))
    tiny.close(weights(made.net), weights(twin.net), 1e-12)


@pytest.mark.parametrize("shape", [(24, 24), (24, 60), (60, 24), (3, 8, 5)])
def test_singular_values_come_near_one(shape: tuple[int, ...]) -> None:
    u, s, v = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    x = u @ torch.diag_embed(s.clamp(min=0.1)) @ v
    inner = u.mT @ orthogonal(x) @ v.mT  # the directions stay
    new = inner.diagonal(dim1=-2, dim2=-1)
    assert tiny.apart(inner, torch.diag_embed(new)) < 1e-4
    assert 0.5 < new.min() <= new.max() < 1.3


def test_nothing_moves_where_the_gradient_is_zero() -> None:
    assert torch.equal(orthogonal(torch.zeros(4, 6)), torch.zeros(4, 6))


@pytest.mark.parametrize(("scale", "name"), [("rms", "match_rms_adamw"), ("jordan", "original")])
@pytest.mark.parametrize("shape", [(16, 40), (40, 16)])
def test_muon_is_torchs(scale: str, name: str, shape: tuple[int, int]) -> None:
    rate, count = 0.02, STACK + 3
    start = [torch.randn(shape) for _ in range(count)]
    ours, theirs = ([nn.Parameter(x.clone()) for x in start] for _ in range(2))
    made = Muon([{"params": ours}], lr=rate, weight_decay=0.1, momentum=0.9, scale=scale)
    other = torch.optim.Muon(theirs, lr=rate, weight_decay=0.1, momentum=0.9, adjust_lr_fn=name)
    for _ in range(3):
        for one, two in zip(ours, theirs, strict=True):
            one.grad = torch.randn(shape)
            two.grad = one.grad.clone()
        made.step()
        other.step()
    step = rate * (0.2 * math.sqrt(40) if scale == "rms" else max(1, shape[0] / shape[1]) ** 0.5)
    for one, two, x in zip(ours, theirs, start, strict=True):
        assert tiny.apart(one, two) < 0.1 * step  # theirs is computed in bfloat16
        assert tiny.apart(one, x) > 0.1 * step


def test_muons_own_rate_is_a_factor() -> None:
    net = tiny.model("bert").net
    groups = group_of(make_optimiser(net, kind="muon", rate=0.01, matrix_rate=0.2, scale="jordan"))
    q, embed = groups["encoder.layers.0.attend.q.weight"], groups["encoder.embed.tokens.weight"]
    assert (q["lr"], embed["lr"]) == (pytest.approx(0.2), 0.01)
    assert (q["factor"], embed["factor"]) == (pytest.approx(20), 1)


@pytest.mark.parametrize("kind", OPTIMISERS)
def test_learns(kind: str) -> None:
    made = tiny.model("gpt2", dtype=torch.float32)
    optimiser = make_optimiser(made.net, kind=kind, rate=0.01)
    before = float(backward(made))
    train(made, optimiser, range(10))
    assert float(backward(made)) < before / 2


def test_adafactor_moves_every_tensor_by_a_share_of_its_size() -> None:
    made = tiny.model("t5", dtype=torch.float32)
    before = weights(made.net)
    train(made, make_optimiser(made.net, kind="adafactor", rate=0.01, decay=0.0), range(1))
    for name, x in weights(made.net).items():
        step, size = (float(each.square().mean().sqrt()) for each in (x - before[name], before[name]))
        least = 0.005 if ".layers." in name else 0.0  # words that do not occur stand still
        assert least < step / max(size, 1e-3) < 0.0101, name


def test_a_closure_is_called() -> None:
    made, twin = tiny.model("bert"), tiny.model("bert")
    optimiser = make_optimiser(made.net, kind="muon", rate=0.01)
    assert optimiser.step(lambda: float(backward(made))) == float(backward(twin))
    assert float(backward(made)) < float(backward(twin))


# Going on


@pytest.mark.parametrize("kind", OPTIMISERS)
@pytest.mark.parametrize("family", ["bert", "t5"])
def test_goes_on_to_the_bit(family: str, kind: str) -> None:
    options: dict[str, Any] = dict(kind=kind, rate=0.01, decay=0.1, layer_decay=0.9)
    straight = tiny.model(family, dtype=torch.float32)
    train(straight, make_optimiser(straight.net, **options), range(10))

    first = tiny.model(family, dtype=torch.float32)
    optimiser = make_optimiser(first.net, **options)
    train(first, optimiser, range(5))
    file = io.BytesIO()
    torch.save({"net": first.net.state_dict(), "optimiser": optimiser.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    second = tiny.model(family, dtype=torch.float32)
    second.net.load_state_dict(saved["net"])
    again = make_optimiser(second.net, **options)
    again.load_state_dict(saved["optimiser"])
    train(second, again, range(5, 10))
    own = weights(second.net)
    assert all(torch.equal(x, own[name]) for name, x in weights(straight.net).items())


def test_rates_set_after_loading_reach_the_parts() -> None:
    made = tiny.model("bert", dtype=torch.float32)
    optimiser = make_optimiser(made.net, kind="muon", rate=0.01)
    train(made, optimiser, range(1))
    optimiser.load_state_dict(copy.deepcopy(optimiser.state_dict()))
    for group in optimiser.param_groups:
        group["lr"] = 0.0
    before = weights(made.net)
    train(made, optimiser, range(1, 2))
    assert all(torch.equal(x, before[name]) for name, x in weights(made.net).items())


def test_a_state_of_other_tensors_is_refused() -> None:
    one = make_optimiser(tiny.model("bert").net, rate=0.1)
    two = tiny.model("bert").net
    freeze(two, "heads.lm.out.bias")
    with pytest.raises(ValueError, match=r"of other tensors, .*missing none; unknown heads\.lm\.out\.bias"):
        make_optimiser(two, rate=0.1).load_state_dict(one.state_dict())


# Freezing and clipping


def test_freeze_by_patterns() -> None:
    net = tiny.model("bert").net
    assert freeze(net, "layers.1.attend.[qk].weight") == [
        "encoder.layers.1.attend.q.weight",
        "encoder.layers.1.attend.k.weight",
    ]
    assert freeze(net, ["encoder.embed.norm.*", "heads.lm.norm.bias"]) == [
        "encoder.embed.norm.weight", "encoder.embed.norm.bias", "heads.lm.norm.bias",
    ]  # fmt: skip
    assert sum(not p.requires_grad for p in net.parameters()) == 5
    freeze(net, "heads.lm.out.weight")
    assert not net.get_parameter("encoder.embed.tokens.weight").requires_grad  # they are tied


def test_a_pattern_that_matches_nothing_is_named() -> None:
    said = r"^pattern 'encoder\.layer\.0\.\*' matches no parameter; nearest: encoder\.layers\.0"
    with pytest.raises(ValueError, match=said):
        freeze(tiny.model("bert").net, ["encoder.embed.*", "encoder.layer.0.*"])


def gradients(net: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in net.parameters() if p.grad is not None]


@pytest.mark.parametrize("limit", [0.0, 0.5, 1e6])
def test_clips_to_the_norm(limit: float) -> None:
    made, twin = tiny.model("bert"), tiny.model("bert")
    backward(made)
    backward(twin)
    norm, finite = clip(made.net.parameters(), limit)
    theirs = nn.utils.clip_grad_norm_(twin.net.parameters(), limit or math.inf)
    assert finite
    assert torch.equal(norm, theirs)
    for x, y in zip(gradients(made.net), gradients(twin.net), strict=True):
        assert tiny.apart(x, y) < 1e-12


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_norm_that_is_not_finite_is_told(bad: float) -> None:
    made = tiny.model("bert")
    backward(made)
    made.net.get_parameter("encoder.embed.norm.bias").grad[0] = bad  # type: ignore[index]
    norm, finite = clip(made.net.parameters(), 1.0)
    assert not finite
    assert not norm.isfinite()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (dict(kind="sgd"), "optimiser 'sgd': expected one of adamw, muon, adafactor"),
        (dict(scale="big"), "scale 'big': expected one of rms, jordan"),
        (dict(rate=0.0), "rate is 0.0: expected a number, more than 0"),
        (dict(rate=math.nan), "rate is nan: expected a number, more than 0"),
        (dict(eps=-1.0), "eps is -1.0: expected a number, more than 0"),
        (dict(decay=-0.1), "decay is -0.1: expected a number, at least 0"),
        (dict(betas=(0.9, 1.0)), "betas[1] is 1.0: expected a number, at least 0 and less than 1"),
        (dict(betas=(0.9,)), "betas is (0.9,): expected two numbers"),
        (dict(momentum=1.0), "momentum is 1.0: expected a number, at least 0 and less than 1"),
        (dict(layer_decay=1.5), "layer_decay is 1.5: expected a number, more than 0 and at most 1"),
        (dict(matrix_rate=-1.0), "matrix_rate is -1.0: expected a number, more than 0"),
    ],
)
def test_a_wrong_value_is_named(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        make_optimiser(nn.Linear(2, 2), **{"rate": 0.1, **wrong})


# Sharded


def whole(x: Tensor) -> Tensor:
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def few_steps(kind: str, shards: bool, adapted: bool) -> dict[str, Tensor]:
    """Norms, weights, averages and moments of a short run."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    made = tiny.model("bert", dtype=torch.float64)
    if adapted:
        torch.manual_seed(0)
        add_lora(made.net, rank=2, where=("attend.q,k,v", "feed.up"))
    if shards:
        mesh = init_device_mesh("cpu", (2,))
        for layer in made.net.encoder.layers:  # type: ignore[union-attr]
            fully_shard(layer, mesh=mesh)
        fully_shard(made.net, mesh=mesh)
    optimiser = make_optimiser(made.net, kind=kind, rate=0.01, decay=0.1)
    average, out = Average(made.net, 0.5), {}
    for step in range(2):
        backward(made, step)
        out[f"norm.{step}"] = clip(made.net.parameters(), 0.1)[0]
        optimiser.step()
        average.update()
    with average.applied(made.net):
        out |= {f"average.{name}": whole(x).clone() for name, x in weights(made.net).items()}
    out |= {f"own.{name}": whole(x) for name, x in weights(made.net).items()}
    return out | {f"{i}.{k}": whole(x) for i, s in enumerate(optimiser.state.values()) for k, x in s.items()}


def in_one_process(rank: int, path: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    # In fp64: the gradient of a key's bias is zero but for rounding, and Adam's step is that noise divided by
    # eps at least, 1e-16 / 1e-8; in fp32 it would be of the size of a real step.
    for kind, adapted in (("muon", False), ("adamw", True)):
        tiny.close(few_steps(kind, True, adapted), few_steps(kind, False, adapted), 1e-6)
    dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_available(), reason="torch is built without torch.distributed")
def test_sharded_is_the_same(tmp_path: Path) -> None:
    spawn(in_one_process, (f"{tmp_path}/store",), nprocs=2)
