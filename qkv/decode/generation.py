"""generate: the results of many prompts, and the outputs of one prompt step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import zip_longest

from qkv.decode.config import GenerationConfig
from qkv.decode.engine import Engine
from qkv.decode.logits.processors import PrefixAllowedTokensFn
from qkv.decode.request import RequestOutput, Result, StoppingCriteria
from qkv.decode.request_checks import Source
from qkv.nn.network import Network


def generate(
    net: Network | Engine,
    prompts: Sequence[Sequence[int]] | None = None,
    *,
    sources: Sequence[Source] | None = None,
    generation_config: GenerationConfig | None = None,
    seed: int = 0,
    prefix_allowed_tokens_fn: PrefixAllowedTokensFn | None = None,
    stopping_criteria: StoppingCriteria | Sequence[StoppingCriteria | None] | None = None,
    assistant_model: Network | None = None,
    batch_size: int | None = None,
    return_exceptions: bool = False,
) -> list[list[Result]]:
    """Return the results of every prompt (decoder) or source (encoder-decoder), in their order.

    `batch_size` prompts of similar length are processed at a time; None: all. Prompt i is sampled
    with `seed` + i. `stopping_criteria` is one function for all prompts, or one per prompt. An idle
    engine may be passed instead of a network and can be reused. The first prompt that fails ends all
    of them, and its error is raised; with `return_exceptions`, the others go on, and its result has
    the finish reason "error" and its `error`. The other arguments are those of `Engine.add_request`."""
    engine = net if isinstance(net, Engine) else Engine(net, assistant_model=assistant_model)
    if engine.has_unfinished_requests:
        raise ValueError(
            "the engine has unfinished requests, expected an idle one: their results would be lost"
        )
    rows = [*zip_longest(prompts or [], sources or [])]
    order = sorted(
        range(len(rows)), key=lambda i: sum(len(ids) for ids in rows[i] if ids is not None)
    )
    if stopping_criteria is None or callable(stopping_criteria):
        row_criteria = [stopping_criteria] * len(rows)
    else:
        row_criteria = [*stopping_criteria]
    size = batch_size or max(len(rows), 1)
    results: dict[int, list[Result]] = {}
    for start in range(0, len(order), size):
        indices = order[start : start + size]
        calls = [
            partial(
                engine.add_request,
                rows[i][0] or (),
                source=rows[i][1],
                generation_config=generation_config,
                seed=seed + i,
                prefix_allowed_tokens_fn=prefix_allowed_tokens_fn,
                stopping_criteria=row_criteria[i],
            )
            for i in indices
        ]
        results |= zip(indices, run_requests(engine, calls, return_exceptions), strict=True)
    return [results[i] for i in range(len(rows))]


def run_requests(
    engine: Engine, add_calls: Sequence[Callable[[], int]], return_exceptions: bool = False
) -> list[list[Result]]:
    """Add requests by these calls, and return the results of each; an aborted request has none.

    The first error ends all of them and is raised, unless `return_exceptions`."""
    results: list[list[Result]] = [[] for _ in add_calls]
    index_by_id: dict[int, int] = {}
    try:
        for i, add_request in enumerate(add_calls):
            try:
                index_by_id[add_request()] = i
            except Exception as error:
                if not return_exceptions:
                    raise
                results[i] = [Result([], 0.0, [], "error", error)]
        while engine.has_unfinished_requests:
            for output in engine.step():
                ended = output.results if return_exceptions else output.get_results()
                if ended is not None:
                    results[index_by_id[output.request_id]] = ended
    finally:
        for request_id in index_by_id:
            engine.abort_request(request_id)
    return results


def stream_generate(
    net: Network,
    prompt: Sequence[int] = (),
    *,
    source: Source | None = None,
    generation_config: GenerationConfig | None = None,
    seed: int = 0,
    assistant_model: Network | None = None,
) -> Iterator[RequestOutput]:
    """Yield the outputs of one prompt step by step; the last one has the results.

    If the request fails, its error is raised after the outputs before."""
    engine = Engine(net, assistant_model=assistant_model)
    engine.add_request(prompt, source=source, generation_config=generation_config, seed=seed)
    while engine.has_unfinished_requests:
        for output in engine.step():
            output.get_results()
            yield output
