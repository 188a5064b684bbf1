"""A character language model trained on a text file, and its loss by position."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.batch import Batch, Inputs
from qkv.experiments.measures import CellContext
from qkv.experiments.table import Measurement
from qkv.experiments.training import (
    build_cell_model,
    parse_train_config,
    train_network,
)
from qkv.files import read_text_file
from qkv.nn.attention import Attention
from qkv.pictures.models.tree import count_parameters

VALIDATION_FRACTION = 0.1  # the end of the text
SHORTEST_TEXT = 2000  # characters


def measure_language_model(
    context: CellContext,
    *,
    text: str,
    model: Mapping[str, Any],
    train: Mapping[str, Any],
    length: int,
    batch_size: int,
    eval_length: int = 0,
    eval_batches: int = 8,
    position_edges: Sequence[int] = (),
) -> Measurement:
    """Train a causal language model on rows of `length` characters.

    `loss` is that of the held-out end of the text at the trained length, in nats per character;
    `qk_gradient` the norm of the first gradient of the query and key projections. With
    `position_edges`, rows of `eval_length` give a point per range of positions."""
    ids, vocab_size = read_characters(context, text)
    split = int(len(ids) * (1 - VALIDATION_FRACTION))
    train_ids = ids[:split].to(context.device)
    validation_ids = ids[split:].to(context.device)
    if split <= length + 1:
        raise ValueError(
            f"{text}: {split:,} characters for training, expected more than a row of length {length:,}"
        )
    net = build_cell_model(context, {"vocab_size": vocab_size, **model}).net
    generator = torch.Generator().manual_seed(context.seed)
    gradient = math.nan

    def compute_loss(step: int) -> Tensor:
        nonlocal gradient
        if step == 2:
            gradient = measure_qk_gradient(net)
        rows = draw_rows(train_ids, batch_size, length + 1, generator)
        return compute_losses(net, rows).mean()

    result = train_network(net, compute_loss, parse_train_config(train))
    if result.step == 1:
        gradient = measure_qk_gradient(net)
    net.eval()
    losses = evaluate_rows(net, validation_ids, batch_size, length + 1, eval_batches)
    metrics = {
        "loss": math.nan if result.has_diverged else float(losses.mean()),
        "train_loss": result.loss,
        "qk_gradient": gradient,
        "has_diverged": result.has_diverged,
        "num_parameters": count_parameters(net),
        "head_dim": get_head_dim(net),
    }
    points: tuple[dict[str, Any], ...] = ()
    if position_edges:
        losses = evaluate_rows(net, validation_ids, batch_size, eval_length + 1, eval_batches)
        by_position = losses.mean(0)
        points = tuple(
            {"position": end, "position_loss": float(by_position[start:end].mean())}
            for start, end in zip((0, *position_edges), position_edges, strict=False)
        )
    return Measurement(metrics=metrics, points=points)


def read_characters(context: CellContext, name: str) -> tuple[Tensor, int]:
    """Return the ids of the characters of a text file, and their number of kinds."""
    content = read_text_file(context.find_data(name))
    if len(content) < SHORTEST_TEXT:
        raise ValueError(f"{name}: {len(content)} characters, expected {SHORTEST_TEXT} or more")
    characters = sorted(set(content))
    index = {character: number for number, character in enumerate(characters)}
    return torch.tensor([index[character] for character in content]), len(characters)


def draw_rows(ids: Tensor, count: int, length: int, generator: torch.Generator) -> Tensor:
    """Return random windows of the text (count, length)."""
    starts = torch.randint(len(ids) - length, (count, 1), generator=generator)
    return ids[(starts + torch.arange(length)).to(ids.device)]


def compute_losses(net: nn.Module, rows: Tensor) -> Tensor:
    """Return the loss of every next character (B, T - 1)."""
    logits = net(Batch(decoder=Inputs.create(rows[:, :-1])))["logits"]
    return F.cross_entropy(logits.float().transpose(1, 2), rows[:, 1:], reduction="none")


@torch.no_grad()
def evaluate_rows(
    net: nn.Module, ids: Tensor, batch_size: int, length: int, num_batches: int
) -> Tensor:
    """Return the losses of rows that are spread evenly over the text (rows, length - 1)."""
    count = batch_size * num_batches
    length = min(length, len(ids) // 2)
    starts = torch.linspace(0, len(ids) - length - 1, count).long()[:, None]
    rows = ids[(starts + torch.arange(length)).to(ids.device)]
    return torch.cat([compute_losses(net, part) for part in rows.split(batch_size)])


def get_head_dim(net: nn.Module) -> int:
    """Return the size of the heads of the first attention layer."""
    return next(module.head_dim for module in net.modules() if isinstance(module, Attention))


def measure_qk_gradient(net: nn.Module) -> float:
    """Return the norm of the gradients of all query and key projections of self-attention."""
    gradients = [
        parameter.grad
        for name, parameter in net.named_parameters()
        if name.endswith((".attention.q.weight", ".attention.k.weight"))
        and parameter.grad is not None
    ]
    return float(torch.stack([gradient.norm() for gradient in gradients]).norm())
