"""Records of attention: weights of some heads and queries, and the terms of which a score consists."""

import pytest
import torch
from torch import Tensor

import qkv
from qkv.attention_weights import record_attention
from qkv.nn.attention_record import AttentionRecord, ScoreTerms
from tests.support import tiny

WITH_ATTENTION = [name for name in tiny.FAMILIES if name not in tiny.WITHOUT_ATTENTION]
POSITIONS = [("bert", name) for name in ("t5", "alibi", "rotary", "xl")]
CASES = [*((name, None) for name in WITH_ATTENTION), *POSITIONS]
SCORES = ("dot", "general", "additive", "concat", "cosine", "gaussian")


def record(model: qkv.Model) -> dict[str, AttentionRecord]:
    records: dict[str, AttentionRecord] = {}
    with record_attention(model, None, records.__setitem__), torch.no_grad():
        model(**tiny.build_inputs(model))
    return records


def compute_softmax(terms: ScoreTerms) -> Tensor:
    """Return the weights by the formula, from the terms of the scores."""
    scores = terms.products.sum(-1) * terms.scale + sum(terms.biases.values())
    if terms.mask is not None:
        scores = scores.masked_fill(~terms.mask, -torch.inf)
    return scores.softmax(-1)


@pytest.mark.parametrize(("family", "positions"), CASES)
def test_weights_of_some_heads_and_rows_are_those_of_all(
    family: str, positions: str | None
) -> None:
    for path, attention in record(tiny.build(family, positions=positions)).items():
        full = attention.compute_weights()
        assert full.shape == attention.shape
        for heads in (slice(0, 1), slice(1, None), slice(None)):
            for rows in (slice(-1, None), slice(1, 3)):
                part = attention.compute_weights(heads, rows)
                torch.testing.assert_close(part, full[:, heads, rows], rtol=0, atol=1e-13, msg=path)


@pytest.mark.parametrize(("family", "positions"), CASES)
def test_the_softmax_of_the_terms_is_the_weights(family: str, positions: str | None) -> None:
    for path, attention in record(tiny.build(family, positions=positions)).items():
        _, num_heads, num_queries, _ = attention.shape
        for batch_index, head, row in ((0, 0, 0), (1, num_heads - 1, num_queries - 1)):
            terms = attention.compute_terms(batch_index, head, row)
            assert terms is not None, path
            torch.testing.assert_close(
                compute_softmax(terms), terms.weights, rtol=0, atol=1e-12, msg=path
            )


@pytest.mark.parametrize("score", SCORES)
def test_the_terms_of_every_score(score: str) -> None:
    for family in ("gpt2", "luong"):
        records = record(tiny.build(family, attention_score=score))
        for path, attention in records.items():
            terms = attention.compute_terms(1, 0, 3)
            assert terms is not None
            torch.testing.assert_close(
                compute_softmax(terms), terms.weights, rtol=0, atol=1e-12, msg=f"{family} {path}"
            )


def test_positions_are_summands() -> None:
    """T5 and ALiBi are one bias for all layers; Transformer-XL has one in each layer."""
    for positions, name in (
        ("t5", "position_bias"),
        ("alibi", "position_bias"),
        ("xl", "layer_bias"),
    ):
        attention = record(tiny.build("bert", positions=positions))["encoder.layers.1.attention"]
        terms = attention.compute_terms(0, 1, 2)
        assert terms is not None
        assert terms.biases.keys() == {name}
        assert terms.biases[name].std() > 0


def test_rotary_positions_turn_queries_and_keys() -> None:
    """The norms of the vectors are those without positions; their directions are not."""
    model = tiny.build("llama")
    ids = torch.full((1, 6), 9)  # equal tokens: equal vectors before the rotation
    records: dict[str, AttentionRecord] = {}
    with record_attention(model, None, records.__setitem__), torch.no_grad():
        model(ids)
    terms = records["decoder.layers.0.attention"].compute_terms(0, 0, 5)
    assert terms is not None
    norms = terms.keys.norm(dim=-1)
    torch.testing.assert_close(norms, norms[:1].expand(6), rtol=0, atol=1e-12)
    assert (terms.keys[1:] - terms.keys[:1]).abs().amax(-1).min() > 1e-3


def test_padded_rows_of_a_recurrent_model_have_no_terms() -> None:
    model = tiny.build("bahdanau")
    ids = tiny.random_ids(2, 6)
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    records: dict[str, AttentionRecord] = {}
    with record_attention(model, None, records.__setitem__), torch.no_grad():
        model(ids, attention_mask=mask, decoder_input_ids=tiny.random_ids(2, 4))
    assert records["decoder.cross_attention"].compute_terms(0, 0, 0) is None


def test_look_selects_heads_and_rows() -> None:
    model = tiny.build("t5")
    inputs = tiny.build_inputs(model)
    with qkv.look(model) as full:
        expected = model(**inputs).logits
    with qkv.look(model, heads=slice(1, 3), rows=slice(-1, None)) as part:
        assert torch.equal(model(**inputs).logits, expected)
    assert part.keys() == full.keys()
    for path, weights in part.items():
        torch.testing.assert_close(weights, full[path][:, 1:3, -1:], rtol=0, atol=1e-13)


def test_a_record_of_some_rows_does_not_compute_the_dense_mask() -> None:
    attention = record(tiny.build("gpt2"))["decoder.layers.0.attention"]
    attention.compute_weights(slice(0, 1), slice(2, 3))
    bias = getattr(attention, "bias")  # noqa: B009
    assert not bias.cached_tensors
