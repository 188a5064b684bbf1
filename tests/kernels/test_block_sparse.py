"""The block-sparse kernel equals dense attention under the mask of its pattern."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.kernels import partial_attention
from qkv.kernels.block_sparse import (
    BlockLayout,
    block_sparse_attention,
    build_block_layout,
    gather_rows,
)
from qkv.spec import Banded, Chunk, ChunkEnds, Local, Pattern, PerHead, Strided
from tests.support import compare
from tests.support.dense_masks import LAYOUTS, build_dense_mask, locate_tokens

PATTERNS: dict[str, Pattern] = {
    "local": Local(5),
    "local-wide": Local(20),
    "banded": Banded(6),
    "banded-1": Banded(1),
    "banded-wide": Banded(33),
    "strided": Strided(7),
    "merged": Banded(7) | Strided(7),
    "chunk": Chunk(9),
    "chunk-ends": ChunkEnds(9, 2) | Banded(1),
    "fixed": Chunk(9) | ChunkEnds(9, 2),
    "three": Banded(3) | Strided(5) | Chunk(8),
    "heads": PerHead((Banded(7), Strided(7), Banded(7), Chunk(5) | ChunkEnds(5, 1))),
}
# The kernel needs rows that begin in the first column.
NO_LEFT_PADDING = ("chunk", "chunk-ends", "fixed", "three", "heads")


def list_patterns_of_heads(pattern: Pattern, heads: int) -> tuple[Pattern, ...]:
    return pattern.patterns if isinstance(pattern, PerHead) else (pattern,) * heads


def build_layout_of_one_row(length: int) -> Callable[[Pattern], BlockLayout]:
    """Return the layout of a pattern over one row without padding."""

    def visible(pattern: Pattern, i: Tensor, j: Tensor) -> Tensor:
        return pattern(i[..., :, None], j[..., None, :])

    return lambda pattern: build_block_layout(pattern, visible, torch.arange(length)[None])


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        (name, layout)
        for name in PATTERNS
        for layout in LAYOUTS
        if name not in NO_LEFT_PADDING or layout in ("plain", "right")
    ],
)
@pytest.mark.parametrize("length", [5, 36, 83])
def test_kernel_equals_dense_attention(name: str, length: int, layout: str) -> None:
    pattern = PATTERNS[name]
    heads = 4
    q, k, v = (
        torch.randn(2, heads, length, 6, dtype=torch.float64, requires_grad=True) for _ in range(3)
    )
    masks = [
        build_dense_mask(rule, layout, length) for rule in list_patterns_of_heads(pattern, heads)
    ]
    mask = torch.stack(masks, dim=1)  # (B, H, T, T)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.7)
    positions, documents = locate_tokens(layout, length)

    def visible(rule: Pattern, i: Tensor, j: Tensor) -> Tensor:
        q_positions, k_positions = (gather_rows(positions, index) for index in (i, j))
        q_documents, k_documents = (gather_rows(documents, index) for index in (i, j))
        allowed = rule(q_positions[..., :, None], k_positions[..., None, :])
        is_same_document = q_documents[..., :, None] == k_documents[..., None, :]
        return allowed & is_same_document & (k_documents >= 0)[..., None, :]

    def block_layout(rule: Pattern) -> BlockLayout:
        return build_block_layout(rule, visible, positions.masked_fill(documents < 0, -1))

    actual = block_sparse_attention(q, k, v, pattern, block_layout, scale=0.7)
    is_token = documents[:, None, :, None] >= 0
    compare.assert_close({"out": actual * is_token}, {"out": expected * is_token}, 1e-12)
    weight = torch.randn_like(expected) * is_token
    gradients, expected_gradients = (
        dict(zip("qkv", torch.autograd.grad((out * weight).sum(), (q, k, v)), strict=True))
        for out in (actual, expected)
    )
    compare.assert_close(gradients, expected_gradients, 1e-12)
    padding_gradients = torch.autograd.grad(
        (block_sparse_attention(q, k, v, pattern, block_layout, scale=0.7) * ~is_token).sum(),
        (q, k, v),
    )
    assert not any(x.any() for x in padding_gradients), "padding has no gradient"


def test_every_head_keeps_its_pattern() -> None:
    """Heads are grouped by pattern for the kernel and put back in order."""
    patterns = (Banded(3), Strided(4), Banded(3), Strided(4), Banded(3))
    q, k, v = torch.randn(3, 2, 5, 20, 6, dtype=torch.float64)
    layout = build_layout_of_one_row(20)
    together = block_sparse_attention(q, k, v, PerHead(patterns), layout, scale=0.4)
    for h, pattern in enumerate(patterns):
        q_head, k_head, v_head = (x[:, h, None] for x in (q, k, v))
        alone = block_sparse_attention(q_head, k_head, v_head, pattern, layout, scale=0.4)
        compare.assert_close({"head": together[:, h, None]}, {"head": alone}, 1e-12)


@pytest.mark.parametrize("name", ["local", "merged", "heads"])
def test_dropout_keeps_the_mean(name: str) -> None:
    """Results differ from each other and have the mean of those without dropout."""
    q, k, v = torch.randn(3, 1, 4, 20, 5).expand(3, 800, 4, 20, 5)
    layout = build_layout_of_one_row(20)
    plain, dropped = (
        block_sparse_attention(q, k, v, PATTERNS[name], layout, 0.3, dropout)
        for dropout in (0.0, 0.25)
    )
    torch.testing.assert_close(plain[0], plain[1])
    assert not torch.allclose(dropped[0], dropped[1])
    # The mean of 800 rows has a standard deviation of at most 0.06.
    torch.testing.assert_close(dropped.mean(0), plain[0], atol=0.2, rtol=0)


@pytest.mark.parametrize("name", ["local", "merged", "heads"])
def test_backward_has_the_dropout_of_the_forward(name: str) -> None:
    q, k, v, direction, weight = torch.randn(5, 1, 4, 20, 6, dtype=torch.float64)
    q.requires_grad_()
    layout = build_layout_of_one_row(20)

    def compute_loss(q: Tensor) -> Tensor:
        torch.manual_seed(0)
        return (block_sparse_attention(q, k, v, PATTERNS[name], layout, 0.3, 0.4) * weight).sum()

    slope = (torch.autograd.grad(compute_loss(q), q)[0] * direction).sum()
    step = 1e-6 * direction
    difference = compute_loss(q + step) - compute_loss(q - step)
    torch.testing.assert_close(difference / 2e-6, slope, atol=1e-7, rtol=1e-6)


def test_partial_attention_equals_its_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a joint log-sum-exp that is larger than that of the part."""
    q, k, v, grad, out = torch.randn(5, 2, 3, 8, 4, dtype=torch.float64)
    bias = partial_attention.mask_to_bias(torch.rand(2, 1, 8, 8) < 0.7, torch.float64)
    results = []
    for kernel in ("cpu", "plain"):
        monkeypatch.setattr(
            partial_attention, "choose_kernel", lambda q, dropout, kernel=kernel: kernel
        )
        part, lse, saved = partial_attention.partial_attention(q, k, v, bias, 0.6, 0.0)
        gradients = partial_attention.partial_attention_backward(
            grad, q, k, v, bias, out, lse + 0.5, saved, 0.6, 0.0
        )
        names = ("out", "lse", "q", "k", "v")
        results.append(dict(zip(names, (part, lse, *gradients), strict=True)))
    compare.assert_close(results[0], results[1], 1e-12)


@pytest.fixture
def cuda_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, ...]]:
    """The arguments of the backward pass of the CUDA kernel, which is replaced."""
    calls: list[tuple[Tensor, ...]] = []

    def record(*arguments: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        calls.append(arguments)
        return arguments[1], arguments[2], arguments[3]

    monkeypatch.setattr(partial_attention, "choose_kernel", lambda q, dropout: "cuda")
    monkeypatch.setattr(partial_attention, "efficient_attention_backward", record)
    return calls


def test_rows_beyond_the_queries_of_a_tile_are_ignored(
    cuda_calls: list[tuple[Tensor, ...]],
) -> None:
    """The CUDA kernel reads tiles of 32 queries; exp(score - inf) is 0, whatever its memory holds."""
    q = torch.randn(2, 3, 28, 8)
    bias = torch.zeros(2, 1, 28, 28)
    lse = torch.randn(2, 3, 28)
    partial_attention.partial_attention_backward(q, q, q, q, bias, q, lse, (), 1.0, 0.0)
    padded = cuda_calls[0][6]
    assert padded.shape == (2, 3, 32)
    compare.assert_bitwise_equal(padded[..., :28], lse, because="padding copies")
    assert (padded[..., 28:] == torch.inf).all()


def test_the_kernel_gets_the_output_in_its_layout(cuda_calls: list[tuple[Tensor, ...]]) -> None:
    """In half precision, the CUDA kernel reads the output as (B, T, H, D), whatever its strides."""
    out = torch.randn(2, 3, 28, 8)
    bias = torch.zeros(2, 1, 28, 28)
    lse = torch.randn(2, 3, 28)
    partial_attention.partial_attention_backward(out, out, out, out, bias, out, lse, (), 1.0, 0.0)
    passed = cuda_calls[0][5]
    assert passed.stride() == (28 * 3 * 8, 8, 3 * 8, 1)
    compare.assert_bitwise_equal(passed, out, because="only the layout changes")


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="the memory-efficient kernel runs on CUDA"
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_partial_tiles_on_cuda(dtype: torch.dtype) -> None:
    """Blocks of 28 and 98 queries, as those of an image of 28 x 28 pixels."""
    length = 784
    torch.manual_seed(0)
    inputs = [torch.randn(2, 4, length, 64, device="cuda", dtype=dtype) for _ in range(4)]
    grad = inputs.pop()

    def visible(pattern: Pattern, i: Tensor, j: Tensor) -> Tensor:
        return pattern(i[..., :, None], j[..., None, :])

    positions = torch.arange(length, device="cuda")[None]
    for pattern in (Banded(28), Strided(28), Banded(28) | Strided(28)):
        sparse = [x.clone().requires_grad_() for x in inputs]
        layout = build_block_layout(pattern, visible, positions)
        q, k, v = sparse
        out = block_sparse_attention(q, k, v, pattern, lambda p: layout, 0.125)  # noqa: B023
        out.backward(grad)
        dense = [x.clone().float().requires_grad_() for x in inputs]
        mask = visible(pattern, positions, positions)
        q, k, v = dense
        F.scaled_dot_product_attention(q, k, v, mask, scale=0.125).backward(grad.float())
        for x, expected in zip(sparse, dense, strict=True):
            assert x.grad is not None
            assert expected.grad is not None
            tolerance = 2e-5 if dtype == torch.float32 else 0.05
            assert torch.allclose(x.grad.float(), expected.grad, atol=tolerance, rtol=tolerance)
