"""Optimizers: parameter groups, steps equal to torch's, and an exact resume."""

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
from qkv.train.config import OPTIMIZERS
from qkv.train.loop.ema import WeightEMA
from qkv.train.loop.muon import MAX_STACK_SIZE, Muon, orthogonalize
from qkv.train.loop.optim import (
    CombinedOptimizer,
    build_optimizer,
    clip_grad_norm,
    freeze_parameters,
)
from tests.support import compare, tiny


def group_of(optimizer: CombinedOptimizer) -> dict[str, dict[str, Any]]:
    """Return the group of every parameter, by name."""
    return {name: group for group in optimizer.param_groups for name in group["param_names"]}


def backward(model: qkv.Model, seed: int = 0) -> Tensor:
    model.net.zero_grad()
    out = model.net(tiny.build_batch(model, tiny.random_ids(2, 9, seed=seed)))["logits"]
    loss = -out.log_softmax(-1)[..., 3].mean()
    loss.backward()
    return loss.detach()


def train(model: qkv.Model, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        backward(model, step)
        optimizer.step()


def weights(net: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in net.named_parameters()}


# Groups


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_trainable_parameter_is_in_one_group(family: str, name: str) -> None:
    net = tiny.build(family).net
    optimizer = build_optimizer(net, optimizer=name, lr=0.1, weight_decay=0.3, layer_lr_decay=0.9)
    ids = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(ids) == sorted({id(p) for p in net.parameters() if p.requires_grad})
    for parameter_name, group in group_of(optimizer).items():
        assert group["weight_decay"] in (0, 0.3), parameter_name
        assert group["weight_decay"] == 0 or net.get_parameter(parameter_name).dim() > 1


@pytest.mark.parametrize(
    ("family", "pattern", "decays"),
    [
        ("bert", r"embedding\.(tokens|positions|token_types)\.weight", True),
        ("bert", r"layers\.\d\.(attention\.[qkvo]|feed_forward\.(up|down))\.weight", True),
        ("bert", r"bias$|norm\.", False),
        ("t5", r"position_bias\.table\.weight", False),
        ("t5", r"pre_", False),
        ("xlnet", r"relative\.[uvs]$", False),
        ("xlnet", r"relative\.(e$|r\.weight)", True),
        ("switch", r"router\.weight|experts\.\d\.up\.weight", True),
        ("clip", r"patches\.projection\.weight|projection\.out\.weight", True),
        ("clip", r"logit_scale|patches\.class_token", False),
    ],
)
def test_weight_decay_applies_to_matrices_only(family: str, pattern: str, decays: bool) -> None:
    groups = group_of(build_optimizer(tiny.build(family).net, lr=0.1, weight_decay=0.3))
    decays_found = [
        group["weight_decay"] for name, group in groups.items() if re.search(pattern, name)
    ]
    assert decays_found
    assert set(decays_found) == {0.3 if decays else 0.0}


def test_muon_updates_only_hidden_matrices() -> None:
    for family in tiny.FAMILIES:
        optimizer = build_optimizer(tiny.build(family).net, optimizer="muon", lr=0.1)
        muon = [part for part in optimizer.optimizers if isinstance(part, Muon)]
        names = [
            name for part in muon for group in part.param_groups for name in group["param_names"]
        ]
        assert names
        pattern = r"\.layers\.\d+\.(attention|cross_attention|feed_forward|cell)\.(?!bias)"
        assert all(re.search(pattern, name) for name in names)
        assert all("router" not in name for name in names)
        others = {*group_of(optimizer)} - {*names}
        pattern = r"\.layers\..*(\.([qkvo]|up|down|gate)\.weight|\.cell\.weight)"
        assert not [name for name in others if re.search(pattern, name)]


def test_frozen_parameters_are_left_out() -> None:
    net = tiny.build("bert").net
    freeze_parameters(net, ["encoder.embedding.*", "layers.0.*"])
    names = {*group_of(build_optimizer(net, lr=0.1))}
    assert names == {
        n
        for n, _ in net.named_parameters()
        if not n.startswith(("encoder.embedding", "encoder.layers.0"))
    }
    net.requires_grad_(False)
    with pytest.raises(ValueError, match="no trainable parameters"):
        build_optimizer(net, lr=0.1)


def test_adapters_are_not_hidden_matrices() -> None:
    net = tiny.build("bert").net
    add_lora(net)
    assert {
        group["weight_decay"]
        for group in build_optimizer(net, lr=0.1, weight_decay=0.2).param_groups
    } == {0.2}
    with pytest.raises(ValueError, match="'muon': no hidden matrix is trainable, expected adamw"):
        build_optimizer(net, optimizer="muon", lr=0.1)


# Layer-wise learning rates


def test_layer_lr_decay_counts_layers_as_electra() -> None:
    depth = 4
    lr = 0.1
    decay = 0.8
    net = tiny.build("electra", depth=depth, head="sequence-classification").net
    groups = group_of(build_optimizer(net, lr=lr, layer_lr_decay=decay))
    depths = {"embedding": 0} | {f"layers.{i}": i + 1 for i in range(depth)} | {"heads": depth + 2}
    for name, group in groups.items():
        height = next(d for key, d in depths.items() if re.search(rf"(^|\.){key}\.", name))
        assert group["lr"] == pytest.approx(lr * decay ** (depth + 2 - height)), name
        assert group["lr"] == pytest.approx(lr * group["lr_factor"])


def test_layer_lr_decay_counts_each_stack_separately() -> None:
    net = tiny.build("t5", depth=2, decoder_depth=3).net
    groups = group_of(build_optimizer(net, lr=1.0, layer_lr_decay=0.5))
    depths = {
        "encoder.embedding.tokens.weight": 4,
        "encoder.layers.0.attention.q.weight": 3,
        "encoder.layers.1.attention.q.weight": 2,
        "encoder.final_norm.weight": 1,
        "decoder.position_bias.table.weight": 5,
        "decoder.layers.0.cross_attention.q.weight": 4,
        "decoder.layers.2.cross_attention.q.weight": 2,
        "decoder.final_norm.weight": 1,
    }
    assert {name: groups[name]["lr"] for name in depths} == {
        name: 0.5**n for name, n in depths.items()
    }
    clip_groups = group_of(build_optimizer(tiny.build("clip").net, lr=1.0, layer_lr_decay=0.5))
    assert (
        clip_groups["logit_scale"]["lr"]
        == clip_groups["text.heads.projection.out.weight"]["lr"]
        == 1
    )
    assert clip_groups["image.encoder.layers.1.attention.q.weight"]["lr"] == 0.25


# Steps


def test_adamw_equals_torch() -> None:
    model = tiny.build("bert")
    reference = tiny.build("bert")
    optimizer = build_optimizer(model.net, lr=0.01, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.1)
    named = dict(reference.net.named_parameters())
    groups = [
        dict(params=[p for p in named.values() if p.dim() > 1], weight_decay=0.1),
        dict(params=[p for p in named.values() if p.dim() < 2], weight_decay=0.0),
    ]
    torch_optimizer = torch.optim.AdamW(
        groups, lr=0.01, betas=(0.8, 0.99), eps=1e-6, foreach=False, fused=False
    )
    train(model, optimizer, range(4))
    train(reference, torch_optimizer, range(4))
    # The exact gradient of the keys' bias is zero. AdamW divides its rounding error, about 1e-17, by
    # eps, so that it reaches the weights: lr * 1e-17 / eps in each of the four steps.
    actual = weights(model.net)
    expected = weights(reference.net)
    names = [name for name in actual if name.endswith("attention.k.bias")]
    assert names
    compare.assert_close(
        {name: actual.pop(name) for name in names},
        {name: expected.pop(name) for name in names},
        1e-10,
    )
    compare.assert_close(actual, expected, 1e-12)


@pytest.mark.parametrize("shape", [(24, 24), (24, 60), (60, 24), (3, 8, 5)])
def test_orthogonalize_gives_singular_values_near_one(shape: tuple[int, ...]) -> None:
    u, s, v = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    x = u @ torch.diag_embed(s.clamp(min=0.1)) @ v
    inner = u.mT @ orthogonalize(x) @ v.mT  # the directions stay
    new = inner.diagonal(dim1=-2, dim2=-1)
    assert compare.max_difference(inner, torch.diag_embed(new)) < 1e-4
    assert 0.5 < new.min() <= new.max() < 1.3


def test_orthogonalize_keeps_zero() -> None:
    assert not orthogonalize(torch.zeros(4, 6)).any()


@pytest.mark.parametrize("shape", [(16, 40), (40, 16)])
def test_muon_equals_torch(shape: tuple[int, int]) -> None:
    lr = 0.02
    count = MAX_STACK_SIZE + 3
    start = [torch.randn(shape) for _ in range(count)]
    parameters = [nn.Parameter(x.clone()) for x in start]
    expected = [nn.Parameter(x.clone()) for x in start]
    muon = Muon([{"params": parameters}], lr=lr, weight_decay=0.1, momentum=0.9)
    torch_muon = torch.optim.Muon(
        expected, lr=lr, weight_decay=0.1, momentum=0.9, adjust_lr_fn="match_rms_adamw"
    )
    for _ in range(3):
        for p, q in zip(parameters, expected, strict=True):
            p.grad = torch.randn(shape)
            q.grad = p.grad.clone()
        muon.step()
        torch_muon.step()
    step = lr * 0.2 * math.sqrt(40)
    for p, q, x in zip(parameters, expected, start, strict=True):
        assert compare.max_difference(p, q) < 0.1 * step  # torch computes it in bfloat16
        assert compare.max_difference(p, x) > 0.1 * step


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_loss_falls(name: str) -> None:
    model = tiny.build("gpt2", dtype=torch.float32)
    optimizer = build_optimizer(model.net, optimizer=name, lr=0.01)
    before = float(backward(model))
    train(model, optimizer, range(10))
    assert float(backward(model)) < before / 2


def test_adafactor_updates_are_relative_to_the_parameter_scale() -> None:
    model = tiny.build("t5", dtype=torch.float32)
    before = weights(model.net)
    train(
        model,
        build_optimizer(model.net, optimizer="adafactor", lr=0.01, weight_decay=0.0),
        range(1),
    )
    for name, x in weights(model.net).items():
        step, size = (float(y.square().mean().sqrt()) for y in (x - before[name], before[name]))
        minimum = 0.005 if ".layers." in name else 0.0  # embeddings of absent tokens do not move
        assert minimum < step / max(size, 1e-3) < 0.0101, name


def test_a_closure_is_called() -> None:
    model = tiny.build("bert")
    reference = tiny.build("bert")
    optimizer = build_optimizer(model.net, optimizer="muon", lr=0.01)
    assert optimizer.step(lambda: float(backward(model))) == float(backward(reference))
    assert float(backward(model)) < float(backward(reference))


# Resuming


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("family", ["bert", "t5"])
def test_resumes_exactly(family: str, name: str) -> None:
    options: dict[str, Any] = dict(optimizer=name, lr=0.01, weight_decay=0.1, layer_lr_decay=0.9)
    uninterrupted = tiny.build(family, dtype=torch.float32)
    train(uninterrupted, build_optimizer(uninterrupted.net, **options), range(10))

    first = tiny.build(family, dtype=torch.float32)
    optimizer = build_optimizer(first.net, **options)
    train(first, optimizer, range(5))
    file = io.BytesIO()
    torch.save({"net": first.net.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    second = tiny.build(family, dtype=torch.float32)
    second.net.load_state_dict(saved["net"])
    resumed_optimizer = build_optimizer(second.net, **options)
    resumed_optimizer.load_state_dict(saved["optimizer"])
    train(second, resumed_optimizer, range(5, 10))
    compare.assert_bitwise_equal(
        weights(second.net), weights(uninterrupted.net), because=compare.RESUMED
    )


def test_lr_set_after_loading_reaches_every_optimizer() -> None:
    model = tiny.build("bert", dtype=torch.float32)
    optimizer = build_optimizer(model.net, optimizer="muon", lr=0.01)
    train(model, optimizer, range(1))
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    before = weights(model.net)
    train(model, optimizer, range(1, 2))
    compare.assert_bitwise_equal(
        weights(model.net), before, because="a learning rate of zero changes nothing"
    )


def test_error_for_a_state_of_other_parameters() -> None:
    full = build_optimizer(tiny.build("bert").net, lr=0.1)
    net = tiny.build("bert").net
    freeze_parameters(net, "heads.lm.out.bias")
    message = r"has other parameters, .*missing none; unknown heads\.lm\.out\.bias"
    with pytest.raises(ValueError, match=message):
        build_optimizer(net, lr=0.1).load_state_dict(full.state_dict())


# Freezing and clipping


def test_freeze_by_patterns() -> None:
    net = tiny.build("bert").net
    assert freeze_parameters(net, "layers.1.attention.[qk].weight") == [
        "encoder.layers.1.attention.q.weight",
        "encoder.layers.1.attention.k.weight",
    ]
    assert freeze_parameters(net, ["encoder.embedding.norm.*", "heads.lm.norm.bias"]) == [
        "encoder.embedding.norm.weight", "encoder.embedding.norm.bias", "heads.lm.norm.bias",
    ]  # fmt: skip
    assert sum(not p.requires_grad for p in net.parameters()) == 5
    freeze_parameters(net, "heads.lm.out.weight")
    assert not net.get_parameter("encoder.embedding.tokens.weight").requires_grad  # they are tied


def test_error_names_a_pattern_without_match() -> None:
    message = r"^pattern 'encoder\.layer\.0\.\*' matches no parameter; nearest: encoder\.layers\.0"
    with pytest.raises(ValueError, match=message):
        freeze_parameters(tiny.build("bert").net, ["encoder.embedding.*", "encoder.layer.0.*"])


def gradients(net: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in net.parameters() if p.grad is not None]


@pytest.mark.parametrize("max_norm", [0.0, 0.5, 1e6])
def test_clip_grad_norm_equals_torch(max_norm: float) -> None:
    model = tiny.build("bert")
    reference = tiny.build("bert")
    backward(model)
    backward(reference)
    norm, finite = clip_grad_norm(model.net.parameters(), max_norm)
    expected = nn.utils.clip_grad_norm_(reference.net.parameters(), max_norm or math.inf)
    assert finite
    compare.assert_bitwise_equal(norm, expected, because=compare.SAME_KERNELS)
    for x, y in zip(gradients(model.net), gradients(reference.net), strict=True):
        assert compare.max_difference(x, y) < 1e-12


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_clip_grad_norm_reports_a_non_finite_norm(value: float) -> None:
    model = tiny.build("bert")
    backward(model)
    model.net.get_parameter("encoder.embedding.norm.bias").grad[0] = value  # type: ignore[index]
    norm, finite = clip_grad_norm(model.net.parameters(), 1.0)
    assert not finite
    assert not norm.isfinite()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(optimizer="sgd"), "optimizer 'sgd': expected one of adamw, muon, adafactor"),
        (dict(lr=0.0), "lr is 0.0: expected a number, more than 0"),
        (dict(lr=math.nan), "lr is nan: expected a number, more than 0"),
        (dict(eps=-1.0), "eps is -1.0: expected a number, more than 0"),
        (dict(weight_decay=-0.1), "weight_decay is -0.1: expected a number, at least 0"),
        (dict(betas=(0.9, 1.0)), "betas[1] is 1.0: expected a number, at least 0 and less than 1"),
        (dict(betas=(0.9,)), "betas is (0.9,): expected two numbers"),
        (
            dict(layer_lr_decay=1.5),
            "layer_lr_decay is 1.5: expected a number, more than 0 and at most 1",
        ),
    ],
)
def test_error_names_the_wrong_value(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        build_optimizer(nn.Linear(2, 2), **{"lr": 0.1, **settings})


# Sharded


def full_tensor(x: Tensor) -> Tensor:
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def run_few_steps(name: str, is_sharded: bool, has_lora: bool) -> dict[str, Tensor]:
    """Return norms, weights, averages and optimizer state of a short run."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = tiny.build("bert", dtype=torch.float64)
    if has_lora:
        torch.manual_seed(0)
        add_lora(model.net, r=2, target_modules=("attention.q,k,v", "feed_forward.up"))
    if is_sharded:
        mesh = init_device_mesh("cpu", (2,))
        for layer in model.net.encoder.layers:  # type: ignore[union-attr]
            fully_shard(layer, mesh=mesh)
        fully_shard(model.net, mesh=mesh)
    optimizer = build_optimizer(model.net, optimizer=name, lr=0.01, weight_decay=0.1)
    ema = WeightEMA(model.net, 0.5)
    out = {}
    for step in range(2):
        backward(model, step)
        out[f"norm.{step}"] = clip_grad_norm(model.net.parameters(), 0.1)[0]
        optimizer.step()
        ema.update()
    with ema.average_parameters(model.net):
        out |= {f"average.{name}": full_tensor(x).clone() for name, x in weights(model.net).items()}
    out |= {f"weight.{name}": full_tensor(x) for name, x in weights(model.net).items()}
    return out | {
        f"{i}.{k}": full_tensor(x)
        for i, s in enumerate(optimizer.state.values())
        for k, x in s.items()
    }


def run_process(rank: int, path: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    # In fp64: the gradient of a key's bias is zero except for rounding errors, and Adam divides that noise by
    # at least eps, 1e-16 / 1e-8; in fp32 it would be as large as a real step.
    for name, has_lora in (("muon", False), ("adamw", True)):
        compare.assert_close(
            run_few_steps(name, True, has_lora), run_few_steps(name, False, has_lora), 1e-6
        )
    dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_available(), reason="torch is built without torch.distributed")
def test_sharded_optimizer_equals_unsharded(tmp_path: Path) -> None:
    spawn(run_process, (f"{tmp_path}/store",), nprocs=2)
