"""Patterns: every rule from its definition, the kernel for few keys, and the models that are made of them."""

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
from qkv import Batch, Rows
from qkv.kernels import partial_attention
from qkv.kernels.block_sparse import Cut, at, cut, sparse_attention
from qkv.spec import (
    Banded,
    ByHead,
    Causal,
    Chunk,
    Everyone,
    Local,
    Pattern,
    Prefix,
    Recent,
    Strided,
    Summary,
    causal,
    everyone,
)
from tests.support import tiny

Seen = Callable[[int], set[int]]  # the positions that one position sees, of all there are
Rule = Callable[[int, int], bool]

# Each rule in the words of its paper: sets, counted out.
PAST = 40
RULES: dict[str, tuple[Pattern, Seen]] = {
    "everyone": (everyone, lambda i: {*range(PAST)}),
    "causal": (causal, lambda i: {*range(i + 1)}),
    "local": (Local(3), lambda i: {i - 3, i - 2, i - 1, i, i + 1, i + 2, i + 3}),
    "local-0": (Local(0), lambda i: {i}),
    "banded": (Banded(4), lambda i: {i - 3, i - 2, i - 1, i}),
    "banded-1": (Banded(1), lambda i: {i}),
    "strided": (Strided(5), lambda i: {i - 5 * n for n in range(PAST)}),
    "strided-1": (Strided(1), lambda i: {*range(i + 1)}),
    "chunk": (Chunk(6), lambda i: {*range(i - i % 6, i + 1)}),
    "summary": (Summary(6, 2), lambda i: {c + r for c in range(0, PAST, 6) for r in (4, 5) if c + r <= i}),
    "prefix": (Prefix(3), lambda i: {0, 1, 2} | {*range(i + 1)}),
    "recent": (Recent().given(7), lambda i: {*range(i - 7, i + 1)}),
    "and": (Chunk(6) & Banded(3), lambda i: {j for j in (i - 2, i - 1, i) if j >= i - i % 6}),
    "or": (Banded(3) | Strided(4), lambda i: {i - 2, i - 1, i} | {i - 4 * n for n in range(PAST)}),
    "and-or": (causal & (Local(2) | Prefix(4)), lambda i: {i - 2, i - 1, i} | {*range(i + 1)}),
}  # fmt: skip
FEW: dict[str, Pattern] = {
    "local": Local(5),
    "local-wide": Local(20),
    "banded": Banded(6),
    "banded-1": Banded(1),
    "banded-wide": Banded(33),
    "strided": Strided(7),
    "merged": Banded(7) | Strided(7),
    "chunk": Chunk(9),
    "summary": Summary(9, 2) | Banded(1),
    "fixed": Chunk(9) | Summary(9, 2),
    "three": Banded(3) | Strided(5) | Chunk(8),
    "heads": ByHead((Banded(7), Strided(7), Banded(7), Chunk(5) | Summary(5, 1))),
}
FROM_ZERO = (
    "chunk",
    "summary",
    "fixed",
    "three",
    "heads",
)  # the kernel wants rows that begin in the first column
LAYOUTS = ("plain", "left", "right", "packed")


@pytest.mark.parametrize("name", RULES)
def test_rule(name: str) -> None:
    rule, seen = RULES[name]
    every = [[j in seen(i) for j in range(PAST)] for i in range(PAST)]
    assert [[bool(rule(i, j)) for j in range(PAST)] for i in range(PAST)] == every
    at = torch.arange(PAST)
    assert rule(at[:, None], at[None, :]).expand(PAST, PAST).tolist() == every


def test_rules_compare_and_key() -> None:
    assert {rule for rule, _ in RULES.values()} == {rule for rule, _ in RULES.values()}
    assert len({rule for rule, _ in RULES.values()}) == len(RULES)
    assert Banded(3) | Strided(4) == Banded(3) | Strided(4) != Strided(4) | Banded(3)
    assert (everyone, causal) == (Everyone(), Causal())


def layout(kind: str, length: int) -> dict[str, Any]:
    """What two rows of this length are given beside their tokens."""
    columns = torch.arange(length)
    short = torch.tensor([[length], [length - length // 3]])
    if kind == "left":
        return {"mask": columns >= length - short}
    if kind == "right":
        return {"mask": columns < short}
    edges = torch.tensor([[length // 4, length // 2], [1, length // 3]])
    return (
        {"document": (columns >= edges[:, :1]).long() + (columns >= edges[:, 1:])} if kind == "packed" else {}
    )


def places(kind: str, length: int) -> tuple[Tensor, Tensor]:
    """Position and text of every token of two rows, text -1 for a pad; counted out one by one."""
    given = layout(kind, length)
    mask = given.get("mask", torch.ones(2, length, dtype=torch.bool))
    document = given.get("document", torch.zeros(2, length, dtype=torch.long))
    positions, texts = torch.zeros(2, length, dtype=torch.long), torch.full((2, length), -1)
    for n in range(2):
        count: dict[int, int] = {}
        for t in range(length):
            if mask[n, t]:
                text = int(document[n, t])
                positions[n, t], texts[n, t] = count.get(text, 0), text
                count[text] = count.get(text, 0) + 1
    return positions, texts


@cache
def square(rule: Rule, length: int) -> Tensor:
    return torch.tensor([[bool(rule(i, j)) for j in range(length)] for i in range(length)])


def dense(rule: Rule, kind: str, length: int) -> Tensor:
    """(B, T, T) who sees whom; a pad sees itself, so that nothing is undefined."""
    positions, texts = places(kind, length)
    seen = square(rule, length)[positions[:, :, None], positions[:, None, :]]
    seen = seen & (texts[:, :, None] == texts[:, None, :]) & (texts[:, None, :] >= 0)
    return seen | (torch.eye(length, dtype=torch.bool) & (texts[:, :, None] < 0))


def rules(pattern: Pattern, heads: int) -> tuple[Pattern, ...]:
    return pattern.rules if isinstance(pattern, ByHead) else (pattern,) * heads


@pytest.mark.parametrize(
    ("name", "kind"),
    [(n, kind) for n in FEW for kind in LAYOUTS if n not in FROM_ZERO or kind in ("plain", "right")],
)
@pytest.mark.parametrize("length", [5, 36, 83])
def test_kernel_equals_dense_attention(name: str, length: int, kind: str) -> None:
    pattern, heads = FEW[name], 4
    q, k, v = (torch.randn(2, heads, length, 6, dtype=torch.float64, requires_grad=True) for _ in range(3))
    mask = torch.stack([dense(rule, kind, length) for rule in rules(pattern, heads)], dim=1)  # (B, H, T, T)
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.7)
    positions, texts = places(kind, length)

    def visible(rule: Pattern, i: Tensor, j: Tensor) -> Tensor:
        seen = rule(at(positions, i)[..., :, None], at(positions, j)[..., None, :])
        same = at(texts, i)[..., :, None] == at(texts, j)[..., None, :]
        return seen & same & (at(texts, j) >= 0)[..., None, :]

    seats = positions.masked_fill(texts < 0, -1)

    def cuts(rule: Pattern) -> Cut:
        return cut(rule, visible, seats)

    ours = sparse_attention(q, k, v, pattern, cuts, scale=0.7)
    stands = texts[:, None, :, None] >= 0
    weight = torch.randn_like(theirs) * stands
    tiny.close({"out": ours * stands}, {"out": theirs * stands}, 1e-12)
    here, there = (torch.autograd.grad((out * weight).sum(), (q, k, v)) for out in (ours, theirs))
    tiny.close(dict(zip("qkv", here, strict=True)), dict(zip("qkv", there, strict=True)), 1e-12)
    lost = torch.autograd.grad(
        (sparse_attention(q, k, v, pattern, cuts, scale=0.7) * ~stands).sum(), (q, k, v)
    )
    assert not any(x.any() for x in lost), "a pad sees nobody, and moves nobody"


@pytest.mark.parametrize("name", ["local", "merged", "heads"])
def test_kernel_drops(name: str) -> None:
    """Weights fall out and those that stay are raised: another result each time, the same on average."""
    q, k, v = torch.randn(3, 1, 4, 20, 5).expand(3, 800, 4, 20, 5)
    plain, torn = (sparse_attention(q, k, v, FEW[name], every, 0.3, drop) for drop in (0.0, 0.25))
    torch.testing.assert_close(plain[0], plain[1])
    assert not torch.allclose(torn[0], torn[1])
    torch.testing.assert_close(torn.mean(0), plain[0], atol=0.2, rtol=0)


@pytest.mark.parametrize("name", ["local", "merged", "heads"])
def test_what_drops_is_the_same_on_the_way_back(name: str) -> None:
    q, k, v, way, weight = torch.randn(5, 1, 4, 20, 6, dtype=torch.float64)
    q.requires_grad_()

    def loss(q: Tensor) -> Tensor:
        torch.manual_seed(0)
        return (sparse_attention(q, k, v, FEW[name], every, 0.3, 0.4) * weight).sum()

    slope = (torch.autograd.grad(loss(q), q)[0] * way).sum()
    step = 1e-6 * way
    torch.testing.assert_close((loss(q + step) - loss(q - step)) / 2e-6, slope, atol=1e-7, rtol=1e-6)


def every(rule: Pattern) -> Cut:
    return cut(rule, lambda rule, q, k: rule(q[..., :, None], k[..., None, :]), ROW)


ROW = torch.arange(20)[None]


def test_the_kernel_equals_its_plain_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a joint log-sum-exp that is larger than a piece's own."""
    q, k, v, grad, out = torch.randn(5, 2, 3, 8, 4, dtype=torch.float64)
    bias = partial_attention.bias_of(torch.rand(2, 1, 8, 8) < 0.7, torch.float64)
    found = []
    for kernel in ("cpu", "plain"):
        monkeypatch.setattr(partial_attention, "kernel_of", lambda q, drop, kernel=kernel: kernel)
        one, lse, kept = partial_attention.attend(q, k, v, bias, 0.6, 0.0)
        back = partial_attention.attend_back(grad, q, k, v, bias, out, lse + 0.5, kept, 0.6, 0.0)
        found.append(dict(zip(("out", "lse", "q", "k", "v"), (one, lse, *back), strict=True)))
    tiny.close(found[0], found[1], 1e-12)


# The second part of the fixed pattern shows the cells of every chunk so far, and oneself.
PARTS: dict[str, tuple[Rule, Rule]] = {
    "strided": (lambda i, j: 0 <= i - j < 16, lambda i, j: j in range(i, -1, -16)),
    "fixed": (lambda i, j: i - i % 16 <= j <= i, lambda i, j: j == i or (j < i and j % 16 in (13, 14, 15))),
}
TURNS: tuple[Rule, Rule] = (lambda i, j: j <= i, lambda i, j: 0 <= i - j < 20)  # GPT-3's two kinds of layers
MODELS = {
    f"{p}-{s}": ("sparse", dict(pattern=p, split=s)) for p in PARTS for s in ("merged", "heads", "layers")
}
MODELS |= {"gpt3": ("gpt3", {})}


def few(name: str, dtype: torch.dtype = torch.float64, **more: Any) -> qkv.Model:
    """A model whose patterns have parts of about 16."""
    family, changes = MODELS[name]
    own = dict(stride=16, cells=3, heads=3) if family == "sparse" else dict(band=20, heads=3)
    return tiny.model(family, dtype=dtype, **dict(length=4096, feed=16) | changes | own | more)


def layers(name: str, kind: str, length: int) -> list[Tensor]:
    """(B, H, T, T) who sees whom in each of three layers of three heads."""
    if name == "gpt3":
        all_past, band = (dense(rule, kind, length)[:, None] for rule in TURNS)
        return [all_past, band, all_past]
    pattern, split = name.split("-")
    one, two = (dense(rule, kind, length)[:, None] for rule in PARTS[pattern])
    if split == "merged":
        return [one | two] * 3
    return [torch.cat([one, two, one], dim=1)] * 3 if split == "heads" else [one, two, one]


def reference(
    model: qkv.Model, ids: Tensor, positions: Tensor, masks: list[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Logits and attention weights of a pre-norm decoder, written out with dense masks."""
    p = dict(model.net.named_parameters(remove_duplicate=False))
    width, heads = model.args["width"], model.args["heads"]

    def norm(x: Tensor, name: str) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        x = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return x * p[f"{name}.weight"] + p[f"{name}.bias"]

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    x, seen = p["decoder.embed.tokens.weight"][ids] + p["decoder.embed.positions.weight"][positions], []
    for n, mask in enumerate(masks):
        at = f"decoder.layers.{n}"
        y = norm(x, f"{at}.before_attend")
        q, k, v = (linear(y, f"{at}.attend.{c}").unflatten(-1, (heads, -1)).transpose(1, 2) for c in "qkv")
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // heads)
        seen.append(scores.masked_fill(~mask, -math.inf).softmax(-1))
        x = x + linear((seen[-1] @ v).transpose(1, 2).flatten(2), f"{at}.attend.o")
        y = linear(norm(x, f"{at}.before_feed"), f"{at}.feed.up")
        y = y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3))) / 2
        x = x + linear(y, f"{at}.feed.down")
    return norm(x, "decoder.norm") @ p["decoder.embed.tokens.weight"].T, seen


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("length", [37, 256, 301])  # from 256 on the kernel for few keys takes over
@pytest.mark.parametrize("name", MODELS)
def test_model_equals_dense_masks(name: str, length: int, kind: str) -> None:
    model = few(name, depth=3)
    ids = tiny.ids(2, length)
    positions, texts = places(kind, length)
    stands = texts >= 0
    with qkv.look(model) as seen:
        ours = model.net(Batch(rows=Rows.of(ids, **layout(kind, length))))["logits"]
    logits, weights = reference(model, ids, positions, layers(name, kind, length))
    tiny.close({"logits": ours[stands]}, {"logits": logits[stands]})
    for n, theirs in enumerate(weights):
        mine = seen[f"decoder.layers.{n}.attend"]
        tiny.close({"weights": mine.transpose(1, 2)[stands]}, {"weights": theirs.transpose(1, 2)[stands]})
    parameters = list(model.net.parameters())
    weight = torch.randn_like(logits) * stands[..., None] / stands.sum() ** 0.5
    here, there = (torch.autograd.grad((x * weight).sum(), parameters) for x in (ours, logits))
    names = [name for name, _ in model.net.named_parameters()]
    tiny.close(dict(zip(names, here, strict=True)), dict(zip(names, there, strict=True)))


@pytest.mark.parametrize("name", tiny.CAUSAL)
def test_nobody_sees_what_comes_later(name: str) -> None:
    family, changes = tiny.CAUSAL[name]
    model = tiny.model(family, **changes)
    ids = tiny.ids(1, 12)
    outs = []
    for token in (20, 40):
        ids[0, 7] = token
        rows = Rows.of(ids.clone())
        batch = Batch(rows=Rows.of(tiny.ids(1, 5)), target=rows) if family in tiny.PAIRS else Batch(rows=rows)
        outs.append(model.net(batch)["logits"])
    assert torch.equal(outs[0][:, :7], outs[1][:, :7])
    assert not torch.equal(outs[0][:, 7], outs[1][:, 7])


class Largest(TorchDispatchMode):
    """The largest memory that any operation takes for a tensor, counted in its elements."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.size, self.by = 0, ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor):
                size = tensor.untyped_storage().nbytes() // tensor.element_size()
                self.size, self.by = max((self.size, self.by), (size, str(func)))
        return out


LONG = 2048
NEIGHBOURS: Rule = lambda i, j: -5 <= i - j <= 5  # noqa: E731
NEAR: dict[str, Any] = dict(kinds=("sliding_attention",) * 2, depth=2, window=64)


def largest(model: qkv.Model, kind: str) -> Largest:
    """Of a forward and a backward over a long row."""
    given = {name: value[1:] for name, value in layout(kind, LONG).items()}
    batch = Batch(rows=Rows.of(tiny.ids(1, LONG) % model.args["vocab"], **given))
    with Largest() as found:
        model.net(batch)["hidden"].square().sum().backward()
    return found


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("name", [n for n in MODELS if n != "gpt3"])
def test_no_square_tensor(name: str, kind: str) -> None:
    model = few(name, torch.float32, depth=2, stride=64, cells=4, heads=2, width=16, feed=16)
    found = largest(model, kind)
    assert found.size < LONG * LONG, found.by


@pytest.mark.parametrize("kind", LAYOUTS)
def test_no_square_tensor_in_local_layers(kind: str) -> None:
    model = tiny.model("modernbert", dtype=torch.float32, width=16, heads=2, feed=16, head="none", **NEAR)
    found = largest(model, kind)
    assert found.size < LONG * LONG, found.by


def test_no_square_tensor_beside_dense_layers() -> None:
    """GPT-3 and ModernBERT alternate: on full rows their dense layers need none either."""
    gpt3 = few("gpt3", torch.float32, depth=2, band=64, heads=2, width=16)
    mixed = tiny.model("modernbert", dtype=torch.float32, width=16, heads=2, feed=16, window=64, head="none")
    for model in (gpt3, mixed):
        found = largest(model, "plain")
        assert found.size < LONG * LONG, found.by


def test_a_square_tensor_is_noticed() -> None:
    found = largest(tiny.model("gpt2", dtype=torch.float32, width=16, heads=2, feed=16, length=LONG), "left")
    assert found.size >= LONG * LONG


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("length", [60, 256, 300])
def test_local_layers_equal_dense_masks(length: int, kind: str) -> None:
    """ModernBERT's second layer, on either side of the length at which the kernel takes over."""
    model = tiny.model("modernbert", **NEAR | dict(window=10))
    caught: list[Tensor] = []
    mix = model.net.get_submodule("encoder.layers.1.attend.mix")
    mix.register_forward_hook(lambda module, args, out: caught.extend((*args[:3], out)))
    model.net(Batch(rows=Rows.of(tiny.ids(2, length), **layout(kind, length))))
    q, k, v, out = caught
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=dense(NEIGHBOURS, kind, length)[:, None])
    stands = places(kind, length)[1] >= 0
    tiny.close({"out": out.transpose(1, 2)[stands]}, {"out": theirs.transpose(1, 2)[stands]})
