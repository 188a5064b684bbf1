"""Marian's own models (.npz): small ones, written here, agree with Marian of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml  # type: ignore[import-untyped]
from sentencepiece import SentencePieceProcessor
from torch import Tensor

import qkv
from qkv.model.foreign.marian import is_marian, load_marian
from tests.support.errors import assert_error
from tests.support.marian_files import DECODER_YML, build_marian, to_marian, write_npz
from tests.support.sentencepiece_files import train_sentencepiece

TOLERANCE: dict[str, Any] = dict(atol=2e-5, rtol=1e-4)
WORDS = """</s> <unk> ▁a b " \\ ' # : - é null true 12 1.5 ~ ? ! ▁ >>fra<< [ ] { } & * | > % @ `""".split()
SIZE = len(WORDS)
TARGET_SIZE = SIZE + 3


def compute_logits(model: Any, pad: int) -> Tensor:
    source = torch.tensor([[5, 9, 17, 4, 0], [7, 12, 0, pad, pad]])
    target = torch.tensor([[pad, 8, 9], [pad, 3, 1]])
    mask = source != pad
    with torch.no_grad():
        return model(source, attention_mask=mask.long(), decoder_input_ids=target)["logits"]


def write_vocabulary(path: Path, words: list[str]) -> None:
    path.write_text(yaml.safe_dump({word: i for i, word in enumerate(words)}))


def write_opus(folder: Path) -> Any:
    """Write a folder like OPUS-MT's, without SentencePiece; return the model of transformers."""
    reference = build_marian(SIZE)
    name = "opus.spm32k-spm32k.transformer-align.model1.npz.best-perplexity.npz"
    write_npz(folder / name, to_marian(reference, SIZE), (SIZE, SIZE))
    write_vocabulary(folder / "opus.vocab.yml", WORDS)
    vocabularies = dict(source="/home/train/opus.vocab.yml", target="opus.vocab.yml")
    (folder / "decoder.yml").write_text(DECODER_YML.format(model=name, **vocabularies))
    return reference


@pytest.mark.filterwarnings("ignore:.*no BPE codes")
def test_an_opus_folder_agrees_with_transformers(tmp_path: Path) -> None:
    reference = write_opus(tmp_path)
    assert is_marian(str(tmp_path))
    model = qkv.load(tmp_path)
    assert model.family.name == "marian"
    torch.testing.assert_close(
        compute_logits(model, SIZE), compute_logits(reference, SIZE), **TOLERANCE
    )
    assert model.generation_config == {
        "eos_token_id": 0, "pad_token_id": SIZE, "decoder_start_token_id": SIZE,
        "max_length": 512, "num_beams": 6, "length_penalty": 1.0,
    }  # fmt: skip
    tokenizer = model.tokenizer
    assert tokenizer is not None
    assert tokenizer.encode("null \\ 1.5 ~ other") == [11, 5, 14, 15, 1, 0]
    assert [tokenizer.convert_tokens_to_ids(word) for word in WORDS] == list(range(SIZE))
    ids = torch.tensor([[5, 9, 17, 0]])
    settings: dict[str, Any] = dict(num_beams=2, max_new_tokens=10, no_repeat_ngram_size=2)
    assert model.generate(ids, **settings).tolist() == reference.generate(ids, **settings).tolist()
    assert SIZE not in model.generate(ids, max_new_tokens=30, do_sample=True)[0, 1:]  # the pad
    model.save(tmp_path / "saved")
    saved = qkv.load(tmp_path / "saved")
    torch.testing.assert_close(
        compute_logits(saved, SIZE), compute_logits(reference, SIZE), **TOLERANCE
    )
    assert saved.tokenizer is not None
    assert saved.tokenizer.encode("null b") == tokenizer.encode("null b")


def test_both_sides_may_have_a_vocabulary_of_their_own(tmp_path: Path) -> None:
    reference = build_marian(SIZE, TARGET_SIZE)
    tensors = to_marian(reference, SIZE, TARGET_SIZE)
    changes = {"tied_embeddings_all": False, "tied_embeddings": True}
    write_npz(tmp_path / "model.npz", tensors, (SIZE, TARGET_SIZE), **changes)
    write_vocabulary(tmp_path / "vocab.de.yml", WORDS)
    target_words = [*WORDS, "x", "y", "z"]
    (tmp_path / "vocab.en.json").write_text(json.dumps({w: i for i, w in enumerate(target_words)}))
    (tmp_path / "decoder.yml").write_text(
        DECODER_YML.format(model="model.npz", source="vocab.de.yml", target="vocab.en.json")
    )
    with pytest.warns(UserWarning, match="texts are read as tokens"):
        model = qkv.load(tmp_path)
    torch.testing.assert_close(
        compute_logits(model, TARGET_SIZE), compute_logits(reference, TARGET_SIZE), **TOLERANCE
    )
    assert model.tokenizer is not None
    assert model.tokenizer.decode([SIZE, SIZE + 2]) == "x z"
    task = qkv.task("translate", model, max_new_tokens=5)
    assert len(task("▁a b").tokens) == 5


def test_an_output_projection_of_its_own_is_read(tmp_path: Path) -> None:
    reference = build_marian(SIZE)
    with torch.no_grad():
        weight = torch.randn_like(reference.lm_head.weight)
        weight[SIZE:] = 0.0
        reference.lm_head.weight = torch.nn.Parameter(weight)
    for name, projection in (
        ("decoder_ff_logit_out_Wt", weight[:SIZE]),
        ("decoder_ff_logit_out_W", weight[:SIZE].T.contiguous()),  # the oldest versions
    ):
        tensors = to_marian(reference, SIZE) | {name: projection}
        path = write_npz(tmp_path / "model.npz", tensors, (SIZE, SIZE), tied_embeddings_all=False)
        with pytest.warns(UserWarning, match="without a tokenizer"):
            model = load_marian(path)
        torch.testing.assert_close(
            compute_logits(model, SIZE), compute_logits(reference, SIZE), **TOLERANCE
        )


def compute_pre_norm_states(tensors: dict[str, Tensor], ids: list[int]) -> Tensor:
    """Return the encoder states of a model with pre-norm, step by step as marian-dev computes them."""
    width, heads = 24, 4
    rates = torch.exp(torch.arange(12) * -(torch.log(torch.tensor(10000.0)) / 11))
    angles = torch.arange(len(ids))[:, None] * rates
    x = tensors["Wemb"][ids] * width**0.5 + torch.cat([angles.sin(), angles.cos()], 1)

    def norm(x: Tensor, name: str) -> Tensor:
        scale, bias = tensors[name.replace("*", "scale")], tensors[name.replace("*", "bias")]
        return torch.nn.functional.layer_norm(x, (width,), scale[0], bias[0], 1e-6)

    for layer in ("encoder_l1", "encoder_l2"):
        h = norm(x, f"{layer}_self_Wo_ln_*_pre")
        q, k, v = (
            (h @ tensors[f"{layer}_self_W{name}"] + tensors[f"{layer}_self_b{name}"])
            .reshape(len(ids), heads, -1)
            .transpose(0, 1)
            for name in "qkv"
        )
        weights = (q @ k.transpose(1, 2) / (width // heads) ** 0.5).softmax(-1)
        h = (weights @ v).transpose(0, 1).reshape(len(ids), width)
        x = x + h @ tensors[f"{layer}_self_Wo"] + tensors[f"{layer}_self_bo"]
        h = norm(x, f"{layer}_ffn_ffn_ln_*_pre") @ tensors[f"{layer}_ffn_W1"]
        h = torch.relu(h + tensors[f"{layer}_ffn_b1"])
        x = x + h @ tensors[f"{layer}_ffn_W2"] + tensors[f"{layer}_ffn_b2"]
    return norm(x, "encoder_top_ln_*")


def test_norms_before_the_sublayers_are_read(tmp_path: Path) -> None:
    tensors = {
        f"{name}_pre" if "_ln_" in name else name: x
        for name, x in to_marian(build_marian(SIZE), SIZE).items()
    }
    for stack in ("encoder", "decoder"):
        tensors[f"{stack}_top_ln_scale"] = torch.randn(1, 24)
        tensors[f"{stack}_top_ln_bias"] = torch.randn(1, 24)
    settings = dict(
        transformer_preprocess="n", transformer_postprocess="da", transformer_postprocess_top="n",
        transformer_ffn_activation="relu",
    )  # fmt: skip
    path = write_npz(tmp_path / "model.npz", tensors, (SIZE, SIZE), **settings)
    with pytest.warns(UserWarning, match="without a tokenizer"):
        model = load_marian(path)
    ids = [5, 9, 17, 4, 0]
    with torch.no_grad():
        outputs = model(torch.tensor([ids]), decoder_input_ids=torch.tensor([[SIZE, 3]]))
    states = outputs["encoder_last_hidden_state"][0]
    torch.testing.assert_close(states, compute_pre_norm_states(tensors, ids), **TOLERANCE)


def test_sentencepiece_vocabularies_and_models_are_read(tmp_path: Path) -> None:
    spm, pieces = train_sentencepiece(
        tmp_path / "spm", 40, bos_id=-1, eos_id=0, unk_id=1, pad_id=-1
    )
    reference = build_marian(len(pieces))
    sizes = (len(pieces), len(pieces))
    processor = SentencePieceProcessor(model_file=str(spm))
    text = "the cat sat on the mat , zebra"
    for name in ("vocab", "opus"):  # the vocabulary is a model, or models lie beside a vocabulary
        folder = tmp_path / name
        write_npz(folder / "model.npz", to_marian(reference, sizes[0]), sizes)
        if name == "vocab":
            (folder / "vocab.deen.spm").write_bytes(spm.read_bytes())
        else:
            write_vocabulary(folder / "opus.vocab.yml", pieces)
            for side in ("source", "target"):
                (folder / f"{side}.spm").write_bytes(spm.read_bytes())
        model = qkv.load(folder)
        tokenizer = model.tokenizer
        assert tokenizer is not None
        assert tokenizer.encode(text) == [*processor.encode(text), 0]
        ids = processor.encode("the dog sat there")
        assert tokenizer.decode(ids) == "the dog sat there"
        assert tokenizer.pad_token_id == len(pieces)
        assert qkv.task("translate", model, max_new_tokens=4)("the cat").tokens
        model.save(tmp_path / "saved")
        saved = qkv.load(tmp_path / "saved").tokenizer
        assert saved is not None
        assert saved.encode(text) == tokenizer.encode(text)


UNSUPPORTED: dict[str, Any] = {
    "type": "s2s", "right_left": True, "transformer_decoder_autoreg": "rnn",
    "transformer_postprocess": "dhn", "transformer_ffn_activation": "leakyrelu",
    "transformer_ffn_depth": 3, "transformer_train_positions": True,
    "transformer_tied_layers": [1, 1], "transformer_heads": 5, "transformer_no_projection": True,
}  # fmt: skip


@pytest.mark.parametrize("key", UNSUPPORTED)
def test_an_unsupported_setting_is_an_error(tmp_path: Path, key: str) -> None:
    tensors = to_marian(build_marian(SIZE), SIZE)
    path = write_npz(tmp_path / "model.npz", tensors, (SIZE, SIZE), **{key: UNSUPPORTED[key]})
    words = {"transformer_heads": "5 heads", "transformer_postprocess": "-postprocess"}
    assert_error(lambda: load_marian(path), path, words.get(key, key.replace("_", "-")))


def test_files_that_do_not_fit_are_errors(tmp_path: Path) -> None:
    tensors = to_marian(build_marian(SIZE), SIZE)
    path = tmp_path / "model.npz"
    write_npz(path, tensors | {"Wtype": torch.ones(2, 24)}, (SIZE, SIZE))
    assert_error(lambda: qkv.load(path), "Wtype unknown")
    short = {name: x for name, x in tensors.items() if name != "encoder_l2_self_Wq"}
    write_npz(path, short, (SIZE, SIZE))
    with pytest.warns(UserWarning, match="without a tokenizer"):
        assert_error(
            lambda: qkv.load(path), "model.encoder.layers.1.self_attn.q_proj.weight is missing"
        )
    write_npz(path, tensors, (SIZE, SIZE))
    write_npz(tmp_path / "model2.npz", tensors, (SIZE, SIZE))
    path.rename(tmp_path / "model1.npz")
    assert_error(lambda: qkv.load(tmp_path), "several .npz files (model1.npz, model2.npz)")
    (tmp_path / "vocab.yml").write_text("a: 0\nb: 2\n")
    assert_error(lambda: qkv.load(tmp_path / "model1.npz"), "vocab.yml", "ids are not 0 to 1")
    (tmp_path / "config.json").write_text("{}")
    assert not is_marian(tmp_path)
