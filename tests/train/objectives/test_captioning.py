"""Image captioning and CLIP: losses against their formulas, augmentation in training only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import qkv
from qkv.data.encode.images import ImageProcessor
from qkv.train.evaluate.retrieval_evaluator import build_image_retrieval_evaluator
from qkv.train.objectives import build_objective
from qkv.train.objectives.objective import Objective
from qkv.train.objectives.vocabulary import VocabularyInfo
from tests.support import tiny

VOCAB = VocabularyInfo(
    vocab_size=tiny.VOCAB, decoder_start_token_id=1, image_size=12, num_image_tokens=9
)


def make_examples(count: int = 4) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        {
            "tokens": rng.integers(8, tiny.VOCAB, 2 + i % 3),
            "pixels": rng.integers(0, 256, (12, 12, 3), np.uint8),
        }
        for i in range(count)
    ]


def build(**settings: Any) -> Objective:
    return build_objective("image-captioning", VOCAB, **settings)


def test_a_caption_is_predicted_from_the_words_before_and_the_image() -> None:
    batch = build().collate(make_examples())
    assert batch.encoder is not None
    assert batch.encoder.pixel_values is not None
    assert batch.encoder.pixel_values.shape == (4, 3, 12, 12)
    assert batch.encoder.length == 9
    assert batch.decoder is not None
    assert batch.decoder.input_ids is not None
    labels = batch.labels["labels"]
    for row, ids, example in zip(labels, batch.decoder.input_ids, make_examples(), strict=True):
        tokens = example["tokens"].tolist()
        assert row[: len(tokens)].tolist() == tokens
        assert (row[len(tokens) :] == -100).all()
        assert ids[: len(tokens)].tolist() == [1, *tokens[:-1]]


@pytest.mark.parametrize("family", tiny.CAPTION_FAMILIES)
def test_the_loss_is_the_mean_over_the_words_of_single_captions(family: str) -> None:
    net = tiny.build(family).net
    objective = build()
    examples = make_examples()
    batch = objective.collate(examples)
    batch.encoder.pixel_values.data = batch.encoder.pixel_values.double()  # type: ignore[union-attr]
    total = torch.zeros(())
    for example in examples:
        single = objective.collate([example])
        single.encoder.pixel_values.data = single.encoder.pixel_values.double()  # type: ignore[union-attr]
        logits = net(single)["logits"][0]
        total = total + F.cross_entropy(logits, torch.tensor(example["tokens"]), reduction="sum")
    num_words = sum(len(example["tokens"]) for example in examples)
    torch.testing.assert_close(objective(net(batch)), total / num_words, atol=1e-9, rtol=0)
    assert objective.count_targets(batch) == {"loss": num_words}


def test_doubly_stochastic_attention_equals_its_formula() -> None:
    model = tiny.build("show-attend-tell")
    objective = build(coverage_weight=0.7)
    batch = objective.collate(make_examples())
    batch.encoder.pixel_values.data = batch.encoder.pixel_values.double()  # type: ignore[union-attr]
    with qkv.look(model) as weights:
        losses = objective.compute_losses(model.net(batch))
    alpha = weights["decoder.cross_attention"][:, 0]  # (B, T, S)
    mask = batch.labels["labels"] != -100
    coverage = (alpha * mask[..., None]).sum(1)
    expected = 0.7 * (1 - coverage).square().mean()
    torch.testing.assert_close(losses["coverage"], expected, atol=1e-9, rtol=0)
    assert objective.count_targets(batch)["coverage"] == 4
    assert coverage.sum(1).tolist() == pytest.approx(mask.sum(1).tolist())


def test_coverage_needs_a_recurrent_decoder() -> None:
    objective = build(coverage_weight=0.7)
    net = tiny.build("vision-encoder-decoder", dtype=torch.float32).net
    with pytest.raises(ValueError, match="the decoder is not recurrent, expected show-attend-tell"):
        objective(net(objective.collate(make_examples())))
    with pytest.raises(ValueError, match=r"objective\.coverage_weight is -1"):
        build(coverage_weight=-1)


@pytest.mark.parametrize("name", ["image-captioning", "image-text-contrastive"])
def test_images_are_augmented_in_training_only(name: str, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (12, 12, 3), np.uint8)
    image.fromarray(pixels).save(tmp_path / "a.png")
    path = np.frombuffer(bytes(str(tmp_path / "a.png"), "utf-8"), np.uint8)
    example = {"tokens": np.array([9, 8, 7]), "image": path}
    objective = build_objective(name, VOCAB, translate=0.3, color_jitter=0.3)
    rng = np.random.default_rng

    def read(example: Mapping[str, Any]) -> torch.Tensor:
        batch = objective.collate([example])
        inputs = batch.image or batch.encoder
        assert inputs is not None
        assert inputs.pixel_values is not None
        return inputs.pixel_values[0]

    plain = torch.from_numpy(ImageProcessor.for_size(12)(tmp_path / "a.png"))
    assert torch.equal(read(objective.noise(example, rng(0))), plain)
    assert objective.train_noise is not None
    first, repeated, second = (
        read(objective.train_noise(example, rng(seed))) for seed in (0, 0, 1)
    )
    assert torch.equal(first, repeated)
    assert not torch.allclose(first, plain, atol=0.1)
    assert not torch.allclose(first, second, atol=0.1)


def test_recall_counts_the_names_not_the_pictures() -> None:
    """Two pictures of each of three names: a picture is near its own name, or near another."""
    evaluator = build_image_retrieval_evaluator(None, None, list)  # type: ignore[arg-type]
    names = torch.eye(6)[:3]
    images = torch.stack([names[i] for i in (0, 0, 1, 2, 1, 2)])  # names 0, 0, 1, 1, 2, 2
    outputs = {
        "scaled_image_embeds": images + 0.01,
        "text_embeds": names.repeat_interleave(2, 0),
        "text_hashes": torch.tensor([5, 5, 6, 6, 7, 7]),
    }
    metrics = evaluator.compute_metrics(evaluator.collect(outputs, np.arange(6)))
    assert metrics["text_recall_1"] == pytest.approx(4 / 6)
    assert metrics["image_recall_1"] == 1.0  # one of the two pictures of each name is near it
    assert metrics["text_recall_5"] == 1.0
