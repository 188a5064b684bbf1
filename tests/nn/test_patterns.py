"""Attention patterns: definitions, the block-sparse kernel, and models with sparse patterns."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import qkv
from qkv import Batch, Inputs
from qkv.kernels import partial_attention
from qkv.kernels.block_sparse import (
    BlockLayout,
    block_sparse_attention,
    build_block_layout,
    gather_rows,
)
from qkv.spec import (
    Banded,
    Causal,
    Chunk,
    ChunkEnds,
    Full,
    Local,
    MemoryWindow,
    Pattern,
    PerHead,
    Prefix,
    Strided,
    causal,
    full,
)
from tests.support import compare, tiny

VisibleKeys = Callable[[int], set[int]]  # the positions that a query attends to
Rule = Callable[[int, int], bool]

# Each pattern as the set of keys of query i, enumerated.
LENGTH = 40
PATTERNS: dict[str, tuple[Pattern, VisibleKeys]] = {
    "full": (full, lambda i: {*range(LENGTH)}),
    "causal": (causal, lambda i: {*range(i + 1)}),
    "local": (Local(3), lambda i: {i - 3, i - 2, i - 1, i, i + 1, i + 2, i + 3}),
    "local-0": (Local(0), lambda i: {i}),
    "banded": (Banded(4), lambda i: {i - 3, i - 2, i - 1, i}),
    "banded-1": (Banded(1), lambda i: {i}),
    "strided": (Strided(5), lambda i: {i - 5 * n for n in range(LENGTH)}),
    "strided-1": (Strided(1), lambda i: {*range(i + 1)}),
    "chunk": (Chunk(6), lambda i: {*range(i - i % 6, i + 1)}),
    "chunk-ends": (ChunkEnds(6, 2), lambda i: {j for j in range(i + 1) if j % 6 in (4, 5)}),
    "prefix": (Prefix(3), lambda i: {0, 1, 2} | {*range(i + 1)}),
    "memory-window": (MemoryWindow().with_memory(7), lambda i: {*range(i - 7, i + 1)}),
    "and": (Chunk(6) & Banded(3), lambda i: {j for j in (i - 2, i - 1, i) if j >= i - i % 6}),
    "or": (Banded(3) | Strided(4), lambda i: {i - 2, i - 1, i} | {i - 4 * n for n in range(LENGTH)}),
    "and-or": (causal & (Local(2) | Prefix(4)), lambda i: {i - 2, i - 1, i} | {*range(i + 1)}),
}  # fmt: skip
SPARSE: dict[str, Pattern] = {
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
LAYOUTS = ("plain", "left", "right", "packed")


@pytest.mark.parametrize("name", PATTERNS)
def test_pattern(name: str) -> None:
    pattern, visible_keys = PATTERNS[name]
    expected = [[j in visible_keys(i) for j in range(LENGTH)] for i in range(LENGTH)]
    assert [[bool(pattern(i, j)) for j in range(LENGTH)] for i in range(LENGTH)] == expected
    positions = torch.arange(LENGTH)
    mask = pattern(positions[:, None], positions[None, :]).expand(LENGTH, LENGTH)
    assert mask.tolist() == expected


def test_patterns_are_hashable_and_comparable() -> None:
    patterns = [pattern for pattern, _ in PATTERNS.values()]
    assert {*patterns} == {pattern for pattern, _ in PATTERNS.values()}
    assert len({*patterns}) == len(patterns)
    assert Banded(3) | Strided(4) == Banded(3) | Strided(4) != Strided(4) | Banded(3)
    assert (full, causal) == (Full(), Causal())


def layout(kind: str, length: int) -> dict[str, Any]:
    """Return the settings of Inputs.create for two rows of this length."""
    columns = torch.arange(length)
    short = torch.tensor([[length], [length - length // 3]])
    if kind == "left":
        return {"attention_mask": columns >= length - short}
    if kind == "right":
        return {"attention_mask": columns < short}
    starts = torch.tensor([[length // 4, length // 2], [1, length // 3]])
    return (
        {"document_ids": (columns >= starts[:, :1]).long() + (columns >= starts[:, 1:])}
        if kind == "packed"
        else {}
    )


def positions_and_documents(kind: str, length: int) -> tuple[Tensor, Tensor]:
    """Return the position and document of every token of two rows, document -1 for padding."""
    settings = layout(kind, length)
    mask = settings.get("attention_mask", torch.ones(2, length, dtype=torch.bool))
    documents = settings.get("document_ids", torch.zeros(2, length, dtype=torch.long))
    positions = torch.zeros(2, length, dtype=torch.long)
    token_documents = torch.full((2, length), -1)
    for n in range(2):
        count: dict[int, int] = {}
        for t in range(length):
            if mask[n, t]:
                document = int(documents[n, t])
                positions[n, t] = count.get(document, 0)
                token_documents[n, t] = document
                count[document] = count.get(document, 0) + 1
    return positions, token_documents


@cache
def square(rule: Rule, length: int) -> Tensor:
    return torch.tensor([[bool(rule(i, j)) for j in range(length)] for i in range(length)])


def dense(rule: Rule, kind: str, length: int) -> Tensor:
    """Return the dense mask (B, T, T); padding attends to itself, so that no row is empty."""
    positions, documents = positions_and_documents(kind, length)
    visible = square(rule, length)[positions[:, :, None], positions[:, None, :]]
    visible = (
        visible & (documents[:, :, None] == documents[:, None, :]) & (documents[:, None, :] >= 0)
    )
    return visible | (torch.eye(length, dtype=torch.bool) & (documents[:, :, None] < 0))


def patterns_by_head(pattern: Pattern, heads: int) -> tuple[Pattern, ...]:
    return pattern.patterns if isinstance(pattern, PerHead) else (pattern,) * heads


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (n, kind)
        for n in SPARSE
        for kind in LAYOUTS
        if n not in NO_LEFT_PADDING or kind in ("plain", "right")
    ],
)
@pytest.mark.parametrize("length", [5, 36, 83])
def test_kernel_equals_dense_attention(name: str, length: int, kind: str) -> None:
    pattern = SPARSE[name]
    heads = 4
    q, k, v = (
        torch.randn(2, heads, length, 6, dtype=torch.float64, requires_grad=True) for _ in range(3)
    )
    mask = torch.stack(
        [dense(rule, kind, length) for rule in patterns_by_head(pattern, heads)], dim=1
    )  # (B, H, T, T)
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.7)
    positions, documents = positions_and_documents(kind, length)

    def visible(rule: Pattern, i: Tensor, j: Tensor) -> Tensor:
        allowed = rule(
            gather_rows(positions, i)[..., :, None], gather_rows(positions, j)[..., None, :]
        )
        same = gather_rows(documents, i)[..., :, None] == gather_rows(documents, j)[..., None, :]
        return allowed & same & (gather_rows(documents, j) >= 0)[..., None, :]

    key_positions = positions.masked_fill(documents < 0, -1)

    def block_layout(rule: Pattern) -> BlockLayout:
        return build_block_layout(rule, visible, key_positions)

    ours = block_sparse_attention(q, k, v, pattern, block_layout, scale=0.7)
    is_token = documents[:, None, :, None] >= 0
    weight = torch.randn_like(theirs) * is_token
    compare.assert_close({"out": ours * is_token}, {"out": theirs * is_token}, 1e-12)
    here, there = (torch.autograd.grad((out * weight).sum(), (q, k, v)) for out in (ours, theirs))
    compare.assert_close(
        dict(zip("qkv", here, strict=True)), dict(zip("qkv", there, strict=True)), 1e-12
    )
    padding_gradients = torch.autograd.grad(
        (block_sparse_attention(q, k, v, pattern, block_layout, scale=0.7) * ~is_token).sum(),
        (q, k, v),
    )
    assert not any(x.any() for x in padding_gradients), "padding has no gradient"


@pytest.mark.parametrize("name", ["local", "merged", "heads"])
def test_kernel_dropout(name: str) -> None:
    """Results differ from each other and have the mean of those without dropout."""
    q, k, v = torch.randn(3, 1, 4, 20, 5).expand(3, 800, 4, 20, 5)
    plain, dropped = (
        block_sparse_attention(q, k, v, SPARSE[name], full_layout, 0.3, dropout)
        for dropout in (0.0, 0.25)
    )
    torch.testing.assert_close(plain[0], plain[1])
    assert not torch.allclose(dropped[0], dropped[1])
    torch.testing.assert_close(dropped.mean(0), plain[0], atol=0.2, rtol=0)


@pytest.mark.parametrize("name", ["local", "merged", "heads"])
def test_backward_has_the_dropout_of_the_forward(name: str) -> None:
    q, k, v, direction, weight = torch.randn(5, 1, 4, 20, 6, dtype=torch.float64)
    q.requires_grad_()

    def loss(q: Tensor) -> Tensor:
        torch.manual_seed(0)
        return (block_sparse_attention(q, k, v, SPARSE[name], full_layout, 0.3, 0.4) * weight).sum()

    slope = (torch.autograd.grad(loss(q), q)[0] * direction).sum()
    step = 1e-6 * direction
    torch.testing.assert_close(
        (loss(q + step) - loss(q - step)) / 2e-6, slope, atol=1e-7, rtol=1e-6
    )


def full_layout(rule: Pattern) -> BlockLayout:
    """Return the layout of one row of 20 tokens."""
    positions = torch.arange(20)[None]
    return build_block_layout(
        rule, lambda rule, q, k: rule(q[..., :, None], k[..., None, :]), positions
    )


def test_the_kernel_equals_its_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a joint log-sum-exp that is larger than that of the part."""
    q, k, v, grad, out = torch.randn(5, 2, 3, 8, 4, dtype=torch.float64)
    bias = partial_attention.mask_to_bias(torch.rand(2, 1, 8, 8) < 0.7, torch.float64)
    results = []
    for kernel in ("cpu", "plain"):
        monkeypatch.setattr(
            partial_attention, "choose_kernel", lambda q, drop, kernel=kernel: kernel
        )
        part, lse, saved = partial_attention.partial_attention(q, k, v, bias, 0.6, 0.0)
        back = partial_attention.partial_attention_backward(
            grad, q, k, v, bias, out, lse + 0.5, saved, 0.6, 0.0
        )
        results.append(dict(zip(("out", "lse", "q", "k", "v"), (part, lse, *back), strict=True)))
    compare.assert_close(results[0], results[1], 1e-12)


# The second part of the fixed pattern: the last positions of every chunk so far, and the query.
PARTS: dict[str, tuple[Rule, Rule]] = {
    "strided": (lambda i, j: 0 <= i - j < 16, lambda i, j: j in range(i, -1, -16)),
    "fixed": (
        lambda i, j: i - i % 16 <= j <= i,
        lambda i, j: j == i or (j < i and j % 16 in (13, 14, 15)),
    ),
}
GPT3_RULES: tuple[Rule, Rule] = (lambda i, j: j <= i, lambda i, j: 0 <= i - j < 20)
MODELS = {
    f"{p}-{s}": ("sparse", dict(pattern=p, split=s))
    for p in PARTS
    for s in ("merged", "heads", "layers")
}
MODELS |= {"gpt3": ("gpt3", {})}


def sparse_model(name: str, dtype: torch.dtype = torch.float64, **settings: Any) -> qkv.Model:
    """Return a model whose patterns have a stride or window of about 16."""
    family, changes = MODELS[name]
    sizes = (
        dict(stride=16, num_summary=3, heads=3) if family == "sparse" else dict(window=20, heads=3)
    )
    return tiny.build(
        family, dtype=dtype, **dict(max_positions=4096, ffn_width=16) | changes | sizes | settings
    )


def layers(name: str, kind: str, length: int) -> list[Tensor]:
    """Return the dense masks (B, H, T, T) of three layers with three heads."""
    if name == "gpt3":
        causal_mask, banded_mask = (dense(rule, kind, length)[:, None] for rule in GPT3_RULES)
        return [causal_mask, banded_mask, causal_mask]
    pattern, split = name.split("-")
    first, second = (dense(rule, kind, length)[:, None] for rule in PARTS[pattern])
    if split == "merged":
        return [first | second] * 3
    return (
        [torch.cat([first, second, first], dim=1)] * 3
        if split == "heads"
        else [first, second, first]
    )


def reference(
    model: qkv.Model, ids: Tensor, positions: Tensor, masks: list[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Return logits and attention weights of a pre-norm decoder with dense masks, written out."""
    p = dict(model.net.named_parameters(remove_duplicate=False))
    width = model.args["width"]
    heads = model.args["heads"]

    def norm(x: Tensor, name: str) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        x = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return x * p[f"{name}.weight"] + p[f"{name}.bias"]

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    x = (
        p["decoder.embedding.tokens.weight"][ids]
        + p["decoder.embedding.positions.weight"][positions]
    )
    weights = []
    for n, mask in enumerate(masks):
        at = f"decoder.layers.{n}"
        y = norm(x, f"{at}.pre_attention_norm")
        q, k, v = (
            linear(y, f"{at}.attention.{c}").unflatten(-1, (heads, -1)).transpose(1, 2)
            for c in "qkv"
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // heads)
        weights.append(scores.masked_fill(~mask, -math.inf).softmax(-1))
        x = x + linear((weights[-1] @ v).transpose(1, 2).flatten(2), f"{at}.attention.o")
        y = linear(norm(x, f"{at}.pre_feed_forward_norm"), f"{at}.feed_forward.up")
        y = y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3))) / 2
        x = x + linear(y, f"{at}.feed_forward.down")
    return norm(x, "decoder.final_norm") @ p["decoder.embedding.tokens.weight"].T, weights


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("length", [37, 256, 301])  # from 256 on, the block-sparse kernel runs
@pytest.mark.parametrize("name", MODELS)
def test_model_equals_dense_masks(name: str, length: int, kind: str) -> None:
    model = sparse_model(name, depth=3)
    ids = tiny.random_ids(2, length)
    positions, documents = positions_and_documents(kind, length)
    is_token = documents >= 0
    with qkv.look(model) as recorded:
        ours = model.net(Batch(encoder=Inputs.create(ids, **layout(kind, length))))["logits"]
    logits, weights = reference(model, ids, positions, layers(name, kind, length))
    compare.assert_close({"logits": ours[is_token]}, {"logits": logits[is_token]})
    for n, theirs in enumerate(weights):
        mine = recorded[f"decoder.layers.{n}.attention"]
        compare.assert_close(
            {"weights": mine.transpose(1, 2)[is_token]},
            {"weights": theirs.transpose(1, 2)[is_token]},
        )
    parameters = list(model.net.parameters())
    weight = torch.randn_like(logits) * is_token[..., None] / is_token.sum() ** 0.5
    here, there = (torch.autograd.grad((x * weight).sum(), parameters) for x in (ours, logits))
    names = [name for name, _ in model.net.named_parameters()]
    compare.assert_close(dict(zip(names, here, strict=True)), dict(zip(names, there, strict=True)))


@pytest.mark.parametrize("name", tiny.CAUSAL)
def test_no_query_attends_to_later_keys(name: str) -> None:
    family, changes = tiny.CAUSAL[name]
    model = tiny.build(family, **changes)
    ids = tiny.random_ids(1, 12)
    outs = []
    for token in (20, 40):
        ids[0, 7] = token
        inputs = Inputs.create(ids.clone())
        batch = (
            Batch(encoder=Inputs.create(tiny.random_ids(1, 5)), decoder=inputs)
            if family in tiny.ENCODER_DECODERS
            else Batch(encoder=inputs)
        )
        outs.append(model.net(batch)["logits"])
    assert torch.equal(outs[0][:, :7], outs[1][:, :7])
    assert not torch.equal(outs[0][:, 7], outs[1][:, 7])


class LargestTensor(TorchDispatchMode):
    """Records the largest storage of any operation's output, in elements."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.size = 0
        self.operation = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor):
                size = tensor.untyped_storage().nbytes() // tensor.element_size()
                self.size, self.operation = max((self.size, self.operation), (size, str(func)))
        return out


LONG = 2048
NEIGHBORS: Rule = lambda i, j: -5 <= i - j <= 5  # noqa: E731
LOCAL: dict[str, Any] = dict(layer_types=("sliding_attention",) * 2, depth=2, local_attention=64)


def largest(model: qkv.Model, kind: str) -> LargestTensor:
    """Run a forward and a backward over a long row."""
    settings = {name: value[1:] for name, value in layout(kind, LONG).items()}
    batch = Batch(
        encoder=Inputs.create(tiny.random_ids(1, LONG) % model.args["vocab_size"], **settings)
    )
    with LargestTensor() as record:
        model.net(batch)["last_hidden_state"].square().sum().backward()
    return record


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("name", [n for n in MODELS if n != "gpt3"])
def test_no_square_tensor(name: str, kind: str) -> None:
    model = sparse_model(
        name, torch.float32, depth=2, stride=64, num_summary=4, heads=2, width=16, ffn_width=16
    )
    record = largest(model, kind)
    assert record.size < LONG * LONG, record.operation


@pytest.mark.parametrize("kind", LAYOUTS)
def test_no_square_tensor_in_local_layers(kind: str) -> None:
    model = tiny.build(
        "modernbert", dtype=torch.float32, width=16, heads=2, ffn_width=16, head="none", **LOCAL
    )
    record = largest(model, kind)
    assert record.size < LONG * LONG, record.operation


def test_no_square_tensor_beside_dense_layers() -> None:
    """On rows without padding, the dense layers of GPT-3 and ModernBERT need none either."""
    gpt3 = sparse_model("gpt3", torch.float32, depth=2, window=64, heads=2, width=16)
    mixed = tiny.build(
        "modernbert",
        dtype=torch.float32,
        width=16,
        heads=2,
        ffn_width=16,
        local_attention=64,
        head="none",
    )
    for model in (gpt3, mixed):
        record = largest(model, "plain")
        assert record.size < LONG * LONG, record.operation


def test_a_square_tensor_is_detected() -> None:
    record = largest(
        tiny.build(
            "gpt2", dtype=torch.float32, width=16, heads=2, ffn_width=16, max_positions=LONG
        ),
        "left",
    )
    assert record.size >= LONG * LONG


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("length", [60, 256, 300])
def test_local_layers_equal_dense_masks(length: int, kind: str) -> None:
    """ModernBERT's second layer, with and without the block-sparse kernel."""
    model = tiny.build("modernbert", **LOCAL | dict(local_attention=10))
    captured: list[Tensor] = []
    kernel = model.net.get_submodule("encoder.layers.1.attention.kernel")
    kernel.register_forward_hook(lambda module, args, out: captured.extend((*args[:3], out)))
    model.net(Batch(encoder=Inputs.create(tiny.random_ids(2, length), **layout(kind, length))))
    q, k, v, out = captured
    theirs = F.scaled_dot_product_attention(
        q, k, v, attn_mask=dense(NEIGHBORS, kind, length)[:, None]
    )
    is_token = positions_and_documents(kind, length)[1] >= 0
    compare.assert_close(
        {"out": out.transpose(1, 2)[is_token]}, {"out": theirs.transpose(1, 2)[is_token]}
    )
