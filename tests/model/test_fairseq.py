"""RoBERTa checkpoints of fairseq: small ones, written here, agree with Hugging Face's RoBERTa."""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import qkv
from qkv.model.foreign.fairseq import is_fairseq, load_fairseq
from tests.support.errors import assert_error
from tests.support.fairseq_files import (
    SETTINGS,
    VOCAB,
    build_roberta,
    to_fairseq,
    write_fairseq,
)
from tests.support.limits import limit_time_and_memory

TOLERANCE: dict[str, Any] = dict(atol=2e-5, rtol=1e-4)
IDS = torch.tensor([[0, 9, 4, 30, 12, 7, 2], [0, 17, 28, 2, 1, 1, 1]])  # 1 is the pad


def fuse_projections(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Fuse q, k and v, as the oldest versions did."""
    tensors = {
        key: x for key, x in state.items() if ".q_proj." not in key and ".k_proj." not in key
    }
    for key in [key for key in tensors if ".v_proj." in key]:
        parts = [state[key.replace("v_proj", f"{name}_proj")] for name in "qkv"]
        tensors[key.replace("v_proj.", "in_proj_")] = torch.cat(parts)
        del tensors[key]
    return tensors


def use_older_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key.replace("encoder.", "decoder.", 1): x for key, x in state.items()}


def use_newer_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key.replace("emb_layer_norm", "layernorm_embedding"): x for key, x in state.items()}


def drop_tied_head(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: x for key, x in state.items() if key != "encoder.lm_head.weight"}


def assert_outputs_agree(model: qkv.Model, reference: Any) -> None:
    mask = IDS != 1
    with torch.no_grad():
        expected = reference(IDS, attention_mask=mask.long()).logits
        logits = model(IDS, attention_mask=mask)["logits"]
    if logits.dim() == 3:
        logits = logits[mask]
        expected = expected[mask]
    torch.testing.assert_close(logits, expected, **TOLERANCE)


VERSIONS: dict[str, Callable[[dict[str, Tensor]], dict[str, Tensor]]] = {
    "new": dict,
    "fused": fuse_projections,
    "older": use_older_names,
    "newer": use_newer_names,
    "tied": drop_tied_head,
}


@pytest.mark.parametrize("version", VERSIONS)
def test_names_of_every_version_are_read(tmp_path: Path, version: str) -> None:
    reference = build_roberta()
    path = write_fairseq(tmp_path / "model.pt", VERSIONS[version](to_fairseq(reference)))
    model = load_fairseq(path)
    assert_outputs_agree(model, reference)
    assert (model.args["dropout"], model.args["attention_dropout"]) == (0.2, 0.3)
    assert model.args["tie_embeddings"] is True
    model.save(tmp_path / "hf")
    reloaded, report = transformers.RobertaForMaskedLM.from_pretrained(
        tmp_path / "hf", output_loading_info=True
    )
    assert not any(report.values())
    assert_outputs_agree(model, reloaded.eval())
    assert_outputs_agree(qkv.load(tmp_path / "hf"), reference)


def test_an_untied_head_is_read(tmp_path: Path) -> None:
    reference = build_roberta(tie_word_embeddings=False)
    model = load_fairseq(
        write_fairseq(tmp_path / "model.pt", to_fairseq(reference), untie_weights_roberta=True)
    )
    assert not model.args["tie_embeddings"]
    assert_outputs_agree(model, reference)
    model.save(tmp_path / "hf")
    assert_outputs_agree(
        model, transformers.RobertaForMaskedLM.from_pretrained(tmp_path / "hf").eval()
    )


def test_settings_may_be_in_cfg(tmp_path: Path) -> None:
    reference = build_roberta()
    for settings in (argparse.Namespace(**SETTINGS), SETTINGS):
        cfg = {"_name": None, "model": settings, "task": {"_name": "masked_lm"}}
        torch.save(
            {"args": None, "cfg": cfg, "model": to_fairseq(reference)}, tmp_path / "model.pt"
        )
        assert_outputs_agree(load_fairseq(tmp_path / "model.pt"), reference)


def test_missing_sizes_are_those_of_the_tensors(tmp_path: Path) -> None:
    reference = build_roberta()
    absent = dict.fromkeys(
        ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim"), "absent"
    )
    assert_outputs_agree(
        load_fairseq(write_fairseq(tmp_path / "model.pt", to_fairseq(reference), **absent)),
        reference,
    )


def test_a_classification_head_is_read(tmp_path: Path) -> None:
    reference = build_roberta("RobertaForSequenceClassification", num_labels=5)
    state = to_fairseq(reference)
    model = load_fairseq(write_fairseq(tmp_path / "model.pt", state))
    assert model.args["head"] == "sequence-classification"
    assert (model.args["num_labels"], model.args["classifier_dropout"]) == (5, 0.4)
    assert_outputs_agree(model, reference)
    lm = {key: x for key, x in to_fairseq(build_roberta()).items() if ".lm_head." in key}
    other = {key.replace("topic", "mood"): x for key, x in state.items() if "topic" in key}
    path = write_fairseq(tmp_path / "model.pt", state | lm)
    with pytest.warns(UserWarning, match="loaded with the head topic, without lm"):
        assert_outputs_agree(load_fairseq(path), reference)
    with pytest.warns(UserWarning, match="loaded with the head lm, without topic"):
        assert load_fairseq(path, head="lm").args["head"] == "masked-lm"
    path = write_fairseq(tmp_path / "model.pt", state | lm | other)
    assert_error(lambda: load_fairseq(path), "which head; expected one of topic, mood, lm")
    assert_error(
        lambda: load_fairseq(path, head="tone"), "no head 'tone'; expected one of topic, mood, lm"
    )
    with pytest.warns(UserWarning, match="without mood, lm"):
        assert_outputs_agree(load_fairseq(path, head="topic"), reference)


UNSUPPORTED = dict(
    activation_fn="relu", encoder_normalize_before=True, encoder_learned_pos=False, layernorm_embedding=False,
    no_scale_embedding=False, no_token_positional_embeddings=True, adaptive_input=True,
    encoder_layers_to_keep="0,1", pooler_activation_fn="relu", encoder_attention_heads="four",
    dropout="much", attention_dropout=None,
)  # fmt: skip


@pytest.mark.parametrize("key", UNSUPPORTED)
def test_an_unsupported_setting_is_an_error(tmp_path: Path, key: str) -> None:
    path = write_fairseq(
        tmp_path / "model.pt", to_fairseq(build_roberta()), **{key: UNSUPPORTED[key]}
    )
    assert_error(lambda: load_fairseq(path), str(path), f"{key} is {UNSUPPORTED[key]!r}")


def test_tensors_and_settings_that_do_not_fit_are_errors(tmp_path: Path) -> None:
    state = to_fairseq(build_roberta())
    path, layer = tmp_path / "model.pt", "encoder.sentence_encoder.layers.1"

    def load_changed(change: dict[str, Tensor | None], **settings: Any) -> None:
        merged = {key: x for key, x in (state | change).items() if x is not None}
        load_fairseq(write_fairseq(path, merged, **settings))

    assert_error(
        lambda: load_changed({
            f"{layer}.fc2.bias": None, f"{layer}.fc1.weight": torch.ones(3), "a": torch.ones(1)
        }),
        f"{layer}.fc2.bias is missing", f"{layer}.fc1.weight is [3]", "a is unknown",
    )  # fmt: skip
    assert_error(
        lambda: load_changed({}, encoder_layers=10**9),
        "encoder_layers is 1000000000, but its tensors have 3",
    )
    for heads in (5, 0, -1, 48):
        assert_error(
            partial(load_changed, {}, encoder_attention_heads=heads),
            f"{heads} heads in a width of 24",
        )
    assert_error(
        lambda: load_changed({}, encoder_attention_heads="absent"), "no encoder_attention_heads"
    )
    assert_error(
        lambda: load_changed({"decoder.lm_head.bias": torch.ones(VOCAB)}),
        "encoder.lm_head.bias occurs twice",
    )
    assert_error(
        lambda: load_changed({"encoder.sentence_encoder.embed_tokens.weight": None}),
        "embed_tokens.weight is missing",
    )
    no_head: dict[str, Tensor | None] = dict.fromkeys(key for key in state if ".lm_head." in key)
    assert_error(lambda: load_changed(no_head), "no head; expected one of")
    without_settings: list[object] = [
        {"model": state},
        {"model": state, "args": "x"},
        {"model": state, "cfg": {}},
    ]
    for saved in without_settings:
        torch.save(saved, path)
        assert_error(lambda: load_fairseq(path), "neither args nor cfg.model")
    others: list[object] = [
        {"model": {}},
        {"weights": state},
        state,
        [1],
        {"model": {"a.sentence_encoder.b": 1}},
    ]
    for saved in others:
        torch.save(saved, path)
        assert_error(lambda: load_fairseq(path), "not a fairseq checkpoint")


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    torch.save({"args": Trap(), "model": to_fairseq(build_roberta())}, tmp_path / "model.pt")
    assert_error(
        lambda: load_fairseq(tmp_path / "model.pt"), "objects other than tensors", "not loaded"
    )
    assert not (tmp_path / "ran").exists()


def test_a_folder_may_hold_one_checkpoint(tmp_path: Path) -> None:
    reference = build_roberta()
    assert not is_fairseq(tmp_path)
    assert not is_fairseq(tmp_path / "absent.pt")
    write_fairseq(tmp_path / "one.pt", to_fairseq(reference))
    (tmp_path / "dict.txt").write_text("a 1\n")
    assert is_fairseq(tmp_path)
    assert is_fairseq(str(tmp_path / "one.pt"))
    assert_outputs_agree(load_fairseq(tmp_path), reference)
    write_fairseq(tmp_path / "two.pt", to_fairseq(build_roberta()))
    assert_error(lambda: load_fairseq(tmp_path), "several .pt files (one.pt, two.pt)")
    write_fairseq(tmp_path / "model.pt", to_fairseq(reference))
    assert_outputs_agree(load_fairseq(str(tmp_path)), reference)
    (tmp_path / "config.json").write_text("{}")
    assert not is_fairseq(tmp_path)


def test_values_that_are_not_finite_give_a_warning(tmp_path: Path) -> None:
    state = to_fairseq(build_roberta())
    state["encoder.lm_head.bias"][3] = math.nan
    with pytest.warns(UserWarning, match=r"NaN or infinite values in heads\.lm\.out\.bias;"):
        load_fairseq(write_fairseq(tmp_path / "model.pt", state))


def test_settings_that_refer_to_each_other_are_bounded(tmp_path: Path) -> None:
    levels: list[list[Any]] = [[] for _ in range(60)]
    for level, inner in itertools.pairwise(levels):
        level += [inner, inner]
    levels[-1].append(levels[0])  # a circle
    path = write_fairseq(tmp_path / "model.pt", to_fairseq(build_roberta()), notes=levels[0])
    with limit_time_and_memory():
        load_fairseq(path)
