"""attention: queries look up values by keys, with any score and any selection.

T queries, S keys, D and Dv the widths of keys and values."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from qkv.memory import is_memory_error
from qkv.nn.scores import SCORES, Score, build_score
from qkv.nn.selections import SELECTIONS, Selection, build_selection
from qkv.validate import shorten_repr

# A function of the user: (query, key) -> scores; (scores, mask, query) -> weights.
ScoreFunction = Callable[[Tensor, Tensor], Tensor]
SelectFunction = Callable[[Tensor, Tensor | None, Tensor], Tensor]
# Settings of the scores that would have a learned scale otherwise.
FIXED_SETTINGS: dict[str, dict[str, Any]] = {
    "cosine": {"temperature": 1.0},
    "gaussian": {"sigma": 1.0},
}


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score: str | Score | ScoreFunction = "scaled-dot",
    select: str | Selection | SelectFunction = "softmax",
    mask: Tensor | None = None,
) -> Tensor:
    """Return a mix of the values for each query: a soft key-value store.

    query (..., T, D), key (..., S, D), value (..., S, Dv) -> (..., T, Dv). `score` compares queries with
    keys: dot, scaled-dot, cosine, gaussian (with σ = 1), a module of `qkv.nn.scores.build_score`, or a
    function (query, key) -> scores (..., T, S). `select` turns scores into weights: softmax, hard and
    gumbel (which draw one key), top-k, sparsemax, entmax15, a module of
    `qkv.nn.selections.build_selection`, or a function (scores, mask, query) -> weights (..., T, S).
    `mask` is true where a query may attend, and broadcasts to (..., T, S). The weights themselves are the
    mix of unit vectors: `attention(query, key, torch.eye(S))`."""
    check_function("score", score, Score, Selection)
    check_function("select", select, Selection, Score)
    shape = check_shapes(query, key, value, mask)
    score = find_score(score, query, key)
    select = find_selection(select, query)
    with explain_mismatch("score", score, query, key):
        scores = compute_scores(score, query, key)
        check_result("score", score, scores, shape, query.dtype)
    with explain_mismatch("select", select, query, key):
        weights = select(scores, mask, query)
        check_result("select", select, weights, shape, query.dtype)
    return weights @ value


def find_score(
    score: str | Score | ScoreFunction, query: Tensor, key: Tensor
) -> Score | ScoreFunction:
    """Return the module or function of a score."""
    if not isinstance(score, str):
        return score
    settings = FIXED_SETTINGS.get(score, {})
    module = build_score(score, query_width=query.shape[-1], key_width=key.shape[-1], **settings)
    call = f"score=qkv.nn.scores.build_score({score!r}, query_width=..., key_width=...)"
    check_parameter_free("score", score, module, call)
    return module


def find_selection(
    select: str | Selection | SelectFunction, query: Tensor
) -> Selection | SelectFunction:
    """Return the module or function of a selection."""
    if not isinstance(select, str):
        return select
    module = build_selection(select, query_width=query.shape[-1])
    call = f"select=qkv.nn.selections.build_selection({select!r}, query_width=...)"
    check_parameter_free("selection", select, module, call)
    return module


def compute_scores(score: Score | ScoreFunction, query: Tensor, key: Tensor) -> Tensor:
    """Return the scores by a module or a function."""
    if isinstance(score, Score):
        scores: Tensor = score(query, score.prepare_keys(key))
        return scores
    return score(query, key)


@contextmanager
def explain_mismatch(argument: str, function: object, query: Tensor, key: Tensor) -> Iterator[None]:
    """Raise ValueError where torch says that a module of qkv does not fit the tensors."""
    try:
        yield
    except RuntimeError as error:
        if not is_built_in(function) or is_memory_error(error):
            raise
        assert isinstance(function, nn.Module)
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in function.named_parameters())
        cause = str(error).partition("\n")[0]
        raise ValueError(
            f"{argument} is {type(function).__name__} with {shapes or 'no parameters'}: it does not fit "
            f"query {tuple(query.shape)} and key {tuple(key.shape)} ({cause}); build it for query_width "
            f"{query.shape[-1]}, key_width {key.shape[-1]} and heads that broadcast with the tensors"
        ) from None


def is_built_in(function: object) -> bool:
    """Return whether a score or selection is a module of qkv itself, not of a subclass of it."""
    return type(function) in (*SCORES.values(), *SELECTIONS.values())


def check_function(argument: str, function: object, cls: type, other_cls: type) -> None:
    """Raise ValueError unless an argument is a name, a module or a function."""
    if isinstance(function, other_cls):
        other = "select" if argument == "score" else "score"
        raise ValueError(
            f"{argument} is {type(function).__name__}, a {other_cls.__name__}: pass it as {other}"
        )
    if not isinstance(function, str) and (not callable(function) or isinstance(function, type)):
        build = "build_score" if argument == "score" else "build_selection"
        raise ValueError(
            f"{argument} is {shorten_repr(function)}: expected a name, a module of "
            f"{cls.__module__}.{build}, or a function"
        )


def check_parameter_free(kind: str, name: str, module: nn.Module, call: str) -> None:
    """Raise ValueError for a name whose module would have new, random parameters in every call."""
    if next(module.parameters(), None) is not None:
        raise ValueError(f"attention {kind} {name!r} has parameters: pass a module, {call}")


def check_shapes(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[int, ...]:
    """Return the shape (..., T, S) of the scores; raise ValueError for tensors that do not fit."""
    for name, x in {"query": query, "key": key, "value": value}.items():
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() < 2:
            raise ValueError(
                f"{name} is {describe_tensor(x)}: expected floats of shape (..., length, width)"
            )
        if name != "value" and not x.shape[-1]:
            raise ValueError(f"{name} is {describe_tensor(x)}: expected a width of 1 or more")
        if x.dtype != query.dtype:
            raise ValueError(f"{name} is {x.dtype}, but query is {query.dtype}: expected one dtype")
    if mask is not None and (not isinstance(mask, Tensor) or mask.dtype != torch.bool):
        kind = mask.dtype if isinstance(mask, Tensor) else describe_tensor(mask)
        raise ValueError(
            f"mask is {kind}: expected a tensor of torch.bool, true where a query may attend"
        )
    if key.shape[-2] != value.shape[-2] or not key.shape[-2]:
        raise ValueError(
            f"{key.shape[-2]} keys and {value.shape[-2]} values: expected a value for each key, and at "
            "least one key"
        )
    try:
        batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
        shape = (*batch, query.shape[-2], key.shape[-2])
        if mask is not None:
            torch.broadcast_to(mask, shape)
    except RuntimeError:
        shapes = {"query": query, "key": key, "value": value} | (
            {} if mask is None else {"mask": mask}
        )
        described = ", ".join(f"{name} {tuple(x.shape)}" for name, x in shapes.items())
        raise ValueError(
            f"{described}: expected (..., T, D), (..., S, D), (..., S, Dv) and a mask that broadcasts "
            "to (..., T, S)"
        ) from None
    return shape


def check_result(
    argument: str, function: object, result: object, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Raise ValueError unless a function of the user returned finite numbers (..., T, S); RuntimeError
    unless the result of a module of qkv has a shape that broadcasts to it."""
    if is_built_in(function):
        assert isinstance(result, Tensor)
        torch.broadcast_shapes(result.shape, shape)
        return
    if (
        not isinstance(result, Tensor)
        or not (result.dtype == dtype or is_autocast(result))
        or not fits(result.shape, shape)
    ):
        problem = describe_tensor(result)
    elif not result.isfinite().all():
        problem = "NaN or infinite values"
    else:
        return
    name = getattr(function, "__name__", type(function).__name__)
    raise ValueError(
        f"the {argument} function {name} returned {problem}: expected finite numbers of shape {shape} "
        f"and {dtype}; `mask` excludes keys"
    )


def is_autocast(result: Tensor) -> bool:
    """Return whether a tensor of floats may have the dtype of autocast."""
    return result.is_floating_point() and torch.is_autocast_enabled(result.device.type)


def fits(actual: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Return whether scores have the shape (..., T, S); only dimensions before T may broadcast."""
    if len(actual) > len(shape) or actual[-2:] != shape[-2:]:
        return False
    return all(
        n in (1, size) for n, size in zip(reversed(actual[:-2]), reversed(shape[:-2]), strict=False)
    )


def describe_tensor(x: object) -> str:
    if not isinstance(x, Tensor):
        return f"a {type(x).__name__}"
    return f"a tensor of shape {tuple(x.shape)} and {x.dtype}"
