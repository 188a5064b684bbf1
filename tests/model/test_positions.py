"""Ways to tell positions apart: each kind in every family, and each kind against its formula."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv import Batch, Rows
from qkv.nn.relative_position import AlibiBias, Rotate
from qkv.spec import Alibi, Rotary
from tests.support import tiny

KINDS = ("none", "sinusoid", "learned", "t5", "alibi", "rotary", "xl")
CHANGES: dict[str, dict[str, Any]] = {
    "t5": dict(head_dim=6),
    "switch": dict(head_dim=6),
}  # rotary turns pairs
RECURRENT = ("xlnet", "transformer-xl")  # their memory is bound to their own distances
TAKE = [family for family in tiny.FAMILIES if family not in RECURRENT]
EVERY = pytest.mark.parametrize(("family", "kind"), [(f, k) for f in TAKE for k in KINDS])
CAUSAL = "gpt gpt2 gpt3 ctrl llama bert-decoder sparse-strided-heads".split() + tiny.PAIRS


def make(family: str, kind: str, **changes: Any) -> qkv.Model:
    return tiny.model(family, positions=kind, **CHANGES.get(family, {}) | changes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", RECURRENT)
def test_a_recurrence_refuses(family: str, kind: str) -> None:
    with pytest.raises(ValueError, match=f"^(?=.*{family}).*{kind}"):
        make(family, kind)


@EVERY
def test_a_padded_row_equals_it_alone(family: str, kind: str) -> None:
    made = make(family, kind)
    ids, target, lengths = tiny.ids(2, 9), tiny.ids(2, 9, seed=1), torch.tensor([[9], [5]])
    for pads in ("left", "right"):
        mask = torch.arange(9) >= 9 - lengths if pads == "left" else torch.arange(9) < lengths
        together = made.net(tiny.batch(made, ids, target, mask=mask))
        for n in range(2):
            row = mask[n]
            alone = made.net(tiny.batch(made, ids[n, None, row], target[n, None, row]))
            names = [name for name in ("hidden", "logits", "encoded") if name in alone]
            tiny.close({k: together[k][n, row] for k in names}, {k: alone[k][0] for k in names})


# One layer, in which the last token sees all others: their order shows through positions alone.
FLAT: dict[str, Any] = dict(depth=1)
FLATS: dict[str, dict[str, Any]] = {name: FLAT | dict(decoder_depth=1) for name in tiny.PAIRS}
FLATS |= {"albert": FLAT | dict(groups=1), "sparse": FLAT | dict(stride=64, split="layers")}


@EVERY
def test_order_counts_unless_there_are_no_positions(family: str, kind: str) -> None:
    made = make(family, kind, **FLATS.get(family, FLAT))
    ids, order = tiny.ids(1, 8), torch.tensor([3, 5, 0, 6, 1, 4, 2, 7])  # the last stays last
    one, two = (made.net(tiny.batch(made, x)) for x in (ids, ids[:, order]))
    for name in ("hidden", "encoded") if "encoded" in one else ("hidden",):
        far = tiny.apart(one[name][:, -1], two[name][:, -1])
        assert far < 1e-12 if kind == "none" else far > 1e-4, (name, far)


@EVERY
def test_saved_and_opened_again(family: str, kind: str, tmp_path: Path) -> None:
    made = make(family, kind)
    ids = tiny.ids(2, 7)
    made.save(tmp_path / "ours")
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert (config["model_type"], config["family"], config["positions"]) == ("qkv", family, kind)
    again = qkv.load(tmp_path / "ours")
    assert again.spec == made.spec
    one, two = (m.net(tiny.batch(m, ids)) for m in (made, again))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    removed = not made.family.model_types or made.family.removed
    with pytest.raises(ValueError, match=family if removed else f"positions='{kind}' in {family}"):
        made.save(tmp_path / "theirs", form="hf")
    assert not (tmp_path / "theirs").exists()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CAUSAL)
def test_one_at_a_time(name: str, kind: str) -> None:
    family, changes = tiny.CAUSAL[name]
    made = make(family, kind, **changes)
    ids, source = tiny.ids(2, 7), tiny.ids(2, 4, seed=1)
    mask = torch.arange(7) >= torch.tensor([[0], [2]])  # the first step is ragged
    memory, pair = tiny.memory(made, 2), family in tiny.PAIRS
    step = Rows.of(ids[:, :3], mask=mask[:, :3])
    out = made.net(Batch(rows=Rows.of(source), target=step) if pair else Batch(rows=step), memory)
    parts = [out["logits"]]
    for t in range(3, 7):
        step = Rows.of(ids[:, t : t + 1])
        parts.append(made.net(Batch(target=step) if pair else Batch(rows=step), memory)["logits"])
    rows = Rows.of(ids, mask=mask)
    full = made.net(Batch(rows=Rows.of(source), target=rows) if pair else Batch(rows=rows))["logits"]
    tiny.close({"logits": torch.cat(parts, 1)[mask]}, {"logits": full[mask]})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_only_distance_counts_where_positions_are_relative(family: str, kind: str) -> None:
    made, ids = make(family, kind), tiny.ids(1, 8)
    at = torch.arange(8)[None]
    one, two = (made.run(ids, positions=p)["hidden"] for p in (at, at + 11))
    far = tiny.apart(one, two)
    assert far > 1e-4 if kind in ("sinusoid", "learned") else far < 1e-9


def test_a_learned_table_keeps_its_length() -> None:
    made = tiny.model("bert", positions="learned", length=31)
    assert made.net.get_parameter("encoder.embed.positions.weight").shape == (31, tiny.WIDTH)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'sinusiod'.*sinusoid"):
        qkv.build("gpt2", positions="sinusiod")


@pytest.mark.parametrize("head", ["image", "image-vector", "image-label"])
def test_a_tower_of_images_alone_refuses(head: str) -> None:
    with pytest.raises(ValueError, match="clip"):
        tiny.model("clip", positions="rotary", head=head)


def test_rotary_refuses_odd_heads() -> None:
    with pytest.raises(ValueError, match="5"):
        tiny.model("t5", positions="rotary", head_dim=5)


def test_alibi_slopes() -> None:
    """Press et al. 2021, section 3: for 8 heads 1/2 to 1/256; for 12 those, and every other one of 16."""
    at = torch.arange(6)[None]
    distance = -(at[0, :, None] - at[0, None, :]).abs().double()
    slopes = {8: [2.0**-n for n in range(1, 9)], 16: [2 ** (-n / 2) for n in range(1, 17)], 1: [2.0**-8]}
    slopes[12] = slopes[8] + slopes[16][0:8:2]
    for heads, each in slopes.items():
        bias = AlibiBias(Alibi(heads=heads))(at, at)
        assert bias.shape == (1, heads, 6, 6)
        theirs = distance * torch.tensor(each, dtype=torch.float64)[:, None, None]
        torch.testing.assert_close(bias[0].double(), theirs, atol=1e-6, rtol=1e-7)


def test_alibi_is_added_to_the_scores() -> None:
    made, ids = tiny.model("gpt2", positions="alibi", heads=12, **FLAT | own("gpt2")), tiny.ids(1, 7)
    weights = seen(made, ids)
    q, k = projected(made, ids)
    slopes = [2.0**-n for n in range(1, 9)] + [2 ** (-n / 2) for n in range(1, 8, 2)]
    for h in range(12):
        for i in range(7):
            scores = [q[h, i] @ k[h, j] / math.sqrt(2) - slopes[h] * (i - j) for j in range(i + 1)]
            tiny.close({"row": weights[h, i, : i + 1]}, {"row": torch.stack(scores).softmax(0)})


@pytest.mark.parametrize("base", [1e4, 5e5])
def test_rotary_turns_complex_numbers(base: float) -> None:
    """Su et al. 2021, section 3.2: features i and i + d/2 are one number, turned by m / base^(2i/d)."""
    x, at = torch.randn(2, 5, 3, 8, dtype=torch.float64), torch.tensor([[0, 1, 2, 3, 4], [7, 9, 11, 400, 3]])
    angle = at[:, :, None, None] * base ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    y = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(torch.ones_like(angle), angle)
    tiny.close({"x": Rotate(Rotary(base=base), 8)(x, at)}, {"x": torch.cat([y.real, y.imag], -1)}, 1e-12)


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_rotary_turns_queries_and_keys(family: str) -> None:
    made, ids = tiny.model(family, positions="rotary", **FLAT | own(family)), tiny.ids(1, 7)
    weights = seen(made, ids)
    q, k = (torch.complex(x[..., :3], x[..., 3:]) for x in projected(made, ids))
    rates = 1e4 ** (-torch.arange(0, 6, 2, dtype=torch.float64) / 6)
    for h in range(4):
        for i in range(7):
            sees = range(i + 1) if family == "gpt2" else range(7)
            angle = [torch.polar(torch.ones(3, dtype=torch.float64), (i - j) * rates) for j in sees]
            scores = [
                (q[h, i] * a * k[h, j].conj()).real.sum() / math.sqrt(6)
                for j, a in zip(sees, angle, strict=True)
            ]
            tiny.close({"row": weights[h, i, : len(sees)]}, {"row": torch.stack(scores).softmax(0)})


@pytest.mark.parametrize("family", ["gpt2", "bert", "llama"])
def test_xl_scores(family: str) -> None:
    """Dai et al. 2019, section 3.3: (q + u)k + (q + v) W R(i - j), R as in the original, all sines first."""
    made, ids = tiny.model(family, positions="xl", **FLAT | own(family)), tiny.ids(1, 7)
    weights = seen(made, ids)
    q, k = projected(made, ids)
    k = k.repeat_interleave(len(q) // len(k), dim=0)
    side = "encoder" if family == "bert" else "decoder"
    r, u, v = (made.net.get_parameter(f"{side}.layers.0.attend.relative.{x}") for x in ("r.weight", "u", "v"))
    rates = [10000 ** (-n / tiny.WIDTH) for n in range(0, tiny.WIDTH, 2)]
    for h in range(4):
        for i in range(7):
            scores = []
            for j in range(7) if family == "bert" else range(i + 1):
                wave = [math.sin((i - j) * f) for f in rates] + [math.cos((i - j) * f) for f in rates]
                there = (r @ torch.tensor(wave, dtype=torch.float64)).view(4, 6)[h]
                scores.append(((q[h, i] + u[h]) @ k[h, j] + (q[h, i] + v[h]) @ there) / math.sqrt(6))
            tiny.close({"row": weights[h, i, : len(scores)]}, {"row": torch.stack(scores).softmax(0)})


@pytest.mark.parametrize(("family", "ways"), [("bert", 2), ("gpt2", 1)])
def test_t5_buckets(family: str, ways: int) -> None:
    """Raffel et al. 2019, section 2.1: near distances one by one, further ones in growing bins up to 128."""
    made, ids = tiny.model(family, positions="t5", length=400, **FLAT | own(family)), tiny.ids(1, 200)
    weights = seen(made, ids)
    q, k = projected(made, ids)
    (table,) = (p.detach() for name, p in made.net.named_parameters() if name.endswith("bias.table.weight"))
    assert table.shape == (32, 4)
    bias = torch.full((4, 200, 200), -math.inf, dtype=torch.float64)
    near = 16 // ways
    for i in range(200):
        for j in range(200) if ways == 2 else range(i + 1):
            far, ahead = abs(i - j), 16 if j > i else 0
            grown = near + int(math.log(max(far, near) / near) / math.log(128 / near) * near + 1e-9)
            bias[:, i, j] = table[ahead + (far if far < near else min(2 * near - 1, grown))]
    theirs = (q @ k.transpose(-1, -2) / math.sqrt(6) + bias).softmax(-1)
    tiny.close({"weights": weights}, {"weights": theirs})


def own(family: str) -> dict[str, Any]:
    return {"gpt2": dict(scaled_by_layer=False)}.get(family, {})


def seen(made: qkv.Model, ids: Tensor) -> Tensor:
    """The first layer's weights (H, T, S)."""
    with qkv.look(made) as weights:
        made.run(ids)
    return next(iter(weights.values()))[0]


def projected(made: qkv.Model, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The first layer's queries and keys (H, T, D), as its linear layers give them."""
    block = made.net.get_submodule(f"{'encoder' if made.family.name == 'bert' else 'decoder'}.layers.0")
    size = tiny.WIDTH // made.args["heads"]
    x = made.run(ids, keep=("hiddens",))["hiddens"][0]
    y = block.get_submodule("before_attend")(x)
    q, k = (
        block.get_submodule(f"attend.{name}")(y)[0].unflatten(-1, (-1, size)).transpose(0, 1) for name in "qk"
    )
    return q, k
