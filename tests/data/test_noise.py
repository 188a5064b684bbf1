"""Noise follows the rules of the papers, loses no other tokens, and depends only on the seed."""

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
from qkv import Inputs
from qkv.data.noise import denoising, masking, permutation, sentence_pairs, span_corruption
from qkv.model.inputs import build_permutation_mask

Array = NDArray[Any]
MASK, STOP, END, SENTINEL = 103, 7, 1, 32099
REGULAR_IDS = masking.list_regular_token_ids(500, range(200))


def make_rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def build_empty_mask(length: int) -> NDArray[np.bool_]:
    return np.zeros(length, np.bool_)


def build_special_mask(length: int) -> NDArray[np.bool_]:
    """Return a special tokens mask with [CLS] and [SEP] at the ends and a [SEP] in the middle."""
    special = build_empty_mask(length)
    special[[0, length // 2, -1]] = True
    return special


def compute_run_lengths(mask: NDArray[np.bool_]) -> list[int]:
    """Return the lengths of the runs of true values."""
    edges = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0))
    return (edges[1::2] - edges[::2]).tolist()


def is_consecutive(ids: Array) -> bool:
    return bool((np.diff(ids) == 1).all())


def make_documents(num_documents: int, num_sentences: int, length: int) -> list[list[Array]]:
    """Return documents of sentences of `length` tokens; all tokens are different."""
    ids = np.arange(num_documents * num_sentences * length)
    return [list(document) for document in ids.reshape(num_documents, num_sentences, length)]


# all noise --------------------------------------------------------------------


def apply_masking(ids: Array, rng: np.random.Generator) -> Array:
    return masking.mask_tokens(
        ids,
        masking.choose_mask_positions(build_empty_mask(len(ids)), rng, max_ngram=3),
        rng,
        mask_token_id=MASK,
        regular_token_ids=REGULAR_IDS,
    )


def apply_span_corruption(ids: Array, rng: np.random.Generator) -> Array:
    return np.concatenate(
        span_corruption.corrupt_spans(ids, rng, first_sentinel_id=SENTINEL, eos_token_id=END)
    )


def concatenate_pairs(pairs: list[sentence_pairs.SegmentPair]) -> Array:
    return np.concatenate(
        [np.concatenate([pair.segment_a, pair.segment_b, [pair.label]]) for pair in pairs]
    )


def sample_order_pairs(ids: Array, rng: np.random.Generator) -> Array:
    return concatenate_pairs(
        sentence_pairs.sample_sentence_order_pairs(np.split(ids, 8), rng, max_length=32)
    )


def sample_next_pairs(ids: Array, rng: np.random.Generator) -> Array:
    documents = [np.split(ids, 8), np.split(ids, 4)]
    return concatenate_pairs(
        sentence_pairs.sample_next_sentence_pairs(documents, 0, rng, max_length=32)
    )


def sample_perm_mask(ids: Array, rng: np.random.Generator) -> Array:
    return permutation.sample_factorization_order(ids == STOP, rng, num_targets=9).perm_mask


def build_noise_functions(
    mask_prob: float, mean_span_length: float
) -> tuple[denoising.NoiseFunction, ...]:
    """Return the noise of BART (0.3, 3.0) or mBART (0.35, 3.5)."""
    return (
        partial(denoising.permute_sentences, sentence_end_ids=[STOP]),
        partial(
            denoising.infill_text,
            mask_token_id=MASK,
            mask_prob=mask_prob,
            mean_span_length=mean_span_length,
        ),
    )


NOISES: dict[str, Callable[[Array, np.random.Generator], Array]] = {
    "masking": apply_masking,
    "span corruption": apply_span_corruption,
    "sentence order": sample_order_pairs,
    "next sentence": sample_next_pairs,
    "permutation": sample_perm_mask,
    "delete": partial(denoising.delete_tokens, delete_prob=0.2),
    "rotate": denoising.rotate_document,
    "bart": partial(denoising.apply_noise, noise_functions=build_noise_functions(0.3, 3.0)),
    "mbart": partial(denoising.apply_noise, noise_functions=build_noise_functions(0.35, 3.5)),
}


@pytest.mark.parametrize("name", NOISES)
def test_noise_depends_on_the_seed_and_keeps_its_input(name: str) -> None:
    ids = make_rng(9).integers(5, 400, 64).astype(np.uint16)
    ids.flags.writeable = False  # as a memory-mapped file is
    first, second, other = (NOISES[name](ids, make_rng(seed)) for seed in (3, 3, 4))
    assert first.dtype == (np.bool_ if name == "permutation" else np.int64)
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


# masking ----------------------------------------------------------------------


def test_regular_ids_are_not_special() -> None:
    assert masking.list_regular_token_ids(6, [0, 4]).tolist() == [1, 2, 3, 5]


@pytest.mark.parametrize("length", [3, 4, 10, 13, 37, 128, 512])
def test_as_many_tokens_are_chosen_as_bert_chooses(length: int) -> None:
    special = build_special_mask(length)
    total = int((~special).sum())
    for seed in range(20):
        chosen = masking.choose_mask_positions(special, make_rng(seed))
        assert chosen.sum() == min(max(1, round(0.15 * total)), total)
        assert not (chosen & special).any()


def test_every_token_has_the_same_probability() -> None:
    rng = make_rng()
    counts = np.sum(
        [masking.choose_mask_positions(build_empty_mask(40), rng) for _ in range(8000)], axis=0
    )
    assert np.abs(counts / 8000 - 0.15).max() < 0.016  # four standard deviations


@pytest.mark.parametrize("max_ngram", [1, 3])
def test_masking_of_short_texts(max_ngram: int) -> None:
    assert (
        masking.choose_mask_positions(build_empty_mask(0), make_rng(), max_ngram=max_ngram).tolist()
        == []
    )
    assert masking.choose_mask_positions(
        build_empty_mask(1), make_rng(), max_ngram=max_ngram
    ).tolist() == [True]
    assert not masking.choose_mask_positions(
        np.ones(9, np.bool_), make_rng(), max_ngram=max_ngram
    ).any()


def test_whole_words_are_chosen() -> None:
    rng = make_rng()
    for _ in range(300):
        special = rng.random(80) < 0.05
        starts = rng.random(80) < 0.6
        chosen = masking.choose_mask_positions(special, rng, word_starts=starts)
        assert chosen.sum() <= max(1, round(0.15 * int((~special).sum())))
        assert not (chosen & special).any()
        # A token inside a word is chosen if the token before it is.
        within = np.flatnonzero(~starts[1:] & ~special[1:] & ~special[:-1]) + 1
        assert np.array_equal(chosen[within], chosen[within - 1])


def test_a_word_longer_than_the_count_is_skipped() -> None:
    starts = np.array([True] + [False] * 8 + [True])
    for seed in range(10):
        assert np.flatnonzero(
            masking.choose_mask_positions(build_empty_mask(10), make_rng(seed), word_starts=starts)
        ).tolist() == [9]
    assert not masking.choose_mask_positions(
        build_empty_mask(9), make_rng(), word_starts=starts[:9]
    ).any()


def test_a_word_begins_with_the_text_and_after_a_special_token() -> None:
    special = np.array([False, False, True, False, False])
    assert np.array_equal(
        masking.choose_mask_positions(
            special, make_rng(), word_starts=build_empty_mask(5), mask_prob=1.0
        ),
        ~special,
    )


def test_ngrams_have_the_probabilities_of_albert() -> None:
    mask = masking.choose_mask_positions(
        build_empty_mask(2_000_000), make_rng(), mask_prob=0.01, max_ngram=3
    )
    assert mask.sum() == 20_000
    counts = Counter(compute_run_lengths(mask))
    total = sum(counts[n] for n in (1, 2, 3))
    for n in (1, 2, 3):  # 6/11, 3/11, 2/11
        assert counts[n] / total == pytest.approx(1 / n / (1 + 1 / 2 + 1 / 3), abs=0.015)


def test_ngrams_fill_the_count_and_do_not_cross_special_tokens() -> None:
    rng = make_rng()
    for _ in range(200):
        special = build_special_mask(101)
        chosen = masking.choose_mask_positions(special, rng, max_ngram=3)
        assert chosen.sum() == round(0.15 * 98)
        assert not (chosen & special).any()
        starts = rng.random(101) < 0.5
        within = np.flatnonzero(~starts[1:] & ~special[1:] & ~special[:-1]) + 1
        chosen = masking.choose_mask_positions(special, rng, word_starts=starts, max_ngram=3)
        assert not (chosen & special).any()
        assert np.array_equal(chosen[within], chosen[within - 1])
        assert 0 < chosen.sum() <= round(0.15 * 98)


def test_chosen_tokens_are_masked_replaced_or_unchanged() -> None:
    rng = make_rng()
    ids = rng.integers(200, 500, 200_000)
    chosen = masking.choose_mask_positions(build_empty_mask(len(ids)), rng)
    masked = masking.mask_tokens(
        ids, chosen, rng, mask_token_id=MASK, regular_token_ids=REGULAR_IDS
    )
    assert np.array_equal(masked[~chosen], ids[~chosen])
    is_masked = masked[chosen] == MASK
    is_unchanged = masked[chosen] == ids[chosen]
    assert is_masked.mean() == pytest.approx(0.8, abs=0.01)
    assert is_unchanged.mean() == pytest.approx(0.1 + 0.1 / len(REGULAR_IDS), abs=0.01)
    replaced = masked[chosen][~is_masked & ~is_unchanged]
    assert len(replaced) / chosen.sum() == pytest.approx(0.1, abs=0.01)
    assert set(replaced.tolist()) == set(REGULAR_IDS.tolist())


def test_electras_generator_has_no_random_tokens() -> None:
    ids = np.arange(200, 500)
    chosen = masking.choose_mask_positions(build_empty_mask(300), make_rng(), mask_prob=0.5)
    masked = masking.mask_tokens(
        ids,
        chosen,
        make_rng(),
        mask_token_id=MASK,
        regular_token_ids=REGULAR_IDS,
        mask_token_prob=0.85,
        random_token_prob=0.0,
    )
    assert set(masked[masked != ids].tolist()) == {MASK}
    assert (masked[chosen] == MASK).mean() == pytest.approx(0.85, abs=0.08)


# sentence pairs ---------------------------------------------------------------


def test_half_of_the_pairs_are_from_two_documents() -> None:
    texts = make_documents(60, 150, 5)
    rng = make_rng()
    labels = []
    for number in range(len(texts)):
        for a, b, label in sentence_pairs.sample_next_sentence_pairs(
            texts, number, rng, max_length=60, short_seq_prob=0.0
        ):
            assert min(len(a), len(b)) > 0
            assert len(a) + len(b) <= 60
            assert set(a // 750) == {number}
            assert len(set(b // 750)) == 1
            assert (b[0] // 750 != number) == label
            assert label or b[0] > a[-1]
            assert is_consecutive(a)
            assert is_consecutive(b)
            labels.append(label)
    assert len(labels) > 900
    assert np.mean(labels) == pytest.approx(0.5, abs=0.05)  # three standard deviations


def test_replaced_sentences_are_used_later() -> None:
    texts = make_documents(4, 40, 5)
    for seed in range(20):
        pairs = sentence_pairs.sample_next_sentence_pairs(
            texts, 1, make_rng(seed), max_length=40, short_seq_prob=0.0
        )
        used = [part for a, b, label in pairs for part in ([a] if label else [a, b])]
        assert np.array_equal(np.concatenate(used), np.concatenate(texts[1]))
        assert {len(a) + len(b) for a, b, label in pairs[:-1] if not label} <= {40}


def test_one_document_in_ten_makes_short_pairs() -> None:
    text = [np.array([n]) for n in range(80)]
    rng = make_rng()
    pairs = [
        sentence_pairs.sample_sentence_order_pairs(text, rng, max_length=50)[0] for _ in range(3000)
    ]
    sizes = np.array([len(a) + len(b) for a, b, _ in pairs])
    assert (sizes < 50).mean() == pytest.approx(0.1 * 48 / 49, abs=0.02)
    assert sizes.min() >= 2
    next_pairs = [
        pair
        for _ in range(900)
        for pair in sentence_pairs.sample_next_sentence_pairs([text, text], 0, rng, max_length=50)[
            :1
        ]
    ]
    sizes = np.array([len(a) + len(b) for a, b, label in next_pairs if not label])
    assert (sizes < 50).mean() == pytest.approx(0.1 * 48 / 49, abs=0.04)


def truncate_lengths(x: int, y: int, max_length: int) -> tuple[int, int]:
    """Return the lengths of a pair after BERT's truncation loop."""
    while x + y > max_length:
        x, y = (x - 1, y) if x > y else (x, y - 1)
    return x, y


def test_a_pair_too_long_loses_tokens_at_both_ends_as_berts_does() -> None:
    rng = make_rng()
    front_shares = []
    for x in range(1, 14):
        for y in range(1, 14):
            for size in range(2, 20):
                text = np.arange(x + y)
                a, b, label = sentence_pairs.sample_sentence_order_pairs(
                    [text[:x], text[x:]], rng, max_length=size, short_seq_prob=0.0
                )[0]
                if len(a) + len(b) < x + y:
                    assert len(a) + len(b) == size
                first, second = (b, a) if label else (a, b)
                lengths = (y, x) if label else (x, y)
                if x < size:  # else the first sentence fills a pair and is split
                    assert (len(a), len(b)) == truncate_lengths(*lengths, size)
                    assert set(first) <= set(text[:x])
                    assert set(second) <= set(text[x:])
                    if (num_removed := x - len(first)) > 0:
                        front_shares += [first[0] / num_removed]
                assert is_consecutive(a)
                assert is_consecutive(b)
    assert np.mean(front_shares) == pytest.approx(0.5, abs=0.05)


def test_half_of_the_consecutive_segments_are_swapped() -> None:
    texts = make_documents(40, 150, 5)
    rng = make_rng()
    labels = []
    for text in texts:
        for size in (60, 4):  # a sentence longer than a pair is split
            for a, b, label in sentence_pairs.sample_sentence_order_pairs(
                text, rng, max_length=size
            ):
                first, second = (b, a) if label else (a, b)
                assert min(len(a), len(b)) > 0
                assert first[-1] < second[0]
                labels.append(label)
    assert np.mean(labels) == pytest.approx(0.5, abs=0.03)
    pairs = sentence_pairs.sample_sentence_order_pairs(
        texts[0], rng, max_length=60, short_seq_prob=0.0
    )
    joined = [np.append(b, a) if label else np.append(a, b) for a, b, label in pairs]
    assert np.array_equal(np.concatenate(joined), np.concatenate(texts[0]))


def test_pairs_of_short_texts() -> None:
    document = [np.array([5])]
    assert sentence_pairs.sample_sentence_order_pairs(document, make_rng(), max_length=8) == []
    assert sentence_pairs.sample_sentence_order_pairs([], make_rng(), max_length=8) == []
    assert (
        sentence_pairs.sample_next_sentence_pairs([[], document], 0, make_rng(), max_length=8) == []
    )
    (pair,) = sentence_pairs.sample_next_sentence_pairs(
        [document, [np.array([6])]], 0, make_rng(), max_length=2
    )
    assert (pair.segment_a.tolist(), pair.segment_b.tolist(), pair.label) == ([5], [6], 1)


def test_texts_that_cannot_be_paired() -> None:
    document = [np.array([5])]
    with pytest.raises(ValueError, match="1 documents, expected at least 2"):
        sentence_pairs.sample_next_sentence_pairs([document], 0, make_rng(), max_length=8)
    with pytest.raises(ValueError, match="without sentences"):
        sentence_pairs.sample_next_sentence_pairs([document, []], 0, make_rng(), max_length=8)
    with pytest.raises(ValueError, match="without tokens"):
        sentence_pairs.sample_sentence_order_pairs(
            [np.array([5]), np.array([], np.int64)], make_rng(), max_length=8
        )
    with pytest.raises(ValueError, match="max_length 1, expected at least 2"):
        sentence_pairs.sample_sentence_order_pairs(document, make_rng(), max_length=1)


# permutation ------------------------------------------------------------------


def test_about_one_token_in_six_is_predicted() -> None:
    shares = [
        len(
            permutation.sample_factorization_order(
                build_empty_mask(600), make_rng(seed)
            ).target_positions
        )
        / 600
        for seed in range(200)
    ]
    assert np.mean(shares) == pytest.approx(1 / 6, abs=0.004)
    single = permutation.sample_factorization_order(
        build_empty_mask(600), make_rng(), max_span_length=1
    ).target_positions
    assert np.array_equal(single // 6, np.arange(100))  # one token in each window
    assert set(single % 6) == set(range(6))
    lengths = Counter(
        length
        for seed in range(300)
        for length in compute_run_lengths(
            np.isin(
                np.arange(600),
                permutation.sample_factorization_order(
                    build_empty_mask(600), make_rng(seed)
                ).target_positions,
            )
        )
    )
    assert all(lengths[n] > 0.1 * sum(lengths.values()) for n in range(1, 6))
    assert sum(lengths[n] for n in lengths if n > 5) < 0.1 * sum(
        lengths.values()
    )  # spans that touch


def test_special_tokens_are_never_targets() -> None:
    for seed in range(50):
        special = build_special_mask(40)
        order = permutation.sample_factorization_order(special, make_rng(seed))
        assert not special[order.target_positions].any()
        assert np.array_equal(np.flatnonzero(order.ranks >= 0), order.target_positions)
        assert not order.perm_mask[:, special].any()


@pytest.mark.parametrize("count", [0, 1, 7, 12, 37])
def test_the_number_of_targets_is_exact(count: int) -> None:
    special = build_special_mask(40)
    for seed in range(30):
        targets = permutation.sample_factorization_order(
            special, make_rng(seed), num_targets=count
        ).target_positions
        assert len(set(targets.tolist())) == count
        assert not special[targets].any()
        assert (np.diff(targets) > 0).all()
    with pytest.raises(ValueError, match="num_targets 38, expected at most 37"):
        permutation.sample_factorization_order(special, make_rng(), num_targets=38)


def test_every_token_may_be_a_target() -> None:
    counts = np.sum(
        [
            permutation.sample_factorization_order(
                build_empty_mask(24), make_rng(s), num_targets=4
            ).ranks
            >= 0
            for s in range(4000)
        ],
        axis=0,
    )
    assert counts.min() > 0.5 * 4000 / 6  # near the ends fewer spans cover a token
    assert counts.max() < 1.2 * 4000 / 6


def test_no_target_reaches_itself_or_a_later_one_through_any_number_of_layers() -> None:
    for seed in range(40):
        order = permutation.sample_factorization_order(
            build_special_mask(30), make_rng(seed), num_targets=8
        )
        targets = order.target_positions
        attends = ~order.perm_mask
        content = attends | np.eye(30, dtype=np.bool_)  # a token always attends to itself
        reach = np.linalg.matrix_power(content.astype(np.float64) / 30, 32) > 0
        for target in targets:
            reachable = reach[attends[target]].any(axis=0)  # by its query stream, at any depth
            later = targets[order.ranks[targets] >= order.ranks[target]]
            assert not reachable[later].any()
            earlier = targets[order.ranks[targets] < order.ranks[target]]
            assert attends[target, earlier].all()
        context = np.setdiff1d(np.arange(30), targets)
        assert attends[np.ix_(context, context)].all()


def test_the_mask_is_that_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.data.data_collator import DataCollatorForPermutationLanguageModeling

    class Tokenizer:
        mask_token, mask_token_id, pad_token, pad_token_id = "<mask>", 6, "<pad>", 5

        def get_special_tokens_mask(
            self, ids: list[int], already_has_special_tokens: bool
        ) -> list[int]:
            return [0] * len(
                ids
            )  # transformers lets special tokens attend to targets and leak them

    permutations: list[torch.Tensor] = []
    randperm = torch.randperm

    def record_permutation(length: int) -> torch.Tensor:
        permutations.append(randperm(length))
        return permutations[-1]

    monkeypatch.setattr(torch, "randperm", record_permutation)
    collator = DataCollatorForPermutationLanguageModeling(Tokenizer(), return_tensors="pt")
    _, expected, _, labels = collator.torch_mask_tokens(torch.arange(100, 180).reshape(4, 20))
    for row in range(4):
        half = permutations[row].numpy()
        ranks = np.append(half, 10 + half)
        ranks[labels[row].numpy() == -100] = -1
        assert (ranks >= 0).any()
        assert np.array_equal(permutation.build_perm_mask(ranks), expected[row].numpy() == 1)


def test_a_model_does_not_leak_targets() -> None:
    torch.manual_seed(0)
    model = qkv.build("xlnet", vocab_size=60, width=32, depth=3, heads=4, head_dim=8, ffn_width=64)
    order = permutation.sample_factorization_order(
        build_special_mask(16), make_rng(5), num_targets=5
    )
    perm_mask = torch.from_numpy(order.perm_mask)[None]
    target_mapping = torch.eye(16)[order.target_positions][None]  # (1, P, T)
    allowed, index = build_permutation_mask(
        Inputs.create(torch.zeros(1, 16, dtype=torch.long)), perm_mask, target_mapping
    )
    assert index is not None
    assert index[0].tolist() == order.target_positions.tolist()
    assert torch.equal(allowed[0, 16:], ~perm_mask[0][order.target_positions])
    ids = torch.arange(16)[None]
    before = model(ids, perm_mask=perm_mask, target_mapping=target_mapping)["logits"][0]
    for i, target in enumerate(order.target_positions):
        changed = ids.clone()
        changed[0, target] = 50
        after = model(changed, perm_mask=perm_mask, target_mapping=target_mapping)["logits"][0]
        same = (before == after).all(dim=-1).numpy()
        assert np.array_equal(same, order.ranks[order.target_positions] <= order.ranks[target]), i


def test_orders_of_short_texts() -> None:
    empty = permutation.sample_factorization_order(build_empty_mask(0), make_rng())
    assert (empty.perm_mask.shape, empty.target_positions.shape) == ((0, 0), (0,))
    assert permutation.sample_factorization_order(
        build_empty_mask(1), make_rng(), num_targets=1
    ).perm_mask.tolist() == [[True]]
    assert permutation.sample_factorization_order(
        build_empty_mask(1), make_rng(), num_targets=0
    ).perm_mask.tolist() == [[False]]
    assert not permutation.sample_factorization_order(
        np.ones(9, np.bool_), make_rng()
    ).perm_mask.any()


# span corruption --------------------------------------------------------------


def restore_text(source: Array, target: Array) -> list[int]:
    """Return the text of a source and a target whose sentinels are the ids from 32,000 on."""
    assert source[-1] == target[-1] == END
    spans: dict[int, list[int]] = {}
    for token in target[:-1].tolist():
        if token >= 32_000:
            span = spans[token] = []
        else:
            span.append(token)
    sentinels = [token for token in source.tolist() if token >= 32_000]
    assert list(spans) == sentinels == [SENTINEL - n for n in range(len(sentinels))]
    return [i for token in source[:-1].tolist() for i in spans.get(token, [token])]


def test_source_and_target_together_are_the_text() -> None:
    rng = make_rng()
    for length in [*range(2, 60), 200, 568, 1900]:
        ids = rng.integers(2, 30_000, length)
        source, target = span_corruption.corrupt_spans(
            ids, rng, first_sentinel_id=SENTINEL, eos_token_id=END
        )
        assert restore_text(source, target) == ids.tolist()


@pytest.mark.parametrize("length", [2, 3, 5, 10, 11, 30, 31, 128, 568, 2000])
def test_noise_has_t5s_counts(length: int) -> None:
    for seed in range(20):
        noise_mask = span_corruption.sample_span_noise_mask(length, make_rng(seed))
        num_noise = min(max(round(length * 0.15), 1), length - 1)
        assert noise_mask.sum() == num_noise
        assert len(compute_run_lengths(noise_mask)) == max(round(num_noise / 3.0), 1)
        assert not noise_mask[0]
        assert noise_mask[-1]


def test_all_noise_masks_have_the_same_probability() -> None:
    rng = make_rng()
    counts = Counter(
        span_corruption.sample_span_noise_mask(
            12, rng, noise_density=0.5, mean_span_length=2.0
        ).tobytes()
        for _ in range(20_000)
    )
    num_masks = math.comb(5, 2) ** 2  # 6 tokens in 3 spans, twice
    assert len(counts) == num_masks
    expected = 20_000 / num_masks
    assert (
        sum((n - expected) ** 2 / expected for n in counts.values()) < 150
    )  # chi-square of 99: p = 0.0007


def test_lengths_are_those_of_t5() -> None:
    assert span_corruption.compute_input_and_target_lengths(512) == (568, 114)

    def compute_expected(source: int) -> tuple[int, int]:
        def compute_lengths(text: int) -> tuple[int, int]:
            num_noise = round(text * 0.15)
            return text - num_noise + round(num_noise / 3.0) + 1, num_noise + round(
                num_noise / 3.0
            ) + 1

        text = source - 1
        while compute_lengths(text + 1)[0] <= source:
            text += 1
        return text, compute_lengths(text)[1]

    for source in range(12, 1100, 7):
        assert span_corruption.compute_input_and_target_lengths(source) == compute_expected(source)
    for source in range(3, 200):
        text, target = span_corruption.compute_input_and_target_lengths(source)
        example = span_corruption.corrupt_spans(
            np.arange(2, 2 + text), make_rng(), first_sentinel_id=SENTINEL, eos_token_id=END
        )
        assert (len(example.source), len(example.target)) == (source, target)
        longer = span_corruption.corrupt_spans(
            np.arange(text + 1), make_rng(), first_sentinel_id=SENTINEL, eos_token_id=END
        )
        assert len(longer.source) > source
    with pytest.raises(ValueError, match="source_length 2, expected at least 3"):
        span_corruption.compute_input_and_target_lengths(2)


def test_span_corruption_of_short_texts() -> None:
    def corrupt(ids: list[int]) -> list[list[int]]:
        example = span_corruption.corrupt_spans(
            np.array(ids, np.uint16), make_rng(), first_sentinel_id=70_000, eos_token_id=END
        )
        return [part.tolist() for part in example]

    assert corrupt([]) == [[END], [END]]
    assert corrupt([8]) == [[8, END], [70_000, END]]
    assert corrupt([8, 9]) == [[8, 70_000, END], [70_000, 9, END]]


def test_long_and_dense_spans() -> None:
    assert (
        span_corruption.sample_span_noise_mask(
            10, make_rng(), noise_density=0.5, mean_span_length=50.0
        ).tolist()
        == [False] * 5 + [True] * 5
    )
    for density in (0.8, 1.0):
        noise_mask = span_corruption.sample_span_noise_mask(
            20, make_rng(), noise_density=density, mean_span_length=1.0
        )
        assert noise_mask.sum() == min(round(20 * density), 19)


def test_more_spans_than_sentinels_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"20 spans in 400 tokens, but only 19 sentinels"):
        span_corruption.corrupt_spans(
            np.arange(400),
            make_rng(),
            first_sentinel_id=SENTINEL,
            eos_token_id=END,
            num_sentinels=19,
        )


# denoising --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask_prob", "mean_span_length"),
    [(0.3, 3.0), (0.35, 3.5), (0.0, 3.0), (1.0, 3.0), (0.3, 40.0)],
)
def test_infilling_masks_its_share_and_keeps_the_rest_in_order(
    mask_prob: float, mean_span_length: float
) -> None:
    for length in [*range(40), 300]:
        ids = np.arange(1000, 1000 + length)
        infilled = denoising.infill_text(
            ids,
            make_rng(length),
            mask_token_id=MASK,
            mask_prob=mask_prob,
            mean_span_length=mean_span_length,
        )
        rest = infilled[infilled != MASK]
        assert len(rest) == length - math.ceil(mask_prob * length)
        assert (np.diff(rest) > 0).all()
        assert set(rest.tolist()) <= set(ids.tolist())
        gaps = np.flatnonzero(np.diff(rest) > 1)
        assert all(infilled[np.flatnonzero(infilled == rest[gap])[0] + 1] == MASK for gap in gaps)


def test_infilled_span_lengths_have_a_poisson_distribution() -> None:
    ids = np.arange(1000, 601_000)
    infilled = denoising.infill_text(ids, make_rng(), mask_token_id=MASK)
    masks = np.flatnonzero(infilled == MASK)
    assert 180_000 / len(masks) == pytest.approx(3.0, rel=0.01)
    isolated = masks[(masks > 0) & (masks < len(infilled) - 1)]
    isolated = isolated[(infilled[isolated - 1] != MASK) & (infilled[isolated + 1] != MASK)]
    sizes = infilled[isolated + 1] - infilled[isolated - 1] - 1  # of spans that touch no other span
    for n in range(9):
        assert (sizes == n).mean() == pytest.approx(
            math.exp(-3) * 3**n / math.factorial(n), abs=0.006
        )


def test_every_token_is_as_likely_to_be_infilled() -> None:
    rng = make_rng()
    keep_probs = np.zeros(60)
    for _ in range(8000):
        infilled = denoising.infill_text(np.arange(60), rng, mask_token_id=99)
        keep_probs[infilled[infilled != 99]] += 1 / 8000
    inner = keep_probs[8:-8]  # near the ends fewer spans cover a token
    assert np.abs(inner - inner.mean()).max() < 0.022  # four standard deviations
    assert np.abs(keep_probs - keep_probs[::-1]).max() < 0.03
    assert keep_probs.max() < 0.9


def test_infilling_rejects_a_mean_length_of_zero() -> None:
    with pytest.raises(ValueError, match="mean_span_length 0, expected more than 0"):
        denoising.infill_text(np.arange(9), make_rng(), mask_token_id=MASK, mean_span_length=0)


def test_sentences_are_permuted_as_units() -> None:
    ids = np.array([10, 11, STOP, 20, STOP, 30, 31, 32, STOP, 40])
    sentences = ((10, 11, STOP), (20, STOP), (30, 31, 32, STOP), (40,))
    counts: Counter[tuple[tuple[int, ...], ...]] = Counter()
    for seed in range(2400):
        permuted = denoising.permute_sentences(
            ids, make_rng(seed), sentence_end_ids=[STOP]
        ).tolist()
        order = []
        while permuted:
            order.append(next(sentence for sentence in sentences if sentence[0] == permuted[0]))
            assert tuple(permuted[: len(order[-1])]) == order[-1]
            del permuted[: len(order[-1])]
        counts[tuple(order)] += 1
    assert len(counts) == 24
    assert all(60 < count < 145 for count in counts.values())  # 100 each, four standard deviations
    assert denoising.permute_sentences(
        np.array([1, 2]), make_rng(), sentence_end_ids=[]
    ).tolist() == [1, 2]
    assert (
        denoising.permute_sentences(
            np.empty(0, np.uint16), make_rng(), sentence_end_ids=[STOP]
        ).tolist()
        == []
    )


def test_several_ids_may_end_a_sentence() -> None:
    orders = {
        tuple(
            denoising.permute_sentences(
                np.array([1, 8, 2, 9]), make_rng(s), sentence_end_ids=[8, 9]
            ).tolist()
        )
        for s in range(20)
    }
    assert orders == {(1, 8, 2, 9), (2, 9, 1, 8)}


def test_deletion_removes_its_share() -> None:
    for length in range(30):
        rest = denoising.delete_tokens(np.arange(length), make_rng(length), delete_prob=0.3)
        assert len(rest) == length - round(0.3 * length)
        assert (np.diff(rest) > 0).all()


def test_rotation_begins_anywhere() -> None:
    starts: Counter[int] = Counter()
    for seed in range(700):
        rotated = denoising.rotate_document(np.arange(7), make_rng(seed))
        assert ((rotated - rotated[0]) % 7 == np.arange(7)).all()
        starts[int(rotated[0])] += 1
    assert len(starts) == 7
    assert min(starts.values()) > 60
    assert denoising.rotate_document(np.empty(0, np.int64), make_rng()).tolist() == []
    assert denoising.rotate_document(np.array([4]), make_rng()).tolist() == [4]


def test_noise_functions_are_applied_in_order() -> None:
    ids = np.array([*range(20, 50), STOP, *range(50, 80), STOP])
    rng = make_rng(2)
    permuted = denoising.permute_sentences(ids, rng, sentence_end_ids=[STOP])
    infilled = denoising.infill_text(permuted, rng, mask_token_id=MASK)
    bart = build_noise_functions(0.3, 3.0)
    assert np.array_equal(denoising.apply_noise(ids, make_rng(2), bart), infilled)
    noisy = denoising.apply_noise(ids, make_rng(2), build_noise_functions(0.35, 3.5))
    assert (noisy != MASK).sum() == len(ids) - math.ceil(0.35 * len(ids))
    delete = partial(denoising.delete_tokens, delete_prob=0.1)
    noisy = denoising.apply_noise(ids, make_rng(2), (*bart, delete, denoising.rotate_document))
    assert len(noisy) == len(infilled) - round(0.1 * len(infilled))
    assert denoising.apply_noise(ids, make_rng(), ()).tolist() == ids.tolist()
