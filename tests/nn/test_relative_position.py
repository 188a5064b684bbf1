"""Relative positions: distances of any size, clamped distances, buckets of decoders.

The formulas are tested in tests/model/test_positions.py."""

import pytest
import torch
from torch import Tensor, nn

import qkv
from qkv.kernels.bias import AttentionBias
from qkv.spec import full
from tests.support import compare, tiny


def get_relative_position(model: qkv.Model) -> nn.Module:
    """Return the module of Transformer-XL's or XLNet's first layer."""
    stack = "decoder" if model.family.name == "transformer-xl" else "encoder"
    return model.net.get_submodule(f"{stack}.layers.0.attention.relative")


def compute_scores(
    relative_position: nn.Module, q: Tensor, q_positions: Tensor, num_keys: int, contiguous: bool
) -> Tensor:
    """Return the scores of relative positions (B, H, T, S)."""
    bias = AttentionBias(
        pattern=full,
        q_positions=q_positions,
        k_positions=torch.arange(num_keys)[None],
        max_distance=num_keys - 1,
        contiguous=contiguous,
    )
    return relative_position(q, bias)[1]


@pytest.mark.parametrize("positions", ["xl", "t5", "alibi", "rotary"])
def test_position_ids_may_be_far_apart(positions: str) -> None:
    """Distances larger than the row is long are distinguished."""
    model = tiny.build("gpt2", positions=positions)
    ids = tiny.random_ids(1, 4)
    outs = [
        model(ids, position_ids=torch.tensor([[0, 1, 2, last]]))["last_hidden_state"]
        for last in (20, 30)
    ]
    # Not bitwise: XL's table of distances is longer for 30, so matrix products have another shape.
    assert compare.max_difference(outs[0][:, :3], outs[1][:, :3]) < 1e-12
    assert compare.max_difference(outs[0][:, 3], outs[1][:, 3]) > 1e-6


@pytest.mark.parametrize("family", ["transformer-xl", "xlnet"])
def test_distances_beyond_clamp_len_have_one_score(family: str) -> None:
    model = tiny.build(family, clamp_len=4)
    relative_position = get_relative_position(model)
    q = torch.randn(1, 4, 1, 6, dtype=torch.float64)
    for contiguous in (True, False):
        last = torch.tensor([[9]])
        scores = compute_scores(relative_position, q, last, 10, contiguous)
        scores = scores[0, 0, 0].flip(0)  # by distance
        assert len({round(score, 6) for score in scores[:5].tolist()}) == 5
        compare.assert_close({"far": scores[5:]}, {"far": scores[4].expand(5)}, 1e-12)


@pytest.mark.parametrize("family", ["transformer-xl", "xlnet"])
def test_shifted_scores_equal_gathered_scores(family: str) -> None:
    model = tiny.build(family)
    relative_position = get_relative_position(model)
    q = torch.randn(2, 4, 3, 6, dtype=torch.float64)
    q_positions = torch.arange(6, 9)[None]
    shifted, gathered = (
        compute_scores(relative_position, q, q_positions, 9, contiguous)
        for contiguous in (True, False)
    )
    is_visible = (torch.arange(9)[None] <= q_positions[0, :, None]) | (family == "xlnet")
    actual = {"scores": shifted[..., is_visible]}
    compare.assert_close(actual, {"scores": gathered[..., is_visible]}, 1e-12)


@pytest.mark.parametrize(
    ("family", "is_bidirectional"), [("gpt2", False), ("bert", True), ("modernbert", True)]
)
def test_all_buckets_of_a_decoder_are_for_earlier_positions(
    family: str, is_bidirectional: bool
) -> None:
    """All 32 buckets are for earlier positions: distance 16 has one beyond the first half."""
    model = tiny.build(family, positions="t5", head="none", depth=1)
    model(tiny.random_ids(1, 30))["last_hidden_state"][:, 16].sum().backward()
    stack = "decoder" if family == "gpt2" else "encoder"
    gradient = model.net.get_parameter(f"{stack}.position_bias.table.weight").grad
    assert gradient is not None
    is_used = gradient.abs().sum(1) > 1e-12
    assert is_used[:3].all()
    assert [is_used[16].item(), is_used[17:].any().item()] == [
        not is_bidirectional,
        is_bidirectional,
    ]
