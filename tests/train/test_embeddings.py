"""Initial token embeddings from vector files and from other models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv.cli import main
from qkv.train.embeddings import initialize_embeddings, list_token_texts
from qkv.words import WordVectors
from tests.support.errors import assert_error

TEXTS = ["the cat sat on the mat", "The dog ran", "a mat for the dog"] * 20
SIZES: dict[str, Any] = dict(width=8, depth=1, heads=2, ffn_width=16)


def build(type: str = "word", family: str = "gpt2", **sizes: Any) -> qkv.Model:
    template = "seq2seq" if family == "bart" else "bert" if type == "wordpiece" else "gpt"
    tokenizer = qkv.Tokenizer.train(
        TEXTS, type=type, vocab_size=300 if type == "byte" else 80, template=template
    )
    torch.manual_seed(0)
    model = qkv.build(family, None, vocab_size=len(tokenizer), device="cpu", **SIZES | sizes)
    model.tokenizer = tokenizer
    return model


def get_table(model: qkv.Model) -> torch.Tensor:
    weight = model.get_input_embeddings().weight
    assert isinstance(weight, torch.Tensor)
    return weight.detach().clone()


@pytest.fixture
def vector_file(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    words = ["the", "cat", "DOG", "zebra", "</s>", "##at"]
    WordVectors(words, torch.randn(len(words), 8)).save(tmp_path / "vectors.txt")
    return tmp_path / "vectors.txt"


@pytest.mark.parametrize("type", ["word", "byte", "wordpiece", "unigram", "bpe"])
def test_tokens_of_words_have_their_vectors(type: str, vector_file: Path) -> None:
    model = build(type)
    vectors = qkv.words.load(vector_file)
    before = get_table(model)
    matches = initialize_embeddings(model, str(vector_file))
    after = get_table(model)
    assert model.tokenizer is not None
    matched_ids = []
    for token_id, text in list_token_texts(model.tokenizer):
        expected = next((w for w in (text, text.lower()) if w in vectors), None)
        if expected is None:
            assert torch.equal(after[token_id], before[token_id])
        else:
            assert torch.equal(after[token_id], vectors[expected])
            matched_ids.append(token_id)
    changed = (after != before).any(1).nonzero().flatten().tolist()
    assert changed == matched_ids
    tokens = model.tokenizer.convert_ids_to_tokens(matched_ids)
    words = {token.strip("Ġ▁").removesuffix("</w>") for token in tokens}
    assert "the" in words
    assert words <= {"the", "The", "cat"}
    assert matches.num_matches == len(matched_ids)
    assert str(matches) == f"{vector_file}, {len(matched_ids)} of {len(model.tokenizer)} tokens"


def test_an_exact_word_precedes_its_lowercase_form(tmp_path: Path) -> None:
    model = build()
    WordVectors(["the", "The"], torch.eye(2, 8)).save(tmp_path / "v.bin")
    assert initialize_embeddings(model, str(tmp_path / "v.bin")).num_matches == 2
    assert model.tokenizer is not None
    for word, row in (("the", 0), ("The", 1)):
        token_id = model.tokenizer.convert_tokens_to_ids(word)
        assert token_id is not None
        assert get_table(model)[token_id].tolist() == torch.eye(2, 8)[row].tolist()


def test_the_table_of_another_model(tmp_path: Path) -> None:
    other = build()
    other.save(tmp_path / "other")
    torch.manual_seed(5)
    tokenizer = qkv.Tokenizer.train(["the cat saw a whale"] * 9, type="word", template="gpt")
    model = qkv.build("llama", None, vocab_size=len(tokenizer), device="cpu", **SIZES)
    model.tokenizer = tokenizer
    before = get_table(model)
    matches = initialize_embeddings(model, str(tmp_path / "other"))
    assert other.tokenizer is not None
    other_ids = other.tokenizer.get_vocab()
    num_equal = 0
    for token, token_id in tokenizer.get_vocab().items():
        if token in other_ids and token_id != tokenizer.pad_token_id:
            assert torch.equal(get_table(model)[token_id], get_table(other)[other_ids[token]])
            num_equal += 1
        else:
            assert torch.equal(get_table(model)[token_id], before[token_id])
    assert matches.num_matches == num_equal >= 3


def test_encoder_and_decoder_share_their_table(vector_file: Path) -> None:
    model = build(family="bart", decoder_heads=2, decoder_depth=1, decoder_ffn_width=16)
    initialize_embeddings(model, str(vector_file))
    assert model.tokenizer is not None
    token_id = model.tokenizer.convert_tokens_to_ids("the")
    expected = qkv.words.load(vector_file)["the"]
    net: Any = model.net
    for stack in (net.encoder, net.decoder):
        assert torch.equal(stack.embedding.tokens.weight[token_id], expected)


def test_unusable_sources(vector_file: Path, tmp_path: Path) -> None:
    model = build()
    before = get_table(model)
    wide = build(width=16)
    assert_error(
        lambda: initialize_embeddings(wide, str(vector_file)),
        "vectors of 8",
        "width 16",
        "model.width",
    )
    foreign = tmp_path / "foreign.txt"
    WordVectors(["日本"], torch.ones(1, 8)).save(foreign)
    assert_error(lambda: initialize_embeddings(model, str(foreign)), "none of its tokens")
    assert_error(lambda: initialize_embeddings(model, str(tmp_path / "no.bin")), "no such file")
    assert_error(lambda: initialize_embeddings(model, str(tmp_path / "no")), "no such folder")
    damaged = tmp_path / "damaged.txt"
    damaged.write_text("the 1 2\ncat 1\n")
    assert_error(lambda: initialize_embeddings(model, str(damaged)), "line 2")
    assert torch.equal(get_table(model), before)


RECIPE = """
[model]
family = "gpt2"
width = 8
depth = 1
heads = 2
embeddings = "vectors.txt"
[tokenizer]
type = "word"
vocab_size = 60
[data]
train = "texts.txt"
max_length = 8
batch_size = 4
[objective]
name = "causal-lm"
[train]
steps = 1
lr = 1e-9
"""


def test_a_recipe_says_how_many_tokens_have_vectors(
    vector_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(vector_file.parent)
    Path("texts.txt").write_text("\n".join(TEXTS))
    Path("recipe.toml").write_text(RECIPE)
    assert main(["train", "recipe.toml", "--run", "run", "--device", "cpu"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    model = qkv.load("run/last", device="cpu")
    assert model.tokenizer is not None
    assert f"embeddings vectors.txt, 3 of {len(model.tokenizer)} tokens" in output
    token_id = model.tokenizer.convert_tokens_to_ids("cat")
    assert token_id is not None
    expected = qkv.words.load("vectors.txt")["cat"]
    torch.testing.assert_close(get_table(model)[token_id], expected, atol=1e-6, rtol=0)


def test_embeddings_of_an_adapter_are_refused(
    vector_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(vector_file.parent)
    build().save("base")
    Path("texts.txt").write_text("\n".join(TEXTS))
    recipe = RECIPE.replace('family = "gpt2"\nwidth = 8\ndepth = 1\nheads = 2', 'load = "base"')
    recipe = recipe.replace('[tokenizer]\ntype = "word"\nvocab_size = 60\n', "") + "[lora]\nr = 2\n"
    Path("recipe.toml").write_text(recipe)
    assert main(["train", "recipe.toml", "--run", "run", "--device", "cpu"]) == 2
    assert "model.embeddings with the table lora" in capsys.readouterr().err
