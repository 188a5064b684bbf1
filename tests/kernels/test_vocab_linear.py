"""VocabLinear: padded and plain products agree, as do their gradients."""

import pytest
import torch
from torch import nn

import qkv
from qkv.kernels.vocab_linear import MULTIPLE, VocabLinear, padded_linear


@pytest.mark.parametrize("vocab_size", [1, 63, 64, 65, 130])
@pytest.mark.parametrize("bias", [True, False])
def test_padded_equals_plain(vocab_size: int, bias: bool) -> None:
    layer = nn.Linear(6, vocab_size, bias=bias).double()
    x = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(2, 3, vocab_size, dtype=torch.float64)
    tensors = [x, *layer.parameters()]
    out = padded_linear(x, layer.weight, layer.bias)
    assert out.shape == upstream.shape
    assert out.stride(-2) % MULTIPLE == 0
    torch.testing.assert_close(out, layer(x))
    for ours, plain in zip(
        torch.autograd.grad(out, tensors, upstream),
        torch.autograd.grad(layer(x), tensors, upstream),
        strict=True,
    ):
        torch.testing.assert_close(ours, plain)


def test_a_language_model_ends_in_vocab_linear() -> None:
    model = qkv.build("gpt2", vocab_size=50, width=8, depth=1, heads=2, max_positions=8)
    assert isinstance(model.net.get_submodule("heads.lm.out"), VocabLinear)
