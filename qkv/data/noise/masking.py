"""Mask: tokens are chosen and hidden, to be guessed (BERT, RoBERTa, ALBERT) or told from false ones
(ELECTRA). Knows ids, no tokenizer.

The generator decides all: a seed for each epoch hides other tokens each time, as RoBERTa does; one seed for
all epochs hides the same ones, as BERT did.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from qkv.data.store.shards import Ids


def ordinary(size: int, special: Sequence[int]) -> NDArray[np.int64]:
    """The ids of a vocabulary that are not special."""
    return np.setdiff1d(np.arange(size), np.asarray(special, np.int64))


def choose(
    special: NDArray[np.bool_], rng: np.random.Generator, *, share: float = 0.15, limit: int | None = None,
    starts: NDArray[np.bool_] | None = None, longest: int = 1,
) -> NDArray[np.bool_]:  # fmt: skip
    """Which tokens are to be guessed (T,): never special ones, and max(1, round(share · n)) of the n others.

    The count is BERT's (whose n has [CLS] and [SEP] in it), and at most `limit`. With `starts`, true where a
    word begins, whole words are chosen. With `longest`, runs of up to so many tokens or words, n of them with
    a chance in proportion to 1/n; ALBERT takes 3. A run ends before a special token, and where the count is
    reached. It is passed over where it meets another run, or where its first word has more tokens than are
    left to choose: there may be fewer than the count.
    """
    total = len(special) - int(np.count_nonzero(special))
    left = min(max(1, round(share * total)), total if limit is None else limit)
    begins = ~special
    if starts is None and longest == 1:  # the same in one move
        chosen = np.zeros(len(special), np.bool_)
        chosen[rng.choice(np.flatnonzero(begins), min(left, total), replace=False, shuffle=False)] = True
        return chosen
    taken = bytearray(len(special))  # searched faster than an array, span by span
    if starts is not None:
        begins &= starts | np.append(True, special)[:-1]
    edges = np.flatnonzero(begins | special)
    units = begins[edges]
    first = edges[units].tolist()
    stop = np.append(edges, len(special))[1:][units].tolist()
    odds = 1 / np.arange(1, longest + 1)
    sizes = (1 + rng.choice(longest, len(first), p=odds / odds.sum())).tolist()
    for unit in rng.permutation(len(first)).tolist():
        if not left:
            break
        begin = end = first[unit]
        for each in range(unit, min(unit + sizes[unit], len(first))):
            if first[each] != end or stop[each] - begin > left:
                break
            end = stop[each]
        if end > begin and taken.find(1, begin, end) < 0:
            taken[begin:end] = b"\1" * (end - begin)
            left -= end - begin
    return np.frombuffer(taken, np.bool_)


def hide(
    ids: Ids, chosen: NDArray[np.bool_], rng: np.random.Generator, *, mask: int, ordinary: Ids,
    hidden: float = 0.8, random: float = 0.1,
) -> NDArray[np.int64]:  # fmt: skip
    """The ids as a model reads them: of the chosen, 80% are masked, 10% are any ordinary id, 10% stay.

    The labels are the true ids of the chosen, those that stay as well. ELECTRA's generator reads hidden=0.85,
    random=0.
    """
    read = ids.astype(np.int64)
    places = np.flatnonzero(chosen)
    dice = rng.random(len(places))
    read[places[dice < hidden]] = mask
    places = places[(dice >= hidden) & (dice < hidden + random)]
    read[places] = ordinary[rng.integers(len(ordinary), size=len(places))]
    return read
