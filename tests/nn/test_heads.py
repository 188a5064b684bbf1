"""Prediction heads: a fixed bias, and the end token that a classifier reads."""

import pytest
import torch
from torch import nn

from tests.support import compare, tiny


def test_a_fixed_bias_is_never_trained() -> None:
    head = tiny.build("bart").net.get_submodule("heads.lm.out")
    assert isinstance(head, nn.Linear)
    assert head.bias is not None
    assert not head.bias.requires_grad
    assert head.weight.requires_grad


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_classification_reads_the_last_eos_token(family: str) -> None:
    model = tiny.build(family, head="sequence-classification", eos_token_id=7)
    ids = tiny.random_ids(2, 8)
    ids[:, 3] = ids[:, 6] = 7
    out = model(ids)
    dense = model.net.get_submodule("heads.sequence_classification.dense")
    project = model.net.get_submodule("heads.sequence_classification.out")
    compare.assert_close(
        out, {"logits": project(torch.tanh(dense(out["last_hidden_state"][:, 6])))}
    )


def test_tied_embeddings_have_the_width_of_the_outputs() -> None:
    tiny.build("luong", tie_embeddings=True, embedding_width=None)
    with pytest.raises(
        ValueError, match="embeddings of width 20 and outputs of width 24, expected"
    ):
        tiny.build("luong", tie_embeddings=True)
