"""Search methods against short reference implementations: exhaustive search, diverse beam search,
contrastive search, forced words, and speculative decoding against decoding without a draft."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.batch import Batch, Inputs
from qkv.decode.config import GenerationConfig
from qkv.decode.engine import Engine
from qkv.decode.generation import generate
from qkv.decode.logits.forced_words import ForcedWordsState
from qkv.decode.request import BeamCandidate
from qkv.nn.network import Network
from tests.decode.test_sampling import chi_square
from tests.support import tiny

VOCAB_SIZE = 8
EOS = 1


def build_net(family: str, seed: int, **changes: Any) -> Network:
    model = tiny.build(family, **(dict(vocab_size=VOCAB_SIZE) | changes))
    tiny.randomize_parameters(model.net, str(seed))
    assert isinstance(model.net, Network)
    return model.net.eval()


@torch.no_grad()
def compute_log_probs(net: Network, source: list[int], token_ids: list[int]) -> Tensor:
    """Return the log-probabilities (T, V) of the next token after each token, by one forward pass."""
    return compute_outputs(net, source, token_ids)["logits"][0].float().log_softmax(-1)


def compute_outputs(net: Network, source: list[int], token_ids: list[int]) -> dict[str, Tensor]:
    if net.encoder is None:
        return net(Batch(encoder=Inputs.create(torch.tensor([[*source, *token_ids]]))))
    encoder = Inputs.create(torch.tensor([source]))
    decoder = Inputs.create(torch.tensor([[0, *token_ids]]))
    return net(Batch(encoder=encoder, decoder=decoder))


def search_exhaustively(
    net: Network, source: list[int], max_length: int, is_valid: Callable[[list[int]], bool]
) -> list[int]:
    """Return the valid sequence of highest mean log-probability, finished or of maximum length."""
    best: list[int] = []
    best_score = -float("inf")
    for length in range(1, max_length + 1):
        for prefix in itertools.product([2, 3, 4, 5], repeat=length - 1):
            for last in [EOS] if length < max_length else [EOS, 2, 3, 4, 5]:
                token_ids = [*prefix, last]
                if not is_valid(token_ids):
                    continue
                log_probs = compute_log_probs(net, source, token_ids[:-1])
                score = (
                    sum(float(log_probs[i, token_id]) for i, token_id in enumerate(token_ids))
                    / length
                )
                if score > best_score:
                    best = token_ids
                    best_score = score
    return best


def contains_any(token_ids: list[int], phrases: tuple[tuple[int, ...], ...]) -> bool:
    return any(
        tuple(token_ids[i : i + len(phrase)]) == phrase
        for phrase in phrases
        for i in range(len(token_ids))
    )


@pytest.mark.parametrize("seed", range(2))
def test_wide_beam_equals_exhaustive_search(seed: int) -> None:
    net = build_net("transformer", seed)
    source = [2, 5, 3, 1]
    config = GenerationConfig(
        num_beams=256,
        max_new_tokens=4,
        decoder_start_token_id=0,
        eos_token_id=(EOS,),
        suppress_tokens=(0, 6, 7),
    )
    (results,) = generate(net, sources=[source], generation_config=config)
    assert results[0].token_ids == search_exhaustively(net, source, 4, lambda token_ids: True)


@pytest.mark.parametrize(
    "force_words_ids", [(((4, 2),),), (((5,),), ((3,),)), (((2, 2, 2), (4,)),)], ids=str
)
def test_wide_beam_with_forced_words_equals_exhaustive_search(force_words_ids: Any) -> None:
    net = build_net("transformer", 5)
    source = [2, 5, 3, 1]
    config = GenerationConfig(
        num_beams=256,
        max_new_tokens=4,
        decoder_start_token_id=0,
        eos_token_id=(EOS,),
        suppress_tokens=(0, 6, 7),
        force_words_ids=force_words_ids,
    )
    (results,) = generate(net, sources=[source], generation_config=config)
    assert results[0].token_ids == search_exhaustively(
        net,
        source,
        4,
        lambda token_ids: all(contains_any(token_ids, phrases) for phrases in force_words_ids),
    )


@pytest.mark.parametrize("num_beams", [2, 5])
@pytest.mark.parametrize("family", ["gpt2", "bart"])
def test_forced_words_with_few_beams_and_tokens(family: str, num_beams: int) -> None:
    for seed in range(3):
        net = build_net(family, seed, vocab_size=40)
        generator = torch.Generator().manual_seed(seed)
        a, b, c, d, e = torch.randint(10, 40, (5,), generator=generator).tolist()
        force_words_ids = (((a, b),), ((c,), (d, c)), ((a, e),))
        for max_new_tokens in (5, 12):
            config = GenerationConfig(
                num_beams=num_beams,
                max_new_tokens=max_new_tokens,
                decoder_start_token_id=0,
                eos_token_id=(EOS,),
                force_words_ids=force_words_ids,
            )
            inputs: dict[str, Any] = (
                {"prompts": [[3, 4]]} if family == "gpt2" else {"sources": [[3, 4]]}
            )
            (results,) = generate(net, **inputs, generation_config=config)
            assert results
            assert all(
                contains_any(result.token_ids, phrases)
                for result in results
                for phrases in force_words_ids
            )


@pytest.mark.parametrize("family", ["gpt2", "bart"])
def test_callback_gets_the_candidates_of_every_step(family: str) -> None:
    """The results are paths through the candidates, whose scores are sums of log-probabilities."""
    net = build_net(family, seed=4)
    config = GenerationConfig(
        num_beams=3, max_new_tokens=6, eos_token_id=(EOS,), decoder_start_token_id=0
    )
    steps: list[list[BeamCandidate]] = []
    engine = Engine(net)
    request = {"prompt": [3, 2]} if net.encoder is None else {"source": [3, 2]}
    engine.add_request(**request, generation_config=config, beam_callback=steps.append)  # type: ignore[arg-type]
    (output,) = [output for _ in range(6) for output in engine.step()]
    results = output.get_results()
    assert results
    assert all(sum(row.next_beam is not None for row in step) == 3 for step in steps[1:])
    paths: dict[int, tuple[list[int], float]] = {0: ([], 0.0)}  # of each running beam
    hypotheses = {}
    for step in steps:
        new_paths = {}
        for row in step:
            token_ids, score = paths[row.beam]
            token_ids = [*token_ids, row.token_id]
            log_probs = compute_log_probs(net, [3, 2], token_ids[:-1])
            row_log_probs = log_probs[-1, row.token_id]
            assert row.score == pytest.approx(score + float(row_log_probs), abs=1e-4)
            if row.next_beam is not None:
                new_paths[row.next_beam] = token_ids, row.score
            if row.is_hypothesis:
                hypotheses[tuple(token_ids)] = row.score
        paths = new_paths
    best = results[0]
    assert hypotheses[tuple(best.token_ids)] == pytest.approx(sum(best.log_probs), abs=1e-4)
    assert any(row.next_beam is None and not row.is_hypothesis for step in steps for row in step)


def test_error_of_a_beam_callback_ends_its_request() -> None:
    def fail(candidates: list[BeamCandidate]) -> None:
        raise KeyError("callback")

    engine = Engine(build_net("gpt2", seed=4))
    config = GenerationConfig(num_beams=2, max_new_tokens=3)
    engine.add_request([3], generation_config=config, beam_callback=fail)
    other = engine.add_request([3], generation_config=config)
    outputs = [output for _ in range(4) for output in engine.step() if output.results]
    failed = next(output for output in outputs if output.request_id != other)
    with pytest.raises(KeyError, match="callback"):
        failed.get_results()
    assert next(output for output in outputs if output.request_id == other).get_results()


def test_forced_words_longer_than_max_new_tokens() -> None:
    config = GenerationConfig(
        num_beams=2, max_new_tokens=4, force_words_ids=(((4, 5, 6),), ((7, 8), (9, 10, 11)))
    )
    with pytest.raises(ValueError, match="force_words_ids needs 5 tokens, and 4 are left"):
        Engine(build_net("gpt2", 0, vocab_size=40)).add_request([3], generation_config=config)


def test_forced_words_state() -> None:
    force_words_ids = (((1, 2, 3),), ((4,), (1, 5)))
    expected = {
        (): (0, [1, 4]),
        (1,): (1, [2]),
        (1, 2): (2, [3]),
        (1, 9): (0, [4, 1]),
        (1, 2, 3, 1): (5, [5]),
    }
    for token_ids, (bank, next_token_ids) in expected.items():
        state = ForcedWordsState([*token_ids], force_words_ids)
        assert state.bank == bank
        assert sorted(state.get_next_token_ids()) == sorted(next_token_ids)
        assert not state.is_complete
    assert ForcedWordsState([9, 4, 9, 1, 2, 3, 9], force_words_ids).is_complete
    assert not ForcedWordsState([1, 5, 1, 2, 9, 3], force_words_ids).is_complete


@torch.no_grad()
def run_diverse_beam_search(
    net: Network,
    source: list[int],
    num_beams: int,
    num_groups: int,
    penalty: float,
    num_steps: int,
) -> list[list[int]]:
    """Return the beams of all groups, without EOS: Vijayakumar et al. 2016, algorithm 1."""
    group_size = num_beams // num_groups
    groups: list[list[tuple[float, list[int]]]] = [[(0.0, [])] for _ in range(num_groups)]
    for _ in range(num_steps):
        counts = torch.zeros(VOCAB_SIZE)
        for g in range(num_groups):
            candidates = [
                (score + float(value), [*token_ids, token_id])
                for score, token_ids in groups[g]
                for token_id, value in enumerate(
                    compute_log_probs(net, source, token_ids)[-1] - penalty * counts
                )
            ]
            groups[g] = sorted(candidates, key=lambda candidate: -candidate[0])[:group_size]
            for _, token_ids in groups[g]:
                counts[token_ids[-1]] += 1
    beams = sorted([beam for group in groups for beam in group], key=lambda beam: -beam[0])
    return [token_ids for _, token_ids in beams]


@pytest.mark.parametrize(("num_beams", "num_groups"), [(2, 2), (6, 3), (4, 2)])
@pytest.mark.parametrize("family", ["gpt2", "transformer"])
def test_diverse_beam_search(family: str, num_beams: int, num_groups: int) -> None:
    for seed in range(2):
        net = build_net(family, seed)
        config = GenerationConfig(
            num_beams=num_beams,
            num_beam_groups=num_groups,
            diversity_penalty=0.8,
            max_new_tokens=5,
            num_return_sequences=num_beams,
            decoder_start_token_id=0,
        )
        inputs: dict[str, Any] = (
            {"prompts": [[2, 5, 3]]} if family == "gpt2" else {"sources": [[2, 5, 3]]}
        )
        (results,) = generate(net, **inputs, generation_config=config)
        expected = run_diverse_beam_search(net, [2, 5, 3], num_beams, num_groups, 0.8, 5)
        assert [result.token_ids for result in results] == expected


@torch.no_grad()
def run_contrastive_search(
    net: Network, source: list[int], alpha: float, top_k: int, num_steps: int
) -> list[int]:
    """Return new tokens by a full forward pass per candidate: Su et al. 2022, equation 5."""
    token_ids: list[int] = []
    for _ in range(num_steps):
        candidates = compute_log_probs(net, source, token_ids)[-1].exp().topk(top_k)
        scores = []
        for prob, token_id in zip(candidates.values, candidates.indices.tolist(), strict=True):
            outputs = compute_outputs(net, source, [*token_ids, token_id])
            states = outputs["last_hidden_state"][0].float()
            similarity = torch.cosine_similarity(states[-1:], states[:-1], dim=-1).max()
            scores.append(float((1 - alpha) * prob - alpha * similarity))
        token_ids.append(candidates.indices.tolist()[max(range(top_k), key=lambda k: scores[k])])
    return token_ids


@pytest.mark.parametrize("family", ["gpt2", "llama", "t5", "bart"])
def test_contrastive_search(family: str) -> None:
    for seed in range(2):
        net = build_net(family, seed, vocab_size=40)
        sources = [[2, 5, 3], [4, 7, 9, 11, 2]]
        config = GenerationConfig(
            penalty_alpha=0.6, top_k=4, max_new_tokens=7, decoder_start_token_id=0
        )
        inputs: dict[str, Any] = (
            {"sources": sources} if family in tiny.ENCODER_DECODERS else {"prompts": sources}
        )
        results = generate(net, **inputs, generation_config=config)
        expected = [run_contrastive_search(net, source, 0.6, 4, 7) for source in sources]
        assert [row[0].token_ids for row in results] == expected


def build_target_and_draft(family: str) -> tuple[Network, Network, dict[str, Any]]:
    """Return a network, a draft model that often agrees with it, and inputs of several lengths."""
    net = build_net(family, 1, vocab_size=40)
    draft = build_net(family, 1, vocab_size=40)
    with torch.no_grad():
        for tensor in draft.parameters():
            tensor.add_(
                0.05 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(2))
            )
    rows = [tiny.random_ids(n, seed=n).clamp(max=39).tolist() for n in (4, 1, 6)]
    return net, draft, {"sources": rows} if family in tiny.ENCODER_DECODERS else {"prompts": rows}


def ends_with_14(new_token_ids: list[int]) -> bool:
    return new_token_ids[-1] == 14


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt3", "t5", "bart"])
def test_greedy_speculative_decoding_gives_the_same_tokens(family: str) -> None:
    net, draft, inputs = build_target_and_draft(family)
    for config in (
        GenerationConfig(max_new_tokens=20, decoder_start_token_id=0, num_assistant_tokens=4),
        GenerationConfig(
            max_new_tokens=15,
            decoder_start_token_id=0,
            eos_token_id=(9, 12, 20),
            num_assistant_tokens=3,
        ),
        GenerationConfig(
            max_new_tokens=20,
            decoder_start_token_id=0,
            repetition_penalty=1.3,
            no_repeat_ngram_size=2,
            num_assistant_tokens=1,
        ),
    ):
        criteria = ends_with_14 if config.no_repeat_ngram_size else None
        settings: dict[str, Any] = {"generation_config": config, "stopping_criteria": criteria}
        expected = generate(net, **inputs, **settings)
        results = generate(net, **inputs, **settings, assistant_model=draft)
        for (result,), (other,) in zip(results, expected, strict=True):
            assert result.token_ids == other.token_ids
            assert result.log_probs == pytest.approx(other.log_probs, abs=1e-4)
            assert result.finish_reason == other.finish_reason


def test_speculative_decoding_saves_steps() -> None:
    net, draft, inputs = build_target_and_draft("gpt2")
    config = GenerationConfig(max_new_tokens=31, num_assistant_tokens=4)
    num_steps = {}
    for name, assistant_model in {"none": None, "similar": draft, "same": net}.items():
        engine = Engine(net, assistant_model=assistant_model)
        engine.add_request(inputs["prompts"][0], generation_config=config)
        num_steps[name] = 0
        while engine.has_unfinished_requests:
            engine.step()
            num_steps[name] += 1
    assert num_steps["same"] == 7  # the prefill, then five tokens per step
    assert num_steps["same"] < num_steps["similar"] < num_steps["none"] == 31


def test_speculative_decoding_up_to_the_last_position() -> None:
    net, draft, _ = build_target_and_draft("gpt2")
    prompt = tiny.random_ids(55).clamp(max=39).tolist()
    config = GenerationConfig(max_new_tokens=20, num_assistant_tokens=6)
    (expected,) = generate(net, [prompt], generation_config=config)
    (results,) = generate(net, [prompt], generation_config=config, assistant_model=draft)
    assert expected != []
    assert results[0].token_ids == expected[0].token_ids


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_speculative_sampling_keeps_the_distribution(family: str) -> None:
    """The marginal distribution of the third token is that of the network, for any draft model."""
    net = build_net(family, 1)
    draft = build_net(family, 7)
    inputs: dict[str, Any] = {"sources": [[2, 5]]} if family == "t5" else {"prompts": [[2, 5]]}
    probs = torch.zeros(VOCAB_SIZE)
    for a, b in itertools.product(range(VOCAB_SIZE), repeat=2):
        step_probs = compute_log_probs(net, [2, 5], [a, b])[-3:].exp()
        probs += step_probs[0, a] * step_probs[1, b] * step_probs[2]
    counts = torch.zeros(VOCAB_SIZE, dtype=torch.double)
    config = GenerationConfig(
        do_sample=True,
        max_new_tokens=4,
        decoder_start_token_id=0,
        num_assistant_tokens=3,
        num_return_sequences=1000,
    )
    for seed in range(4):
        (results,) = generate(
            net, **inputs, generation_config=config, assistant_model=draft, seed=seed
        )
        third = torch.tensor([result.token_ids[2] for result in results])
        counts += torch.bincount(third, minlength=VOCAB_SIZE)
    assert chi_square(counts, probs.double()) < 4


def test_speculative_samples_do_not_depend_on_the_batch() -> None:
    net, draft, inputs = build_target_and_draft("gpt2")
    config = GenerationConfig(
        do_sample=True,
        max_new_tokens=15,
        num_assistant_tokens=3,
        temperature=1.4,
        top_p=0.9,
        eos_token_id=(9, 12),
    )
    batched = generate(net, **inputs, generation_config=config, assistant_model=draft, seed=4)
    for i, prompt in enumerate(inputs["prompts"]):
        (single,) = generate(
            net, [prompt], generation_config=config, assistant_model=draft, seed=4 + i
        )
        assert single[0].token_ids == batched[i][0].token_ids


def test_unsuitable_assistant_models() -> None:
    net = build_net("gpt2", 1)
    with pytest.raises(ValueError, match="assistant_model has a vocabulary of 40, expected 8"):
        Engine(net, assistant_model=build_net("gpt2", 1, vocab_size=40))
    with pytest.raises(ValueError, match="assistant_model has another architecture"):
        Engine(net, assistant_model=build_net("bart", 1))
    with pytest.raises(ValueError, match="assistant_model works with greedy search and sampling"):
        Engine(net, assistant_model=net).add_request(
            [3], generation_config=GenerationConfig(num_beams=2)
        )
