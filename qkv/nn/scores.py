"""Scores of attention: how well each query matches each key. Does not know masks, weights or values.

T queries, S keys, Dq and Dk their widths, A the width of a hidden layer. Parameters have one more
dimension in front for each entry of `heads`, which broadcasts with the dimensions before T and S."""

import inspect
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.validate import check_number


class Score(nn.Module):
    """Base of the scores. Arguments of a constructor after `heads` are settings."""

    def __init__(
        self, query_width: int, key_width: int, width: int | None, heads: tuple[int, ...]
    ) -> None:
        super().__init__()

    def reset_parameters(self) -> None:
        """Initialize the matrices like those of `nn.Linear`."""
        reset_matrices(self)

    def prepare_keys(self, keys: Tensor) -> Tensor:
        """Return what depends on the keys only, to be computed once for many queries."""
        return keys

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        """Return the scores: query (..., T, Dq), prepared keys (..., S, ...) -> (..., T, S)."""
        raise NotImplementedError

    def compute_products(self, query: Tensor, prepared: Tensor) -> Tensor:
        """Return the summands of the scores, for a few queries: (..., T, S, D), whose sum over D is
        the score; of a dot product, the elementwise products."""
        return query[..., :, None, :] * prepared[..., None, :, :]


class Dot(Score):
    """q·k (Luong et al. 2015)."""

    def __init__(
        self, query_width: int, key_width: int, width: int | None, heads: tuple[int, ...]
    ) -> None:
        super().__init__(query_width, key_width, width, heads)
        check_equal_widths(query_width, key_width)

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        return query @ prepared.transpose(-1, -2)


class ScaledDot(Score):
    """q·k / sqrt(Dk) (Vaswani et al. 2017), or q·k * `scale`."""

    def __init__(
        self, query_width: int, key_width: int, width: int | None, heads: tuple[int, ...],
        scale: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(query_width, key_width, width, heads)
        check_equal_widths(query_width, key_width)
        if scale is not None:
            check_number("scale", scale)
        self.scale = 1 / math.sqrt(key_width) if scale is None else scale

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        return (query * self.scale) @ prepared.transpose(-1, -2)

    def compute_products(self, query: Tensor, prepared: Tensor) -> Tensor:
        return super().compute_products(query * self.scale, prepared)


class General(Score):
    """q·Wk, a bilinear form (Luong et al. 2015)."""

    def __init__(
        self, query_width: int, key_width: int, width: int | None, heads: tuple[int, ...]
    ) -> None:
        super().__init__(query_width, key_width, width, heads)
        self.w = nn.Parameter(torch.empty(*heads, key_width, query_width))
        self.reset_parameters()

    def prepare_keys(self, keys: Tensor) -> Tensor:
        return keys @ self.w  # (..., S, Dk) -> (..., S, Dq)

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        return query @ prepared.transpose(-1, -2)


class Additive(Score):
    """v·tanh(Wq + Uk), a network with one hidden layer (Bahdanau et al. 2014)."""

    def __init__(
        self, query_width: int, key_width: int, width: int | None, heads: tuple[int, ...]
    ) -> None:
        super().__init__(query_width, key_width, width, heads)
        width = width or key_width
        self.w = nn.Parameter(torch.empty(*heads, query_width, width))
        self.u = nn.Parameter(torch.empty(*heads, key_width, width))
        self.v = nn.Parameter(torch.empty(*heads, width, 1))
        self.reset_parameters()

    def prepare_keys(self, keys: Tensor) -> Tensor:
        return keys @ self.u  # (..., S, Dk) -> (..., S, A)

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        return score_hidden(query @ self.w, prepared, self.v)

    def compute_products(self, query: Tensor, prepared: Tensor) -> Tensor:
        return multiply_hidden(query @ self.w, prepared, self.v)


class Concat(Score):
    """v·tanh(W[q; k]) (Luong et al. 2015): the additive score with both matrices in one."""

    def __init__(
        self, query_width: int, key_width: int, width: int | None, heads: tuple[int, ...]
    ) -> None:
        super().__init__(query_width, key_width, width, heads)
        width = width or key_width
        self.query_width = query_width
        self.w = nn.Parameter(torch.empty(*heads, query_width + key_width, width))
        self.v = nn.Parameter(torch.empty(*heads, width, 1))
        self.reset_parameters()

    def prepare_keys(self, keys: Tensor) -> Tensor:
        return keys @ self.w[..., self.query_width :, :]  # (..., S, Dk) -> (..., S, A)

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        return score_hidden(query @ self.w[..., : self.query_width, :], prepared, self.v)

    def compute_products(self, query: Tensor, prepared: Tensor) -> Tensor:
        return multiply_hidden(query @ self.w[..., : self.query_width, :], prepared, self.v)


class Cosine(Score):
    """cos(q, k) / temperature. The temperature is learned, from 0.1 on, unless `temperature` is set."""

    def __init__(
        self, query_width: int, key_width: int, width: int | None, heads: tuple[int, ...],
        temperature: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(query_width, key_width, width, heads)
        check_equal_widths(query_width, key_width)
        self.temperature = Scale("temperature", temperature, 0.1, heads)

    def prepare_keys(self, keys: Tensor) -> Tensor:
        return F.normalize(keys, dim=-1)

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        return F.normalize(query, dim=-1) / self.temperature() @ prepared.transpose(-1, -2)

    def compute_products(self, query: Tensor, prepared: Tensor) -> Tensor:
        return super().compute_products(F.normalize(query, dim=-1) / self.temperature(), prepared)


class Gaussian(Score):
    """-||q - k||² / 2σ²: with softmax, Nadaraya-Watson regression with a Gaussian kernel.

    σ is learned, from the fourth root of Dk on (the scale of `scaled-dot`), unless `sigma` is set."""

    def __init__(
        self, query_width: int, key_width: int, width: int | None, heads: tuple[int, ...],
        sigma: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(query_width, key_width, width, heads)
        check_equal_widths(query_width, key_width)
        self.sigma = Scale("sigma", sigma, key_width**0.25, heads)

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        sigma = self.sigma()
        # Numbers far from zero, such as years, keep their digits. No masked key may move the origin.
        origin = query.detach().mean(-2, keepdim=True).nan_to_num(0.0, 0.0, 0.0)
        query, keys = (query - origin) / sigma, (prepared - origin) / sigma
        squares = query.square().sum(-1)[..., :, None] + keys.square().sum(-1)[..., None, :]
        return query @ keys.transpose(-1, -2) - squares / 2

    def compute_products(self, query: Tensor, prepared: Tensor) -> Tensor:
        query, keys = query / self.sigma(), prepared / self.sigma()
        return -(query[..., :, None, :] - keys[..., None, :, :]).square() / 2


class Scale(nn.Module):
    """A positive number: constant, or, if the value is None, the exponential of a parameter."""

    def __init__(
        self, name: str, value: float | None, start: float, heads: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.start = start
        self.value = value
        if value is not None:
            check_number(name, value, more_than=0)
        else:
            self.log = nn.Parameter(torch.empty(*heads, 1, 1))
            self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.value is None:
            nn.init.constant_(self.log, math.log(self.start))

    def forward(self) -> Tensor | float:
        return self.log.exp() if self.value is None else self.value


SCORES: dict[str, type[Score]] = {
    "dot": Dot,
    "scaled-dot": ScaledDot,
    "general": General,
    "additive": Additive,
    "concat": Concat,
    "cosine": Cosine,
    "gaussian": Gaussian,
}


def build_score(
    name: str,
    *,
    query_width: int,
    key_width: int,
    width: int | None = None,
    heads: tuple[int, ...] = (),
    **settings: float,
) -> Score:
    """Return a new score. `width` is that of the hidden layer of `additive` and `concat`, by default
    the width of a key; `settings` are `scale` (scaled-dot), `temperature` (cosine), `sigma` (gaussian)."""
    cls = SCORES.get(name)
    if cls is None:
        expected = ", ".join(SCORES)
        raise ValueError(f"attention score {name!r} is unknown: expected one of {expected}")
    check_settings(f"attention score {name!r}", cls, settings)
    return cls(query_width, key_width, width, heads, **settings)


def check_settings(owner: str, cls: type[nn.Module], settings: dict[str, float]) -> None:
    """Raise ValueError for a setting that the constructor does not have as an optional argument."""
    parameters = inspect.signature(cls).parameters.values()
    known = [x.name for x in parameters if x.default is not inspect.Parameter.empty]
    for name in settings:
        if name not in known:
            expected = f"expected {' or '.join(known)}" if known else "it has no settings"
            raise ValueError(f"{owner} has no setting {name!r}: {expected}")


def check_equal_widths(query_width: int, key_width: int) -> None:
    if query_width != key_width:
        raise ValueError(
            f"queries of width {query_width} and keys of width {key_width}: expected equal widths; "
            "the scores general, additive and concat take different ones"
        )


def reset_matrices(module: nn.Module) -> None:
    """Initialize parameters (..., in, out) uniformly within 1/sqrt(in), like those of `nn.Linear`."""
    for matrix in module.parameters(recurse=False):
        bound = 1 / math.sqrt(matrix.shape[-2])
        nn.init.uniform_(matrix, -bound, bound)


def score_hidden(query: Tensor, keys: Tensor, v: Tensor) -> Tensor:
    """Return v·tanh(query + key) for each pair: (..., T, A), (..., S, A) -> (..., T, S)."""
    hidden = (query[..., :, None, :] + keys[..., None, :, :]).tanh()  # (..., T, S, A)
    v = v if v.dim() == 2 else v[..., None, :, :]  # a matrix alone makes one product of all pairs
    return (hidden @ v).squeeze(-1)


def multiply_hidden(query: Tensor, keys: Tensor, v: Tensor) -> Tensor:
    """Return the summands of v·tanh(query + key): (..., T, A), (..., S, A) -> (..., T, S, A)."""
    hidden = (query[..., :, None, :] + keys[..., None, :, :]).tanh()
    return hidden * v.transpose(-1, -2)[..., None, :, :]
