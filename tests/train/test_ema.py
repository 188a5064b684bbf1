"""Averages: the moving one by its formula, swapped in and out to the bit; the mean of checkpoints."""

import copy
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from qkv.train.loop.ema import Average, mean_of, mean_with
from tests.support import tiny


def weights(net: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in net.named_parameters()}


def moved(net: nn.Module, seed: int) -> dict[str, Tensor]:
    """The network after a step of noise."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(torch.randn(p.shape, generator=generator).to(p.dtype), alpha=0.1)
    return weights(net)


def equal(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(x, two[name]) for name, x in one.items())


@pytest.mark.parametrize("warmup", [False, True])
def test_the_formula(warmup: bool) -> None:
    net = tiny.model("bert").net
    average, expected = Average(net, 0.6, warmup=warmup), weights(net)
    for n in range(6):
        decay = min(0.6, (1 + n) / (10 + n)) if warmup else 0.6
        fresh = moved(net, n)
        expected = {name: decay * x + (1 - decay) * fresh[name] for name, x in expected.items()}
        average.update()
    tiny.close(average.weights, expected, 1e-12)


def test_as_torch_has_it() -> None:
    net = tiny.model("gpt2", dtype=torch.float32).net
    theirs = torch.optim.swa_utils.AveragedModel(
        net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    theirs.update_parameters(net)  # the first one copies
    average = Average(net, 0.9)
    for n in range(4):
        moved(net, n)
        average.update()
        theirs.update_parameters(net)
    assert equal(average.weights, weights(theirs.module))


def test_applied_and_back_to_the_bit() -> None:
    made = tiny.model("bert", dtype=torch.float32)
    net, places = made.net, {name: p.data_ptr() for name, p in made.net.named_parameters()}
    average = Average(net, 0.5)
    own = moved(net, 1)
    average.update()
    with average.applied(net):
        assert equal(weights(net), average.weights)
    assert equal(weights(net), own)
    with pytest.raises(RuntimeError, match="stop"), average.applied(net):
        raise RuntimeError("stop")
    assert equal(weights(net), own)
    assert {name: p.data_ptr() for name, p in net.named_parameters()} == places


def test_coarse_weights_are_averaged_finely() -> None:
    net = tiny.model("bert", dtype=torch.bfloat16).net
    average = Average(net, 0.9999)
    before = {name: x.clone() for name, x in average.weights.items()}
    own = moved(net, 1)
    average.update()
    assert {x.dtype for x in average.weights.values()} == {torch.float32}
    assert not any(torch.equal(x, before[name]) for name, x in average.weights.items())
    with average.applied(net):
        assert {p.dtype for p in net.parameters()} == {torch.bfloat16}
    assert equal(weights(net), own)


def test_goes_on_to_the_bit() -> None:
    net = tiny.model("t5", dtype=torch.float32).net
    straight, first = Average(net, 0.9, warmup=True), Average(net, 0.9, warmup=True)
    for n in range(3):
        moved(net, n)
        straight.update()
        first.update()
    saved = {name: x.clone() for name, x in first.state_dict().items()}
    assert all(isinstance(x, Tensor) for x in saved.values())
    second = Average(net, 0.9, warmup=True)
    second.load_state_dict(saved)
    for n in range(3, 6):
        moved(net, n)
        straight.update()
        second.update()
    assert equal(straight.state_dict(), second.state_dict())
    assert second.updates == 6


def test_frozen_tensors_stay_out_until_they_learn() -> None:
    net = tiny.model("bert").net
    net.requires_grad_(False)
    embed = net.get_parameter("encoder.embed.tokens.weight").requires_grad_(True)
    average = Average(net, 0.5)
    assert [*average.weights] == ["encoder.embed.tokens.weight"]
    net.get_parameter("encoder.embed.norm.weight").requires_grad_(True)
    moved(net, 0)
    average.update()
    assert [*average.weights] == ["encoder.embed.tokens.weight", "encoder.embed.norm.weight"]
    assert not torch.equal(average.weights["encoder.embed.tokens.weight"], embed)


def test_the_mean_with_others_goes_in_and_out() -> None:
    net = tiny.model("bert").net
    still = net.get_parameter("encoder.embed.tokens.weight").requires_grad_(False)
    others = [moved(net, n) for n in range(2)]
    own = moved(net, 2)
    right = mean_of([own, *others])
    with mean_with(net, iter(others)):
        found = {name: p.detach().clone() for name, p in net.named_parameters()}
    assert torch.equal(found.pop("encoder.embed.tokens.weight"), still)
    assert all(torch.equal(x, right[name]) for name, x in found.items())
    assert equal(dict(net.named_parameters()), own)
    with pytest.raises(ValueError, match=r"^checkpoint 2: .* \(missing\)"), mean_with(net, [{}]):
        pass


def test_another_network_is_named() -> None:
    one, two = tiny.model("bert").net, tiny.model("gpt2").net
    with (
        pytest.raises(ValueError, match=r"another network: encoder\.embed.* is not in this one"),
        Average(one).applied(two),
    ):
        pass
    with pytest.raises(ValueError, match=r"another network: decoder\.embed.* differ"):
        Average(one).load_state_dict(Average(two).state_dict())
    wide = Average(tiny.model("bert", vocab=60).net).state_dict()
    with pytest.raises(ValueError, match=r"another network: encoder\.embed\.tokens\.weight.* differ"):
        Average(one).load_state_dict(wide)


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_a_wrong_decay_is_named(decay: float) -> None:
    with pytest.raises(ValueError, match=f"decay is {decay}: expected a number, at least 0 and less than 1"):
        Average(nn.Linear(2, 2), decay)


def three(dtype: torch.dtype = torch.float32) -> list[dict[str, Tensor]]:
    net = tiny.model("bert", dtype=dtype).net
    return [moved(net, n) for n in range(3)]


def test_the_mean_of_tensors_files_and_folders(tmp_path: Path) -> None:
    held = three()
    save_file(held[1], tmp_path / "second.safetensors")
    (tmp_path / "third").mkdir()
    save_file(held[2], tmp_path / "third" / "model.safetensors")
    copies = copy.deepcopy(held)
    found = mean_of([held[0], tmp_path / "second.safetensors", str(tmp_path / "third")])
    expected = {name: torch.stack([x[name].double() for x in held]).mean(0).float() for name in held[0]}
    assert equal(found, expected)
    assert all(equal(x, y) for x, y in zip(held, copies, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_order_of_checkpoints_does_not_matter(dtype: torch.dtype) -> None:
    means = [mean_of(order) for order in itertools.permutations(three(dtype))]
    assert {x.dtype for x in means[0].values()} == {dtype}
    assert all(equal(means[0], other) for other in means[1:])


def test_checkpoints_are_read_one_at_a_time() -> None:
    alive: list[int] = []

    class Held(dict[str, Tensor]):
        def __del__(self) -> None:
            alive.remove(id(self))

    def checkpoints() -> Iterator[dict[str, Tensor]]:
        for _ in range(5):
            held = Held(x=torch.ones(2))
            alive.append(id(held))
            assert len(alive) <= 2
            yield held
            del held

    assert torch.equal(mean_of(checkpoints())["x"], torch.ones(2))


def test_checkpoints_that_differ_are_named() -> None:
    one = {"a": torch.ones(2), "b": torch.ones(2)}
    with pytest.raises(
        ValueError, match=r"^checkpoint 2: expected the same weights .*: a, c, b \(missing\)$"
    ):
        mean_of([one, {"a": torch.ones(3), "c": torch.ones(2)}])
    with pytest.raises(ValueError, match=r"^checkpoint 1: .*: a$"):
        mean_of([{"a": torch.ones(2).int()}])
    with pytest.raises(ValueError, match="no checkpoint to average"):
        mean_of([])
