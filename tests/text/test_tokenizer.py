"""Tokenizer: encode, decode, tokens and ids equal transformers'; models read what a call returns."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import qkv
from qkv.text import Tokenizer
from tests.support import compare, tiny
from tests.support.text_oracle import TOKENIZERS, load_reference
from tests.text.conftest import LoadBoth, call_reference

TEXTS = [
    "The quick brown fox, über die Straße",
    "a",
    "one two three four five six seven eight nine ten, there and then",
    "Run, rabbit run.",
]
SECOND_TEXTS = ["the lazy dog", "sleeps on the other side of the hill, quite a lot", "x", "b c"]


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2-bos", "t5", "xlnet", "ctrl", "marian"])
def test_encode_and_decode_equal_theirs(name: str, load_both: LoadBoth) -> None:
    tokenizer, reference = load_both(name)
    assert tokenizer.encode(TEXTS[2]) == reference.encode(TEXTS[2])
    for text_pair in (None, SECOND_TEXTS[0]):
        ids = tokenizer.encode(TEXTS[2], text_pair, truncation=True, max_length=7)
        if name != "ctrl" or text_pair is None:  # an odd number of tokens: see MAX_LENGTHS
            assert ids == reference.encode(TEXTS[2], text_pair, truncation=True, max_length=7)
        assert ids == tokenizer(TEXTS[2], text_pair, truncation=True, max_length=7).input_ids
    rows = [tokenizer.encode(text) for text in TEXTS]
    for skip in (False, True):
        expected = reference.batch_decode(rows, skip_special_tokens=skip)
        assert tokenizer.batch_decode(rows, skip_special_tokens=skip) == expected
        tensors = [torch.tensor(row) for row in rows]
        assert tokenizer.batch_decode(tensors, skip_special_tokens=skip) == expected
        for row, tensor, text in zip(rows, tensors, expected, strict=True):
            for ids_of_row in (row, tuple(row), tensor, np.array(row)):
                assert tokenizer.decode(ids_of_row, skip_special_tokens=skip) == text
    assert tokenizer.batch_decode(torch.tensor([rows[1] * 2] * 3)) == (
        reference.batch_decode([rows[1] * 2] * 3)
    )
    assert (
        tokenizer.decode(rows[0][0])
        == tokenizer.decode(tensors[0][0])
        == (reference.decode(rows[0][0]))
    )
    tokens = reference.convert_ids_to_tokens(rows[0])
    assert tokenizer.convert_ids_to_tokens(rows[0]) == tokens
    assert tokenizer.convert_ids_to_tokens(tensors[0]) == tokens
    assert tokenizer.convert_ids_to_tokens(rows[0][0]) == tokens[0]
    assert tokenizer.convert_tokens_to_ids(tokens) == rows[0]
    assert tokenizer.convert_tokens_to_ids(tokens[0]) == rows[0][0]
    assert tokenizer.convert_tokens_to_ids("no such token") == (
        reference.convert_tokens_to_ids("no such token")
    )


@pytest.mark.parametrize("name", TOKENIZERS)
def test_special_tokens_and_vocabulary_equal_theirs(name: str, load_both: LoadBoth) -> None:
    tokenizer, reference = load_both(name)
    for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"):
        assert getattr(tokenizer, f"{role}_token") == getattr(reference, f"{role}_token")
    assert {*tokenizer.all_special_tokens} >= {*reference.special_tokens_map.values()}
    assert (
        tokenizer.convert_tokens_to_ids(tokenizer.all_special_tokens) == tokenizer.all_special_ids
    )
    assert len({*tokenizer.all_special_ids}) == len(tokenizer.all_special_ids)
    assert tokenizer.get_vocab() == reference.get_vocab()


def test_padding_needs_a_pad_token(tmp_path: Path) -> None:
    TOKENIZERS["gpt2"][0](tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    for text in (TEXTS, TEXTS[0]):
        with pytest.raises(ValueError, match=r"no pad token; set one, such as tokenizer.pad_token"):
            tokenizer(text, padding=True)
    with pytest.raises(ValueError, match=r"pad_token '\[PAD\]': expected a token of the vocab"):
        tokenizer.pad_token = "[PAD]"
    assert tokenizer.pad_token_id is None
    tokenizer.pad_token = tokenizer.eos_token
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    assert tokenizer(TEXTS[:2], padding=True).input_ids[1][-1] == tokenizer.eos_token_id
    tokenizer.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").pad_token == "<|endoftext|>"
    assert load_reference("GPT2Tokenizer", tmp_path / "saved").pad_token == "<|endoftext|>"
    tokenizer.pad_token = None
    assert "pad" not in tokenizer.special_token_ids


def test_decode_and_batch_decode_name_each_other(load_both: LoadBoth) -> None:
    tokenizer, _ = load_both("bert")
    with pytest.raises(ValueError, match="one row; use batch_decode for a batch"):
        tokenizer.decode([[5, 6]])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="a batch of rows; use decode for one row"):
        tokenizer.batch_decode(torch.tensor([5, 6]))


def test_torch_is_imported_only_for_tensors() -> None:
    script = (
        "import sys; from qkv import Tokenizer; t = Tokenizer.train(['a b c'], vocab_size=300);"
        " t('a b'); t.decode([1]); assert not {'torch', 'numpy'} & sys.modules.keys();"
        " t('a b', return_tensors='pt'); assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


# Family -> small tokenizer, changes of the tiny model.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {}), "distilbert": ("bert", {}), "electra": ("bert", {}), "albert": ("albert", {}),
    "roberta": ("roberta", {}), "modernbert": ("modernbert", {}), "xlnet": ("xlnet", {}),
    "gpt": ("gpt", {}), "gpt2": ("gpt2", {}), "gpt3": ("gpt2", {}), "sparse": ("gpt2", {}),
    "ctrl": ("ctrl", {}), "llama": ("llama", {}), "transformer-xl": ("gpt2", dict(cutoffs=(50, 90))),
    "t5": ("t5", {}), "switch": ("t5", {}), "bart": ("bart", {}), "mbart": ("mbart", {}),
    "marian": ("marian", {}), "transformer": ("marian", {}), "clip": ("clip", {}),
}  # fmt: skip
# Encoder-decoders that do not shift input_ids themselves.
READ_DECODER_INPUTS = {"t5", "switch", "marian", "transformer"}


@pytest.mark.parametrize("family", MODELS)
def test_models_read_what_both_tokenizers_return(family: str, load_both: LoadBoth) -> None:
    name, changes = MODELS[family]
    tokenizer, reference = load_both(name)
    if family == "clip":
        changes = dict(eos_token_id=tokenizer.eos_token_id)
    model = tiny.build(family, dtype=torch.float32, vocab_size=len(tokenizer), **changes)
    for text in (TEXTS[3], TEXTS[2:]):
        padding = tokenizer.pad_token is not None
        if isinstance(text, list) and not padding:
            continue
        outputs = []
        options: dict[str, Any] = dict(padding=padding, return_tensors="pt")
        for batch in (
            tokenizer(text, **options),
            call_reference(tokenizer, reference, text, **options),
        ):
            more = {}
            if family in READ_DECODER_INPUTS:
                more["decoder_input_ids"] = batch["input_ids"][:, :3]
            outputs.append(model(**batch, **more))
        assert outputs[0]
        for field, output in outputs[0].items():
            compare.assert_bitwise_equal(output, outputs[1][field], because=compare.SAME_KERNELS)


@pytest.mark.parametrize("name", ["xlm-roberta", "camembert"])
def test_a_folder_with_only_a_sentencepiece_model_opens(
    name: str, load_both: LoadBoth, tmp_path: Path
) -> None:
    _, reference = load_both(name)
    config = transformers.AutoConfig.for_model(
        name, vocab_size=len(reference), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=64, pad_token_id=reference.pad_token_id,
        bos_token_id=reference.bos_token_id, eos_token_id=reference.eos_token_id,
    )  # fmt: skip
    network = transformers.AutoModelForMaskedLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0.0, 0.3)
    network.save_pretrained(tmp_path)
    shutil.copy(Path(reference.name_or_path) / "sentencepiece.bpe.model", tmp_path)
    model = qkv.load(tmp_path)
    assert model.tokenizer is not None
    inputs = model.tokenizer(TEXTS[1:], SECOND_TEXTS[1:], padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = network(
            **reference(TEXTS[1:], SECOND_TEXTS[1:], padding=True, return_tensors="pt")
        )
    mask = inputs.attention_mask.bool()
    torch.testing.assert_close(
        model(**inputs).logits[mask], expected.logits[mask], atol=2e-5, rtol=1e-4
    )
    assert qkv.task("fill", model)(f"a {model.tokenizer.mask_token} b").candidates


def test_pairs_of_a_model_without_token_types(load_both: LoadBoth) -> None:
    tokenizer, _ = load_both("bert")
    model = tiny.build("modernbert", dtype=torch.float32, vocab_size=len(tokenizer))
    batch = tokenizer(TEXTS, SECOND_TEXTS, padding=True, return_tensors="pt")
    assert batch.token_type_ids.max() == 1
    expected = model(batch.input_ids, attention_mask=batch.attention_mask)
    compare.assert_bitwise_equal(
        model(**batch).logits, expected.logits, because=compare.SAME_KERNELS
    )


def test_token_types_reach_the_model(load_both: LoadBoth) -> None:
    tokenizer, _ = load_both("bert")
    model = tiny.build("bert", dtype=torch.float32, vocab_size=len(tokenizer))
    batch = tokenizer(TEXTS[0], SECOND_TEXTS[0], return_tensors="pt")
    other = model(batch.input_ids, attention_mask=batch.attention_mask)
    assert not torch.allclose(model(**batch).logits, other.logits)


def test_generate_reads_a_batch_encoding(load_both: LoadBoth) -> None:
    tokenizer, _ = load_both("gpt2")
    model = tiny.build("gpt2", dtype=torch.float32, vocab_size=len(tokenizer))
    batch = tokenizer(TEXTS[:2], padding=True, return_tensors="pt")
    alone = tokenizer(TEXTS[1], return_tensors="pt")
    generated = model.generate(**batch, max_new_tokens=4, eos_token_id=None)
    assert generated.shape[0] == 2
    new_ids = model.generate(**alone, max_new_tokens=4, eos_token_id=None)[0]
    assert new_ids.tolist() == generated[1, : len(new_ids)].tolist()
