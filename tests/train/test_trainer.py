"""The training loop: micro-batches equal a full batch, runs resume exactly, non-finite steps are skipped."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from torch import Tensor

import qkv
from qkv.data.batches.sampler import (
    BatchSampler,
    SamplerState,
    build_fixed_size_plan,
    build_recurrent_sampler,
)
from qkv.train.config import TrainConfig
from qkv.train.evaluate.evaluation_loop import Evaluation, evaluate_batches
from qkv.train.loop import checkpoint
from qkv.train.loop.ema import average_checkpoints
from qkv.train.loop.trainer import Report, Trainer
from qkv.train.objectives import VocabularyInfo, build_objective
from qkv.train.objectives.objective import ForwardOutputs, Objective, wrap_loss_function
from tests.support import compare

VOCAB = 30


def make_examples(count: int = 40, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [{"tokens": rng.integers(1, VOCAB, rng.integers(4, 12))} for _ in range(count)]


def build_lm_objective() -> Objective:
    return build_objective("causal-lm", VocabularyInfo(vocab_size=VOCAB))


def make_trainer(folder: Path | None = None, *, dropout: float = 0.1, **settings: Any) -> Trainer:
    """Return a trainer of a tiny GPT-2 with dropout."""
    torch.manual_seed(1)
    model = qkv.build(
        "gpt2",
        vocab_size=VOCAB,
        width=16,
        depth=2,
        heads=2,
        max_positions=16,
        dropout=dropout,
        embedding_dropout=dropout,
        attention_dropout=dropout,
    )
    config = dict(steps=12, lr=1e-2, warmup_steps=2, log_every=1, ema_decay=0.9) | settings
    sampler = BatchSampler(make_examples(), build_fixed_size_plan(40, 8), seed=3)
    validation_sampler = BatchSampler(
        make_examples(10, 1), build_fixed_size_plan(10, 5, shuffle=False)
    )
    return Trainer(
        net=model.net,
        sampler=sampler,
        objective=build_lm_objective(),
        train_config=TrainConfig(**config),
        folder=folder,
        evaluate=partial(
            evaluate_batches, sampler=validation_sampler, objective=build_lm_objective()
        ),
    )


class LossRecorder:
    """Callback that records the training losses by step."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}

    def __call__(self, report: Any) -> None:
        if report.phase == "train":
            self.losses[report.step] = report.metrics["loss"]


def run_training(trainer: Trainer, recorder: LossRecorder) -> dict[str, Tensor]:
    trainer.callbacks = (recorder,)
    trainer.train()
    return {name: p.detach().clone() for name, p in trainer.net.named_parameters()}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"optimizer": "muon"},
        {"optimizer": "adafactor"},
        {"grad_accum": 3},
        {"precision": "bf16"},
    ],
)
def test_stopped_run_resumes_exactly(settings: dict[str, Any], tmp_path: Path) -> None:
    expected = LossRecorder()
    recorder = LossRecorder()
    uninterrupted = make_trainer(**settings)
    weights = run_training(uninterrupted, expected)
    first = make_trainer(tmp_path, **settings)
    first.callbacks = (recorder, stop_at_step(first, 5))
    first.train()
    assert first.state.step == 5
    second = make_trainer(tmp_path, **settings)
    torch.manual_seed(99)
    assert second.restore_checkpoint()
    resumed_weights = run_training(second, recorder)
    assert recorder.losses == expected.losses, compare.RESUMED
    compare.assert_bitwise_equal(resumed_weights, weights, because=compare.RESUMED)
    assert second.ema is not None
    assert uninterrupted.ema is not None
    compare.assert_bitwise_equal(
        second.ema.state_dict(), uninterrupted.ema.state_dict(), because=compare.RESUMED
    )


SCRIPT = """
import sys
from pathlib import Path
from tests.train.test_trainer import make_trainer
trainer = make_trainer(Path(sys.argv[1]), steps=60, save_every=1)
trainer.restore_checkpoint()

def print_loss(report):
    if report.phase == "train":
        print(report.step, report.metrics["loss"].hex(), flush=True)

trainer.callbacks = (print_loss,)
trainer.train()
print("done")
"""


def start_process(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=Path(__file__).parent.parent.parent,
    )  # fmt: skip


def check_same_end(folder: Path) -> None:
    """Check that the interrupted run has exactly the final checkpoint of the uninterrupted one."""
    expected, actual = (
        checkpoint.read_latest_checkpoint(folder / name / "checkpoints")
        for name in ("uninterrupted", "interrupted")
    )
    assert expected is not None
    assert actual is not None
    assert expected[1] == actual[1]
    for file, tensors in expected[0].items():
        compare.assert_bitwise_equal(actual[0][file], tensors, because=compare.RESUMED)


def test_killed_run_resumes_exactly(tmp_path: Path) -> None:
    output = start_process(tmp_path / "uninterrupted").communicate()[0]
    losses = dict(line.split() for line in output.splitlines()[:-1])
    assert len(losses) == 60
    rng = random.Random(0)
    for num_lines in (rng.randrange(2, 20), rng.randrange(2, 20), rng.randrange(2, 20), 1000):
        process = start_process(tmp_path / "interrupted")
        assert process.stdout is not None
        for count, line in enumerate(process.stdout, 1):
            step, _, loss = line.strip().partition(" ")
            assert step == "done" or losses[step] == loss
            if count == num_lines:
                time.sleep(rng.random() * 0.02)  # it may be in a step by then, or writing
                process.kill()
        process.communicate()
    assert step == "done"
    check_same_end(tmp_path)


def test_micro_batches_equal_a_full_batch() -> None:
    """Rows have different lengths: the loss is divided by the number of targets in all of them."""
    recorders = LossRecorder(), LossRecorder()
    weights = []
    for grad_accum, recorder in zip((1, 4), recorders, strict=True):
        trainer = make_trainer(dropout=0.0, grad_accum=grad_accum, ema_decay=0.0, steps=4)
        trainer.net.double()
        weights.append(run_training(trainer, recorder))
    compare.assert_close(weights[0], weights[1], 1e-9)
    assert recorders[0].losses == pytest.approx(recorders[1].losses, abs=1e-9)


def test_batch_is_a_function_of_the_sampler_state() -> None:
    sampler = BatchSampler(make_examples(), build_fixed_size_plan(40, 8), seed=3)
    same_sampler = BatchSampler(make_examples(), build_fixed_size_plan(40, 8), seed=3)
    states = [SamplerState()]
    for _ in range(12):
        states.append(sampler.advance(states[-1]))
    assert states[5] == SamplerState(1, 0)
    for state in reversed(states):
        assert all(
            map(np.array_equal, sampler.split_batch(state, 2), same_sampler.split_batch(state, 2))
        )
    first = np.concatenate(list(sampler.get_batches(0)))
    assert sorted(first) == list(range(40))
    assert not np.array_equal(first, np.concatenate(list(sampler.get_batches(1))))


def test_non_finite_loss_never_changes_the_weights() -> None:
    trainer = make_trainer(dropout=0.0, steps=6, ema_decay=0.0)
    before = {name: p.detach().clone() for name, p in trainer.net.named_parameters()}
    num_calls = 0

    def compute_loss(outputs: ForwardOutputs) -> Tensor:
        nonlocal num_calls
        num_calls += 1
        return build_lm_objective()(outputs) * (float("nan") if num_calls <= 2 else 1.0)

    trainer.objective = wrap_loss_function(compute_loss, build_lm_objective())
    steps = []
    trainer.callbacks = (
        lambda report: steps.append(
            {n: p.detach().clone() for n, p in trainer.net.named_parameters()}
        ),
    )
    trainer.train()
    compare.assert_bitwise_equal(steps[1], before, because=compare.UNWRITTEN)
    assert all(
        compare.max_difference(steps[2][name], before[name]) > 0
        for name in before
        if name.endswith("q.weight")
    )
    assert all(p.isfinite().all() for p in trainer.net.parameters())
    assert trainer.nonfinite_monitor.num_skipped == 2


def test_three_consecutive_non_finite_steps_stop_training() -> None:
    trainer = make_trainer(dropout=0.0, steps=9)
    trainer.objective = wrap_loss_function(
        lambda out: build_lm_objective()(out) * float("inf"), build_lm_objective()
    )
    with pytest.raises(
        ValueError,
        match=r"step 3: .* not finite in 3 consecutive steps, last at batch 2 of epoch 0",
    ):
        trainer.train()


def test_fp16_overflow_lowers_the_loss_scale() -> None:
    """The scale starts at 65,536, too high for this loss, and is lowered until training continues."""
    trainer = make_trainer(dropout=0.0, steps=12, ema_decay=0.0, precision="fp16")
    trainer.objective = wrap_loss_function(
        lambda out: build_lm_objective()(out) * 100, build_lm_objective()
    )
    before = {name: p.detach().clone() for name, p in trainer.net.named_parameters()}
    scales: list[float] = []
    trainer.callbacks = (lambda report: scales.append(trainer.grad_scaler.get_scale()),)
    trainer.train()
    num_decreases = sum(a > b for a, b in zip([2.0**16, *scales], scales, strict=False))
    assert num_decreases > 3
    assert scales[-1] == 2.0 ** (16 - num_decreases)
    assert trainer.nonfinite_monitor.num_skipped == 0
    assert all(
        compare.max_difference(p, before[name]) > 0
        for name, p in trainer.net.named_parameters()
        if p.dim() > 1
    )


def test_fp16_minimum_loss_scale_stops_training() -> None:
    trainer = make_trainer(dropout=0.0, steps=30, ema_decay=0.0, precision="fp16")

    def compute_loss(outputs: ForwardOutputs) -> Tensor:
        outputs["logits"].register_hook(lambda gradient: gradient * float("inf"))
        return build_lm_objective()(outputs)

    trainer.objective = wrap_loss_function(compute_loss, build_lm_objective())
    with pytest.raises(
        ValueError, match=r"^step 19: .* in 3 consecutive steps.* or train\.precision 'bf16'$"
    ):
        trainer.train()  # 16 halvings to a scale of 1, and three more


def test_fp16_three_non_finite_losses_stop_training() -> None:
    trainer = make_trainer(dropout=0.0, steps=9, ema_decay=0.0, precision="fp16")
    trainer.objective = wrap_loss_function(
        lambda out: build_lm_objective()(out) * float("nan"), build_lm_objective()
    )
    with pytest.raises(ValueError, match=r"^step 3: "):
        trainer.train()


def test_fp16_non_finite_loss_never_changes_the_weights() -> None:
    """The gradients of such a loss may be finite."""
    trainer = make_trainer(dropout=0.0, steps=2, ema_decay=0.0, precision="fp16")
    before = {name: p.detach().clone() for name, p in trainer.net.named_parameters()}
    trainer.objective = wrap_loss_function(
        lambda out: build_lm_objective()(out) + float("inf"), build_lm_objective()
    )
    trainer.train()
    compare.assert_bitwise_equal(
        dict(trainer.net.named_parameters()), before, because=compare.UNWRITTEN
    )


def test_error_if_all_targets_are_masked() -> None:
    trainer = make_trainer()
    trainer.objective = replace(build_lm_objective(), count_targets=lambda batch: {"loss": 0})
    with pytest.raises(ValueError, match="step 1: the batch has no target"):
        trainer.train()


def test_damaged_checkpoint_is_skipped(tmp_path: Path) -> None:
    make_trainer(tmp_path, save_every=4).train()
    root = tmp_path / "checkpoints"
    assert [path.name for path in checkpoint.list_checkpoints(root)] == ["00000008", "00000012"]
    file = root / "00000012" / "net.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    trainer = make_trainer(tmp_path)
    with pytest.warns(UserWarning, match=r"00000012.*checksum.*using the previous one"):
        assert trainer.restore_checkpoint()
    assert trainer.state.step == 8


@pytest.mark.parametrize("mask", [0o022, 0o007])
def test_checkpoint_files_follow_the_umask(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        folder = checkpoint.write_checkpoint(tmp_path, 1, {"net": {"a": torch.ones(2)}}, {})
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o666 & ~mask}


def stop_at_step(trainer: Trainer, step: int) -> Callable[[Any], None]:
    return lambda report: setattr(trainer, "should_stop", report.step == step)


def get_final_weights(trainer: Trainer) -> dict[str, Tensor]:
    with trainer.use_final_weights():
        return {name: p.detach().clone() for name, p in trainer.net.named_parameters()}


SAME_SUMS = "the same function adds the same weights in the same order"
AVERAGE_LAST: dict[str, Any] = dict(save_every=3, keep_checkpoints=3, average_last=3, ema_decay=0.0)


@pytest.mark.parametrize("steps", [12, 11])
def test_final_weights_are_the_mean_of_the_last_checkpoints(steps: int, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, steps=steps, eval_every=2, **AVERAGE_LAST)
    weights: dict[int, dict[str, Tensor]] = {}
    eval_losses: dict[int, float] = {}

    def record(report: Any) -> None:
        if report.phase == "eval":
            eval_losses[report.step] = report.metrics["loss"]
        else:
            weights[report.step] = {
                name: p.detach().clone() for name, p in trainer.net.named_parameters()
            }

    trainer.callbacks = (record,)
    trainer.train()
    expected = average_checkpoints([weights[6], weights[9], weights[steps]])
    compare.assert_bitwise_equal(get_final_weights(trainer), expected, because=SAME_SUMS)
    compare.assert_bitwise_equal(
        dict(trainer.net.named_parameters()), weights[steps], because=compare.UNWRITTEN
    )
    assert [*eval_losses] == [2, 4, 6, 8, 10, steps]
    assert trainer.evaluate is not None
    with trainer.use_final_weights(), torch.no_grad():
        assert (
            trainer.evaluate(trainer.net).metrics["loss"]
            == eval_losses[steps]
            != trainer.evaluate(make_trainer().net).metrics["loss"]
        )
    with torch.no_grad():
        assert trainer.evaluate(trainer.net).metrics["loss"] != eval_losses[steps]


@pytest.mark.parametrize("steps", [12, 11])
def test_mean_of_an_interrupted_run_is_exactly_the_same(steps: int, tmp_path: Path) -> None:
    """A checkpoint written because the run was stopped is not averaged."""
    uninterrupted = make_trainer(tmp_path / "uninterrupted", steps=steps, **AVERAGE_LAST)
    uninterrupted.train()
    for stop in (4, 8, 10, 99):
        trainer = make_trainer(tmp_path / "interrupted", steps=steps, **AVERAGE_LAST)
        trainer.restore_checkpoint()
        trainer.callbacks = (stop_at_step(trainer, stop),)
        assert trainer.train().step == min(stop, steps)
    compare.assert_bitwise_equal(
        get_final_weights(trainer), get_final_weights(uninterrupted), because=compare.RESUMED
    )
    names = [
        [path.name for path in checkpoint.list_checkpoints(tmp_path / run_name / "checkpoints")]
        for run_name in ("uninterrupted", "interrupted")
    ]
    assert names[0] == names[1] == ["00000006", "00000009", f"{steps:08}"]


def test_early_stopping_leaves_the_mean_too(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path,
        steps=50,
        lr=10.0,
        lr_schedule="constant",
        grad_clip=0.0,
        eval_every=1,
        patience=3,
        **AVERAGE_LAST,
    )
    eval_steps: list[int] = []
    trainer.callbacks = (
        lambda report: eval_steps.append(report.step) if report.phase == "eval" else None,
    )
    last_step = trainer.train().step
    assert 3 < last_step < 50
    assert eval_steps == [*range(1, last_step + 1), last_step]
    resumed = make_trainer(tmp_path, steps=50, eval_every=1, patience=3, **AVERAGE_LAST)
    assert resumed.restore_checkpoint()
    assert resumed.train().step == last_step


def test_damaged_checkpoint_is_left_out_of_the_mean(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, **AVERAGE_LAST)
    trainer.train()
    (tmp_path / "checkpoints" / "00000006" / "net.safetensors").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"00000006.*checksum.*the mean is of the others"):
        weights = get_final_weights(trainer)
    files = [
        tmp_path / "checkpoints" / name / "net.safetensors" for name in ("00000009", "00000012")
    ]
    compare.assert_bitwise_equal(weights, average_checkpoints(files), because=SAME_SUMS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            dict(average_last=5, save_every=1),
            r"^train\.average_last 5, expected at most train\.keep_checkpoints, 2$",
        ),
        (
            dict(average_last=21, keep_checkpoints=21, save_every=1),
            r"^train\.average_last 21, expected at most train\.steps, 20$",
        ),
        (
            dict(average_last=5, keep_checkpoints=5),
            r"^train\.save_every 0, expected from 1 to 4: train\.average_last needs 5 checkpoints",
        ),
        (
            dict(average_last=5, keep_checkpoints=5, save_every=5),
            r"^train\.save_every 5, expected from 1 to 4: .* in train\.steps 20$",
        ),
        (
            dict(average_last=2, save_every=1, ema_decay=0.9),
            r"^train\.average_last 2 and train\.ema_decay 0\.9, expected only one of them$",
        ),
    ],
)
def test_errors_of_average_last(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig(steps=20, **settings)
    with pytest.raises(ValueError, match=r"train\.average_last 3: without a folder"):
        make_trainer(**AVERAGE_LAST)


@pytest.mark.parametrize(
    "error",
    [OSError(28, "No space left on device"), SafetensorError("I/O error: No space left on device")],
    ids=["torch", "safetensors"],
)
def test_full_disk_keeps_the_last_checkpoint(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(tmp_path, save_every=4)

    def raise_error(*_: object, **__: object) -> None:
        raise error

    def fill_disk(report: Report) -> None:
        if report.step == 6:
            monkeypatch.setattr(checkpoint, "write_safetensors", raise_error)

    trainer.callbacks = (fill_disk,)
    with pytest.raises(
        ValueError, match=r"No space left on device.*the checkpoint of step 4 is kept"
    ):
        trainer.train()
    assert [path.name for path in checkpoint.list_checkpoints(tmp_path / "checkpoints")] == [
        "00000004"
    ]
    assert not list((tmp_path / "checkpoints").glob(".*"))


def test_frozen_parameters_do_not_change() -> None:
    trainer = make_trainer(steps=3, freeze=("embedding.*", "layers.0.*"))
    before = {name: p.detach().clone() for name, p in trainer.net.named_parameters()}
    after = run_training(trainer, LossRecorder())
    unchanged = {name for name in before if compare.has_same_bits(before[name], after[name])}
    assert unchanged == {name for name in before if ".embedding." in name or ".layers.0." in name}
    with pytest.raises(ValueError, match=r"embeding"):
        make_trainer(freeze=("embeding.*",))


def test_layer_lr_decay() -> None:
    factors = {
        group["lr_factor"] for group in make_trainer(layer_lr_decay=0.5).optimizer.param_groups
    }
    assert max(factors) == 0.5  # the final norm: the head is tied to the embedding
    assert min(factors) == 0.5**4


def test_activation_checkpointing_gives_the_same_results() -> None:
    expected = LossRecorder()
    recorder = LossRecorder()
    expected_weights = run_training(make_trainer(), expected)
    weights = run_training(make_trainer(activation_checkpointing=True), recorder)
    # The backward pass repeats the forward with the same random numbers, kernels and shapes.
    assert recorder.losses == expected.losses
    compare.assert_bitwise_equal(weights, expected_weights, because=compare.SAME_KERNELS)
    num_saved: list[int] = []
    for activation_checkpointing in (False, True):
        trainer = make_trainer(activation_checkpointing=activation_checkpointing)
        batch = trainer.objective.collate(
            trainer.sampler.fetch_examples(
                trainer.sampler.get_batches(0)[0], 0, trainer.objective.noise
            )
        )
        num_saved.append(0)

        def count(x: Tensor) -> Tensor:
            num_saved[-1] += x.numel()
            return x

        with torch.autograd.graph.saved_tensors_hooks(count, lambda x: x):
            trainer.objective(trainer.net(batch))
    assert num_saved[1] < num_saved[0] / 3


def test_evaluation_at_the_end() -> None:
    trainer = make_trainer(steps=5, ema_decay=0.0)
    evaluations = []
    trainer.callbacks = (
        lambda report: (
            evaluations.append((report.step, report.phase)) if report.phase == "eval" else None
        ),
    )
    trainer.train()
    assert evaluations == [(5, "eval")]


def test_early_stopping(tmp_path: Path) -> None:
    trainer = make_trainer(
        steps=50,
        lr=10.0,
        lr_schedule="constant",
        grad_clip=0.0,
        eval_every=1,
        patience=3,
        ema_decay=0.0,
    )
    assert trainer.train().step < 50


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", 0),
        ("lr", -1.0),
        ("lr", float("nan")),
        ("grad_accum", 0),
        ("precision", "fp8"),
        ("lr_schedule", "steep"),
        ("ema_decay", 1.0),
        ("betas", (0.9, 1.0)),
        ("grad_clip", -1.0),
        ("keep_checkpoints", 0),
        ("warmup_steps", 2),
        ("parallelism", "many"),
    ],
)
def test_errors_name_the_wrong_setting(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"train\.{name}\b.*expected"):
        TrainConfig(**{"steps": 1} | {name: value})


def test_rewritten_checkpoint_always_exists(tmp_path: Path) -> None:
    """A run that is killed between the two renames finds the old checkpoint."""
    folder = checkpoint.write_checkpoint(
        tmp_path, 5, {"net": {"a": torch.ones(2)}}, {"position": 1}
    )
    folder.rename(checkpoint.get_backup_path(folder))
    latest = checkpoint.read_latest_checkpoint(tmp_path)
    assert latest is not None
    assert latest[1]["position"] == 1
    checkpoint.write_checkpoint(tmp_path, 5, {"net": {"a": torch.ones(2)}}, {"position": 2})
    latest = checkpoint.read_latest_checkpoint(tmp_path)
    assert latest is not None
    assert latest[1]["position"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["00000005"]


@pytest.mark.parametrize(
    ("values", "higher_is_better", "improved"),
    [
        ([2.0, math.nan, 3.0, 2.0, 1.0], False, [True, False, False, False, True]),
        ([math.nan, 0.5, 0.5, 0.6], True, [False, True, False, True]),
    ],
)
def test_nan_and_equal_values_are_not_better(
    values: list[float], higher_is_better: bool, improved: list[bool]
) -> None:
    trainer = make_trainer(best_metric="score", higher_is_better=higher_is_better)
    scores = iter(values)
    trainer.evaluate = lambda net: Evaluation(metrics={"score": next(scores)})
    assert [trainer.run_validation() for _ in values] == improved


@dataclass
class Segments:
    """A text whose segments may start at any token."""

    text: Any

    def __len__(self) -> int:
        return len(self.text)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"tokens": self.text[i : i + 9]}


class RecurrentRun(NamedTuple):
    """A run of few segments, and the mems that the network received at each step."""

    trainer: Trainer
    received: list[Tensor | None]


def make_recurrent_run() -> RecurrentRun:
    torch.manual_seed(0)
    sizes: dict[str, Any] = dict(
        width=16, embedding_width=16, depth=2, heads=2, head_dim=8, ffn_width=24, mem_len=8
    )
    net = qkv.build("transformer-xl", vocab_size=VOCAB, dropout=0.0, cutoffs=(), **sizes).net
    sampler = build_recurrent_sampler(
        Segments(np.random.default_rng(0).integers(1, VOCAB, 2 * 8 * 3 + 2)), 8, 1, 2
    )
    objective = build_objective("segment-recurrent-lm", VocabularyInfo(vocab_size=VOCAB))
    trainer = Trainer(
        net=net, sampler=sampler, objective=objective, train_config=TrainConfig(steps=5, lr=1e-3)
    )
    run = RecurrentRun(trainer, [])
    original_forward = trainer.net.forward

    def forward(batch: Any) -> Any:
        run.received.append(batch.mems)
        return original_forward(batch)

    trainer.net.forward = forward
    return run


def test_mems_are_reset_when_the_text_starts_over() -> None:
    trainer, received = make_recurrent_run()
    trainer.train()
    assert [mems is None for mems in received] == [True, False, False, True, False]


def test_skipped_step_keeps_the_old_mems() -> None:
    trainer, received = make_recurrent_run()
    steps = iter(range(5))

    def compute_loss(outputs: Any) -> Any:
        return (
            torch.where(torch.tensor(next(steps) == 1), math.nan, 1.0)
            * outputs["logits"].float().mean()
        )

    trainer.objective = wrap_loss_function(compute_loss, trainer.objective)
    trainer.train()
    assert received[1] is not None
    assert received[2] is not None
    compare.assert_bitwise_equal(received[2], received[1], because=compare.COPIED)
