"""The losses of `model(..., labels=...)`, term by term."""

import pytest
import torch

from tests.support import compare, tiny


def test_causal_loss_shifts_labels() -> None:
    model = tiny.build("gpt2")
    input_ids = tiny.random_ids(2, 6)
    labels = input_ids.clone()
    labels[0, 2] = -100
    outputs = model(input_ids, labels=labels)
    log_probs = outputs["logits"].log_softmax(-1)
    targets = [(row, t) for row in range(2) for t in range(1, 6) if labels[row, t] != -100]
    losses = [-log_probs[row, t - 1, input_ids[row, t]] for row, t in targets]
    compare.assert_close(
        {"loss": outputs["loss"].double()}, {"loss": torch.stack(losses).mean()}, 1e-5
    )


@pytest.mark.parametrize("family", ["bart", "mbart"])
def test_seq2seq_loss_matches_decoder_inputs(family: str) -> None:
    """BART's decoder starts with its start token, mBART's with the last token of the labels."""
    model = tiny.build(family, pad_token_id=1, decoder_start_token_id=2)
    input_ids = tiny.random_ids(2, 6)
    labels = torch.tensor([[11, 12, 13, 14, 15], [21, 22, 23, 24, -100]])
    first = [15, 24] if family == "mbart" else [2, 2]
    decoder_input_ids = torch.tensor([[first[0], 11, 12, 13, 14], [first[1], 21, 22, 23, 24]])
    expected = model(input_ids, decoder_input_ids=decoder_input_ids)["logits"]
    outputs = model(input_ids, labels=labels)
    compare.assert_close({"logits": outputs["logits"]}, {"logits": expected})
    log_probs = expected.log_softmax(-1)
    targets = [(row, t) for row in range(2) for t in range(5) if labels[row, t] != -100]
    losses = [-log_probs[row, t, labels[row, t]] for row, t in targets]
    compare.assert_close(
        {"loss": outputs["loss"].double()}, {"loss": torch.stack(losses).mean()}, 1e-5
    )


def test_classification_loss_follows_labels() -> None:
    """One label: regression; integer labels: single-label; float labels: multi-label."""
    input_ids = tiny.random_ids(2, 6)
    float_labels = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    cases = ((1, torch.tensor([[0.5], [2.0]])), (3, torch.tensor([2, 0])), (3, float_labels))
    for num_labels, labels in cases:
        model = tiny.build("bert", head="sequence-classification", num_labels=num_labels)
        outputs = model(input_ids, labels=labels)
        logits = outputs["logits"]
        if num_labels == 1:
            expected = (logits - labels).square().mean()
        elif labels.is_floating_point():
            probs = logits.sigmoid()
            expected = -(labels * probs.log() + (1 - labels) * (1 - probs).log()).mean()
        else:
            expected = -logits.log_softmax(-1)[torch.arange(2), labels].mean()
        compare.assert_close({"loss": outputs["loss"].double()}, {"loss": expected}, 1e-5)
