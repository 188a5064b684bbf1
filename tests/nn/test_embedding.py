"""Embeddings: scaled inputs, token types, the padding row."""

from typing import Any

import pytest
import torch

from tests.support import compare, tiny


@pytest.mark.parametrize(
    ("family", "changes", "factor"),
    [("bart", {"scale_embedding": True}, tiny.WIDTH**0.5), ("ctrl", {}, 1.0), ("gpt2", {}, 1.0)],
)
def test_inputs_embeds_are_scaled_as_in_the_original(
    family: str, changes: dict[str, Any], factor: float
) -> None:
    """BART scales looked-up embeddings only; CTRL scales `inputs_embeds` too."""
    model = tiny.build(family, **changes)
    ids = tiny.random_ids(2, 6)
    stack = "encoder" if family == "bart" else "decoder"
    table = model.net.get_parameter(f"{stack}.embedding.tokens.weight")
    decoder_input_ids = tiny.random_ids(2, 5, seed=1) if family == "bart" else None
    expected = model(ids, decoder_input_ids=decoder_input_ids)
    actual = model(inputs_embeds=table[ids] * factor, decoder_input_ids=decoder_input_ids)
    compare.assert_close(actual, expected)


def test_token_type_ids_default_to_zero() -> None:
    model = tiny.build("bert")
    ids = tiny.random_ids(2, 6)
    default = model(ids)
    compare.assert_close(model(ids, token_type_ids=torch.zeros_like(ids)), default)
    other = model(ids, token_type_ids=torch.full_like(ids, 2))
    assert compare.max_difference(other["last_hidden_state"], default["last_hidden_state"]) > 1e-3


def test_the_pad_embedding_has_no_gradient() -> None:
    model = tiny.build("bert", pad_token_id=5, head="none")
    ids = tiny.random_ids(1, 6)
    ids[0, 3] = 5
    model(ids)["last_hidden_state"].square().sum().backward()
    gradient = model.net.get_parameter("encoder.embedding.tokens.weight").grad
    assert gradient is not None
    assert gradient[ids[0]].abs().sum(1).gt(0).tolist() == (ids[0] != 5).tolist()
