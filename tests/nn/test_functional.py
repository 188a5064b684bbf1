"""`qkv.attention`: a soft key-value store."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qkv
from qkv.nn.scores import SCORES, Dot, ScaledDot, Score, build_score
from qkv.nn.selections import SELECTIONS, Softmax, build_selection

Q, K, V = torch.randn(3, 2, 4, 6, generator=torch.Generator().manual_seed(0))
V = V[..., :5]
MASK = torch.ones(4, 4, dtype=torch.bool).tril()


def test_the_default_is_scaled_dot_product_attention() -> None:
    torch.testing.assert_close(qkv.attention(Q, K, V), F.scaled_dot_product_attention(Q, K, V))
    expected = F.scaled_dot_product_attention(Q, K, V, is_causal=True)
    torch.testing.assert_close(qkv.attention(Q, K, V, mask=MASK), expected)


def test_nadaraya_watson_regression() -> None:
    """The value at x is the mean of all values, weighted by a Gaussian kernel of the distance."""
    x, y = torch.linspace(0, 5, 20)[:, None], torch.randn(20, 1)
    grid = torch.linspace(0, 5, 7)[:, None]
    kernel = torch.exp(-((grid - x.T) ** 2) / 2)
    expected = kernel @ y / kernel.sum(1, keepdim=True)
    torch.testing.assert_close(qkv.attention(grid, x, y, score="gaussian"), expected)


def test_the_mix_of_unit_vectors_is_the_weights() -> None:
    weights = qkv.attention(Q, K, torch.eye(4), select="sparsemax", mask=MASK)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4))
    assert (weights[:, ~MASK] == 0).all()
    torch.testing.assert_close(weights @ V, qkv.attention(Q, K, V, select="sparsemax", mask=MASK))


@pytest.mark.parametrize("select", SELECTIONS)
@pytest.mark.parametrize("score", SCORES)
def test_modules_and_functions_equal_names(score: str, select: str) -> None:
    """Everything composes, and a lookup equals score, then selection, then a product."""
    torch.manual_seed(0)
    score_module = build_score(score, query_width=6, key_width=6)
    selection = build_selection(select, query_width=6).eval()

    def compute_scores(query: Tensor, key: Tensor) -> Tensor:
        scores: Tensor = score_module(query, score_module.prepare_keys(key))
        return scores

    expected = selection(compute_scores(Q, K), MASK, Q) @ V
    for score_argument in (score_module, compute_scores):
        out = qkv.attention(Q, K, V, score=score_argument, select=selection, mask=MASK)
        torch.testing.assert_close(out, expected)
    if not [*score_module.parameters(), *selection.parameters()] and select not in (
        "hard",
        "gumbel",
    ):
        out = qkv.attention(Q, K, V, score=score, select=select, mask=MASK)
        torch.testing.assert_close(out, expected)


def test_hard_attention_by_name_returns_one_value_of_each_sample() -> None:
    torch.manual_seed(0)
    out = qkv.attention(Q[0], K[0], V[0], select="hard")
    assert all((row == V[0]).all(-1).sum() == 1 for row in out)
    samples = [qkv.attention(Q[0], K[0], V[0], select="hard") for _ in range(9)]
    assert any(not torch.equal(out, sample) for sample in samples)


def test_batch_dimensions_broadcast() -> None:
    out = qkv.attention(Q[:, None], K[None], V[None])
    assert out.shape == (2, 2, 4, 5)
    torch.testing.assert_close(out[1, 0], qkv.attention(Q[1], K[0], V[0]))


class Linear(nn.Module):
    """A score of the user, with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(6, 6)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        scores: Tensor = self.w(query) @ key.mT
        return scores


def test_a_module_of_the_user_gets_gradients() -> None:
    module = Linear()
    qkv.attention(Q, K, V, score=module).sum().backward()
    assert module.w.weight.grad is not None


class NanScore(ScaledDot):
    """A subclass of a score of qkv whose scores are no numbers."""

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        return super().forward(query, prepared) * float("nan")


class NarrowSelection(Softmax):
    """A subclass of a selection of qkv with weights of the wrong shape."""

    def forward(self, scores: Tensor, mask: Tensor | None, query: Tensor) -> Tensor:
        return super().forward(scores, mask, query)[..., :2]


def build_additive(query_width: int = 6, key_width: int = 6, **settings: Any) -> Score:
    return build_score("additive", query_width=query_width, key_width=key_width, **settings)


def nan_score(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.mT * float("nan")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            dict(score="general"),
            "'general' has parameters: pass a module, score=qkv.nn.scores.build",
        ),
        (dict(score="additive"), "'additive' has parameters"),
        (
            dict(select="local-p"),
            "'local-p' has parameters: pass a module, select=qkv.nn.selections",
        ),
        (dict(score="mlp"), "score 'mlp' is unknown: expected one of dot, scaled-dot"),
        (dict(select="max"), "selection 'max' is unknown: expected one of softmax, hard"),
        (dict(score=nan_score), r"score function nan_score returned NaN .* shape \(2, 4, 4\)"),
        (dict(score=lambda q, k: q), r"function <lambda> returned a tensor of shape \(2, 4, 6\)"),
        (dict(score=lambda q, k: (q @ k.mT).double()), "and torch.float64: expected"),
        (dict(score=lambda q, k: (q @ k.mT).long()), "and torch.int64: expected"),
        (dict(score=lambda q, k: 1.0), "returned a float: expected finite numbers"),
        (dict(select=lambda s, mask, q: s[..., :2]), r"select function <lambda> .* \(2, 4, 2\)"),
        (
            dict(select=lambda s, mask, q: s / 0),
            "select function <lambda> returned NaN or infinite",
        ),
        (dict(score=NanScore(6, 6, None, ())), "score function NanScore returned NaN"),
        (dict(select=NarrowSelection(6, ())), r"NarrowSelection returned .* \(2, 4, 2\)"),
        (
            dict(score=build_additive(key_width=4)),
            r"score is Additive with w \(6, 4\), u \(4, 4\), v \(4, 1\): it does not fit query "
            r"\(2, 4, 6\) and key \(2, 4, 6\) .* query_width 6, key_width 6",
        ),
        (dict(score=build_additive(heads=(3,))), r"Additive with w \(3, 6, 6\).* heads that"),
        (
            dict(score=Dot(6, 6, None, ()), key=K[..., :3]),
            "Dot with no parameters: it does not fit",
        ),
        (
            dict(select=build_selection("local-p", query_width=4)),
            r"select is LocalP with w \(4, 4\), v \(4, 1\): it does not fit query",
        ),
        (dict(score=5), "score is 5: expected a name, a module of qkv.nn.scores.build_score, or"),
        (dict(score=Dot), "score is <class 'qkv.nn.scores.Dot'>: expected a name, a module"),
        (dict(select=None), "select is None: expected a name, a module of qkv.nn.selections.build"),
        (dict(score=Softmax(6, ())), "score is Softmax, a Selection: pass it as select"),
        (dict(select=build_additive()), "select is Additive, a Score: pass it as score"),
        (dict(mask=[[True]]), "mask is a list: expected a tensor of torch.bool"),
        (dict(mask=np.ones((4, 4), bool)), "mask is a ndarray: expected a tensor of torch.bool"),
        (
            dict(query=Q[..., :0], key=K[..., :0]),
            r"query is .* \(2, 4, 0\) .* a width of 1 or more",
        ),
        (dict(mask=torch.ones(4, 4)), "mask is torch.float32: expected a tensor of torch.bool"),
        (dict(mask=torch.ones(3, 4, dtype=torch.bool)), r"mask \(3, 4\): expected .* broadcasts"),
        (dict(key=K[:, :3]), "3 keys and 4 values: expected a value for each key"),
        (dict(key=K[:, :0], value=V[:, :0]), "0 keys and 0 values"),
        (dict(key=K[..., :3]), "queries of width 6 and keys of width 3: expected equal widths"),
        (dict(key=K.double()), "key is torch.float64, but query is torch.float32"),
        (
            dict(query=Q[0, 0]),
            r"query is a tensor of shape \(6,\) and torch.float32: expected floats",
        ),
        (dict(query=Q.long()), "query is a tensor of shape .* and torch.int64: expected floats"),
        (dict(value=[1.0]), "value is a list: expected floats"),
        (dict(query=Q[:, None].expand(2, 3, 4, 6)), r"query \(2, 3, 4, 6\), key \(2, 4, 6\)"),
    ],
)
def test_wrong_arguments(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = dict(query=Q, key=K, value=V) | changes
    call: Callable[..., Tensor] = qkv.attention
    with pytest.raises(ValueError, match=message) as error:
        call(**arguments)
    assert "\n" not in str(error.value)


def test_scores_of_the_user_under_autocast() -> None:
    class Halved(ScaledDot):
        def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
            return super().forward(query, prepared) / 2

    query, key, value = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5, 2)
    score = Halved(4, 4, None, ())
    expected = qkv.attention(query / 2, key, value)
    with torch.autocast("cpu", torch.bfloat16):
        actual = qkv.attention(query, key, value, score=score)
    torch.testing.assert_close(actual.float(), expected, rtol=0, atol=0.05)
    with pytest.raises(ValueError, match=r"returned a tensor of shape \(3, 5\) and torch.float64"):
        qkv.attention(query, key, value, score=lambda q, k: (q @ k.T).double())
