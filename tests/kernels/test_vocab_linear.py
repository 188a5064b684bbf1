"""The padded product onto a vocabulary is the plain one, backwards too."""

import pytest
import torch
from torch import nn

import qkv
from qkv.kernels.vocab_linear import EVEN, Wide, padded


@pytest.mark.parametrize("words", [1, 63, 64, 65, 130])
@pytest.mark.parametrize("biased", [True, False])
def test_padded_is_plain(words: int, biased: bool) -> None:
    layer = nn.Linear(6, words, bias=biased).double()
    x = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(2, 3, words, dtype=torch.float64)
    tensors = [x, *layer.parameters()]
    found = padded(x, layer.weight, layer.bias)
    assert found.shape == upstream.shape
    assert found.stride(-2) % EVEN == 0
    torch.testing.assert_close(found, layer(x))
    for ours, plain in zip(
        torch.autograd.grad(found, tensors, upstream),
        torch.autograd.grad(layer(x), tensors, upstream),
        strict=True,
    ):
        torch.testing.assert_close(ours, plain)


def test_a_language_model_ends_in_it() -> None:
    model = qkv.build("gpt2", vocab=50, width=8, depth=1, heads=2, length=8)
    assert isinstance(model.net.get_submodule("heads.lm.out"), Wide)
