"""A network prepared for reading reads the same, and leaves the other as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from qkv.batch import Batch, Rows
from qkv.decode import How, generate, prepare
from qkv.decode.optimize_for_inference import First, Half, Turned
from qkv.nn.transformer import Transformer
from tests.support import tiny


def net(name: str, dtype: torch.dtype = torch.float64, **more: Any) -> Transformer:
    family, changes = tiny.CAUSAL[name]
    made = tiny.model(family, dtype=dtype, **changes, **more).net
    assert isinstance(made, Transformer)
    return made


def batch(made: Transformer) -> Batch:
    ids = tiny.ids(2, 6)
    pair = made.encoder is not None and made.decoder is not None
    return Batch(rows=Rows.of(ids), target=Rows.of(ids)) if pair else Batch(rows=Rows.of(ids))


@pytest.mark.parametrize("name", [name for name in tiny.CAUSAL if not name.endswith("-cross")])
@torch.no_grad()
def test_the_numbers_are_the_same(name: str) -> None:
    made = net(name)
    before = {key: value.clone() for key, value in made.state_dict().items()}
    lean, given = prepare(made), batch(made)
    tiny.close({"logits": lean(given)["logits"]}, {"logits": made(given)["logits"]}, within=1e-10)
    assert before.keys() == made.state_dict().keys()
    assert all(torch.equal(before[key], value) for key, value in made.state_dict().items())
    assert any(isinstance(module, Turned) for module in lean.modules())
    recurs = made.tower.stack.recall is not None
    assert recurs != any(isinstance(module, First) for module in lean.modules())


@pytest.mark.parametrize("rows", [1, 3, 9])
@torch.no_grad()
def test_the_head_of_few_and_of_many_rows(rows: int) -> None:
    made = net("bart", dtype=torch.float32)
    wide, lean = made.heads["lm"], prepare(made).heads["lm"]
    hidden = {"hidden": torch.randn(rows, 1, tiny.WIDTH)}
    ours, theirs = lean(hidden, Batch())["logits"], wide(hidden, Batch())["logits"]
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("positions", ["rotary", "alibi"])
@torch.no_grad()
def test_positions_of_every_kind(positions: str) -> None:
    made = net("gpt2", positions=positions)
    lean, given = prepare(made), batch(made)
    tiny.close({"logits": lean(given)["logits"]}, {"logits": made(given)["logits"]}, within=1e-10)


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "marian"])
@torch.no_grad()
def test_half_precision_is_near(name: str) -> None:
    made = net(name, dtype=torch.float32)
    lean, given = prepare(made, precision="half"), batch(made)
    near, exact = lean(given)["logits"], made(given)["logits"]
    far = (near - exact).norm() / exact.norm()
    assert 0 < far < 1e-2
    assert any(isinstance(module, Half) for module in lean.modules())


@pytest.mark.parametrize("name", ["gpt2", "llama", "bart", "t5"])
def test_it_says_the_same(name: str) -> None:
    made = net(name)
    rows = [tiny.ids(n, seed=n).tolist() for n in (3, 6)]
    side: dict[str, Any] = {"sources": rows} if made.encoder is not None else {"prompts": rows}
    for how in (
        How(max_new=9, start=3),
        How(max_new=9, beams=3, start=3),
        How(max_new=9, contrast=0.5, top_k=3, start=3),
    ):
        plain, lean = generate(made, **side, how=how), generate(prepare(made), **side, how=how)
        assert [row[0].ids for row in plain] == [row[0].ids for row in lean]


def test_what_precision_may_be() -> None:
    with pytest.raises(ValueError, match="precision is 'quarter', expected half, or none"):
        prepare(net("gpt2"), precision="quarter")
