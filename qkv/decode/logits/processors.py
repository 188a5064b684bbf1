"""Logits processors: functions on the scores of the next token, applied in the order of
`_iter_logits_processors`. CONTRIBUTING.md shows how to add one.

Rows may have different lengths. N rows, V vocabulary size, L longest row, S longest source."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.decode.config import GenerationConfig, TokenIds
from qkv.decode.transfer import copy_to_device

# New token ids so far -> allowed next token ids, or flags (V,).
PrefixAllowedTokensFn = Callable[[list[int]], Sequence[int] | Tensor]
# The same for one row of a batch; None: all tokens are allowed.
RowAllowedTokensFn = Callable[[list[int]], Sequence[int] | Tensor | None]


@dataclass(frozen=True, kw_only=True)
class LogitsContext:
    """The state of the rows that logits processors read."""

    input_ids: Tensor  # (N, L) prompt and new tokens; arbitrary beyond the length of a row
    lengths: Tensor  # (N,)
    prompt_lengths: Tensor  # (N,)
    max_lengths: Tensor  # (N,)
    source_ids: Tensor | None = None  # (N, S) tokens of the encoder, or the prompt; -1: padding
    prefix_allowed_tokens_fns: tuple[RowAllowedTokensFn | None, ...] = ()  # one per row, or none
    rows_per_prompt: int = 1  # adjacent rows
    earlier_group_token_ids: Tensor | None = None  # (N, m) of this step; -1: none

    @property
    def attention_mask(self) -> Tensor:
        """(N, L) true for valid tokens."""
        return (
            torch.arange(self.input_ids.shape[1], device=self.input_ids.device)
            < self.lengths[:, None]
        )

    def get_last_token_ids(self, count: int) -> Tensor:
        """Return the last tokens of each row (N, count); -1 where it is shorter."""
        index = self.lengths[:, None] - count + torch.arange(count, device=self.input_ids.device)
        return self.input_ids.gather(1, index.clamp(min=0)).masked_fill(index < 0, -1)

    def get_new_token_ids(self, row: int) -> list[int]:
        """Return the new tokens of a row."""
        return [*self.new_token_ids[row]]

    @cached_property
    def new_token_ids(self) -> list[list[int]]:
        """New tokens of all rows, on the host."""
        rows = zip(
            self.input_ids.tolist(),
            self.prompt_lengths.tolist(),
            self.lengths.tolist(),
            strict=True,
        )
        return [token_ids[prompt_length:length] for token_ids, prompt_length, length in rows]

    def select_beam_group(
        self, beam_slice: slice, earlier_group_token_ids: Tensor | None = None
    ) -> LogitsContext:
        """Return the context of some rows per prompt, with the tokens (P, m) of earlier groups."""

        def select(x: Tensor) -> Tensor:
            return x.unflatten(0, (-1, self.rows_per_prompt))[:, beam_slice].flatten(0, 1)

        beams = range(beam_slice.start, beam_slice.stop)
        allowed_tokens_fns = tuple(
            function
            for i, function in enumerate(self.prefix_allowed_tokens_fns)
            if i % self.rows_per_prompt in beams
        )
        if earlier_group_token_ids is not None:
            earlier_group_token_ids = earlier_group_token_ids.repeat_interleave(len(beams), dim=0)
        return LogitsContext(
            input_ids=select(self.input_ids),
            lengths=select(self.lengths),
            prompt_lengths=select(self.prompt_lengths),
            max_lengths=select(self.max_lengths),
            source_ids=None if self.source_ids is None else select(self.source_ids),
            prefix_allowed_tokens_fns=allowed_tokens_fns,
            rows_per_prompt=len(beams),
            earlier_group_token_ids=earlier_group_token_ids,
        )

    def append_tokens(self, token_ids: Tensor) -> LogitsContext:
        """Return the context with one more token (N,) in every row."""
        padded = F.pad(self.input_ids, (0, 1))
        input_ids = padded.scatter(1, self.lengths[:, None], token_ids[:, None])
        return replace(self, input_ids=input_ids, lengths=self.lengths + 1)


LogitsProcessor = Callable[[Tensor, LogitsContext], Tensor]  # scores (N, V) -> scores
NEG_INF = -math.inf


def build_logits_processors(
    config: GenerationConfig, has_allowed_tokens_fn: bool = False
) -> list[LogitsProcessor]:
    """Return the logits processors of a config in the order of application.

    `has_allowed_tokens_fn`: some row has a prefix_allowed_tokens_fn."""
    return list(_iter_logits_processors(config, has_allowed_tokens_fn))


def _iter_logits_processors(
    config: GenerationConfig, has_allowed_tokens_fn: bool
) -> Iterator[LogitsProcessor]:
    if config.sequence_bias:
        yield build_sequence_bias(config.sequence_bias)
    if config.diversity_penalty:
        yield build_diversity_penalty(config.diversity_penalty)
    if config.encoder_repetition_penalty != 1:
        yield build_encoder_repetition_penalty(1 / config.encoder_repetition_penalty)
    if config.repetition_penalty != 1:
        yield build_repetition_penalty(config.repetition_penalty)
    if config.no_repeat_ngram_size:
        yield build_no_repeat_ngram(config.no_repeat_ngram_size)
    if config.encoder_no_repeat_ngram_size:
        yield build_encoder_no_repeat_ngram(config.encoder_no_repeat_ngram_size)
    bad_words = [
        phrase
        for phrase in config.bad_words_ids
        if len(phrase) > 1 or phrase[0] not in config.eos_token_id
    ]
    if bad_words:
        yield build_sequence_bias([(phrase, NEG_INF) for phrase in bad_words])
    min_length = config.min_length if config.min_new_tokens is None else config.min_new_tokens
    if config.eos_token_id and min_length:
        yield build_min_length(config)
    if has_allowed_tokens_fn:
        yield restrict_to_allowed_tokens
    if config.forced_bos_token_id is not None:
        yield build_forced_bos(config.forced_bos_token_id)
    if config.forced_eos_token_id:
        yield build_forced_eos(config.forced_eos_token_id)
    if config.remove_invalid_values:
        yield remove_invalid_values
    if config.exponential_decay_length_penalty and config.eos_token_id:
        yield build_exponential_decay(*config.exponential_decay_length_penalty, config.eos_token_id)
    if config.suppress_tokens:
        yield build_suppress_tokens(config.suppress_tokens)
    if config.begin_suppress_tokens:
        yield build_begin_suppress_tokens(
            config.begin_suppress_tokens, has_forced_bos=config.forced_bos_token_id is not None
        )


def apply_logits_processors(
    processors: Sequence[LogitsProcessor], scores: Tensor, context: LogitsContext
) -> Tensor:
    """Apply processors one after another."""
    for processor in processors:
        scores = processor(scores, context)
    return scores


def get_token_mask(scores: Tensor, token_ids: TokenIds) -> Tensor:
    """Return (V,) true at the token ids of a setting, from a cache."""
    return get_cached_token_mask(scores.shape[-1], token_ids, scores.device)


@lru_cache(maxsize=64)
def get_cached_token_mask(vocab_size: int, token_ids: TokenIds, device: torch.device) -> Tensor:
    return build_token_mask(torch.empty(vocab_size, device=device), token_ids)


def build_token_mask(scores: Tensor, token_ids: Sequence[int]) -> Tensor:
    """Return (V,) true at these token ids."""
    mask = torch.zeros(scores.shape[-1], dtype=torch.bool, device=scores.device)
    return mask.index_fill_(0, copy_to_device([*token_ids], scores.device), True)


def build_sequence_bias(sequence_bias: Sequence[tuple[TokenIds, float]]) -> LogitsProcessor:
    """Add a bias to the last token of a phrase where the row ends with its other tokens."""

    def process(scores: Tensor, context: LogitsContext) -> Tensor:
        bias = torch.zeros_like(scores)
        for phrase, value in sequence_bias:
            *prefix, last = phrase
            if not prefix:
                bias[:, last] += value
                continue
            expected = scores.new_tensor(prefix, dtype=torch.long)
            has_prefix = (context.get_last_token_ids(len(prefix)) == expected).all(1)
            bias[:, last] += torch.where(has_prefix, value, 0.0)
        return scores + bias

    return process


def build_diversity_penalty(penalty: float) -> LogitsProcessor:
    """Subtract a penalty per earlier beam with the same token (Vijayakumar et al. 2016)."""

    def process(scores: Tensor, context: LogitsContext) -> Tensor:
        token_ids = context.earlier_group_token_ids
        if token_ids is None:
            return scores
        vocab_size = scores.shape[1]
        index = torch.where(token_ids < 0, vocab_size, token_ids).clamp(max=vocab_size)
        counts = scores.new_zeros(len(scores), vocab_size + 1)  # the last column takes padding
        counts = counts.scatter_add(1, index, torch.ones_like(index, dtype=counts.dtype))
        return scores - penalty * counts[:, :-1]

    return process


def penalize_token_ids(
    scores: Tensor, token_ids: Tensor, attention_mask: Tensor, penalty: float
) -> Tensor:
    """Divide positive scores of valid token ids (N, L) by a penalty, multiply negative ones."""
    index = torch.where(attention_mask, token_ids, scores.shape[1])
    padded = F.pad(scores, (0, 1))  # the last column takes padding
    score = padded.gather(1, index)
    score = torch.where(score < 0, score * penalty, score / penalty)
    return padded.scatter(1, index, score)[:, :-1]


def build_repetition_penalty(penalty: float) -> LogitsProcessor:
    """Penalize the tokens of the row (Keskar et al. 2019)."""

    def process(scores: Tensor, context: LogitsContext) -> Tensor:
        return penalize_token_ids(scores, context.input_ids, context.attention_mask, penalty)

    return process


def build_encoder_repetition_penalty(penalty: float) -> LogitsProcessor:
    """Penalize the tokens of the source; a penalty below 1 makes them more likely."""

    def process(scores: Tensor, context: LogitsContext) -> Tensor:
        if context.source_ids is None:
            return scores
        return penalize_token_ids(scores, context.source_ids, context.source_ids >= 0, penalty)

    return process


def ban_repeated_ngrams(
    scores: Tensor, token_ids: Tensor, prefix: Tensor, ngram_size: int
) -> Tensor:
    """Ban tokens that complete an n-gram of token_ids (N, L) after a prefix (N, n - 1).

    Padding is -1."""
    if token_ids.shape[1] < ngram_size:
        return scores
    vocab_size = scores.shape[1]
    ngrams = token_ids.unfold(1, ngram_size, 1)  # (N, L - n + 1, n)
    last = ngrams[..., -1]
    matches = (ngrams[..., :-1] == prefix[:, None]).all(-1) & (last >= 0)
    is_banned = torch.zeros(len(scores), vocab_size + 1, dtype=torch.bool, device=scores.device)
    is_banned.scatter_(1, torch.where(matches, last, vocab_size), True)
    return scores.masked_fill(is_banned[:, :-1], NEG_INF)


def build_no_repeat_ngram(ngram_size: int) -> LogitsProcessor:
    """Ban n-grams that the row already has."""

    def process(scores: Tensor, context: LogitsContext) -> Tensor:
        token_ids = context.input_ids.masked_fill(~context.attention_mask, -1)
        return ban_repeated_ngrams(
            scores, token_ids, context.get_last_token_ids(ngram_size - 1), ngram_size
        )

    return process


def build_encoder_no_repeat_ngram(ngram_size: int) -> LogitsProcessor:
    """Ban n-grams of the source."""

    def process(scores: Tensor, context: LogitsContext) -> Tensor:
        if context.source_ids is None:
            return scores
        prefix = context.get_last_token_ids(ngram_size - 1)
        return ban_repeated_ngrams(scores, context.source_ids, prefix, ngram_size)

    return process


def build_min_length(config: GenerationConfig) -> LogitsProcessor:
    """Ban EOS before the minimum length, of the new tokens or of all."""

    def process(scores: Tensor, context: LogitsContext) -> Tensor:
        min_length: int | Tensor = config.min_length
        if config.min_new_tokens is not None:
            min_length = context.prompt_lengths + config.min_new_tokens
        is_short = context.lengths < min_length
        return scores.masked_fill(
            is_short[:, None] & get_token_mask(scores, config.eos_token_id), NEG_INF
        )

    return process


def check_allowed_tokens(
    function: PrefixAllowedTokensFn, vocab_size: int, new_token_ids: list[int]
) -> Tensor:
    """Return the tokens that a function allows as flags (V,) on the host, or raise an error."""
    allowed = function(new_token_ids)
    if isinstance(allowed, Tensor):
        if allowed.shape != (vocab_size,):
            raise ValueError(
                f"prefix_allowed_tokens_fn returned a mask of {allowed.numel()} values, "
                f"expected one for each of the {vocab_size:,} token ids"
            )
        return allowed.bool()
    token_ids = [*allowed]
    invalid = [token_id for token_id in token_ids if not 0 <= token_id < vocab_size]
    if invalid:
        raise ValueError(
            f"prefix_allowed_tokens_fn returned the token id {invalid[0]}, "
            f"expected ids from 0 to {vocab_size - 1:,}"
        )
    mask = torch.zeros(vocab_size, dtype=torch.bool)
    return mask.index_fill_(0, torch.tensor(token_ids, dtype=torch.long), True)


def restrict_to_allowed_tokens(scores: Tensor, context: LogitsContext) -> Tensor:
    """Ban tokens that the prefix_allowed_tokens_fn of a row does not allow.

    If other processors ban all allowed tokens in all rows of a prompt, these bans are lifted."""
    is_banned = torch.zeros_like(scores, dtype=torch.bool)
    for row, function in enumerate(context.prefix_allowed_tokens_fns):
        allowed = None if function is None else function(context.get_new_token_ids(row))
        if allowed is not None:
            is_banned[row] = ~(
                allowed.to(scores.device)
                if isinstance(allowed, Tensor)
                else build_token_mask(scores, allowed)
            )
    restricted = scores.masked_fill(is_banned, NEG_INF)
    has_no_token = restricted.amax(1).isneginf()
    is_stuck = has_no_token.view(-1, context.rows_per_prompt).all(1)
    is_stuck = is_stuck.repeat_interleave(context.rows_per_prompt)
    uniform = torch.zeros_like(scores).masked_fill(is_banned, NEG_INF)
    return torch.where(is_stuck[:, None], uniform, restricted)


def force_token_ids(scores: Tensor, row_mask: Tensor, token_ids: TokenIds) -> Tensor:
    """Ban all other tokens in some rows (N,), and set the score of these to 0."""
    forced = torch.where(get_token_mask(scores, token_ids), 0.0, NEG_INF).to(scores.dtype)
    return torch.where(row_mask[:, None], forced, scores)


def build_forced_bos(token_id: int) -> LogitsProcessor:
    """Force the second token of a row."""
    return lambda scores, context: force_token_ids(scores, context.lengths == 1, (token_id,))


def build_forced_eos(token_ids: TokenIds) -> LogitsProcessor:
    """Force the token at the maximum length."""
    return lambda scores, context: force_token_ids(
        scores, context.lengths == context.max_lengths - 1, token_ids
    )


def remove_invalid_values(scores: Tensor, context: LogitsContext) -> Tensor:
    """Replace NaN by 0 and infinity by the largest number."""
    return torch.nan_to_num(scores)


def build_exponential_decay(start: int, factor: float, eos_token_id: TokenIds) -> LogitsProcessor:
    """Increase the EOS score exponentially after `start` new tokens, up to the largest number."""
    eos_index = list(eos_token_id)

    def process(scores: Tensor, context: LogitsContext) -> Tensor:
        num_steps = (context.lengths - context.prompt_lengths - start).clamp(min=0)
        eos_scores = scores[:, eos_index]
        largest = torch.finfo(scores.dtype).max  # infinity would give NaN in the softmax
        growth = (torch.pow(float(factor), num_steps.to(scores.dtype)) - 1).clamp(max=largest)
        increased = (eos_scores + eos_scores.abs() * growth[:, None]).clamp(max=largest)
        output = scores.clone()
        output[:, eos_index] = torch.where(eos_scores.isfinite(), increased, eos_scores)
        return output

    return process


def build_suppress_tokens(token_ids: TokenIds) -> LogitsProcessor:
    """Ban tokens."""
    return lambda scores, context: scores.masked_fill(get_token_mask(scores, token_ids), NEG_INF)


def build_begin_suppress_tokens(token_ids: TokenIds, has_forced_bos: bool) -> LogitsProcessor:
    """Ban tokens as the first new token, or as the second where the first is forced."""

    def process(scores: Tensor, context: LogitsContext) -> Tensor:
        num_forced = ((context.prompt_lengths == 1) & has_forced_bos).long()
        is_first = context.lengths == context.prompt_lengths + num_forced
        return scores.masked_fill(is_first[:, None] & get_token_mask(scores, token_ids), NEG_INF)

    return process
