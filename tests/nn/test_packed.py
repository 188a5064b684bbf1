"""Packed rows: the outputs of a document in a row of several equal its outputs alone."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv import Batch, Inputs
from qkv.kernels.attention import dot_product_attention
from qkv.kernels.bias import AttentionBias
from qkv.spec import Causal, Full
from tests.support import compare, tiny

DOCUMENT_IDS = torch.tensor([7, 2, 9])  # any numbers
LENGTHS = ((5, 1, 7), (4, 6, 3))  # of the documents of each row
DECODER_LENGTHS = ((3, 6, 2), (5, 1, 5))
NUM_TYPES = {"bert": 3, "roberta": 3, "albert": 3, "electra": 3, "xlnet": 2}
NUM_TYPES |= dict.fromkeys(("gpt", "gpt2", "gpt3", "ctrl", "sparse"), tiny.VOCAB)
Span = tuple[int, int, int]  # row, first and last column of a document
Case = tuple[str, dict[str, Any]]
CASES: dict[str, Case] = {name: (name, {}) for name in tiny.SEQUENCE_FAMILIES} | tiny.CAUSAL
CASES = {name: case for name, case in CASES.items() if not case[1].get("add_cross_attention")}


def test_the_pad_id_of_a_packed_document_is_not_counted() -> None:
    """RoBERTa: the positions after the pad id are counted within the document."""
    model = tiny.build("roberta", pad_token_id=5)
    ids = tiny.random_ids(2, sum(LENGTHS[0]))
    ids[:, [1, 3, 8]] = 5
    together = model.net(tiny.build_batch(model, ids, document_ids=build_document_ids(LENGTHS)))
    for n, a, b in list_spans(LENGTHS):
        alone = model.net(tiny.build_batch(model, ids[n, None, a:b]))
        difference = together["last_hidden_state"][n, a:b] - alone["last_hidden_state"][0]
        assert difference.abs().max() < 1e-5


def build_document_ids(lengths: tuple[tuple[int, ...], ...]) -> Tensor:
    return torch.stack([DOCUMENT_IDS.repeat_interleave(torch.tensor(row)) for row in lengths])


def list_spans(lengths: tuple[tuple[int, ...], ...]) -> list[Span]:
    ends = [torch.tensor((0, *row)).cumsum(0).tolist() for row in lengths]
    return [(n, row[i], row[i + 1]) for n, row in enumerate(ends) for i in range(len(row) - 1)]


def pack(model: qkv.Model) -> tuple[Batch, list[tuple[Span, Span, Batch]]]:
    """Return a packed batch, and for each document its spans in the last and in the first stack
    and a batch of its own."""
    family = model.family.name
    ids = tiny.random_ids(2, sum(LENGTHS[0]))
    num_types = NUM_TYPES.get(family)
    types = torch.randint(num_types, ids.shape) if num_types else None
    document_ids = build_document_ids(LENGTHS)
    singles = []
    if family not in tiny.ENCODER_DECODERS:
        for n, a, b in list_spans(LENGTHS):
            own_types = None if types is None else types[n, None, a:b]
            single = tiny.build_batch(model, ids[n, None, a:b], token_type_ids=own_types)
            singles.append(((n, a, b), (n, a, b), single))
        settings = dict(token_type_ids=types, document_ids=document_ids)
        return tiny.build_batch(model, ids, **settings), singles
    decoder_ids = tiny.random_ids(2, sum(DECODER_LENGTHS[0]), seed=1)
    for (n, a, b), (_, c, d) in zip(list_spans(LENGTHS), list_spans(DECODER_LENGTHS), strict=True):
        single = tiny.build_batch(model, ids[n, None, a:b], decoder_ids[n, None, c:d])
        singles.append(((n, c, d), (n, a, b), single))
    encoder = Inputs.create(ids, document_ids=document_ids)
    decoder = Inputs.create(decoder_ids, document_ids=build_document_ids(DECODER_LENGTHS))
    return Batch(encoder=encoder, decoder=decoder), singles


def select_document(out: dict[str, Tensor], last: Span, first: Span) -> dict[str, Tensor]:
    """Return the outputs at the tokens of a document."""
    selected: dict[str, Tensor] = {}
    for name in ("last_hidden_state", "logits", "encoder_last_hidden_state"):
        if name in out:
            n, a, b = first if name == "encoder_last_hidden_state" else last
            selected[name] = out[name][n, None, a:b]
    return selected


@pytest.mark.parametrize("name", CASES)
def test_a_packed_document_equals_the_document_alone(name: str) -> None:
    family, changes = CASES[name]
    model = tiny.build(family, **changes)
    batch, singles = pack(model)
    together = model.net(batch)
    for last, first, single in singles:
        compare.assert_close(
            select_document(together, last, first),
            select_document(model.net(single), (0, 0, 99), (0, 0, 99)),
        )


@pytest.mark.parametrize("name", [name for name in CASES if name not in tiny.WITHOUT_ATTENTION])
def test_documents_do_not_attend_to_each_other(name: str) -> None:
    family, changes = CASES[name]
    model = tiny.build(family, **changes)
    batch, _ = pack(model)
    with qkv.look(model) as weights_by_path:
        model.net(batch)
    encoder_ids = build_document_ids(LENGTHS)
    decoder_ids = build_document_ids(
        DECODER_LENGTHS if family in tiny.ENCODER_DECODERS else LENGTHS
    )
    for path, weights in weights_by_path.items():
        q = encoder_ids if "encoder" in path else decoder_ids
        k = encoder_ids if "cross" in path else q
        is_other = (q[:, :, None] != k[:, None, :])[:, None]  # (B, 1, T, S), without the memory
        inside = weights[..., weights.shape[-1] - k.shape[1] :]
        assert inside.masked_select(is_other).eq(0).all(), path
        assert torch.allclose(weights.sum(-1), torch.ones((), dtype=weights.dtype)), path
        assert inside.masked_select(~is_other).gt(0).any(), path


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5", "xlnet", "switch", *tiny.RECURRENT])
def test_gradients_of_a_packed_row_are_those_of_its_documents(family: str) -> None:
    model = tiny.build(family)
    batch, singles = pack(model)
    weight = torch.randn(2, 99, tiny.VOCAB, dtype=torch.float64)
    logits = model.net(batch)["logits"]
    (logits * weight[:, : logits.shape[1]]).sum().backward()
    together = {name: p.grad for name, p in model.net.named_parameters() if p.grad is not None}
    model.net.zero_grad(set_to_none=True)
    for (n, a, b), _, single in singles:
        (model.net(single)["logits"] * weight[n, None, a:b]).sum().backward()
    expected = {name: p.grad for name, p in model.net.named_parameters() if p.grad is not None}
    assert expected.keys() == together.keys()
    compare.assert_close(together, expected)


@pytest.mark.parametrize("family", ["xlnet", "transformer-xl"])
def test_all_documents_of_a_row_attend_to_its_memory(family: str) -> None:
    model = tiny.build(family)
    batch, singles = pack(model)
    mems = torch.randn(2, 2, 4, tiny.WIDTH, dtype=torch.float64)  # (layers, B, M, W)
    together = model.net(replace(batch, mems=mems))
    for last, first, single in singles:
        n = last[0]
        alone = model.net(replace(single, mems=mems[:, n, None]))
        compare.assert_close(
            select_document(together, last, first), select_document(alone, (0, 0, 99), (0, 0, 99))
        )


@pytest.mark.parametrize(
    "family", ["bert", "gpt2", "llama", "t5", "xlnet", "modernbert", "sparse", *tiny.RECURRENT]
)
@pytest.mark.parametrize("padding", ["left", "right"])
def test_padding_in_a_packed_row_changes_nothing(family: str, padding: str) -> None:
    """Padding may have a document id of its own or that of its neighbor."""
    model = tiny.build(family)
    tokens = tiny.random_ids(1, 9)
    ids_of_neighbors = torch.tensor([[3, 3, 3, 3, 3, 8, 8, 8, 8]])
    empty = slice(0, 2) if padding == "left" else slice(7, 9)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[:, empty] = False
    ids_of_padding = ids_of_neighbors.clone()
    ids_of_padding[:, empty] = 0
    for documents in (ids_of_neighbors, ids_of_padding):
        is_token = mask[0]
        packed = Inputs.create(tokens, attention_mask=mask, document_ids=documents)
        plain = Inputs.create(tokens[:, is_token], document_ids=documents[:, is_token])
        positions = packed.position_ids.expand_as(tokens)[:, is_token]
        assert positions.tolist() == plain.position_ids.tolist()
        outs = [
            model.net(Batch(encoder=x, decoder=x if family in tiny.ENCODER_DECODERS else None))
            for x in (packed, plain)
        ]
        names = [name for name in ("last_hidden_state", "logits") if name in outs[0]]
        actual = {name: outs[0][name][:, is_token] for name in names}
        compare.assert_close(actual, {name: outs[1][name] for name in names})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the variable-length kernel runs on CUDA")
@pytest.mark.parametrize("causal", [False, True])
def test_the_packed_kernel_equals_dense_attention(causal: bool) -> None:
    """Outputs and gradients in bf16, against fp32 under the mask of the documents."""
    documents = torch.tensor([[0] * 100 + [1] * 28, [0] * 3 + [1] * 61 + [2] * 64], device="cuda")
    inputs = Inputs.create(
        torch.zeros(2, 128, dtype=torch.long, device="cuda"), document_ids=documents
    )
    pattern = Causal() if causal else Full()
    bias = AttentionBias(
        pattern=pattern,
        q_positions=inputs.position_ids,
        k_positions=inputs.position_ids,
        has_no_padding=True,
        supports_pattern_kernels=True,
        cu_seqlens=inputs.cu_seqlens,
        document_ids=(documents, documents),
    )
    q, k, v, weight = torch.randn(4, 2, 3, 128, 16, device="cuda")
    operands = [x.requires_grad_() for x in (q, k, v)]
    plain = dot_product_attention(q, k, v, bias, None, 0.25, 0.0)
    fast = dot_product_attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), bias, None, 0.25, 0.0)
    assert bias.kernel_name == "packed"
    compare.assert_close({"out": fast.float()}, {"out": plain}, 0.03)
    gradients, expected_gradients = (
        dict(zip("qkv", torch.autograd.grad((out.float() * weight).sum(), operands), strict=True))
        for out in (fast, plain)
    )
    compare.assert_close(gradients, expected_gradients, 0.15)
