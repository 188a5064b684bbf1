"""Builders of the batch samplers of a run, one per type of objective; DataSplit, the part of the shards
that a sampler reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkv.data.batches.collate import Dataset
from qkv.data.batches.dataset import (
    ChunkedDataset,
    DocumentDataset,
    PackedDataset,
    SentencePairDataset,
    SpecialTokensDataset,
    TokenStreamDataset,
    WindowDataset,
)
from qkv.data.batches.sampler import (
    BatchSampler,
    build_example_sampler,
    build_recurrent_sampler,
    build_stream_sampler,
)
from qkv.data.batches.stratify import select_stratified
from qkv.data.noise.span_corruption import compute_input_and_target_lengths
from qkv.data.store.shards import Shards
from qkv.train.objectives.context import SetupContext


class DataSplit(NamedTuple):
    """A split of the shards: the training part, or the `validation_fraction` held out from it."""

    is_train: bool = True
    validation_fraction: float = 0.0

    def compute_bounds(self, total: int, min_count: int = 1, unit: str = "rows") -> tuple[int, int]:
        """Return the range of this split in `total` units; each split needs at least `min_count`."""
        boundary = round(total * (1 - self.validation_fraction))
        if self.validation_fraction and min(boundary, total - boundary) < min_count < total:
            raise ValueError(
                f"data.validation {self.validation_fraction:g}: it would hold out "
                f"{total - boundary} of {total} {unit} and train on {boundary}, expected at least "
                f"{min_count} each; set another fraction, or files"
            )
        if self.is_train:
            return 0, boundary
        return (boundary if self.validation_fraction else 0), total

    def select_documents(
        self, shards: Shards, seed: int, stratify_field: str | None = None
    ) -> DocumentDataset:
        """Return the documents of this split; `stratify_field` has one label per document, whose shares
        the held-out documents keep."""
        order = np.arange(len(shards))
        if self.validation_fraction and stratify_field:
            start, stop = DataSplit(False, self.validation_fraction).compute_bounds(len(shards))
            labels = shards.get_token_range(0, len(shards), stratify_field)
            held_out = select_stratified(labels, stop - start, seed)
            return DocumentDataset(
                shards, np.setdiff1d(order, held_out) if self.is_train else held_out
            )
        if self.validation_fraction:
            order = np.random.default_rng(seed).permutation(order)
        return DocumentDataset(shards, np.sort(order[slice(*self.compute_bounds(len(shards)))]))


SamplerFactory = Callable[[SetupContext, Shards, DataSplit], BatchSampler]


def compute_rows_per_batch(context: SetupContext) -> int:
    """Return the number of rows of a batch whose rows all have the same length."""
    return context.recipe.data.batch_size or max(
        1, context.recipe.data.batch_tokens // context.row_length
    )


def build_text_block_sampler(
    context: SetupContext,
    shards: Shards,
    split: DataSplit,
    *,
    block_size: int,
    lookahead: int,
    add_special_tokens: bool = False,
) -> BatchSampler:
    """Sample blocks of one token stream."""
    start, stop = split.compute_bounds(shards.count_tokens(), block_size + lookahead, "tokens")
    dataset: Dataset = TokenStreamDataset(shards, block_size, start, stop, lookahead=lookahead)
    if add_special_tokens:
        dataset = SpecialTokensDataset(dataset, context.vocab.single_template)
    return build_stream_sampler(
        dataset,
        block_size,
        lookahead,
        compute_rows_per_batch(context),
        seed=context.recipe.train.seed,
        shuffle=split.is_train,
        fixed_noise=context.recipe.data.fixed_noise,
    )


def build_causal_lm_sampler(
    context: SetupContext, shards: Shards, split: DataSplit
) -> BatchSampler:
    """Sample blocks of one token stream, each with the next token."""
    return build_text_block_sampler(
        context, shards, split, block_size=context.row_length, lookahead=1
    )


def build_contiguous_segment_sampler(
    context: SetupContext, shards: Shards, split: DataSplit, *, lookahead: int
) -> BatchSampler:
    """Sample segments such that each row continues the same row of the previous batch.

    A short text has fewer rows."""
    if not context.model.args.get("mem_len"):
        raise ValueError(
            f"objective {context.recipe.objective.name}: {context.model.family.name} has no memory "
            "(model.mem_len); expected a family such as transformer-xl or xlnet"
        )
    size = context.row_length
    start, stop = split.compute_bounds(shards.count_tokens(), size + lookahead, "tokens")
    stream = TokenStreamDataset(shards, size, start, stop, lookahead=lookahead)
    num_rows = min(compute_rows_per_batch(context), len(stream) // (size + lookahead))
    return build_recurrent_sampler(
        stream, size, lookahead, num_rows, seed=context.recipe.train.seed
    )


def build_segment_recurrent_lm_sampler(
    context: SetupContext, shards: Shards, split: DataSplit
) -> BatchSampler:
    """Sample consecutive segments, each with the next token."""
    return build_contiguous_segment_sampler(context, shards, split, lookahead=1)


def build_indexed_sampler(
    context: SetupContext,
    examples: Dataset,
    split: DataSplit,
    lengths: NDArray[np.int64] | None = None,
) -> BatchSampler:
    """Sample examples by index; with lengths, a batch has at most `data.batch_tokens` tokens."""
    data = context.recipe.data
    return build_example_sampler(
        examples,
        lengths,
        batch_size=compute_rows_per_batch(context) if lengths is None else data.batch_size,
        batch_tokens=data.batch_tokens,
        seed=context.recipe.train.seed,
        shuffle=split.is_train,
        fixed_noise=data.fixed_noise,
    )


def build_packed_sampler(context: SetupContext, shards: Shards, split: DataSplit) -> BatchSampler:
    """Sample blocks of one token stream, or packed documents, each with special tokens."""
    template = context.vocab.single_template
    size = context.row_length - template.num_special_tokens
    if context.is_single_document:
        return build_text_block_sampler(
            context, shards, split, block_size=size, lookahead=0, add_special_tokens=True
        )
    chunks = ChunkedDataset(split.select_documents(shards, context.recipe.train.seed), size)
    rows = PackedDataset(
        SpecialTokensDataset(chunks, template),
        chunks.lengths() + template.num_special_tokens,
        context.row_length,
    )
    return build_indexed_sampler(context, rows, split)


def build_permutation_lm_sampler(
    context: SetupContext, shards: Shards, split: DataSplit
) -> BatchSampler:
    """Sample packed rows; with `objective.use_mems`, consecutive segments (XLNet)."""
    if not context.get_setting("use_mems", False):
        return build_packed_sampler(context, shards, split)
    if not context.is_single_document:
        raise ValueError(
            f"objective.use_mems with data.unit {context.recipe.data.unit!r}: "
            'a memory needs one long text; expected data.unit = "file"'
        )
    return build_contiguous_segment_sampler(context, shards, split, lookahead=0)


def build_document_chunk_sampler(
    context: SetupContext, shards: Shards, split: DataSplit
) -> BatchSampler:
    """Sample blocks of one token stream, or chunks of documents, with space for special tokens."""
    size = context.row_length - max(context.vocab.single_template.num_special_tokens, 2)
    if context.is_single_document:
        return build_text_block_sampler(context, shards, split, block_size=size, lookahead=0)
    chunks = ChunkedDataset(split.select_documents(shards, context.recipe.train.seed), size)
    return build_indexed_sampler(context, chunks, split, chunks.lengths())


def build_control_code_sampler(
    context: SetupContext, shards: Shards, split: DataSplit
) -> BatchSampler:
    """Sample chunks of documents; a chunk fills a row after the code is added and the last token, which
    is only a label, is removed."""
    chunks = ChunkedDataset(
        split.select_documents(shards, context.recipe.train.seed), context.row_length
    )
    return build_indexed_sampler(context, chunks, split, chunks.lengths())


def build_span_corruption_sampler(
    context: SetupContext, shards: Shards, split: DataSplit
) -> BatchSampler:
    """Sample blocks of the length that gives one row after span corruption."""
    block_size, _ = compute_input_and_target_lengths(
        context.row_length,
        noise_density=float(context.get_setting("noise_density", 0.15)),
        mean_span_length=float(context.get_setting("mean_span_length", 3.0)),
    )
    return build_text_block_sampler(context, shards, split, block_size=block_size, lookahead=0)


def build_sentence_pair_sampler(
    context: SetupContext, shards: Shards, split: DataSplit
) -> BatchSampler:
    """Sample pairs of texts from documents."""
    documents = split.select_documents(shards, context.recipe.train.seed)
    size = max(context.row_length - context.vocab.pair_template.num_special_tokens, 1)
    whole_word = context.get_setting("whole_word", False)
    pairs = SentencePairDataset(documents, size, mark_word_starts=whole_word)
    return build_indexed_sampler(context, pairs, split)


def build_record_sampler_factory(*fields: str) -> SamplerFactory:
    """Return a builder that samples records; these fields determine their length."""

    def build_sampler(context: SetupContext, shards: Shards, split: DataSplit) -> BatchSampler:
        documents = split.select_documents(
            shards, context.recipe.train.seed, context.stratify_field
        )
        return build_indexed_sampler(context, documents, split, documents.lengths(*fields))

    return build_sampler


def build_image_sampler(context: SetupContext, shards: Shards, split: DataSplit) -> BatchSampler:
    """Sample images or clips, `data.batch_size` of them."""
    if not context.recipe.data.batch_size:
        raise ValueError(
            f"data.batch_tokens {context.recipe.data.batch_tokens}: objective "
            f"{context.recipe.objective.name} has batches of images; set data.batch_size"
        )
    documents = split.select_documents(shards, context.recipe.train.seed, context.stratify_field)
    return build_indexed_sampler(context, documents, split)


def build_window_sampler(context: SetupContext, shards: Shards, split: DataSplit) -> BatchSampler:
    """Sample the windows of records."""
    windows = WindowDataset(split.select_documents(shards, context.recipe.train.seed))
    return build_indexed_sampler(context, windows, split, windows.lengths())
