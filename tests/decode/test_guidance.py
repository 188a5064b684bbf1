"""Classifier-free guidance: parity with `generate` of transformers, rows of a batch, errors."""

from __future__ import annotations

import random
from functools import partial

import pytest
import torch

from qkv.decode import Engine, GenerationConfig, generate
from qkv.decode.generation import run_requests
from tests.support import decode_oracle as oracle
from tests.support.decode_oracle import VOCAB
from tests.support.errors import assert_error

LENGTH = 12
PLAIN = GenerationConfig(max_new_tokens=LENGTH)
GUIDED = GenerationConfig(max_new_tokens=LENGTH, guidance_scale=2.5)
Prompt = list[int]


def generate_guided(
    engine: Engine, pairs: list[tuple[Prompt, Prompt | None]], config: GenerationConfig = GUIDED
) -> list[list[Prompt]]:
    """Return the new tokens of prompts with their negative prompts."""
    calls = [
        partial(
            engine.add_request,
            prompt,
            generation_config=config,
            negative_prompt_ids=negative,
            seed=3,
        )
        for prompt, negative in pairs
    ]
    return [[result.token_ids for result in results] for results in run_requests(engine, calls)]


def sample_pairs(seed: int, count: int) -> list[tuple[Prompt, Prompt | None]]:
    """Return prompts of 3 to 6 tokens, with and without a shorter negative prompt."""
    rng = random.Random(seed)
    prompts = [[rng.randrange(4, VOCAB) for _ in range(rng.randint(3, 6))] for _ in range(count)]
    negatives = [[rng.randrange(4, VOCAB) for _ in range(rng.randint(1, 3))] for _ in range(count)]
    return [
        (a, b if i % 2 else None) for i, (a, b) in enumerate(zip(prompts, negatives, strict=True))
    ]


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_greedy_search_equals_that_of_transformers(kind: str) -> None:
    num_changed = 0
    for seed in range(3):
        pair = oracle.randomize_pair(kind, seed)
        for prompt, negative in sample_pairs(seed, 4):
            settings = {} if negative is None else {"negative_prompt_ids": torch.tensor([negative])}
            rows = oracle.generate(
                pair.reference, [prompt], max_new_tokens=LENGTH, guidance_scale=2.5,
                eos_token_id=None, **settings,
            )  # fmt: skip
            ((token_ids,),) = generate_guided(Engine(pair.net), [(prompt, negative)])
            assert token_ids == rows[0, len(prompt) :].tolist()
            num_changed += (
                token_ids != generate(pair.net, [prompt], generation_config=PLAIN)[0][0].token_ids
            )
    assert num_changed > 6


@pytest.mark.parametrize("static_shapes", [False, True])
def test_a_result_does_not_depend_on_its_batch(static_shapes: bool) -> None:
    net = oracle.randomize_pair("gpt2", 5).net
    sampled = GenerationConfig(
        max_new_tokens=LENGTH, guidance_scale=1.7, do_sample=True, num_return_sequences=3
    )
    pairs = sample_pairs(8, 5)
    for config in (GUIDED, sampled):
        together = generate_guided(Engine(net, static_shapes=static_shapes), pairs, config)
        alone = [generate_guided(Engine(net), [pair], config)[0] for pair in pairs]
        assert together == alone


def test_requests_with_and_without_guidance_share_an_engine() -> None:
    net = oracle.randomize_pair("gpt2", 6).net
    engine = Engine(net)
    calls = [
        partial(engine.add_request, [5, 6, 7], generation_config=config)
        for config in (PLAIN, GUIDED, GenerationConfig(max_new_tokens=4, guidance_scale=1.2))
    ]
    results = [rows[0].token_ids for rows in run_requests(engine, calls)]
    assert results[0] == generate(net, [[5, 6, 7]], generation_config=PLAIN)[0][0].token_ids
    assert results[1] == generate_guided(Engine(net), [([5, 6, 7], None)])[0][0]
    assert results[0] != results[1]
    assert len(results[2]) == 4


def test_a_row_ends_with_the_positions_of_the_network() -> None:
    net = oracle.randomize_pair("gpt2", 7).net
    config = GenerationConfig(max_new_tokens=100, guidance_scale=2.0)
    ((token_ids,),) = generate_guided(Engine(net), [([5, 6, 7], None)], config)
    assert len(token_ids) == 48 - 3


def test_errors() -> None:
    engine = Engine(oracle.randomize_pair("gpt2", 8).net)
    add = partial(engine.add_request, [5, 6])
    assert_error(
        lambda: add(generation_config=GUIDED, negative_prompt_ids=[]),
        "negative_prompt_ids has 0 token ids, expected 1 to 2",
    )
    assert_error(
        lambda: add(generation_config=GUIDED, negative_prompt_ids=[5, 6, 7]), "has 3 token ids"
    )
    assert_error(
        lambda: add(generation_config=GUIDED, negative_prompt_ids=[VOCAB]),
        f"negative_prompt_ids contains {VOCAB}, expected token ids",
    )
    assert_error(
        lambda: add(generation_config=PLAIN, negative_prompt_ids=[5]),
        "negative_prompt_ids has no effect without guidance_scale",
    )
    seq2seq = Engine(oracle.randomize_pair("bart", 8).net)
    assert_error(
        lambda: seq2seq.add_request(source=[5], generation_config=GUIDED),
        "guidance_scale is 2.5, expected 1 for an encoder-decoder",
    )
