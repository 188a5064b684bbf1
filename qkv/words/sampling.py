"""What training draws at random for a block of a corpus: the words that subsampling keeps, the size of
each context window, and noise words. Does not depend on vectors.

The words of a block that remain are cut into chunks of C centers. A chunk has W more words on both sides
as context, and N noise words of its own; a step trains G chunks.

    inputs     context | C centers | context      (S, G, W + C + W)
    contexts   1 where a word is in the window    (S, G, C, 2W + 1), of the words from W before a center
    noise      N words                            (S, G, N)"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from qkv.words.config import WordsConfig
from qkv.words.encode import SENTENCE_END
from qkv.words.vocabulary import WordVocabulary

MAX_CHUNK_SIZE = 32  # centers
NOISE_SIZE = 32  # noise words of a chunk
MAX_STEP_SIZE = 1024
# The gradients of a step are those of the vectors before it. A word that occurs often in a step receives
# the sum of many updates of the same vector, which overshoots. The sum is the expected number of updates of
# the most frequent word times the learning rate; on a corpus of 23 words, training diverged with a sum of 4
# (skip-gram) or 8 (CBOW, where the context words share a prediction).
MAX_UPDATE_SUMS = {"skip-gram": 2.0, "cbow": 4.0}


@dataclass(frozen=True)
class BlockSamples:
    """The words of a block of a corpus, in steps."""

    inputs: Tensor
    contexts: Tensor
    noise: Tensor

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True)
class BlockSampler:
    """Draws the samples of a block."""

    window: int
    chunk_size: int
    num_chunks: int  # of a step
    keep_probabilities: Tensor  # (V,)
    noise_thresholds: Tensor  # (V,), the cumulative noise distribution

    @classmethod
    def create(cls, vocabulary: WordVocabulary, config: WordsConfig) -> BlockSampler:
        """Return the sampler of a vocabulary, with steps as long as it allows."""
        keep_probabilities = vocabulary.compute_keep_probabilities(config.sample)
        noise_distribution = vocabulary.compute_noise_distribution()
        shares = vocabulary.frequencies * keep_probabilities
        largest_share = max(float(shares.max() / shares.sum()), float(noise_distribution.max()))
        # A word has `window + 1` contexts on average, each a pair with `negative` noise words.
        num_updates = largest_share * (config.window + 1) * (config.negative + 1)
        max_updates = MAX_UPDATE_SUMS[config.algorithm] / config.lr
        step_size = min(max(int(max_updates / num_updates), 1), MAX_STEP_SIZE)
        chunk_size = min(MAX_CHUNK_SIZE, step_size)
        return cls(
            window=config.window,
            chunk_size=chunk_size,
            num_chunks=step_size // chunk_size,
            keep_probabilities=keep_probabilities.float(),
            noise_thresholds=noise_distribution.cumsum(0),
        )

    def draw(self, ids: Tensor, generator: Generator) -> BlockSamples:
        """Draw the samples of a block of ids, in which SENTENCE_END separates sentences."""
        sentences = (ids == SENTENCE_END).cumsum(0)
        draws = torch.rand(len(ids), generator=generator)
        keeps = (ids != SENTENCE_END) & (draws < self.keep_probabilities[ids.clamp(min=0)])
        words = ids[keeps]
        left, right = self.draw_windows(sentences[keeps], generator)
        step_size = self.chunk_size * self.num_chunks
        num_steps = max(-(-len(words) // step_size), 1)  # of a block without words: padding
        padding = num_steps * step_size - len(words)
        offsets = torch.arange(-self.window, self.window + 1)
        contexts = (offsets >= -left[:, None]) & (offsets <= right[:, None]) & (offsets != 0)
        padded_words = F.pad(words, (self.window, self.window + padding))
        input_size = self.chunk_size + 2 * self.window
        shape = num_steps, self.num_chunks
        return BlockSamples(
            inputs=padded_words.unfold(0, input_size, self.chunk_size).reshape(*shape, input_size),
            contexts=F.pad(contexts.float(), (0, 0, 0, padding)).view(
                *shape, self.chunk_size, len(offsets)
            ),
            noise=self.draw_noise((*shape, NOISE_SIZE), generator),
        )

    def draw_windows(self, sentences: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return how many words on the left and on the right of each word are its context.

        The window is drawn from 1 to `window`; it ends with the sentence. `sentences` are the
        numbers of the sentences of all words, which ascend."""
        positions = torch.arange(len(sentences))
        windows = torch.randint(1, self.window + 1, (len(sentences),), generator=generator)
        first = torch.searchsorted(sentences, sentences)
        last = torch.searchsorted(sentences, sentences, right=True) - 1
        return torch.minimum(windows, positions - first), torch.minimum(windows, last - positions)

    def draw_noise(self, shape: tuple[int, ...], generator: Generator) -> Tensor:
        """Return ids of words, drawn from the noise distribution."""
        draws = torch.rand(shape, generator=generator, dtype=torch.float64)
        ids = torch.searchsorted(self.noise_thresholds, draws, right=True)
        return ids.clamp_(max=len(self.noise_thresholds) - 1)  # the last threshold is rounded
