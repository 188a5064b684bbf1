"""Training of small networks on batches that are made on the device, without files or tokenizers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qkv.experiments.measures import CellContext
from qkv.model.build import build
from qkv.model.model import Model
from qkv.train.config import TrainConfig
from qkv.train.loop.schedule import LRSchedule
from qkv.train.recipe import build_dataclass

CHECK_EVERY = 25  # steps between readings of the loss


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """The course of a training: the last step, the mean loss of the last steps, and divergence."""

    step: int
    loss: float
    has_diverged: bool


def build_cell_model(context: CellContext, model: Mapping[str, Any]) -> Model:
    """Build the model of a cell: `family`, and arguments of `qkv.build`."""
    if "family" not in model:
        raise ValueError(f"{context.name}: model.family is missing; expected the name of a family")
    torch.manual_seed(context.seed)
    if context.device.startswith("cuda"):
        torch.set_float32_matmul_precision("high")
    arguments = dict(model)
    return build(arguments.pop("family"), device=context.device, **arguments)


def parse_train_config(table: Mapping[str, Any]) -> TrainConfig:
    """Build the training settings of a cell, the keys of the table [train] of a recipe."""
    config: TrainConfig = build_dataclass(TrainConfig, table, "train.")
    return config


def train_network(
    net: nn.Module,
    compute_loss: Callable[[int], Tensor],
    config: TrainConfig,
    *,
    is_solved: Callable[[], bool] = lambda: False,
    solved_every: int = 0,
) -> TrainingResult:
    """Minimize `compute_loss(step)` with AdamW; stop early if the task is solved or the loss is not
    finite. `is_solved` is called every `solved_every` steps."""
    device = next(net.parameters()).device
    optimizer = torch.optim.AdamW(
        net.parameters(),
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=device.type == "cuda",
    )
    schedule = LRSchedule(
        name=config.lr_schedule,
        lr=config.lr,
        steps=config.total_steps,
        warmup_steps=config.warmup_steps,
        min_lr_ratio=config.min_lr_ratio,
    )
    losses: list[Tensor] = []
    loss_value = math.nan
    for step in range(1, config.total_steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = schedule(step)
        net.train()
        loss = compute_loss(step)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if config.grad_clip:
            nn.utils.clip_grad_norm_(net.parameters(), config.grad_clip)
        optimizer.step()
        losses.append(loss.detach())
        is_last = step == config.total_steps
        if is_last or step % CHECK_EVERY == 0:
            loss_value = float(torch.stack(losses).mean())
            losses = []
            if not math.isfinite(loss_value):
                return TrainingResult(step=step, loss=math.nan, has_diverged=True)
        if solved_every and step % solved_every == 0 and is_solved():
            return TrainingResult(step=step, loss=loss_value, has_diverged=False)
    return TrainingResult(step=config.total_steps, loss=loss_value, has_diverged=False)
