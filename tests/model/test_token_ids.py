"""Saved models in transformers: token ids of the tokenizer, `generate` and pipelines, no warnings."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import qkv
from qkv.model.token_ids import state_token_ids
from tests.support import saved_models

PROMPTS = ["the cat sat", "a bird"]


@pytest.fixture(autouse=True)
def _no_log_records() -> Iterator[None]:
    """Fail if transformers logs a warning."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = records.append  # type: ignore[assignment,method-assign]
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    transformers.utils.logging.disable_progress_bar()
    yield
    logger.removeHandler(handler)
    assert [record.getMessage() for record in records] == []


def read(folder: Path, name: str = "config.json") -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / name).read_text())
    return content


@pytest.mark.parametrize("family", saved_models.TEMPLATES)
def test_configs_have_the_ids_of_the_tokenizer(family: str, tmp_path: Path) -> None:
    model = saved_models.build(family)
    model.save(tmp_path, format="hf")
    tokenizer = model.tokenizer
    assert tokenizer is not None
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    for role in ("bos", "eos", "pad"):
        token_id = getattr(tokenizer, f"{role}_token_id")
        assert getattr(config, f"{role}_token_id", None) == token_id, role
    if model.args["head"] == "lm":
        generation_config = read(tmp_path, "generation_config.json")
        pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        assert generation_config["eos_token_id"] == tokenizer.eos_token_id
        assert generation_config["pad_token_id"] == pad
        start = model.args.get("decoder_start_token_id")
        assert generation_config.get("decoder_start_token_id") == start
        assert generation_config.get("forced_eos_token_id") is None
        assert getattr(config, "forced_eos_token_id", None) is None


@pytest.mark.parametrize("family", [*saved_models.DECODERS, *saved_models.SEQ2SEQ])
def test_generate_of_transformers_gives_the_same_ids(family: str, tmp_path: Path) -> None:
    # transformers 5 warns about every T5 with untied embeddings.
    model = saved_models.build(family, tie_embeddings=family == "t5")
    model.save(tmp_path, format="hf")
    is_seq2seq = family in saved_models.SEQ2SEQ
    auto_class = "AutoModelForSeq2SeqLM" if is_seq2seq else "AutoModelForCausalLM"
    reference = getattr(transformers, auto_class).from_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert model.tokenizer is not None
    generated: list[int] = []
    for prompt in (*PROMPTS, *saved_models.TEXTS[:4]):
        expected_inputs = tokenizer(prompt, return_tensors="pt")
        ids = model.tokenizer(prompt, return_tensors="pt")["input_ids"]
        assert torch.equal(ids, expected_inputs["input_ids"])
        expected = reference.generate(
            ids, attention_mask=expected_inputs["attention_mask"], max_new_tokens=12
        )
        assert torch.equal(model.generate(ids, max_new_tokens=12), expected)
        generated += expected[0, -12:].tolist()
    assert len({*generated}) > 1


def test_a_trained_decoder_ends_at_its_own_end_token(tmp_path: Path) -> None:
    """After a few steps of one sentence, both stop at the end token, whose id is not 50256."""
    model = saved_models.build("gpt2", activation="gelu_new")
    qkv.fit(model, ["a b"] * 16, steps=60, max_length=8, batch_size=8, lr=1e-2)
    model.save(tmp_path)
    assert model.tokenizer is not None
    ids = model.tokenizer("a", return_tensors="pt")["input_ids"]
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    expected = reference.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12)
    assert torch.equal(model.generate(ids, max_new_tokens=12), expected)
    assert expected[0, -1] == model.tokenizer.eos_token_id
    assert expected.shape[1] < 12


# --- pipelines ---


def build_pipeline(task: str, folder: Path) -> Any:
    return transformers.pipeline(task, model=str(folder), device="cpu")


@pytest.mark.parametrize("family", [*saved_models.ENCODERS, "xlnet"])
def test_text_classification_pipeline(family: str, tmp_path: Path) -> None:
    model = saved_models.build(family, head="sequence-classification", num_labels=3)
    model.save(tmp_path)
    pipeline = build_pipeline("text-classification", tmp_path)
    task = qkv.task("classify", model, top_k=None)
    for text in PROMPTS:
        expected = {row["label"]: row["score"] for row in pipeline(text, top_k=None)}
        actual = task(text)
        assert actual.label == max(expected, key=lambda label: expected[label])
        scores = {row.label: row.score for row in actual.candidates}
        assert scores == pytest.approx(expected, abs=2e-5, rel=1e-4)


@pytest.mark.parametrize("family", [*saved_models.ENCODERS, "xlnet", "gpt2"])
def test_token_classification_pipeline(family: str, tmp_path: Path) -> None:
    model = saved_models.build(family, head="token-classification", num_labels=3)
    model.save(tmp_path)
    pipeline = build_pipeline("token-classification", tmp_path)
    assert model.tokenizer is not None
    for text in PROMPTS:
        inputs = model.tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            scores = model(**inputs).logits[0].softmax(-1)
        special = {*model.tokenizer.all_special_ids} - {model.tokenizer.unk_token_id}
        indices = [i for i, x in enumerate(inputs["input_ids"][0].tolist()) if x not in special]
        rows = pipeline(text, ignore_labels=[])
        assert [row["index"] for row in rows] == indices
        expected = torch.tensor([row["score"] for row in rows])
        torch.testing.assert_close(scores[indices].max(-1).values, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("family", saved_models.ENCODERS)
def test_fill_mask_pipeline(family: str, tmp_path: Path) -> None:
    model = saved_models.build(family)
    model.save(tmp_path)
    assert model.tokenizer is not None
    text = f"the {model.tokenizer.mask_token} sat"
    rows = build_pipeline("fill-mask", tmp_path)(text, top_k=4)
    inputs = model.tokenizer(text, return_tensors="pt")
    position = inputs["input_ids"][0].tolist().index(model.tokenizer.mask_token_id)
    with torch.no_grad():
        best = model(**inputs).logits[0, position].softmax(-1).topk(4)
    assert [row["token"] for row in rows] == best.indices.tolist()
    assert [row["score"] for row in rows] == pytest.approx(best.values.tolist(), rel=1e-4)


@pytest.mark.parametrize("family", saved_models.DECODERS)
def test_text_generation_pipeline(family: str, tmp_path: Path) -> None:
    model = saved_models.build(family, tie_embeddings=False)
    model.save(tmp_path)
    pipeline = build_pipeline("text-generation", tmp_path)
    task = qkv.task("complete", model, do_sample=False, max_new_tokens=8)
    for prompt in PROMPTS:
        rows = pipeline(prompt, do_sample=False, max_new_tokens=8, return_full_text=False)
        assert task(prompt).new_text.strip() == rows[0]["generated_text"].strip()


@pytest.mark.parametrize("family", [*saved_models.ENCODERS, "xlnet", "gpt2"])
def test_feature_extraction_pipeline(family: str, tmp_path: Path) -> None:
    model = saved_models.build(family, head="none")
    model.save(tmp_path)
    pipeline = build_pipeline("feature-extraction", tmp_path)
    assert model.tokenizer is not None
    inputs = model.tokenizer(PROMPTS[0], return_tensors="pt")
    with torch.no_grad():
        states = model(**inputs).last_hidden_state
    torch.testing.assert_close(states, torch.tensor(pipeline(PROMPTS[0])), atol=2e-5, rtol=1e-4)


# --- ids ---


def test_a_network_keeps_the_ids_that_it_reads() -> None:
    """RoBERTa's positions start after the pad id, and BART's classifier reads at the end token."""
    roberta = saved_models.build("roberta")
    other = qkv.Tokenizer.train(["a b c"], type="char", vocab_size=30, template="gpt")
    assert other.eos_token_id == other.bos_token_id == 1
    pad = roberta.config["pad_token_id"]
    roberta.tokenizer = other
    assert (roberta.config["pad_token_id"], roberta.config["eos_token_id"]) == (pad, 1)
    bart = saved_models.build("bart", head="sequence-classification")
    eos = bart.config["eos_token_id"]
    assert eos != 1
    bart.tokenizer = other
    assert (bart.config["eos_token_id"], bart.config["bos_token_id"]) == (eos, 1)


def test_a_list_of_end_tokens_is_kept_if_it_has_that_of_the_tokenizer() -> None:
    tokenizer = qkv.Tokenizer.train(["a b c"], type="char", vocab_size=30, template="gpt")
    for eos, expected in (([7, 1], [7, 1]), ([7, 8], 1), (7, 1), (None, 1)):
        assert state_token_ids({"eos_token_id": eos}, tokenizer, set())["eos_token_id"] == expected


def test_export_of_the_native_format_states_the_ids(tmp_path: Path) -> None:
    model = saved_models.build("gpt2")
    model.save(tmp_path / "qkv", format="qkv")
    qkv.load(tmp_path / "qkv").save(tmp_path / "hf", format="hf")
    assert model.tokenizer is not None
    config = transformers.AutoConfig.from_pretrained(tmp_path / "hf")
    assert config.eos_token_id == model.tokenizer.eos_token_id
    name = "generation_config.json"
    assert read(tmp_path / "hf", name) == read(tmp_path / "qkv", name)
