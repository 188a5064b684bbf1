"""Fresh models: every size is there, starts as its original starts, and drops where its original drops."""

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
from tests.support import oracle, tiny
from tests.support.oracle import CASES, Case

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
    llama 3.2-1b lm 1236
    modernbert base none 149.0   modernbert large none 394.8
""".split()
MILLIONS = list(
    zip(PUBLISHED[::4], PUBLISHED[1::4], PUBLISHED[2::4], map(float, PUBLISHED[3::4]), strict=True)
)
EVERY = [(kin.name, size) for kin in qkv.list_families() for size in kin.sizes]


@pytest.mark.parametrize(("family", "size", "head", "millions"), MILLIONS)
def test_sizes_are_the_published(family: str, size: str, head: str, millions: float) -> None:
    with torch.device("meta"):
        made = qkv.build(family, size, **{} if head == "-" else {"head": head})
    count = sum(p.numel() for p in made.net.parameters())
    assert count / 1e6 == pytest.approx(millions, rel=0.01)


@pytest.mark.parametrize(("family", "size"), EVERY)
def test_every_size_builds_small(family: str, size: str, tmp_path: Path) -> None:
    """What a size changes beside its numbers builds, runs, and comes back from a folder."""
    less = {key: value for key, value in tiny.SIZES[family].items() if key not in ("head", "act", "pattern")}
    made = qkv.build(family, size, **less)
    ids = tiny.ids(2, 9)
    ids[:, 4] = 7
    made.save(tmp_path)
    again = qkv.load(tmp_path)
    assert again.spec == made.spec
    for p, q in zip(made.net.parameters(), again.net.parameters(), strict=True):
        assert torch.equal(p, q)
    out, back = (m.net(tiny.batch(m, ids)) for m in (made, again))
    assert out.keys() == back.keys()
    assert all(value.isfinite().all() and torch.equal(value, back[name]) for name, value in out.items())


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_head_builds(family: str) -> None:
    heads = {kin.name: kin.heads for kin in qkv.list_families()}[family]
    for head in heads:
        made = qkv.build(family, **tiny.sizes(family, head=head))
        assert made.args["head"] == head
        assert not made.net.training


def test_the_same_seed_builds_the_same() -> None:
    def build(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return torch.cat([p.flatten() for p in qkv.build("gpt2", **tiny.SIZES["gpt2"]).net.parameters()])

    assert torch.equal(build(1), build(1))
    assert not torch.equal(build(1), build(2))


# Wide enough for a deviation to be measured.
WIDER = set(
    "hidden_size d_model dim n_embd intermediate_size d_inner hidden_dim n_inner dff d_ff d_kv "
    "encoder_ffn_dim decoder_ffn_dim embedding_size projection_dim vocab_size max_position_embeddings "
    "n_positions relative_attention_num_buckets relative_attention_max_distance image_size".split()
)
PLAIN = [case for case in CASES if case.name.endswith(case.kind) or case.name.endswith(("-cross", "-untied"))]
Sized = dict[str, Any]


def wider(sizes: Sized) -> Sized:
    grown = {k: v * 6 if k in WIDER and v is not None else v for k, v in sizes.items()}
    return grown | {k: wider(v) for k, v in sizes.items() if k.endswith("_config")}


@cache
def fresh(case: Case) -> Any:
    """The original as it starts."""
    torch.manual_seed(0)
    kind = getattr(transformers, case.kind)
    return kind(kind.config_class(**wider(deepcopy(case.sizes)), attn_implementation="eager"))


# Tables with a row that no token reads: zero with one of us, not with the other.
UNREAD = ("embeddings.position_embeddings.weight", "embeddings.tok_embeddings.weight")


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_starts_as_the_original_does(case: Case, tmp_path: Path) -> None:
    original = fresh(case)
    original.save_pretrained(tmp_path)
    opened = qkv.load(tmp_path)
    made = qkv.build(opened.family.name, **opened.args)
    theirs = {**dict(original.named_parameters()), **dict(original.named_buffers())}
    wrong = []
    ours = made.theirs(dict(made.net.named_parameters()))
    assert len(ours) > 10
    for name, mine in ours.items():
        their = theirs.get(name, dict(original.state_dict()).get(name))
        assert their is not None, name
        mine, their = mine.detach(), their.detach()
        if their.eq(their.flatten()[0]).all():  # zeros, ones, or one number
            if not torch.equal(mine, their):
                wrong.append(f"{name}: not all {their.flatten()[0]:.3g}")
            continue
        empty = their.dim() == 2 and (their == 0).all(1)
        unread = name.endswith(UNREAD) and case.family in ("roberta", "modernbert")
        if isinstance(empty, Tensor) and not unread and not torch.equal((mine == 0).all(1), empty):
            wrong.append(f"{name}: other rows are zero")
        if their.numel() >= 4000:
            drift = abs(mine.mean() - their.mean()) / their.std()
            if not 0.9 < mine.std() / their.std() < 1.1 or drift > 0.1:
                wrong.append(f"{name}: deviation {mine.std():.4f}, the original's {their.std():.4f}")
            if not 0.5 < (mine.abs().max() / mine.std()) / (their.abs().max() / their.std()) < 2:
                wrong.append(f"{name}: another distribution")
        elif not 0.5 < mine.std() / their.std() < 2:
            wrong.append(f"{name}: deviation {mine.std():.4f}, the original's {their.std():.4f}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("family", ["gpt2", "gpt3", "sparse"])
def test_what_leads_into_the_residual_starts_smaller(family: str) -> None:
    """Radford et al. 2019, section 2.3: by 1/sqrt(N), N residual layers."""
    made = qkv.build(family, **tiny.SIZES[family] | dict(width=120, heads=4, feed=200, depth=8))
    for name, p in made.net.named_parameters():
        if name.endswith((".attend.o.weight", ".feed.down.weight")):
            assert p.std().item() == pytest.approx(0.02 / math.sqrt(16), rel=0.1), name
        elif p.dim() > 1:
            assert p.std().item() == pytest.approx(0.02, rel=0.1), name


def test_the_original_transformer_starts_with_xavier() -> None:
    made = qkv.build("transformer", **tiny.SIZES["transformer"] | dict(width=96, feed=200, decoder_feed=200))
    for name, p in made.net.named_parameters():
        if p.dim() > 1:
            bound = math.sqrt(6 / sum(p.shape))
            assert p.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1), name
            assert p.abs().max().item() <= bound, name
        else:
            assert p.eq(1.0 if "after" in name and name.endswith("weight") else 0.0).all(), name


def test_transformer_xl_starts_as_published() -> None:
    """All normal at 0.02, projections at 0.01, the norms' weights around one."""
    sizes = dict(width=96, embed_width=96, head_dim=24, feed=200, vocab=400, cutoffs=(100, 200))
    made = qkv.build("transformer-xl", **tiny.SIZES["transformer-xl"] | sizes)
    for name, p in made.net.named_parameters():
        if "after" in name and name.endswith("weight"):
            assert p.mean().item() == pytest.approx(1, abs=0.02), name
            assert p.std().item() == pytest.approx(0.02, rel=0.4), name
        elif name.endswith("bias"):
            assert p.eq(0).all(), name
        else:
            near = 0.1 if p.numel() > 4000 else 0.4
            assert p.std().item() == pytest.approx(0.01 if "projects" in name else 0.02, rel=near), name


class Drops(TorchFunctionMode):
    """Every dropout that takes place: its rate and the number of values it may drop."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[tuple[float, int]] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def given(*names: str) -> Any:
            return dict(zip(names, args, strict=False)) | (kwargs or {})

        if func is F.dropout and (x := given("input", "p", "training")).get("training", True):
            self.note(x.get("p", 0.5), x["input"].numel())
        if func is F.scaled_dot_product_attention:
            x = given("query", "key", "value", "attn_mask", "dropout_p")
            self.note(x.get("dropout_p", 0.0), x["query"].shape[:-1].numel() * x["key"].shape[-2])
        return func(*args, **(kwargs or {}))

    def note(self, rate: float, count: int) -> None:
        self.seen += Counter({(round(rate, 6), count): rate > 0})


def rates(config: Any) -> dict[str, float]:
    """Another rate for every key that has one."""
    keys = sorted(k for k in config.to_dict() if "drop" in k and "layerdrop" not in k)
    return {key: 0.11 + 0.01 * n for n, key in enumerate(keys)}


@pytest.mark.parametrize("case", [c for c in CASES if c.name.endswith((c.kind, "-cross"))], ids=str)
def test_drops_where_the_original_does(case: Case, tmp_path: Path) -> None:
    kind = getattr(transformers, case.kind)
    config = kind.config_class(**deepcopy(case.sizes), attn_implementation="eager")
    for part in [config] + [getattr(config, key) for key in config.sub_configs]:
        for key, rate in rates(part).items():
            setattr(part, key, rate)
    original = kind(config).train()
    original.save_pretrained(tmp_path)
    model = qkv.load(tmp_path)
    x: dict[str, Any] = {**oracle.inputs(case, "none")}
    with Drops() as ours:
        model.run(**x)
    assert not ours.seen
    model.net.train()
    with Drops() as ours:
        model.run(**x)
    with Drops() as theirs:
        original(**oracle.theirs(case, x))
    mine, other = ours.seen, theirs.seen
    rows = x["ids"].shape[:-1].numel() if "ids" in x else oracle.B
    rate = rates(config).get("dropout", 0.0)
    if (
        case.family == "xlnet"
    ):  # the distances: once for all layers and row by row; ours once a layer for all rows
        assert mine.pop((rate, (2 * oracle.T - 1) * config.d_model))
        assert other.pop((rate, 2 * oracle.T * rows * config.d_model))
    if case.family == "albert":  # the feed's output: in the paper's code, and in ours
        other[rates(config)["hidden_dropout_prob"], rows * oracle.T * config.hidden_size] += 2
    if case.family == "switch_transformers":  # how many values an expert is sent depends on the routing
        mine, other = (Counter({k: n for k, n in c.items() if k[1] % config.d_ff}) for c in (mine, other))
    assert mine == other, f"only ours: {mine - other}, only theirs: {other - mine}"


B, T, W, H, FEED = 2, 6, tiny.WIDTH, 4, 40
_STATES, _WEIGHTS = B * T * W, B * H * T * T
_GPT = dict(drop=0.1, embed_drop=0.2, attend_drop=0.3)
PAPERS: dict[str, tuple[dict[str, float], Counter[tuple[float, int]]]] = {
    "gpt3": (_GPT, Counter({(0.2, _STATES): 1, (0.1, _STATES): 6, (0.3, _WEIGHTS): 3})),
    # after the embedding and each step
    "sparse": (dict(drop=0.1, attend_drop=0.3), Counter({(0.1, _STATES): 5, (0.3, _WEIGHTS): 2})),
    # Vaswani et al. 2017, section 5.4: embeddings with their positions, and each step; others if asked
    "transformer": (
        dict(drop=0.1, attend_drop=0.3, feed_drop=0.4),
        Counter({
            (0.1, _STATES): 12, (0.3, _WEIGHTS): 2, (0.3, B * 3 * T * T): 4,
            (0.4, B * T * FEED): 2, (0.4, B * T * 36): 2,
        }),
    ),
    # embedding, distances (each layer), weights, steps, the feed's inside, the last states
    "transformer-xl": (
        dict(drop=0.1, attend_drop=0.3),
        Counter({
            (0.1, _STATES): 6, (0.1, (5 + T) * W): 2, (0.1, B * T * FEED): 2, (0.3, B * H * T * (5 + T)): 2,
        }),
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", PAPERS)
def test_drops_where_the_paper_says(family: str) -> None:
    given, expected = PAPERS[family]
    made = qkv.build(family, **tiny.SIZES[family] | given)
    made.net.train()
    with Drops() as found:
        made.net(tiny.batch(made, tiny.ids(B, T)))
    assert found.seen == expected, f"more: {found.seen - expected}, less: {expected - found.seen}"


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_drops_in_training_alone(family: str) -> None:
    """Runs differ in training and never in use."""
    rate = "drop" if family in ("ctrl", "t5", "switch", "xlnet") else "attend_drop"
    made = qkv.build(family, **tiny.sizes(family, **{rate: 0.3}))
    batch = tiny.batch(made, tiny.ids(2, 6))
    hidden = {
        training: [made.net.train(training)(batch)["hidden"] for _ in range(2)] for training in (True, False)
    }
    assert torch.equal(*hidden[False])
    assert not torch.equal(*hidden[True])
    assert tiny.apart(hidden[True][0], hidden[False][0]) > 1e-6
