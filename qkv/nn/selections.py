"""Selections of attention: scores and a mask become weights. Does not know keys or values.

A key that is masked has exactly the weight zero. A query without any key has zero weights.
T queries, S keys, Dq the width of a query. Parameters have one more dimension in front for each entry
of `heads`, which broadcasts with the dimensions before T and S."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from qkv.nn.scores import check_settings, reset_matrices
from qkv.validate import check_number


class SampleStatistics(NamedTuple):
    """What REINFORCE needs of a sampled location; zeros for a query without keys."""

    log_probs: Tensor  # (..., T), of the location that was drawn
    entropy: Tensor  # (..., T), of the distribution it was drawn from


class Selection(nn.Module):
    """Base of the selections. Arguments of a constructor after `heads` are settings."""

    def __init__(self, query_width: int, heads: tuple[int, ...]) -> None:
        super().__init__()

    def reset_parameters(self) -> None:
        """Initialize the matrices like those of `nn.Linear`."""
        reset_matrices(self)

    def forward(self, scores: Tensor, mask: Tensor | None, query: Tensor) -> Tensor:
        """Return the weights (..., T, S) of scores (..., T, S), a mask that broadcasts to them (true
        where a query may attend; None: everywhere) and the query (..., T, Dq)."""
        raise NotImplementedError

    def statistics(
        self, scores: Tensor, mask: Tensor | None, weights: Tensor
    ) -> SampleStatistics | None:
        """Return the statistics of the sample that the weights are; None if gradients need none."""
        return None


class Softmax(Selection):
    """Weights proportional to exp(score)."""

    def forward(self, scores: Tensor, mask: Tensor | None, query: Tensor) -> Tensor:
        return masked_softmax(scores, mask)


class Hard(Selection):
    """One key with the weight one: drawn from the softmax of the scores in training, the best one in
    evaluation (Xu et al. 2015). No gradient reaches the scores through the weights: REINFORCE trains
    them by the `statistics` of the sample.

    `expected_prob`: the probability that a query gets the softmax weights in training, the expectation of
    its sample, which lowers the variance of the gradient (section 4.1 of the paper, which has 0.5)."""

    def __init__(
        self, query_width: int, heads: tuple[int, ...], expected_prob: float = 0.0
    ) -> None:
        super().__init__(query_width, heads)
        check_number("expected_prob", expected_prob, at_least=0, less_than=1)
        self.expected_prob = expected_prob

    def forward(self, scores: Tensor, mask: Tensor | None, query: Tensor) -> Tensor:
        if not self.training:
            return one_hot_argmax(scores, mask).to(scores.dtype)
        sample = one_hot_argmax(add_gumbel_noise(scores), mask).to(scores.dtype)
        if not self.expected_prob:
            return sample
        is_expected = torch.rand_like(sample[..., :1]) < self.expected_prob  # (..., T, 1)
        return torch.where(is_expected, masked_softmax(scores, mask), sample)

    def statistics(self, scores: Tensor, mask: Tensor | None, weights: Tensor) -> SampleStatistics:
        """Return the log-probability of the location that has the weight one, and the entropy; zero for
        a query without a sample."""
        log_probs = fill_masked(scores, mask).log_softmax(-1)
        probs = log_probs.exp()
        if mask is not None:  # the logarithm of a masked key is near the lowest number
            log_probs = log_probs.masked_fill(~mask, 0)
            probs = probs.masked_fill(~mask, 0)
        sample = (weights == 1).to(weights.dtype).detach()
        return SampleStatistics((log_probs * sample).sum(-1), -(log_probs * probs).sum(-1))


class Gumbel(Selection):
    """Straight-through Gumbel-softmax: the weights of a sample as in `Hard`, and the gradient of
    softmax((scores + noise) / temperature) (Jang et al. 2017). In evaluation, the best key."""

    def __init__(self, query_width: int, heads: tuple[int, ...], temperature: float = 1.0) -> None:
        super().__init__(query_width, heads)
        check_number("temperature", temperature, more_than=0)
        self.temperature = temperature

    def forward(self, scores: Tensor, mask: Tensor | None, query: Tensor) -> Tensor:
        noisy = add_gumbel_noise(scores) if self.training else scores
        soft = masked_softmax(noisy / self.temperature, mask)
        return (one_hot_argmax(noisy, mask) + (soft - soft.detach())).to(scores.dtype)


class LocalP(Selection):
    """Luong et al. (2015), predictive local attention: a window around the predicted position
    S·sigmoid(v·tanh(Wq)), and softmax weights within it times a Gaussian with σ = window / 2.

    S is the number of keys that a query may attend to, and positions count these keys from 0. As in
    the paper, the sum of the weights is less than one."""

    def __init__(self, query_width: int, heads: tuple[int, ...], window: int = 10) -> None:
        super().__init__(query_width, heads)
        check_number("window", window, integer=True, at_least=1)
        self.window = window
        self.w = nn.Parameter(torch.empty(*heads, query_width, query_width))
        self.v = nn.Parameter(torch.empty(*heads, query_width, 1))
        self.reset_parameters()

    def forward(self, scores: Tensor, mask: Tensor | None, query: Tensor) -> Tensor:
        positions, lengths = count_keys(scores, mask)
        share = ((query @ self.w).tanh() @ self.v).sigmoid()
        distance = positions - lengths * to_single_precision(share)  # (..., T, S)
        window = distance.abs() <= self.window
        weights = masked_softmax(scores, window if mask is None else window & mask)
        sigma = self.window / 2
        return weights * torch.exp(-distance.square() / (2 * sigma**2)).to(weights.dtype)


class TopK(Selection):
    """Softmax over the `k` keys with the highest scores."""

    def __init__(self, query_width: int, heads: tuple[int, ...], k: int = 8) -> None:
        super().__init__(query_width, heads)
        check_number("k", k, integer=True, at_least=1)
        self.k = k

    def forward(self, scores: Tensor, mask: Tensor | None, query: Tensor) -> Tensor:
        best = fill_masked(scores.detach(), mask).topk(min(self.k, scores.shape[-1])).indices
        is_best = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True)
        return masked_softmax(scores, is_best if mask is None else is_best & mask)


class Sparsemax(Selection):
    """The nearest point of the probability simplex, with zeros (Martins and Astudillo 2016)."""

    def forward(self, scores: Tensor, mask: Tensor | None, query: Tensor) -> Tensor:
        z = shift_scores(scores, mask)
        with torch.no_grad():
            ordered, count = sort_descending(z)
            thresholds = (ordered.cumsum(-1) - 1) / count
            tau = pick_threshold(ordered, thresholds)
        # One step of Newton's method on sum(p) = 1: rounds tau better and carries its gradient.
        p = (z - tau).relu()
        slope = (p.detach() > 0).sum(-1, keepdim=True)
        tau = tau + (p.sum(-1, keepdim=True) - 1) / slope
        return zero_masked((z - tau).relu().to(scores.dtype), mask)


class Entmax15(Selection):
    """α-entmax with α = 1.5, between softmax and sparsemax, with zeros (Peters et al. 2019)."""

    def forward(self, scores: Tensor, mask: Tensor | None, query: Tensor) -> Tensor:
        z = shift_scores(scores / 2, mask)
        with torch.no_grad():
            ordered, count = sort_descending(z)
            mean = ordered.cumsum(-1) / count
            variance = ordered.square().cumsum(-1) / count - mean.square()
            thresholds = mean - (1 / count - variance).clamp(min=0).sqrt()
            tau = pick_threshold(ordered, thresholds)
        # One step of Newton's method on sum(p) = 1: rounds tau better and carries its gradient.
        root = (z - tau).relu()
        slope = 2 * root.detach().sum(-1, keepdim=True)
        tau = tau + (root.square().sum(-1, keepdim=True) - 1) / slope
        return zero_masked((z - tau).relu().square().to(scores.dtype), mask)


SELECTIONS: dict[str, type[Selection]] = {
    "softmax": Softmax,
    "hard": Hard,
    "gumbel": Gumbel,
    "local-p": LocalP,
    "top-k": TopK,
    "sparsemax": Sparsemax,
    "entmax15": Entmax15,
}


def build_selection(
    name: str, *, query_width: int, heads: tuple[int, ...] = (), **settings: float
) -> Selection:
    """Return a new selection. `settings` are `expected_prob` (hard), `temperature` (gumbel), `window`
    (local-p) and `k` (top-k)."""
    cls = SELECTIONS.get(name)
    if cls is None:
        expected = ", ".join(SELECTIONS)
        raise ValueError(f"attention selection {name!r} is unknown: expected one of {expected}")
    check_settings(f"attention selection {name!r}", cls, settings)
    return cls(query_width, heads, **settings)


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Return the softmax over the keys that the mask allows, and zeros elsewhere."""
    return zero_masked(fill_masked(scores, mask).softmax(-1), mask)


def fill_masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Return scores that are lowest where masked; finite, so that a query without keys gives no NaN."""
    return scores if mask is None else scores.masked_fill(~mask, torch.finfo(scores.dtype).min)


def zero_masked(weights: Tensor, mask: Tensor | None) -> Tensor:
    return weights if mask is None else weights.masked_fill(~mask, 0)


def one_hot_argmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Return one at the highest score of each query and zeros elsewhere, without gradient."""
    best = fill_masked(scores.detach(), mask).argmax(-1, keepdim=True)
    return zero_masked(torch.zeros_like(scores).scatter(-1, best, 1), mask)


def add_gumbel_noise(scores: Tensor) -> Tensor:
    """Return scores whose argmax is a sample of their softmax (the Gumbel-max trick)."""
    scores = to_single_precision(scores)
    return scores - torch.empty_like(scores).exponential_().log()


def to_single_precision(x: Tensor) -> Tensor:
    """Cast half precision to float32."""
    return x.float() if x.dtype.itemsize < 4 else x


def count_keys(scores: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the positions of keys (..., S) among those allowed, and the number of these (..., 1)."""
    if mask is None:
        positions = torch.arange(scores.shape[-1], device=scores.device)
        return positions, torch.full_like(positions[:1], scores.shape[-1])
    return mask.cumsum(-1) - 1, mask.sum(-1, keepdim=True)


def shift_scores(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Return scores less their maximum, in single precision or better; -2 and less becomes -2.

    Sparsemax and entmax15 give keys that are 1 or more below the maximum the weight zero."""
    scores = to_single_precision(scores)
    highest = fill_masked(scores.detach(), mask).amax(-1, keepdim=True)
    z = (scores - highest).clamp(min=-2)
    return z if mask is None else z.masked_fill(~mask, -2)


def sort_descending(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sorted scores (..., S) and the numbers 1 to S."""
    return z.sort(-1, descending=True).values, torch.arange(
        1, z.shape[-1] + 1, device=z.device, dtype=z.dtype
    )


def pick_threshold(ordered: Tensor, thresholds: Tensor) -> Tensor:
    """Return the threshold (..., 1) of the largest support: those of the n best keys are given."""
    support = (ordered > thresholds).sum(-1, keepdim=True)
    return thresholds.gather(-1, support.clamp(min=1) - 1)
