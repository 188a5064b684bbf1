"""A view of a network in evaluation mode: the same tensors and hooks, and no change of the network."""

from __future__ import annotations

import pytest
import torch

from qkv.attention_weights import look
from qkv.nn.evaluation import view_in_evaluation_mode
from qkv.nn.lora import add_lora
from qkv.torch_compat import set_compiled_call
from tests.support import tiny


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5", "switch", "xlnet", "albert", "clip"])
def test_view_gives_the_outputs_of_evaluation_mode(family: str) -> None:
    model = tiny.build(family)
    inputs = tiny.build_inputs(model)
    expected = model(**inputs)
    for module in model.net.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    model.train()
    first, *_ = [module for module in model.net.modules() if isinstance(module, torch.nn.Linear)]
    first.eval()  # a frozen part keeps its own mode
    modes = [module.training for module in model.net.modules()]
    view = model.view_in_evaluation_mode()
    outputs = view(**inputs)
    for name, tensor in expected.items():
        if isinstance(tensor, torch.Tensor):
            assert torch.equal(outputs[name], tensor), name
    assert [module.training for module in model.net.modules()] == modes
    assert not any(module.training for module in view.net.modules())
    assert type(view.net) is type(model.net)
    assert [*map(id, view.parameters())] == [*map(id, model.parameters())]


def test_network_in_evaluation_mode_is_its_own_view() -> None:
    model = tiny.build("gpt2")
    assert view_in_evaluation_mode(model.net) is model.net
    assert model.view_in_evaluation_mode() is model


def test_view_follows_changes_of_weights_and_hooks() -> None:
    model = tiny.build("gpt2").train()
    view = model.view_in_evaluation_mode()
    inputs = tiny.build_inputs(model)
    before = view(**inputs).logits
    with look(model) as weights:
        view(**inputs)
    assert len(weights) == 2
    with torch.no_grad():
        next(model.parameters()).mul_(2)
    assert not torch.equal(view(**inputs).logits, before)
    assert torch.equal(view(**inputs).logits, model.eval()(**inputs).logits)


def test_view_of_a_compiled_network_is_not_compiled() -> None:
    model = tiny.build("gpt2")
    inputs = tiny.build_inputs(model)
    expected = model(**inputs).logits
    model.train()
    set_compiled_call(model.net, lambda *inputs: pytest.fail("the compiled call is the original's"))
    assert torch.equal(model.view_in_evaluation_mode()(**inputs).logits, expected)


def test_view_of_adapters() -> None:
    model = tiny.build("gpt2")
    add_lora(model.net, lora_dropout=0.5)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    inputs = tiny.build_inputs(model)
    expected = model(**inputs).logits
    assert torch.equal(model.train().view_in_evaluation_mode()(**inputs).logits, expected)
