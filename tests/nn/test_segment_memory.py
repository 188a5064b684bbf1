"""Segment memory of padded rows: over several segments, a padded row equals that row alone."""

from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from tests.support import tiny

LENGTHS = ((5, 2, 4), (1, 5, 3), (3, 5, 5), (5, 1, 2), (4, 3, 5))  # of the rows of each segment
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "xlnet": ("xlnet", dict(mem_len=7)),
    "xlnet-short": ("xlnet", dict(mem_len=3)),
    "xlnet-unlimited": ("xlnet", dict(mem_len=None)),
    "xlnet-reuse": ("xlnet", dict(mem_len=7, reuse_len=2)),
    "xlnet-uni": ("xlnet", dict(mem_len=7, attn_type="uni")),
    "xlnet-same-length": ("xlnet", dict(mem_len=7, attn_type="uni", same_length=True)),
    "transformer-xl": ("transformer-xl", dict(mem_len=7)),
    "transformer-xl-short": ("transformer-xl", dict(mem_len=3)),
    "transformer-xl-same-length": ("transformer-xl", dict(mem_len=7, same_length=True)),
    "transformer-xl-none": ("transformer-xl", dict(mem_len=0)),
}


def build_attention_mask(lengths: tuple[int, ...], padding: str) -> Tensor:
    columns = torch.arange(max(lengths))
    counts = torch.tensor(lengths)[:, None]
    return columns >= max(lengths) - counts if padding == "left" else columns < counts


def run(model: qkv.Model, input_ids: Tensor, mask: Tensor | None, mems: Tensor | None) -> Any:
    return model(input_ids, attention_mask=mask, mems=mems, extra_outputs=("hidden_states",))


@pytest.mark.parametrize("padding", ["left", "right", "both"])
@pytest.mark.parametrize("name", MODELS)
def test_memory_of_a_padded_row_equals_that_of_the_row_alone(name: str, padding: str) -> None:
    family, changes = MODELS[name]
    model = tiny.build(family, **changes).to(torch.float64)
    mems = None
    row_mems: list[Tensor | None] = [None] * 3
    for n, lengths in enumerate(LENGTHS):
        side = ("left", "right")[n % 2] if padding == "both" else padding
        mask = build_attention_mask(lengths, side)
        input_ids = tiny.random_ids(*mask.shape, seed=n)
        together = run(model, input_ids, mask, mems)
        mems = together["mems"]
        for row, keep in enumerate(mask):
            alone = run(model, input_ids[row, keep][None], None, row_mems[row])
            row_mems[row] = alone["mems"]
            for output in ("last_hidden_state", "logits"):
                difference = together[output][row, keep] - alone[output][0]
                assert difference.abs().max() < 1e-9, f"segment {n}, row {row}, {output}"
            count = alone["mems"].shape[2]
            start = mems.shape[2] - count  # shorter memories are aligned on the right
            torch.testing.assert_close(mems[:, row, start:], alone["mems"][:, 0], atol=1e-9, rtol=0)
            assert not mems[:, row, :start].any()


def test_memory_of_a_row_without_tokens() -> None:
    """A segment in which a row has no token leaves the memory of the row as it is."""
    model = tiny.build("xlnet", mem_len=4).to(torch.float64)
    input_ids = tiny.random_ids(2, 3)
    first = model(input_ids)["mems"]
    mask = torch.tensor([[1, 1, 1], [0, 0, 0]])
    second = model(input_ids, attention_mask=mask, mems=first)["mems"]
    assert torch.equal(second[:, 1, 1:], first[:, 1])
    assert not second[:, 1, 0].any()
    empty = model(input_ids, attention_mask=mask)["mems"]  # of the second row
    mask = torch.tensor([[1, 1, 1], [0, 1, 1]])
    together = model(input_ids, attention_mask=mask, mems=empty)["logits"][1, 1:]
    alone = model(input_ids[1:, 1:])["logits"][0]
    torch.testing.assert_close(together, alone, atol=1e-9, rtol=0)
