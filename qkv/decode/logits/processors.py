"""Rules: small functions on the scores of the next id, applied one after another in the order of this file.

Every row may be of another length. N rows, V words, L the longest row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from qkv.decode.config import How, Ids
from qkv.decode.transfer import sent

Allowed = Callable[
    [list[int]], Sequence[int] | Tensor
]  # new ids so far -> ids that may follow, or (V,) flags


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What rules know of the rows."""

    ids: Tensor  # (N, L) prompt and new ids; beyond a row's length anything
    length: Tensor  # (N,) ids so far
    prompt: Tensor  # (N,) of them given
    most: Tensor  # (N,) where the row ends
    source: Tensor | None = None  # (N, S) what an encoder read, or the prompt; -1 where nothing stands
    allowed: tuple[Allowed | None, ...] = ()  # one a row
    width: int = 1  # rows of one prompt, one below the other
    taken: Tensor | None = None  # (N, m) words that earlier groups of beams take now; -1: none

    @property
    def stands(self) -> Tensor:
        """(N, L) true where an id stands."""
        return torch.arange(self.ids.shape[1], device=self.ids.device) < self.length[:, None]

    def tail(self, count: int) -> Tensor:
        """(N, count) the last ids of each row; -1 where it is shorter."""
        at = self.length[:, None] - count + torch.arange(count, device=self.ids.device)
        return self.ids.gather(1, at.clamp(min=0)).masked_fill(at < 0, -1)

    def new(self, row: int) -> list[int]:
        return [*self.told[row]]

    @cached_property
    def told(self) -> list[list[int]]:
        """The new ids of all rows, as the host has them."""
        each = zip(self.ids.tolist(), self.prompt.tolist(), self.length.tolist(), strict=True)
        return [ids[prompt:length] for ids, prompt, length in each]

    def part(self, own: slice, taken: Tensor | None = None) -> Seen:
        """Of each prompt's rows these, beside the words (P, m) that others take."""

        def cut(x: Tensor) -> Tensor:
            return x.unflatten(0, (-1, self.width))[:, own].flatten(0, 1)

        few, among = own.stop - own.start, range(own.start, own.stop)
        return Seen(
            ids=cut(self.ids), length=cut(self.length), prompt=cut(self.prompt), most=cut(self.most),
            source=None if self.source is None else cut(self.source), width=few,
            allowed=tuple(each for i, each in enumerate(self.allowed) if i % self.width in among),
            taken=None if taken is None else taken.repeat_interleave(few, dim=0),
        )  # fmt: skip

    def with_one_more(self, words: Tensor) -> Seen:
        """With one more id (N,) in every row."""
        ids = torch.nn.functional.pad(self.ids, (0, 1)).scatter(1, self.length[:, None], words[:, None])
        return replace(self, ids=ids, length=self.length + 1)


Rule = Callable[[Tensor, Seen], Tensor]  # scores (N, V) -> scores
NEVER = -math.inf


def rules_of(how: How, guided: bool = False) -> list[Rule]:
    """The rules that settings ask for, in their order; `guided`: some rows have a function of allowed ids."""
    return list(_rules(how, guided))


def _rules(how: How, guided: bool) -> Iterator[Rule]:
    if how.bias:
        yield biased(how.bias)
    if how.diversity:
        yield diverse(how.diversity)
    if how.source_repetition != 1:
        yield source_repeats(1 / how.source_repetition)
    if how.repetition != 1:
        yield repeats(how.repetition)
    if how.no_repeat:
        yield no_repeat(how.no_repeat)
    if how.source_no_repeat:
        yield source_no_repeat(how.source_no_repeat)
    banned = tuple(word for word in how.bad_words if len(word) > 1 or word[0] not in how.ends)
    if banned:
        yield biased(tuple((word, NEVER) for word in banned))
    if how.ends and (how.min_length if how.min_new is None else how.min_new):
        yield not_before(how)
    if guided:
        yield within
    if how.first is not None:
        yield begins_with(how.first)
    if how.last:
        yield ends_with(how.last)
    if how.finite:
        yield finite
    if how.decay and how.ends:
        yield decays(*how.decay, how.ends)
    if how.suppress:
        yield suppressed(how.suppress)
    if how.first_suppress:
        yield first_suppressed(how.first_suppress, forced=how.first is not None)


def apply(rules: Sequence[Rule], scores: Tensor, seen: Seen) -> Tensor:
    for rule in rules:
        scores = rule(scores, seen)
    return scores


def columns(scores: Tensor, ids: Ids) -> Tensor:
    """(V,) true at these ids, which settings name: made once."""
    return kept_columns(scores.shape[-1], ids, scores.device)


@lru_cache(maxsize=64)
def kept_columns(words: int, ids: Ids, device: torch.device) -> Tensor:
    return flagged(torch.empty(words, device=device), ids)


def flagged(scores: Tensor, ids: Sequence[int]) -> Tensor:
    """The same of ids that come but once."""
    flags = torch.zeros(scores.shape[-1], dtype=torch.bool, device=scores.device)
    return flags.index_fill_(0, sent([*ids], scores.device), True)


def biased(pairs: Sequence[tuple[Ids, float]]) -> Rule:
    """Adds to the last id of a phrase where what comes before it has just been said."""

    def rule(scores: Tensor, seen: Seen) -> Tensor:
        bias = torch.zeros_like(scores)
        for phrase, value in pairs:
            *before, last = phrase
            if not before:
                bias[:, last] += value
                continue
            said = (seen.tail(len(before)) == scores.new_tensor(before, dtype=torch.long)).all(1)
            bias[:, last] += torch.where(said, value, 0.0)
        return scores + bias

    return rule


def diverse(penalty: float) -> Rule:
    """Takes away for every time that an earlier group takes a word in this step (Vijayakumar et al. 2016)."""

    def rule(scores: Tensor, seen: Seen) -> Tensor:
        if seen.taken is None:
            return scores
        wide = scores.new_zeros(len(scores), scores.shape[1] + 1)
        index = torch.where(seen.taken < 0, scores.shape[1], seen.taken).clamp(max=scores.shape[1])
        return scores - penalty * wide.scatter_add(1, index, torch.ones_like(index, dtype=wide.dtype))[:, :-1]

    return rule


def scaled(scores: Tensor, ids: Tensor, stands: Tensor, penalty: float) -> Tensor:
    """Scores of these ids (N, L) over the penalty, or times it where they are negative."""
    index = torch.where(stands, ids, scores.shape[1])
    wide = torch.nn.functional.pad(scores, (0, 1))
    score = wide.gather(1, index)
    score = torch.where(score < 0, score * penalty, score / penalty)
    return wide.scatter(1, index, score)[:, :-1]


def repeats(penalty: float) -> Rule:
    """Ids that were said become less likely (Keskar et al. 2019)."""
    return lambda scores, seen: scaled(scores, seen.ids, seen.stands, penalty)


def source_repeats(penalty: float) -> Rule:
    """Ids of the source become more likely."""

    def rule(scores: Tensor, seen: Seen) -> Tensor:
        return scores if seen.source is None else scaled(scores, seen.source, seen.source >= 0, penalty)

    return rule


def banned_runs(scores: Tensor, text: Tensor, tail: Tensor, size: int) -> Tensor:
    """No id that would end a run of `size` ids of the text (N, L), -1 where nothing stands."""
    if text.shape[1] < size:
        return scores
    runs = text.unfold(1, size, 1)  # (N, runs, size)
    same = (runs[..., :-1] == tail[:, None]).all(-1) & (runs[..., -1] >= 0)
    flags = torch.zeros(len(scores), scores.shape[1] + 1, dtype=torch.bool, device=scores.device)
    flags.scatter_(1, torch.where(same, runs[..., -1], scores.shape[1]), True)
    return scores.masked_fill(flags[:, :-1], NEVER)


def no_repeat(size: int) -> Rule:
    def rule(scores: Tensor, seen: Seen) -> Tensor:
        return banned_runs(scores, seen.ids.masked_fill(~seen.stands, -1), seen.tail(size - 1), size)

    return rule


def source_no_repeat(size: int) -> Rule:
    def rule(scores: Tensor, seen: Seen) -> Tensor:
        return scores if seen.source is None else banned_runs(scores, seen.source, seen.tail(size - 1), size)

    return rule


def not_before(how: How) -> Rule:
    """No end before a length, of the new ids or of all."""

    def rule(scores: Tensor, seen: Seen) -> Tensor:
        least = how.min_length if how.min_new is None else seen.prompt + how.min_new
        return scores.masked_fill((seen.length < least)[:, None] & columns(scores, how.ends), NEVER)

    return rule


def within(scores: Tensor, seen: Seen) -> Tensor:
    """Only what the row's function allows after its new ids."""
    shut = torch.zeros_like(scores, dtype=torch.bool)
    for row, allowed in enumerate(seen.allowed):
        if allowed is None:
            continue
        some = allowed(seen.new(row))
        flags = some.to(scores.device) if isinstance(some, Tensor) else flagged(scores, some)
        if flags.shape != scores.shape[1:]:
            raise ValueError(
                f"allowed gave {len(flags)} flags, expected one for each of {scores.shape[1]:,} ids"
            )
        shut[row] = ~flags
    open_ = scores.masked_fill(shut, NEVER)
    # Where other rules have left nothing of what is allowed to any row of a prompt, they are overruled.
    stuck = open_.amax(1).isneginf().view(-1, seen.width).all(1).repeat_interleave(seen.width)
    return torch.where(stuck[:, None], torch.zeros_like(scores).masked_fill(shut, NEVER), open_)


def forced(scores: Tensor, rows: Tensor, ids: Ids) -> Tensor:
    """These ids at score 0 and no others, in these rows (N,)."""
    only = torch.where(columns(scores, ids), 0.0, NEVER).to(scores.dtype)
    return torch.where(rows[:, None], only, scores)


def begins_with(first: int) -> Rule:
    """The id after a row's very first."""
    return lambda scores, seen: forced(scores, seen.length == 1, (first,))


def ends_with(last: Ids) -> Rule:
    """The id that fills the length."""
    return lambda scores, seen: forced(scores, seen.length == seen.most - 1, last)


def finite(scores: Tensor, seen: Seen) -> Tensor:
    """NaN becomes 0, infinity the largest number."""
    return torch.nan_to_num(scores)


def decays(start: int, factor: float, ends: Ids) -> Rule:
    """After `start` new ids the end grows likelier with every step."""

    def rule(scores: Tensor, seen: Seen) -> Tensor:
        over = (seen.length - seen.prompt - start).clamp(min=0)
        at = scores[:, list(ends)]
        more = at.abs() * (torch.pow(float(factor), over.to(scores.dtype)) - 1)[:, None]
        out = scores.clone()
        out[:, list(ends)] = at + more.masked_fill(~at.isfinite(), 0.0)
        return out

    return rule


def suppressed(ids: Ids) -> Rule:
    return lambda scores, seen: scores.masked_fill(columns(scores, ids), NEVER)


def first_suppressed(ids: Ids, forced: bool) -> Rule:
    """As the first new id; where the first is forced upon a row of one id, as the second."""

    def rule(scores: Tensor, seen: Seen) -> Tensor:
        later = ((seen.prompt == 1) & forced).long()
        first = seen.length == seen.prompt + later
        return scores.masked_fill(first[:, None] & columns(scores, ids), NEVER)

    return rule
