"""Trainer: the loop. Draws batches, steps, measures, saves; goes on where it stopped. Knows no text.

    place ─ feed ─ noise ─ collate ─ Batch ─ net ─ objective ─ backward ─ clip ─ step ─ average

Every loss is divided by the targets of the global batch, so that parts of a batch, run one after the other or
by several processes, give the numbers of one large batch. Only dropout differs: its numbers are each
process's own."""

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
from qkv.data.batches.sampler import Feed, Place
from qkv.kernels.attention import without_cudnn
from qkv.train.config import Learn, better
from qkv.train.distributed import Team
from qkv.train.loop import checkpoint
from qkv.train.loop.activation_checkpointing import recompute
from qkv.train.loop.checkpoint import before
from qkv.train.loop.compile import by_blocks, compiled, with_seats
from qkv.train.loop.ema import Average, mean_with
from qkv.train.loop.nonfinite import Watch, rescaled, step_unless
from qkv.train.loop.optim import clip, freeze, make_optimiser
from qkv.train.loop.prefetch import Dealt, Part, drawn
from qkv.train.loop.schedule import Schedule
from qkv.train.loop.step import Backward
from qkv.train.loop.trainer_state import gathered, scattered
from qkv.train.objectives.objective import Objective, Out
from qkv.train.sharding import gathered as whole
from qkv.train.sharding import spread

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
Evaluate = Callable[[nn.Module], dict[str, float]]


@dataclass
class State:
    """Where a run stands."""

    step: int = 0
    place: Place = field(default_factory=Place)
    best: float | None = None
    stale: int = 0  # measurements since the best
    tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a line of metrics.jsonl holds, and the callbacks are given."""

    step: int
    kind: str  # "train" or "measure"
    values: dict[str, float]
    seconds: float
    tokens_per_second: float = 0.0
    rate: float = 0.0


@dataclass(kw_only=True)
class Trainer:
    net: nn.Module
    feed: Feed
    objective: Objective
    learn: Learn
    folder: Path | None = None  # None: nothing is written
    evaluate: Evaluate | None = None
    callbacks: Sequence[Callable[[Report], None]] = ()
    save_best: Callable[[Path], None] | None = None  # writes the model into a folder
    state: State = field(default_factory=State)
    workers: int = 0  # processes that make batches; 0: a thread of this one does
    team: Team = field(default_factory=Team)  # the processes that share the work
    stop: bool = False  # asked for from outside, of any process: save and leave

    def __post_init__(self) -> None:
        self.device = next(self.net.parameters()).device
        if self.learn.freeze:
            freeze(self.net, self.learn.freeze)
        if self.learn.recompute:
            recompute(self.net)
        self.spread = spread(self.net, self.learn.parallel, self.team)
        sliced = {hasattr(p, "full_tensor") for p in self.net.parameters()}
        if self.learn.precision == "fp16" and len(sliced) > 1:
            raise ValueError(
                f"learn.precision 'fp16' with learn.parallel {self.spread.kind!r}: this network is sliced in "
                "part only; expected bf16 or fp32"
            )
        check_parts(self.learn, self.objective)
        if self.learn.last > 1 and self.folder is None:
            raise ValueError(
                f"learn.last {self.learn.last}: without a folder there are no checkpoints, expected 0"
            )
        self.schedule = Schedule(
            kind=self.learn.schedule, rate=self.learn.rate, steps=self.learn.steps, warmup=self.learn.warmup,
            floor=self.learn.floor,
        )  # fmt: skip
        self.optimiser = make_optimiser(
            self.net, kind=self.learn.optimiser, rate=self.learn.rate, betas=self.learn.betas,
            eps=self.learn.eps, decay=self.learn.decay, layer_decay=self.learn.layer_decay,
        )  # fmt: skip
        self.tensors = [*self.net.parameters()]
        self.average = Average(self.net, self.learn.average) if self.learn.average else None
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.learn.precision == "fp16")
        self.memory: Tensor | None = None
        self.watch = Watch()
        if self.learn.precision == "fp16":
            self.watch.remedy += " or learn.precision 'bf16'"
        self.ragged = self.learn.compile and self.feed.lengths is not None
        if self.learn.compile:
            self.objective = compiled(self.objective, self.device, ragged=self.ragged)
        if self.folder is not None and self.team.first:
            self.folder.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(self.learn.seed + self.spread.rank)

    @without_cudnn()
    def run(self) -> State:
        """Trains up to the last step, or until asked to stop."""
        self.net.train()
        clock, tokens, sums = time.perf_counter(), 0, Sums()
        made = drawn(self.feed, self.objective, self.dealt, self.state.place, self.workers)
        with closing(made) as batches, self.graphs():
            for place, parts in batches:
                asked, fresh, whole = self.agreed(parts)
                if self.over or asked:
                    break
                found = self.step(parts, place, whole)
                tokens, self.state.tokens = tokens + fresh, self.state.tokens + fresh
                sums.add(found)
                self.state.step += 1
                self.state.place = self.feed.after(place)
                if self.due(self.learn.log):
                    spent = time.perf_counter() - clock
                    self.tell("train", sums.mean(), spent, tokens / spent, self.schedule(self.state.step))
                    clock, tokens, sums = time.perf_counter(), 0, Sums()
                paused = time.perf_counter()
                if self.evaluate is not None and self.due(self.learn.measure) and not self.over:
                    with self.averaged():
                        improved = self.measure()
                    self.state.stale = 0 if improved else self.state.stale + 1
                if self.folder is not None and self.due(self.learn.save):
                    self.save()
                clock += time.perf_counter() - paused  # speed is that of learning alone
        self.watch.look()
        if self.state.step >= self.learn.steps or (self.over and self.learn.last):
            with self.settled():
                self.measure()
        if self.folder is not None:
            self.save()
        self.net.eval()
        return self.state

    def agreed(self, parts: list[Part]) -> tuple[bool, int, dict[str, int]]:
        """What all processes know before a step: whether to stop, the tokens and the targets of the batch."""
        names = list(parts[0].counts)
        counts = [sum(part.counts[name] for part in parts) for name in names]
        own = [int(self.stop), sum(part.tokens for part in parts), *counts]
        asked, tokens, *sums = self.team.sum(own)
        readers = self.team.world // self.spread.world  # of the same rows
        return asked > 0, tokens // readers, {n: s // readers for n, s in zip(names, sums, strict=True)}

    def step(self, parts: list[Part], place: Place, whole: dict[str, int]) -> dict[str, Tensor]:
        """One step over the parts of a batch with so many targets in all; returns the losses, still on the
        device."""
        if not any(whole.values()):
            raise ValueError(f"step {self.state.step + 1}: no target in the batch, all of them are masked")
        for tensor in self.tensors:
            tensor.grad = None
        if place.batch == 0:  # the text begins anew
            self.memory = None
        memory = self.memory
        backward = Backward(
            forward=self.forward, objective=self.objective, spread=self.spread, scale=self.scaler.scale,
            device=self.device,
        )  # fmt: skip
        total = backward(parts, whole)
        self.spread.join(self.net)
        sums = self.spread.total(torch.stack([*total.values()]))
        total = dict(zip(total, sums, strict=True))
        self.scaler.unscale_(self.optimiser)
        norm, finite = clip(self.tensors, self.learn.clip)
        known = sums.isfinite().all()  # whether the loss is a number
        lost = self.team.most(1.0 - (finite & known).float())
        for group in self.optimiser.param_groups:
            group["lr"] = self.schedule(self.state.step + 1) * group.get("factor", 1.0)
        step_unless(self.optimiser, lost)
        if self.scaler.is_enabled():  # a gradient's overflow is no fault that a lower scale cures
            lost = lost * ~(rescaled(self.scaler, self.device) & known)
        self.watch.add(self.state.step + 1, place, lost)
        if self.memory is not None:  # a step that was lost leaves none
            before = torch.zeros_like(self.memory) if memory is None else memory
            self.memory = torch.where(lost.bool(), before, self.memory)
        if self.average is not None:
            self.average.update()
        return total | {"norm": norm}

    def forward(self, batch: Batch) -> Out:
        batch = batch.to(self.device)
        if self.ragged:
            batch = with_seats(batch)
        if self.objective.recurrent:
            batch = replace(batch, memory=self.memory)
        with self.autocast():
            out = self.net(batch)
        if self.objective.recurrent:
            self.memory = out["memory"].detach()
        return out

    def graphs(self) -> AbstractContextManager[None]:
        return by_blocks(self.net, ragged=self.ragged) if self.learn.compile else nullcontext()

    def autocast(self) -> AbstractContextManager[Any]:
        if self.learn.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, DTYPES[self.learn.precision])

    @property
    def over(self) -> bool:
        """Whether there is nothing left to do: all steps are done, or it no longer got better."""
        return self.state.step >= self.learn.steps or 0 < self.learn.patience <= self.state.stale

    def due(self, every: int) -> bool:
        return bool(every) and self.state.step % every == 0

    def dealt(self, place: Place) -> Dealt:
        """What of a batch is this process's to run."""
        return self.spread.deal(self.feed.parts(place, self.learn.accumulate * self.spread.world))

    def averaged(self) -> AbstractContextManager[None]:
        """The network with its moving average for weights, where it has one."""
        return self.average.applied(self.net) if self.average else nullcontext()

    def settled(self) -> AbstractContextManager[None]:
        """The network as a run leaves it: so, or with the mean of its last checkpoints for weights."""
        if self.folder is None or not self.learn.last:
            return self.averaged()
        home, others = self.folder / "checkpoints", self.learn.last - 1
        return mean_with(self.net, before(home, self.state.step, count=others, every=self.learn.save))

    def measure(self) -> bool:
        """Measures the network as it is; returns whether it is the best so far, and saves it then."""
        if self.evaluate is None:
            return False
        clock = time.perf_counter()
        self.net.eval()
        # a few batches are worth no graph of their own
        plain = torch.compiler.set_stance("force_eager") if self.learn.compile else nullcontext()
        with torch.no_grad(), self.autocast(), plain:
            values = self.team.told(self.evaluate(self.net))
        if self.learn.watch not in values:
            raise ValueError(
                f"learn.watch {self.learn.watch!r}, expected one of what is measured: {', '.join(values)}"
            )
        value = values[self.learn.watch]
        improved = better(value, self.state.best, rising=self.learn.rising)
        if improved:
            self.state.best = value
            if self.folder is not None and self.save_best is not None:
                self.write(self.save_best, self.folder / "best")
        self.net.train()
        self.tell("measure", values, time.perf_counter() - clock)
        return improved

    def tell(
        self, kind: str, values: dict[str, float], seconds: float, speed: float = 0.0, rate: float = 0.0
    ) -> None:
        report = Report(
            step=self.state.step,
            kind=kind,
            values=values,
            seconds=seconds,
            tokens_per_second=speed,
            rate=rate,
        )
        for callback in self.callbacks if self.team.first else ():
            callback(report)

    def write(self, save: Callable[[Path], None], folder: Path) -> None:
        """The model as it is now into a folder, by the first process."""
        with whole(self.net, self.team):
            if self.team.first:
                save(folder)

    def save(self) -> None:
        """Writes a checkpoint, from which `restore` goes on to the bit."""
        assert self.folder is not None
        self.watch.look()
        tensors, state = gathered(self)
        if self.team.first:
            checkpoint.write(
                self.folder / "checkpoints", self.state.step, tensors, state, keep=self.learn.keep,
                every=self.learn.save,
            )  # fmt: skip

    def restore(self) -> bool:
        """Goes on from the newest whole checkpoint; False where there is none."""
        assert self.folder is not None
        found = checkpoint.newest(self.folder / "checkpoints")
        steps = self.team.each(None if found is None else found[1]["step"])
        if len({*steps}) > 1:
            raise ValueError(
                f"{self.folder}: the processes found checkpoints of different steps, {steps}; "
                "expected a folder that all of them share"
            )
        if found is not None:
            scattered(self, *found)
        return found is not None


class Sums:
    """Means of losses over steps, kept on the device until they are asked for."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.count = 0

    def add(self, values: dict[str, Tensor]) -> None:
        self.count += 1
        self.sums = {name: self.sums.get(name, 0) + value for name, value in values.items()}

    def mean(self) -> dict[str, float]:
        found = {name: float(value) / self.count for name, value in self.sums.items()}
        return {"loss": sum(value for name, value in found.items() if name != "norm"), **found}


def check_parts(learn: Learn, objective: Objective) -> None:
    """That a batch may be read in parts."""
    if learn.accumulate > 1 and objective.recurrent:
        why = "gives its memory from batch to batch"
        raise ValueError(f"learn.accumulate {learn.accumulate}: {objective.name} {why}, expected 1")
