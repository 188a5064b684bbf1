"""Trainer: the training loop with evaluation and checkpoints. A resumed run is bitwise identical on a CPU.

    sampler ─ noise ─ collate ─ Batch ─ net ─ objective ─ backward ─ clip ─ optimizer step ─ EMA

Every loss is divided by the number of targets of the global batch, so that micro-batches, run one after
another or by several processes, give the results of one large batch. Only dropout differs, because each
process has a separate random number generator. Does not depend on text."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qkv.batch import Batch
from qkv.data.batches.sampler import BatchSampler, SamplerState
from qkv.kernels.attention import without_cudnn
from qkv.train.config import TrainConfig, is_better
from qkv.train.distributed import DistributedContext
from qkv.train.evaluate.class_report import EMPTY_CLASS_REPORT, ClassReport
from qkv.train.evaluate.evaluation_loop import EvaluationFunction
from qkv.train.loop import checkpoint
from qkv.train.loop.activation_checkpointing import apply_activation_checkpointing
from qkv.train.loop.checkpoint import CHECKPOINTS_FOLDER, read_previous_weights
from qkv.train.loop.compile import add_attention_masks, compile_blocks, compile_objective
from qkv.train.loop.ema import WeightEMA, average_with_checkpoints, copy_values
from qkv.train.loop.nonfinite import NonFiniteMonitor, step_if_finite, update_loss_scale
from qkv.train.loop.optim import build_optimizer, clip_grad_norm, freeze_parameters
from qkv.train.loop.prefetch import MicroBatch, MicroBatchIndices, prefetch_batches
from qkv.train.loop.schedule import LRSchedule
from qkv.train.loop.step import BackwardPass
from qkv.train.loop.trainer_state import gather_trainer_state, restore_trainer_state
from qkv.train.objectives.objective import ForwardOutputs, Objective
from qkv.train.sharding import parallelize, summon_full_params

AUTOCAST_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class TrainerState:
    """Progress of a run."""

    step: int = 0
    sampler_state: SamplerState = field(default_factory=SamplerState)
    best_value: float | None = None
    evals_since_best: int = 0
    num_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class Report:
    """A line of metrics.jsonl, without the class report, and the argument of callbacks."""

    step: int
    phase: str  # "train" or "eval"
    metrics: dict[str, float]
    seconds: float
    tokens_per_second: float = 0.0
    lr: float = 0.0
    class_report: ClassReport = EMPTY_CLASS_REPORT  # of an evaluation


@dataclass(kw_only=True)
class Trainer:
    net: nn.Module
    sampler: BatchSampler
    objective: Objective
    train_config: TrainConfig
    folder: Path | None = None  # None: nothing is written
    evaluate: EvaluationFunction | None = None
    callbacks: Sequence[Callable[[Report], None]] = ()
    save_model: Callable[[Path], None] | None = None  # writes the model into a folder
    state: TrainerState = field(default_factory=TrainerState)
    num_workers: int = 0  # processes that build batches; 0: a thread of this process
    distributed: DistributedContext = field(default_factory=DistributedContext)
    should_stop: bool = False  # set from outside, in any process, to save and stop after the step

    def __post_init__(self) -> None:
        config = self.train_config
        self.device = next(self.net.parameters()).device
        if config.freeze:
            freeze_parameters(self.net, config.freeze)
        if config.activation_checkpointing:
            apply_activation_checkpointing(self.net)
        self.sharding = parallelize(self.net, config.parallelism, self.distributed)
        is_sharded = {hasattr(p, "full_tensor") for p in self.net.parameters()}
        if config.precision == "fp16" and len(is_sharded) > 1:
            raise ValueError(
                f"train.precision 'fp16' with train.parallelism {self.sharding.strategy!r}: only a part "
                "of this network's parameters is sharded; expected bf16 or fp32"
            )
        check_grad_accum(config, self.objective)
        if config.average_last > 1 and self.folder is None:
            raise ValueError(
                f"train.average_last {config.average_last}: without a folder there are no checkpoints, "
                "expected 0"
            )
        self.lr_schedule = LRSchedule(
            name=config.lr_schedule,
            lr=config.lr,
            steps=config.total_steps,
            warmup_steps=config.warmup_steps,
            min_lr_ratio=config.min_lr_ratio,
        )
        self.optimizer = build_optimizer(
            self.net,
            optimizer=config.optimizer,
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            layer_lr_decay=config.layer_lr_decay,
        )
        self.parameters = [*self.net.parameters()]
        self.ema = WeightEMA(self.net, config.ema_decay) if config.ema_decay else None
        self.grad_scaler = torch.amp.GradScaler(
            self.device.type, enabled=config.precision == "fp16"
        )
        self.mems: Tensor | None = None
        if self.objective.baseline is not None:
            self.objective.baseline.to(self.device)
        self.nonfinite_monitor = NonFiniteMonitor()
        if config.precision == "fp16":
            self.nonfinite_monitor.remedy += " or train.precision 'bf16'"
        self.dynamic_shapes = config.compile and self.sampler.lengths is not None
        if config.compile:
            self.objective = compile_objective(
                self.objective, self.device, dynamic_shapes=self.dynamic_shapes
            )
        if self.folder is not None and self.distributed.is_main_process:
            self.folder.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(config.seed + self.sharding.dp_rank)

    def request_stop(self) -> None:
        """Save and stop after the current step; signal handlers call this."""
        self.should_stop = True

    @without_cudnn()
    def train(self) -> TrainerState:
        """Train up to the last step, or until `should_stop`."""
        self.net.train()
        start_time = time.perf_counter()
        tokens_since_report = 0
        running_means = RunningMeans()
        prefetched = prefetch_batches(
            self.sampler,
            self.objective,
            self.assign_micro_batches,
            self.state.sampler_state,
            self.num_workers,
        )
        with closing(prefetched) as batches, self.compile_context():
            for sampler_state, micro_batches in batches:
                should_stop, num_tokens, target_counts = self.sync_before_step(micro_batches)
                if self.is_finished or should_stop:
                    break
                losses = self.train_step(micro_batches, sampler_state, target_counts)
                tokens_since_report += num_tokens
                running_means.add(losses)
                self.state.num_tokens += num_tokens
                self.state.step += 1
                self.state.sampler_state = self.sampler.advance(sampler_state)
                if self.is_due(self.train_config.log_every):
                    seconds = time.perf_counter() - start_time
                    self.report_metrics(
                        "train",
                        running_means.mean(),
                        seconds,
                        tokens_since_report / seconds,
                        self.lr_schedule(self.state.step),
                    )
                    start_time = time.perf_counter()
                    tokens_since_report = 0
                    running_means = RunningMeans()
                pause_start = time.perf_counter()
                if (
                    self.evaluate is not None
                    and self.is_due(self.train_config.eval_every)
                    and not self.is_finished
                ):
                    with self.use_ema_weights():
                        improved = self.run_validation()
                    self.state.evals_since_best = 0 if improved else self.state.evals_since_best + 1
                if self.folder is not None and self.is_due(self.train_config.save_interval):
                    self.save_checkpoint()
                start_time += (
                    time.perf_counter() - pause_start
                )  # the speed is that of training alone
        self.nonfinite_monitor.check()
        if self.state.step >= self.train_config.total_steps or (
            self.is_finished and self.train_config.average_last
        ):
            with self.use_final_weights():
                self.run_validation()
        if self.folder is not None:
            self.save_checkpoint()
        self.net.eval()
        return self.state

    def sync_before_step(
        self, micro_batches: list[MicroBatch]
    ) -> tuple[bool, int, dict[str, float]]:
        """Return whether to stop, and the tokens and target counts of the batch, over all processes."""
        names = list(micro_batches[0].target_counts)
        counts = [sum(item.target_counts[name] for item in micro_batches) for name in names]
        num_tokens = sum(item.num_tokens for item in micro_batches)
        stops, tokens, *sums = self.distributed.sum_numbers(
            [int(self.should_stop), num_tokens, *counts]
        )
        num_replicas = (
            self.distributed.world_size // self.sharding.dp_size
        )  # that read the same rows
        target_counts = {
            name: total / num_replicas for name, total in zip(names, sums, strict=True)
        }
        return stops > 0, int(tokens) // num_replicas, target_counts

    def train_step(
        self,
        micro_batches: list[MicroBatch],
        sampler_state: SamplerState,
        target_counts: dict[str, float],
    ) -> dict[str, Tensor]:
        """Take one step on the micro-batches of a batch; return the losses on the device."""
        if not any(target_counts.values()):
            raise ValueError(
                f"step {self.state.step + 1}: the batch has no targets, expected at least one"
            )
        for parameter in self.parameters:
            parameter.grad = None
        if sampler_state.batch_index == 0:  # a new epoch starts at the beginning of the text
            self.mems = None
        old_mems = self.mems
        backward = BackwardPass(
            forward=self.forward,
            objective=self.objective,
            sharding=self.sharding,
            scale_loss=self.grad_scaler.scale,
            device=self.device,
        )
        losses = backward(micro_batches, target_counts)
        self.sharding.all_reduce_gradients(self.net)
        loss_sums = self.sharding.all_reduce_sum(torch.stack([*losses.values()]))
        losses = dict(zip(losses, loss_sums, strict=True))
        self.grad_scaler.unscale_(self.optimizer)
        grad_norm, is_norm_finite = clip_grad_norm(self.parameters, self.train_config.grad_clip)
        is_loss_finite = loss_sums.isfinite().all()
        found_inf = self.distributed.all_reduce_max(1.0 - (is_norm_finite & is_loss_finite).float())
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr_schedule(self.state.step + 1) * group.get("lr_factor", 1.0)
        step_if_finite(self.optimizer, found_inf)
        if (
            self.grad_scaler.is_enabled()
        ):  # an overflow is not counted if the loss scale was lowered
            lowered = update_loss_scale(self.grad_scaler, self.device)
            found_inf = found_inf * ~(lowered & is_loss_finite)
        self.nonfinite_monitor.add(self.state.step + 1, sampler_state, found_inf)
        if self.mems is not None:  # a skipped step keeps the old mems
            fallback = torch.zeros_like(self.mems) if old_mems is None else old_mems
            self.mems = torch.where(found_inf.bool(), fallback, self.mems)
        if self.ema is not None:
            self.ema.update()
        if self.objective.baseline is not None:
            self.objective.baseline.update(losses["loss"])
        return losses | {"grad_norm": grad_norm}

    def forward(self, batch: Batch) -> ForwardOutputs:
        batch = batch.to(self.device)
        if self.dynamic_shapes:
            batch = add_attention_masks(batch)
        if self.objective.is_recurrent:
            batch = replace(batch, mems=self.mems)
        with self.autocast():
            outputs = self.net(batch)
        if self.objective.is_recurrent:
            self.mems = outputs["mems"].detach()
        return outputs

    def compile_context(self) -> AbstractContextManager[None]:
        if not self.train_config.compile:
            return nullcontext()
        return compile_blocks(self.net, dynamic_shapes=self.dynamic_shapes)

    def autocast(self) -> AbstractContextManager[Any]:
        if self.train_config.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, AUTOCAST_DTYPES[self.train_config.precision])

    @property
    def is_finished(self) -> bool:
        """Whether all steps are done, or the patience for an improvement is exhausted."""
        return (
            self.state.step >= self.train_config.total_steps
            or 0 < self.train_config.patience <= self.state.evals_since_best
        )

    def is_due(self, interval: int) -> bool:
        return bool(interval) and self.state.step % interval == 0

    def assign_micro_batches(self, sampler_state: SamplerState) -> MicroBatchIndices:
        """Return the micro-batches of a batch that this process runs."""
        num_micro_batches = self.train_config.grad_accum * self.sharding.dp_size
        return self.sharding.assign_micro_batches(
            self.sampler.split_batch(sampler_state, num_micro_batches)
        )

    def use_ema_weights(self) -> AbstractContextManager[None]:
        """Use the moving average as weights within the context, if there is one."""
        return self.ema.average_parameters(self.net) if self.ema else nullcontext()

    def use_final_weights(self) -> AbstractContextManager[None]:
        """Use the weights of the final model: the moving average, or the mean of the last checkpoints."""
        if self.folder is None or not self.train_config.average_last:
            return self.use_ema_weights()
        previous_weights = read_previous_weights(
            self.folder / CHECKPOINTS_FOLDER,
            self.state.step,
            count=self.train_config.average_last - 1,
            save_every=self.train_config.save_interval,
        )
        return average_with_checkpoints(self.net, previous_weights)

    def apply_final_weights(self) -> None:
        """Set the network to the weights of the final model if they are a moving average."""
        if self.ema is not None:
            copy_values(dict(self.net.named_parameters()), self.ema.averaged_weights)

    def run_validation(self) -> bool:
        """Evaluate the network with its current weights; return whether it is the best, and save it if so."""
        if self.evaluate is None:
            return False
        start_time = time.perf_counter()
        self.net.eval()
        # Compiling another graph takes longer than a few batches.
        eager = (
            torch.compiler.set_stance("force_eager") if self.train_config.compile else nullcontext()
        )
        with torch.no_grad(), self.autocast(), eager:
            evaluation = self.distributed.broadcast_object(self.evaluate(self.net))
        metrics = evaluation.metrics
        best_metric = self.train_config.best_metric
        if best_metric not in metrics:
            raise ValueError(
                f"train.best_metric {best_metric!r}, expected one of the metrics: {', '.join(metrics)}"
            )
        value = metrics[best_metric]
        improved = is_better(
            value, self.state.best_value, higher_is_better=self.train_config.maximizes_metric
        )
        if improved:
            self.state.best_value = value
            if self.folder is not None and self.save_model is not None:
                self.write_model(self.save_model, self.folder / "best")
        self.net.train()
        self.report_metrics(
            "eval",
            metrics,
            time.perf_counter() - start_time,
            class_report=evaluation.class_report,
        )
        return improved

    def report_metrics(
        self,
        phase: str,
        metrics: dict[str, float],
        seconds: float,
        tokens_per_second: float = 0.0,
        lr: float = 0.0,
        class_report: ClassReport = EMPTY_CLASS_REPORT,
    ) -> None:
        report = Report(
            step=self.state.step,
            phase=phase,
            metrics=metrics,
            seconds=seconds,
            tokens_per_second=tokens_per_second,
            lr=lr,
            class_report=class_report,
        )
        for callback in self.callbacks if self.distributed.is_main_process else ():
            callback(report)

    def write_model(self, save_model: Callable[[Path], None], folder: Path) -> None:
        """Write the model with its current weights into a folder, in the main process."""
        with summon_full_params(self.net, self.distributed):
            if self.distributed.is_main_process:
                if not folder.parent.is_dir():  # `save_model` would create it again
                    raise FileNotFoundError(
                        f"{folder}: not written; {folder.parent} does not exist"
                    )
                save_model(folder)

    def save_checkpoint(self) -> None:
        """Write a checkpoint, from which `restore_checkpoint` resumes exactly."""
        assert self.folder is not None
        self.nonfinite_monitor.check()
        tensors, state = gather_trainer_state(self)
        if self.distributed.is_main_process:
            checkpoint.write_checkpoint(
                self.folder / CHECKPOINTS_FOLDER,
                self.state.step,
                tensors,
                state,
                keep_checkpoints=self.train_config.keep_checkpoints,
                save_every=self.train_config.save_interval,
            )

    def restore_checkpoint(self) -> bool:
        """Restore the newest intact checkpoint; return False if there is none."""
        assert self.folder is not None
        latest = checkpoint.read_latest_checkpoint(self.folder / CHECKPOINTS_FOLDER)
        steps = self.distributed.all_gather_object(None if latest is None else latest[1]["step"])
        if len({*steps}) > 1:
            raise ValueError(
                f"{self.folder}: the processes found checkpoints of different steps, {steps}; "
                "expected a folder that all of them share"
            )
        if latest is not None:
            restore_trainer_state(self, *latest)
        return latest is not None


class RunningMeans:
    """Means of losses over steps, kept on the device until they are read."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.count = 0

    def add(self, losses: dict[str, Tensor]) -> None:
        self.count += 1
        self.sums = {name: self.sums.get(name, 0) + value for name, value in losses.items()}

    def mean(self) -> dict[str, float]:
        means = {name: float(value) / self.count for name, value in self.sums.items()}
        loss = sum(value for name, value in means.items() if name != "grad_norm")
        return {"loss": loss, **means}


def check_grad_accum(train_config: TrainConfig, objective: Objective) -> None:
    """Check that the objective allows a batch to be split into micro-batches."""
    if train_config.grad_accum > 1 and objective.is_recurrent:
        raise ValueError(
            f"train.grad_accum {train_config.grad_accum}: {objective.name} carries its mems from batch "
            "to batch, expected 1"
        )
