"""Batch samplers: the batches of an epoch."""

import numpy as np

from qkv.data.batches.collate import Example
from qkv.data.batches.sampler import SamplerState, build_example_sampler, build_stream_sampler


class Tokens:
    """A dataset of blocks of a token stream."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Example:
        return {"tokens": np.arange(index, index + 10)}


def test_batches_are_counted_over_epochs_of_different_length() -> None:
    """The blocks of a stream move from epoch to epoch; so may their number."""
    sampler = build_stream_sampler(Tokens(107), 10, 1, 1, seed=0)
    assert len({len(sampler.get_batches(epoch)) for epoch in range(9)}) > 1
    state = SamplerState()
    num_batches = 0
    while state.epoch < 9:
        state = sampler.advance(state)
        num_batches += 1
    assert sampler.count_batches(9) == num_batches


def test_batches_of_so_many_tokens_are_counted() -> None:
    lengths = np.array([5, 9, 1, 7, 3, 3, 8])
    sampler = build_example_sampler(Tokens(7), lengths, batch_tokens=18)
    batches = sampler.get_batches(0)
    assert sorted(np.concatenate(batches).tolist()) == [*range(7)]
    assert sampler.count_batches(3) == 3 * len(batches)
