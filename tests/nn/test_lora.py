"""LoRA: adapted and frozen parameters, merging, and PEFT's files in both directions."""

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
from qkv.nn.lora import LoraLinear, add_lora, linear_layers, lora_layers, merge_lora
from qkv.train.loop.optim import build_optimizer
from tests.nn.test_one_graph import GRAPH
from tests.support import compare, tiny


def randomize_adapters(net: nn.Module) -> None:
    """Adapters start as zeros, which change nothing."""
    with torch.no_grad():
        for name, p in net.named_parameters():
            if "lora_" in name:
                p.normal_(0, 0.3)


def run(model: qkv.Model) -> dict[str, Tensor]:
    x: dict[str, Any] = {"input_ids": tiny.random_ids(2, 9)}
    if model.family.name in tiny.ENCODER_DECODERS:
        x["decoder_input_ids"] = tiny.random_ids(2, 5, seed=1)
    if model.family.name == "clip":
        x["input_ids"][:, 4] = 7
        x["pixel_values"] = (
            torch.arange(2 * 3 * 12 * 12, dtype=torch.float64).reshape(2, 3, 12, 12).sin()
        )
    with torch.no_grad():
        return model(**x)


# Networks


@pytest.mark.parametrize("family", [name for name in tiny.FAMILIES if name != "transformer-xl"])
def test_new_adapters_change_nothing_and_merging_changes_nothing(family: str) -> None:
    model = tiny.build(family)
    plain = tiny.build(family)
    names = {name for name, _ in plain.net.named_parameters()}
    added = add_lora(
        model.net, r=3, lora_alpha=6.0, target_modules=("attention.[qkvo]", "up", "down")
    )
    assert len(added) == len(lora_layers(model.net)) > 0
    assert names <= {name for name, _ in model.net.named_parameters()}
    assert {n for n, p in model.net.named_parameters() if p.requires_grad} == {
        f"{path}.lora_{side}.weight" for path in added for side in "ab"
    }
    before = run(plain)
    # Not bitwise: whether torch.matmul folds a batch into one matrix depends on whether the weight
    # needs a gradient, and here it is frozen. Another order of summation is far below 1e-12.
    compare.assert_close(run(model), before, 1e-12)
    randomize_adapters(model.net)
    adapted = run(model)
    assert max(compare.max_difference(adapted[name], x) for name, x in before.items()) > 1e-3
    assert sorted(merge_lora(model.net)) == sorted(added)
    assert {name for name, _ in model.net.named_parameters()} == names
    assert lora_layers(model.net) == {}
    compare.assert_close(run(model), adapted, 1e-9)


def test_forward_formula() -> None:
    base = nn.Linear(6, 4)
    x = torch.randn(5, 6)
    for use_rslora, scale in ((False, 8 / 4), (True, 8 / math.sqrt(4))):
        lora = LoraLinear(base, r=4, lora_alpha=8.0, use_rslora=use_rslora)
        nn.init.normal_(lora.lora_b.weight)
        change = scale * lora.lora_b.weight @ lora.lora_a.weight
        assert compare.max_difference(lora(x), x @ (base.weight + change).T + base.bias) < 1e-5


def test_dropout_only_in_training() -> None:
    model = tiny.build("bert")
    add_lora(model.net, lora_dropout=0.5)
    randomize_adapters(model.net)
    compare.assert_close(run(model), run(model), 0.0)
    model.net.train()
    assert compare.max_difference(run(model)["logits"], run(model)["logits"]) > 1e-3


def test_adapters_of_bf16_weights_are_fp32() -> None:
    model = tiny.build("bert", dtype=torch.bfloat16)
    add_lora(model.net)
    randomize_adapters(model.net)
    assert {layer.lora_b.weight.dtype for layer in lora_layers(model.net).values()} == {
        torch.float32
    }
    logits = run(model)["logits"]
    assert logits.dtype == torch.bfloat16
    merge_lora(model.net)
    assert {p.dtype for p in model.net.parameters()} == {torch.bfloat16}
    assert compare.max_difference(run(model)["logits"], logits) < 0.1 * float(logits.abs().max())


def test_target_modules_are_paths_or_their_ends() -> None:
    layers = [f"encoder.layers.{i}.attention" for i in range(2)]
    layers += [
        f"decoder.layers.{i}.{part}" for i in range(3) for part in ("attention", "cross_attention")
    ]
    assert add_lora(tiny.build("t5").net) == [
        f"{layer}.{part}" for part in "qv" for layer in layers
    ]
    assert add_lora(tiny.build("bert").net, target_modules="encoder.layers.1.feed_forward.*") == [
        "encoder.layers.1.feed_forward.up",
        "encoder.layers.1.feed_forward.down",
    ]


def test_linear_layers_include_adapted_ones() -> None:
    net = tiny.build("bert").net
    before = [*linear_layers(net)]
    add_lora(net, target_modules=("q", "up"))
    assert [*linear_layers(net)] == before


def test_layers_that_share_lora_a() -> None:
    net = tiny.build("gpt2").net
    added = add_lora(net, target_modules="attention.q,k,v")
    layers = lora_layers(net)
    assert added[:3] == [f"decoder.layers.0.attention.{part}" for part in "qkv"]
    q, k, v = (layers[path] for path in added[:3])
    assert q.lora_a is k.lora_a is v.lora_a is not layers[added[3]].lora_a
    trainable = [p for p in net.parameters() if p.requires_grad]
    assert len(trainable) == 2 * (1 + 3)
    assert sum(len(group["params"]) for group in build_optimizer(net, lr=0.1).param_groups) == len(
        trainable
    )


def test_add_lora_twice() -> None:
    net = tiny.build("bert").net
    add_lora(net, target_modules="q")
    add_lora(net, target_modules="v", r=2)
    assert len(lora_layers(net)) == 4
    assert all(p.requires_grad == ("lora_" in name) for name, p in net.named_parameters())
    with pytest.raises(
        ValueError, match=r"encoder\.layers\.0\.attention\.q has an adapter already"
    ):
        add_lora(net, target_modules="q")


def test_only_adapters_are_trained() -> None:
    model = tiny.build("bert", dtype=torch.float32)
    add_lora(model.net)
    before = {name: p.detach().clone() for name, p in model.net.named_parameters()}
    optimizer = build_optimizer(model.net, lr=0.01)
    losses = []
    for _ in range(5):
        loss = (
            -model.net(tiny.build_batch(model, tiny.random_ids(2, 9)))["logits"]
            .log_softmax(-1)[..., 3]
            .mean()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    for name, p in model.net.named_parameters():
        assert torch.equal(p, before[name]) == ("lora_" not in name), name


def test_compiles_as_one_graph() -> None:
    model = tiny.build("bert")
    add_lora(model.net, target_modules="q,k,v")
    randomize_adapters(model.net)
    plain = run(model)
    torch.compiler.reset()
    model.net.compile(**GRAPH)
    compare.assert_close(run(model), plain, 1e-12)
    torch.compiler.reset()


def test_merged_models_are_saved(tmp_path: Path) -> None:
    model = tiny.build("gpt2")
    add_lora(model.net, target_modules="q")
    randomize_adapters(model.net)
    merge_lora(model.net)
    model.save(tmp_path)
    compare.assert_close(run(qkv.load(tmp_path)), run(model), 0.0)


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        (
            "bert",
            dict(target_modules="query"),
            r"pattern 'query' matches no linear layer; nearest: ",
        ),
        (
            "bert",
            dict(target_modules="attention.q,gate"),
            r"pattern 'attention\.gate' matches no linear layer",
        ),
        ("t5", dict(target_modules="q,up"), r"pattern 'q,up': expected q,up in the same modules"),
        (
            "bert",
            dict(target_modules=("q", "attention.q")),
            r"encoder\.layers\.0\.attention\.q is named twice",
        ),
        ("bert", dict(target_modules="lm.out"), r"the weight of heads\.lm\.out is tied to another"),
        (
            "switch",
            dict(target_modules="router"),
            r"layers\.1\.feed_forward\.router is never called, only its weight is read",
        ),
        (
            "transformer-xl",
            dict(target_modules="heads.lm.projections.*"),
            r"heads\.lm\.projections\.0",
        ),
        (
            "bert",
            dict(target_modules="feed_forward.up,down"),
            r"feed_forward\.up, .*feed_forward\.down have inputs of different sizes",
        ),
        ("bert", dict(r=0), r"r is 0: expected a whole number, at least 1"),
        ("bert", dict(lora_alpha=math.nan), r"lora_alpha is nan: expected a number, more than 0"),
        (
            "bert",
            dict(lora_dropout=1.0),
            r"lora_dropout is 1\.0: expected a number, at least 0 and less than 1",
        ),
    ],
)
def test_errors_of_add_lora(family: str, options: dict[str, Any], message: str) -> None:
    net = tiny.build(family).net
    with pytest.raises(ValueError, match=message):
        add_lora(net, **options)
    assert lora_layers(net) == {}
    assert any(p.requires_grad for p in net.parameters())


def test_nothing_to_merge() -> None:
    with pytest.raises(ValueError, match="no adapters to merge"):
        merge_lora(tiny.build("bert").net)


# Handwritten files


def query(i: int, side: str, prefix: str = "bert.") -> str:
    return f"base_model.model.{prefix}encoder.layer.{i}.attention.self.query.lora_{side}.weight"


def write_files(folder: Path, tensors: dict[str, Tensor] | None = None, **config: Any) -> Path:
    """Write an adapter of BERT's two query layers."""
    if tensors is None:
        tensors = {query(i, side): torch.randn(4, 24).mT if side == "B" else torch.randn(4, 24)
                   for i in range(2) for side in "AB"}  # fmt: skip
    settings = dict(
        peft_type="LORA", r=4, lora_alpha=12, lora_dropout=0.1, target_modules=["query"]
    )
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(settings | config))
    save_file(
        {name: x.contiguous() for name, x in tensors.items()}, folder / "adapter_model.safetensors"
    )
    return folder


@pytest.mark.parametrize("prefix", ["bert.", ""], ids=["with head", "base"])
@pytest.mark.parametrize("head", ["masked-lm", "none"])
def test_read_and_write_a_file(tmp_path: Path, prefix: str, head: str) -> None:
    tensors = {query(i, side, prefix): torch.randn(4, 24) if side == "A" else torch.randn(24, 4)
               for i in range(2) for side in "AB"}  # fmt: skip
    model = tiny.build("bert", head=head)
    plain = tiny.build("bert", head=head)
    paths = [f"encoder.layers.{i}.attention.q" for i in range(2)]
    assert read_adapter(model, write_files(tmp_path / "a", tensors)) is model
    assert [*lora_layers(model.net)] == paths
    with torch.no_grad():
        for i, path in enumerate(paths):
            change = (
                tensors[query(i, "B", prefix)].double() @ tensors[query(i, "A", prefix)].double()
            )
            plain.net.get_parameter(f"{path}.weight").add_(12 / 4 * change)
    compare.assert_close(run(model), run(plain), 1e-9)
    assert {layer.dropout.p for layer in lora_layers(model.net).values()} == {0.1}
    write_adapter(model, tmp_path / "b", base_model_name="somebody/bert")
    written = load_file(tmp_path / "b" / "adapter_model.safetensors")
    expected = {
        name.replace(prefix + "enc", ("bert." if head != "none" else "") + "enc"): x
        for name, x in tensors.items()
    }
    assert written.keys() == expected.keys()
    assert all(torch.equal(x.float(), expected[name]) for name, x in written.items())
    config = json.loads((tmp_path / "b" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (4, 12, 0.1)
    assert config["base_model_name_or_path"] == "somebody/bert"


def test_rslora_and_alpha_pattern(tmp_path: Path) -> None:
    model = tiny.build("bert")
    read_adapter(
        model,
        write_files(tmp_path / "a", use_rslora=True, alpha_pattern={"0.attention.self.query": 6}),
    )
    first, second = lora_layers(model.net).values()
    assert (first.scaling, second.scaling) == (6 / math.sqrt(4), 12 / math.sqrt(4))
    write_adapter(model, tmp_path / "b")
    again = tiny.build("bert")
    read_adapter(again, tmp_path / "b")
    compare.assert_close(run(again), run(model), 0.0)


def test_a_fused_tensor_has_one_lora_a(tmp_path: Path) -> None:
    name = "base_model.model.transformer.h.{}.attn.c_attn.lora_{}.weight"
    tensors = {name.format(i, "A"): torch.randn(2, 24) for i in range(2)}
    tensors |= {name.format(i, "B"): torch.randn(72, 2) for i in range(2)}
    model = tiny.build("gpt2")
    read_adapter(model, write_files(tmp_path / "a", tensors, fan_in_fan_out=True))
    q, k, v = (lora_layers(model.net)[f"decoder.layers.1.attention.{part}"] for part in "qkv")
    assert q.lora_a is k.lora_a is v.lora_a
    assert torch.equal(
        torch.cat([x.lora_b.weight for x in (q, k, v)]).float(), tensors[name.format(1, "B")]
    )
    write_adapter(model, tmp_path / "b")
    written = load_file(tmp_path / "b" / "adapter_model.safetensors")
    assert written.keys() == tensors.keys()
    assert all(torch.equal(x.float(), tensors[name]) for name, x in written.items())
    assert (
        json.loads((tmp_path / "b" / "adapter_config.json").read_text())["fan_in_fan_out"] is True
    )


@pytest.mark.parametrize(
    ("family", "target_modules", "message"),
    [
        (
            "gpt2",
            ("q", "v"),
            r"transformer\.h\.0\.attn\.c_attn holds q,k,v, which need one A together: target_modules='q,k,v'",
        ),
        (
            "gpt2",
            ("q", "k", "v"),
            r"\.h\.0\.attn\.c_attn holds q,k,v, which need one A .*; and 1 more",
        ),
        (
            "xlnet",
            ("q",),
            r"encoder\.layers\.0\.attention\.q is no module of its checkpoints; and 1 more",
        ),
    ],
)
def test_adapters_that_peft_cannot_represent(
    tmp_path: Path, family: str, target_modules: tuple[str, ...], message: str
) -> None:
    model = tiny.build(family)
    add_lora(model.net, target_modules=target_modules)
    with pytest.raises(ValueError, match=message):
        write_adapter(model, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_trainable_tensors_that_peft_cannot_represent(tmp_path: Path) -> None:
    model = tiny.build("bert")
    with pytest.raises(ValueError, match="the model has no adapters"):
        write_adapter(model, tmp_path)
    add_lora(model.net)
    for name, saved_name in {
        "heads.lm.out.bias": "heads.lm.out.weight",
        "encoder.embedding.tokens.weight": "encoder.embedding.tokens.weight",
        "encoder.layers.0.attention.q.bias": "encoder.layers.0.attention.q.bias",
    }.items():
        tensor = model.net.get_parameter(name).requires_grad_(True)
        with pytest.raises(
            ValueError,
            match=rf"{saved_name} must be saved in full, but .* is tied, adapted or in no",
        ):
            write_adapter(model, tmp_path)
        tensor.requires_grad_(False)
    lora_layers(model.net)["encoder.layers.0.attention.q"].dropout.p = 0.3
    with pytest.raises(ValueError, match="adapters differ in lora_dropout or use_rslora"):
        write_adapter(model, tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (dict(peft_type="LOHA"), "peft_type is 'LOHA': expected 'LORA'"),
        (dict(use_dora=True), "not supported: use_dora is True"),
        (dict(bias="all"), "not supported: bias is 'all'"),
        (
            dict(lora_bias=True, use_qalora=True),
            "not supported: lora_bias is True, use_qalora is True",
        ),
        (dict(init_lora_weights="pissa"), "not supported: init_lora_weights is 'pissa'"),
        (dict(some_new_trick={"a": 1}), r"not supported: some_new_trick is \{'a': 1\}"),
        (dict(lora_alpha="8"), "lora_alpha is '8': expected a number, more than 0"),
        (dict(lora_dropout=1.5), "lora_dropout is 1.5: expected a number"),
        (dict(alpha_pattern={"(": 3}), "unterminated subpattern"),
    ],
)
def test_unsupported_settings(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    model = tiny.build("bert")
    with pytest.raises(ValueError, match=rf"adapter_config\.json: .*{message}"):
        read_adapter(model, write_files(tmp_path, **config))
    assert lora_layers(model.net) == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({query(0, "B"): None}, r"layer\.0\.attention\.self\.query has no lora_B"),
        (
            {query(1, "A"): (4, 23)},
            r"A \[4, 23\] and B \[24, 4\], expected \[r, 24\] and \[24, r\]",
        ),
        (
            {query(1, "B"): (24, 3)},
            r"A \[4, 24\] and B \[24, 3\], expected \[r, 24\] and \[24, r\]",
        ),
        ({query(1, "A"): ()}, r"A \[\] and B"),
        (
            {query(2, "A"): (4, 24), query(2, "B"): (24, 4)},
            r"layer\.2\..*lora_A\.weight \[4, 24\]: there is no such",
        ),
        (
            {"base_model.model.classifier.weight": (2, 24)},
            r"classifier\.weight \[2, 24\]: there is no such tensor",
        ),
        (
            {"classifier.weight": (2, 24)},
            r"classifier\.weight \[2, 24\] is no tensor of an adapter",
        ),
        ({query(i, side): None for i in range(2) for side in "AB"}, "no LoRA tensors"),
    ],
    ids=["lost", "inner", "rank", "number", "layer", "other", "plain", "none"],
)
def test_unexpected_tensors(
    tmp_path: Path, changes: dict[str, tuple[int, ...] | None], message: str
) -> None:
    tensors = load_file(write_files(tmp_path) / "adapter_model.safetensors")
    for name, shape in changes.items():
        tensors.pop(name, None)
        tensors |= {} if shape is None else {name: torch.ones(shape)}
    model = tiny.build("bert")
    with pytest.raises(ValueError, match=rf"adapter_model\.safetensors: .*{message}"):
        read_adapter(model, write_files(tmp_path, tensors))
    assert lora_layers(model.net) == {}


def test_reading_an_adapter_twice(tmp_path: Path) -> None:
    model = tiny.build("bert")
    read_adapter(model, write_files(tmp_path))
    with pytest.raises(
        ValueError, match=r"adapter_model\.safetensors: .*attention\.q has an adapter already"
    ):
        read_adapter(model, tmp_path)


# PEFT


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
FP32 = ("t5", "llama", "modernbert")  # transformers computes their norms or angles in fp32


def load_in_transformers(model: qkv.Model, name: str, folder: Path) -> Any:
    """Return the same model in transformers."""
    import transformers

    model.save(folder)
    return getattr(transformers, name).from_pretrained(folder, dtype=torch.float64).eval()


def run_in_transformers(net: Any, model: qkv.Model) -> Tensor:
    x: dict[str, Any] = {"input_ids": tiny.random_ids(2, 9)}
    if model.family.name in tiny.ENCODER_DECODERS:
        x["decoder_input_ids"] = tiny.random_ids(2, 5, seed=1)
    if model.family.name == "clip":
        x["input_ids"][:, 4] = 7
        x["pixel_values"] = (
            torch.arange(2 * 3 * 12 * 12, dtype=torch.float64).reshape(2, 3, 12, 12).sin()
        )
    with torch.no_grad():
        out = net(**x)
    return out["logits_per_image"] if model.family.name == "clip" else out[0]


@pytest.mark.parametrize("case", CASES)
def test_peft_agrees_in_both_directions(peft: Any, tmp_path: Path, case: str) -> None:
    family, changes, class_name, settings = CASES[case]
    model = tiny.build(family, **changes)
    base = load_in_transformers(model, class_name, tmp_path / "base")
    wrapped = peft.get_peft_model(
        base, peft.LoraConfig(r=3, lora_alpha=7, **settings), autocast_adapter_dtype=False
    )
    wrapped.to(torch.float64).eval()
    with torch.no_grad():
        for parameter_name, p in wrapped.named_parameters():
            if "lora_" in parameter_name:
                p.normal_(0, 0.3)
    expected = run_in_transformers(wrapped, model)
    wrapped.save_pretrained(tmp_path / "theirs")

    plain = run(model)
    read_adapter(model, tmp_path / "theirs")
    key = "last_hidden_state" if model.args.get("head") == "none" else "logits"
    assert compare.max_difference(run(model)[key], plain[key]) > 1e-3
    tolerance = 1e-5 if family in FP32 else 1e-9
    assert compare.max_difference(run(model)[key], expected) < tolerance

    write_adapter(model, tmp_path / "ours")
    theirs, ours = (
        load_file(tmp_path / side / "adapter_model.safetensors") for side in ("theirs", "ours")
    )
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(x, ours[name]) for name, x in theirs.items())
    fresh = load_in_transformers(tiny.build(family, **changes), class_name, tmp_path / "base")
    opened = peft.PeftModel.from_pretrained(
        fresh, tmp_path / "ours", autocast_adapter_dtype=False
    ).eval()
    assert (
        compare.max_difference(run_in_transformers(opened.to(torch.float64), model), expected)
        < 1e-12
    )

    merge_lora(model.net)
    assert compare.max_difference(run(model)[key], expected) < tolerance
