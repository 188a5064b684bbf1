"""Models of fairseq and CTranslate2: small ones, written here in their formats, and a real one."""

from __future__ import annotations

import argparse
import json
import math
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

import qkv
from qkv.model.foreign.ctranslate2 import is_ctranslate2, load_ctranslate2
from qkv.model.foreign.fairseq import is_fairseq, load_fairseq
from tests.weights.test_ctranslate2 import SCORES, name, variable

CLOSE: dict[str, Any] = dict(atol=2e-5, rtol=1e-4)
WIDTH, HEADS, FEED, DEPTH, VOCAB, LENGTH = 24, 4, 40, 3, 31, 22
IDS = torch.tensor([[0, 9, 4, 30, 12, 7, 2], [0, 17, 28, 2, 1, 1, 1]])  # 1 is the pad


def assert_value_error(call: Callable[[], object], *words: str) -> None:
    with pytest.raises(ValueError, match=r"\A.+\Z") as caught:
        call()
    for word in words:
        assert word in str(caught.value)


# --- fairseq ---

SETTINGS: dict[str, Any] = dict(
    arch="roberta_small", encoder_layers=DEPTH, encoder_embed_dim=WIDTH, encoder_ffn_embed_dim=FEED,
    encoder_attention_heads=HEADS, activation_fn="gelu", pooler_activation_fn="tanh", dropout=0.2,
    attention_dropout=0.3, pooler_dropout=0.4, max_positions=LENGTH - 2, encoder_layers_to_keep=None,
    lr=[0.001],
)  # fmt: skip
NAMES = {  # Hugging Face's parts -> fairseq's
    "roberta.embeddings.word_embeddings": "encoder.sentence_encoder.embed_tokens",
    "roberta.embeddings.position_embeddings": "encoder.sentence_encoder.embed_positions",
    "roberta.embeddings.LayerNorm": "encoder.sentence_encoder.emb_layer_norm",
    "roberta.encoder.layer": "encoder.sentence_encoder.layers",
    "attention.self.query": "self_attn.q_proj",
    "attention.self.key": "self_attn.k_proj",
    "attention.self.value": "self_attn.v_proj",
    "attention.output.dense": "self_attn.out_proj",
    "attention.output.LayerNorm": "self_attn_layer_norm",
    "intermediate.dense": "fc1",
    "output.dense": "fc2",
    "output.LayerNorm": "final_layer_norm",
    "lm_head": "encoder.lm_head",
    "classifier": "classification_heads.topic",
}


def original(kind: str = "RobertaForMaskedLM", **changes: Any) -> Any:
    """Return a random RoBERTa of Hugging Face, with zero token types, which fairseq lacks."""
    config = transformers.RobertaConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=DEPTH, num_attention_heads=HEADS,
        intermediate_size=FEED, max_position_embeddings=LENGTH, type_vocab_size=1, layer_norm_eps=1e-5,
        pad_token_id=1, **changes,
    )  # fmt: skip
    model = getattr(transformers, kind)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
        model.roberta.embeddings.token_type_embeddings.weight.zero_()
    return model


def fairseq(model: Any) -> dict[str, Tensor]:
    """Return the state dict of a Hugging Face model under fairseq's names."""
    tensors = {}
    for key, tensor in model.state_dict().items():
        new = key
        for theirs, ours in NAMES.items():
            if new.startswith(theirs) or f".{theirs}." in new:
                new = new.replace(theirs, ours, 1)
        if (
            "token_type" not in key and key != "lm_head.bias"
        ):  # untied, only the bias of `decoder` is used
            tensors[new.replace("lm_head.decoder", "lm_head")] = tensor.clone()
    tensors["encoder.sentence_encoder.version"] = torch.tensor([3.0])
    return tensors


def fused(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Fuse q, k and v, as the oldest versions did."""
    tensors = {
        key: x for key, x in state.items() if ".q_proj." not in key and ".k_proj." not in key
    }
    for key in [key for key in tensors if ".v_proj." in key]:
        parts = [state[key.replace("v_proj", f"{each}_proj")] for each in "qkv"]
        tensors[key.replace("v_proj.", "in_proj_")] = torch.cat(parts)
        del tensors[key]
    return tensors


def older(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key.replace("encoder.", "decoder.", 1): x for key, x in state.items()}


def newer(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key.replace("emb_layer_norm", "layernorm_embedding"): x for key, x in state.items()}


def tied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: x for key, x in state.items() if key != "encoder.lm_head.weight"}


def write(path: Path, state: dict[str, Tensor], **changes: Any) -> Path:
    settings = {key: value for key, value in (SETTINGS | changes).items() if value != "absent"}
    torch.save(
        {"args": argparse.Namespace(**settings), "model": state, "extra_state": {"epoch": 3}}, path
    )
    return path


def assert_outputs_agree(model: qkv.Model, theirs: Any) -> None:
    mask = IDS != 1
    with torch.no_grad():
        expected = theirs(IDS, attention_mask=mask.long()).logits
        logits = model(IDS, attention_mask=mask)["logits"]
    if logits.dim() == 3:
        logits = logits[mask]
        expected = expected[mask]
    torch.testing.assert_close(logits, expected, **CLOSE)


SPELLINGS: dict[str, Callable[[dict[str, Tensor]], dict[str, Tensor]]] = {
    "new": dict,
    "fused": fused,
    "older": older,
    "newer": newer,
    "tied": tied,
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_fairseq_names_of_every_version(tmp_path: Path, spelling: str) -> None:
    theirs = original()
    path = write(tmp_path / "model.pt", SPELLINGS[spelling](fairseq(theirs)))
    model = load_fairseq(path)
    assert_outputs_agree(model, theirs)
    assert (model.args["dropout"], model.args["attention_dropout"]) == (0.2, 0.3)
    assert model.args["tie_embeddings"] is True
    model.save(tmp_path / "hf")
    again, report = transformers.RobertaForMaskedLM.from_pretrained(
        tmp_path / "hf", output_loading_info=True
    )
    assert not any(report.values())
    assert_outputs_agree(model, again.eval())
    assert_outputs_agree(qkv.load(tmp_path / "hf"), theirs)


def test_fairseq_untied(tmp_path: Path) -> None:
    theirs = original(tie_word_embeddings=False)
    model = load_fairseq(write(tmp_path / "model.pt", fairseq(theirs), untie_weights_roberta=True))
    assert not model.args["tie_embeddings"]
    assert_outputs_agree(model, theirs)
    model.save(tmp_path / "hf")
    assert_outputs_agree(
        model, transformers.RobertaForMaskedLM.from_pretrained(tmp_path / "hf").eval()
    )


def test_fairseq_settings_in_cfg(tmp_path: Path) -> None:
    theirs = original()
    for stated in (argparse.Namespace(**SETTINGS), SETTINGS):
        cfg = {"_name": None, "model": stated, "task": {"_name": "masked_lm"}}
        torch.save({"args": None, "cfg": cfg, "model": fairseq(theirs)}, tmp_path / "model.pt")
        assert_outputs_agree(load_fairseq(tmp_path / "model.pt"), theirs)


def test_fairseq_sizes_from_shapes(tmp_path: Path) -> None:
    theirs = original()
    unsaid = dict.fromkeys(
        ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim"), "absent"
    )
    assert_outputs_agree(
        load_fairseq(write(tmp_path / "model.pt", fairseq(theirs), **unsaid)), theirs
    )


def test_fairseq_classification_head(tmp_path: Path) -> None:
    theirs = original("RobertaForSequenceClassification", num_labels=5)
    state = fairseq(theirs)
    model = load_fairseq(write(tmp_path / "model.pt", state))
    assert model.args["head"] == "sequence-classification"
    assert (model.args["num_labels"], model.args["classifier_dropout"]) == (5, 0.4)
    assert_outputs_agree(model, theirs)
    lm = {key: x for key, x in fairseq(original()).items() if ".lm_head." in key}
    other = {key.replace("topic", "mood"): x for key, x in state.items() if "topic" in key}
    path = write(tmp_path / "model.pt", state | lm)
    with pytest.warns(UserWarning, match="opened with the head topic, without lm"):
        assert_outputs_agree(load_fairseq(path), theirs)
    with pytest.warns(UserWarning, match="opened with the head lm, without topic"):
        assert load_fairseq(path, head="lm").args["head"] == "masked-lm"
    path = write(tmp_path / "model.pt", state | lm | other)
    assert_value_error(lambda: load_fairseq(path), "which head; expected one of topic, mood, lm")
    assert_value_error(
        lambda: load_fairseq(path, head="tone"), "no head 'tone'; expected one of topic, mood, lm"
    )
    with pytest.warns(UserWarning, match="without mood, lm"):
        assert_outputs_agree(load_fairseq(path, head="topic"), theirs)


UNSUPPORTED = dict(
    activation_fn="relu", encoder_normalize_before=True, encoder_learned_pos=False, layernorm_embedding=False,
    no_scale_embedding=False, no_token_positional_embeddings=True, adaptive_input=True,
    encoder_layers_to_keep="0,1", pooler_activation_fn="relu", encoder_attention_heads="four",
    dropout="much", attention_dropout=None,
)  # fmt: skip


@pytest.mark.parametrize("key", UNSUPPORTED)
def test_fairseq_unsupported_setting(tmp_path: Path, key: str) -> None:
    path = write(tmp_path / "model.pt", fairseq(original()), **{key: UNSUPPORTED[key]})
    assert_value_error(lambda: load_fairseq(path), str(path), f"{key} is {UNSUPPORTED[key]!r}")


def test_fairseq_mismatches(tmp_path: Path) -> None:
    state = fairseq(original())
    path, layer = tmp_path / "model.pt", "encoder.sentence_encoder.layers.1"

    def load_changed(change: dict[str, Tensor | None], **settings: Any) -> None:
        merged = {key: x for key, x in (state | change).items() if x is not None}
        load_fairseq(write(path, merged, **settings))

    assert_value_error(
        lambda: load_changed({
            f"{layer}.fc2.bias": None, f"{layer}.fc1.weight": torch.ones(3), "a": torch.ones(1)
        }),
        f"{layer}.fc2.bias is missing", f"{layer}.fc1.weight is [3]", "a is unknown",
    )  # fmt: skip
    assert_value_error(
        lambda: load_changed({}, encoder_layers=10**9),
        "encoder_layers is 1000000000, but its tensors have 3",
    )
    for heads in (5, 0, -1, 48):
        assert_value_error(
            partial(load_changed, {}, encoder_attention_heads=heads),
            f"{heads} heads in a width of 24",
        )
    assert_value_error(
        lambda: load_changed({}, encoder_attention_heads="absent"), "no encoder_attention_heads"
    )
    assert_value_error(
        lambda: load_changed({"decoder.lm_head.bias": torch.ones(VOCAB)}),
        "encoder.lm_head.bias is there twice",
    )
    assert_value_error(
        lambda: load_changed({"encoder.sentence_encoder.embed_tokens.weight": None}),
        "embed_tokens.weight is missing",
    )
    no_head: dict[str, Tensor | None] = dict.fromkeys(key for key in state if ".lm_head." in key)
    assert_value_error(lambda: load_changed(no_head), "no head; expected one of")
    unsaid: list[object] = [
        {"model": state},
        {"model": state, "args": "x"},
        {"model": state, "cfg": {}},
    ]
    for saved in unsaid:
        torch.save(saved, path)
        assert_value_error(lambda: load_fairseq(path), "neither args nor cfg.model")
    others: list[object] = [
        {"model": {}},
        {"weights": state},
        state,
        [1],
        {"model": {"a.sentence_encoder.b": 1}},
    ]
    for saved in others:
        torch.save(saved, path)
        assert_value_error(lambda: load_fairseq(path), "not a RoBERTa of fairseq")


def test_fairseq_runs_no_code(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    torch.save({"args": Trap(), "model": fairseq(original())}, tmp_path / "model.pt")
    assert_value_error(
        lambda: load_fairseq(tmp_path / "model.pt"), "objects other than tensors", "not loaded"
    )
    assert not (tmp_path / "ran").exists()


def test_fairseq_folder(tmp_path: Path) -> None:
    theirs = original()
    assert not is_fairseq(tmp_path)
    assert not is_fairseq(tmp_path / "absent.pt")
    write(tmp_path / "one.pt", fairseq(theirs))
    (tmp_path / "dict.txt").write_text("a 1\n")
    assert is_fairseq(tmp_path)
    assert is_fairseq(str(tmp_path / "one.pt"))
    assert_outputs_agree(load_fairseq(tmp_path), theirs)
    write(tmp_path / "two.pt", fairseq(original()))
    assert_value_error(lambda: load_fairseq(tmp_path), "which .pt file? It holds one.pt, two.pt")
    write(tmp_path / "model.pt", fairseq(theirs))
    assert_outputs_agree(load_fairseq(str(tmp_path)), theirs)
    (tmp_path / "config.json").write_text("{}")
    assert not is_fairseq(tmp_path)


def test_fairseq_nonfinite_values(tmp_path: Path) -> None:
    state = fairseq(original())
    state["encoder.lm_head.bias"][3] = math.nan
    with pytest.warns(UserWarning, match=r"heads\.lm\.out\.bias holds values that are not finite"):
        load_fairseq(write(tmp_path / "model.pt", state))


# --- CTranslate2 ---

ACTS: tuple[Callable[[Tensor], Tensor], ...] = (
    F.relu, lambda x: F.gelu(x, approximate="tanh"), F.silu, F.gelu, lambda x: x * torch.sigmoid(1.702 * x),
)  # fmt: skip
SOURCE, TARGET = [5, 9, 3, 11, 2], [1, 7, 4, 9]


def translator(
    *, positions: int = 0, embed_norm: bool = False, final_norm: bool = True, bias: bool = True,
    share: str = "", first: str = "embeddings_0", **numbers: Any,
) -> tuple[dict[str, Tensor], dict[str, str]]:  # fmt: skip
    """Return random variables and aliases; `numbers` are added for the encoder and the decoder."""
    width = 16
    depths = (2, 3)
    ffn_widths = (20, 28)
    tensors: dict[str, Tensor] = {}

    def linear(at: str, inner: int, outer: int) -> None:
        tensors[f"{at}/weight"], tensors[f"{at}/bias"] = (
            torch.randn(outer, inner) / 3,
            torch.randn(outer) / 3,
        )

    def norm(at: str) -> None:
        tensors[f"{at}/gamma"], tensors[f"{at}/beta"] = torch.randn(width), torch.randn(width)

    for side, depth, ffn_width, vocab, table in zip(
        ("encoder", "decoder"),
        depths,
        ffn_widths,
        (13, 13 if share else 12),
        (first, "embeddings"),
        strict=True,
    ):
        tensors[f"{side}/{table}/weight"] = torch.randn(vocab, width) / 3
        if positions:
            tensors[f"{side}/position_encodings/encodings"] = torch.randn(positions, width)
        for at in [f"{side}/layernorm_embedding"] * embed_norm + [
            f"{side}/layer_norm"
        ] * final_norm:
            norm(at)
        for i in range(depth):
            at = f"{side}/layer_{i}"
            linear(f"{at}/self_attention/linear_0", width, 3 * width)
            linear(f"{at}/self_attention/linear_1", width, width)
            linear(f"{at}/ffn/linear_0", width, ffn_width)
            linear(f"{at}/ffn/linear_1", ffn_width, width)
            norm(f"{at}/self_attention/layer_norm")
            norm(f"{at}/ffn/layer_norm")
            if side == "decoder":
                linear(f"{at}/attention/linear_0", width, width)
                linear(f"{at}/attention/linear_1", width, 2 * width)
                linear(f"{at}/attention/linear_2", width, width)
                norm(f"{at}/attention/layer_norm")
        for key, value in numbers.items():
            tensors[f"{side}/{key}"] = (
                value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.int8)
            )
    linear("decoder/projection", width, 13 if share else 12)
    if not bias:
        del tensors["decoder/projection/bias"]
    aliases = {}
    if share:
        aliases["decoder/projection/weight"] = "decoder/embeddings/weight"
    if share == "all":
        aliases[f"encoder/{first}/weight"] = "decoder/embeddings/weight"
    return {key: x for key, x in tensors.items() if key not in aliases}, aliases


def write_model(
    folder: Path, variables: dict[str, Tensor], aliases: dict[str, str] | None = None, *,
    spec: str = "TransformerSpec", revision: int = 7,
) -> Path:  # fmt: skip
    folder.mkdir(exist_ok=True)
    data = struct.pack("<I", 6) + name(spec) + struct.pack("<II", revision, len(variables))
    data += b"".join(variable(variable_name, tensor) for variable_name, tensor in variables.items())
    pairs = (aliases or {}).items()
    data += struct.pack("<I", len(pairs)) + b"".join(
        name(alias) + name(variable_name) for alias, variable_name in pairs
    )
    (folder / "model.bin").write_bytes(data)
    return folder


def reference(variables: dict[str, Tensor], aliases: dict[str, str]) -> Tensor:
    """Return the logits after each target token, as CTranslate2 computes them, in plain torch."""
    all_variables = variables | {
        alias: variables[variable_name] for alias, variable_name in aliases.items()
    }
    all_variables = {
        key.replace("embeddings_0", "embeddings"): x for key, x in all_variables.items()
    }
    width = all_variables["decoder/embeddings/weight"].shape[1]
    encoder_states = torch.empty(0)

    def read_number(at: str, key: str, default: int) -> int:
        return int(all_variables.get(f"{at.split('/')[0]}/{key}", torch.tensor(default)))

    def linear(x: Tensor, at: str) -> Tensor:
        return F.linear(x, all_variables[f"{at}/weight"], all_variables.get(f"{at}/bias"))

    def norm(x: Tensor, at: str) -> Tensor:
        gamma = all_variables.get(f"{at}/gamma")
        return x if gamma is None else F.layer_norm(x, (width,), gamma, all_variables[f"{at}/beta"])

    def embed(ids: list[int], side: str) -> Tensor:
        x, scale = (
            all_variables[f"{side}/embeddings/weight"][ids],
            all_variables.get(f"{side}/scale_embeddings"),
        )
        if scale is None or scale.dtype == torch.int8:
            scale = torch.tensor(math.sqrt(width) if scale is None or scale else 1.0)
        rates = torch.exp(torch.arange(width // 2) * -math.log(10000) / (width / 2 - 1))
        angles = torch.arange(1, len(ids) + 1)[:, None] * rates
        waves = torch.cat([angles.sin(), angles.cos()], -1)
        positions = all_variables.get(f"{side}/position_encodings/encodings", waves)[: len(ids)]
        return norm(x * scale + positions, f"{side}/layernorm_embedding")

    def step(x: Tensor, at: str, inner: Callable[[Tensor, str], Tensor]) -> Tensor:
        if read_number(at, "pre_norm", 1):
            return x + inner(norm(x, f"{at}/layer_norm"), at)
        return norm(x + inner(x, at), f"{at}/layer_norm")

    def attend(q: Tensor, k: Tensor, v: Tensor, at: str, causal: bool = False) -> Tensor:
        heads = read_number(at, "num_heads", 8)
        q, k, v = (x.view(len(x), heads, -1).transpose(0, 1) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(0, 1).flatten(1)

    def self_attention(x: Tensor, at: str) -> Tensor:
        q, k, v = linear(x, f"{at}/linear_0").chunk(3, -1)
        return linear(attend(q, k, v, at, at.startswith("decoder")), f"{at}/linear_1")

    def cross_attention(x: Tensor, at: str) -> Tensor:
        k, v = linear(encoder_states, f"{at}/linear_1").chunk(2, -1)
        return linear(attend(linear(x, f"{at}/linear_0"), k, v, at), f"{at}/linear_2")

    def feed_forward(x: Tensor, at: str) -> Tensor:
        return linear(
            ACTS[read_number(at, "activation", 0)](linear(x, f"{at}/linear_0")), f"{at}/linear_1"
        )

    def stack(ids: list[int], side: str) -> Tensor:
        x = embed(ids, side)
        for i in range(
            sum(f"{side}/layer_{i}/ffn/linear_0/weight" in all_variables for i in range(9))
        ):
            x = step(x, f"{side}/layer_{i}/self_attention", self_attention)
            x = step(x, f"{side}/layer_{i}/attention", cross_attention) if side == "decoder" else x
            x = step(x, f"{side}/layer_{i}/ffn", feed_forward)
        return norm(x, f"{side}/layer_norm")

    encoder_states = stack(SOURCE, "encoder")
    return linear(stack(TARGET, "decoder"), "decoder/projection")


def run(model: qkv.Model) -> Tensor:
    """Return the same logits from a padded batch with a shorter row."""
    source = torch.tensor([[*SOURCE, 0], SOURCE[:3] + [0] * 3])
    mask = torch.tensor([[1] * 5 + [0], [1] * 3 + [0] * 3])
    with torch.no_grad():
        return model(source, attention_mask=mask, decoder_input_ids=torch.tensor([TARGET, TARGET]))[
            "logits"
        ][0]


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one embedding": dict(first="embeddings"),
    "heads": dict(num_heads=torch.tensor(4, dtype=torch.int16)),
    "after": dict(pre_norm=0, final_norm=False),
    "embed norm": dict(embed_norm=True),
    "learned positions": dict(positions=9),
    "gelu": dict(activation=1),
    "swish": dict(activation=2),
    "erf gelu": dict(activation=3),
    "sigmoid gelu": dict(activation=4),
    "unscaled": dict(scale_embeddings=0),
    "scaled": dict(scale_embeddings=1),
    "scaled by a number": dict(scale_embeddings=torch.tensor(4.0)),
    "scaled by one": dict(scale_embeddings=torch.tensor(1.0)),
    "no bias": dict(bias=False),
    "tied": dict(share="target"),
    "one table": dict(share="all"),
    "idle": dict(alignment_layer=-1, alignment_heads=1, embeddings_merge=0, alibi=0, scale_alibi=1),
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_ctranslate2_outputs(tmp_path: Path, variant: str) -> None:
    variables, aliases = translator(**VARIANTS[variant])
    model = load_ctranslate2(write_model(tmp_path, variables, aliases))
    torch.testing.assert_close(run(model), reference(variables, aliases), **CLOSE)
    model.save(tmp_path / "own")
    assert torch.equal(run(qkv.load(tmp_path / "own")), run(model))


def test_ctranslate2_older_revisions(tmp_path: Path) -> None:
    old, _ = translator(first="embeddings")
    numbers = {
        "num_heads": torch.tensor(4, dtype=torch.int8),
        "pre_norm": torch.tensor(0, dtype=torch.int8),
    }
    sides = {f"{side}/{key}": x for side in ("encoder", "decoder") for key, x in numbers.items()}
    folder = write_model(tmp_path, old | numbers, revision=4)  # one number for encoder and decoder
    torch.testing.assert_close(run(load_ctranslate2(folder)), reference(old | sides, {}), **CLOSE)
    assert (
        load_ctranslate2(write_model(tmp_path, old, spec="TransformerBase", revision=2)).args[
            "heads"
        ]
        == 8
    )
    assert (
        load_ctranslate2(write_model(tmp_path, old, spec="TransformerBig", revision=2)).args[
            "heads"
        ]
        == 16
    )


def test_ctranslate2_in_half_precision(tmp_path: Path) -> None:
    variables, _ = translator()
    half = {key: x.half() for key, x in variables.items()}
    model = load_ctranslate2(write_model(tmp_path, half))
    assert {p.dtype for p in model.net.parameters()} == {torch.float16}
    half["decoder/projection/weight"] = variables["decoder/projection/weight"]
    model = load_ctranslate2(write_model(tmp_path, half))
    assert {p.dtype for p in model.net.parameters()} == {torch.float32}


def test_ctranslate2_config_and_tokens(tmp_path: Path) -> None:
    write_model(tmp_path, translator()[0])
    (tmp_path / "target_vocabulary.json").write_text(json.dumps(["<unk>", "[s]", "</s>", "a"]))
    config: dict[str, Any] = {
        "bos_token": "[s]",
        "decoder_start_token": "</s>",
        "layer_norm_epsilon": None,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = load_ctranslate2(tmp_path).config
    ids = dict(bos_token_id=1, eos_token_id=2, unk_token_id=0, decoder_start_token_id=2)
    assert loaded == config | ids
    (tmp_path / "config.json").write_text(
        json.dumps({"layer_norm_epsilon": 1e-6, "multi_query_attention": True})
    )
    assert_value_error(
        lambda: load_ctranslate2(tmp_path), "layer_norm_epsilon is 1e-06, supported: None or 1e-05",
        "multi_query_attention is True",
    )  # fmt: skip


UNSUPPORTED_NUMBERS: dict[str, tuple[Any, str]] = dict(
    activation=(9, "activation is 9, expected 0 to 6"),
    alibi=(1, "alibi is 1, supported: 0"),
    head_dim=(3, "head_dim is 3, which is not supported"),
    multi_query_attention=(1, "multi_query_attention is 1"),
    num_heads=(5, "5 heads in a width of 16"),
    scale_embeddings=(torch.tensor(2.5), "scale_embeddings is 2.5, supported: 1 or 16**0.5"),
    scale_outputs=(torch.tensor(0.5), "scale_outputs is 0.5, supported: 1"),
    sliding_window=(64, "sliding_window is 64"),
    start_from_zero_embedding=(1, "start_from_zero_embedding is 1"),
)  # fmt: skip


@pytest.mark.parametrize("key", UNSUPPORTED_NUMBERS)
def test_ctranslate2_unsupported_number(tmp_path: Path, key: str) -> None:
    value, message = UNSUPPORTED_NUMBERS[key]
    folder = write_model(tmp_path, *translator(**{key: value}))
    assert_value_error(lambda: load_ctranslate2(folder), str(folder / "model.bin"), message)


def test_ctranslate2_mismatches(tmp_path: Path) -> None:
    variables, _ = translator()

    def load_changed(change: dict[str, Tensor | None], **options: Any) -> None:
        merged = {key: x for key, x in (variables | change).items() if x is not None}
        load_ctranslate2(write_model(tmp_path, merged, **options))

    assert_value_error(
        lambda: load_changed({
            "encoder/layer_0/ffn/linear_1/bias": None,
            "decoder/layer_1/attention/linear_1/weight": torch.ones(3, 3),
            "encoder/layer_0/self_attention/relative_position_keys": torch.ones(3, 3),
        }),
        "encoder.layer_0.ffn.linear_1.bias is missing", "decoder.layer_1.attention.linear_1.weight is [3, 3]",
        "encoder.layer_0.self_attention.relative_position_keys is unknown",
    )  # fmt: skip
    assert_value_error(
        lambda: load_changed({"decoder/pre_norm": torch.tensor(0, dtype=torch.int8)}),
        "norm_position is 'pre' in the encoder and 'post' in the decoder",
    )
    assert_value_error(
        lambda: load_changed({"encoder/embeddings_1/weight": torch.ones(3, 16)}),
        "encoder.embeddings_1.weight is unknown",
    )
    assert_value_error(
        lambda: load_changed({"decoder/embeddings/weight": None}),
        "decoder.embeddings.weight is missing",
    )
    assert_value_error(
        lambda: load_changed({}, spec="WhisperSpec"),
        "'WhisperSpec', revision 7; supported: TransformerBase",
    )
    assert_value_error(lambda: load_changed({}, revision=1), "revision 1; supported")


def test_ctranslate2_is_detected_by_its_first_bytes(tmp_path: Path) -> None:
    assert not is_ctranslate2(tmp_path)
    (tmp_path / "model.bin").mkdir()
    assert not is_ctranslate2(tmp_path)
    (tmp_path / "model.bin").rmdir()
    torch.save({}, tmp_path / "model.bin")
    assert not is_ctranslate2(tmp_path)
    write_model(tmp_path, translator()[0])
    assert is_ctranslate2(str(tmp_path))
    assert not is_ctranslate2(tmp_path / "model.bin")


def test_real_ctranslate2(shared: Path, tmp_path: Path) -> None:
    folder = shared / "weights" / "ct2-aren-transliteration"
    if not folder.is_dir():
        pytest.skip(f"needs {folder}")
    assert is_ctranslate2(folder)
    model = load_ctranslate2(folder)
    letters = (folder / "target_vocabulary.txt").read_text("utf-8").split("\n")
    source = torch.tensor(
        [
            [
                (folder / "source_vocabulary.txt").read_text("utf-8").split("\n").index(x)
                for x in "آتزمون"
            ]
        ]
    )
    target = [model.config["decoder_start_token_id"]]
    scores = []
    while target[-1] != model.config["eos_token_id"] and len(target) < 20:
        with torch.no_grad():
            logits = model(source, decoder_input_ids=torch.tensor([target]))["logits"][0, -1]
        score, best = logits.log_softmax(-1).max(-1)
        target.append(int(best))
        scores.append(float(score))
    assert "".join(letters[i] for i in target[1:-1]) == "atzmon"
    torch.testing.assert_close(torch.tensor(scores), torch.tensor(SCORES), atol=2e-5, rtol=0)
    model.save(tmp_path)
    again = qkv.load(tmp_path)
    with torch.no_grad():  # bitwise equal: the same shapes, and all weights at 64-byte boundaries
        expected, loaded = (
            each(source, decoder_input_ids=torch.tensor([target]))["logits"]
            for each in (model, again)
        )
    assert torch.equal(expected, loaded)
