"""Scores of attention against the formulas of the papers, one query and one key at a time."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.nn.scores import SCORES, Score, build_score

DQ, DK, A = 4, 6, 5
EQUAL_WIDTHS = ("dot", "scaled-dot", "cosine", "gaussian")


def reference_general(score: Score, q: Tensor, k: Tensor) -> Tensor:
    return torch.einsum("q,kq,k->", q, score.get_parameter("w"), k)


def reference_additive(score: Score, q: Tensor, k: Tensor) -> Tensor:
    w, u, v = (score.get_parameter(name) for name in "wuv")
    return torch.dot(v[:, 0], torch.tanh(w.T @ q + u.T @ k))


def reference_concat(score: Score, q: Tensor, k: Tensor) -> Tensor:
    w, v = (score.get_parameter(name) for name in "wv")
    return torch.dot(v[:, 0], torch.tanh(w.T @ torch.cat([q, k])))


def reference_cosine(score: Score, q: Tensor, k: Tensor) -> Tensor:
    temperature = score.get_parameter("temperature.log").exp().squeeze()
    return torch.dot(q, k) / (q.norm() * k.norm()) / temperature


def reference_gaussian(score: Score, q: Tensor, k: Tensor) -> Tensor:
    sigma = score.get_parameter("sigma.log").exp().squeeze()
    return -(q - k).square().sum() / (2 * sigma**2)


REFERENCES: dict[str, Callable[[Score, Tensor, Tensor], Tensor]] = {
    "dot": lambda score, q, k: torch.dot(q, k),
    "scaled-dot": lambda score, q, k: torch.dot(q, k) / math.sqrt(len(k)),
    "general": reference_general,
    "additive": reference_additive,
    "concat": reference_concat,
    "cosine": reference_cosine,
    "gaussian": reference_gaussian,
}


def build_random_score(name: str, heads: tuple[int, ...] = ()) -> tuple[Score, int]:
    """Return a score with random parameters and the width of its queries."""
    query_width = DK if name in EQUAL_WIDTHS else DQ
    score = build_score(name, query_width=query_width, key_width=DK, width=A, heads=heads).double()
    for parameter in score.parameters():
        torch.nn.init.normal_(parameter)
    return score, query_width


def compute_gradients(out: Tensor, weight: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad((out * weight).sum(), tensors))


def test_every_score_has_a_reference() -> None:
    assert list(REFERENCES) == list(SCORES)


@pytest.mark.parametrize("name", SCORES)
def test_scores_and_gradients_equal_the_formula(name: str) -> None:
    torch.manual_seed(0)
    score, query_width = build_random_score(name)
    query = torch.randn(2, 3, query_width, dtype=torch.float64, requires_grad=True)
    keys = torch.randn(2, 7, DK, dtype=torch.float64, requires_grad=True)
    scores = score(query, score.prepare_keys(keys))
    rows = [
        torch.stack([REFERENCES[name](score, q, k) for q in query[b] for k in keys[b]])
        for b in range(2)
    ]
    expected = torch.stack(rows).view(2, 3, 7)
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-11)
    products = score.compute_products(query, score.prepare_keys(keys))
    torch.testing.assert_close(products.sum(-1), expected, rtol=0, atol=1e-11)
    weight = torch.randn_like(expected)
    tensors = [query, keys, *score.parameters()]
    gradients = compute_gradients(scores, weight, tensors)
    for actual, reference in zip(
        gradients, compute_gradients(expected, weight, tensors), strict=True
    ):
        torch.testing.assert_close(actual, reference, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", SCORES)
def test_each_head_has_parameters_of_its_own(name: str) -> None:
    """A score with heads equals one score without heads per head."""
    torch.manual_seed(0)
    score, query_width = build_random_score(name, heads=(3,))
    query = torch.randn(2, 3, 5, query_width, dtype=torch.float64)
    keys = torch.randn(2, 3, 7, DK, dtype=torch.float64)
    scores = score(query, score.prepare_keys(keys))
    for head in range(3):
        single, _ = build_random_score(name)
        state = {key: tensor[head] for key, tensor in score.state_dict().items()}
        single.load_state_dict(state)
        expected = single(query[:, head], single.prepare_keys(keys[:, head]))
        torch.testing.assert_close(scores[:, head], expected, rtol=0, atol=1e-12)


def test_a_temperature_and_a_sigma_may_be_fixed() -> None:
    query, keys = torch.randn(3, DK), torch.randn(4, DK)
    cosine = build_score("cosine", query_width=DK, key_width=DK, temperature=0.5)
    expected = 2 * F.cosine_similarity(query[:, None], keys[None], dim=-1)
    torch.testing.assert_close(cosine(query, cosine.prepare_keys(keys)), expected)
    gaussian = build_score("gaussian", query_width=DK, key_width=DK, sigma=3.0)
    expected = -torch.cdist(query, keys).square() / 18
    torch.testing.assert_close(gaussian(query, gaussian.prepare_keys(keys)), expected)
    assert not [*cosine.parameters(), *gaussian.parameters()]


def test_the_gaussian_of_numbers_far_from_zero_is_exact() -> None:
    """Years or time stamps as queries and keys, in single precision."""
    score = build_score("gaussian", query_width=1, key_width=1, sigma=1.0)
    torch.manual_seed(0)
    for offset in (0.0, 1e3, 1e5):
        keys = (torch.rand(50, 1) * 20 + offset).requires_grad_()
        query = (torch.rand(7, 1) * 20 + offset).requires_grad_()
        scores = score(query, score.prepare_keys(keys))
        expected = -(query - keys.T).square() / 2
        torch.testing.assert_close(scores.softmax(-1), expected.softmax(-1), rtol=0, atol=1e-4)
        gradients = torch.autograd.grad(scores.softmax(-1)[:, 3].sum(), (query, keys))
        expected_gradients = torch.autograd.grad(expected.softmax(-1)[:, 3].sum(), (query, keys))
        torch.testing.assert_close(gradients, expected_gradients, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e20, 200.0])
def test_a_masked_key_does_not_change_gaussian_weights(value: float) -> None:
    """Padding, also in half precision."""
    dtype = torch.float16 if value == 200 else torch.float32
    query, keys = torch.randn(3, 8, dtype=dtype), torch.randn(5, 8, dtype=dtype)
    score = build_score("gaussian", query_width=8, key_width=8, sigma=1.0)
    expected = score(query, keys[1:]).softmax(-1)
    keys[0] = value
    scores = score(query, score.prepare_keys(keys))[:, 1:]
    torch.testing.assert_close(scores.softmax(-1), expected)
    query[1] = math.nan
    assert score(query, keys[1:])[[0, 2]].isfinite().all()


def test_gaussian_scores_in_half_precision() -> None:
    torch.manual_seed(0)
    query, keys = torch.randn(16, 64), torch.randn(32, 64)
    score = build_score("gaussian", query_width=64, key_width=64)
    expected = score(query, keys)
    for dtype, bound in ((torch.float16, 0.006), (torch.bfloat16, 0.045)):
        error = score(query.to(dtype), keys.to(dtype)).float() - expected
        assert error.square().mean().sqrt() < bound


def test_new_scores_are_of_the_size_of_the_scaled_dot_product() -> None:
    """Initial parameters neither saturate a softmax nor make it uniform."""
    torch.manual_seed(0)
    query, keys = torch.randn(64, 32), torch.randn(64, 32)
    for name in SCORES:
        score = build_score(name, query_width=32, key_width=32)
        spread = score(query, score.prepare_keys(keys)).std(-1).mean()
        is_unscaled = name in ("dot", "general")  # a sum of 32 products
        assert 0.1 < spread < (8 if is_unscaled else 3), (name, spread)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(name="bilinear"), "attention score 'bilinear' is unknown: expected one of dot"),
        (dict(name="dot", query_width=3), "queries of width 3 and keys of width 6: expected equal"),
        (dict(name="general", sigma=1.0), "'general' has no setting 'sigma': it has no settings"),
        (dict(name="cosine", sigma=1.0), "no setting 'sigma': expected temperature"),
        (dict(name="gaussian", sigma=0), "sigma is 0: expected a number, more than 0"),
        (dict(name="cosine", temperature="hot"), "temperature is 'hot': expected a number"),
        (dict(name="scaled-dot", scale="x"), "scale is 'x': expected a number"),
        (dict(name="scaled-dot", scale=math.nan), "scale is nan: expected a number"),
    ],
)
def test_wrong_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        build_score(**(dict(query_width=DK, key_width=DK) | arguments))  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
