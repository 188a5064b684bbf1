"""The steps of skip-gram and CBOW against a loop over pairs of words, on random tables."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from qkv.words.update import (
    UPDATES,
    VectorTables,
    create_tables,
    expand_contexts,
    get_band,
    update_skip_gram,
)

NUM_WORDS, SIZE = 11, 6
CHUNKS, CENTERS, WINDOW, NOISE = 3, 4, 2, 5
LR, NEGATIVE = 0.3, 4


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def make_tables(seed: int = 0) -> VectorTables:
    generator = torch.Generator().manual_seed(seed)
    shape = NUM_WORDS, SIZE
    return VectorTables(
        torch.randn(shape, generator=generator, dtype=torch.float64),
        torch.randn(shape, generator=generator, dtype=torch.float64),
    )


def make_samples(seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Ids with repetitions, random contexts, some centers without any."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randint(0, NUM_WORDS, (CHUNKS, CENTERS + 2 * WINDOW), generator=generator)
    contexts = torch.randint(0, 2, (CHUNKS, CENTERS, 2 * WINDOW + 1), generator=generator).double()
    contexts[:, :, WINDOW] = 0
    contexts[0, 1] = 0
    return inputs, contexts, torch.randint(0, NUM_WORDS, (CHUNKS, NOISE), generator=generator)


def list_contexts(contexts: Tensor, chunk: int, center: int) -> list[int]:
    """Return the positions of the context words of a center in the inputs of its chunk."""
    return [center + k for k in range(2 * WINDOW + 1) if contexts[chunk, center, k]]


def reference_skip_gram(
    tables: VectorTables, inputs: Tensor, contexts: Tensor, noise: Tensor
) -> VectorTables:
    """One pair of words after another, with gradients of the tables before the step."""
    steps = VectorTables(tables.inputs.clone(), tables.outputs.clone())
    for g in range(CHUNKS):
        for c in range(CENTERS):
            center = int(inputs[g, c + WINDOW])
            for j in list_contexts(contexts, g, c):
                word = int(inputs[g, j])
                targets = [(center, 1.0, 1.0), *((int(n), 0.0, NEGATIVE / NOISE) for n in noise[g])]
                for target, label, weight in targets:
                    score = float(tables.inputs[word] @ tables.outputs[target])
                    step = LR * weight * (label - sigmoid(score))
                    steps.inputs[word] += step * tables.outputs[target]
                    steps.outputs[target] += step * tables.inputs[word]
    return steps


def reference_cbow(
    tables: VectorTables, inputs: Tensor, contexts: Tensor, noise: Tensor
) -> VectorTables:
    """One center after another, with gradients of the tables before the step."""
    steps = VectorTables(tables.inputs.clone(), tables.outputs.clone())
    for g in range(CHUNKS):
        for c in range(CENTERS):
            words = [int(inputs[g, j]) for j in list_contexts(contexts, g, c)]
            if not words:
                continue
            mean = torch.stack([tables.inputs[word] for word in words]).mean(0)
            targets = [(int(inputs[g, c + WINDOW]), 1.0, 1.0)]
            targets += [(int(n), 0.0, NEGATIVE / NOISE) for n in noise[g]]
            for target, label, weight in targets:
                step = LR * weight * (label - sigmoid(float(mean @ tables.outputs[target])))
                for word in words:
                    steps.inputs[word] += step * tables.outputs[target]
                steps.outputs[target] += step * mean
    return steps


@pytest.mark.parametrize(
    ("algorithm", "reference"), [("skip-gram", reference_skip_gram), ("cbow", reference_cbow)]
)
def test_a_step_equals_a_loop_over_pairs(algorithm: str, reference: object) -> None:
    for seed in range(3):
        tables = make_tables(seed)
        samples = make_samples(seed + 10)
        expected = reference(tables, *samples)  # type: ignore[operator]
        UPDATES[algorithm](tables, *samples, negative=NEGATIVE, lr=LR)
        torch.testing.assert_close(tables.inputs, expected.inputs, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(tables.outputs, expected.outputs, rtol=1e-9, atol=1e-9)


def test_the_step_of_skip_gram_is_the_gradient_of_its_loss() -> None:
    tables = make_tables()
    inputs, contexts, noise = make_samples()
    x = tables.inputs.clone().requires_grad_()
    y = tables.outputs.clone().requires_grad_()
    loss = torch.zeros((), dtype=torch.float64)
    for g in range(CHUNKS):
        for c in range(CENTERS):
            for j in list_contexts(contexts, g, c):
                context = x[inputs[g, j]]
                loss = loss - (y[inputs[g, c + WINDOW]] @ context).sigmoid().log()
                loss = loss - NEGATIVE / NOISE * (-(y[noise[g]] @ context)).sigmoid().log().sum()
    loss.backward()
    assert x.grad is not None
    assert y.grad is not None
    before = tables.inputs.clone(), tables.outputs.clone()
    update_skip_gram(tables, inputs, contexts, noise, negative=NEGATIVE, lr=LR)
    torch.testing.assert_close(tables.inputs, before[0] - LR * x.grad)
    torch.testing.assert_close(tables.outputs, before[1] - LR * y.grad)


@pytest.mark.parametrize("algorithm", UPDATES)
def test_shared_noise_words_have_the_expected_step_of_separate_ones(algorithm: str) -> None:
    """The mean step over all single noise words equals the step with all of them as shared noise."""
    inputs, contexts, noise = make_samples()
    expected = make_tables()
    UPDATES[algorithm](expected, inputs, contexts, noise, negative=NEGATIVE, lr=LR)
    mean = VectorTables(*(torch.zeros(NUM_WORDS, SIZE, dtype=torch.float64) for _ in range(2)))
    for i in range(NOISE):
        tables = make_tables()
        UPDATES[algorithm](tables, inputs, contexts, noise[:, i : i + 1], negative=NEGATIVE, lr=LR)
        mean.inputs.add_(tables.inputs, alpha=1 / NOISE)
        mean.outputs.add_(tables.outputs, alpha=1 / NOISE)
    torch.testing.assert_close(mean.inputs, expected.inputs)
    torch.testing.assert_close(mean.outputs, expected.outputs)


@pytest.mark.parametrize("algorithm", UPDATES)
def test_words_without_contexts_change_nothing(algorithm: str) -> None:
    tables = make_tables()
    inputs, contexts, noise = make_samples()
    UPDATES[algorithm](tables, inputs, torch.zeros_like(contexts), noise, negative=NEGATIVE, lr=LR)
    assert torch.equal(tables.inputs, make_tables().inputs)
    assert torch.equal(tables.outputs, make_tables().outputs)


def test_the_band_of_a_matrix() -> None:
    matrices = torch.arange(2 * 3 * 7).view(2, 3, 7)
    band = get_band(matrices, 5)
    expected = [
        [[int(matrices[g, c, c + k]) for k in range(5)] for c in range(3)] for g in range(2)
    ]
    assert band.tolist() == expected
    contexts = torch.rand(2, 3, 5)
    expanded = expand_contexts(contexts)
    assert expanded.shape == (2, 3, 7)
    assert torch.equal(get_band(expanded, 5), contexts)
    assert int((expanded != 0).sum()) == contexts.numel()


def test_initial_tables() -> None:
    tables = create_tables(500, 20, seed=3)
    assert float(tables.inputs.abs().max()) <= 0.5 / 20
    assert float(tables.inputs.std()) == pytest.approx(1 / 20 / 12**0.5, rel=0.05)
    assert not tables.outputs.any()
    assert torch.equal(tables.inputs, create_tables(500, 20, seed=3).inputs)
    assert not torch.equal(tables.inputs, create_tables(500, 20, seed=4).inputs)
