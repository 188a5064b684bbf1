"""Position embeddings: each type in every family, and each type against its formula."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv import Batch, Inputs
from qkv.nn.relative_position import AlibiBias, RotaryEmbedding
from qkv.spec import AlibiSpec, RotarySpec
from tests.support import compare, tiny

POSITION_TYPES = ("none", "sinusoid", "learned", "t5", "alibi", "rotary", "xl")
# Rotary positions need an even size.
CHANGES: dict[str, dict[str, Any]] = {"t5": dict(head_dim=6), "switch": dict(head_dim=6)}
STATES = ("last_hidden_state", "encoder_last_hidden_state")
# Segment recurrence needs its relative positions; recurrent stacks have no positions.
RECURRENT = ("xlnet", "transformer-xl", *tiny.RECURRENT)
NOT_RECURRENT = [family for family in tiny.SEQUENCE_FAMILIES if family not in RECURRENT]
EVERY_TYPE = pytest.mark.parametrize(
    ("family", "position_type"), [(f, k) for f in NOT_RECURRENT for k in POSITION_TYPES]
)
CAUSAL = (
    *"gpt gpt2 gpt3 ctrl llama bert-decoder sparse-strided-heads".split(),
    *(name for name in tiny.ENCODER_DECODERS if name not in tiny.RECURRENT),
)


def build(family: str, position_type: str, **changes: Any) -> qkv.Model:
    return tiny.build(family, positions=position_type, **CHANGES.get(family, {}) | changes)


@pytest.mark.parametrize("position_type", POSITION_TYPES)
@pytest.mark.parametrize("family", RECURRENT)
def test_recurrent_families_have_no_other_positions(family: str, position_type: str) -> None:
    with pytest.raises(ValueError, match=f"^(?=.*{family}).*{position_type}"):
        build(family, position_type)


@EVERY_TYPE
def test_padded_row_equals_row_alone(family: str, position_type: str) -> None:
    model = build(family, position_type)
    ids = tiny.random_ids(2, 9)
    decoder_ids = tiny.random_ids(2, 9, seed=1)
    lengths = torch.tensor([[9], [5]])
    for padding in ("left", "right"):
        mask = torch.arange(9) >= 9 - lengths if padding == "left" else torch.arange(9) < lengths
        together = model.net(tiny.build_batch(model, ids, decoder_ids, attention_mask=mask))
        for n in range(2):
            row = mask[n]
            batch = tiny.build_batch(model, ids[n, None, row], decoder_ids[n, None, row])
            alone = model.net(batch)
            names = [name for name in (*STATES, "logits") if name in alone]
            compare.assert_close(
                {name: together[name][n, row] for name in names},
                {name: alone[name][0] for name in names},
            )


# One layer, in which the last token attends to all others: order matters only through positions.
ONE_LAYER: dict[str, Any] = dict(depth=1)
ONE_LAYER_CHANGES: dict[str, dict[str, Any]] = {
    name: ONE_LAYER | dict(decoder_depth=1) for name in tiny.ENCODER_DECODERS
}
ONE_LAYER_CHANGES |= {
    "albert": ONE_LAYER | dict(num_groups=1),
    "sparse": ONE_LAYER | dict(stride=64, split="layers"),
}


@EVERY_TYPE
def test_order_matters_only_with_positions(family: str, position_type: str) -> None:
    model = build(family, position_type, **ONE_LAYER_CHANGES.get(family, ONE_LAYER))
    ids = tiny.random_ids(1, 8)
    order = torch.tensor([3, 5, 0, 6, 1, 4, 2, 7])  # the last stays last
    first, second = (model.net(tiny.build_batch(model, x)) for x in (ids, ids[:, order]))
    for name in (name for name in STATES if name in first):
        difference = compare.max_difference(first[name][:, -1], second[name][:, -1])
        assert difference < 1e-12 if position_type == "none" else difference > 1e-4, (
            name,
            difference,
        )


@EVERY_TYPE
def test_a_saved_model_loads_with_its_positions(
    family: str, position_type: str, tmp_path: Path
) -> None:
    model = build(family, position_type)
    ids = tiny.random_ids(2, 7)
    model.save(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert (config["model_type"], config["family"], config["position_embedding_type"]) == (
        "qkv",
        family,
        position_type,
    )
    loaded = qkv.load(tmp_path / "saved")
    assert loaded.spec == model.spec
    expected, actual = (m.net(tiny.build_batch(m, ids)) for m in (model, loaded))
    compare.assert_bitwise_equal(actual, expected, because=compare.SAME_KERNELS)
    removed = not model.family.model_types or model.family.removed_from_hf
    with pytest.raises(
        ValueError,
        match=family if removed else f"position_embedding_type='{position_type}' in {family}",
    ):
        model.save(tmp_path / "hf", format="hf")
    assert not (tmp_path / "hf").exists()


@pytest.mark.parametrize("position_type", POSITION_TYPES)
@pytest.mark.parametrize("name", CAUSAL)
def test_cached_decoding_equals_a_full_forward(name: str, position_type: str) -> None:
    family, changes = tiny.CAUSAL[name]
    model = build(family, position_type, **changes)
    ids = tiny.random_ids(2, 7)
    encoder = None
    if family in tiny.ENCODER_DECODERS:
        encoder = Inputs.create(tiny.random_ids(2, 4, seed=1))
    mask = torch.arange(7) >= torch.tensor([[0], [2]])  # rows of the first step differ in length
    caches = tiny.create_caches(model, 2)
    prompt = Inputs.create(ids[:, :3], attention_mask=mask[:, :3])
    logits = [model.net(Batch(encoder=encoder, decoder=prompt), caches)["logits"]]
    for t in range(3, 7):
        step = Inputs.create(ids[:, t : t + 1])
        logits.append(model.net(Batch(decoder=step), caches)["logits"])
    rows = Inputs.create(ids, attention_mask=mask)
    full = model.net(Batch(encoder=encoder, decoder=rows))["logits"]
    compare.assert_close({"logits": torch.cat(logits, 1)[mask]}, {"logits": full[mask]})


@pytest.mark.parametrize("position_type", POSITION_TYPES)
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_relative_positions_ignore_a_shift(family: str, position_type: str) -> None:
    model = build(family, position_type)
    ids = tiny.random_ids(1, 8)
    positions = torch.arange(8)[None]
    first, second = (
        model(ids, position_ids=p)["last_hidden_state"] for p in (positions, positions + 11)
    )
    difference = compare.max_difference(first, second)
    assert difference > 1e-4 if position_type in ("sinusoid", "learned") else difference < 1e-9


def test_learned_positions_keep_their_number() -> None:
    model = tiny.build("bert", positions="learned", max_positions=31)
    assert model.net.get_parameter("encoder.embedding.positions.weight").shape == (31, tiny.WIDTH)


def test_an_unknown_type_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"'sinusiod'.*sinusoid"):
        qkv.build("gpt2", position_embedding_type="sinusiod")


@pytest.mark.parametrize("head", ["image", "image-embedding", "image-classification"])
def test_an_image_encoder_alone_has_no_other_positions(head: str) -> None:
    with pytest.raises(ValueError, match="clip"):
        tiny.build("clip", positions="rotary", head=head)


def test_rotary_positions_need_an_even_head_dim() -> None:
    with pytest.raises(ValueError, match="5"):
        tiny.build("t5", positions="rotary", head_dim=5)


def test_alibi_has_the_slopes_of_the_paper() -> None:
    """Press et al. 2021, section 3: 8 heads have 1/2 to 1/256; 12 heads have these and every second
    one of 16."""
    positions = torch.arange(6)[None]
    distance = -(positions[0, :, None] - positions[0, None, :]).abs().double()
    slopes = {
        8: [2.0**-n for n in range(1, 9)],
        16: [2 ** (-n / 2) for n in range(1, 17)],
        1: [2.0**-8],
    }
    slopes[12] = slopes[8] + slopes[16][0:8:2]
    for heads, each in slopes.items():
        bias = AlibiBias(AlibiSpec(heads=heads))(positions, positions)
        assert bias.shape == (1, heads, 6, 6)
        expected = distance * torch.tensor(each, dtype=torch.float64)[:, None, None]
        torch.testing.assert_close(bias[0].double(), expected, atol=1e-6, rtol=1e-7)


def test_alibi_is_added_to_the_scores() -> None:
    model = build_one_layer("gpt2", "alibi", heads=12)
    ids = tiny.random_ids(1, 7)
    weights = record_first_attention_weights(model, ids)
    q, k = compute_first_queries_and_keys(model, ids)
    slopes = [2.0**-n for n in range(1, 9)] + [2 ** (-n / 2) for n in range(1, 8, 2)]
    for h in range(12):
        for i in range(7):
            scores = [q[h, i] @ k[h, j] / math.sqrt(2) - slopes[h] * (i - j) for j in range(i + 1)]
            compare.assert_close(
                {"row": weights[h, i, : i + 1]}, {"row": torch.stack(scores).softmax(0)}
            )


@pytest.mark.parametrize("base", [1e4, 5e5])
def test_rotary_positions_rotate_complex_numbers(base: float) -> None:
    """Su et al. 2021, section 3.2: features i and i + d/2 are one complex number, rotated by m /
    base^(2i/d)."""
    x, positions = (
        torch.randn(2, 5, 3, 8, dtype=torch.float64),
        torch.tensor([[0, 1, 2, 3, 4], [7, 9, 11, 400, 3]]),
    )
    angle = positions[:, :, None, None] * base ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    y = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(torch.ones_like(angle), angle)
    compare.assert_close(
        {"x": RotaryEmbedding(RotarySpec(theta=base), 8)(x, positions)},
        {"x": torch.cat([y.real, y.imag], -1)},
        1e-12,
    )


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_rotary_positions_rotate_queries_and_keys(family: str) -> None:
    model = build_one_layer(family, "rotary")
    ids = tiny.random_ids(1, 7)
    weights = record_first_attention_weights(model, ids)
    q, k = (
        torch.complex(x[..., :3], x[..., 3:]) for x in compute_first_queries_and_keys(model, ids)
    )
    rates = 1e4 ** (-torch.arange(0, 6, 2, dtype=torch.float64) / 6)
    for h in range(4):
        for i in range(7):
            sees = range(i + 1) if family == "gpt2" else range(7)
            angle = [torch.polar(torch.ones(3, dtype=torch.float64), (i - j) * rates) for j in sees]
            scores = [
                (q[h, i] * a * k[h, j].conj()).real.sum() / math.sqrt(6)
                for j, a in zip(sees, angle, strict=True)
            ]
            compare.assert_close(
                {"row": weights[h, i, : len(sees)]}, {"row": torch.stack(scores).softmax(0)}
            )


@pytest.mark.parametrize("family", ["gpt2", "bert", "llama"])
def test_xl_scores_equal_the_formula(family: str) -> None:
    """Dai et al. 2019, section 3.3: (q + u)k + (q + v) W R(i - j), R as in the original, all sines
    first."""
    model = build_one_layer(family, "xl")
    ids = tiny.random_ids(1, 7)
    weights = record_first_attention_weights(model, ids)
    q, k = compute_first_queries_and_keys(model, ids)
    k = k.repeat_interleave(len(q) // len(k), dim=0)
    side = "encoder" if family == "bert" else "decoder"
    r, u, v = (
        model.net.get_parameter(f"{side}.layers.0.attention.relative.{x}")
        for x in ("r.weight", "u", "v")
    )
    rates = [10000 ** (-n / tiny.WIDTH) for n in range(0, tiny.WIDTH, 2)]
    for h in range(4):
        for i in range(7):
            scores = []
            for j in range(7) if family == "bert" else range(i + 1):
                wave = [math.sin((i - j) * f) for f in rates] + [
                    math.cos((i - j) * f) for f in rates
                ]
                projected = (r @ torch.tensor(wave, dtype=torch.float64)).view(4, 6)[h]
                scores.append(
                    ((q[h, i] + u[h]) @ k[h, j] + (q[h, i] + v[h]) @ projected) / math.sqrt(6)
                )
            compare.assert_close(
                {"row": weights[h, i, : len(scores)]}, {"row": torch.stack(scores).softmax(0)}
            )


@pytest.mark.parametrize(("family", "ways"), [("bert", 2), ("gpt2", 1)])
def test_t5_buckets_equal_the_formula(family: str, ways: int) -> None:
    """Raffel et al. 2019, section 2.1: one bucket for each near distance, logarithmic buckets up to
    128."""
    model = build_one_layer(family, "t5", max_positions=400)
    ids = tiny.random_ids(1, 200)
    weights = record_first_attention_weights(model, ids)
    q, k = compute_first_queries_and_keys(model, ids)
    (table,) = (
        p.detach() for name, p in model.net.named_parameters() if name.endswith("bias.table.weight")
    )
    assert table.shape == (32, 4)
    bias = torch.full((4, 200, 200), -math.inf, dtype=torch.float64)
    near = 16 // ways
    for i in range(200):
        for j in range(200) if ways == 2 else range(i + 1):
            distance = abs(i - j)
            first_bucket = 16 if j > i else 0
            growth = math.log(max(distance, near) / near) / math.log(128 / near)
            far_bucket = min(2 * near - 1, near + int(growth * near + 1e-9))
            bias[:, i, j] = table[first_bucket + (distance if distance < near else far_bucket)]
    expected = (q @ k.transpose(-1, -2) / math.sqrt(6) + bias).softmax(-1)
    compare.assert_close({"weights": weights}, {"weights": expected})


def build_one_layer(family: str, position_type: str, **changes: Any) -> qkv.Model:
    """Return a model with one layer, whose scores are scaled by the head's size only."""
    if family == "gpt2":
        changes["scale_attn_by_inverse_layer_idx"] = False
    return tiny.build(family, positions=position_type, **ONE_LAYER | changes)


def record_first_attention_weights(model: qkv.Model, ids: Tensor) -> Tensor:
    """Return the attention weights of the first layer (H, T, S)."""
    with qkv.look(model) as weights:
        model(ids)
    return next(iter(weights.values()))[0]


def compute_first_queries_and_keys(model: qkv.Model, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return queries and keys of the first layer (H, T, D), before any position embedding."""
    block = model.net.get_submodule(
        f"{'encoder' if model.family.name == 'bert' else 'decoder'}.layers.0"
    )
    size = tiny.WIDTH // model.args["heads"]
    x = model(ids, extra_outputs=("hidden_states",))["hidden_states"][0]
    y = block.get_submodule("pre_attention_norm")(x)
    q, k = (
        block.get_submodule(f"attention.{name}")(y)[0].unflatten(-1, (-1, size)).transpose(0, 1)
        for name in "qk"
    )
    return q, k
