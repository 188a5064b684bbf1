"""Factorization orders follow XLNet's rules, and no target leaks into a prediction."""

from collections import Counter

import numpy as np
import pytest
import torch

import qkv
from qkv import Inputs
from qkv.data.noise import permutation
from qkv.model.inputs import build_permutation_mask
from tests.support.noise import build_empty_mask, build_special_mask, compute_run_lengths, make_rng


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
    # Longer ones are spans that touch.
    assert sum(lengths[n] for n in lengths if n > 5) < 0.1 * sum(lengths.values())


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
        reachability = np.linalg.matrix_power(content.astype(np.float64) / 30, 32) > 0
        for target in targets:
            reachable = reachability[attends[target]].any(
                axis=0
            )  # by its query stream, at any depth
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
            # With special tokens, transformers lets them attend to targets and leak these.
            return [0] * len(ids)

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
    assert allowed[0, 16:].tolist() == (~perm_mask[0][order.target_positions]).tolist()
    ids = torch.arange(16)[None]
    before = model(ids, perm_mask=perm_mask, target_mapping=target_mapping)["logits"][0]
    for i, target in enumerate(order.target_positions):
        changed = ids.clone()
        changed[0, target] = 50
        after = model(changed, perm_mask=perm_mask, target_mapping=target_mapping)["logits"][0]
        # Bitwise equal: the same kernels run on the same shapes, and masked weights are zero.
        same = (before == after).all(dim=-1).numpy()
        assert np.array_equal(same, order.ranks[order.target_positions] <= order.ranks[target]), i


def test_short_texts_have_orders() -> None:
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
