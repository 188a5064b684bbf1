"""Model: called with Hugging Face's inputs, it has their losses and their `generate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import qkv
from tests.support import tiny

SMALL: dict[str, Any] = dict(
    vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4
)
BERT = SMALL | dict(intermediate_size=40, max_position_embeddings=40)
BART: dict[str, Any] = dict(
    vocab_size=60, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
    decoder_attention_heads=4, encoder_ffn_dim=40, decoder_ffn_dim=40, max_position_embeddings=40,
    pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2,
)  # fmt: skip
GPT2: dict[str, Any] = dict(
    vocab_size=60, n_embd=32, n_layer=2, n_head=4, n_positions=40, bos_token_id=0, eos_token_id=2
)
T5: dict[str, Any] = dict(
    vocab_size=60, d_model=32, d_kv=8, d_ff=40, num_layers=2, num_heads=4, pad_token_id=0,
    eos_token_id=1, decoder_start_token_id=0,
)  # fmt: skip
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "BertForMaskedLM": (transformers.BertConfig, BERT),
    "BertForSequenceClassification": (transformers.BertConfig, BERT | dict(num_labels=3)),
    "BertForTokenClassification": (transformers.BertConfig, BERT | dict(num_labels=3)),
    "GPT2LMHeadModel": (transformers.GPT2Config, GPT2),
    "BartForConditionalGeneration": (transformers.BartConfig, BART),
    "T5ForConditionalGeneration": (transformers.T5Config, T5),
}


def build_pair(name: str, folder: Path) -> tuple[qkv.Model, Any]:
    """Return a model with random weights, and the same model of transformers."""
    config_class, sizes = CASES[name]
    torch.manual_seed(0)
    reference = getattr(transformers, name)(config_class(**sizes)).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.normal_(0, 0.2)
    reference.save_pretrained(folder)
    return qkv.load(folder), reference


@pytest.mark.parametrize("name", CASES)
def test_the_loss_is_that_of_hugging_face(name: str, tmp_path: Path) -> None:
    model, reference = build_pair(name, tmp_path)
    input_ids = torch.randint(4, 60, (3, 9))
    attention_mask = torch.ones(3, 9, dtype=torch.long)
    attention_mask[1, 6:] = 0
    if name == "BertForSequenceClassification":
        labels = torch.tensor([2, 0, 1])
    else:
        labels = torch.randint(0, 3 if "Token" in name else 60, (3, 9))
        labels[0, :2] = -100
    inputs: dict[str, Any] = dict(input_ids=input_ids, labels=labels)
    if name != "GPT2LMHeadModel":  # the reference counts positions over padding
        inputs["attention_mask"] = attention_mask
    expected = reference(**inputs)
    outputs = model(**inputs)
    torch.testing.assert_close(outputs.loss, expected.loss, atol=2e-5, rtol=1e-4)
    assert outputs["logits"] is outputs.logits
    outputs.loss.backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad and p.ndim > 1)


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("Bert")])
@pytest.mark.parametrize(
    "settings", [{}, dict(num_beams=3), dict(num_beams=4, num_return_sequences=2)], ids=str
)
def test_generate_gives_the_ids_of_hugging_face(
    name: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    model, reference = build_pair(name, tmp_path)
    input_ids = torch.randint(4, 60, (2, 7))
    limits: dict[str, Any] = dict(max_new_tokens=9, do_sample=False, **settings)
    pad = model.args.get("pad_token_id") or 2
    mask = torch.ones_like(input_ids)
    expected = reference.generate(input_ids, attention_mask=mask, pad_token_id=pad, **limits)
    assert model.generate(input_ids, **limits).tolist() == expected.tolist()


def test_a_model_has_the_methods_of_a_torch_module() -> None:
    model = tiny.build("bert", dtype=torch.float32)
    assert model.train() is model
    assert model.net.training
    assert not model.eval().net.training
    assert (model.dtype, model.device.type) == (torch.float32, "cpu")
    assert model.to(torch.float64).dtype == torch.float64
    assert len(list(model.parameters())) == len(dict(model.named_parameters()))
    embedding = model.get_input_embeddings()
    assert isinstance(embedding, nn.Embedding)
    assert embedding.num_embeddings == tiny.VOCAB


def test_outputs_are_attributes() -> None:
    outputs = tiny.build("bert")(tiny.random_ids(2, 5))
    assert outputs.last_hidden_state.shape == (2, 5, tiny.WIDTH)
    assert "logits" in dir(outputs)
    with pytest.raises(
        AttributeError, match="no output 'pooler': this model returned last_hidden_state"
    ):
        _ = outputs.pooler


def test_a_missing_loss_or_decoder_is_an_error() -> None:
    with pytest.raises(ValueError, match="labels: a model with the head 'none' has no loss"):
        tiny.build("bert", head="none")(tiny.random_ids(2, 5), labels=tiny.random_ids(2, 5))
    with pytest.raises(ValueError, match="a bert model without a decoder cannot generate"):
        tiny.build("bert").generate(tiny.random_ids(2, 5))
