"""Tokenizers beside CTranslate2 models: files of Hugging Face, SentencePiece, BPE codes, or none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv.export.ctranslate2 import export_ctranslate2
from tests.support import tiny
from tests.support.ctranslate2_files import build_translator, write_model
from tests.support.errors import assert_error
from tests.support.sentencepiece_files import TEXTS, train_sentencepiece

TOKENS_ONLY = "texts are read as tokens of the dictionary, separated by spaces"


def write_tokenizer_files(folder: Path, files: dict[str, Any]) -> qkv.Tokenizer:
    """Write text or JSON files and return their tokenizer."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return qkv.Tokenizer.load(folder)


@pytest.fixture(scope="module")
def marian_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Marian model with source.spm, target.spm and vocab.json."""
    folder = tmp_path_factory.mktemp("marian")
    path, pieces = train_sentencepiece(folder / "spm", 40)
    tokens = [
        "</s>",
        "<unk>",
        *(piece for piece in pieces if piece not in ("<unk>", "<s>", "</s>")),
    ]
    for side in ("source", "target"):
        shutil.copyfile(path, folder / f"{side}.spm")
    vocabulary = {token: i for i, token in enumerate([*tokens, "<pad>"])}
    tokenizer = write_tokenizer_files(
        folder, {"vocab.json": vocabulary, "tokenizer_config.json": {"tokenizer_class": "MarianTokenizer"}}
    )  # fmt: skip
    pad = vocabulary["<pad>"]
    model = qkv.build(
        "marian", **tiny.SIZES["marian"]
        | dict(vocab_size=pad + 1, pad_token_id=pad, decoder_start_token_id=pad, eos_token_id=0)
    )  # fmt: skip
    tiny.randomize_parameters(model.net, "marian")
    model.get_input_embeddings().weight.data[pad] = 0  # type: ignore[operator]
    model.tokenizer = tokenizer
    export_ctranslate2(model, folder / "ctranslate2")
    model.save(folder / "saved")
    return folder


def test_hugging_face_files_are_read(marian_folder: Path) -> None:
    model = qkv.load(marian_folder / "ctranslate2")
    original = qkv.load(marian_folder / "saved")
    assert_same_translations(model, original)
    tokens = json.loads((marian_folder / "ctranslate2" / "shared_vocabulary.json").read_text())
    assert "<pad>" not in tokens


def assert_same_translations(model: qkv.Model, original: qkv.Model) -> None:
    assert model.tokenizer is not None
    assert original.tokenizer is not None
    for text in TEXTS:
        ids = original.tokenizer.encode(text)
        assert ids[-1] == original.tokenizer.eos_token_id
        assert model.tokenizer.encode(text) == ids
        assert model.tokenizer.encode(text, is_target=True) == ids
        assert model.tokenizer.decode(ids) == original.tokenizer.decode(ids)
        generated = model.generate(torch.tensor([ids]), max_new_tokens=8)
        assert torch.equal(generated, original.generate(torch.tensor([ids]), max_new_tokens=8))
    assert model.tokenizer.special_token_ids == original.tokenizer.special_token_ids


def test_sentencepiece_models_with_the_vocabulary_of_the_model(
    marian_folder: Path, tmp_path: Path
) -> None:
    for name in ("model.bin", "shared_vocabulary.json", "config.json", "source.spm", "target.spm"):
        shutil.copyfile(marian_folder / "ctranslate2" / name, tmp_path / name)
    model = qkv.load(tmp_path)
    assert_same_translations(model, qkv.load(marian_folder / "saved"))
    model.save(tmp_path / "saved")
    assert_same_translations(qkv.load(tmp_path / "saved"), model)


def write_translator(folder: Path, tokens: list[str], **config: Any) -> Path:
    """Write an encoder-decoder with a shared vocabulary that does not start from zero."""
    variables, aliases = build_translator(share="all", bias=False)
    width = variables["decoder/embeddings/weight"].shape[1]
    variables["decoder/embeddings/weight"] = torch.randn(len(tokens), width)
    write_model(folder, variables, aliases)
    (folder / "shared_vocabulary.json").write_text(json.dumps(tokens))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("add_source_eos", [False, True])
@pytest.mark.parametrize("folder_name", ["model", "translator"])
def test_one_sentencepiece_model(tmp_path: Path, folder_name: str, add_source_eos: bool) -> None:
    """A source has an end token only if CTranslate2 adds it, a target always has one.

    In a package of Argos Translate, the tokenizer lies beside the folder `model`."""
    path, pieces = train_sentencepiece(tmp_path / "spm", 40)
    folder = tmp_path / folder_name
    write_translator(folder, ["<blank>", *pieces], add_source_eos=add_source_eos)
    path.rename((tmp_path if folder_name == "model" else folder) / "sentencepiece.model")
    tokenizer = qkv.load(folder).tokenizer
    assert tokenizer is not None
    ids = tokenizer.encode(TEXTS[0])
    assert tokenizer.decode(ids, skip_special_tokens=True) == TEXTS[0]
    assert (ids[-1] == tokenizer.eos_token_id) == add_source_eos
    assert tokenizer.encode(TEXTS[0], is_target=True)[-1] == tokenizer.eos_token_id
    assert tokenizer.pad_token == "<blank>"
    tokenizer.save(tmp_path / "saved")
    assert qkv.Tokenizer.load(tmp_path / "saved").encode(TEXTS[0]) == ids


def test_bpe_codes(tmp_path: Path) -> None:
    tokens = ["<blank>", "<s>", "</s>", "c@@", "at", "a@@", "t", "sat", "s@@", "<unk>"]
    write_translator(tmp_path, tokens)
    (tmp_path / "bpe.codes").write_text("#version: 0.2\na t</w>\ns at</w>\n")
    tokenizer = qkv.load(tmp_path).tokenizer
    assert tokenizer is not None
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("cat sat t")) == [
        "c@@",
        "at",
        "sat",
        "t",
    ]
    assert tokenizer.decode([3, 4, 7]) == "cat sat"


def test_without_files_texts_are_tokens_of_the_vocabularies(tmp_path: Path) -> None:
    variables, aliases = build_translator()
    source = [f"s{i}" for i in range(len(variables["encoder/embeddings_0/weight"]) - 1)]
    target = [f"t{i}" for i in range(len(variables["decoder/embeddings/weight"]) - 3)]
    write_model(tmp_path, variables, aliases)
    (tmp_path / "source_vocabulary.txt").write_text("\n".join(["</s>", *source[1:], "<unk>"]))
    (tmp_path / "target_vocabulary.txt").write_text("\n".join([*target, "<s>", "</s>", "<unk>"]))
    with pytest.warns(UserWarning, match=TOKENS_ONLY):
        model = qkv.load(tmp_path)
    tokenizer = model.tokenizer
    assert tokenizer is not None
    assert tokenizer.encode("s3 s1 </s> x") == [3, 1, 0, len(source)]
    assert tokenizer.encode("t3 t1", is_target=True) == [3, 1, len(target) + 1]
    assert tokenizer.decode([3, 1, len(target) + 1], skip_special_tokens=True) == "t3 t1"
    assert model.config["eos_token_id"] == tokenizer.eos_token_id == len(target) + 1


def test_without_files_texts_are_tokens_of_one_vocabulary(tmp_path: Path) -> None:
    model = qkv.build("gpt2", **tiny.SIZES["gpt2"])
    words = " ".join(f"w{i}" for i in range(tiny.VOCAB))
    model.tokenizer = qkv.Tokenizer.train(
        [words], type="word", vocab_size=tiny.VOCAB, template="gpt"
    )
    export_ctranslate2(model, tmp_path)
    expected = model.tokenizer.encode("w7 w3")
    for path in tmp_path.glob("*token*"):
        path.unlink()
    with pytest.warns(UserWarning, match=TOKENS_ONLY):
        tokenizer = qkv.load(tmp_path).tokenizer
    assert tokenizer is not None
    assert tokenizer.encode("w7 w3") == expected
    assert tokenizer.decode(expected) == "w7 w3"
    assert tokenizer.eos_token_id == model.tokenizer.eos_token_id


def test_tokens_of_the_config(tmp_path: Path) -> None:
    tokens = ["<blank>", "[S]", "[/S]", "a", "b", "[?]"]
    config = dict(bos_token="[S]", eos_token="[/S]", unk_token="[?]", decoder_start_token="b")
    write_translator(tmp_path, tokens, **config, add_source_bos=True)
    with (
        pytest.warns(UserWarning, match=TOKENS_ONLY),
        pytest.warns(UserWarning, match=r"add_source_bos is set; begin every source with \[S\]"),
    ):
        model = qkv.load(tmp_path)
    assert model.tokenizer is not None
    assert model.tokenizer.special_token_ids == dict(bos=1, eos=2, unk=5, pad=0, sep=2)
    assert model.tokenizer.encode("[S] a b c") == [1, 3, 4, 5]
    assert model.args["decoder_start_token_id"] == 4
    write_translator(tmp_path, tokens, eos_token=["[/S]"])
    assert_error(lambda: qkv.load(tmp_path), "eos_token is ['[/S]'], expected a token")


def test_a_token_beyond_the_embedding_has_no_id(tmp_path: Path) -> None:
    """CTranslate2 appends an unknown token that the vocabulary lacks, as Llama's, which is empty."""
    write_translator(tmp_path, ["<s>", "</s>", "a"], unk_token="")
    with pytest.warns(UserWarning, match="no unk token '' in a dictionary"):
        model = qkv.load(tmp_path)
    assert "unk_token_id" not in model.config


def test_a_vocabulary_of_another_size_is_not_used(tmp_path: Path) -> None:
    write_translator(tmp_path, [f"w{i}" for i in range(30)])
    (tmp_path / "shared_vocabulary.json").write_text(json.dumps(["<s>", "</s>", "<unk>"]))
    with pytest.warns(UserWarning, match="a source dictionary of 3 tokens, expected 30"):
        model = qkv.load(tmp_path)
    assert model.tokenizer is None
