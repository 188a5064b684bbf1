"""A vocabulary of 60 tokens, and small examples, batches and models for tests of objectives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import qkv
from qkv.batch import IGNORE_INDEX, Batch
from qkv.data.batches.collate import Example
from qkv.data.encode.special_tokens import SpecialTokensTemplate
from qkv.image_tokenizer import ImageTokenizer
from qkv.train.objectives import VocabularyInfo
from qkv.train.objectives.objective import Objective

# A vocabulary of 60: five special tokens, then words.
PAD, UNK, CLS, SEP, MASK = range(5)
FIRST_WORD = 5
VOCAB_SIZE = 60
SINGLE = SpecialTokensTemplate(((CLS,), (SEP,)), ((0,), (0,)), (0,))
PAIR = SpecialTokensTemplate(((CLS,), (SEP,), (SEP,)), ((0,), (0,), (1,)), (0, 1))
VOCAB = VocabularyInfo(
    vocab_size=VOCAB_SIZE,
    pad_token_id=PAD,
    mask_token_id=MASK,
    special_token_ids=(PAD, UNK, CLS, SEP, MASK),
    single_template=SINGLE,
    pair_template=PAIR,
    eos_token_id=SEP,
    decoder_start_token_id=SEP,
    sentence_end_ids=(FIRST_WORD,),
    sentinel_token_ids=tuple(range(VOCAB_SIZE - 1, VOCAB_SIZE - 11, -1)),
    num_labels=3,
    max_length=32,
    image_tokenizer=ImageTokenizer(
        image_size=4,
        patch_size=2,
        num_channels=1,
        codebook=np.arange(12, dtype=np.uint8).reshape(3, 4),
    ),
)
SMALL_BERT = dict(
    vocab_size=VOCAB_SIZE,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=64,
    pad_token_id=PAD,
)
SMALL_BART: dict[str, Any] = dict(
    vocab_size=VOCAB_SIZE,
    d_model=16,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=32,
    decoder_ffn_dim=32,
    max_position_embeddings=64,
    pad_token_id=PAD,
    bos_token_id=CLS,
    eos_token_id=SEP,
    decoder_start_token_id=SEP,
    forced_eos_token_id=SEP,
)


def rng(seed: int | tuple[int, int] = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def make_text(length: int, seed: int = 0) -> Any:
    return rng(seed).integers(FIRST_WORD, VOCAB_SIZE - 10, length)


def make_row(length: int, seed: int = 0) -> Example:
    return {"tokens": SINGLE.build_token_ids(make_text(length, seed))}


def make_batch(objective: Objective, examples: Sequence[Example], seed: int = 0) -> Batch:
    return objective.collate(
        [objective.noise(example, rng((seed, i))) for i, example in enumerate(examples)]
    )


def get_ids(inputs: Any) -> Tensor:
    assert inputs is not None
    assert inputs.input_ids is not None
    return inputs.input_ids


def get_mask(inputs: Any) -> Tensor:
    if inputs.attention_mask is None:
        return torch.ones_like(get_ids(inputs))
    return inputs.attention_mask.long()


def scatter_labels(batch: Batch) -> Tensor:
    """Labels (N,) at the logit positions, as (B, T)."""
    assert batch.logit_positions is not None
    input_ids = get_ids(batch.encoder)
    flat = torch.full((input_ids.numel(),), IGNORE_INDEX)
    mask = batch.labels["labels"] != IGNORE_INDEX
    flat[batch.logit_positions[mask]] = batch.labels["labels"][mask]
    return flat.view(input_ids.shape)


def build_reference_pair(reference: Any, folder: Path) -> tuple[Any, Any]:
    """A tiny model of transformers with random weights, and the same network here."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in reference.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * 0.2 + parameter * 0.1)
    reference.eval().save_pretrained(folder)
    return reference, qkv.load(folder).net.eval()


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=2e-5)


def assert_reference_loss(objective: Objective, net: Any, reference: Any, batch: Batch) -> None:
    """The objective's loss equals that of a reference model with the same inputs and labels."""
    expected = reference(
        get_ids(batch.encoder),
        attention_mask=get_mask(batch.encoder),
        labels=batch.labels["labels"],
    ).loss
    assert_close(objective(net(batch)), expected)
