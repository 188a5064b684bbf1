"""The ids of transformers' `generate`: greedy, beams and every rule, on random models of all that write.

Settings go through `read_how`, so that its names are held too. Where the original counts pads (as ids that
were said, or as length), all prompts of a batch are as long as each other."""

from __future__ import annotations

import random
from typing import Any

import pytest

from qkv.decode.engine import generate
from qkv.decode.generation_config import read_how
from tests.support import decode_oracle as oracle
from tests.support.decode_oracle import END, KINDS, PAD, PADLESS, PAIRS, START, VOCAB

GREEDY: dict[str, Any] = dict(max_new_tokens=9)
BEAMS: dict[str, Any] = dict(max_new_tokens=9, num_beams=3)
BEST: dict[str, Any] = dict(max_new_tokens=9, num_beams=4, num_return_sequences=3)
# Settings under their names; "even": prompts must be as long as each other.
SETTINGS: list[dict[str, Any]] = [
    GREEDY, BEAMS, BEST,
    BEST | dict(early_stopping=True), BEST | dict(early_stopping="never"),
    BEST | dict(length_penalty=2.0), BEST | dict(length_penalty=0.0, early_stopping="never"),
    BEST | dict(length_penalty=-1.0, early_stopping=True), BEAMS | dict(eos_token_id=[END, 7, 9]),
    GREEDY | dict(repetition_penalty=1.7, even=True), BEAMS | dict(repetition_penalty=0.6, even=True),
    GREEDY | dict(no_repeat_ngram_size=1, even=True), BEAMS | dict(no_repeat_ngram_size=2, even=True),
    GREEDY | dict(encoder_repetition_penalty=1.5, even=True),
    BEAMS | dict(encoder_no_repeat_ngram_size=2, even=True),
    GREEDY | dict(encoder_no_repeat_ngram_size=1, encoder_repetition_penalty=0.5, even=True),
    GREEDY | dict(bad_words_ids=[[5], [6, 7], [8, 9, 10], [END]]),
    BEAMS | dict(bad_words_ids=[[i, j] for i in range(4, 9) for j in range(4, 23)] + [[11], [12]]),
    dict(max_length=14, min_length=11, num_beams=2, even=True), GREEDY | dict(min_new_tokens=6),
    BEAMS | dict(min_new_tokens=9), dict(max_length=12, even=True),
    GREEDY | dict(forced_bos_token_id=6, even=True), BEAMS | dict(forced_bos_token_id=6, even=True),
    GREEDY | dict(forced_eos_token_id=[END, 8]), BEST | dict(forced_eos_token_id=END),
    GREEDY | dict(exponential_decay_length_penalty=(2, 1.6)),
    BEAMS | dict(exponential_decay_length_penalty=(1, 1.2)),
    GREEDY | dict(suppress_tokens=[4, 5, 6, 7, 8, 9, 10]), BEAMS | dict(suppress_tokens=[11, 12, 13]),
    GREEDY | dict(begin_suppress_tokens=[*range(4, 20)]),
    BEAMS | dict(begin_suppress_tokens=[*range(10, 23)], forced_bos_token_id=7, even=True),
    GREEDY | dict(sequence_bias=[[[5], 3.0], [[6, 5], -9.0], [[5, 5], -4.0], [[END], 1.0]]),
    BEAMS | dict(sequence_bias=[[[9], 2.0], [[9, 9], -8.0], [[10, 11], 5.0]]),
    BEAMS | dict(renormalize_logits=True, suppress_tokens=[6, 7]), GREEDY | dict(remove_invalid_values=True),
    BEST | dict(
        repetition_penalty=1.3, no_repeat_ngram_size=3, bad_words_ids=[[4, 5], [6]], min_new_tokens=3,
        renormalize_logits=True, exponential_decay_length_penalty=(2, 1.1), suppress_tokens=[12], even=True,
    ),
]  # fmt: skip


def compare(kind: str, settings: dict[str, Any], seed: int, guided: bool = False) -> str | None:
    """What differs, in words; None: nothing."""
    both, draw = oracle.pair(kind, seed), random.Random(seed)
    settings = dict(settings)
    even = settings.pop("even", False) or kind in PADLESS
    lengths = [draw.randint(1, 8) for _ in range(3)]
    lengths = lengths[:1] * 3 if even else lengths
    prompts = [[draw.randrange(4, VOCAB) for _ in range(length)] for length in lengths]
    longest = 1 if kind in PAIRS else max(lengths)
    if "max_length" in settings and kind not in PAIRS:
        settings["max_length"] += longest - 1
    given = dict(settings)
    if guided:
        given["prefix_allowed_tokens_fn"] = lambda row, ids: few(ids[longest:].tolist())
    theirs = oracle.new_ids(oracle.generate(both.theirs, prompts, **given), longest, settings)
    how = read_how(oracle.IDS | settings)
    side: dict[str, Any] = {"sources": prompts} if kind in PAIRS else {"prompts": prompts}
    found = generate(both.ours, **side, how=how, allowed=few if guided else None)
    ours = [one.ids for row in found for one in row]
    return (
        None if ours == theirs else f"{kind} {seed} {settings} {prompts}:\n  ours   {ours}\n  theirs {theirs}"
    )


def few(ids: list[int]) -> list[int]:
    """Ids that may follow these; some ends are forced by it, and some rules leave nothing of it."""
    return sorted({(7 * len(ids) + 5 * sum(ids[-2:]) + i * i) % VOCAB for i in range(1 + sum(ids) % 4)})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", [GREEDY, BEAMS, BEAMS | dict(bad_words_ids=[[i] for i in range(4, 15)])])
def test_ids_among_those_allowed(kind: str, settings: dict[str, Any]) -> None:
    start = 50_000 + 10 * [*KINDS].index(kind)
    wrong = [compare(kind, settings, start + n, guided=True) for n in range(2)]
    assert not any(wrong), "\n".join(filter(None, wrong))


@pytest.mark.parametrize("kind", KINDS)
def test_ids(kind: str) -> None:
    start = 1000 * [*KINDS].index(kind)
    wrong = [compare(kind, settings, start + n) for n, settings in enumerate(SETTINGS)]
    assert not any(wrong), "\n".join(filter(None, wrong))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_more_ids(kind: str) -> None:
    start = 100_000 * (1 + [*KINDS].index(kind))
    wrong = [compare(kind, settings, start + n) for n, settings in enumerate(SETTINGS * 20)]
    assert not any(wrong), "\n".join(filter(None, wrong))


def test_there_are_a_thousand() -> None:
    assert len(KINDS) * len(SETTINGS) * 3 > 1_000
    assert {START, END, PAD} < {*range(4)}
