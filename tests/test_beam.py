"""Beam search against an exhaustive one, alone and in a batch."""

from __future__ import annotations

import itertools

import pytest
import torch

from qkv.batch import Batch, Rows
from qkv.decode.beam import beam_all, beam_search
from qkv.nn.stack import Transformer
from tests import tiny


def net(seed: int) -> Transformer:
    made = tiny.model("transformer", vocab=8)
    tiny.randomise(made.net, str(seed))
    assert isinstance(made.net, Transformer)
    return made.net.eval()


def likeliest(model: Transformer, source: torch.Tensor, longest: int) -> list[int]:
    """The best of all sequences that end, or fill the length, by the mean of their log-probabilities."""
    best, score = [], -float("inf")
    for length in range(1, longest + 1):
        for body in itertools.product([2, 3, 4, 5], repeat=length - 1):
            for last in [1] if length < longest else [1, 2, 3, 4, 5]:
                ids = [*body, last]
                target = torch.tensor([[0, *ids[:-1]]])
                out = model(Batch(rows=Rows.of(source), target=Rows.of(target)))["logits"][0].log_softmax(-1)
                total = sum(out[i, word].item() for i, word in enumerate(ids)) / length
                if total > score:
                    best, score = ids, total
    return best


@pytest.mark.parametrize("seed", range(4))
def test_a_wide_beam_finds_the_best_of_all(seed: int) -> None:
    model, source = net(seed), torch.tensor([[2, 5, 3, 1]])
    found = beam_search(
        model, Rows.of(source), start=0, end=1, beams=256, longest=4, penalty=1.0, banned=(0, 6, 7)
    )
    assert found[0].ids == likeliest(model, source, 4)


@pytest.mark.parametrize("beams", [1, 3])
def test_rows_together_are_rows_alone(beams: int) -> None:
    model = net(9)
    rows = [torch.randint(2, 8, (n,), generator=torch.Generator().manual_seed(n)) for n in (3, 7, 5, 4)]
    whole = torch.zeros(4, 7, dtype=torch.long)
    for i, row in enumerate(rows):
        whole[i, : len(row)] = row
    mask = whole > 0
    together = beam_search(model, Rows.of(whole, mask=mask), start=0, end=1, beams=beams, longest=9)
    for row, found in zip(rows, together, strict=True):
        (alone,) = beam_search(model, Rows.of(row[None]), start=0, end=1, beams=beams, longest=9)
        assert alone.ids == found.ids
        assert alone.score == pytest.approx(found.score, abs=1e-5)


def test_all_of_many_come_back_in_their_order() -> None:
    model = net(9)
    sources = [[2, 5, 3, 1], [4, 1], [6, 2, 2, 7, 3, 1], [3, 1], [5, 5, 1]]
    found = beam_all(model, sources, pad=0, batch=2, start=0, end=1, beams=3, longest=9)
    for source, one in zip(sources, found, strict=True):
        (alone,) = beam_search(model, Rows.of(torch.tensor([source])), start=0, end=1, beams=3, longest=9)
        assert alone.ids == one.ids


def test_a_beam_of_one_is_greedy() -> None:
    model, source, ids = net(3), torch.tensor([[4, 2, 6]]), [0]
    for _ in range(8):
        out = model(Batch(rows=Rows.of(source), target=Rows.of(torch.tensor([ids]))))["logits"][0, -1]
        ids.append(int(out.argmax()))
        if ids[-1] == 1:
            break
    (found,) = beam_search(model, Rows.of(source), start=0, end=1, beams=1, longest=8)
    assert found.ids == ids[1:]
