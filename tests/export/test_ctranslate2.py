"""Models written for CTranslate2: the same files as its own converter, the same outputs in ctranslate2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv.export.ctranslate2 import export_ctranslate2
from qkv.weights.formats.ctranslate2 import CTRANSLATE2_QUANTIZATIONS
from tests.support import tiny
from tests.support.ctranslate2_checkpoints import (
    CASES,
    convert,
    import_ctranslate2,
    write_checkpoint,
)
from tests.support.ctranslate2_runs import (
    compute_ctranslate2_outputs,
    compute_qkv_outputs,
    generate_ctranslate2_ids,
    generate_qkv_ids,
    read_tokens,
)
from tests.support.errors import assert_error

TOLERANCE: dict[str, Any] = dict(atol=2e-5, rtol=1e-4)
# transformers 5 ties the embeddings of every mT5 and does not scale its outputs; the converter writes a
# scale if embeddings are tied.
CONVERTED_WITH_A_SCALE = ("mt5",)
NOT_A_FAMILY = ("xlm-roberta",)
CONVERTED = [name for name in CASES if name not in (*CONVERTED_WITH_A_SCALE, *NOT_A_FAMILY)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


def load_checkpoint(name: str, folders: Path) -> qkv.Model:
    if not (folders / name).exists():
        write_checkpoint(name, folders / name)
    return qkv.load(folders / name)


def assert_same_files(folder: Path, expected: Path) -> None:
    for path in expected.iterdir():
        assert (folder / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("name", CONVERTED)
def test_files_equal_those_of_the_converter(
    folders: Path, tmp_path: Path, name: str, quantization: str | None
) -> None:
    import_ctranslate2()
    model = load_checkpoint(name, folders)
    export_ctranslate2(model, tmp_path / "model", quantization=quantization)
    assert_same_files(tmp_path / "model", convert(folders / name, tmp_path / "ct2", quantization))


@pytest.mark.parametrize(
    "quantization", [name for name in CTRANSLATE2_QUANTIZATIONS if name != "int8"]
)
def test_every_quantization_equals_that_of_the_converter(
    folders: Path, tmp_path: Path, quantization: str
) -> None:
    import_ctranslate2()
    model = load_checkpoint("bart", folders)
    export_ctranslate2(model, tmp_path / "model", quantization=quantization)
    assert_same_files(tmp_path / "model", convert(folders / "bart", tmp_path / "ct2", quantization))


def test_half_precision_models_are_written_in_half_precision(folders: Path, tmp_path: Path) -> None:
    model = load_checkpoint("gpt2", folders).to(torch.bfloat16)
    export_ctranslate2(model, tmp_path)
    loaded = qkv.load(tmp_path)
    assert loaded.dtype == torch.bfloat16


def build_model(family: str, **changes: Any) -> qkv.Model:
    """Return a random model with a tokenizer."""
    model = qkv.build(family, **tiny.SIZES[family] | changes)
    tiny.randomize_parameters(model.net, f"{family}{changes}")
    words = " ".join(f"w{i}" for i in range(tiny.VOCAB))
    model.tokenizer = qkv.Tokenizer.train(
        [words], type="word", vocab_size=tiny.VOCAB, template="bos-eos"
    )
    return model


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "transformer": ("transformer", {}),
    "transformer-pre": ("transformer", dict(norm_position="pre", final_norm=True, norm_eps=1e-2)),
    "transformer-two-vocabularies": ("transformer", dict(
        share_embeddings=False, tie_embeddings=False, decoder_vocab_size=51, lm_bias=True,
    )),
    "transformer-computed-positions": ("transformer", dict(sinusoidal="ends", position_offset=1)),
    "bart": ("bart", {}),
    "mbart": ("mbart", {}),
    "marian": ("marian", {}),  # with a random embedding of the first token
    "t5": ("t5", {}),
    "t5-scaled": ("t5", dict(feed_forward_proj="relu", scale_decoder_outputs=True)),
    "mt5": ("t5", dict(multilingual=True, tie_embeddings=False)),
    "t5-encoder": ("t5", dict(head="encoder")),
    "gpt": ("gpt", {}),
    "gpt2": ("gpt2", dict(norm_eps=1e-3)),
    "gpt2-unscaled": ("gpt2", dict(scale_attn_weights=False, scale_attn_by_inverse_layer_idx=False)),
    "ctrl": ("ctrl", {}),
    "llama": ("llama", {}),
    "llama-biases": ("llama", dict(attention_bias=True, ffn_bias=True, head_dim=8)),
    "llama-linear": ("llama", dict(rope_parameters=dict(rope_type="linear", factor=2.0))),
    "bert": ("bert", dict(head="none", activation="gelu")),
    "distilbert": ("distilbert", dict(head="none")),
    "roberta": ("roberta", dict(head="none")),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_equal_in_ctranslate2(tmp_path: Path, name: str) -> None:
    family, changes = MODELS[name]
    model = build_model(family, **changes)
    export_ctranslate2(model, tmp_path)
    expected = compute_qkv_outputs(model)
    torch.testing.assert_close(compute_ctranslate2_outputs(tmp_path, model), expected, **TOLERANCE)
    loaded = qkv.load(tmp_path)
    torch.testing.assert_close(compute_qkv_outputs(loaded), expected, **TOLERANCE)


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("name", [name for name, row in MODELS.items() if "head" not in row[1]])
def test_generated_ids_are_equal_in_ctranslate2(tmp_path: Path, name: str, num_beams: int) -> None:
    family, changes = MODELS[name]
    model = build_model(family, **changes)
    export_ctranslate2(model, tmp_path)
    expected = generate_qkv_ids(model, num_beams)
    assert generate_ctranslate2_ids(tmp_path, model, num_beams) == expected
    assert generate_qkv_ids(qkv.load(tmp_path), num_beams) == expected


def test_a_tokenizer_without_special_tokens(tmp_path: Path) -> None:
    model = build_model("gpt2")
    model.tokenizer = qkv.Tokenizer.train(["abcdefghijk"], type="char", template="plain")
    assert model.tokenizer.bos_token is model.tokenizer.eos_token is None
    export_ctranslate2(model, tmp_path)
    expected = compute_qkv_outputs(model)
    torch.testing.assert_close(compute_ctranslate2_outputs(tmp_path, model), expected, **TOLERANCE)


def test_the_builtin_translation_model_translates_in_ctranslate2(tmp_path: Path) -> None:
    ctranslate2 = import_ctranslate2()
    model = qkv.load("builtin:translate")
    assert model.tokenizer is not None
    export_ctranslate2(model, tmp_path)
    tokens = read_tokens(tmp_path, "source")
    texts = ["Das ist ein kleines Haus.", "Ich habe heute keine Zeit, aber morgen komme ich."]
    rows = [model.tokenizer.encode(text, language=">>en<<") for text in texts]
    translator = ctranslate2.Translator(str(tmp_path), intra_threads=1)
    for settings in (dict(num_beams=1), dict(num_beams=5, length_penalty=1.4)):
        results = translator.translate_batch(
            [[tokens[i] for i in row] for row in rows],
            beam_size=settings["num_beams"],
            length_penalty=settings.get("length_penalty", 1.0),
        )
        for row, result in zip(rows, results, strict=True):
            ids = model.generate(torch.tensor([row]), **settings)[0, 1:-1].tolist()
            assert [tokens.index(token) for token in result.hypotheses[0]] == ids
    loaded = qkv.load(tmp_path)
    assert loaded.tokenizer is not None
    assert model.generation_config is not None
    assert loaded.generation_config is not None
    assert loaded.generation_config.items() >= model.generation_config.items()  # and token ids
    assert loaded.tokenizer.encode(texts[0], language=">>en<<") == rows[0]


UNSUPPORTED = {
    "albert": "layers that share their weights",
    "bert": "the head lm",
    "clip": "two towers",
    "electra": "an embedding width of 12",
    "gpt3": "the attention pattern Banded(window=3) in the decoder",
    "luong": "recurrent layers",
    "modernbert": "the attention pattern Local",
    "sparse": "the attention pattern Or",
    "switch": "a mixture of experts",
    "transformer-xl": "segment recurrence",
    "xlnet": "the relative positions of Transformer-XL",
}


@pytest.mark.parametrize("family", UNSUPPORTED)
def test_a_model_that_the_format_cannot_hold_is_an_error(tmp_path: Path, family: str) -> None:
    model = build_model(family)
    assert_error(
        lambda: export_ctranslate2(model, tmp_path / "model"),
        f"CTranslate2's format cannot hold this {family} model", UNSUPPORTED[family],
    )  # fmt: skip
    assert not (tmp_path / "model").exists()


UNSUPPORTED_CHANGES: list[tuple[str, dict[str, Any], str]] = [
    ("bert", dict(is_decoder=True, head="lm"), "the attention pattern Causal() in the encoder"),
    ("gpt2", dict(add_cross_attention=True), "cross-attention in a model without an encoder"),
    ("gpt2", dict(activation="relu2"), "the activation relu2"),
    ("gpt2", dict(position_embedding_type="alibi"), "ALiBi"),
    ("gpt2", dict(head="none"), "a decoder without the head lm"),
    ("gpt2", dict(layer_norm_eps=1e-3), "norms with different settings (layer, eps 0.001, layer, eps 1e-05)"),
    ("llama", dict(rope_parameters=dict(
        rope_type="llama3", factor=2.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=8,
    )), "rotary positions of the type llama3"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "changes", "message"), UNSUPPORTED_CHANGES)
def test_an_unsupported_argument_is_an_error(
    tmp_path: Path, family: str, changes: dict[str, Any], message: str
) -> None:
    model = build_model(family, **changes)
    assert_error(lambda: export_ctranslate2(model, tmp_path / "model"), message)
    assert not (tmp_path / "model").exists()


def test_invalid_settings_are_errors(tmp_path: Path) -> None:
    model = build_model("gpt2")
    folder = tmp_path / "model"
    assert_error(
        lambda: export_ctranslate2(model, folder, quantization="int4"),
        "quantization 'int4': expected one of int8",
    )
    model.tokenizer = None
    assert_error(lambda: export_ctranslate2(model, folder), "the model has no tokenizer")
    assert not folder.exists()


def test_missing_tokens_have_a_name(tmp_path: Path) -> None:
    model = build_model("gpt2", vocab_size=tiny.VOCAB + 2)
    export_ctranslate2(model, tmp_path)
    tokens = json.loads((tmp_path / "vocabulary.json").read_text())
    assert tokens[-3:] == ["w52", "<extra_id_0>", "<extra_id_1>"]


def test_vocabularies_of_another_model_are_removed(tmp_path: Path) -> None:
    export_ctranslate2(build_model("transformer"), tmp_path)
    (tmp_path / "source_vocabulary.txt").write_text("old")
    export_ctranslate2(build_model("gpt2"), tmp_path)
    assert [path.name for path in tmp_path.glob("*vocabulary*")] == ["vocabulary.json"]


def test_old_files_are_kept_if_writing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_model("gpt2")
    export_ctranslate2(model, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    tiny.randomize_parameters(model.net, "others")

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("qkv.export.ctranslate2.save_ctranslate2_model", fail)
    assert_error(
        lambda: export_ctranslate2(model, tmp_path), "its files are unchanged", error=OSError
    )
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_new_head_keeps_the_tokenizer(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="newly initialized"):
        source = qkv.load("builtin:classify", head="none")
    export_ctranslate2(source, tmp_path / "ct2")
    labels = ["good", "bad"]
    with pytest.warns(UserWarning, match="newly initialized"):
        model = qkv.load(tmp_path / "ct2", head="sequence-classification", label_names=labels)
    assert source.tokenizer is not None
    assert model.tokenizer is not None
    assert model.tokenizer.encode("a film") == source.tokenizer.encode("a film")
