"""Selections of attention against plain references: every row alone, keys that are masked removed."""

import itertools

import pytest
import torch
from torch import Tensor

from qkv.nn.selections import SELECTIONS, Hard, Selection, build_selection

DQ = 4
SETTINGS: dict[str, dict[str, float]] = {"top-k": dict(k=3), "local-p": dict(window=2)}


def build_random_selection(name: str, heads: tuple[int, ...] = ()) -> Selection:
    selection = build_selection(
        name, query_width=DQ, heads=heads, **SETTINGS.get(name, {})
    ).double()
    for parameter in selection.parameters():
        torch.nn.init.normal_(parameter)
    return selection.eval()


def project_by_support(z: Tensor) -> Tensor:
    """Sparsemax by its definition: the nearest point of the simplex, over all supports."""
    best = None
    for size in range(1, len(z) + 1):
        for support in itertools.combinations(range(len(z)), size):
            p = torch.zeros_like(z)
            p[list(support)] = z[list(support)] - (z[list(support)].sum() - 1) / size
            distance = (p - z).square().sum()
            if (p >= 0).all() and (best is None or distance < best[0]):
                best = (distance, p)
    assert best is not None
    return best[1]


def entmax15_by_bisection(z: Tensor) -> Tensor:
    low, high = z.max() / 2 - 1, z.max() / 2
    for _ in range(100):
        middle = (low + high) / 2
        if (z / 2 - middle).relu().square().sum() > 1:
            low = middle
        else:
            high = middle
    return (z / 2 - low).relu().square()


def local_p_by_formula(selection: Selection, z: Tensor, query: Tensor) -> Tensor:
    w, v = selection.get_parameter("w"), selection.get_parameter("v")[:, 0]
    center = len(z) * torch.sigmoid(torch.dot(v, torch.tanh(w.T @ query)))
    positions = torch.arange(len(z), dtype=z.dtype)
    window = [i for i in range(len(z)) if abs(i - center) <= 2]
    weights = torch.zeros_like(z)
    weights[window] = z[window].softmax(0)
    return weights * torch.exp(-((positions - center) ** 2) / (2 * 1.0**2))


def select_row(name: str, selection: Selection, z: Tensor, query: Tensor) -> Tensor:
    """Return the weights of one query over the keys it may attend to, by a plain reference."""
    if name == "softmax":
        return z.exp() / z.exp().sum()
    if name in ("hard", "gumbel"):
        return torch.nn.functional.one_hot(z.argmax(), len(z)).to(z.dtype)
    if name == "top-k":
        is_best = z >= z.sort().values[-3:][0]
        return z.exp() * is_best / (z.exp() * is_best).sum()
    if name == "sparsemax":
        return project_by_support(z)
    if name == "entmax15":
        return entmax15_by_bisection(z)
    return local_p_by_formula(selection, z, query)


def random_inputs(*shape: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores (*shape, T, S), a mask with an empty row, and queries (*shape, T, Dq)."""
    torch.manual_seed(0)
    scores = torch.randn(*shape, 5, 8, dtype=dtype)
    mask = torch.rand(*shape, 5, 8) < 0.7
    mask[..., 0] = True
    mask[..., 2, :] = False
    return scores.requires_grad_(), mask, torch.randn(*shape, 5, DQ, dtype=dtype)


@pytest.mark.parametrize("name", SELECTIONS)
def test_weights_equal_the_reference_of_each_row(name: str) -> None:
    selection = build_random_selection(name)
    scores, mask, query = random_inputs(2)
    weights = selection(scores, mask, query)
    unmasked = selection(scores, None, query)
    for b, t in itertools.product(range(2), range(5)):
        keys = mask[b, t]
        expected = torch.zeros(8, dtype=torch.float64)
        if keys.any():
            z = scores[b, t][keys].detach()
            expected[keys] = select_row(name, selection, z, query[b, t]).detach()
        torch.testing.assert_close(weights[b, t].detach(), expected, rtol=0, atol=1e-9)
        assert (weights[b, t][~keys] == 0).all()
        expected = select_row(name, selection, scores[b, t].detach(), query[b, t])
        torch.testing.assert_close(unmasked[b, t], expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", SELECTIONS)
def test_a_query_without_keys_has_zero_weights_and_gradients(name: str, training: bool) -> None:
    selection = build_random_selection(name).train(training)
    scores, mask, query = random_inputs(2)
    weights = selection(scores, mask, query.requires_grad_())
    assert (weights[:, 2] == 0).all()
    assert weights[:, [0, 1, 3, 4]].sum(-1).min() > 0.01
    if name != "hard":  # its weights have no gradient
        (weights * torch.randn_like(weights)).sum().backward()
        assert scores.grad is not None
        assert scores.grad.isfinite().all()
        assert (scores.grad[~mask] == 0).all()
        assert query.grad is None or query.grad.isfinite().all()


@pytest.mark.parametrize("name", ["softmax", "top-k", "sparsemax", "entmax15", "local-p"])
def test_gradients_equal_finite_differences(name: str) -> None:
    selection = build_random_selection(name)
    scores, mask, query = random_inputs(2)

    def select(scores: Tensor, query: Tensor, *parameters: Tensor) -> Tensor:
        weights: Tensor = selection(scores, mask, query)
        return weights

    tensors = (scores, query.requires_grad_(), *selection.parameters())
    assert torch.autograd.gradcheck(select, tensors, eps=1e-7, atol=1e-5)


@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_scores_and_ties(name: str, dtype: torch.dtype) -> None:
    selection = build_random_selection(name).to(dtype)
    scores = torch.zeros(3, 600)
    scores[1] = torch.linspace(-1e6, 1e6, 600)
    scores[2, :3] = 1000.0
    weights = selection(scores.to(dtype), None, torch.zeros(3, DQ, dtype=dtype))
    assert weights.dtype == dtype
    assert weights.isfinite().all()
    assert (weights >= 0).all()
    if name != "local-p":
        sums = weights.float().sum(-1)
        torch.testing.assert_close(
            sums, torch.ones(3), rtol=0, atol=2e-2 if dtype.itemsize == 2 else 1e-5
        )
        assert weights[1].argmax() == 599 if dtype == torch.float32 else weights[1].argmax() > 590


def test_sparsemax_and_entmax15_of_long_rows() -> None:
    """Against bisection, in single precision, for a support of few keys and of many."""
    torch.manual_seed(0)
    for spread in (0.01, 1.0, 10.0):
        scores = torch.randn(4, 1000) * spread
        weights = build_selection("entmax15", query_width=1)(scores, None, scores)
        expected = torch.stack([entmax15_by_bisection(z) for z in scores.double()]).float()
        torch.testing.assert_close(weights, expected, rtol=0, atol=1e-5)
        weights = build_selection("sparsemax", query_width=1)(scores, None, scores)
        tau = (scores.double() - weights).masked_fill(weights == 0, torch.nan)
        tau = tau.nanmean(-1, keepdim=True)  # the conditions of Karush, Kuhn and Tucker
        expected = (scores.double() - tau).relu().float()
        torch.testing.assert_close(weights, expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(weights.sum(-1), torch.ones(4), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["hard", "gumbel"])
def test_samples_have_the_probabilities_of_the_softmax(name: str) -> None:
    torch.manual_seed(0)
    selection = build_selection(name, query_width=1).train()
    z = torch.tensor([0.0, 1.0, 2.0, 5.0])
    mask = torch.tensor([True, True, True, False])
    samples = selection(z.expand(20_000, 4), mask, z)
    assert ((samples == 0) | (samples == 1)).all()
    assert (samples.sum(-1) == 1).all()
    expected = torch.cat([z[:3].softmax(0), torch.zeros(1)])
    # five standard deviations of a share of 20,000 samples
    torch.testing.assert_close(samples.mean(0), expected, rtol=0, atol=5 * 0.5 / 20_000**0.5)


def test_statistics_of_hard_attention() -> None:
    selection = Hard(DQ, ()).train()
    scores, mask, query = random_inputs(2)
    weights = selection(scores, mask, query)
    assert not weights.requires_grad
    actual = selection.statistics(scores, mask, weights)
    for b, t in itertools.product(range(2), range(5)):
        keys = mask[b, t]
        if not keys.any():
            assert actual.log_probs[b, t] == actual.entropy[b, t] == 0
            continue
        distribution = torch.distributions.Categorical(logits=scores[b, t][keys])
        log_prob = distribution.log_prob(weights[b, t][keys].argmax())
        torch.testing.assert_close(actual.log_probs[b, t], log_prob)
        torch.testing.assert_close(actual.entropy[b, t], distribution.entropy())
    (actual.log_probs.sum() + actual.entropy.sum()).backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    assert (scores.grad[~mask] == 0).all()


def test_hard_attention_may_use_the_expectation_of_a_sample() -> None:
    """The queries with softmax weights have a gradient, and no log-probability of a sample."""
    torch.manual_seed(0)
    selection = build_selection("hard", query_width=1, expected_prob=0.3).double()
    scores = torch.randn(1000, 5, dtype=torch.float64, requires_grad=True)
    weights = selection.train()(scores, None, scores)
    is_sample = (weights == 1).any(-1)
    # five standard deviations of a share of 1,000 queries
    assert abs(is_sample.double().mean() - 0.7) < 5 * (0.3 * 0.7 / 1000) ** 0.5
    torch.testing.assert_close(weights[~is_sample], scores[~is_sample].softmax(-1))
    statistics = selection.statistics(scores, None, weights)
    assert statistics is not None
    assert (statistics.log_probs[~is_sample] == 0).all()
    assert (statistics.log_probs[is_sample] < 0).all()
    weights[:, 0].sum().backward()
    assert scores.grad is not None
    assert (scores.grad[is_sample] == 0).all()
    assert (scores.grad[~is_sample] != 0).any(-1).all()
    best = torch.nn.functional.one_hot(scores.argmax(-1), 5)
    torch.testing.assert_close(selection.eval()(scores, None, scores), best.double())


def test_gumbel_gradient_is_that_of_the_softmax_of_the_sample() -> None:
    selection = build_selection("gumbel", query_width=1, temperature=0.7).double().train()
    scores = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 6, dtype=torch.float64)
    torch.manual_seed(1)
    weights = selection(scores, None, scores)
    (actual,) = torch.autograd.grad((weights * weight).sum(), scores)
    torch.manual_seed(1)
    noise = -torch.empty_like(scores).exponential_().log()
    soft = ((scores + noise) / 0.7).softmax(-1)
    (expected,) = torch.autograd.grad((soft * weight).sum(), scores)
    torch.testing.assert_close(actual, expected)
    assert (weights.argmax(-1) == soft.argmax(-1)).all()


def test_local_p_predicts_one_center_for_each_head() -> None:
    selection = build_random_selection("local-p", heads=(3,))
    scores, mask, query = random_inputs(2, 3)
    weights = selection(scores, mask, query)
    for head in range(3):
        single = build_random_selection("local-p")
        single.load_state_dict({k: tensor[head] for k, tensor in selection.state_dict().items()})
        expected = single(scores[:, head], mask[:, head], query[:, head])
        torch.testing.assert_close(weights[:, head], expected)


@pytest.mark.parametrize("name", SELECTIONS)
def test_padding_does_not_change_weights(name: str) -> None:
    """Keys that are masked may stand on the left, as in decoding, or on the right."""
    selection = build_random_selection(name)
    scores, _, query = random_inputs(2)
    expected = selection(scores, None, query)
    padding = torch.randn(2, 5, 3, dtype=torch.float64)
    for parts in ([padding, scores], [scores, padding]):
        mask = torch.cat([torch.full(part.shape, part is scores) for part in parts], dim=-1)
        weights = selection(torch.cat(parts, dim=-1), mask, query)
        torch.testing.assert_close(weights[mask].view_as(expected), expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(name="argmax"), "attention selection 'argmax' is unknown: expected one of softmax"),
        (dict(name="top-k", k=0), "k is 0: expected a whole number, at least 1"),
        (dict(name="local-p", window=1.5), "window is 1.5: expected a whole number, at least 1"),
        (dict(name="gumbel", temperature=-1), "temperature is -1: expected a number, more than 0"),
        (dict(name="hard", expected_prob=1), "expected_prob is 1: expected a number, at least 0"),
        (dict(name="softmax", k=3), "'softmax' has no setting 'k': it has no settings"),
    ],
)
def test_wrong_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        build_selection(**(dict(query_width=DQ) | arguments))  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
