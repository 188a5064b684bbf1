"""How the weights of a query come about: vectors, products, terms, score and weight, for every kind of
position, score and selection."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.explorer.trace.score_parts import list_score_parts
from qkv.explorer.trace.trace import Trace
from tests.explorer import models
from tests.explorer.trace.test_trace import look
from tests.support.errors import assert_error

POSITION_TERMS = {
    "t5": "position:T5 relative position bias",
    "alibi": "position:ALiBi",
    "xl": "position:relative positions",
}


def get_parts(trace: Trace, path: str, head: int, row: int) -> dict[str, Tensor]:
    terms = trace.compute_terms(path, head, row)
    parts = list_score_parts(terms, trace.attentions[path].position)
    assert all(part.values.dtype == torch.float32 for part in parts)
    names = [part.name for part in parts]
    assert len({*names}) == len(names)
    assert names[-2:] == ["score", "weight"]
    return {part.name: part.values.double() for part in parts}


def list_places(trace: Trace) -> list[tuple[str, int, int]]:
    """Return the first head with the second query, and the last head with the last query."""
    return [
        place
        for path, (heads, num_queries, _) in trace.shapes.items()
        for place in ((path, 0, 1), (path, heads - 1, num_queries - 1))
    ]


# --- selections, from unmasked scores (S,) ---


def select_one(scores: Tensor) -> Tensor:
    weights = torch.zeros_like(scores)
    weights[scores.argmax()] = 1
    return weights


def select_two(scores: Tensor) -> Tensor:
    best = scores.sort(descending=True).indices[:2]
    return scores.where(torch.isin(torch.arange(len(scores)), best), -torch.inf).softmax(-1)


def bisect_weights(compute: Callable[[Tensor], Tensor], scores: Tensor) -> Tensor:
    """Return the weights for the threshold at which they sum to one."""
    low, high = scores.max() - 10, scores.max()
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if compute(scores - middle).sum() > 1 else (low, middle)
    return compute(scores - low)


SELECT: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda scores: scores.softmax(-1),
    "hard": select_one,
    "gumbel": select_one,
    "top-k": select_two,
    "sparsemax": lambda scores: bisect_weights(lambda z: z.relu(), scores),
    "entmax15": lambda scores: bisect_weights(lambda z: z.relu().square(), scores / 2),
}


@pytest.mark.parametrize("name", models.MODELS)
def test_the_parts_add_up_to_the_score_and_the_weight(name: str) -> None:
    trace = models.build_trace(name)
    weights = look(trace)
    for path, head, row in list_places(trace):
        info = trace.attentions[path]
        parts = get_parts(trace, path, head, row)
        terms = [parts[term] for term in parts if term.startswith("position:")]
        (products,) = (parts[term] for term in ("products", "contributions") if term in parts)
        scale = trace.compute_terms(path, head, row).scale
        expected = products.sum(-1) * scale + sum(terms)
        is_masked = parts["score"].isnan()
        close: dict[str, Any] = dict(rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(parts["score"][~is_masked], expected[~is_masked], **close)
        weight = weights[path][head, row].double()
        torch.testing.assert_close(parts["weight"], weight, rtol=0, atol=1e-6)
        assert weight[is_masked].eq(0).all()
        if info.select != "local-p":  # which reads the query
            selected = SELECT[info.select](parts["score"][~is_masked])
            torch.testing.assert_close(weight[~is_masked], selected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", models.MODELS)
def test_the_score_is_nan_exactly_where_masked(name: str) -> None:
    """The mask is the rule of the pattern: no text here has padding."""
    trace = models.build_trace(name)
    for path, head, row in list_places(trace):
        info = trace.attentions[path]
        num_keys = info.shape[1]
        memory = num_keys - info.shape[0] if info.keys[0] == "memory" else 0
        rules = re.split(r", (?=[a-z])", info.pattern.removeprefix("by head: "))
        expected = [
            not is_visible(rules[head % len(rules)], memory + row, j) for j in range(num_keys)
        ]
        if name == "lstmn" and info.kind == "self":  # the states before the token
            expected = [j > row for j in range(num_keys)]
            expected[0] = info.stack == "encoder"  # the zeros that it starts from
        is_masked = get_parts(trace, path, head, row)["score"].isnan()
        assert is_masked.tolist() == expected, (path, head, row)


def is_visible(rule: str, i: int, j: int) -> bool:
    """Return whether a pattern, as it is written, lets position i attend to position j."""
    if " | " in rule:
        return any(is_visible(part, i, j) for part in rule.split(" | "))
    name, _, arguments = rule.rstrip(")").partition("(")
    n = [int(value) for value in arguments.split(", ") if value]
    rules: dict[str, Callable[[], bool]] = {
        "full": lambda: True,
        "causal": lambda: j <= i,
        "local": lambda: abs(i - j) <= n[0],
        "banded": lambda: 0 <= i - j < n[0],
        "strided": lambda: j <= i and (i - j) % n[0] == 0,
        "chunk": lambda: j <= i and i // n[0] == j // n[0],
        "chunkends": lambda: j <= i and j % n[0] >= n[0] - n[1],
    }
    return rules[name]()


@pytest.mark.parametrize(
    "name", ["bert", "bert-t5", "bert-alibi", "bert-rotary", "bert-xl", "t5", "transformer-xl"]
)
def test_the_terms_of_positions_have_names(name: str) -> None:
    trace = models.build_trace(name)
    for path, head, row in list_places(trace):
        info = trace.attentions[path]
        parts = get_parts(trace, path, head, row)
        term = POSITION_TERMS.get(info.position or "")
        assert {part for part in parts if part.startswith("position")} == (
            {term} if term else {*()}
        )
        if term:
            assert parts[term].std() > 1e-3
    kinds = {info.kind: info.position for info in trace.attentions.values()}
    position = {"bert": None, "t5": "t5", "transformer-xl": "xl"}.get(name, name[5:] or None)
    assert kinds == {"self": position} | ({"cross": None} if name == "t5" else {})


def test_the_parts_of_a_dot_product() -> None:
    trace = models.build_trace("bert")
    parts = get_parts(trace, "encoder.layers.1.attention", 2, 3)
    head_dim = 24 // 4
    assert {name: tuple(values.shape) for name, values in parts.items()} == {
        "query": (head_dim,), "keys": (8, head_dim), "products": (8, head_dim),
        "dot": (8,), "scaled": (8,), "score": (8,), "weight": (8,),
    }  # fmt: skip
    torch.testing.assert_close(parts["products"], parts["query"] * parts["keys"])
    torch.testing.assert_close(parts["dot"], parts["keys"] @ parts["query"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(parts["scaled"], parts["dot"] / head_dim**0.5, rtol=1e-5, atol=1e-5)
    assert torch.equal(parts["scaled"], parts["score"])


@pytest.mark.parametrize("name", ["t5", "gpt2-dot"])
def test_scores_without_scale_have_no_scaled_product(name: str) -> None:
    trace = models.build_trace(name)
    parts = get_parts(trace, "decoder.layers.1.attention", 0, 3)
    assert "dot" in parts
    assert "scaled" not in parts


@pytest.mark.parametrize("name", ["gpt2-additive", "gpt2-concat", "gpt2-gaussian", "bahdanau"])
def test_scores_that_are_no_products_have_contributions(name: str) -> None:
    trace = models.build_trace(name)
    for path, head, row in list_places(trace):
        parts = get_parts(trace, path, head, row)
        assert not parts.keys() & {"products", "dot", "scaled"}
        assert parts["contributions"].dim() == 2


@pytest.mark.parametrize("name", ["llama", "bert-rotary"])
def test_rotary_positions_turn_the_vectors(name: str) -> None:
    """The parts are the vectors that are multiplied: as long as the projections, but turned."""
    model, inputs = models.build_model(name), models.build_trace_inputs(name)
    path = "decoder.layers.0.attention" if name == "llama" else "encoder.layers.0.attention"
    projections: dict[str, Tensor] = {}
    attention = model.net.get_submodule(path)
    handles = [
        attention.get_submodule(part).register_forward_hook(
            lambda module, x, y, part=part: projections.__setitem__(part, y[0])
        )
        for part in "qk"
    ]
    try:
        trace = Trace(model, inputs)
    finally:
        for handle in handles:
            handle.remove()
    head, row = 1, 4
    parts = get_parts(trace, path, head, row)
    size = parts["query"].shape[0]
    groups = projections["k"].shape[-1] // size
    group = head * groups // trace.shapes[path][0]
    unturned = {
        "query": projections["q"][row].unflatten(-1, (-1, size))[head],
        "keys": projections["k"].unflatten(-1, (-1, size))[:, group],
    }
    close: dict[str, Any] = dict(rtol=1e-5, atol=1e-6)
    for part, vectors in unturned.items():
        torch.testing.assert_close(parts[part].norm(dim=-1), vectors.norm(dim=-1), **close)
        assert (parts[part] - vectors).norm(dim=-1).max() > 0.1
    torch.testing.assert_close(parts["keys"][0], unturned["keys"][0], **close)  # position 0
    is_visible_key = ~parts["score"].isnan()
    score = parts["keys"] @ parts["query"] / size**0.5
    torch.testing.assert_close(parts["score"][is_visible_key], score[is_visible_key], **close)


def test_key_value_heads_are_shared() -> None:
    """Llama has 2 key-value heads for 4 heads here."""
    trace = models.build_trace("llama")
    keys = [get_parts(trace, "decoder.layers.1.attention", head, 3)["keys"] for head in range(4)]
    assert torch.equal(keys[0], keys[1])
    assert torch.equal(keys[2], keys[3])
    assert not torch.equal(keys[1], keys[2])


def test_rows_without_terms_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = models.build_trace("bahdanau")
    path = "decoder.cross_attention"
    record = trace.records[path]
    monkeypatch.setattr(type(record), "compute_terms", lambda *_: None)
    assert_error(lambda: trace.compute_terms(path, 0, 0), path, "not known")
    second = Trace(trace.model, trace.inputs)
    assert not second.attentions[path].has_neurons


def test_scale_of_deep_layers() -> None:
    """GPT-2 with scale_attn_by_inverse_layer_idx divides the scores by the depth of the layer."""
    trace = models.build_trace("gpt2")
    scales = [trace.compute_terms(path, 0, 1).scale for path in trace.shapes]
    assert scales == pytest.approx([6**-0.5, 6**-0.5 / 2])
