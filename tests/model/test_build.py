"""New models: published sizes, initialization and dropout as in the reference implementations."""

import math
from collections import Counter
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from torch.overrides import TorchFunctionMode

import qkv
from qkv.families import get_family
from tests.support import compare, tiny
from tests.support.oracle import inputs as oracle
from tests.support.oracle.cases import CASES, Case
from tests.support.oracle.models import find_published_name

# Published sizes: head ("none" is the bare model) and millions of parameters.
PUBLISHED = """
    bert tiny none 4.4           bert mini none 11.2          bert small none 28.8       bert medium none 41.4
    bert base none 109.5         bert large none 335.1        gpt base none 116.5        gpt2 small lm 124.4
    roberta base none 124.6      roberta large none 355.4     gpt2 medium lm 354.8       gpt2 large lm 774.0
    albert base none 11.7        albert large none 17.7       gpt2 xl lm 1557.6          ctrl base lm 1638
    albert xlarge none 58.7      albert xxlarge none 222.6    gpt3 small - 125           gpt3 medium - 356
    distilbert base none 66.4    electra small none 13.5      gpt3 large - 760           gpt3 2.7b - 2651
    electra base none 108.9      electra large none 334.1     gpt3 6.7b - 6658           gpt3 13b - 12853
    xlnet base none 116.7        xlnet large none 360.3       gpt3 175b - 174600         marian base lm 74.0
    transformer-xl wt103 lm 285  bart base lm 139.4           bart large lm 406.3        mbart large lm 610.9
    t5 small lm 60.5             t5 base lm 222.9             t5 large lm 737.7          t5 3b lm 2851.6
    t5 11b lm 11307              t5 1.1-small lm 77.0         t5 1.1-base lm 247.6       switch base-8 lm 619
    clip base-32 both 151.3      clip base-16 both 149.6      clip large-14 both 427.6   llama 7b lm 6738
    llama 3.2-1b lm 1236         vit base none 86             vit large none 307         vit huge none 632
    modernbert base none 149.0   modernbert large none 394.8
""".split()
PARAMETER_COUNTS = list(
    zip(PUBLISHED[::4], PUBLISHED[1::4], PUBLISHED[2::4], map(float, PUBLISHED[3::4]), strict=True)
)
ALL_SIZES = [(family.name, size) for family in qkv.list_families() for size in family.sizes]


@pytest.mark.parametrize(("family", "size", "head", "millions"), PARAMETER_COUNTS)
def test_sizes_match_published_parameter_counts(
    family: str, size: str, head: str, millions: float
) -> None:
    with torch.device("meta"):
        model = qkv.build(family, size) if head == "-" else qkv.build(family, size, head=head)
    count = sum(p.numel() for p in model.net.parameters())
    assert count / 1e6 == pytest.approx(millions, rel=0.01)


@pytest.mark.parametrize(("family", "size"), ALL_SIZES)
def test_every_size_builds_and_loads(family: str, size: str, tmp_path: Path) -> None:
    """Each size, with a small width and depth, builds, runs, and loads as it was saved."""
    sizes = {
        key: value
        for key, value in tiny.SIZES[family].items()
        if key not in ("head", "activation", "pattern")
    }
    model = qkv.build(family, size, **sizes)
    ids = tiny.random_ids(2, 9)
    ids[:, 4] = 7
    model.save(tmp_path)
    loaded = qkv.load(tmp_path)
    assert loaded.spec == model.spec
    compare.assert_bitwise_equal(
        dict(loaded.net.named_parameters()),
        dict(model.net.named_parameters()),
        because=compare.COPIED,
    )
    out, loaded_out = (m.net(tiny.build_batch(m, ids)) for m in (model, loaded))
    assert all(value.isfinite().all() for value in out.values())
    compare.assert_bitwise_equal(loaded_out, out, because=compare.SAME_KERNELS)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_head_builds(family: str) -> None:
    for head in get_family(family).heads:
        model = qkv.build(family, **tiny.change_sizes(family, head=head))
        assert model.args["head"] == head
        assert not model.net.training


def test_build_takes_its_arguments_by_name() -> None:
    model = qkv.build(family="gpt2", size="small", vocab_size=50, width=16, depth=1, heads=2)
    assert (model.family.name, model.args["vocab_size"]) == ("gpt2", 50)


def test_build_is_deterministic() -> None:
    def build(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return torch.cat(
            [p.flatten() for p in qkv.build("gpt2", **tiny.SIZES["gpt2"]).net.parameters()]
        )

    compare.assert_bitwise_equal(build(1), build(1), because="the seed sets all random numbers")
    assert compare.max_difference(build(1), build(2)) > 0


# Keys that are enlarged so that a standard deviation can be measured.
WIDTH_KEYS = set(
    "hidden_size d_model dim n_embd intermediate_size d_inner hidden_dim n_inner dff d_ff d_kv "
    "encoder_ffn_dim decoder_ffn_dim embedding_size projection_dim vocab_size max_position_embeddings "
    "n_positions relative_attention_num_buckets relative_attention_max_distance image_size".split()
)
PLAIN = [
    case
    for case in CASES
    if case.name.endswith(case.class_name) or case.name.endswith(("-cross", "-untied"))
]


def enlarge(sizes: dict[str, Any]) -> dict[str, Any]:
    changed = {k: v * 6 if k in WIDTH_KEYS and v is not None else v for k, v in sizes.items()}
    return changed | {k: enlarge(v) for k, v in sizes.items() if k.endswith("_config")}


@cache
def initialize_reference(case: Case) -> Any:
    """Return the reference model with its initial weights."""
    torch.manual_seed(0)
    model_class = getattr(transformers, case.class_name)
    sizes = enlarge(deepcopy(case.sizes))
    return model_class(model_class.config_class(**sizes, attn_implementation="eager"))


# A table with a row that no token reads: zero in one of the two models only.
UNREAD = "embeddings.tok_embeddings.weight"


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_initialization_matches_the_reference(case: Case, tmp_path: Path) -> None:
    reference = initialize_reference(case)
    reference.save_pretrained(tmp_path)
    loaded = qkv.load(tmp_path)
    model = qkv.build(**{**loaded.args, "family": loaded.family.name})
    theirs = {**dict(reference.named_parameters()), **dict(reference.named_buffers())}
    theirs = {find_published_name(case, name): tensor for name, tensor in theirs.items()}
    problems = []
    ours = model.to_checkpoint_tensors(dict(model.net.named_parameters()))
    assert len(ours) > 10
    for name, tensor in ours.items():
        expected = theirs.get(name, dict(reference.state_dict()).get(name))
        assert expected is not None, name
        tensor, expected = tensor.detach(), expected.detach()
        if expected.eq(expected.flatten()[0]).all():  # zeros, ones, or one number
            if not torch.equal(tensor, expected):  # a constant, written and not computed
                problems.append(f"{name}: not all {expected.flatten()[0]:.3g}")
            continue
        empty = expected.dim() == 2 and (expected == 0).all(1)
        unread = name.endswith(UNREAD) and case.family == "modernbert"
        if (
            isinstance(empty, Tensor)
            and not unread
            and not torch.equal((tensor == 0).all(1), empty)
        ):
            problems.append(f"{name}: different rows are zero")
        if expected.numel() >= 4000:
            drift = abs(tensor.mean() - expected.mean()) / expected.std()
            if not 0.9 < tensor.std() / expected.std() < 1.1 or drift > 0.1:
                problems.append(
                    f"{name}: deviation {tensor.std():.4f}, expected {expected.std():.4f}"
                )
            if (
                not 0.5
                < (tensor.abs().max() / tensor.std()) / (expected.abs().max() / expected.std())
                < 2
            ):
                problems.append(f"{name}: different distribution")
        elif not 0.5 < tensor.std() / expected.std() < 2:
            problems.append(f"{name}: deviation {tensor.std():.4f}, expected {expected.std():.4f}")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("family", ["gpt2", "gpt3", "sparse"])
def test_residual_projections_start_with_smaller_weights(family: str) -> None:
    """Radford et al. 2019, section 2.3: by 1/sqrt(N), N residual layers."""
    model = qkv.build(
        family, **tiny.SIZES[family] | dict(width=120, heads=4, ffn_width=200, depth=8)
    )
    for name, p in model.net.named_parameters():
        if name.endswith((".attention.o.weight", ".feed_forward.down.weight")):
            assert p.std().item() == pytest.approx(0.02 / math.sqrt(16), rel=0.1), name
        elif p.dim() > 1:
            assert p.std().item() == pytest.approx(0.02, rel=0.1), name


def test_the_transformer_starts_with_xavier_weights() -> None:
    model = qkv.build(
        "transformer",
        **tiny.SIZES["transformer"] | dict(width=96, ffn_width=200, decoder_ffn_width=200),
    )
    for name, p in model.net.named_parameters():
        if p.dim() > 1:
            bound = math.sqrt(6 / sum(p.shape))
            assert p.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1), name
            assert p.abs().max().item() <= bound, name
        else:
            assert p.eq(1.0 if "post_" in name and name.endswith("weight") else 0.0).all(), name


@pytest.mark.parametrize(
    ("family", "bound"), [("lstm-seq2seq", 0.08), ("luong", 0.1), ("lstmn", 0.08)]
)
def test_recurrent_families_start_with_uniform_weights(family: str, bound: float) -> None:
    """Sutskever et al. 2014, section 3.4; Luong et al. 2015, section 4.1: biases included."""
    model = qkv.build(family, **tiny.SIZES[family] | dict(width=48))
    for name, p in model.net.named_parameters():
        assert p.abs().max().item() <= bound, name
        if p.numel() > 400:
            assert p.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1), name


@pytest.mark.parametrize("family", ["rnn-encoder-decoder", "bahdanau"])
def test_recurrent_families_start_with_orthogonal_matrices(family: str) -> None:
    """Bahdanau et al. 2014, appendix B.1: orthogonal recurrent matrices, W_a and U_a at 0.001, v_a and
    biases zero, other matrices at 0.01."""
    model = qkv.build(family, **tiny.SIZES[family] | dict(width=48))
    for name, p in model.net.named_parameters():
        if "weight_hh" in name:
            for block in p.split(48):
                compare.assert_close({name: block @ block.T}, {name: torch.eye(48)}, 1e-5)
        elif name.endswith("score.v") or p.dim() == 1:
            assert p.eq(0).all(), name
        else:
            std = 0.001 if ".score." in name else 0.01
            assert p.std().item() == pytest.approx(std, rel=0.12), name


def test_transformer_xl_starts_with_the_published_weights() -> None:
    """All normal at 0.02, projections at 0.01, the norms' weights around one."""
    sizes = dict(
        width=96, embedding_width=96, head_dim=24, ffn_width=200, vocab_size=400, cutoffs=(100, 200)
    )
    model = qkv.build("transformer-xl", **tiny.SIZES["transformer-xl"] | sizes)
    for name, p in model.net.named_parameters():
        if "post_" in name and name.endswith("weight"):
            assert p.mean().item() == pytest.approx(1, abs=0.02), name
            assert p.std().item() == pytest.approx(0.02, rel=0.4), name
        elif name.endswith("bias"):
            assert p.eq(0).all(), name
        else:
            near = 0.1 if p.numel() > 4000 else 0.4
            assert p.std().item() == pytest.approx(
                0.01 if "projections" in name else 0.02, rel=near
            ), name


class DropoutRecorder(TorchFunctionMode):
    """Records every dropout: its rate and the number of values it is applied to."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[tuple[float, int]] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def arguments(*names: str) -> Any:
            return dict(zip(names, args, strict=False)) | (kwargs or {})

        if func is F.dropout and (x := arguments("input", "p", "training")).get("training", True):
            self.record(x.get("p", 0.5), x["input"].numel())
        if func is F.scaled_dot_product_attention:
            x = arguments("query", "key", "value", "attn_mask", "dropout_p")
            self.record(x.get("dropout_p", 0.0), x["query"].shape[:-1].numel() * x["key"].shape[-2])
        return func(*args, **(kwargs or {}))

    def record(self, rate: float, count: int) -> None:
        self.counts += Counter({(round(rate, 6), count): rate > 0})


def assign_dropout_rates(config: Any) -> dict[str, float]:
    """Return a different rate for every dropout key."""
    keys = sorted(k for k in config.to_dict() if "drop" in k and "layerdrop" not in k)
    return {key: 0.11 + 0.01 * n for n, key in enumerate(keys)}


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.name.endswith((c.class_name, "-cross"))], ids=str
)
def test_dropout_matches_the_reference(case: Case, tmp_path: Path) -> None:
    model_class = getattr(transformers, case.class_name)
    config = model_class.config_class(**deepcopy(case.sizes), attn_implementation="eager")
    for part in [config] + [getattr(config, key) for key in config.sub_configs]:
        for key, rate in assign_dropout_rates(part).items():
            setattr(part, key, rate)
    reference = model_class(config).train()
    reference.save_pretrained(tmp_path)
    model = qkv.load(tmp_path)
    inputs: dict[str, Any] = {**oracle.build_inputs(case, "none")}
    with DropoutRecorder() as ours:
        model(**inputs)
    assert not ours.counts
    model.net.train()
    with DropoutRecorder() as ours:
        model(**inputs)
    with DropoutRecorder() as theirs:
        reference(**oracle.to_reference_inputs(case, inputs))
    counts = ours.counts
    expected = theirs.counts
    rows = inputs["input_ids"].shape[:-1].numel() if "input_ids" in inputs else oracle.B
    rate = assign_dropout_rates(config).get("dropout", 0.0)
    if case.family == "xlnet":
        # Relative positions: once for all layers per row; here once a layer for all rows.
        assert counts.pop((rate, (2 * oracle.T - 1) * config.d_model))
        assert expected.pop((rate, 2 * oracle.T * rows * config.d_model))
    if case.family == "albert":  # the feed-forward output: in the paper's code and here
        rate = assign_dropout_rates(config)["hidden_dropout_prob"]
        expected[rate, rows * oracle.T * config.hidden_size] += 2
    if case.family == "switch_transformers":
        # The number of values of an expert depends on the routing.
        counts, expected = (
            Counter({k: n for k, n in c.items() if k[1] % config.d_ff}) for c in (counts, expected)
        )
    assert counts == expected, (
        f"only here: {counts - expected}, only in the reference: {expected - counts}"
    )


B, T, W, H, FFN_WIDTH = 2, 6, tiny.WIDTH, 4, 40
_STATES, _WEIGHTS = B * T * W, B * H * T * T
_GPT = dict(dropout=0.1, embedding_dropout=0.2, attention_dropout=0.3)
PAPER_DROPOUT: dict[str, tuple[dict[str, float], Counter[tuple[float, int]]]] = {
    "gpt3": (_GPT, Counter({(0.2, _STATES): 1, (0.1, _STATES): 6, (0.3, _WEIGHTS): 3})),
    # after the embedding and each sublayer
    "sparse": (dict(dropout=0.1, attention_dropout=0.3), Counter({(0.1, _STATES): 5, (0.3, _WEIGHTS): 2})),
    # Vaswani et al. 2017, section 5.4: embeddings and sublayers; others if requested
    "transformer": (
        dict(dropout=0.1, attention_dropout=0.3, activation_dropout=0.4),
        Counter({
            (0.1, _STATES): 12, (0.3, _WEIGHTS): 2, (0.3, B * 3 * T * T): 4,
            (0.4, B * T * FFN_WIDTH): 2, (0.4, B * T * 36): 2,
        }),
    ),
    # embedding, relative positions, attention weights, sublayers, inside feed-forward, output
    "transformer-xl": (
        dict(dropout=0.1, attention_dropout=0.3),
        Counter({
            (0.1, _STATES): 6, (0.1, (5 + T) * W): 2, (0.1, B * T * FFN_WIDTH): 2,
            (0.3, B * H * T * (5 + T)): 2,
        }),
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", PAPER_DROPOUT)
def test_dropout_matches_the_paper(family: str) -> None:
    arguments, expected = PAPER_DROPOUT[family]
    model = qkv.build(family, **tiny.SIZES[family] | arguments)
    model.net.train()
    with DropoutRecorder() as recorder:
        model.net(tiny.build_batch(model, tiny.random_ids(B, T)))
    counts = recorder.counts
    assert counts == expected, f"more: {counts - expected}, less: {expected - counts}"


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_dropout_acts_only_in_training(family: str) -> None:
    has_one_rate = family in ("ctrl", "t5", "switch", "xlnet", *tiny.RECURRENT_DECODERS)
    rate = "dropout" if has_one_rate else "attention_dropout"
    model = qkv.build(family, **tiny.change_sizes(family, **{rate: 0.3}))
    batch = tiny.build_batch(model, tiny.random_ids(2, 6))
    hidden = {
        training: [model.net.train(training)(batch)["last_hidden_state"] for _ in range(2)]
        for training in (True, False)
    }
    compare.assert_bitwise_equal(*hidden[False], because=compare.SAME_KERNELS)
    assert compare.max_difference(*hidden[True]) > 0
    assert compare.max_difference(hidden[True][0], hidden[False][0]) > 1e-6


def test_build_moves_a_model_to_a_device() -> None:
    with pytest.raises(ValueError, match=r"device 'gpu7': expected auto, cpu, cuda or mps"):
        qkv.build("gpt2", **tiny.change_sizes("gpt2"), device="gpu7")
