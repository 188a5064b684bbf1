"""What is drawn for a block: distributions, windows that end with a sentence, steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from qkv.words.config import WordsConfig
from qkv.words.encode import SENTENCE_END
from qkv.words.sampling import MAX_CHUNK_SIZE, MAX_STEP_SIZE, BlockSampler
from qkv.words.vocabulary import WordVocabulary


def make_sampler(counts: list[int], **settings: object) -> BlockSampler:
    vocabulary = WordVocabulary([f"w{i}" for i in range(len(counts))], counts)
    return BlockSampler.create(vocabulary, WordsConfig(**settings))  # type: ignore[arg-type]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def flatten(sampler: BlockSampler, inputs: Tensor) -> list[int]:
    """Return the centers of all steps in order."""
    return inputs[:, :, sampler.window : sampler.window + sampler.chunk_size].flatten().tolist()


def test_noise_words_have_their_distribution() -> None:
    sampler = make_sampler([1000, 100, 10, 1])
    draws = sampler.draw_noise((40, 5000), generator())
    weights = torch.tensor([1000.0, 100.0, 10.0, 1.0]) ** 0.75
    shares = torch.bincount(draws.flatten(), minlength=4) / draws.numel()
    torch.testing.assert_close(shares, weights / weights.sum(), rtol=0.05, atol=0)


def test_subsampling_keeps_words_with_their_probability() -> None:
    counts = [50_000, 5_000, 500]
    sampler = make_sampler(counts, sample=1e-2, window=1)
    ids = torch.arange(3).repeat_interleave(20_000)
    samples = sampler.draw(ids, generator())
    counts_after = torch.bincount(torch.tensor(flatten(sampler, samples.inputs)), minlength=3)
    num_padding = int((samples.contexts.sum((2, 3)) == 0).sum())  # chunks
    assert num_padding <= sampler.num_chunks
    keep = WordVocabulary(["a", "b", "c"], counts).compute_keep_probabilities(1e-2)
    expected = (keep * 20_000).tolist()
    step_size = sampler.chunk_size * sampler.num_chunks
    assert int(counts_after[1]) == pytest.approx(expected[1], rel=0.05)
    assert int(counts_after[2]) == pytest.approx(expected[2], rel=0.05)
    assert int(counts_after[0]) - step_size <= expected[0] * 1.05  # the padding has the id 0
    assert int(counts_after[0]) >= expected[0] * 0.95


def test_windows_are_uniform_from_1_to_the_largest() -> None:
    sampler = make_sampler([10, 10], window=4, sample=0)
    left, right = sampler.draw_windows(torch.zeros(50_000, dtype=torch.long), generator())
    assert torch.equal(left[4:-4], right[4:-4])
    shares = torch.bincount(left[4:-4], minlength=5) / len(left[4:-4])
    torch.testing.assert_close(shares, torch.tensor([0, 0.25, 0.25, 0.25, 0.25]), rtol=0.03, atol=0)


def test_windows_end_with_the_sentence() -> None:
    sampler = make_sampler([10, 10], window=3, sample=0)
    sentences = torch.tensor([0, 0, 0, 2, 2, 5])
    for seed in range(20):
        left, right = sampler.draw_windows(sentences, generator(seed))
        assert (left <= torch.tensor([0, 1, 2, 0, 1, 0])).all()
        assert (right <= torch.tensor([2, 1, 0, 1, 0, 0])).all()
        assert left[4] == right[3] == 1


def test_the_contexts_of_a_block_are_those_of_a_loop() -> None:
    """Every pair of center and context word is in the same sentence, and at most the window apart."""
    sampler = make_sampler([100] * 40, window=3, sample=0)
    sentence_lengths = [1, 2, 9, 40, 3]
    ids: list[int] = []
    words: list[tuple[int, int]] = []  # sentence, word
    for sentence, length in enumerate(sentence_lengths):
        new_ids = [(sentence * 7 + i) % 40 for i in range(length)]
        ids += [*new_ids, SENTENCE_END]
        words += [(sentence, word) for word in new_ids]
    samples = sampler.draw(torch.tensor(ids), generator())
    left, right = sampler.draw_windows(
        torch.tensor([sentence for sentence, _ in words]), generator_after_draws(len(ids))
    )
    pairs = []
    position = 0
    for step in range(len(samples)):
        for chunk in range(sampler.num_chunks):
            for center in range(sampler.chunk_size):
                for k in range(7):
                    if samples.contexts[step, chunk, center, k]:
                        context = samples.inputs[step, chunk, center + k]
                        word = samples.inputs[step, chunk, center + 3]
                        pairs.append((position, int(word), k - 3, int(context)))
                position += 1
    expected = [
        (i, word, offset, words[i + offset][1])
        for i, (_, word) in enumerate(words)
        for offset in range(-int(left[i]), int(right[i]) + 1)
        if offset
    ]
    assert pairs == expected
    assert len(pairs) > 100


def generator_after_draws(num_draws: int) -> torch.Generator:
    """The generator after the draws of subsampling, which precede those of windows."""
    state = generator()
    torch.rand(num_draws, generator=state)
    return state


def test_a_word_is_rare_in_a_step() -> None:
    """The expected sum of the updates of a word, lr * 36 updates * occurrences, is at most 2."""
    assert make_sampler([5] * 10_000).chunk_size == MAX_CHUNK_SIZE
    large = make_sampler([5] * 100_000)
    assert large.chunk_size * large.num_chunks == MAX_STEP_SIZE
    small = make_sampler([5] * 10, sample=0)
    assert small.chunk_size * small.num_chunks == int(2 / (0.025 * 36 * 0.1))
    cbow = make_sampler([5] * 10, sample=0, algorithm="cbow")
    assert cbow.chunk_size * cbow.num_chunks == 32  # int(4 / 0.09) is 44, less than two chunks
    assert make_sampler([1000, 1], sample=0).chunk_size == 2
    assert make_sampler([1000, 1], sample=0, lr=1, window=9).chunk_size == 1


def test_a_block_without_words() -> None:
    sampler = make_sampler([10, 10])
    samples = sampler.draw(torch.tensor([SENTENCE_END] * 3), generator())
    assert not samples.contexts.any()


def test_draws_depend_on_the_generator_only() -> None:
    sampler = make_sampler([100] * 40)
    ids = torch.arange(40).repeat(10)
    first, repeated, other = (sampler.draw(ids, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first.noise, repeated.noise)
    assert torch.equal(first.contexts, repeated.contexts)
    assert not torch.equal(first.noise, other.noise)
