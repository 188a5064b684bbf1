"""Translation models of CTranslate2: small ones, written here, and a real one where it is available."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv.model.foreign.ctranslate2 import is_ctranslate2, load_ctranslate2
from tests.support import compare
from tests.support.ctranslate2_files import (
    SOURCE,
    TARGET,
    build_translator,
    compute_logits,
    write_model,
)
from tests.support.errors import assert_error
from tests.weights.test_ctranslate2 import SCORES

# Most of these folders have no tokenizer.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(texts are read as tokens|loaded without a tokenizer)"
)
TOLERANCE: dict[str, Any] = dict(atol=2e-5, rtol=1e-4)


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
def test_outputs_equal_those_of_plain_torch(tmp_path: Path, variant: str) -> None:
    variables, aliases = build_translator(**VARIANTS[variant])
    model = load_ctranslate2(write_model(tmp_path, variables, aliases))
    torch.testing.assert_close(run(model), compute_logits(variables, aliases), **TOLERANCE)
    model.save(tmp_path / "saved")
    compare.assert_bitwise_equal(
        run(qkv.load(tmp_path / "saved")), run(model), because=compare.SAME_KERNELS
    )


def test_older_revisions_are_read(tmp_path: Path) -> None:
    old, _ = build_translator(first="embeddings")
    numbers = {
        "num_heads": torch.tensor(4, dtype=torch.int8),
        "pre_norm": torch.tensor(0, dtype=torch.int8),
    }
    sides = {f"{side}/{key}": x for side in ("encoder", "decoder") for key, x in numbers.items()}
    folder = write_model(tmp_path, old | numbers, revision=4)  # one number for encoder and decoder
    torch.testing.assert_close(
        run(load_ctranslate2(folder)), compute_logits(old | sides, {}), **TOLERANCE
    )
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


def test_half_precision_is_kept_if_all_weights_have_it(tmp_path: Path) -> None:
    variables, _ = build_translator()
    half = {key: x.half() for key, x in variables.items()}
    model = load_ctranslate2(write_model(tmp_path, half))
    assert {p.dtype for p in model.net.parameters()} == {torch.float16}
    half["decoder/projection/weight"] = variables["decoder/projection/weight"]
    model = load_ctranslate2(write_model(tmp_path, half))
    assert {p.dtype for p in model.net.parameters()} == {torch.float32}


def test_config_and_special_tokens_are_read(tmp_path: Path) -> None:
    write_model(tmp_path, build_translator()[0])
    (tmp_path / "target_vocabulary.json").write_text(json.dumps(["<unk>", "[s]", "</s>", "a"]))
    config: dict[str, Any] = {
        "bos_token": "[s]",
        "decoder_start_token": "</s>",
        "layer_norm_epsilon": None,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = load_ctranslate2(tmp_path)
    assert model.config == dict(
        bos_token_id=1, eos_token_id=2, unk_token_id=0, decoder_start_token_id=2
    )
    assert model.args["decoder_start_token_id"] == model.args["eos_token_id"] == 2
    assert model.args["pad_token_id"] is None
    (tmp_path / "config.json").write_text(json.dumps({"layer_norm_epsilon": 1e-6}))
    assert load_ctranslate2(tmp_path).args["norm_eps"] == 1e-6
    (tmp_path / "config.json").write_text(json.dumps({"layer_norm_epsilon": True}))
    assert_error(
        lambda: load_ctranslate2(tmp_path), "layer_norm_epsilon is True, expected a number"
    )
    (tmp_path / "config.json").write_text(json.dumps({"decoder_start_token": None}))
    assert load_ctranslate2(tmp_path).args["decoder_start_token_id"] is None


UNSUPPORTED_NUMBERS: dict[str, tuple[Any, str]] = dict(
    activation=(9, "activation is 9, expected 0 to 6"),
    alibi=(1, "alibi is 1, supported: 0"),
    head_dim=(3, "head_dim is 3, which is not supported"),
    multi_query_attention=(1, "multi_query_attention is 1"),
    num_heads=(5, "5 heads in a width of 16"),
    scale_embeddings=(torch.tensor(2.5), "scale_embeddings is 2.5, supported: 4"),
    scale_outputs=(torch.tensor(0.5), "scale_outputs is 0.5, supported: 1"),
    sliding_window=(64, "sliding_window is 64"),
    relative_left_max_position=(3, "relative_left_max_position is 3, which is not supported"),
)  # fmt: skip


@pytest.mark.parametrize("key", UNSUPPORTED_NUMBERS)
def test_an_unsupported_number_is_an_error(tmp_path: Path, key: str) -> None:
    value, message = UNSUPPORTED_NUMBERS[key]
    folder = write_model(tmp_path, *build_translator(**{key: value}))
    assert_error(lambda: load_ctranslate2(folder), str(folder / "model.bin"), message)


def test_variables_that_do_not_fit_are_errors(tmp_path: Path) -> None:
    variables, _ = build_translator()

    def load_changed(change: dict[str, Tensor | None], **options: Any) -> None:
        merged = {key: x for key, x in (variables | change).items() if x is not None}
        load_ctranslate2(write_model(tmp_path, merged, **options))

    assert_error(
        lambda: load_changed({
            "encoder/layer_0/ffn/linear_1/bias": None,
            "decoder/layer_1/attention/linear_1/weight": torch.ones(3, 3),
            "encoder/layer_0/self_attention/relative_position_keys": torch.ones(3, 3),
        }),
        "encoder.layer_0.ffn.linear_1.bias is missing", "decoder.layer_1.attention.linear_1.weight is [3, 3]",
        "encoder.layer_0.self_attention.relative_position_keys is unknown",
    )  # fmt: skip
    assert_error(
        lambda: load_changed({"decoder/pre_norm": torch.tensor(0, dtype=torch.int8)}),
        "norm_position is 'pre' in the encoder and 'post' in the decoder",
    )
    assert_error(
        lambda: load_changed({"encoder/embeddings_1/weight": torch.ones(3, 16)}),
        "encoder.embeddings_1.weight has no parameter",
    )
    assert_error(
        lambda: load_changed({"decoder/embeddings/weight": None}),
        "decoder.embeddings.weight is missing",
    )
    assert_error(
        lambda: load_changed({}, spec="WhisperSpec"),
        "'WhisperSpec', revision 7; supported, with the first revision: TransformerBase (2)",
    )
    assert_error(lambda: load_changed({}, revision=1), "revision 1; supported")


def test_a_model_is_detected_by_its_first_bytes(tmp_path: Path) -> None:
    assert not is_ctranslate2(tmp_path)
    (tmp_path / "model.bin").mkdir()
    assert not is_ctranslate2(tmp_path)
    (tmp_path / "model.bin").rmdir()
    torch.save({}, tmp_path / "model.bin")
    assert not is_ctranslate2(tmp_path)
    write_model(tmp_path, build_translator()[0])
    assert is_ctranslate2(str(tmp_path))
    assert not is_ctranslate2(tmp_path / "model.bin")


def test_a_real_model_transliterates(shared: Path, tmp_path: Path) -> None:
    folder = shared / "weights" / "ct2-aren-transliteration"
    if not folder.is_dir():
        pytest.skip(f"needs {folder}")
    assert is_ctranslate2(folder)
    model = load_ctranslate2(folder)
    letters = (folder / "target_vocabulary.txt").read_text("utf-8").split("\n")
    source_letters = (folder / "source_vocabulary.txt").read_text("utf-8").split("\n")
    source = torch.tensor([[source_letters.index(letter) for letter in "آتزمون"]])
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
    with torch.no_grad():
        expected, loaded = (
            m(source, decoder_input_ids=torch.tensor([target]))["logits"]
            for m in (model, qkv.load(tmp_path))
        )
    compare.assert_bitwise_equal(loaded, expected, because=compare.SAME_KERNELS)
