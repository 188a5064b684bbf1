"""Scores and selections of attention in models: every pair, in every kind of stack."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qkv
from qkv import Batch, Inputs
from qkv.model.transforms.variant import Variant
from qkv.nn.attention import AttentionKernel
from qkv.nn.scored_attention import ScoredAttentionKernel
from qkv.nn.scores import SCORES, build_score
from qkv.nn.selections import SELECTIONS, build_selection
from qkv.spec import VARIANT_KEYS, ScoreSpec, SelectionSpec
from qkv.train.sharding import check_tensor_parallel
from tests.support import compare, tiny

SETTINGS = {"top-k": dict(name="top-k", k=2), "local-p": dict(name="local-p", window=2)}
EVERY_PAIR = pytest.mark.parametrize(
    ("score", "select"), [(score, select) for score in SCORES for select in SELECTIONS]
)
# Every score and every selection once or more.
SOME_PAIRS = pytest.mark.parametrize(
    ("score", "select"), [*zip(SCORES, SELECTIONS, strict=True), ("scaled-dot", "softmax")]
)
# Every other attention: one family of each kind, with its patterns and positions.
VARIED_FAMILIES = ("bert", "gpt2", "llama", "t5", "sparse", "modernbert", "albert", "xlnet")
STATES = ("last_hidden_state", "encoder_last_hidden_state")


def build(family: str, score: str, select: str, **changes: Any) -> qkv.Model:
    return tiny.build(
        family, attention_score=score, attention_select=SETTINGS.get(select, select), **changes
    )


def assert_padded_rows_equal_rows_alone(model: qkv.Model) -> None:
    ids = tiny.random_ids(2, 9)
    decoder_ids = tiny.random_ids(2, 9, seed=1)
    lengths = torch.tensor([[9], [5]])
    for mask in (torch.arange(9) >= 9 - lengths, torch.arange(9) < lengths):  # left, right
        together = model.net(tiny.build_batch(model, ids, decoder_ids, attention_mask=mask))
        for n in range(2):
            row = mask[n]
            batch = tiny.build_batch(model, ids[n, None, row], decoder_ids[n, None, row])
            alone = model.net(batch)
            names = [name for name in STATES if name in alone]
            compare.assert_close(
                {name: together[name][n, row] for name in names},
                {name: alone[name][0] for name in names},
            )


@EVERY_PAIR
def test_padded_row_equals_row_alone(score: str, select: str) -> None:
    assert_padded_rows_equal_rows_alone(build("transformer", score, select))


@pytest.mark.parametrize("select", ["hard", "local-p", "entmax15"])
@pytest.mark.parametrize("family", VARIED_FAMILIES)
def test_padded_row_equals_row_alone_in_every_kind_of_stack(family: str, select: str) -> None:
    assert_padded_rows_equal_rows_alone(
        build(family, "dot" if family == "xlnet" else "additive", select)
    )


@EVERY_PAIR
def test_cached_decoding_equals_a_full_forward(score: str, select: str) -> None:
    model = build("transformer", score, select)
    ids = tiny.random_ids(2, 6)
    encoder = Inputs.create(tiny.random_ids(2, 4, seed=1))
    mask = torch.arange(6) >= torch.tensor([[0], [2]])  # rows of the first step differ in length
    caches = tiny.create_caches(model, 2)
    prompt = Inputs.create(ids[:, :3], attention_mask=mask[:, :3])
    logits = [model.net(Batch(encoder=encoder, decoder=prompt), caches)["logits"]]
    for t in range(3, 6):
        step = Inputs.create(ids[:, t : t + 1])
        logits.append(model.net(Batch(decoder=step), caches)["logits"])
    rows = Inputs.create(ids, attention_mask=mask)
    full = model.net(Batch(encoder=encoder, decoder=rows))["logits"]
    compare.assert_close({"logits": torch.cat(logits, 1)[mask]}, {"logits": full[mask]})


@pytest.mark.parametrize("select", SELECTIONS)
def test_beam_search_is_the_same_for_a_row_alone(select: str) -> None:
    """Beams share the keys of the encoder; in evaluation, hard attention is not random."""
    model = build("transformer", "additive", select, dtype=torch.float32)
    ids = tiny.random_ids(3, 7)
    settings: dict[str, Any] = dict(num_beams=3, max_new_tokens=6)
    together = model.generate(ids, **settings)
    for n in range(3):
        alone = model.generate(ids[n, None], **settings)
        length = alone.shape[1]
        assert together[n, :length].tolist() == alone[0].tolist()


class PlainAttention(nn.Module):
    """A multi-head attention computed head by head with `qkv.attention`."""

    def __init__(self, attention: nn.Module, score: str, select: str) -> None:
        super().__init__()
        self.attention = attention
        self.score = score
        self.select = select

    def split(self, name: str, x: Tensor) -> Tensor:
        projected: Tensor = self.attention.get_submodule(name)(x)
        return projected.unflatten(-1, (4, -1)).transpose(1, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (self.split(name, x) for name in "qkv")
        size = q.shape[-1]
        heads = []
        for head in range(4):
            score = build_score(self.score, query_width=size, key_width=size).double()
            settings: dict[str, Any] = dict(SETTINGS.get(self.select, {}))
            settings.pop("name", None)
            select = build_selection(self.select, query_width=size, **settings).double().eval()
            for module, path in ((score, "kernel.score"), (select, "kernel.selection")):
                state = self.attention.get_submodule(path).state_dict()
                module.load_state_dict({name: tensor[head] for name, tensor in state.items()})
            heads.append(
                qkv.attention(
                    q[:, head], k[:, head], v[:, head], score=score, select=select, mask=mask
                )
            )
        out: Tensor = self.attention.get_submodule("o")(torch.cat(heads, dim=-1))
        return out


@EVERY_PAIR
def test_multi_head_attention_is_attention_several_times(score: str, select: str) -> None:
    model = build("bert", score, select, depth=1)
    attention = model.net.get_submodule("encoder.layers.0.attention")
    if isinstance(attention.get_submodule("kernel"), AttentionKernel):
        assert (score, select) in (("dot", "softmax"), ("scaled-dot", "softmax"))
        return  # a fast kernel, tested elsewhere
    captured: list[Tensor] = []
    attention.register_forward_hook(lambda module, args, out: captured.extend((args[0], out[0])))
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    model.net(Batch(encoder=Inputs.create(tiny.random_ids(2, 6), attention_mask=mask)))
    x, out = captured
    expected = PlainAttention(attention, score, select)(x, mask[:, None])
    compare.assert_close({"out": out}, {"out": expected})


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("select", SELECTIONS)
def test_look_shows_the_weights_that_were_used(select: str, training: bool) -> None:
    """Of hard attention in training, the sample: the output is the mix of values by these weights."""
    torch.manual_seed(0)
    model = build("bert", "general", select, attention_dropout=0.0, dropout=0.0)
    model.net.train(training)
    captured: dict[str, Tensor] = {}

    def capture(module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        captured["values"], captured["out"] = args[2], out.out

    kernel = model.net.get_submodule("encoder.layers.1.attention.kernel")
    kernel.register_forward_hook(capture)
    batch = Batch(encoder=Inputs.create(tiny.random_ids(2, 6)))
    with qkv.look(model) as weights:
        model.net(batch)
    assert list(weights) == ["encoder.layers.0.attention", "encoder.layers.1.attention"]
    expected = weights["encoder.layers.1.attention"] @ captured["values"]
    compare.assert_close({"out": captured["out"]}, {"out": expected})
    if select in ("hard", "gumbel"):
        assert set(weights["encoder.layers.1.attention"].unique().tolist()) == {0.0, 1.0}


def test_hard_attention_samples_in_training_only() -> None:
    model = build("gpt2", "scaled-dot", "hard", dropout=0.0, embedding_dropout=0.0)
    batch = Batch(decoder=Inputs.create(tiny.random_ids(2, 6)))
    first, second = (model.net(batch)["logits"] for _ in range(2))
    compare.assert_bitwise_equal({"x": first}, {"x": second}, because=compare.SAME_KERNELS)
    model.net.train()
    first, second = (model.net(batch)["logits"] for _ in range(2))
    assert compare.max_difference(first, second) > 1e-3


@pytest.mark.parametrize("family", ["gpt2", "transformer", "xlnet"])
def test_statistics_of_hard_attention_are_outputs(family: str) -> None:
    """Sums over layers and heads, zero for padding; those of an encoder have its prefix."""
    model = build(family, "scaled-dot", "hard")
    model.net.train()
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    batch = tiny.build_batch(model, tiny.random_ids(2, 6), attention_mask=mask)
    assert not [name for name in model.net(batch) if "attention_" in name]
    names = ("attention_log_probs", "attention_entropy")
    with qkv.look(model) as weights:
        out = model.net(Batch(**{**vars(batch), "extra_outputs": names}))
    prefixes = ("", "encoder_") if family == "transformer" else ("",)
    for prefix in prefixes:
        log_probs, entropy = (out[prefix + name] for name in names)
        assert log_probs.shape == entropy.shape == (2, 6)
        assert (log_probs[mask] < 0).any()
        assert (log_probs[~mask] == 0).all()
        assert (entropy[~mask] == 0).all()
        assert log_probs.requires_grad
    assert all(set(x.unique().tolist()) <= {0.0, 1.0} for x in weights.values())


@SOME_PAIRS
def test_a_saved_model_loads_with_its_attention(score: str, select: str, tmp_path: Path) -> None:
    model = build("gpt2", score, select)
    model.save(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    loaded = qkv.load(tmp_path / "saved")
    assert loaded.spec == model.spec
    ids = tiny.random_ids(2, 7)
    expected, actual = (m.net(tiny.build_batch(m, ids)) for m in (model, loaded))
    compare.assert_bitwise_equal(actual, expected, because=compare.SAME_KERNELS)
    if (score, select) == ("scaled-dot", "softmax"):
        assert config["model_type"] == "gpt2"
        return
    assert config["model_type"] == "qkv"
    assert config.get("attention_score", "scaled-dot") == score
    assert config.get("attention_select", "softmax") == SETTINGS.get(select, select)
    with pytest.raises(ValueError, match=r"cannot hold attention_.* in gpt2"):
        model.save(tmp_path / "hf", format="hf")
    assert not (tmp_path / "hf").exists()


def test_arguments_of_every_family_are_the_fields_of_a_variant() -> None:
    assert tuple(Variant.__dataclass_fields__) == VARIANT_KEYS


def test_int8_weights_keep_the_attention(tmp_path: Path) -> None:
    model = build("gpt2", "additive", "entmax15", dtype=torch.float32)
    model.save(tmp_path / "small", quantization="int8")
    loaded = qkv.load(tmp_path / "small")
    ids = tiny.random_ids(2, 7)
    expected, actual = (m.net(tiny.build_batch(m, ids))["logits"] for m in (model, loaded))
    assert loaded.spec == model.spec
    assert compare.max_difference(actual, expected) < 0.2 * expected.std()


def test_the_fast_kernels_stay_for_what_they_cover() -> None:
    """Dot products and softmax by another scale; the kernel is chosen when the model is built."""
    plain, dot, other = (
        tiny.build("gpt2", attention_score=score, attention_select=select)
        for score, select in (("scaled-dot", "softmax"), ("dot", None), ("dot", "sparsemax"))
    )
    path = "decoder.layers.1.attention.kernel"
    assert isinstance(plain.net.get_submodule(path), AttentionKernel)
    kernel = dot.net.get_submodule(path)
    assert isinstance(kernel, AttentionKernel)
    assert kernel.scale == 1.0
    assert isinstance(other.net.get_submodule(path), ScoredAttentionKernel)
    assert plain.spec == tiny.build("gpt2").spec


@pytest.mark.parametrize("score", ["dot", "scaled-dot"])
def test_dot_products_by_the_general_kernel_equal_the_fast_kernel(score: str) -> None:
    """Top-k of more keys than there are is softmax: patterns, biases and masks are the same."""
    every_key = {"name": "top-k", "k": 1000}
    for family, positions in (("t5", None), ("gpt2", "alibi"), ("llama", None), ("sparse", None),
                              ("modernbert", None), ("xlnet", None), ("transformer-xl", None),
                              ("gpt2", "xl"), ("bert", "t5")):  # fmt: skip
        models = [
            qkv.build(family, position_embedding_type=positions, attention_score=score,
                      attention_select=select, **tiny.SIZES[family])
            for select in ("softmax", every_key)
        ]  # fmt: skip
        for model in models:
            tiny.randomize_parameters(model.net.double())
        mask = torch.arange(9) >= torch.tensor([[0], [3]])
        outs = [
            m.net(tiny.build_batch(m, tiny.random_ids(2, 9), attention_mask=mask)) for m in models
        ]
        name = "last_hidden_state"
        compare.assert_close({family: outs[1][name][mask]}, {family: outs[0][name][mask]})


def test_initial_parameters_do_not_depend_on_the_family() -> None:
    torch.manual_seed(0)
    model = qkv.build("gpt2", **tiny.SIZES["gpt2"], attention_score="cosine")
    path = "decoder.layers.0.attention.kernel.score.temperature.log"
    assert model.net.get_parameter(path).exp().flatten().tolist() == pytest.approx([0.1] * 4)
    model = qkv.build("gpt2", **tiny.SIZES["gpt2"], attention_score="additive")
    w = model.net.get_parameter("decoder.layers.0.attention.kernel.score.w")
    assert w.std().item() == pytest.approx(1 / 18**0.5, rel=0.2)  # uniform within 1/sqrt(6)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("gpt2", dict(attention_score="mlp"), "attention_score is 'mlp': expected one of dot"),
        ("gpt2", dict(attention_select="argmax"), "attention_select is 'argmax': expected one of"),
        (
            "gpt2",
            dict(attention_select=5),
            "attention_select is 5, expected a name, such as 'softmax'",
        ),
        ("gpt2", dict(attention_select={"k": 5}), "expected a name, such as 'softmax', or a table"),
        ("gpt2", dict(attention_select=dict(name="top-k", n=5)), "no setting 'n': expected k"),
        (
            "gpt2",
            dict(attention_select=dict(name="top-k", k="many")),
            "k is 'many': expected a whole",
        ),
        ("gpt2", dict(attention_select="local-m"), "expected a recurrent decoder, such as luong"),
        ("luong", dict(attention_select=dict(name="local-m", window=0)), "window is 0: expected"),
        (
            "luong",
            dict(attention_select=dict(name="local-m", window=3, x=1)),
            "selection 'local-m' has no setting 'x': expected window",
        ),
        ("lstmn", dict(cell="gru"), "cell is 'gru', expected 'lstm'"),
        ("luong", dict(attention_score="mlp"), "attention_score is 'mlp': expected one of dot"),
        ("bahdanau", dict(attention_score="dot"), "queries of width 24 and keys of width 48"),
        (
            "lstm-seq2seq",
            dict(attention_select="hard"),
            "this model has no attention to the source",
        ),
        ("xlnet", dict(attention_score="cosine"), "attention_score 'cosine' with the relative pos"),
        ("transformer-xl", dict(attention_score="additive"), "expected 'dot' or 'scaled-dot'"),
    ],
)
def test_what_cannot_work_is_refused_when_the_model_is_built(
    family: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as error:
        tiny.build(family, **changes)
    assert "\n" not in str(error.value)


def test_a_wrong_config_is_refused_with_its_path(tmp_path: Path) -> None:
    build("gpt2", "additive", "hard").save(tmp_path / "saved")
    path = tmp_path / "saved" / "config.json"
    config = json.loads(path.read_text())
    for value in ("mlp", 3, {"name": "cosine", "sigma": 1}):
        path.write_text(json.dumps(config | {"attention_score": value}))
        with pytest.raises(ValueError, match=r"config\.json: attention.score") as error:
            qkv.load(tmp_path / "saved")
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("target", ["onnx", "pt2", "ctranslate2"])
def test_formats_without_a_place_for_it_refuse_the_model(target: Any, tmp_path: Path) -> None:
    if target == "onnx":
        pytest.importorskip("onnxscript")
    model = build("gpt2", "additive", "sparsemax", dtype=torch.float32)
    words = "attention score additive" if target == "ctranslate2" else "softmax of dot products"
    with pytest.raises(ValueError, match=words) as error:
        qkv.export_model(model, tmp_path / "out", to=target)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_tensor_parallelism_refuses_the_model() -> None:
    with pytest.raises(ValueError, match="attention other than the softmax of dot products"):
        check_tensor_parallel(build("gpt2", "additive", "sparsemax").net, 2)


def test_defaults_are_those_of_the_spec() -> None:
    assert (ScoreSpec().name, SelectionSpec().name) == ("scaled-dot", "softmax")
