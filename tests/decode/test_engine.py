"""The engine: a request gives the same results alone and in a batch, for every method and family.

They do not depend on when requests join, on streaming, or on static shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.batch import Batch, Inputs
from qkv.decode import segment_runner
from qkv.decode.config import GenerationConfig
from qkv.decode.engine import Engine
from qkv.decode.generation import generate, stream_generate
from qkv.decode.request import Result
from qkv.decode.runner import ModelRunner
from qkv.nn.network import Network
from tests.support import tiny

EOS = (9, 17, 22, 30, 37, 41)
GREEDY = GenerationConfig(
    max_new_tokens=9, eos_token_id=EOS, decoder_start_token_id=3, pad_token_id=0
)
METHODS: dict[str, GenerationConfig] = {
    "greedy": GREEDY,
    "processors": replace(
        GREEDY,
        repetition_penalty=1.4,
        no_repeat_ngram_size=2,
        encoder_no_repeat_ngram_size=2,
        min_new_tokens=4,
    ),
    "sampling": replace(
        GREEDY, do_sample=True, temperature=1.5, top_k=30, top_p=0.95, num_return_sequences=2
    ),
    "beams": replace(GREEDY, num_beams=3, num_return_sequences=2),
    "beam sampling": replace(GREEDY, num_beams=2, do_sample=True, temperature=1.3),
    "beam groups": replace(
        GREEDY, num_beams=4, num_beam_groups=2, diversity_penalty=0.7, num_return_sequences=3
    ),
    "forced words": replace(GREEDY, num_beams=3, force_words_ids=(((11, 12),), ((13,), (14, 15)))),
    "contrastive": replace(GREEDY, penalty_alpha=0.6, top_k=4),
}
RECURRENT = ("transformer-xl", "transformer-xl-same", "transformer-xl-none", "xlnet-uni")
NETWORKS = ["gpt2", "llama", "sparse-fixed-heads", "transformer-xl", "xlnet-uni", "t5", "bart"]
NETWORKS += tiny.RECURRENT_DECODERS
# A recurrent model has no cache that contrastive search could truncate.
NOT_CONTRASTIVE = (*RECURRENT, *tiny.RECURRENT_DECODERS)
PAIRS = [
    (name, method)
    for name in NETWORKS
    for method in METHODS
    if not (method == "contrastive" and name in NOT_CONTRASTIVE)
]


def build_net(name: str, **changes: Any) -> Network:
    family, arguments = tiny.CAUSAL.get(name, (name, {}))  # not there: a family that reads images
    net = tiny.build(family, **(arguments | changes)).net
    assert isinstance(net, Network)
    return net


def build_requests(name: str, count: int) -> list[dict[str, Any]]:
    """Return prompts, or sources, of several lengths; the source of a caption is encoder states."""
    lengths = [5, 2, 7, 1, 4, 3][:count]
    if name in tiny.CAPTION_FAMILIES:
        generator = torch.Generator().manual_seed(50)
        return [
            {"source": torch.randn(n, tiny.WIDTH, dtype=torch.float64, generator=generator)}
            for n in lengths
        ]
    rows = [tiny.random_ids(length, seed=50 + i).tolist() for i, length in enumerate(lengths)]
    is_encoder_decoder = tiny.CAUSAL[name][0] in tiny.ENCODER_DECODERS
    return [{"source": row} if is_encoder_decoder else {"prompt": row} for row in rows]


def generate_alone(
    net: Network, config: GenerationConfig, request: dict[str, Any], seed: int
) -> list[Result]:
    prompts, sources = ([request[key]] if key in request else None for key in ("prompt", "source"))
    (results,) = generate(net, prompts, sources=sources, generation_config=config, seed=seed)
    return results


def take_step(engine: Engine) -> dict[int, list[Result]]:
    """Return the results of the requests that a step finishes, by request id."""
    return {
        output.request_id: output.results for output in engine.step() if output.results is not None
    }


def run_to_end(engine: Engine) -> dict[int, list[Result]]:
    """Return the results of all requests by request id."""
    results: dict[int, list[Result]] = {}
    while engine.has_unfinished_requests:
        results |= take_step(engine)
    return results


def assert_same_results(results: list[Result], expected: list[Result]) -> None:
    assert [result.token_ids for result in results] == [result.token_ids for result in expected]
    for result, other in zip(results, expected, strict=True):
        assert result.finish_reason == other.finish_reason
        assert result.score == pytest.approx(other.score, abs=1e-4)
        assert result.log_probs == pytest.approx(other.log_probs, abs=1e-4)


@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_batched_results_equal_single_results(name: str, method: str) -> None:
    net = build_net(name)
    config = METHODS[method]
    requests = build_requests(name, 4)
    engine = Engine(net)
    request_ids = [
        engine.add_request(**request, generation_config=config, seed=i)
        for i, request in enumerate(requests)
    ]
    results = run_to_end(engine)
    lengths = set()
    for i, request in enumerate(requests):
        assert_same_results(results[request_ids[i]], generate_alone(net, config, request, i))
        lengths.add(len(results[request_ids[i]][0].token_ids))
    assert not any(batch.requests for batch in engine.running_batches.values())
    if method == "sampling":
        assert len(lengths) > 1  # some requests leave before others


@pytest.mark.parametrize("name", NETWORKS)
def test_requests_of_all_methods_join_one_by_one(name: str) -> None:
    """Every step a request of another method joins the running ones."""
    net = build_net(name)
    methods = [pair[1] for pair in PAIRS if pair[0] == name]
    engine = Engine(net)
    results: dict[int, list[Result]] = {}
    added = {}
    for n, method in enumerate([*methods, *methods[::-1]]):
        request = build_requests(name, 6)[n % 6]
        request_id = engine.add_request(**request, generation_config=METHODS[method], seed=n)
        added[request_id] = (method, request, n)
        results |= take_step(engine)
    results |= run_to_end(engine)
    for request_id, (method, request, seed) in added.items():
        assert_same_results(
            results[request_id], generate_alone(net, METHODS[method], request, seed)
        )


@pytest.mark.parametrize(
    ("name", "method"), [pair for pair in PAIRS if pair[0] in ("gpt2", "xlnet-uni", "t5")]
)
def test_streamed_results_equal_complete_results(name: str, method: str) -> None:
    net = build_net(name)
    config = METHODS[method]
    (request,) = build_requests(name, 1)
    outputs = list(stream_generate(net, **request, generation_config=config, seed=3))
    expected = generate_alone(net, config, request, 3)
    assert outputs[-1].results is not None
    assert_same_results(outputs[-1].results, expected)
    assert all(output.results is None for output in outputs[:-1])
    for sample_index in range(config.num_samples):
        samples = [output for output in outputs if output.sample_index == sample_index]
        token_ids = [token_id for output in samples for token_id in output.new_token_ids]
        assert token_ids == expected[sample_index].token_ids


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "marian", "gpt3"])
@pytest.mark.parametrize("method", ["greedy", "beams", "contrastive"])
def test_static_shapes_give_the_same_results(name: str, method: str) -> None:
    net = build_net(name)
    config = METHODS[method]
    requests = build_requests(name, 4)
    engine = Engine(net, static_shapes=True)
    request_ids = [
        engine.add_request(**request, generation_config=config) for request in requests[:2]
    ]
    engine.step()
    request_ids += [
        engine.add_request(**request, generation_config=config) for request in requests[2:]
    ]
    results = run_to_end(engine)
    # These reuse the buffers.
    request_ids += [
        engine.add_request(**request, generation_config=config) for request in requests[:3]
    ]
    results |= run_to_end(engine)
    for request_id, request in zip(request_ids, [*requests, *requests[:3]], strict=True):
        assert_same_results(results[request_id], generate_alone(net, config, request, 0))


@pytest.mark.parametrize("static_shapes", [False, True])
@pytest.mark.parametrize(
    "method", ["beams", "beam groups", "forced words", "beam sampling", "contrastive"]
)
@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_gpu_code_path(
    name: str, method: str, static_shapes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are copied as a whole, and hypotheses are updated in every step."""
    monkeypatch.setattr("qkv.decode.search.beam.is_known_all_false", lambda flags: False)
    net = build_net(name)
    requests = build_requests(name, 6)
    config = replace(METHODS[method], max_new_tokens=20)
    engine = Engine(net, static_shapes=static_shapes)
    results: dict[int, list[Result]] = {}
    request_ids = []
    for i, request in enumerate(requests):
        request_ids.append(engine.add_request(**request, generation_config=config, seed=i))
        results |= take_step(engine)
        for batch in engine.running_batches.values():
            assert isinstance(batch.runner, ModelRunner)
            batch.runner.minimize_copies = False
    results |= run_to_end(engine)
    for i, request in enumerate(requests):
        assert_same_results(results[request_ids[i]], generate_alone(net, config, request, i))


def test_max_batch_size() -> None:
    net = build_net("gpt2")
    requests = build_requests("gpt2", 5)
    engine = Engine(net, max_batch_size=4)
    results: dict[int, list[Result]] = {}
    request_ids = [
        engine.add_request(**request, generation_config=METHODS["sampling"], seed=i)
        for i, request in enumerate(requests)
    ]
    # This one has more rows than max_batch_size and runs alone.
    six_beams = replace(METHODS["beams"], num_beams=6)
    request_ids.append(engine.add_request([5], generation_config=six_beams))
    max_rows = 0
    while engine.has_unfinished_requests:
        results |= take_step(engine)
        batches = engine.running_batches.values()
        max_rows = max(
            max_rows, sum(len(batch.requests) * batch.rows_per_prompt for batch in batches)
        )
    assert max_rows == 6
    for i, request in enumerate(requests):
        assert_same_results(
            results[request_ids[i]], generate_alone(net, METHODS["sampling"], request, i)
        )


def test_abort_request() -> None:
    net = build_net("gpt2")
    requests = build_requests("gpt2", 3)
    config = replace(GREEDY, eos_token_id=())
    engine = Engine(net)
    request_ids = [engine.add_request(**request, generation_config=config) for request in requests]
    engine.step()
    engine.abort_request(request_ids[1])
    waiting = engine.add_request([5], generation_config=GREEDY)
    engine.abort_request(waiting)
    results = run_to_end(engine)
    assert results.keys() == {request_ids[0], request_ids[2]}
    assert_same_results(results[request_ids[2]], generate_alone(net, config, requests[2], 0))


def test_long_rows_outgrow_their_buffers() -> None:
    net = build_net("llama")
    config = GenerationConfig(max_new_tokens=150)
    results = generate(net, [[5, 6, 7], [8]], generation_config=config)
    assert [len(row[0].token_ids) for row in results] == [150, 150]
    expected = results[1][0].token_ids
    input_ids = torch.tensor([[8, *expected[:-1]]])
    logits = net(Batch(encoder=Inputs.create(input_ids)))["logits"][0]
    assert logits.argmax(-1).tolist() == expected


@torch.no_grad()
def test_beams_after_a_long_prompt() -> None:
    """Beams end at once, and the buffers hold a hypothesis of the prompt and one token."""
    net = build_net("gpt2")
    prompt = tiny.random_ids(20, seed=9).tolist()
    config = replace(
        METHODS["beams"], max_new_tokens=40, eos_token_id=tuple(range(1, tiny.VOCAB, 2))
    )
    (results,) = generate(net, [prompt], generation_config=config)
    assert len(results[0].token_ids) == 1
    for result in results:
        expected = compute_log_probs(net, {"prompt": prompt}, result.token_ids)
        assert result.log_probs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    "name", ["gpt2", "llama", "t5", *tiny.CAPTION_FAMILIES, "bahdanau", "sequence-autoencoder"]
)
@torch.no_grad()
def test_scores_are_log_probabilities(name: str) -> None:
    net = build_net(name)
    (request,) = build_requests(name, 1)
    for method in ("greedy", "beams"):
        config = replace(METHODS[method], eos_token_id=())  # so that there are several steps
        result = generate_alone(net, config, request, 0)[0]
        expected = compute_log_probs(net, request, result.token_ids)
        assert result.log_probs == pytest.approx(expected, abs=1e-4)
        assert result.score == pytest.approx(sum(expected) / len(expected), abs=1e-4)


def compute_log_probs(net: Network, request: dict[str, Any], token_ids: list[int]) -> list[float]:
    """Return the log-probabilities of new tokens by one forward pass."""
    log_probs = compute_logits(net, request, token_ids).float().log_softmax(-1)
    return [float(log_probs[i, token_id]) for i, token_id in enumerate(token_ids)]


def compute_logits(net: Network, request: dict[str, Any], token_ids: list[int]) -> Tensor:
    """Return the logits (T, V) that predict new tokens."""
    if "source" in request:
        source = request["source"]
        decoder = Inputs.create(torch.tensor([[3, *token_ids[:-1]]]))
        if isinstance(source, Tensor):
            states = Inputs.create(inputs_embeds=source[None])
            return net(Batch(decoder=decoder, encoder_hidden_states=states))["logits"][0]
        encoder = Inputs.create(torch.tensor([source]))
        return net(Batch(encoder=encoder, decoder=decoder))["logits"][0]
    inputs = Inputs.create(torch.tensor([[*request["prompt"], *token_ids[:-1]]]))
    return net(Batch(encoder=inputs))["logits"][0, -len(token_ids) :]


@pytest.mark.parametrize("method", ["greedy", "beams"])
def test_stopping_criteria(method: str) -> None:
    net = build_net("gpt2")
    config = replace(METHODS[method], eos_token_id=())
    unlimited = generate(net, [[5, 6]], generation_config=config)[0][0].token_ids
    (results,) = generate(
        net,
        [[5, 6]],
        generation_config=config,
        stopping_criteria=lambda token_ids: len(token_ids) == 5,
    )
    assert all(result.finish_reason == "stop" and len(result.token_ids) == 5 for result in results)
    if method == "greedy":
        assert results[0].token_ids == unlimited[:5]


def test_encoder_decoder_continues_a_prompt() -> None:
    net = build_net("bart")
    source = [8, 9, 10]
    config = replace(GREEDY, eos_token_id=())
    complete = generate(net, sources=[source], generation_config=config)[0][0].token_ids
    shorter = replace(config, max_new_tokens=5)
    for prompt in ([3, *complete[:4]], complete[:4]):  # with and without the start token
        (results,) = generate(net, [prompt], sources=[source], generation_config=shorter)
        assert results[0].token_ids == complete[4:]


@torch.no_grad()
def test_decoder_with_given_encoder_states() -> None:
    net = build_net("gpt2-cross")
    states = [torch.randn(n, tiny.WIDTH, dtype=torch.float64) for n in (4, 6)]
    engine = Engine(net)
    for state in states:
        engine.add_request([5, 6], source=state, generation_config=METHODS["beams"])
    results = run_to_end(engine)
    for request_id, state in enumerate(states):
        single = Engine(net)
        single.add_request([5, 6], source=state, generation_config=METHODS["beams"])
        assert_same_results(results[request_id], run_to_end(single)[0])
        best = results[request_id][0]
        batch = Batch(
            encoder=Inputs.create(torch.tensor([[5, 6, *best.token_ids[:-1]]])),
            encoder_hidden_states=Inputs.create(inputs_embeds=state[None]),
        )
        log_probs = net(batch)["logits"][0].log_softmax(-1)
        expected = [float(log_probs[1 + i, token_id]) for i, token_id in enumerate(best.token_ids)]
        assert best.log_probs == pytest.approx(expected, abs=1e-4)


ERRORS: dict[str, dict[str, Any]] = {
    "prompt is empty, expected": dict(prompt=[]),
    "prompt contains 53, expected token ids from 0 to 52": dict(prompt=[4, 53]),
    "prompt contains -1, expected": dict(prompt=[-1]),
    "prompt contains True, expected": dict(prompt=[True]),
    "prompt has 70 tokens and leaves no room for new tokens: the model has 64 positions": dict(
        prompt=[5] * 70
    ),
    "prompt has 4 tokens and leaves no room for new tokens: max_length is 3": dict(
        prompt=[5] * 4, generation_config=GenerationConfig(max_length=3)
    ),
    "generation_config has the token ids [60, 99], expected ids below the vocabulary size 53": dict(
        prompt=[5],
        generation_config=GenerationConfig(suppress_tokens=(60,), bad_words_ids=((4, 99),)),
    ),
    "top_k is 54 with penalty_alpha, expected at most the vocabulary size 53": dict(
        prompt=[5], generation_config=GenerationConfig(penalty_alpha=0.5, top_k=54)
    ),
}


@pytest.mark.parametrize("message", ERRORS)
def test_invalid_requests(message: str) -> None:
    with pytest.raises(ValueError, match=r"expected|room") as caught:
        Engine(build_net("gpt2")).add_request(**ERRORS[message])
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_requests_that_a_network_cannot_process() -> None:
    bart = build_net("bart")
    with pytest.raises(ValueError, match="source is empty"):
        Engine(bart).add_request([4])
    with pytest.raises(
        ValueError,
        match=r"source: 70 tokens in a row, expected at most 64, .* positions of the encoder",
    ):
        Engine(bart).add_request(source=[4] * 70)
    with pytest.raises(ValueError, match="source contains 99, expected token ids from 0 to 52"):
        Engine(bart).add_request(source=[99])
    with pytest.raises(
        ValueError, match="returned a mask of 3 values, expected one for each of the 53 token ids"
    ):
        generate(
            build_net("gpt2"),
            [[4]],
            prefix_allowed_tokens_fn=lambda token_ids: torch.ones(3, dtype=torch.bool),
        )
    with pytest.raises(ValueError, match="set decoder_start_token_id"):
        Engine(build_net("t5")).add_request(source=[4])
    with pytest.raises(ValueError, match="penalty_alpha needs a cache that can be truncated"):
        Engine(build_net("xlnet-uni")).add_request([4], generation_config=METHODS["contrastive"])
    with pytest.raises(ValueError, match="penalty_alpha needs a cache that can be truncated"):
        Engine(build_net("luong")).add_request(source=[4], generation_config=METHODS["contrastive"])
    with pytest.raises(
        ValueError, match=r"assistant_model has another architecture.*no recurrence"
    ):
        Engine(build_net("t5"), assistant_model=build_net("luong"))
    with pytest.raises(ValueError, match=r"call net\.eval"):
        Engine(build_net("gpt2").train())


def test_row_without_allowed_tokens_is_finished() -> None:
    net = build_net("gpt2")
    all_token_ids = tuple(range(tiny.VOCAB))
    for config in (
        GenerationConfig(suppress_tokens=all_token_ids),
        GenerationConfig(suppress_tokens=all_token_ids, do_sample=True),
        GenerationConfig(penalty_alpha=0.5, top_k=3, suppress_tokens=all_token_ids),
    ):
        (results,) = generate(net, [[5]], generation_config=config)
        assert results == [Result([], 0.0, [], "nothing")]
    beams = GenerationConfig(suppress_tokens=all_token_ids, num_beams=2)
    assert generate(net, [[5]], generation_config=beams) == [[]]
    (results,) = generate(
        net,
        [[5]],
        generation_config=GenerationConfig(),
        prefix_allowed_tokens_fn=lambda token_ids: [7] if len(token_ids) < 3 else [],
    )
    assert results[0].token_ids == [7, 7, 7]
    assert results[0].finish_reason == "nothing"


@pytest.mark.parametrize("name", RECURRENT)
@torch.no_grad()
def test_long_prompt_is_processed_in_segments(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = build_net(name, **({"mem_len": None} if name == "xlnet-uni" else {}))
    prompts = tiny.random_ids(1, 11, seed=4)
    expected = generate(net, prompts.tolist(), generation_config=GREEDY)[0][0]
    monkeypatch.setattr(segment_runner, "MAX_PREFILL_TOKENS", 8)
    monkeypatch.setattr(segment_runner, "SEGMENT_LENGTH", 4)
    result = generate(net, prompts.tolist(), generation_config=GREEDY)[0][0]
    recurrence = net.last_stack.spec.recurrence
    assert recurrence is not None
    if (
        not recurrence.memory_length
    ):  # all states are kept, or none and all tokens are processed again
        assert result.token_ids == expected.token_ids
        assert result.log_probs == pytest.approx(expected.log_probs, rel=1e-4)
        return
    mems = None
    for segment in prompts.split(4, dim=1):
        output = net(Batch(encoder=Inputs.create(segment), mems=mems))
        mems = output["mems"]
    prefill = segment_runner.SegmentRunner(net).prefill(prompts.tolist(), [None])
    torch.testing.assert_close(prefill.logits, output["logits"][:, -1], rtol=1e-5, atol=1e-5)


def test_stopping_criteria_of_each_prompt() -> None:
    net = build_net("gpt2")
    config = replace(GREEDY, eos_token_id=())
    criteria = [lambda token_ids: len(token_ids) == 2, None, lambda token_ids: len(token_ids) == 4]
    results = generate(
        net, [[5, 17, 9], [14], [3, 4]], generation_config=config, stopping_criteria=criteria
    )
    assert [len(row.token_ids) for (row,) in results] == [2, 9, 4]
    assert [row.finish_reason for (row,) in results] == ["stop", "length", "stop"]


def test_generate_needs_an_idle_engine() -> None:
    engine = Engine(build_net("gpt2"))
    engine.add_request([5, 6])
    with pytest.raises(
        ValueError, match=r"^the engine has unfinished requests, expected an idle one"
    ):
        generate(engine, [[1, 2]])


def test_prompt_too_long_for_the_assistant_model() -> None:
    engine = Engine(build_net("gpt2"), assistant_model=build_net("gpt2", max_positions=8))
    with pytest.raises(
        ValueError,
        match=r"^prompt: 9 tokens in a row, expected at most 8, .* positions of assistant_model",
    ):
        engine.add_request([5] * 9)


def test_contrastive_search_respects_suppressed_tokens() -> None:
    net = build_net("gpt2")
    vocab_size = net.last_stack.spec.embedding.vocab_size
    config = GenerationConfig(
        max_new_tokens=6,
        penalty_alpha=0.99,
        top_k=4,
        suppress_tokens=tuple(i for i in range(vocab_size) if i != 3),
    )
    assert generate_alone(net, config, {"prompt": [5, 6]}, 0)[0].token_ids == [3] * 6
