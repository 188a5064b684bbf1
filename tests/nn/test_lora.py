"""LoRA: what is adapted and what is frozen, merged equals beside, PEFT's files both ways against PEFT."""

import json
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import qkv
from qkv.model.adapters.read import read_adapter
from qkv.model.adapters.write import write_adapter
from qkv.nn.lora import Lora, adapters, add_lora, linears, merge
from qkv.train.loop.optim import make_optimiser
from tests.nn.test_one_graph import GRAPH
from tests.support import tiny


def stir(net: nn.Module) -> None:
    """Adapters start as zeros: random ones differ from none."""
    with torch.no_grad():
        for name, p in net.named_parameters():
            if "lora_" in name:
                p.normal_(0, 0.3)


def run(made: qkv.Model) -> dict[str, Tensor]:
    x: dict[str, Any] = {"ids": tiny.ids(2, 9)}
    if made.family.name in tiny.PAIRS:
        x["target"] = tiny.ids(2, 5, seed=1)
    if made.family.name == "clip":
        x["ids"][:, 4] = 7
        x["images"] = torch.arange(2 * 3 * 12 * 12, dtype=torch.float64).reshape(2, 3, 12, 12).sin()
    with torch.no_grad():
        return made.run(**x)


# The network


@pytest.mark.parametrize("family", [name for name in tiny.FAMILIES if name != "transformer-xl"])
def test_starts_as_nothing_and_merges_to_the_same(family: str) -> None:
    made, plain = tiny.model(family), tiny.model(family)
    names = {name for name, _ in plain.net.named_parameters()}
    added = add_lora(made.net, rank=3, alpha=6.0, where=("attend.[qkvo]", "up", "down"))
    assert len(added) == len(adapters(made.net)) > 0
    assert names <= {name for name, _ in made.net.named_parameters()}
    assert {n for n, p in made.net.named_parameters() if p.requires_grad} == {
        f"{path}.lora_{side}.weight" for path in added for side in "ab"
    }
    before = run(plain)
    # Not to the bit: torch.matmul folds a batch of rows into one matrix or not by whether the weight needs a
    # gradient, and here it is frozen. A sum of 40 products in fp64 in another order: far below 1e-12.
    tiny.close(run(made), before, 1e-12)
    stir(made.net)
    beside = run(made)
    assert max(tiny.apart(beside[name], x) for name, x in before.items()) > 1e-3
    assert sorted(merge(made.net)) == sorted(added)
    assert {name for name, _ in made.net.named_parameters()} == names
    assert adapters(made.net) == {}
    tiny.close(run(made), beside, 1e-9)


def test_the_formula() -> None:
    base, x = nn.Linear(6, 4), torch.randn(5, 6)
    for root, scale in ((False, 8 / 4), (True, 8 / math.sqrt(4))):
        lora = Lora(base, rank=4, alpha=8.0, root=root)
        nn.init.normal_(lora.lora_b.weight)
        change = scale * lora.lora_b.weight @ lora.lora_a.weight
        assert tiny.apart(lora(x), x @ (base.weight + change).T + base.bias) < 1e-5


def test_drop_is_for_training_alone() -> None:
    made = tiny.model("bert")
    add_lora(made.net, drop=0.5)
    stir(made.net)
    tiny.close(run(made), run(made), 0.0)
    made.net.train()
    assert tiny.apart(run(made)["logits"], run(made)["logits"]) > 1e-3


def test_coarse_weights_have_fine_adapters() -> None:
    made = tiny.model("bert", dtype=torch.bfloat16)
    add_lora(made.net)
    stir(made.net)
    assert {each.lora_b.weight.dtype for each in adapters(made.net).values()} == {torch.float32}
    beside = run(made)["logits"]
    assert beside.dtype == torch.bfloat16
    merge(made.net)
    assert {p.dtype for p in made.net.parameters()} == {torch.bfloat16}
    assert tiny.apart(run(made)["logits"], beside) < 0.1 * float(beside.abs().max())


def test_patterns_are_paths_or_their_ends() -> None:
    layers = [f"encoder.layers.{i}.attend" for i in range(2)]
    layers += [f"decoder.layers.{i}.{part}" for i in range(3) for part in ("attend", "cross")]
    assert add_lora(tiny.model("t5").net) == [f"{layer}.{part}" for part in "qv" for layer in layers]
    assert add_lora(tiny.model("bert").net, where="encoder.layers.1.feed.*") == [
        "encoder.layers.1.feed.up",
        "encoder.layers.1.feed.down",
    ]


def test_linear_layers_are_found_beside_adapters() -> None:
    net = tiny.model("bert").net
    before = [*linears(net)]
    add_lora(net, where=("q", "up"))
    assert [*linears(net)] == before


def test_layers_that_share_one_a() -> None:
    net = tiny.model("gpt2").net
    added = add_lora(net, where="attend.q,k,v")
    made = adapters(net)
    assert added[:3] == [f"decoder.layers.0.attend.{part}" for part in "qkv"]
    q, k, v = (made[path] for path in added[:3])
    assert q.lora_a is k.lora_a is v.lora_a is not made[added[3]].lora_a
    learns = [p for p in net.parameters() if p.requires_grad]
    assert len(learns) == 2 * (1 + 3)
    assert sum(len(group["params"]) for group in make_optimiser(net, rate=0.1).param_groups) == len(learns)


def test_adapters_can_be_added_to_adapters() -> None:
    net = tiny.model("bert").net
    add_lora(net, where="q")
    add_lora(net, where="v", rank=2)
    assert len(adapters(net)) == 4
    assert all(p.requires_grad == ("lora_" in name) for name, p in net.named_parameters())
    with pytest.raises(ValueError, match=r"encoder\.layers\.0\.attend\.q has one already"):
        add_lora(net, where="q")


def test_only_adapters_learn() -> None:
    made = tiny.model("bert", dtype=torch.float32)
    add_lora(made.net)
    before = {name: p.detach().clone() for name, p in made.net.named_parameters()}
    optimiser = make_optimiser(made.net, rate=0.01)
    losses = []
    for _ in range(5):
        loss = -made.net(tiny.batch(made, tiny.ids(2, 9)))["logits"].log_softmax(-1)[..., 3].mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    for name, p in made.net.named_parameters():
        assert torch.equal(p, before[name]) == ("lora_" not in name), name


def test_one_graph() -> None:
    made = tiny.model("bert")
    add_lora(made.net, where="q,k,v")
    stir(made.net)
    plain = run(made)
    torch.compiler.reset()
    made.net.compile(**GRAPH)
    tiny.close(run(made), plain, 1e-12)
    torch.compiler.reset()


def test_merged_models_are_saved(tmp_path: Path) -> None:
    made = tiny.model("gpt2")
    add_lora(made.net, where="q")
    stir(made.net)
    merge(made.net)
    made.save(tmp_path)
    tiny.close(run(qkv.load(tmp_path)), run(made), 0.0)


@pytest.mark.parametrize(
    ("family", "options", "said"),
    [
        ("bert", dict(where="query"), r"pattern 'query' matches no linear layer; nearest: "),
        ("bert", dict(where="attend.q,gate"), r"pattern 'attend\.gate' matches no linear layer"),
        ("t5", dict(where="q,up"), r"pattern 'q,up': expected q,up beside each other"),
        ("bert", dict(where=("q", "attend.q")), r"encoder\.layers\.0\.attend\.q is named twice"),
        ("bert", dict(where="lm.out"), r"the weight of heads\.lm\.out is tied to another"),
        ("switch", dict(where="router"), r"layers\.1\.feed\.router is never called, only its weight is read"),
        ("transformer-xl", dict(where="heads.lm.projects.*"), r"heads\.lm\.projects\.0"),
        ("bert", dict(where="feed.up,down"), r"feed\.up, .*feed\.down read inputs of different sizes"),
        ("bert", dict(rank=0), r"rank is 0: expected a whole number, at least 1"),
        ("bert", dict(alpha=math.nan), r"alpha is nan: expected a number, more than 0"),
        ("bert", dict(drop=1.0), r"drop is 1\.0: expected a number, at least 0 and less than 1"),
    ],
)
def test_what_cannot_be_adapted_is_named(family: str, options: dict[str, Any], said: str) -> None:
    net = tiny.model(family).net
    with pytest.raises(ValueError, match=said):
        add_lora(net, **options)
    assert adapters(net) == {}
    assert any(p.requires_grad for p in net.parameters())


def test_nothing_to_merge() -> None:
    with pytest.raises(ValueError, match="no adapters to merge"):
        merge(tiny.model("bert").net)


# Files made by hand


def query(i: int, side: str, front: str = "bert.") -> str:
    return f"base_model.model.{front}encoder.layer.{i}.attention.self.query.lora_{side}.weight"


def by_hand(folder: Path, tensors: dict[str, Tensor] | None = None, **config: Any) -> Path:
    """An adapter of BERT's two query layers."""
    if tensors is None:
        tensors = {query(i, side): torch.randn(4, 24).mT if side == "B" else torch.randn(4, 24)
                   for i in range(2) for side in "AB"}  # fmt: skip
    settings = dict(peft_type="LORA", r=4, lora_alpha=12, lora_dropout=0.1, target_modules=["query"])
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(settings | config))
    save_file({name: x.contiguous() for name, x in tensors.items()}, folder / "adapter_model.safetensors")
    return folder


@pytest.mark.parametrize("front", ["bert.", ""], ids=["headed", "bare"])
@pytest.mark.parametrize("head", ["masked-lm", "none"])
def test_reads_a_file(tmp_path: Path, front: str, head: str) -> None:
    tensors = {query(i, side, front): torch.randn(4, 24) if side == "A" else torch.randn(24, 4)
               for i in range(2) for side in "AB"}  # fmt: skip
    made, plain = tiny.model("bert", head=head), tiny.model("bert", head=head)
    paths = [f"encoder.layers.{i}.attend.q" for i in range(2)]
    assert read_adapter(made, by_hand(tmp_path / "a", tensors)) is made
    assert [*adapters(made.net)] == paths
    with torch.no_grad():
        for i, path in enumerate(paths):
            change = tensors[query(i, "B", front)].double() @ tensors[query(i, "A", front)].double()
            plain.net.get_parameter(f"{path}.weight").add_(12 / 4 * change)
    tiny.close(run(made), run(plain), 1e-9)
    assert {each.drop.p for each in adapters(made.net).values()} == {0.1}
    write_adapter(made, tmp_path / "b", base="somebody/bert")
    written = load_file(tmp_path / "b" / "adapter_model.safetensors")
    usual = {
        name.replace(front + "enc", ("bert." if head != "none" else "") + "enc"): x
        for name, x in tensors.items()
    }
    assert written.keys() == usual.keys()
    assert all(torch.equal(x.float(), usual[name]) for name, x in written.items())
    config = json.loads((tmp_path / "b" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (4, 12, 0.1)
    assert config["base_model_name_or_path"] == "somebody/bert"


def test_scales_by_the_root_and_by_module(tmp_path: Path) -> None:
    made = tiny.model("bert")
    read_adapter(made, by_hand(tmp_path / "a", use_rslora=True, alpha_pattern={"0.attention.self.query": 6}))
    first, second = adapters(made.net).values()
    assert (first.scale, second.scale) == (6 / math.sqrt(4), 12 / math.sqrt(4))
    write_adapter(made, tmp_path / "b")
    again = tiny.model("bert")
    read_adapter(again, tmp_path / "b")
    tiny.close(run(again), run(made), 0.0)


def test_a_fused_tensor_is_one_a_and_three_bs(tmp_path: Path) -> None:
    name = "base_model.model.transformer.h.{}.attn.c_attn.lora_{}.weight"
    tensors = {name.format(i, "A"): torch.randn(2, 24) for i in range(2)}
    tensors |= {name.format(i, "B"): torch.randn(72, 2) for i in range(2)}
    made = tiny.model("gpt2")
    read_adapter(made, by_hand(tmp_path / "a", tensors, fan_in_fan_out=True))
    q, k, v = (adapters(made.net)[f"decoder.layers.1.attend.{part}"] for part in "qkv")
    assert q.lora_a is k.lora_a is v.lora_a
    assert torch.equal(torch.cat([x.lora_b.weight for x in (q, k, v)]).float(), tensors[name.format(1, "B")])
    write_adapter(made, tmp_path / "b")
    written = load_file(tmp_path / "b" / "adapter_model.safetensors")
    assert written.keys() == tensors.keys()
    assert all(torch.equal(x.float(), tensors[name]) for name, x in written.items())
    assert json.loads((tmp_path / "b" / "adapter_config.json").read_text())["fan_in_fan_out"] is True


@pytest.mark.parametrize(
    ("family", "where", "said"),
    [
        (
            "gpt2",
            ("q", "v"),
            r"transformer\.h\.0\.attn\.c_attn holds q,k,v, which need one A together: where='q,k,v'",
        ),
        ("gpt2", ("q", "k", "v"), r"\.h\.0\.attn\.c_attn holds q,k,v, which need one A .*; and 1 more"),
        ("xlnet", ("q",), r"encoder\.layers\.0\.attend\.q is no module of theirs; and 1 more"),
    ],
)
def test_what_their_file_cannot_hold_is_refused(
    tmp_path: Path, family: str, where: tuple[str, ...], said: str
) -> None:
    made = tiny.model(family)
    add_lora(made.net, where=where)
    with pytest.raises(ValueError, match=said):
        write_adapter(made, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_what_learns_and_has_no_module_would_be_lost(tmp_path: Path) -> None:
    made = tiny.model("bert")
    with pytest.raises(ValueError, match="the model has no adapters"):
        write_adapter(made, tmp_path)
    add_lora(made.net)
    for name, said in {
        "heads.lm.out.bias": "heads.lm.out.weight",
        "encoder.embed.tokens.weight": "encoder.embed.tokens.weight",
        "encoder.layers.0.attend.q.bias": "encoder.layers.0.attend.q.bias",
    }.items():
        tensor = made.net.get_parameter(name).requires_grad_(True)
        with pytest.raises(
            ValueError, match=rf"{said} must be saved whole, but .* is tied, adapted or in no"
        ):
            write_adapter(made, tmp_path)
        tensor.requires_grad_(False)
    adapters(made.net)["encoder.layers.0.attend.q"].drop.p = 0.3
    with pytest.raises(ValueError, match="adapters differ in drop or root"):
        write_adapter(made, tmp_path)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (dict(peft_type="LOHA"), "peft_type is 'LOHA': expected 'LORA'"),
        (dict(use_dora=True), "not supported: use_dora is True"),
        (dict(bias="all"), "not supported: bias is 'all'"),
        (dict(lora_bias=True, use_qalora=True), "not supported: lora_bias is True, use_qalora is True"),
        (dict(init_lora_weights="pissa"), "not supported: init_lora_weights is 'pissa'"),
        (dict(some_new_trick={"a": 1}), r"not supported: some_new_trick is \{'a': 1\}"),
        (dict(lora_alpha="8"), "lora_alpha is '8': expected a number, more than 0"),
        (dict(lora_dropout=1.5), "lora_dropout is 1.5: expected a number"),
        (dict(alpha_pattern={"(": 3}), "unterminated subpattern"),
    ],
)
def test_a_setting_that_is_not_known_is_named(tmp_path: Path, config: dict[str, Any], said: str) -> None:
    made = tiny.model("bert")
    with pytest.raises(ValueError, match=rf"adapter_config\.json: .*{said}"):
        read_adapter(made, by_hand(tmp_path, **config))
    assert adapters(made.net) == {}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({query(0, "B"): None}, r"layer\.0\.attention\.self\.query lacks its B"),
        ({query(1, "A"): (4, 23)}, r"A \[4, 23\] and B \[24, 4\], expected \[r, 24\] and \[24, r\]"),
        ({query(1, "B"): (24, 3)}, r"A \[4, 24\] and B \[24, 3\], expected \[r, 24\] and \[24, r\]"),
        ({query(1, "A"): ()}, r"A \[\] and B"),
        (
            {query(2, "A"): (4, 24), query(2, "B"): (24, 4)},
            r"layer\.2\..*lora_A\.weight \[4, 24\]: there is no such",
        ),
        (
            {"base_model.model.classifier.weight": (2, 24)},
            r"classifier\.weight \[2, 24\]: there is no such tensor",
        ),
        ({"classifier.weight": (2, 24)}, r"classifier\.weight \[2, 24\] is no tensor of an adapter"),
        ({query(i, side): None for i in range(2) for side in "AB"}, "no adapters in it"),
    ],
    ids=["lost", "inner", "rank", "number", "layer", "other", "plain", "none"],
)
def test_a_tensor_without_a_place_is_named(
    tmp_path: Path, changes: dict[str, tuple[int, ...] | None], said: str
) -> None:
    tensors = load_file(by_hand(tmp_path) / "adapter_model.safetensors")
    for name, shape in changes.items():
        tensors.pop(name, None)
        tensors |= {} if shape is None else {name: torch.ones(shape)}
    made = tiny.model("bert")
    with pytest.raises(ValueError, match=rf"adapter_model\.safetensors: .*{said}"):
        read_adapter(made, by_hand(tmp_path, tensors))
    assert adapters(made.net) == {}


def test_an_adapter_is_read_once(tmp_path: Path) -> None:
    made = tiny.model("bert")
    read_adapter(made, by_hand(tmp_path))
    with pytest.raises(ValueError, match=r"adapter_model\.safetensors: .*attend\.q has one already"):
        read_adapter(made, tmp_path)


# PEFT itself


@pytest.fixture(scope="module")
def peft() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(
            "peft", reason="peft is the oracle here: pip install --no-deps peft accelerate psutil"
        )


CASES: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "bert": ("bert", {}, "BertForMaskedLM", dict(target_modules=["query", "value"])),
    "bert-bare": ("bert", dict(head="none"), "BertModel", dict(target_modules=["query", "dense"])),
    "bert-root": ("bert", {}, "BertForMaskedLM", dict(target_modules=["key"], use_rslora=True)),
    "bert-ranks": (
        "bert", {}, "BertForMaskedLM",
        dict(target_modules=["query", "key"], rank_pattern={"query": 5}, alpha_pattern={"layer.0.*key": 3}),
    ),
    "albert": ("albert", {}, "AlbertForMaskedLM", dict(target_modules=["query", "ffn"])),
    "distilbert": ("distilbert", {}, "DistilBertForMaskedLM", dict(target_modules=["q_lin", "lin2"])),
    "gpt2": (
        "gpt2", {}, "GPT2LMHeadModel",
        dict(target_modules=["c_attn", "attn.c_proj", "c_fc"], fan_in_fan_out=True),
    ),
    "bart": ("bart", {}, "BartForConditionalGeneration", dict(target_modules=["q_proj", "v_proj", "fc1"])),
    "t5": ("t5", {}, "T5ForConditionalGeneration", dict(target_modules=["q", "v", "wi_0", "wo"])),
    "llama": ("llama", {}, "LlamaForCausalLM", dict(target_modules=["q_proj", "k_proj", "gate_proj"])),
    "modernbert": ("modernbert", {}, "ModernBertForMaskedLM", dict(target_modules=["Wqkv", "Wi"])),
    "clip": ("clip", {}, "CLIPModel", dict(target_modules=["q_proj", "fc2"])),
}  # fmt: skip
COARSE = ("t5", "llama", "modernbert")  # transformers computes their norms or angles in fp32


def theirs(made: qkv.Model, name: str, folder: Path) -> Any:
    """The same model in transformers."""
    import transformers

    made.save(folder)
    return getattr(transformers, name).from_pretrained(folder, dtype=torch.float64).eval()


def run_theirs(net: Any, made: qkv.Model) -> Tensor:
    x: dict[str, Any] = {"input_ids": tiny.ids(2, 9)}
    if made.family.name in tiny.PAIRS:
        x["decoder_input_ids"] = tiny.ids(2, 5, seed=1)
    if made.family.name == "clip":
        x["input_ids"][:, 4] = 7
        x["pixel_values"] = torch.arange(2 * 3 * 12 * 12, dtype=torch.float64).reshape(2, 3, 12, 12).sin()
    with torch.no_grad():
        out = net(**x)
    return out["logits_per_image"] if made.family.name == "clip" else out[0]


@pytest.mark.parametrize("case", CASES)
def test_peft_agrees_both_ways(peft: Any, tmp_path: Path, case: str) -> None:
    family, changes, name, settings = CASES[case]
    made = tiny.model(family, **changes)
    base = theirs(made, name, tmp_path / "base")
    wrapped = peft.get_peft_model(
        base, peft.LoraConfig(r=3, lora_alpha=7, **settings), autocast_adapter_dtype=False
    )
    wrapped.to(torch.float64).eval()
    with torch.no_grad():
        for each, p in wrapped.named_parameters():
            if "lora_" in each:
                p.normal_(0, 0.3)
    expected = run_theirs(wrapped, made)
    wrapped.save_pretrained(tmp_path / "theirs")

    plain = run(made)
    read_adapter(made, tmp_path / "theirs")
    key = "hidden" if made.args.get("head") == "none" else "logits"
    assert tiny.apart(run(made)[key], plain[key]) > 1e-3
    near = 1e-5 if family in COARSE else 1e-9
    assert tiny.apart(run(made)[key], expected) < near

    write_adapter(made, tmp_path / "ours")
    held, again = (load_file(tmp_path / side / "adapter_model.safetensors") for side in ("theirs", "ours"))
    assert held.keys() == again.keys()
    assert all(torch.equal(x, again[each]) for each, x in held.items())
    fresh = theirs(tiny.model(family, **changes), name, tmp_path / "base")
    opened = peft.PeftModel.from_pretrained(fresh, tmp_path / "ours", autocast_adapter_dtype=False).eval()
    assert tiny.apart(run_theirs(opened.to(torch.float64), made), expected) < 1e-12

    merge(made.net)
    assert tiny.apart(run(made)[key], expected) < near
