"""Retrieval of one token that lies a given number of steps back, among random tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.batch import Batch, Inputs
from qkv.experiments.measures import CellContext
from qkv.experiments.table import Measurement
from qkv.experiments.training import (
    build_cell_model,
    parse_train_config,
    train_network,
)
from qkv.nn.network import Network
from qkv.pictures.models.tree import count_parameters

NUM_VALUES = 16  # random tokens; two more mark the token to retrieve and the question
MARK = NUM_VALUES
QUESTION = NUM_VALUES + 1
RETRIEVAL_VOCAB_SIZE = NUM_VALUES + 2
SOLVED_ACCURACY = 0.995
EVAL_EVERY = 50  # steps
EVAL_ROWS = 512


def measure_retrieval(
    context: CellContext,
    *,
    model: Mapping[str, Any],
    train: Mapping[str, Any],
    distance: int,
    batch_size: int,
    segment: int = 0,
) -> Measurement:
    """Train a network on rows `mark value noise ... question`, in which the value is `distance` steps
    before the question, and measure how often it predicts the value.

    A decoder predicts at the question, an encoder-decoder as its first token. `segment` is the length
    of the segments of a network with segment recurrence. Training ends when the task is solved."""
    net = build_cell_model(context, {"vocab_size": RETRIEVAL_VOCAB_SIZE, **model}).net
    assert isinstance(net, Network)
    generator = torch.Generator().manual_seed(context.seed)
    eval_generator = torch.Generator().manual_seed(context.seed + 10_000)

    def draw(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        ids = torch.randint(NUM_VALUES, (rows, distance + 2), generator=generator)
        ids[:, 0] = MARK
        ids[:, -1] = QUESTION
        ids = ids.to(context.device)
        return ids, ids[:, 1]

    def compute_loss(step: int) -> Tensor:
        ids, values = draw(batch_size, generator)
        return F.cross_entropy(predict_last(net, ids, segment), values)

    def compute_accuracy() -> float:
        net.eval()
        num_right = 0
        with torch.no_grad():
            for _ in range(max(1, EVAL_ROWS // batch_size)):
                ids, values = draw(batch_size, eval_generator)
                num_right += int((predict_last(net, ids, segment).argmax(-1) == values).sum())
        return num_right / (max(1, EVAL_ROWS // batch_size) * batch_size)

    result = train_network(
        net,
        compute_loss,
        parse_train_config(train),
        is_solved=lambda: compute_accuracy() >= SOLVED_ACCURACY,
        solved_every=EVAL_EVERY,
    )
    metrics = {
        "accuracy": compute_accuracy(),
        "steps": result.step,
        "train_loss": result.loss,
        "num_parameters": count_parameters(net),
    }
    return Measurement(metrics=metrics)


def predict_last(net: Network, ids: Tensor, segment: int = 0) -> Tensor:
    """Return the logits of the value (B, V), read at the question."""
    if net.encoder is not None:
        start = torch.full_like(ids[:, :1], QUESTION)
        inputs = Batch(encoder=Inputs.create(ids), decoder=Inputs.create(start))
        logits: Tensor = net(inputs)["logits"][:, -1]
        return logits
    mems = None
    *earlier, last = ids.split(segment or ids.shape[1], dim=1)
    for part in earlier:  # no gradient reaches them
        with torch.no_grad():
            mems = net(Batch(decoder=Inputs.create(part), mems=mems))["mems"]
    logits = net(Batch(decoder=Inputs.create(last), mems=mems))["logits"][:, -1]
    return logits
