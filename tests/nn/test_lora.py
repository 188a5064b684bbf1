"""LoRA: adapted and frozen parameters, and merging. Files are tested in tests/model."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qkv
from qkv.nn.lora import LoraLinear, add_lora, linear_layers, lora_layers, merge_lora
from qkv.train.loop.optim import build_optimizer
from tests.nn.test_one_graph import GRAPH
from tests.support import compare, tiny
from tests.support.adapters import randomize_trainable_parameters


def run(model: qkv.Model) -> dict[str, Tensor]:
    with torch.no_grad():
        return model(**tiny.build_inputs(model))


# The linear layers of a recurrent model are those around its cells.
WITHOUT_ADAPTERS = ("transformer-xl", "lstm-seq2seq", "sequence-autoencoder")


@pytest.mark.parametrize("family", [name for name in tiny.FAMILIES if name not in WITHOUT_ADAPTERS])
def test_new_adapters_change_nothing_and_merging_changes_nothing(family: str) -> None:
    model = tiny.build(family)
    plain = tiny.build(family)
    names = {name for name, _ in plain.net.named_parameters()}
    targets = (
        ("dense",) if family in tiny.RECURRENT_DECODERS else ("attention.[qkvo]", "up", "down")
    )
    added = add_lora(model.net, r=3, lora_alpha=6.0, target_modules=targets)
    assert len(added) == len(lora_layers(model.net)) > 0
    assert names <= {name for name, _ in model.net.named_parameters()}
    assert {n for n, p in model.net.named_parameters() if p.requires_grad} == {
        f"{path}.lora_{side}.weight" for path in added for side in "ab"
    }
    before = run(plain)
    # Not bitwise: whether torch.matmul folds a batch into one matrix depends on whether the weight
    # needs a gradient, and here it is frozen. Another order of summation is far below 1e-12.
    compare.assert_close(run(model), before, 1e-12)
    randomize_trainable_parameters(model.net)
    adapted = run(model)
    assert max(compare.max_difference(adapted[name], x) for name, x in before.items()) > 1e-3
    assert sorted(merge_lora(model.net)) == sorted(added)
    assert {name for name, _ in model.net.named_parameters()} == names
    assert lora_layers(model.net) == {}
    compare.assert_close(run(model), adapted, 1e-9)


def test_forward_adds_the_scaled_product_of_b_and_a() -> None:
    base = nn.Linear(6, 4)
    x = torch.randn(5, 6)
    for use_rslora, scale in ((False, 8 / 4), (True, 8 / math.sqrt(4))):
        lora = LoraLinear(base, r=4, lora_alpha=8.0, use_rslora=use_rslora)
        nn.init.normal_(lora.lora_b.weight)
        change = scale * lora.lora_b.weight @ lora.lora_a.weight
        assert compare.max_difference(lora(x), x @ (base.weight + change).T + base.bias) < 1e-5


def test_dropout_acts_only_in_training() -> None:
    model = tiny.build("bert")
    add_lora(model.net, lora_dropout=0.5)
    randomize_trainable_parameters(model.net)
    compare.assert_bitwise_equal(run(model), run(model), because=compare.SAME_KERNELS)
    model.net.train()
    assert compare.max_difference(run(model)["logits"], run(model)["logits"]) > 1e-3


def test_adapters_of_bf16_weights_are_fp32() -> None:
    model = tiny.build("bert", dtype=torch.bfloat16)
    add_lora(model.net)
    randomize_trainable_parameters(model.net)
    assert {layer.lora_b.weight.dtype for layer in lora_layers(model.net).values()} == {
        torch.float32
    }
    logits = run(model)["logits"]
    assert logits.dtype == torch.bfloat16
    merge_lora(model.net)
    assert {p.dtype for p in model.net.parameters()} == {torch.bfloat16}
    assert compare.max_difference(run(model)["logits"], logits) < 0.1 * float(logits.abs().max())


def test_target_modules_are_paths_or_their_ends() -> None:
    layers = [f"encoder.layers.{i}.attention" for i in range(2)]
    layers += [
        f"decoder.layers.{i}.{part}" for i in range(3) for part in ("attention", "cross_attention")
    ]
    assert add_lora(tiny.build("t5").net) == [
        f"{layer}.{part}" for part in "qv" for layer in layers
    ]
    assert add_lora(tiny.build("bert").net, target_modules="encoder.layers.1.feed_forward.*") == [
        "encoder.layers.1.feed_forward.up",
        "encoder.layers.1.feed_forward.down",
    ]


def test_linear_layers_include_adapted_ones() -> None:
    net = tiny.build("bert").net
    before = [*linear_layers(net)]
    add_lora(net, target_modules=("q", "up"))
    assert [*linear_layers(net)] == before


def test_layers_of_one_pattern_share_lora_a() -> None:
    net = tiny.build("gpt2").net
    added = add_lora(net, target_modules="attention.q,k,v")
    layers = lora_layers(net)
    assert added[:3] == [f"decoder.layers.0.attention.{part}" for part in "qkv"]
    q, k, v = (layers[path] for path in added[:3])
    assert q.lora_a is k.lora_a is v.lora_a is not layers[added[3]].lora_a
    trainable = [p for p in net.parameters() if p.requires_grad]
    assert len(trainable) == 2 * (1 + 3)
    assert sum(len(group["params"]) for group in build_optimizer(net, lr=0.1).param_groups) == len(
        trainable
    )


def test_a_layer_is_adapted_only_once() -> None:
    net = tiny.build("bert").net
    add_lora(net, target_modules="q")
    add_lora(net, target_modules="v", r=2)
    assert len(lora_layers(net)) == 4
    assert all(p.requires_grad == ("lora_" in name) for name, p in net.named_parameters())
    with pytest.raises(
        ValueError, match=r"encoder\.layers\.0\.attention\.q has an adapter already"
    ):
        add_lora(net, target_modules="q")


def test_only_adapters_are_trained() -> None:
    model = tiny.build("bert", dtype=torch.float32)
    add_lora(model.net)
    before = {name: p.detach().clone() for name, p in model.net.named_parameters()}
    optimizer = build_optimizer(model.net, lr=0.01)
    losses = []
    for _ in range(5):
        loss = (
            -model.net(tiny.build_batch(model, tiny.random_ids(2, 9)))["logits"]
            .log_softmax(-1)[..., 3]
            .mean()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    for name, p in model.net.named_parameters():
        if "lora_" in name:
            assert compare.max_difference(p, before[name]) > 0, name
        else:
            compare.assert_bitwise_equal(p, before[name], because=compare.UNWRITTEN)


def test_an_adapted_model_compiles_as_one_graph() -> None:
    model = tiny.build("bert")
    add_lora(model.net, target_modules="q,k,v")
    randomize_trainable_parameters(model.net)
    plain = run(model)
    torch.compiler.reset()
    model.net.compile(**GRAPH)
    compare.assert_close(run(model), plain, 1e-12)
    torch.compiler.reset()


def test_a_merged_model_loads_as_it_was_saved(tmp_path: Path) -> None:
    model = tiny.build("gpt2")
    add_lora(model.net, target_modules="q")
    randomize_trainable_parameters(model.net)
    merge_lora(model.net)
    model.save(tmp_path)
    compare.assert_bitwise_equal(run(qkv.load(tmp_path)), run(model), because=compare.SAME_KERNELS)


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        (
            "bert",
            dict(target_modules="query"),
            r"pattern 'query' matches no linear layer; nearest: ",
        ),
        (
            "bert",
            dict(target_modules="attention.q,gate"),
            r"pattern 'attention\.gate' matches no linear layer",
        ),
        ("t5", dict(target_modules="q,up"), r"pattern 'q,up': expected q,up in the same modules"),
        (
            "bert",
            dict(target_modules=("q", "attention.q")),
            r"encoder\.layers\.0\.attention\.q is named twice",
        ),
        ("bert", dict(target_modules="lm.out"), r"the weight of heads\.lm\.out is tied to another"),
        (
            "switch",
            dict(target_modules="router"),
            r"layers\.1\.feed_forward\.router is never called, only its weight is read",
        ),
        (
            "transformer-xl",
            dict(target_modules="heads.lm.projections.*"),
            r"heads\.lm\.projections\.0",
        ),
        (
            "bert",
            dict(target_modules="feed_forward.up,down"),
            r"feed_forward\.up, .*feed_forward\.down have inputs of different sizes",
        ),
        ("bert", dict(r=0), r"r is 0: expected a whole number, at least 1"),
        ("bert", dict(lora_alpha=math.nan), r"lora_alpha is nan: expected a number, more than 0"),
        (
            "bert",
            dict(lora_dropout=1.0),
            r"lora_dropout is 1\.0: expected a number, at least 0 and less than 1",
        ),
    ],
)
def test_invalid_arguments_of_add_lora_are_errors(
    family: str, options: dict[str, Any], message: str
) -> None:
    net = tiny.build(family).net
    with pytest.raises(ValueError, match=message):
        add_lora(net, **options)
    assert lora_layers(net) == {}
    assert any(p.requires_grad for p in net.parameters())


def test_merging_without_adapters_is_an_error() -> None:
    with pytest.raises(ValueError, match="no adapters to merge"):
        merge_lora(tiny.build("bert").net)
