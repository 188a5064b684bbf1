"""Parity with `generate` of transformers: greedy and beam search with every logits processor.

Settings go through read_generation_config. Where transformers counts padding as tokens (for a penalty
or a length), all prompts of a batch have the same length."""

from __future__ import annotations

import random
from typing import Any

import pytest

from qkv.decode.config_file import read_generation_config
from qkv.decode.generation import generate
from tests.support import decode_oracle as oracle
from tests.support.decode_oracle import BOS, ENCODER_DECODERS, EOS, KINDS, NO_PADDING, PAD, VOCAB

GREEDY: dict[str, Any] = dict(max_new_tokens=9)
BEAMS: dict[str, Any] = dict(max_new_tokens=9, num_beams=3)
BEST: dict[str, Any] = dict(max_new_tokens=9, num_beams=4, num_return_sequences=3)
# "same_length" is not a setting: the prompts of a batch must have the same length.
SETTINGS: list[dict[str, Any]] = [
    GREEDY, BEAMS, BEST,
    BEST | dict(early_stopping=True), BEST | dict(early_stopping="never"),
    BEST | dict(length_penalty=2.0), BEST | dict(length_penalty=0.0, early_stopping="never"),
    BEST | dict(length_penalty=-1.0, early_stopping=True), BEAMS | dict(eos_token_id=[EOS, 7, 9]),
    GREEDY | dict(repetition_penalty=1.7, same_length=True),
    BEAMS | dict(repetition_penalty=0.6, same_length=True),
    GREEDY | dict(no_repeat_ngram_size=1, same_length=True),
    BEAMS | dict(no_repeat_ngram_size=2, same_length=True),
    GREEDY | dict(encoder_repetition_penalty=1.5, same_length=True),
    BEAMS | dict(encoder_no_repeat_ngram_size=2, same_length=True),
    GREEDY | dict(encoder_no_repeat_ngram_size=1, encoder_repetition_penalty=0.5, same_length=True),
    GREEDY | dict(bad_words_ids=[[5], [6, 7], [8, 9, 10], [EOS]]),
    BEAMS | dict(bad_words_ids=[[i, j] for i in range(4, 9) for j in range(4, 23)] + [[11], [12]]),
    dict(max_length=14, min_length=11, num_beams=2, same_length=True), GREEDY | dict(min_new_tokens=6),
    BEAMS | dict(min_new_tokens=9), dict(max_length=12, same_length=True),
    GREEDY | dict(forced_bos_token_id=6, same_length=True),
    BEAMS | dict(forced_bos_token_id=6, same_length=True),
    GREEDY | dict(forced_eos_token_id=[EOS, 8]), BEST | dict(forced_eos_token_id=EOS),
    GREEDY | dict(exponential_decay_length_penalty=(2, 1.6)),
    BEAMS | dict(exponential_decay_length_penalty=(1, 1.2)),
    GREEDY | dict(remove_invalid_values=True, exponential_decay_length_penalty=(1, 1.7), min_new_tokens=6),
    BEAMS | dict(remove_invalid_values=True, exponential_decay_length_penalty=(1, 1.2), min_new_tokens=3),
    GREEDY | dict(suppress_tokens=[4, 5, 6, 7, 8, 9, 10]),
    BEAMS | dict(suppress_tokens=[11, 12, 13]),
    GREEDY | dict(begin_suppress_tokens=[*range(4, 20)]),
    BEAMS | dict(begin_suppress_tokens=[*range(10, 23)], forced_bos_token_id=7, same_length=True),
    GREEDY | dict(sequence_bias=[[[5], 3.0], [[6, 5], -9.0], [[5, 5], -4.0], [[EOS], 1.0]]),
    BEAMS | dict(sequence_bias=[[[9], 2.0], [[9, 9], -8.0], [[10, 11], 5.0]]),
    BEAMS | dict(renormalize_logits=True, suppress_tokens=[6, 7]), GREEDY | dict(remove_invalid_values=True),
    BEST | dict(
        repetition_penalty=1.3, no_repeat_ngram_size=3, bad_words_ids=[[4, 5], [6]], min_new_tokens=3,
        renormalize_logits=True, exponential_decay_length_penalty=(2, 1.1), suppress_tokens=[12],
        same_length=True,
    ),
]  # fmt: skip


def compare(
    kind: str, settings: dict[str, Any], seed: int, use_allowed_tokens: bool = False
) -> str | None:
    """Return a description of the difference, or None if the token ids are equal."""
    pair = oracle.randomize_pair(kind, seed)
    rng = random.Random(seed)
    settings = dict(settings)
    same_length = settings.pop("same_length", False) or kind in NO_PADDING
    lengths = [rng.randint(1, 8) for _ in range(3)]
    lengths = lengths[:1] * 3 if same_length else lengths
    prompts = [[rng.randrange(4, VOCAB) for _ in range(length)] for length in lengths]
    prompt_length = 1 if kind in ENCODER_DECODERS else max(lengths)
    if "max_length" in settings and kind not in ENCODER_DECODERS:
        settings["max_length"] += prompt_length - 1
    arguments = dict(settings)
    if use_allowed_tokens:
        arguments["prefix_allowed_tokens_fn"] = lambda row, ids: get_allowed_tokens(
            ids[prompt_length:].tolist()
        )
    rows = oracle.generate(pair.reference, prompts, **arguments)
    expected = oracle.get_new_token_ids(rows, prompt_length, settings)
    config = read_generation_config(oracle.SPECIAL_TOKENS | settings)
    inputs: dict[str, Any] = (
        {"sources": prompts} if kind in ENCODER_DECODERS else {"prompts": prompts}
    )
    results = generate(
        pair.net,
        **inputs,
        generation_config=config,
        prefix_allowed_tokens_fn=get_allowed_tokens if use_allowed_tokens else None,
    )
    token_ids = [result.token_ids for row in results for result in row]
    if token_ids == expected:
        return None
    return f"{kind} {seed} {settings} {prompts}:\n  qkv          {token_ids}\n  transformers {expected}"


def get_allowed_tokens(token_ids: list[int]) -> list[int]:
    """Return pseudo-random tokens; some are EOS only, and some are all banned by other processors."""
    count = 1 + sum(token_ids) % 4
    start = 7 * len(token_ids) + 5 * sum(token_ids[-2:])
    return sorted({(start + i * i) % VOCAB for i in range(count)})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "settings", [GREEDY, BEAMS, BEAMS | dict(bad_words_ids=[[i] for i in range(4, 15)])]
)
def test_prefix_allowed_tokens_fn(kind: str, settings: dict[str, Any]) -> None:
    start = 50_000 + 10 * [*KINDS].index(kind)
    differences = [compare(kind, settings, start + n, use_allowed_tokens=True) for n in range(2)]
    assert not any(differences), "\n".join(filter(None, differences))


@pytest.mark.parametrize("kind", KINDS)
def test_token_ids(kind: str) -> None:
    start = 1000 * [*KINDS].index(kind)
    differences = [compare(kind, settings, start + n) for n, settings in enumerate(SETTINGS)]
    assert not any(differences), "\n".join(filter(None, differences))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_more_token_ids(kind: str) -> None:
    start = 100_000 * (1 + [*KINDS].index(kind))
    differences = [compare(kind, settings, start + n) for n, settings in enumerate(SETTINGS * 20)]
    assert not any(differences), "\n".join(filter(None, differences))


def test_there_are_over_a_thousand_comparisons() -> None:
    assert len(KINDS) * len(SETTINGS) * 3 > 1_000
    assert {BOS, EOS, PAD} < {*range(4)}
