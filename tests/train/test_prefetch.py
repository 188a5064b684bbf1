"""Prefetched batches: those of a thread and of worker processes are the same."""

import multiprocessing
from contextlib import closing
from itertools import islice

import numpy as np
import pytest
from torch import Tensor

from qkv.data.batches.sampler import BatchSampler, SamplerState, build_example_sampler
from qkv.train.loop.prefetch import MicroBatch, prefetch_batches
from qkv.train.objectives import VocabularyInfo, build_objective
from qkv.train.objectives.objective import Objective, wrap_loss_function

START = SamplerState()
VOCAB = VocabularyInfo(vocab_size=50, mask_token_id=4, special_token_ids=(0, 1, 2, 3, 4))


def make_sampler_and_objective() -> tuple[BatchSampler, Objective]:
    rng = np.random.default_rng(0)
    texts = [{"tokens": rng.integers(5, 50, length)} for length in rng.integers(3, 20, 40)]
    lengths = np.array([len(text["tokens"]) for text in texts])
    return build_example_sampler(texts, lengths, batch_tokens=64), build_objective(
        "masked-lm", VOCAB, mask_prob=0.3
    )


def prefetch(
    num_workers: int, start: SamplerState = START, *, count: int = 12
) -> list[tuple[SamplerState, list[MicroBatch]]]:
    sampler, objective = make_sampler_and_objective()
    with closing(
        prefetch_batches(
            sampler,
            objective,
            lambda state: [(indices, True) for indices in sampler.split_batch(state, 2)],
            start,
            num_workers,
        )
    ) as batches:
        return list(islice(batches, count))


def list_tensors(micro_batches: list[MicroBatch]) -> list[Tensor]:
    tensors: list[Tensor] = []
    for micro_batch in micro_batches:
        inputs = micro_batch.batch.encoder
        assert inputs is not None
        assert inputs.input_ids is not None
        tensors += [inputs.input_ids, inputs.position_ids, *micro_batch.batch.labels.values()]
    return tensors


def assert_same_integers(actual: list[Tensor], expected: list[Tensor]) -> None:
    assert [x.tolist() for x in actual] == [x.tolist() for x in expected]


def test_workers_build_the_batches_of_a_thread() -> None:
    from_thread = prefetch(0)
    from_workers = prefetch(2)
    assert {state.epoch for state, _ in from_thread} > {0}  # past the end of an epoch
    for (state, batch), (worker_state, worker_batch) in zip(from_thread, from_workers, strict=True):
        assert state == worker_state
        assert [item[1:] for item in batch] == [item[1:] for item in worker_batch]
        assert_same_integers(list_tensors(batch), list_tensors(worker_batch))
    assert not multiprocessing.active_children()


def test_prefetching_starts_from_any_state() -> None:
    batches = prefetch(0)
    later_batches = prefetch(0, batches[3][0], count=9)
    for (state, batch), (later_state, later_batch) in zip(batches[3:], later_batches, strict=True):
        assert state == later_state
        assert_same_integers(list_tensors(batch), list_tensors(later_batch))


def test_error_for_a_loss_function_with_workers() -> None:
    sampler, objective = make_sampler_and_objective()
    custom = wrap_loss_function(lambda out: out["logits"].sum(), objective)
    with pytest.raises(ValueError, match="a custom loss function cannot be sent to worker"):
        next(
            prefetch_batches(
                sampler,
                custom,
                lambda state: [(sampler.get_batches(0)[0], True)],
                SamplerState(),
                2,
            )
        )
