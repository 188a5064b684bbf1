"""Packed rows: many documents in one row give what each gives alone."""

from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv import Batch, Rows
from qkv.kernels.attention import mix
from qkv.kernels.bias import Where
from qkv.spec import Causal, Everyone
from tests.support import tiny

NAMES = torch.tensor([7, 2, 9])  # of the documents of a row: any numbers
LENGTHS = ((5, 1, 7), (4, 6, 3))  # of the documents of each row
TARGETS = ((3, 6, 2), (5, 1, 5))
TYPES = {"bert": 3, "roberta": 3, "albert": 3, "electra": 3, "xlnet": 2}
TYPES |= dict.fromkeys(("gpt", "gpt2", "gpt3", "ctrl", "sparse"), tiny.VOCAB)
Span = tuple[int, int, int]  # row, first and last column of a document
Case = tuple[str, dict[str, Any]]
CASES: dict[str, Case] = {name: (name, {}) for name in tiny.FAMILIES} | tiny.CAUSAL
CASES = {name: case for name, case in CASES.items() if not case[1].get("cross")}


def document(lengths: tuple[tuple[int, ...], ...]) -> Tensor:
    return torch.stack([NAMES.repeat_interleave(torch.tensor(row)) for row in lengths])


def spans(lengths: tuple[tuple[int, ...], ...]) -> list[Span]:
    ends = [torch.tensor((0, *row)).cumsum(0).tolist() for row in lengths]
    return [(n, row[i], row[i + 1]) for n, row in enumerate(ends) for i in range(len(row) - 1)]


def rows(tokens: Tensor, types: Tensor | None, **more: Any) -> Rows:
    return Rows.of(tokens, types=types, **more)


def pack(made: qkv.Model) -> tuple[Batch, list[tuple[Span, Span, Batch]]]:
    """A packed batch, and every document alone with where it stands in the last and the first stack."""
    family = made.family.name
    length = sum(LENGTHS[0])
    tokens, kinds = tiny.ids(2, length), TYPES.get(family)
    types = torch.randint(kinds, tokens.shape) if kinds else None
    source = rows(tokens, types, document=document(LENGTHS))
    alone = []
    if family not in tiny.PAIRS:
        for span in spans(LENGTHS):
            n, a, b = span
            one = Batch(rows=rows(tokens[n, None, a:b], None if types is None else types[n, None, a:b]))
            alone.append((span, span, one))
        return Batch(rows=source), alone
    target = tiny.ids(2, sum(TARGETS[0]), seed=1)
    for (n, a, b), (_, c, d) in zip(spans(LENGTHS), spans(TARGETS), strict=True):
        one = Batch(rows=rows(tokens[n, None, a:b], None), target=rows(target[n, None, c:d], None))
        alone.append(((n, c, d), (n, a, b), one))
    return Batch(rows=source, target=rows(target, None, document=document(TARGETS))), alone


def at(out: dict[str, Tensor], last: Span, first: Span) -> dict[str, Tensor]:
    """What a document has of each token."""
    found: dict[str, Tensor] = {}
    for name in ("hidden", "logits", "encoded"):
        if name in out:
            n, a, b = first if name == "encoded" else last
            found[name] = out[name][n, None, a:b]
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_packed_document_equals_it_alone(name: str) -> None:
    family, changes = CASES[name]
    made = tiny.model(family, **changes)
    batch, alone = pack(made)
    together = made.net(batch)
    for last, first, one in alone:
        tiny.close(at(together, last, first), at(made.net(one), (0, 0, 99), (0, 0, 99)))


@pytest.mark.parametrize("name", CASES)
def test_documents_do_not_see_each_other(name: str) -> None:
    family, changes = CASES[name]
    made = tiny.model(family, **changes)
    batch, _ = pack(made)
    with qkv.look(made) as seen:
        made.net(batch)
    reader, writer = document(LENGTHS), document(TARGETS if family in tiny.PAIRS else LENGTHS)
    for path, weights in seen.items():
        q = reader if "encoder" in path else writer
        k = reader if "cross" in path else q
        other = (q[:, :, None] != k[:, None, :])[:, None]  # (B, 1, T, S), past what is remembered
        inside = weights[..., weights.shape[-1] - k.shape[1] :]
        assert inside.masked_select(other).eq(0).all(), path
        assert torch.allclose(weights.sum(-1), torch.ones((), dtype=weights.dtype)), path
        assert inside.masked_select(~other).gt(0).any(), path


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5", "xlnet", "switch"])
def test_gradients_of_a_packed_row_are_those_of_its_documents(family: str) -> None:
    made = tiny.model(family)
    batch, alone = pack(made)
    weight = torch.randn(2, 99, tiny.VOCAB, dtype=torch.float64)
    logits = made.net(batch)["logits"]
    (logits * weight[:, : logits.shape[1]]).sum().backward()
    together = {name: p.grad for name, p in made.net.named_parameters() if p.grad is not None}
    made.net.zero_grad(set_to_none=True)
    for (n, a, b), _, one in alone:
        (made.net(one)["logits"] * weight[n, None, a:b]).sum().backward()
    apart = {name: p.grad for name, p in made.net.named_parameters() if p.grad is not None}
    assert apart.keys() == together.keys()
    tiny.close(together, apart)


@pytest.mark.parametrize("family", ["xlnet", "transformer-xl"])
def test_all_documents_of_a_row_see_its_memory(family: str) -> None:
    made = tiny.model(family)
    batch, alone = pack(made)
    assert batch.rows is not None
    memory = torch.randn(2, 2, 4, tiny.WIDTH, dtype=torch.float64)  # (layers, B, M, W)
    together = made.net(Batch(rows=batch.rows, memory=memory))
    for last, first, one in alone:
        n = last[0]
        single = made.net(Batch(rows=one.rows, memory=memory[:, n, None]))
        tiny.close(at(together, last, first), at(single, (0, 0, 99), (0, 0, 99)))


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "t5", "xlnet", "modernbert", "sparse"])
@pytest.mark.parametrize("pads", ["left", "right"])
def test_pads_in_a_packed_row_count_for_nothing(family: str, pads: str) -> None:
    """Whether the pads are a document of their own or go by the number of their neighbour."""
    made = tiny.model(family)
    tokens, names = tiny.ids(1, 9), torch.tensor([[3, 3, 3, 3, 3, 8, 8, 8, 8]])
    empty = slice(0, 2) if pads == "left" else slice(7, 9)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[:, empty] = False
    own = names.clone()
    own[:, empty] = 0
    for number in (names, own):
        kept = mask[0]
        packed = Rows.of(tokens, mask=mask, document=number)
        plain = Rows.of(tokens[:, kept], document=number[:, kept])
        assert torch.equal(packed.positions.expand_as(tokens)[:, kept], plain.positions)
        outs = [made.net(Batch(rows=r, target=r if family in tiny.PAIRS else None)) for r in (packed, plain)]
        tiny.close({k: v[:, kept] for k, v in outs[0].items() if k in ("hidden", "logits")},
                   {k: v for k, v in outs[1].items() if k in ("hidden", "logits")})  # fmt: skip


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel for packed texts is CUDA's")
@pytest.mark.parametrize("causal", [False, True])
def test_the_packed_kernel_equals_dense_attention(causal: bool) -> None:
    """In bf16, outputs and gradients, against fp32 under the mask of the texts."""
    document = torch.tensor([[0] * 100 + [1] * 28, [0] * 3 + [1] * 61 + [2] * 64], device="cuda")
    rows = Rows.of(torch.zeros(2, 128, dtype=torch.long, device="cuda"), document=document)
    pattern = Causal() if causal else Everyone()
    where = Where(
        pattern=pattern, q=rows.positions, k=rows.positions, full=True, same=True, edges=rows.edges,
        documents=(document, document),
    )  # fmt: skip
    q, k, v, weight = torch.randn(4, 2, 3, 128, 16, device="cuda")
    sides = [x.requires_grad_() for x in (q, k, v)]
    plain = mix(q, k, v, where, None, 0.25, 0.0)
    fast = mix(q.bfloat16(), k.bfloat16(), v.bfloat16(), where, None, 0.25, 0.0)
    assert where.kernel == "packed"
    tiny.close({"out": fast.float()}, {"out": plain}, 0.03)
    here, there = (torch.autograd.grad((out.float() * weight).sum(), sides) for out in (fast, plain))
    tiny.close(dict(zip("qkv", here, strict=True)), dict(zip("qkv", there, strict=True)), 0.15)
