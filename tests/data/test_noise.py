"""Noise keeps to the counts and rules of its papers, loses nothing that it should not, and is its seed's."""

import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import qkv
from qkv import Rows
from qkv.data.noise import denoising, masking, permutation, sentence_pairs, span_corruption
from qkv.model.inputs import permutation as attention_allowed

Array = NDArray[Any]
MASK, STOP, END, SENTINEL = 103, 7, 1, 32099
ORDINARY = masking.ordinary(500, range(200))


def seeded(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def none(length: int) -> NDArray[np.bool_]:
    return np.zeros(length, np.bool_)


def framed(length: int) -> NDArray[np.bool_]:
    """Special at both ends, and once within, as [CLS] and [SEP] are."""
    special = none(length)
    special[[0, length // 2, -1]] = True
    return special


def runs(chosen: NDArray[np.bool_]) -> list[int]:
    """The lengths of the runs of what is true."""
    edges = np.flatnonzero(np.diff(chosen.astype(np.int8), prepend=0, append=0))
    return (edges[1::2] - edges[::2]).tolist()


def in_a_row(ids: Array) -> bool:
    return bool((np.diff(ids) == 1).all())


def documents(number: int, sentences: int, size: int) -> list[list[Array]]:
    """Documents of sentences of `size` tokens; no token is twice in them."""
    ids = np.arange(number * sentences * size).reshape(number, sentences, size)
    return [list(each) for each in ids]


# all of them ------------------------------------------------------------------


def masked(ids: Array, rng: np.random.Generator) -> Array:
    return masking.hide(
        ids, masking.choose(none(len(ids)), rng, longest=3), rng, mask=MASK, ordinary=ORDINARY
    )


def corrupted(ids: Array, rng: np.random.Generator) -> Array:
    return np.concatenate(span_corruption.corrupt(ids, rng, sentinel=SENTINEL, end=END))


def paired(ids: Array, rng: np.random.Generator) -> Array:
    pairs = sentence_pairs.sentence_order(np.split(ids, 8), rng, size=32)
    return np.concatenate([np.concatenate([each.a, each.b, [each.label]]) for each in pairs])


def estranged(ids: Array, rng: np.random.Generator) -> Array:
    pairs = sentence_pairs.next_sentence([np.split(ids, 8), np.split(ids, 4)], 0, rng, size=32)
    return np.concatenate([np.concatenate([each.a, each.b, [each.label]]) for each in pairs])


def ordered(ids: Array, rng: np.random.Generator) -> Array:
    return permutation.order(ids == STOP, rng, count=9).permute


NOISES: dict[str, Callable[[Array, np.random.Generator], Array]] = {
    "masked": masked,
    "corrupted": corrupted,
    "paired": paired,
    "estranged": estranged,
    "ordered": ordered,
    "delete": partial(denoising.delete, share=0.2),
    "rotate": denoising.rotate,
    "bart": partial(denoising.damage, noises=denoising.bart(MASK, [STOP])),
    "mbart": partial(denoising.damage, noises=denoising.mbart(MASK, [STOP])),
}


@pytest.mark.parametrize("name", NOISES)
def test_a_noise_is_a_function_of_its_seed_and_leaves_the_text_alone(name: str) -> None:
    ids = seeded(9).integers(5, 400, 64).astype(np.uint16)
    ids.flags.writeable = False  # as a mapped file is
    first, second, other = (NOISES[name](ids, seeded(seed)) for seed in (3, 3, 4))
    assert first.dtype == (np.bool_ if name == "ordered" else np.int64)
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


# masks ------------------------------------------------------------------------


def test_ordinary_ids_are_all_but_the_special_ones() -> None:
    assert masking.ordinary(6, [0, 4]).tolist() == [1, 2, 3, 5]


@pytest.mark.parametrize("length", [3, 4, 10, 13, 37, 128, 512])
def test_as_many_tokens_are_chosen_as_bert_chooses(length: int) -> None:
    special = framed(length)
    total = int((~special).sum())
    for seed in range(20):
        chosen = masking.choose(special, seeded(seed))
        assert chosen.sum() == min(max(1, round(0.15 * total)), total)
        assert not (chosen & special).any()
        assert masking.choose(special, seeded(seed), limit=2).sum() == min(2, chosen.sum())


def test_every_token_has_the_same_chance() -> None:
    rng = seeded()
    counts = np.sum([masking.choose(none(40), rng) for _ in range(8000)], axis=0)
    assert np.abs(counts / 8000 - 0.15).max() < 0.016  # four standard deviations


@pytest.mark.parametrize("longest", [1, 3])
def test_little_may_be_chosen_of_little(longest: int) -> None:
    assert masking.choose(none(0), seeded(), longest=longest).tolist() == []
    assert masking.choose(none(1), seeded(), longest=longest).tolist() == [True]
    assert not masking.choose(np.ones(9, np.bool_), seeded(), longest=longest, limit=4).any()
    assert not masking.choose(none(9), seeded(), longest=longest, limit=0).any()


def test_words_are_chosen_whole() -> None:
    rng = seeded()
    for _ in range(300):
        special = rng.random(80) < 0.05
        starts = rng.random(80) < 0.6
        chosen = masking.choose(special, rng, starts=starts)
        assert chosen.sum() <= max(1, round(0.15 * int((~special).sum())))
        assert not (chosen & special).any()
        # A token that goes on with a word is chosen as the token before it is.
        within = np.flatnonzero(~starts[1:] & ~special[1:] & ~special[:-1]) + 1
        assert np.array_equal(chosen[within], chosen[within - 1])


def test_a_word_larger_than_the_count_is_passed_over() -> None:
    starts = np.array([True] + [False] * 8 + [True])
    for seed in range(10):
        assert np.flatnonzero(masking.choose(none(10), seeded(seed), starts=starts)).tolist() == [9]
    assert not masking.choose(none(9), seeded(), starts=starts[:9]).any()


def test_a_word_begins_with_the_text_and_after_a_special_token() -> None:
    special = np.array([False, False, True, False, False])
    assert np.array_equal(masking.choose(special, seeded(), starts=none(5), share=1.0), ~special)


def test_runs_have_alberts_chances() -> None:
    chosen = masking.choose(none(2_000_000), seeded(), share=0.01, longest=3)
    assert chosen.sum() == 20_000
    found = Counter(runs(chosen))
    total = sum(found[n] for n in (1, 2, 3))
    for n in (1, 2, 3):  # 6/11, 3/11, 2/11
        assert found[n] / total == pytest.approx(1 / n / (1 + 1 / 2 + 1 / 3), abs=0.015)


def test_runs_of_words_fill_the_count_and_do_not_cross_special_tokens() -> None:
    rng = seeded()
    for _ in range(200):
        special = framed(101)
        chosen = masking.choose(special, rng, longest=3)
        assert chosen.sum() == round(0.15 * 98)
        assert not (chosen & special).any()
        starts = rng.random(101) < 0.5
        within = np.flatnonzero(~starts[1:] & ~special[1:] & ~special[:-1]) + 1
        chosen = masking.choose(special, rng, starts=starts, longest=3)
        assert not (chosen & special).any()
        assert np.array_equal(chosen[within], chosen[within - 1])
        assert 0 < chosen.sum() <= round(0.15 * 98)


def test_what_is_chosen_is_masked_replaced_or_kept() -> None:
    rng = seeded()
    ids = rng.integers(200, 500, 200_000)
    chosen = masking.choose(none(len(ids)), rng)
    read = masking.hide(ids, chosen, rng, mask=MASK, ordinary=ORDINARY)
    assert np.array_equal(read[~chosen], ids[~chosen])
    hidden, kept = read[chosen] == MASK, read[chosen] == ids[chosen]
    assert hidden.mean() == pytest.approx(0.8, abs=0.01)
    assert kept.mean() == pytest.approx(0.1 + 0.1 / len(ORDINARY), abs=0.01)
    drawn = read[chosen][~hidden & ~kept]
    assert len(drawn) / chosen.sum() == pytest.approx(0.1, abs=0.01)
    assert set(drawn.tolist()) == set(ORDINARY.tolist())


def test_electras_generator_reads_masks_and_true_ids() -> None:
    ids = np.arange(200, 500)
    chosen = masking.choose(none(300), seeded(), share=0.5)
    read = masking.hide(ids, chosen, seeded(), mask=MASK, ordinary=ORDINARY, hidden=0.85, random=0.0)
    assert set(read[read != ids].tolist()) == {MASK}
    assert (read[chosen] == MASK).mean() == pytest.approx(0.85, abs=0.08)


# segments ---------------------------------------------------------------------


def test_half_of_the_pairs_are_of_two_documents() -> None:
    texts = documents(60, 150, 5)
    rng = seeded()
    labels = []
    for number in range(len(texts)):
        for a, b, label in sentence_pairs.next_sentence(texts, number, rng, size=60, short=0.0):
            assert min(len(a), len(b)) > 0
            assert len(a) + len(b) <= 60
            assert set(a // 750) == {number}
            assert len(set(b // 750)) == 1
            assert (b[0] // 750 != number) == label
            assert label or b[0] > a[-1]
            assert in_a_row(a)
            assert in_a_row(b)
            labels.append(label)
    assert len(labels) > 900
    assert np.mean(labels) == pytest.approx(0.5, abs=0.05)  # three standard deviations


def test_displaced_sentences_are_used_later() -> None:
    texts = documents(4, 40, 5)
    for seed in range(20):
        pairs = sentence_pairs.next_sentence(texts, 1, seeded(seed), size=40, short=0.0)
        used = [part for a, b, label in pairs for part in ([a] if label else [a, b])]
        assert np.array_equal(np.concatenate(used), np.concatenate(texts[1]))
        assert {len(a) + len(b) for a, b, label in pairs[:-1] if not label} <= {40}


def test_one_document_in_ten_makes_short_pairs() -> None:
    text = [np.array([n]) for n in range(80)]
    rng = seeded()
    pairs = [sentence_pairs.sentence_order(text, rng, size=50)[0] for _ in range(3000)]
    sizes = np.array([len(a) + len(b) for a, b, _ in pairs])
    assert (sizes < 50).mean() == pytest.approx(0.1 * 48 / 49, abs=0.02)
    assert sizes.min() >= 2
    near = [
        each for _ in range(900) for each in sentence_pairs.next_sentence([text, text], 0, rng, size=50)[:1]
    ]
    sizes = np.array([len(a) + len(b) for a, b, label in near if not label])
    assert (sizes < 50).mean() == pytest.approx(0.1 * 48 / 49, abs=0.04)


def truncated(a: list[int], b: list[int], size: int) -> tuple[int, int]:
    """The lengths that BERT's loop arrives at."""
    x, y = len(a), len(b)
    while x + y > size:
        x, y = (x - 1, y) if x > y else (x, y - 1)
    return x, y


def test_a_pair_too_long_loses_tokens_at_both_ends_as_berts_does() -> None:
    rng = seeded()
    fronts = []
    for x in range(1, 14):
        for y in range(1, 14):
            for size in range(2, 20):
                text = np.arange(x + y)
                a, b, label = sentence_pairs.sentence_order([text[:x], text[x:]], rng, size=size, short=0.0)[
                    0
                ]
                if len(a) + len(b) < x + y:
                    assert len(a) + len(b) == size
                first, second = (b, a) if label else (a, b)
                whole = (text[x:], text[:x]) if label else (text[:x], text[x:])
                if x < size:  # else the first sentence fills a pair alone, and is cut in two
                    assert (len(a), len(b)) == truncated(whole[0].tolist(), whole[1].tolist(), size)
                    assert set(first) <= set(text[:x])
                    assert set(second) <= set(text[x:])
                    if (lost := x - len(first)) > 0:
                        fronts += [first[0] / lost]
                assert in_a_row(a)
                assert in_a_row(b)
    assert np.mean(fronts) == pytest.approx(0.5, abs=0.05)


def test_two_texts_in_a_row_are_swapped_half_of_the_time() -> None:
    texts = documents(40, 150, 5)
    rng = seeded()
    labels = []
    for text in texts:
        for size in (60, 4):  # a sentence longer than a pair is cut in two
            for a, b, label in sentence_pairs.sentence_order(text, rng, size=size):
                first, second = (b, a) if label else (a, b)
                assert min(len(a), len(b)) > 0
                assert first[-1] < second[0]
                labels.append(label)
    assert np.mean(labels) == pytest.approx(0.5, abs=0.03)
    pairs = sentence_pairs.sentence_order(texts[0], rng, size=60, short=0.0)
    joined = [np.append(b, a) if label else np.append(a, b) for a, b, label in pairs]
    assert np.array_equal(np.concatenate(joined), np.concatenate(texts[0]))


def test_segments_of_little_text() -> None:
    one = [np.array([5])]
    assert sentence_pairs.sentence_order(one, seeded(), size=8) == []
    assert sentence_pairs.sentence_order([], seeded(), size=8) == []
    assert sentence_pairs.next_sentence([[], one], 0, seeded(), size=8) == []
    (pair,) = sentence_pairs.next_sentence([one, [np.array([6])]], 0, seeded(), size=2)
    assert (pair.a.tolist(), pair.b.tolist(), pair.label) == ([5], [6], 1)


def test_texts_that_cannot_be_paired_are_told() -> None:
    one = [np.array([5])]
    with pytest.raises(ValueError, match="1 documents, expected at least 2"):
        sentence_pairs.next_sentence([one], 0, seeded(), size=8)
    with pytest.raises(ValueError, match="without sentences"):
        sentence_pairs.next_sentence([one, []], 0, seeded(), size=8)
    with pytest.raises(ValueError, match="without tokens"):
        sentence_pairs.sentence_order([np.array([5]), np.array([], np.int64)], seeded(), size=8)
    with pytest.raises(ValueError, match="size 1, expected at least 2"):
        sentence_pairs.sentence_order(one, seeded(), size=1)


# orders -----------------------------------------------------------------------


def test_about_one_token_in_six_is_guessed() -> None:
    shares = [len(permutation.order(none(600), seeded(seed)).targets) / 600 for seed in range(200)]
    assert np.mean(shares) == pytest.approx(1 / 6, abs=0.004)
    single = permutation.order(none(600), seeded(), longest=1).targets
    assert np.array_equal(single // 6, np.arange(100))  # one token in each window
    assert set(single % 6) == set(range(6))
    lengths = Counter(
        length
        for seed in range(300)
        for length in runs(np.isin(np.arange(600), permutation.order(none(600), seeded(seed)).targets))
    )
    assert all(lengths[n] > 0.1 * sum(lengths.values()) for n in range(1, 6))
    assert sum(lengths[n] for n in lengths if n > 5) < 0.1 * sum(lengths.values())  # spans that touch


def test_special_tokens_are_given() -> None:
    for seed in range(50):
        special = framed(40)
        found = permutation.order(special, seeded(seed))
        assert not special[found.targets].any()
        assert np.array_equal(np.flatnonzero(found.rank >= 0), found.targets)
        assert not found.permute[:, special].any()


@pytest.mark.parametrize("count", [0, 1, 7, 12, 37])
def test_as_many_targets_as_asked_for(count: int) -> None:
    special = framed(40)
    for seed in range(30):
        targets = permutation.order(special, seeded(seed), count=count).targets
        assert len(set(targets.tolist())) == count
        assert not special[targets].any()
        assert (np.diff(targets) > 0).all()
    with pytest.raises(ValueError, match="count 38, expected at most 37"):
        permutation.order(special, seeded(), count=38)


def test_every_token_may_be_a_target() -> None:
    counts = np.sum([permutation.order(none(24), seeded(s), count=4).rank >= 0 for s in range(4000)], axis=0)
    assert counts.min() > 0.5 * 4000 / 6  # at its ends, a text has fewer places for a span
    assert counts.max() < 1.2 * 4000 / 6


@pytest.mark.parametrize("reuse", [0, 12, 20])
def test_no_target_reaches_itself_or_a_later_one_through_any_number_of_layers(reuse: int) -> None:
    for seed in range(40):
        found = permutation.order(framed(30), seeded(seed), count=8, reuse=reuse)
        sees = ~found.permute
        content = sees | np.eye(30, dtype=np.bool_)  # a token always sees itself
        reach = np.linalg.matrix_power(content.astype(np.float64) / 30, 32) > 0
        for target in found.targets:
            known = reach[sees[target]].any(axis=0)  # all that its query is told, at any depth
            later = found.targets[found.rank[found.targets] >= found.rank[target]]
            assert not known[later].any()
            earlier = found.targets[found.rank[found.targets] < found.rank[target]]
            assert sees[target, earlier].all()
        given = np.setdiff1d(np.arange(30), found.targets)
        assert sees[np.ix_(given[given >= reuse], given)].all()
        assert not reach[:reuse, reuse:].any()
        assert sees[reuse:, :reuse].all()


def test_the_mask_is_that_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.data.data_collator import DataCollatorForPermutationLanguageModeling

    class Tokenizer:
        mask_token, mask_token_id, pad_token, pad_token_id = "<mask>", 6, "<pad>", 5

        def get_special_tokens_mask(self, ids: list[int], already_has_special_tokens: bool) -> list[int]:
            return [0] * len(ids)  # a special token of theirs is seen by all and sees targets: it tells them

    drawn: list[torch.Tensor] = []
    shuffled = torch.randperm

    def recorded(number: int) -> torch.Tensor:
        drawn.append(shuffled(number))
        return drawn[-1]

    monkeypatch.setattr(torch, "randperm", recorded)
    collator = DataCollatorForPermutationLanguageModeling(Tokenizer(), return_tensors="pt")
    _, theirs, _, labels = collator.torch_mask_tokens(torch.arange(100, 180).reshape(4, 20))
    for row in range(4):
        half = drawn[row].numpy()
        rank = np.append(half, 10 + half)
        rank[labels[row].numpy() == -100] = -1
        assert (rank >= 0).any()
        assert np.array_equal(permutation.unseen(rank), theirs[row].numpy() == 1)


def test_a_model_takes_the_order_and_a_target_does_not_tell() -> None:
    torch.manual_seed(0)
    model = qkv.build("xlnet", vocab=60, width=32, depth=3, heads=4, head_dim=8, feed=64)
    found = permutation.order(framed(16), seeded(5), count=5)
    permute, targets = torch.from_numpy(found.permute)[None], torch.from_numpy(found.one_hot)[None]
    allowed, index = attention_allowed(Rows.of(torch.zeros(1, 16, dtype=torch.long)), permute, targets)
    assert index is not None
    assert index[0].tolist() == found.targets.tolist()
    assert torch.equal(allowed[0, 16:], ~permute[0][found.targets])
    ids = torch.arange(16)[None]
    before = model.run(ids, permute=permute, targets=targets)["logits"][0]
    for place, target in enumerate(found.targets):
        changed = ids.clone()
        changed[0, target] = 50
        after = model.run(changed, permute=permute, targets=targets)["logits"][0]
        same = (before == after).all(dim=-1).numpy()
        assert np.array_equal(same, found.rank[found.targets] <= found.rank[target]), place


def test_orders_of_little_text() -> None:
    empty = permutation.order(none(0), seeded())
    assert (empty.permute.shape, empty.one_hot.shape) == ((0, 0), (0, 0))
    assert permutation.order(none(1), seeded(), count=1).permute.tolist() == [[True]]
    assert permutation.order(none(1), seeded(), count=0).permute.tolist() == [[False]]
    assert not permutation.order(np.ones(9, np.bool_), seeded()).permute.any()


# spans ------------------------------------------------------------------------


def restored(source: Array, target: Array) -> list[int]:
    """The text, from a source and a target with sentinels from 32,000 up."""
    assert source[-1] == target[-1] == END
    taken: dict[int, list[int]] = {}
    for each in target[:-1].tolist():
        if each >= 32_000:
            last = taken[each] = []
        else:
            last.append(each)
    sentinels = [each for each in source.tolist() if each >= 32_000]
    assert list(taken) == sentinels == [SENTINEL - n for n in range(len(sentinels))]
    return [token for each in source[:-1].tolist() for token in taken.get(each, [each])]


def test_source_and_target_together_are_the_text() -> None:
    rng = seeded()
    for length in [*range(2, 60), 200, 568, 1900]:
        ids = rng.integers(2, 30_000, length)
        source, target = span_corruption.corrupt(ids, rng, sentinel=SENTINEL, end=END)
        assert restored(source, target) == ids.tolist()


@pytest.mark.parametrize("length", [2, 3, 5, 10, 11, 30, 31, 128, 568, 2000])
def test_noise_has_t5s_counts(length: int) -> None:
    for seed in range(20):
        taken = span_corruption.choose(length, seeded(seed))
        tokens = min(max(round(length * 0.15), 1), length - 1)
        assert taken.sum() == tokens
        assert len(runs(taken)) == max(round(tokens / 3.0), 1)
        assert not taken[0]
        assert taken[-1]


def test_all_noise_of_its_counts_has_the_same_chance() -> None:
    rng = seeded()
    found = Counter(span_corruption.choose(12, rng, density=0.5, mean=2.0).tobytes() for _ in range(20_000))
    ways = math.comb(5, 2) ** 2  # 6 tokens in 3 spans, twice
    assert len(found) == ways
    expected = 20_000 / ways
    assert sum((n - expected) ** 2 / expected for n in found.values()) < 150  # chi-square of 99: p = 0.0007


def test_lengths_are_t5s() -> None:
    assert span_corruption.lengths(512) == (568, 114)

    def theirs(source: int) -> tuple[int, int]:
        def read(text: int) -> tuple[int, int]:
            taken = round(text * 0.15)
            return text - taken + round(taken / 3.0) + 1, taken + round(taken / 3.0) + 1

        text = source - 1
        while read(text + 1)[0] <= source:
            text += 1
        return text, read(text)[1]

    for source in range(12, 1100, 7):
        assert span_corruption.lengths(source) == theirs(source)
    for source in range(3, 200):
        text, target = span_corruption.lengths(source)
        found = span_corruption.corrupt(np.arange(2, 2 + text), seeded(), sentinel=SENTINEL, end=END)
        assert (len(found.source), len(found.target)) == (source, target)
        longer = span_corruption.corrupt(np.arange(text + 1), seeded(), sentinel=SENTINEL, end=END)
        assert len(longer.source) > source
    with pytest.raises(ValueError, match="source 2, expected at least 3"):
        span_corruption.lengths(2)


def test_spans_of_little_text() -> None:
    def found(ids: list[int]) -> list[list[int]]:
        both = span_corruption.corrupt(np.array(ids, np.uint16), seeded(), sentinel=70_000, end=END)
        return [part.tolist() for part in both]

    assert found([]) == [[END], [END]]
    assert found([8]) == [[8, END], [70_000, END]]
    assert found([8, 9]) == [[8, 70_000, END], [70_000, 9, END]]


def test_spans_may_be_longer_than_the_text_and_dense() -> None:
    assert span_corruption.choose(10, seeded(), density=0.5, mean=50.0).tolist() == [False] * 5 + [True] * 5
    for density in (0.8, 1.0):
        taken = span_corruption.choose(20, seeded(), density=density, mean=1.0)
        assert taken.sum() == min(round(20 * density), 19)


def test_more_spans_than_sentinels_are_refused() -> None:
    with pytest.raises(ValueError, match=r"20 spans in 400 tokens, but only 19 sentinels"):
        span_corruption.corrupt(np.arange(400), seeded(), sentinel=SENTINEL, end=END, sentinels=19)


# denoising --------------------------------------------------------------------


@pytest.mark.parametrize(("share", "mean"), [(0.3, 3.0), (0.35, 3.5), (0.0, 3.0), (1.0, 3.0), (0.3, 40.0)])
def test_infilling_hides_its_share_and_keeps_the_rest_in_order(share: float, mean: float) -> None:
    for length in [*range(40), 300]:
        ids = np.arange(1000, 1000 + length)
        read = denoising.infill(ids, seeded(length), mask=MASK, share=share, mean=mean)
        kept = read[read != MASK]
        assert len(kept) == length - math.ceil(share * length)
        assert (np.diff(kept) > 0).all()
        assert set(kept.tolist()) <= set(ids.tolist())
        gaps = np.flatnonzero(np.diff(kept) > 1)
        assert all(read[np.flatnonzero(read == kept[gap])[0] + 1] == MASK for gap in gaps)


def test_infilled_spans_are_poissons() -> None:
    ids = np.arange(1000, 601_000)
    read = denoising.infill(ids, seeded(), mask=MASK)
    masks = np.flatnonzero(read == MASK)
    assert 180_000 / len(masks) == pytest.approx(3.0, rel=0.01)
    alone = masks[(masks > 0) & (masks < len(read) - 1)]
    alone = alone[(read[alone - 1] != MASK) & (read[alone + 1] != MASK)]
    sizes = read[alone + 1] - read[alone - 1] - 1  # of a span that touches no other
    for n in range(9):
        assert (sizes == n).mean() == pytest.approx(math.exp(-3) * 3**n / math.factorial(n), abs=0.006)


def test_every_token_is_as_likely_to_be_infilled() -> None:
    rng = seeded()
    kept = np.zeros(60)
    for _ in range(8000):
        read = denoising.infill(np.arange(60), rng, mask=99)
        kept[read[read != 99]] += 1 / 8000
    within = kept[8:-8]  # at its ends, a text has fewer places for a span
    assert np.abs(within - within.mean()).max() < 0.022  # four standard deviations
    assert np.abs(kept - kept[::-1]).max() < 0.03
    assert kept.max() < 0.9


def test_infilling_refuses_spans_without_length() -> None:
    with pytest.raises(ValueError, match="mean 0, expected more than 0"):
        denoising.infill(np.arange(9), seeded(), mask=MASK, mean=0)


def test_sentences_are_permuted_whole() -> None:
    ids = np.array([10, 11, STOP, 20, STOP, 30, 31, 32, STOP, 40])
    whole = ((10, 11, STOP), (20, STOP), (30, 31, 32, STOP), (40,))
    found: Counter[tuple[tuple[int, ...], ...]] = Counter()
    for seed in range(2400):
        read = denoising.shuffle(ids, seeded(seed), stops=[STOP]).tolist()
        sentences = []
        while read:
            sentences.append(next(each for each in whole if each[0] == read[0]))
            assert tuple(read[: len(sentences[-1])]) == sentences[-1]
            del read[: len(sentences[-1])]
        found[tuple(sentences)] += 1
    assert len(found) == 24
    assert all(60 < count < 145 for count in found.values())  # 100 each, four standard deviations
    assert denoising.shuffle(np.array([1, 2]), seeded(), stops=[]).tolist() == [1, 2]
    assert denoising.shuffle(np.empty(0, np.uint16), seeded(), stops=[STOP]).tolist() == []


def test_several_ids_may_end_a_sentence() -> None:
    found = {
        tuple(denoising.shuffle(np.array([1, 8, 2, 9]), seeded(s), stops=[8, 9]).tolist()) for s in range(20)
    }
    assert found == {(1, 8, 2, 9), (2, 9, 1, 8)}


def test_deletion_takes_its_share() -> None:
    for length in range(30):
        read = denoising.delete(np.arange(length), seeded(length), share=0.3)
        assert len(read) == length - round(0.3 * length)
        assert (np.diff(read) > 0).all()


def test_rotation_begins_anywhere() -> None:
    starts: Counter[int] = Counter()
    for seed in range(700):
        read = denoising.rotate(np.arange(7), seeded(seed))
        assert ((read - read[0]) % 7 == np.arange(7)).all()
        starts[int(read[0])] += 1
    assert len(starts) == 7
    assert min(starts.values()) > 60
    assert denoising.rotate(np.empty(0, np.int64), seeded()).tolist() == []
    assert denoising.rotate(np.array([4]), seeded()).tolist() == [4]


def test_noises_come_one_after_the_other() -> None:
    ids = np.array([*range(20, 50), STOP, *range(50, 80), STOP])
    rng = seeded(2)
    once = denoising.shuffle(ids, rng, stops=[STOP])
    twice = denoising.infill(once, rng, mask=MASK, share=0.3, mean=3.0)
    assert np.array_equal(denoising.damage(ids, seeded(2), denoising.bart(MASK, [STOP])), twice)
    read = denoising.damage(ids, seeded(2), denoising.mbart(MASK, [STOP]))
    assert (read != MASK).sum() == len(ids) - math.ceil(0.35 * len(ids))
    all_four: tuple[denoising.Noise, ...] = (
        *denoising.bart(MASK, [STOP]),
        partial(denoising.delete, share=0.1),
        denoising.rotate,
    )
    assert len(denoising.damage(ids, seeded(2), all_four)) == len(twice) - round(0.1 * len(twice))
    assert denoising.damage(ids, seeded(), ()).tolist() == ids.tolist()
