"""Context window: a row that has used all positions of the model continues with its last tokens.

    tokens     a b c d e f g h i      8 positions, and i needs a ninth
    window             e f g h i      the last half is processed again, from position 0

A window keeps the start token, if the row has one. The tokens of a row itself are not changed: logits
processors read all of them. N rows, L tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.decode.request import Request
from qkv.decode.runner import Runner, expand_prompt_indices
from qkv.decode.transfer import copy_to_device


def slide_windows(runner: Runner, requests: Sequence[Request], token_ids: Tensor) -> None:
    """Slide the windows of the requests that have no position for their next token.

    Half of the positions are kept; the cache of these rows is computed again."""
    full_rows = {*runner.find_full_rows()}
    if not full_rows:
        return
    assert runner.max_positions is not None
    rows_per_prompt = runner.rows_per_prompt
    full = [request for request in requests if request.batch_index * rows_per_prompt in full_rows]
    num_kept = runner.max_positions // 2
    for request in full:
        request.num_dropped += runner.max_positions - num_kept
    rows = expand_prompt_indices([request.batch_index for request in full], rows_per_prompt)
    window_ids = select_window_tokens(token_ids[rows], full, rows_per_prompt)
    runner.replace_rows(rows, window_ids[:, :num_kept])


def select_window_tokens(
    token_ids: Tensor, requests: Sequence[Request], rows_per_prompt: int = 1
) -> Tensor:
    """Return the tokens (N, L) of each row from the start of its window; the end is arbitrary."""
    if not any(request.num_dropped for request in requests):
        return token_ids
    row_values = [
        [request.num_start_tokens, request.num_dropped]
        for request in requests
        for _ in range(rows_per_prompt)
    ]
    num_start, num_dropped = copy_to_device(row_values, token_ids.device)[..., None].unbind(1)
    columns = torch.arange(token_ids.shape[1], device=token_ids.device)
    index = columns + torch.where(columns < num_start, 0, num_dropped)  # (N, L)
    return token_ids.gather(1, index.clamp(max=token_ids.shape[1] - 1))
