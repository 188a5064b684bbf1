"""Positions in an encoder: permutation equivariance, and a task that needs the order of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.batch import Batch, Inputs
from qkv.experiments.measures import CellContext
from qkv.experiments.table import Measurement
from qkv.experiments.training import build_cell_model, parse_train_config, train_network
from qkv.validate import check_number

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@torch.no_grad()
def measure_equivariance(
    context: CellContext,
    *,
    model: Mapping[str, Any],
    length: int = 64,
    dtype: Literal["float32", "float64"] = "float64",
) -> Measurement:
    """Compare the states of a permuted text with the permuted states of the text, on the CPU.

    `relative_difference` is the largest difference divided by the largest state; `units` is the same in
    units of the machine epsilon."""
    vocab_size = read_cell_vocab_size(model)
    net = build_cell_model(replace(context, device="cpu"), model).net.to(DTYPES[dtype]).eval()
    ids = torch.randint(vocab_size, (8, length))
    order = torch.randperm(length)
    states = net(Batch(encoder=Inputs.create(ids)))["last_hidden_state"]
    permuted = net(Batch(encoder=Inputs.create(ids[:, order])))["last_hidden_state"]
    difference = float((permuted - states[:, order]).abs().max() / states.abs().max())
    epsilon = torch.finfo(DTYPES[dtype]).eps
    return Measurement(metrics={"relative_difference": difference, "units": difference / epsilon})


def measure_previous_token(
    context: CellContext,
    *,
    model: Mapping[str, Any],
    train: Mapping[str, Any],
    length: int,
    batch_size: int,
    eval_lengths: Sequence[int],
    eval_rows: int = 256,
) -> Measurement:
    """Train an encoder to predict, at every token, the token before it; the tokens are random.

    Token embeddings have unit variance, as the sinusoids that are added to them nearly have. A point is
    the accuracy on rows of one length, also beyond the trained length."""
    vocab_size = read_cell_vocab_size(model)
    arguments = {"head": "token-classification", "num_labels": vocab_size, **model}
    net = build_cell_model(context, arguments).net
    nn.init.normal_(net.get_parameter("encoder.embedding.tokens.weight"))
    generator = torch.Generator().manual_seed(context.seed)

    def draw(rows: int, columns: int) -> Tensor:
        ids = torch.randint(vocab_size, (rows, columns), generator=generator)
        return ids.to(context.device)

    def predict(ids: Tensor) -> Tensor:
        logits: Tensor = net(Batch(encoder=Inputs.create(ids)))["logits"][:, 1:]
        return logits

    def compute_loss(step: int) -> Tensor:
        ids = draw(batch_size, length)
        return F.cross_entropy(predict(ids).transpose(1, 2), ids[:, :-1])

    result = train_network(net, compute_loss, parse_train_config(train))
    net.eval()
    points = []
    for eval_length in eval_lengths:
        num_right = 0
        with torch.no_grad():
            for _ in range(max(1, eval_rows // batch_size)):
                ids = draw(batch_size, eval_length)
                num_right += int((predict(ids).argmax(-1) == ids[:, :-1]).sum())
        total = max(1, eval_rows // batch_size) * batch_size * (eval_length - 1)
        points.append({"length": eval_length, "accuracy": num_right / total})
    return Measurement(metrics={"train_loss": result.loss}, points=tuple(points))


def read_cell_vocab_size(model: Mapping[str, Any]) -> int:
    """Return the number of different random tokens, that of the vocabulary of the model."""
    vocab_size: Any = model.get("vocab_size")
    check_number("model.vocab_size", vocab_size, integer=True, at_least=1)
    return int(vocab_size)
