"""Contrastive objectives of sentences, and of images and texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor

from qkv.model.build import build
from qkv.nn.network import DualEncoder
from qkv.train.objectives import build_objective
from qkv.train.objectives.wrappers import clamp_logit_scale
from tests.support.objectives import (
    CLS,
    PAD,
    SEP,
    VOCAB,
    VOCAB_SIZE,
    assert_close,
    build_reference_pair,
    get_ids,
    get_mask,
    make_batch,
    make_row,
    rng,
)


def test_sentence_contrastive_loss() -> None:
    objective = build_objective("sentence-contrastive", VOCAB, temperature=0.1)
    net = build(
        "bert",
        vocab_size=VOCAB_SIZE,
        width=16,
        depth=2,
        heads=2,
        ffn_width=32,
        max_positions=64,
        pooling="mean",
    ).net.eval()
    pairs = [
        {"source": make_row(n, n)["tokens"], "target": make_row(n + 3, n + 9)["tokens"]}
        for n in range(4, 8)
    ]
    batch = make_batch(objective, pairs)
    assert objective.full_batch_outputs == ("sentence_embedding",)
    assert objective.count_targets(batch) == {"loss": 4}

    def embed(tokens: Any) -> Tensor:
        outputs = net(objective.collate([{"source": tokens, "target": tokens}]))
        return outputs["sentence_embedding"][0]

    sources = torch.stack([embed(pair["source"]) for pair in pairs])
    targets = torch.stack([embed(pair["target"]) for pair in pairs])
    scores = F.cosine_similarity(sources[:, None], targets[None], dim=-1) / 0.1
    assert_close(objective(net(batch)), F.cross_entropy(scores, torch.arange(4)))


def test_image_text_contrastive_loss_equals_clip(tmp_path: Path) -> None:
    sizes = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2)
    text_config = dict(
        sizes,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=32,
        eos_token_id=SEP,
        bos_token_id=CLS,
        pad_token_id=PAD,
    )
    vision_config = dict(sizes, image_size=16, patch_size=8)
    config = hf.CLIPConfig(text_config=text_config, vision_config=vision_config, projection_dim=8)
    reference, net = build_reference_pair(hf.CLIPModel(config), tmp_path)
    objective = build_objective("image-text-contrastive", VOCAB._replace(num_image_tokens=5))
    pixels = rng().integers(0, 256, (4, 16, 16, 3), np.uint8)
    batch = objective.collate([{**make_row(6 + n, n), "pixels": pixels[n]} for n in range(4)])
    assert batch.image is not None
    expected = reference(
        get_ids(batch.encoder),
        pixel_values=batch.image.pixel_values,
        attention_mask=get_mask(batch.encoder),
        return_loss=True,
    ).loss
    assert_close(objective(net(batch)), expected)
    assert isinstance(net, DualEncoder)
    assert net.logit_scale is not None
    with torch.no_grad():
        net.logit_scale.fill_(9.0)
    clamp_logit_scale(net).train()(batch)
    assert net.logit_scale.exp().item() == pytest.approx(100.0, rel=1e-5)
