"""A post-norm Transformer is saved as Marian, with the same outputs; other Transformers are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import qkv
from qkv.model.transforms.hf_family import convert_arguments
from tests.support import tiny
from tests.support.limits import get_error_message

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "halves": dict(sinusoidal="halves"),
    "untied": dict(tie_embeddings=False),
    "two vocabularies": dict(
        tie_embeddings=False, share_embeddings=False, decoder_vocab_size=tiny.VOCAB + 4
    ),
    "bias": dict(lm_bias=True, scale_embedding=False, activation="gelu"),
    "odd width": dict(width=15, heads=3, decoder_heads=3),
    "no head": dict(head="none"),
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_outputs_of_marian_equal_those_of_the_transformer(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    model = tiny.build("transformer", dtype=torch.float32, **changes)
    model.save(tmp_path, format="hf")
    inputs = tiny.build_inputs(model)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["attention_mask"][0, 6:] = 0
    with torch.no_grad():
        expected = model(**inputs)
        loaded = qkv.load(tmp_path)
        actual = loaded(**inputs)
        class_name = "MarianModel" if changes.get("head") == "none" else "MarianMTModel"
        reference, info = getattr(transformers, class_name).from_pretrained(
            tmp_path, output_loading_info=True
        )
        reference_out = reference(**inputs)
    assert loaded.family.name == "marian"
    # transformers computes the positions of a MarianModel that has none in its file.
    positions = {f"{side}.embed_positions.weight" for side in ("encoder", "decoder")}
    computed = positions if class_name == "MarianModel" else set()
    assert info.pop("missing_keys") == computed
    assert not any(info.values()), info
    if "logits" in expected:
        for logits in (actual.logits, reference_out.logits):
            torch.testing.assert_close(logits, expected.logits, atol=2e-5, rtol=1e-4)
    else:  # the features of the hidden states are permuted
        order = torch.cat([torch.arange(0, tiny.WIDTH, 2), torch.arange(1, tiny.WIDTH, 2)])
        states = expected.last_hidden_state[..., order]
        for other in (actual, reference_out):
            torch.testing.assert_close(other.last_hidden_state, states, atol=2e-5, rtol=1e-4)


def test_the_automatic_format_of_a_transformer_is_native(tmp_path: Path) -> None:
    tiny.build("transformer", dtype=torch.float32).save(tmp_path)
    assert qkv.load(tmp_path).family.name == "transformer"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(norm_position="pre", final_norm=True), "norm_position='pre', final_norm=True"),
        (dict(embedding_norm=True), "embedding_norm=True"),
        (dict(sinusoidal="ends"), "sinusoidal='ends'"),
        (dict(position_offset=1), "position_offset=1"),
    ],
)
def test_what_marian_cannot_hold_is_refused_by_name(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    model = tiny.build("transformer", dtype=torch.float32, **changes)
    message = get_error_message(lambda: model.save(tmp_path / "x", format="hf"))
    assert words in message
    assert not (tmp_path / "x").exists()


def test_arguments_without_an_effect_are_replaced() -> None:
    model = tiny.build("transformer")
    args, unsupported = convert_arguments(model.family, model.args)
    assert unsupported == []
    assert args["init_std"] == 0.02
    assert args["sinusoidal"] == "halves"
