"""Constrained beam search: phrases that must occur in the output (force_words_ids).

Beams that have generated equally many of the forced tokens form a bank, and every bank keeps beams
(Post and Vilar 2018). Banks, their order and the candidates are those of transformers 4.55, the
last version with this search. P prompts, K beams, V vocabulary size, m candidates."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from qkv.decode.config import TokenIds
from qkv.decode.logits.processors import LogitsContext
from qkv.decode.request import Request

ForcedWords = tuple[tuple[TokenIds, ...], ...]
BANK_STRIDE = 100  # larger than the difference of scores in a bank


class Candidates(NamedTuple):
    """Continuations (P, m) of the beams of each prompt."""

    score: Tensor
    beam_index: Tensor
    token_id: Tensor
    order: Tensor | None = None  # order of selection; None: by score
    is_complete: Tensor | None = None  # true where all forced words are generated
    best_score: Tensor | None = None  # (P,) best attainable score; None: that of the running beams


class Candidate(NamedTuple):
    """One candidate of one prompt, with the fields of Candidates."""

    score: float = -float("inf")
    beam_index: int = 0
    token_id: int = 0
    order: int = 0
    is_complete: bool = False


def constrain_candidates(
    requests: list[Request], candidates: Candidates, total_scores: Tensor, context: LogitsContext
) -> Candidates:
    """Return constrained candidates; `total_scores` (P, K, V) are the scores of all tokens."""
    num_beams = context.rows_per_prompt
    rows = []
    for i, request in enumerate(requests):
        new_token_ids = [context.get_new_token_ids(i * num_beams + k) for k in range(num_beams)]
        values = zip(
            candidates.score[i].tolist(),
            candidates.beam_index[i].tolist(),
            candidates.token_id[i].tolist(),
            strict=True,
        )
        prompt_candidates = [Candidate(*value) for value in values]
        rows.append(
            order_candidates_by_bank(request, new_token_ids, prompt_candidates, total_scores[i])
        )
    max_length = max(map(len, rows))
    padded = [[*row, *[Candidate(order=max_length)] * (max_length - len(row))] for row in rows]
    score, beam_index, token_id, order, is_complete = (
        torch.tensor(
            [[candidate[field] for candidate in row] for row in padded], device=total_scores.device
        )
        for field in range(len(Candidate._fields))
    )
    return Candidates(score, beam_index, token_id, order, is_complete, candidates.score.amax(1))


def order_candidates_by_bank(
    request: Request,
    new_token_ids: list[list[int]],
    candidates: list[Candidate],
    total_scores: Tensor,
) -> list[Candidate]:
    """Return the candidates of one prompt in the order of selection.

    These are the best of each bank, then the second of each, and so on, then the finished ones.
    Tokens that continue a forced word are added to the candidates."""
    force_words_ids = request.config.force_words_ids
    eos_token_id = request.config.eos_token_id
    num_beams = len(new_token_ids)
    beam_states = [ForcedWordsState(token_ids, force_words_ids) for token_ids in new_token_ids]
    finished = [
        candidate
        for candidate in candidates[:num_beams]
        if candidate.token_id in eos_token_id and beam_states[candidate.beam_index].is_complete
    ]
    running = [candidate for candidate in candidates if candidate.token_id not in eos_token_id][
        :num_beams
    ]
    sequences = {
        (*new_token_ids[candidate.beam_index], candidate.token_id) for candidate in running
    }
    for k, state in enumerate(beam_states):
        for token_id in state.get_next_token_ids():
            sequence = (*new_token_ids[k], token_id)
            if sequence not in sequences:  # two beams may lead to the same sequence
                sequences.add(sequence)
                running.append(Candidate(float(total_scores[k, token_id]), k, token_id))
    banks = []
    is_complete = []
    for candidate in running:
        sequence_ids = [*new_token_ids[candidate.beam_index], candidate.token_id]
        state = ForcedWordsState(sequence_ids, force_words_ids)
        banks.append(state.bank)
        is_complete.append(state.is_complete)
    selected = [*range(num_beams)]
    if len(running) > num_beams:
        by_bank = sorted(
            range(len(running)), key=lambda i: -(banks[i] * BANK_STRIDE + running[i].score)
        )
        rank = 0
        previous_bank = None
        ranked = []  # (rank in its bank, index)
        for i in by_bank:
            rank = rank + 1 if banks[i] == previous_bank else 0
            previous_bank = banks[i]
            ranked.append((rank, i))
        selected = [i for _, i in sorted(ranked, key=lambda pair: pair[0])][:num_beams]
    continued = [
        running[i]._replace(order=order, is_complete=is_complete[i])
        for order, i in enumerate(selected)
    ]
    last_order = 2 * len(candidates)
    return [
        *continued,
        *(candidate._replace(order=last_order, is_complete=True) for candidate in finished),
    ]


class ForcedWordsState:
    """Progress of a sequence in its forced words: completed, current and pending words."""

    def __init__(self, token_ids: list[int], force_words_ids: ForcedWords) -> None:
        self.pending_words = [*force_words_ids]
        self.current_word: tuple[TokenIds, ...] | None = None  # its alternative phrases
        self.current_prefix: list[int] = []
        self.num_completed_words = 0
        self.max_phrase_length = max(
            (len(phrase) for phrases in force_words_ids for phrase in phrases), default=0
        )
        for token_id in token_ids:
            if not self.is_complete:
                self.advance(token_id)

    @property
    def is_complete(self) -> bool:
        """True when all words are generated."""
        return not self.pending_words and self.current_word is None

    @property
    def bank(self) -> int:
        """Number of forced tokens generated; every completed word counts as much as the longest."""
        num_current = 0
        if self.current_word is not None:
            num_missing = max(map(len, self.current_word)) - len(self.current_prefix)
            num_current = self.max_phrase_length - num_missing
        return self.num_completed_words * self.max_phrase_length + num_current

    def advance(self, token_id: int) -> None:
        """Add a token, which continues or interrupts the current word, or starts a pending one."""
        prefix = [*self.current_prefix, token_id]
        if self.current_word is not None and not is_prefix_of_any(self.current_word, prefix):
            self.pending_words.append(self.current_word)
            self.current_word = None
            self.current_prefix = []
            return
        if self.current_word is None:
            matches = (
                phrases for phrases in self.pending_words if is_prefix_of_any(phrases, prefix)
            )
            phrases = next(matches, None)
            if phrases is None:
                return
            self.pending_words.remove(phrases)
            self.current_word = phrases
        self.current_prefix = prefix
        if tuple(prefix) in self.current_word:
            self.num_completed_words += 1
            self.current_word = None
            self.current_prefix = []

    def get_next_token_ids(self) -> list[int]:
        """Return the tokens that continue the current word or start a pending one."""
        words = self.pending_words if self.current_word is None else [self.current_word]
        length = len(self.current_prefix)
        next_token_ids = [
            phrase[length]
            for phrases in words
            for phrase in phrases
            if [*phrase[:length]] == self.current_prefix
        ]
        return list(dict.fromkeys(next_token_ids))


def is_prefix_of_any(phrases: tuple[TokenIds, ...], prefix: list[int]) -> bool:
    """Return whether a phrase begins with the prefix."""
    return any([*phrase[: len(prefix)]] == prefix for phrase in phrases)


def count_forced_tokens(force_words_ids: ForcedWords) -> int:
    """Return the number of tokens that the shortest alternatives of all words need."""
    return sum(min(map(len, phrases)) for phrases in force_words_ids)
