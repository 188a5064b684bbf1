"""Weight averages: the moving average by its formula, swapped in and out exactly; the mean of checkpoints."""

import copy
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from qkv.train.loop.ema import WeightEMA, average_checkpoints, average_with_checkpoints
from tests.support import compare, tiny


def weights(net: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in net.named_parameters()}


def add_noise(net: nn.Module, seed: int) -> dict[str, Tensor]:
    """Add noise to the weights, and return them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(torch.randn(p.shape, generator=generator).to(p.dtype), alpha=0.1)
    return weights(net)


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor], because: str) -> None:
    compare.assert_bitwise_equal(actual, expected, because=because)


def test_update_follows_the_formula() -> None:
    net = tiny.build("bert").net
    ema = WeightEMA(net, 0.6)
    expected = weights(net)
    for n in range(6):
        new = add_noise(net, n)
        expected = {name: 0.6 * x + 0.4 * new[name] for name, x in expected.items()}
        ema.update()
    compare.assert_close(ema.averaged_weights, expected, 1e-12)


def test_equals_torch() -> None:
    net = tiny.build("gpt2", dtype=torch.float32).net
    reference = torch.optim.swa_utils.AveragedModel(
        net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    reference.update_parameters(net)  # the first update copies
    ema = WeightEMA(net, 0.9)
    for n in range(4):
        add_noise(net, n)
        ema.update()
        reference.update_parameters(net)
    assert_same(ema.averaged_weights, weights(reference.module), compare.SAME_KERNELS)


def test_weights_are_swapped_and_restored_exactly() -> None:
    net = tiny.build("bert", dtype=torch.float32).net
    addresses = {name: p.data_ptr() for name, p in net.named_parameters()}
    ema = WeightEMA(net, 0.5)
    weights_before = add_noise(net, 1)
    ema.update()
    with ema.average_parameters(net):
        assert_same(weights(net), ema.averaged_weights, compare.COPIED)
    assert_same(weights(net), weights_before, compare.COPIED)
    with pytest.raises(RuntimeError, match="stop"), ema.average_parameters(net):
        raise RuntimeError("stop")
    assert_same(weights(net), weights_before, compare.COPIED)
    assert {name: p.data_ptr() for name, p in net.named_parameters()} == addresses


def test_bfloat16_weights_are_averaged_in_float32() -> None:
    net = tiny.build("bert", dtype=torch.bfloat16).net
    ema = WeightEMA(net, 0.9999)
    before = {name: x.clone() for name, x in ema.averaged_weights.items()}
    weights_before = add_noise(net, 1)
    ema.update()
    assert {x.dtype for x in ema.averaged_weights.values()} == {torch.float32}
    assert all(
        compare.max_difference(x, before[name]) > 0 for name, x in ema.averaged_weights.items()
    )
    with ema.average_parameters(net):
        assert {p.dtype for p in net.parameters()} == {torch.bfloat16}
    assert_same(weights(net), weights_before, compare.COPIED)


def test_resumes_exactly() -> None:
    net = tiny.build("t5", dtype=torch.float32).net
    uninterrupted = WeightEMA(net, 0.9)
    first = WeightEMA(net, 0.9)
    for n in range(3):
        add_noise(net, n)
        uninterrupted.update()
        first.update()
    saved = {name: x.clone() for name, x in first.state_dict().items()}
    assert all(isinstance(x, Tensor) for x in saved.values())
    second = WeightEMA(net, 0.9)
    second.load_state_dict(saved)
    for n in range(3, 6):
        add_noise(net, n)
        uninterrupted.update()
        second.update()
    assert_same(second.state_dict(), uninterrupted.state_dict(), compare.RESUMED)
    assert second.num_updates == 6


def test_frozen_parameters_are_left_out_until_trainable() -> None:
    net = tiny.build("bert").net
    net.requires_grad_(False)
    tokens = net.get_parameter("encoder.embedding.tokens.weight").requires_grad_(True)
    ema = WeightEMA(net, 0.5)
    assert [*ema.averaged_weights] == ["encoder.embedding.tokens.weight"]
    net.get_parameter("encoder.embedding.norm.weight").requires_grad_(True)
    add_noise(net, 0)
    ema.update()
    assert [*ema.averaged_weights] == [
        "encoder.embedding.tokens.weight",
        "encoder.embedding.norm.weight",
    ]
    averaged = ema.averaged_weights["encoder.embedding.tokens.weight"]
    assert compare.max_difference(averaged, tokens) > 0


def test_mean_with_checkpoints_is_swapped_and_restored() -> None:
    net = tiny.build("bert").net
    frozen = net.get_parameter("encoder.embedding.tokens.weight").requires_grad_(False)
    others = [add_noise(net, n) for n in range(2)]
    weights_before = add_noise(net, 2)
    expected = average_checkpoints([weights_before, *others])
    with average_with_checkpoints(net, iter(others)):
        averaged = {name: p.detach().clone() for name, p in net.named_parameters()}
    compare.assert_bitwise_equal(
        averaged.pop("encoder.embedding.tokens.weight"), frozen, because=compare.UNWRITTEN
    )
    expected = {name: expected[name] for name in averaged}
    assert_same(averaged, expected, "the sums have the same order")
    assert_same(dict(net.named_parameters()), weights_before, compare.COPIED)
    with (
        pytest.raises(ValueError, match=r"^checkpoint 2: .* \(missing\)"),
        average_with_checkpoints(net, [{}]),
    ):
        pass


def test_error_names_the_parameters_of_another_network() -> None:
    bert = tiny.build("bert").net
    gpt2 = tiny.build("gpt2").net
    with (
        pytest.raises(ValueError, match=r"another network: this one has no encoder\.embedding.*"),
        WeightEMA(bert).average_parameters(gpt2),
    ):
        pass
    with pytest.raises(ValueError, match=r"another network: decoder\.embedding.* differ"):
        WeightEMA(bert).load_state_dict(WeightEMA(gpt2).state_dict())
    larger = WeightEMA(tiny.build("bert", vocab_size=60).net).state_dict()
    with pytest.raises(
        ValueError, match=r"another network: encoder\.embedding\.tokens\.weight.* differ"
    ):
        WeightEMA(bert).load_state_dict(larger)


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_error_names_a_wrong_decay(decay: float) -> None:
    message = f"ema_decay is {decay}: expected a number, at least 0 and less than 1"
    with pytest.raises(ValueError, match=message):
        WeightEMA(nn.Linear(2, 2), decay)


def make_checkpoints(dtype: torch.dtype = torch.float32) -> list[dict[str, Tensor]]:
    net = tiny.build("bert", dtype=dtype).net
    return [add_noise(net, n) for n in range(3)]


def test_mean_of_tensors_files_and_folders(tmp_path: Path) -> None:
    checkpoints = make_checkpoints()
    save_file(checkpoints[1], tmp_path / "second.safetensors")
    (tmp_path / "third").mkdir()
    save_file(checkpoints[2], tmp_path / "third" / "model.safetensors")
    copies = copy.deepcopy(checkpoints)
    mean = average_checkpoints(
        [checkpoints[0], tmp_path / "second.safetensors", str(tmp_path / "third")]
    )
    expected = {
        name: torch.stack([x[name].double() for x in checkpoints]).mean(0).float()
        for name in checkpoints[0]
    }
    rounded = "both means are summed in fp64 and rounded to fp32 once"
    assert_same(mean, expected, rounded)
    for checkpoint, before in zip(checkpoints, copies, strict=True):
        assert_same(checkpoint, before, compare.UNWRITTEN)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_order_of_checkpoints_does_not_matter(dtype: torch.dtype) -> None:
    means = [
        average_checkpoints(order) for order in itertools.permutations(make_checkpoints(dtype))
    ]
    assert {x.dtype for x in means[0].values()} == {dtype}
    for other in means[1:]:
        assert_same(other, means[0], "sums in fp64 are rounded to the same number")


def test_checkpoints_are_read_one_at_a_time() -> None:
    alive: list[int] = []

    class TrackedDict(dict[str, Tensor]):
        def __del__(self) -> None:
            alive.remove(id(self))

    def checkpoints() -> Iterator[dict[str, Tensor]]:
        for _ in range(5):
            tensors = TrackedDict(x=torch.ones(2))
            alive.append(id(tensors))
            assert len(alive) <= 2
            yield tensors
            del tensors

    assert average_checkpoints(checkpoints())["x"].tolist() == [1, 1]


def test_error_names_different_checkpoints() -> None:
    first = {"a": torch.ones(2), "b": torch.ones(2)}
    with pytest.raises(
        ValueError,
        match=r"^checkpoint 2: expected the same floating-point weights .*: a, c, b \(missing\)$",
    ):
        average_checkpoints([first, {"a": torch.ones(3), "c": torch.ones(2)}])
    with pytest.raises(ValueError, match=r"^checkpoint 1: .*: a$"):
        average_checkpoints([{"a": torch.ones(2).int()}])
    with pytest.raises(ValueError, match="no checkpoint to average"):
        average_checkpoints([])
