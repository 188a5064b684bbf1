"""The flash kernel with a window equals dense attention under the mask of the pattern."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.kernels import window_flash
from qkv.kernels.block_sparse import BlockLayout, block_sparse_attention
from qkv.kernels.window_flash import (
    list_flash_parts,
    supports_window_flash,
    window_flash_attention,
)
from qkv.spec import Banded, Causal, Chunk, ChunkEnds, Local, Pattern, PerHead, Strided
from qkv.torch_compat import has_flash_kernels
from tests.support import compare

PATTERNS: dict[str, Pattern] = {
    "banded": Banded(6),
    "banded-1": Banded(1),
    "banded-wide": Banded(200),
    "local": Local(5),
    "strided": Strided(7),
    "chunk": Chunk(9),
    "merged": Banded(7) | Strided(7),
    "merged-other-order": Strided(5) | Banded(5),
    "merged-window-wider": Banded(16) | Strided(5),
    "merged-window-narrower": Banded(3) | Strided(7),
    "merged-far": Banded(60) | Strided(60),
}
needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="the flash kernel with a window runs on CUDA"
)
Gradients = tuple[Tensor, Tensor, Tensor]


def build_mask(pattern: Pattern, length: int, device: str = "cpu") -> Tensor:
    positions = torch.arange(length, device=device)
    mask: Tensor = pattern(positions[:, None], positions[None, :])
    return mask


def is_in_window(q: Tensor, k: Tensor, window: tuple[int, int]) -> Tensor:
    """Return the mask (T, S) of the kernel."""
    i = torch.arange(q.shape[1])[:, None]
    j = torch.arange(k.shape[1])[None, :]
    before, after = (size if size >= 0 else len(i) + len(j) for size in window)
    return (i - j <= before) & (j - i <= after)


def dense_forward(
    q: Tensor, k: Tensor, v: Tensor, window: tuple[int, int], scale: float
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Return what the kernel returns, computed with all scores."""
    scores = torch.einsum("bthd,bshd->bhts", q, k) * scale
    scores = scores.masked_fill(~is_in_window(q, k, window), -torch.inf)
    lse = scores.logsumexp(-1)
    out = torch.einsum("bhts,bshd->bthd", (scores - lse[..., None]).exp(), v)
    return out, lse, (torch.zeros(2), torch.zeros(0))


def dense_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, seed: tuple[Tensor, ...],
    window: tuple[int, int], scale: float,
) -> Gradients:  # fmt: skip
    """Return the gradients of one part from the output and the log-sum-exp of all parts."""
    assert lse.is_contiguous()
    scores = torch.einsum("bthd,bshd->bhts", q, k) * scale
    weights = (scores - lse[..., None]).exp() * is_in_window(q, k, window)
    delta = (grad * out).sum(-1).transpose(1, 2)
    grad_scores = weights * (torch.einsum("bthd,bshd->bhts", grad, v) - delta[..., None]) * scale
    return (
        torch.einsum("bhts,bshd->bthd", grad_scores, k),
        torch.einsum("bhts,bthd->bshd", grad_scores, q),
        torch.einsum("bhts,bthd->bshd", weights, grad),
    )


def run_backward(
    attention: Callable[..., Tensor], inputs: list[Tensor], grad: Tensor
) -> list[Tensor]:
    """Return the output of attention and the gradients of its inputs."""
    q, k, v = (x.clone().requires_grad_() for x in inputs)
    out = attention(q, k, v)
    return [out, *torch.autograd.grad(out, (q, k, v), grad)]


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("length", [5, 36, 83])
def test_parts_of_a_pattern_are_merged_into_one_softmax(
    name: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_flash, "flash_attention_window", dense_forward)
    monkeypatch.setattr(window_flash, "flash_attention_window_backward", dense_backward)
    pattern = PATTERNS[name]
    *inputs, grad = torch.randn(4, 2, 3, length, 8, dtype=torch.float64)
    actual = run_backward(
        lambda q, k, v: window_flash_attention(q, k, v, pattern, 0.7), inputs, grad
    )
    mask = build_mask(pattern, length)
    expected = run_backward(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask, scale=0.7), inputs, grad
    )
    for x, y in zip(actual, expected, strict=True):
        assert compare.max_difference(x, y) < 1e-9


@pytest.mark.parametrize(
    "pattern",
    [Causal(), ChunkEnds(9, 2) | Banded(1), Chunk(9) | ChunkEnds(9, 2), Strided(3) | Strided(5)],
)
def test_patterns_without_parts_are_not_supported(pattern: Pattern) -> None:
    assert list_flash_parts(pattern) == ()


def test_the_kernel_needs_cuda() -> None:
    assert not supports_window_flash(torch.zeros(1, 1, 4, 8, dtype=torch.bfloat16), Banded(2), 0.0)


def test_the_search_for_kernels_is_a_constant_of_compiled_graphs() -> None:
    calls = []

    def compute(x: Tensor) -> Tensor:
        return x + 1 if has_flash_kernels() else x - 1

    def record(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        calls.append(graph)
        return graph.forward

    y = torch.compile(compute, fullgraph=True, backend=record)(torch.ones(2))
    assert len(calls) == 1
    assert y.tolist() == [2.0 if has_flash_kernels() else 0.0] * 2


@needs_cuda
@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("length", [300, 784])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_flash_kernel_equals_dense_attention(name: str, length: int, dtype: torch.dtype) -> None:
    pattern = PerHead((PATTERNS[name], Banded(9), PATTERNS[name], Strided(4)))
    torch.manual_seed(0)
    *inputs, grad = torch.randn(4, 2, 4, length, 64, device="cuda", dtype=dtype)

    def fail(pattern: Pattern) -> BlockLayout:
        raise AssertionError("blocks were used")

    actual = run_backward(
        lambda q, k, v: block_sparse_attention(q, k, v, pattern, fail, 0.125, is_unmasked=True),
        inputs,
        grad,
    )
    mask = torch.stack([build_mask(part, length, "cuda") for part in pattern.patterns])
    expected = run_backward(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask, scale=0.125),
        [x.float() for x in inputs],
        grad.float(),
    )
    for x, y in zip(actual, expected, strict=True):
        assert (x.float() - y).norm() < 0.01 * y.norm()
