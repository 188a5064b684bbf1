"""Rows that are too long for a model: the table "Models and tokenizers" of docs/long-texts.md."""

import pytest
import torch

import qkv
from qkv.text import Tokenizer
from qkv.validate import check_sequence_length

LIMIT = 8


def build_model(family: str = "gpt2") -> qkv.Model:
    return qkv.build(family, vocab_size=20, width=16, depth=1, heads=2, max_positions=LIMIT)


def test_a_row_with_more_tokens_than_positions_is_an_error() -> None:
    model = build_model()
    assert model(torch.ones(1, LIMIT, dtype=torch.long)).logits.shape[1] == LIMIT
    message = (
        "input_ids: 9 tokens in a row, expected at most 8, the number of positions of the model"
    )
    with pytest.raises(
        ValueError, match=rf"^{message}; truncate the row or split it into windows$"
    ):
        model(torch.ones(1, LIMIT + 1, dtype=torch.long))


def test_padding_does_not_count() -> None:
    mask = torch.ones(1, LIMIT + 2)
    mask[:, LIMIT:] = 0
    model = build_model("bert")
    model(torch.ones(1, LIMIT + 2, dtype=torch.long), attention_mask=mask.long())


def test_a_prompt_without_room_for_new_tokens_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"^prompt has 9 tokens .* the model has 8 positions$"):
        build_model().generate(torch.ones(1, LIMIT + 1, dtype=torch.long))


def test_generation_stops_at_the_last_position_or_slides_its_window() -> None:
    model = build_model()
    prompt = torch.ones(1, 3, dtype=torch.long)
    stopped = model.generate(prompt, max_new_tokens=40, min_new_tokens=40, context_overflow="stop")
    assert stopped.shape[1] == LIMIT
    assert model.generate(prompt, max_new_tokens=40, min_new_tokens=40).shape[1] == 43


def test_a_tokenizer_truncates_only_if_asked_to() -> None:
    tokenizer = Tokenizer.train(["a b c"] * 9, type="word", vocab_size=20, template="bert")
    text = "a b c " * 9
    assert len(tokenizer(text)["input_ids"]) == 29
    assert len(tokenizer(text, truncation=True, max_length=LIMIT)["input_ids"]) == LIMIT


def test_a_model_may_have_no_limit() -> None:
    check_sequence_length("input_ids", 10**6, None)
