"""Encoding: the tokens of a text or a pair, with truncation and windows. Does not depend on tokenizers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

TRUNCATION_STRATEGIES = ("longest_first", "only_first", "only_second")


@dataclass(frozen=True)
class Encoding:
    """Six lists of equal length, with one entry per token.

    Only tokens that the tokenizer adds count as special tokens, not special tokens in the texts."""

    input_ids: list[int]
    offset_mapping: list[tuple[int, int]]  # characters of the text, or of the word; (0, 0): special
    token_type_ids: list[int]  # segment ids, as the family defines them
    special_tokens_mask: list[bool]
    sequence_ids: list[int | None]  # 0: first text, 1: second text, None: special
    word_ids: list[int | None]  # index of the word in its text; None: special or unknown

    def __len__(self) -> int:
        return len(self.input_ids)

    def append(
        self,
        token_id: int,
        offsets: tuple[int, int] = (0, 0),
        sequence_id: int | None = None,
        word_id: int | None = None,
    ) -> None:
        """Append a token of segment 0; without a sequence id, it is special."""
        self.input_ids.append(token_id)
        self.offset_mapping.append(offsets)
        self.token_type_ids.append(0)
        self.special_tokens_mask.append(sequence_id is None)
        self.sequence_ids.append(sequence_id)
        self.word_ids.append(word_id)

    def truncate(
        self, max_length: int, *, strategy: str = "longest_first", truncation_side: str = "right"
    ) -> Encoding:
        """Return at most `max_length` tokens; special tokens are kept.

        `strategy` determines which text of a pair is truncated: longest_first, only_first or
        only_second."""
        if len(self) <= max_length:
            return self
        texts = [self._positions_of(0), self._positions_of(1)]
        sizes = [len(positions) for positions in texts]
        if strategy == "longest_first":
            sizes = _split_length(
                self._available_length(max_length, len(self) - sum(sizes)), *sizes
            )
        else:
            index = 0 if strategy == "only_first" else 1
            num_fixed = len(self) - sizes[index]
            if max_length <= num_fixed:
                raise ValueError(
                    f"max_length {max_length}: expected more than {num_fixed},"
                    f" the number of tokens that truncation {strategy!r} keeps"
                )
            sizes[index] = max_length - num_fixed
        removed: set[int] = set()
        for positions, size in zip(texts, sizes, strict=True):
            if truncation_side == "right":
                removed.update(positions[size:])
            else:
                removed.update(positions[: max(len(positions) - size, 0)])
        return self._select(position for position in range(len(self)) if position not in removed)

    def split_into_windows(self, max_length: int, *, stride: int = 0) -> list[Encoding]:
        """Return windows of at most `max_length` tokens that overlap by `stride` tokens.

        The windows of a pair slide over its second text; each contains the whole first text, for
        example a question."""
        sliding = self._positions_of(1) or self._positions_of(0)
        available = self._available_length(max_length, len(self) - len(sliding))
        if len(sliding) > available <= stride:
            raise ValueError(
                f"stride {stride}: expected less than {available},"
                f" which max_length {max_length} leaves"
            )
        starts = range(0, max(len(sliding) - stride, 1), max(available - stride, 1))
        sliding_set = {*sliding}
        fixed = [position for position in range(len(self)) if position not in sliding_set]
        return [
            self._select(sorted(fixed + sliding[start : start + available])) for start in starts
        ]

    def strip_trailing_special_tokens(self) -> Encoding:
        """Return the encoding without the special tokens at its end."""
        text_positions = [
            i for i, sequence_id in enumerate(self.sequence_ids) if sequence_id is not None
        ]
        return self._select(range(max(text_positions, default=-1) + 1))

    def _positions_of(self, sequence_id: int) -> list[int]:
        return [i for i, other_id in enumerate(self.sequence_ids) if other_id == sequence_id]

    def _available_length(self, max_length: int, num_fixed: int) -> int:
        if max_length < num_fixed:
            raise ValueError(
                f"max_length {max_length}: expected at least {num_fixed},"
                " the number of tokens always kept"
            )
        return max_length - num_fixed

    def _select(self, positions: Iterable[int]) -> Encoding:
        selected = list(positions)
        return Encoding(
            [self.input_ids[i] for i in selected],
            [self.offset_mapping[i] for i in selected],
            [self.token_type_ids[i] for i in selected],
            [self.special_tokens_mask[i] for i in selected],
            [self.sequence_ids[i] for i in selected],
            [self.word_ids[i] for i in selected],
        )


def _split_length(available: int, first: int, second: int) -> list[int]:
    """Return the lengths of two texts that together have `available` tokens: the longer text is
    truncated until both have equal length, then both are."""
    shorter = min(first, second)
    longer = max(shorter, available - shorter)
    if shorter + longer > available:
        shorter = available // 2
        longer = available - shorter
    return [longer, shorter] if first > second else [shorter, longer]
