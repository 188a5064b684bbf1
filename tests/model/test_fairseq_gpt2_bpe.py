"""RoBERTa and BART of fairseq with the files of GPT-2's BPE: ids and texts equal transformers'."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import qkv
from tests.support.errors import assert_error
from tests.support.fairseq_files import build_roberta, to_fairseq, write_fairseq
from tests.support.fairseq_translation import (
    BART_SETTINGS,
    WIDTH,
    to_fairseq_bart_state,
    write_checkpoint,
    write_dictionary,
)
from tests.support.text_oracle import DIFFICULT_TEXTS, load_reference, write_bpe, write_gpt2

NUM_UNUSED_WORDS = 3  # of the published dictionaries, which a multiple of 8 makes faster


def write_bpe_files(folder: Path, other_folder: Path) -> tuple[Any, int]:
    """Write encoder.json, vocab.bpe and dict.txt; return transformers' tokenizer and the size of the
    dictionary.

    The words of the dictionary are GPT-2's ids in another order, as by their frequency."""
    write_gpt2(other_folder)
    vocabulary = json.loads((other_folder / "vocab.json").read_text())
    merges = (other_folder / "merges.txt").read_text()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "encoder.json").write_text(json.dumps(vocabulary))
    (folder / "vocab.bpe").write_text(merges)
    tokens = [*vocabulary]
    random.Random(1).shuffle(tokens)
    unused = [f"madeupword{i:04}" for i in range(NUM_UNUSED_WORDS)]
    write_dictionary(folder / "dict.txt", [str(vocabulary[token]) for token in tokens] + unused)
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    pairs = [tuple(line.split(" ")) for line in merges.splitlines()[1:]]
    write_bpe(other_folder, [*special, *tokens, *unused, "<mask>"], pairs)  # type: ignore[arg-type]
    for name in ("config.json", "tokenizer_config.json"):
        (other_folder / name).unlink()
    return load_reference("RobertaTokenizer", other_folder), len(special + tokens + unused)


def write_bart(folder: Path, vocab_size: int, **changes: Any) -> Any:
    """Write a checkpoint of a small BART; return transformers' model."""
    config = transformers.BartConfig(
        vocab_size=vocab_size, d_model=WIDTH, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=40,
        decoder_ffn_dim=40, encoder_attention_heads=4, decoder_attention_heads=4,
        max_position_embeddings=200, forced_eos_token_id=None,
    )  # fmt: skip
    reference = transformers.BartForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.normal_(0.0, 0.3)
    state = to_fairseq_bart_state(reference)
    write_checkpoint(folder, state, arch="bart_base", **BART_SETTINGS, **changes)
    return reference


def assert_tokenizers_agree(tokenizer: qkv.Tokenizer | None, reference: Any) -> None:
    assert tokenizer is not None
    for text in DIFFICULT_TEXTS:
        ids = tokenizer.encode(text)
        assert ids == reference.encode(text)
        assert tokenizer.decode(ids) == reference.decode(ids)
    assert tokenizer.encode("a b", "c") == reference.encode("a b", "c")
    roles = ("bos", "eos", "unk", "sep", "pad", "cls")
    for name in (f"{role}_token_id" for role in roles):
        assert getattr(tokenizer, name) == getattr(reference, name), name


def test_tokenizer_of_bart(tmp_path: Path) -> None:
    folder = tmp_path / "bart"
    reference_tokenizer, size = write_bpe_files(folder, tmp_path / "hf")
    reference = write_bart(folder, size + 1)
    model = qkv.load(folder)
    assert_tokenizers_agree(model.tokenizer, reference_tokenizer)
    assert model.tokenizer is not None
    assert model.tokenizer.mask_token_id == reference_tokenizer.mask_token_id == size
    inputs = model.tokenizer("The quick <mask> fox", return_tensors="pt")
    settings: dict[str, Any] = dict(max_new_tokens=8, num_beams=2)
    generated = model.generate(**inputs, **settings)
    expected = reference.generate(
        **reference_tokenizer("The quick <mask> fox", return_tensors="pt"), **settings
    )
    assert generated.tolist() == expected.tolist()
    model.save(tmp_path / "saved")
    assert_tokenizers_agree(qkv.load(tmp_path / "saved").tokenizer, reference_tokenizer)


def test_fine_tuned_bart_has_two_dictionaries_and_no_mask(tmp_path: Path) -> None:
    folder = tmp_path / "bart"
    reference_tokenizer, size = write_bpe_files(folder, tmp_path / "hf")
    write_bart(folder, size, source_lang="source", target_lang="target")
    for side in ("source", "target"):
        (folder / f"dict.{side}.txt").write_bytes((folder / "dict.txt").read_bytes())
    (folder / "dict.txt").unlink()
    tokenizer = qkv.load(folder).tokenizer
    assert tokenizer is not None
    assert tokenizer.mask_token is None
    assert len(tokenizer) == size
    text = "Run, rabbit run. Käfer 😀"
    assert tokenizer.encode(text) == reference_tokenizer.encode(text)
    write_bart(folder, size, source_lang="absent", target_lang="absent")
    tokenizer = qkv.load(folder).tokenizer
    assert tokenizer is not None
    assert tokenizer.encode(text) == reference_tokenizer.encode(text)


def test_tokenizer_of_roberta(tmp_path: Path) -> None:
    folder = tmp_path / "roberta"
    reference_tokenizer, size = write_bpe_files(folder, tmp_path / "hf")
    reference = build_roberta(vocab_size=size + 1)
    write_fairseq(folder / "model.pt", to_fairseq(reference))
    model = qkv.load(folder)
    assert_tokenizers_agree(model.tokenizer, reference_tokenizer)
    text = f"The quick {reference_tokenizer.mask_token} fox"
    with torch.no_grad():
        logits = reference(**reference_tokenizer(text, return_tensors="pt")).logits[0]
    mask = reference_tokenizer.encode(text).index(size)
    assert qkv.task("fill", model)(text).candidates[0].token == int(logits[mask].argmax())


def test_files_that_do_not_belong_together(tmp_path: Path) -> None:
    folder = tmp_path / "bart"
    _, size = write_bpe_files(folder, tmp_path / "hf")
    write_bart(folder, size + 5)
    problem = f"a dictionary of {size} tokens, expected {size + 5}"
    with pytest.warns(UserWarning, match=f"without a tokenizer: {problem}"):
        assert qkv.load(folder).tokenizer is None
    write_bart(folder, size - 10)
    lines = (folder / "dict.txt").read_text().splitlines(keepends=True)
    (folder / "dict.txt").write_text("".join(lines[10:]))
    with pytest.warns(UserWarning, match=r"a dictionary without 10 of the \d+ ids of encoder.json"):
        assert qkv.load(folder).tokenizer is None
    (folder / "dict.txt").unlink()
    with pytest.warns(UserWarning, match="without a tokenizer: no dictionary"):
        assert qkv.load(folder).tokenizer is None
    (folder / "encoder.json").write_text("[]")
    assert_error(lambda: qkv.load(folder), "encoder.json", "expected an object")
