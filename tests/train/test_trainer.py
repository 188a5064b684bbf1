"""The loop: parts of a batch are a whole one, a stopped run goes on to the bit, bad numbers stay out."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from torch import Tensor

import qkv
from qkv.data.batches.sampler import Feed, Place, by_rows, recurrent_feed
from qkv.train.config import Learn
from qkv.train.evaluate.validation import over
from qkv.train.loop import checkpoint
from qkv.train.loop.ema import mean_of
from qkv.train.loop.trainer import Report, Trainer
from qkv.train.objectives import Words, objective
from qkv.train.objectives.objective import Objective, Out, written
from tests.support import tiny

VOCAB = 30


def examples(count: int = 40, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [{"tokens": rng.integers(1, VOCAB, rng.integers(4, 12))} for _ in range(count)]


def lm() -> Objective:
    return objective("causal-lm", Words(size=VOCAB))


def trainer(folder: Path | None = None, *, drop: float = 0.1, **settings: Any) -> Trainer:
    """A tiny GPT-2 with dropout."""
    torch.manual_seed(1)
    model = qkv.build(
        "gpt2",
        vocab=VOCAB,
        width=16,
        depth=2,
        heads=2,
        length=16,
        drop=drop,
        embed_drop=drop,
        attend_drop=drop,
    )
    given = dict(steps=12, rate=1e-2, warmup=2, log=1, average=0.9) | settings
    feed = Feed(examples(), by_rows(40, 8), seed=3)
    return Trainer(
        net=model.net, feed=feed, objective=lm(), learn=Learn(**given), folder=folder,
        evaluate=over(Feed(examples(10, 1), by_rows(10, 5, shuffled=False)), lm()),
    )  # fmt: skip


class Lines:
    """The losses that a run told, by step."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}

    def __call__(self, report: Any) -> None:
        if report.kind == "train":
            self.losses[report.step] = report.values["loss"]


def ran(run: Trainer, lines: Lines) -> dict[str, Tensor]:
    run.callbacks = (lines,)
    run.run()
    return {name: p.detach().clone() for name, p in run.net.named_parameters()}


@pytest.mark.parametrize(
    "settings",
    [{}, {"optimiser": "muon"}, {"optimiser": "adafactor"}, {"accumulate": 3}, {"precision": "bf16"}],
)
def test_a_run_that_was_stopped_goes_on_to_the_bit(settings: dict[str, Any], tmp_path: Path) -> None:
    whole, parted = Lines(), Lines()
    straight = trainer(**settings)
    weights = ran(straight, whole)
    first = trainer(tmp_path, **settings)
    first.callbacks = (parted, stopper(first, 5))
    first.run()
    assert first.state.step == 5
    second = trainer(tmp_path, **settings)
    torch.manual_seed(99)
    assert second.restore()
    again = ran(second, parted)
    assert parted.losses == whole.losses
    assert all(torch.equal(again[name], weights[name]) for name in weights)
    assert second.average is not None
    assert straight.average is not None
    averages = straight.average.state_dict()
    assert all(torch.equal(x, averages[name]) for name, x in second.average.state_dict().items())


SCRIPT = """
import sys
from pathlib import Path
from tests.train.test_trainer import trainer
run = trainer(Path(sys.argv[1]), steps=60, save=1)
run.restore()

def tell(report):
    if report.kind == "train":
        print(report.step, report.values["loss"].hex(), flush=True)

run.callbacks = (tell,)
run.run()
print("done")
"""


def process(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=Path(__file__).parent.parent.parent,
    )  # fmt: skip


def check_same_end(folder: Path) -> None:
    """The run `parts`, which was stopped, has come where `whole` has, to the bit."""
    straight, parts = (checkpoint.newest(folder / name / "checkpoints") for name in ("whole", "parts"))
    assert straight is not None
    assert parts is not None
    assert straight[1] == parts[1]
    for file, tensors in straight[0].items():
        assert all(torch.equal(x, parts[0][file][name]) for name, x in tensors.items()), file


def test_a_run_that_is_killed_again_and_again_goes_on_to_the_bit(tmp_path: Path) -> None:
    whole = dict(line.split() for line in process(tmp_path / "whole").communicate()[0].splitlines()[:-1])
    assert len(whole) == 60
    dice = random.Random(0)
    for wanted in (dice.randrange(2, 20), dice.randrange(2, 20), dice.randrange(2, 20), 1000):
        run = process(tmp_path / "parts")
        assert run.stdout is not None
        for count, line in enumerate(run.stdout, 1):
            step, _, loss = line.strip().partition(" ")
            assert step == "done" or whole[step] == loss
            if count == wanted:
                time.sleep(dice.random() * 0.02)  # wherever it is by then: in a step, or writing
                run.kill()
        run.communicate()
    assert step == "done"
    check_same_end(tmp_path)


def test_parts_of_a_batch_are_a_whole_one() -> None:
    """Rows of different lengths: the loss is divided by the targets of all of them."""
    one, two = (trainer(drop=0.0, accumulate=parts, average=0.0, steps=4) for parts in (1, 4))
    for run in (one, two):
        run.net.double()
    a, b = Lines(), Lines()
    tiny.close(ran(one, a), ran(two, b), 1e-9)
    assert a.losses == pytest.approx(b.losses, abs=1e-9)


def test_a_batch_is_a_function_of_its_place() -> None:
    feed = Feed(examples(), by_rows(40, 8), seed=3)
    other = Feed(examples(), by_rows(40, 8), seed=3)
    places = [Place()]
    for _ in range(12):
        places.append(feed.after(places[-1]))
    assert places[5] == Place(1, 0)
    for place in reversed(places):
        assert all(map(np.array_equal, feed.parts(place, 2), other.parts(place, 2)))
    first = np.concatenate(list(feed.batches(0)))
    assert sorted(first) == list(range(40))
    assert not np.array_equal(first, np.concatenate(list(feed.batches(1))))


def test_a_number_that_is_not_finite_never_reaches_the_weights() -> None:
    run = trainer(drop=0.0, steps=6, average=0.0)
    before = {name: p.detach().clone() for name, p in run.net.named_parameters()}
    calls = {"n": 0}

    def odd(out: Out) -> Tensor:
        calls["n"] += 1
        return lm()(out) * (float("nan") if calls["n"] <= 2 else 1.0)

    run.objective = written(odd, lm())
    steps = []
    run.callbacks = (
        lambda report: steps.append({n: p.detach().clone() for n, p in run.net.named_parameters()}),
    )
    run.run()
    assert all(torch.equal(steps[1][name], before[name]) for name in before)
    assert not any(torch.equal(steps[2][name], before[name]) for name in before if name.endswith("q.weight"))
    assert all(p.isfinite().all() for p in run.net.parameters())
    assert run.watch.skipped == 2


def test_three_in_a_row_stop_the_run() -> None:
    run = trainer(drop=0.0, steps=9)
    run.objective = written(lambda out: lm()(out) * float("inf"), lm())
    with pytest.raises(
        ValueError, match=r"step 3: .* not finite 3 times in a row, last at batch 2 of epoch 0"
    ):
        run.run()


def test_in_fp16_a_gradient_that_overflows_lowers_the_scale() -> None:
    """The scale starts at 65,536, too much for a loss like this; the run goes on when it is low enough."""
    run = trainer(drop=0.0, steps=12, average=0.0, precision="fp16")
    run.objective = written(lambda out: lm()(out) * 100, lm())
    before = {name: p.detach().clone() for name, p in run.net.named_parameters()}
    scales: list[float] = []
    run.callbacks = (lambda report: scales.append(run.scaler.get_scale()),)
    run.run()
    falls = sum(a > b for a, b in zip([2.0**16, *scales], scales, strict=False))
    assert falls > 3
    assert scales[-1] == 2.0 ** (16 - falls)
    assert run.watch.skipped == 0
    assert not any(torch.equal(p, before[name]) for name, p in run.net.named_parameters() if p.dim() > 1)


def test_in_fp16_a_scale_that_falls_to_its_floor_stops_the_run() -> None:
    run = trainer(drop=0.0, steps=30, average=0.0, precision="fp16")

    def odd(out: Out) -> Tensor:
        out["logits"].register_hook(lambda gradient: gradient * float("inf"))
        return lm()(out)

    run.objective = written(odd, lm())
    with pytest.raises(ValueError, match=r"^step 19: .* 3 times in a row.* or learn\.precision 'bf16'$"):
        run.run()  # 16 halvings to a scale of 1, and three more


def test_in_fp16_a_loss_that_is_not_finite_three_times_stops_the_run() -> None:
    run = trainer(drop=0.0, steps=9, average=0.0, precision="fp16")
    run.objective = written(lambda out: lm()(out) * float("nan"), lm())
    with pytest.raises(ValueError, match=r"^step 3: "):
        run.run()


def test_in_fp16_a_loss_that_is_not_finite_never_reaches_the_weights() -> None:
    """Its gradients may well be."""
    run = trainer(drop=0.0, steps=2, average=0.0, precision="fp16")
    before = {name: p.detach().clone() for name, p in run.net.named_parameters()}
    run.objective = written(lambda out: lm()(out) + float("inf"), lm())
    run.run()
    assert all(torch.equal(p, before[name]) for name, p in run.net.named_parameters())


def test_all_targets_masked() -> None:
    run = trainer()
    run.objective = replace(lm(), counts=lambda batch: {"loss": 0})
    with pytest.raises(ValueError, match="step 1: no target"):
        run.run()


def test_a_broken_checkpoint_is_passed_over(tmp_path: Path) -> None:
    trainer(tmp_path, save=4).run()
    root = tmp_path / "checkpoints"
    assert [path.name for path in checkpoint.finished(root)] == ["00000008", "00000012"]
    file = root / "00000012" / "net.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    run = trainer(tmp_path)
    with pytest.warns(UserWarning, match=r"00000012.*checksum.*the one before"):
        assert run.restore()
    assert run.state.step == 8


@pytest.mark.parametrize("mask", [0o022, 0o007])
def test_files_of_a_checkpoint_have_the_mode_of_plain_files(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        folder = checkpoint.write(tmp_path, 1, {"net": {"a": torch.ones(2)}}, {})
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o666 & ~mask}


def stopper(run: Trainer, step: int) -> Callable[[Any], None]:
    return lambda report: setattr(run, "stop", report.step == step)


def settled(run: Trainer) -> dict[str, Tensor]:
    with run.settled():
        return {name: p.detach().clone() for name, p in run.net.named_parameters()}


MEAN: dict[str, Any] = dict(save=3, keep=3, last=3, average=0.0)


@pytest.mark.parametrize("steps", [12, 11])
def test_a_run_leaves_the_mean_of_its_last_checkpoints(steps: int, tmp_path: Path) -> None:
    run = trainer(tmp_path, steps=steps, measure=2, **MEAN)
    held: dict[int, dict[str, Tensor]] = {}
    told: dict[int, float] = {}

    def tell(report: Any) -> None:
        if report.kind == "measure":
            told[report.step] = report.values["loss"]
        else:
            held[report.step] = {name: p.detach().clone() for name, p in run.net.named_parameters()}

    run.callbacks = (tell,)
    run.run()
    right = mean_of([held[6], held[9], held[steps]])
    assert all(torch.equal(x, right[name]) for name, x in settled(run).items())
    assert all(torch.equal(p, held[steps][name]) for name, p in run.net.named_parameters())
    assert [*told] == [2, 4, 6, 8, 10, steps]
    assert run.evaluate is not None
    with run.settled(), torch.no_grad():
        assert run.evaluate(run.net)["loss"] == told[steps] != run.evaluate(trainer().net)["loss"]
    with torch.no_grad():
        assert run.evaluate(run.net)["loss"] != told[steps]


@pytest.mark.parametrize("steps", [12, 11])
def test_the_mean_of_a_run_that_was_stopped_is_the_same_to_the_bit(steps: int, tmp_path: Path) -> None:
    """A checkpoint that was written where it stopped is not one of those that are averaged."""
    straight = trainer(tmp_path / "straight", steps=steps, **MEAN)
    straight.run()
    for stop in (4, 8, 10, 99):
        run = trainer(tmp_path / "stopped", steps=steps, **MEAN)
        run.restore()
        run.callbacks = (stopper(run, stop),)
        assert run.run().step == min(stop, steps)
    right = settled(straight)
    assert all(torch.equal(x, right[name]) for name, x in settled(run).items())
    names = [
        [path.name for path in checkpoint.finished(tmp_path / each / "checkpoints")]
        for each in ("straight", "stopped")
    ]
    assert names[0] == names[1] == ["00000006", "00000009", f"{steps:08}"]


def test_a_run_that_stops_early_leaves_the_mean_too(tmp_path: Path) -> None:
    run = trainer(tmp_path, steps=50, rate=10.0, schedule="constant", clip=0.0, measure=1, patience=3, **MEAN)
    told: list[int] = []
    run.callbacks = (lambda report: told.append(report.step) if report.kind == "measure" else None,)
    last = run.run().step
    assert 3 < last < 50
    assert told == [*range(1, last + 1), last]
    again = trainer(tmp_path, steps=50, patience=3, **MEAN)
    assert again.restore()
    assert again.run().step == last


def test_a_broken_checkpoint_is_left_out_of_the_mean(tmp_path: Path) -> None:
    run = trainer(tmp_path, **MEAN)
    run.run()
    (tmp_path / "checkpoints" / "00000006" / "net.safetensors").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"00000006.*checksum.*the mean is of the others"):
        found = settled(run)
    files = [tmp_path / "checkpoints" / name / "net.safetensors" for name in ("00000009", "00000012")]
    right = mean_of(files)
    assert all(torch.equal(x, right[name]) for name, x in found.items())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(last=5, save=1), r"^learn\.last 5, expected at most learn\.keep, 2$"),
        (dict(last=21, keep=21, save=1), r"^learn\.last 21, expected at most learn\.steps, 20$"),
        (dict(last=5, keep=5), r"^learn\.save 0, expected from 1 to 4: learn\.last wants 5 checkpoints"),
        (dict(last=5, keep=5, save=5), r"^learn\.save 5, expected from 1 to 4: .* in learn\.steps 20$"),
        (dict(last=2, save=1, average=0.9), r"^learn\.last 2 and learn\.average 0\.9, expected one of them$"),
    ],
)
def test_a_mean_of_more_checkpoints_than_there_are(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Learn(steps=20, **settings)
    with pytest.raises(ValueError, match=r"learn\.last 3: without a folder"):
        trainer(**MEAN)


@pytest.mark.parametrize(
    "error",
    [OSError(28, "No space left on device"), SafetensorError("I/O error: No space left on device")],
    ids=["torch", "safetensors"],
)
def test_a_full_disk_keeps_the_last_checkpoint(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trainer(tmp_path, save=4)

    def full(*_: object, **__: object) -> None:
        raise error

    def fill_the_disk(report: Report) -> None:
        if report.step == 6:
            monkeypatch.setattr(checkpoint, "write_safetensors", full)

    run.callbacks = (fill_the_disk,)
    with pytest.raises(ValueError, match=r"No space left on device.*the one of step 4 is kept"):
        run.run()
    assert [path.name for path in checkpoint.finished(tmp_path / "checkpoints")] == ["00000004"]
    assert not list((tmp_path / "checkpoints").glob(".*"))


def test_what_is_frozen_does_not_move() -> None:
    run = trainer(steps=3, freeze=("embed.*", "layers.0.*"))
    before = {name: p.detach().clone() for name, p in run.net.named_parameters()}
    after = ran(run, Lines())
    still = {name for name in before if torch.equal(before[name], after[name])}
    assert still == {name for name in before if ".embed." in name or ".layers.0." in name}
    with pytest.raises(ValueError, match=r"embde"):
        trainer(freeze=("embde.*",))


def test_lower_layers_learn_less() -> None:
    rates = {group["factor"] for group in trainer(layer_decay=0.5).optimiser.param_groups}
    assert max(rates) == 0.5  # the final norm: the head is tied to the tokens
    assert min(rates) == 0.5**4


def test_running_blocks_again_changes_no_number() -> None:
    plain, again = Lines(), Lines()
    one, two = ran(trainer(), plain), ran(trainer(recompute=True), again)
    assert plain.losses == again.losses
    assert all(torch.equal(one[name], two[name]) for name in one)
    kept: list[int] = []
    for asked in (False, True):
        run = trainer(recompute=asked)
        batch = run.objective.collate(run.feed.draw(run.feed.batches(0)[0], 0, run.objective.noise))
        kept.append(0)

        def count(x: Tensor) -> Tensor:
            kept[-1] += x.numel()
            return x

        with torch.autograd.graph.saved_tensors_hooks(count, lambda x: x):
            run.objective(run.net(batch))
    assert kept[1] < kept[0] / 3


def test_it_measures_at_the_end() -> None:
    run, told = trainer(steps=5, average=0.0), []
    run.callbacks = (
        lambda report: told.append((report.step, report.kind)) if report.kind == "measure" else None,
    )
    run.run()
    assert told == [(5, "measure")]


def test_it_stops_early_when_nothing_gets_better(tmp_path: Path) -> None:
    run = trainer(steps=50, rate=10.0, schedule="constant", clip=0.0, measure=1, patience=3, average=0.0)
    assert run.run().step < 50


@pytest.mark.parametrize(
    ("name", "value"),
    [("steps", 0), ("rate", -1.0), ("rate", float("nan")), ("accumulate", 0), ("precision", "fp8"),
     ("schedule", "steep"), ("average", 1.0), ("betas", (0.9, 1.0)), ("clip", -1.0), ("keep", 0),
     ("warmup", 2), ("parallel", "many")],
)  # fmt: skip
def test_wrong_settings_are_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"learn\.{name}\b.*expected"):
        Learn(**{"steps": 1} | {name: value})


def test_a_checkpoint_that_is_written_again_is_there_all_the_time(tmp_path: Path) -> None:
    """Whoever is killed between the old one's leaving and the new one's coming finds the old one."""
    folder = checkpoint.write(tmp_path, 5, {"net": {"a": torch.ones(2)}}, {"place": 1})
    folder.rename(checkpoint.aside(folder))
    held = checkpoint.newest(tmp_path)
    assert held is not None
    assert held[1]["place"] == 1
    checkpoint.write(tmp_path, 5, {"net": {"a": torch.ones(2)}}, {"place": 2})
    held = checkpoint.newest(tmp_path)
    assert held is not None
    assert held[1]["place"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["00000005"]


@pytest.mark.parametrize(
    ("values", "rising", "found"),
    [
        ([2.0, math.nan, 3.0, 2.0, 1.0], False, [True, False, False, False, True]),
        ([math.nan, 0.5, 0.5, 0.6], True, [False, True, False, True]),
    ],
)
def test_what_is_no_number_or_the_same_is_not_better(
    values: list[float], rising: bool, found: list[bool]
) -> None:
    run, told = trainer(watch="score", highest=rising), iter(values)
    run.evaluate = lambda net: {"score": next(told)}
    assert [run.measure() for _ in values] == found


@dataclass
class Segments:
    """A text of which a segment may start anywhere."""

    text: Any

    def __len__(self) -> int:
        return len(self.text)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"tokens": self.text[i : i + 9]}


class Told(NamedTuple):
    """A run of few segments with a memory, and what it was given to remember before each step."""

    run: Trainer
    given: list[Tensor | None]


def remembering() -> Told:
    torch.manual_seed(0)
    sizes: dict[str, Any] = dict(width=16, embed_width=16, depth=2, heads=2, head_dim=8, feed=24, memory=8)
    net = qkv.build("transformer-xl", vocab=VOCAB, drop=0.0, cutoffs=[], **sizes).net
    feed = recurrent_feed(Segments(np.random.default_rng(0).integers(1, VOCAB, 2 * 8 * 3 + 2)), 8, 1, 2)
    goal = objective("recurrence", Words(size=VOCAB))
    told = Told(Trainer(net=net, feed=feed, objective=goal, learn=Learn(steps=5, rate=1e-3)), [])
    before = told.run.net.forward

    def forward(batch: Any) -> Any:
        told.given.append(batch.memory)
        return before(batch)

    told.run.net.forward = forward
    return told


def test_a_text_that_begins_anew_has_no_memory() -> None:
    run, given = remembering()
    run.run()
    assert [memory is None for memory in given] == [True, False, False, True, False]


def test_a_step_that_is_lost_leaves_no_memory() -> None:
    run, given = remembering()
    steps = iter(range(5))

    def bad(out: Any) -> Any:
        return torch.where(torch.tensor(next(steps) == 1), math.nan, 1.0) * out["logits"].float().mean()

    run.objective = written(bad, run.objective)
    run.run()
    assert torch.equal(given[2], given[1])  # type: ignore[arg-type]
