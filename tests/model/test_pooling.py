"""Sentence embeddings: their values, and sentence-transformers' files for them."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers

import qkv
from qkv.model.transforms.pooling import Pooling
from tests.support import compare, tiny

MODES = ["mean", "first", "last", "max", "mean_sqrt_len_tokens", "weightedmean"]


def build_bert(mode: str) -> qkv.Model:
    model = qkv.build("bert", "tiny", vocab_size=50, width=12, heads=2, ffn_width=20, pooling=mode)
    tiny.randomize_parameters(model.net)
    return model


IDS = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 0, 0]])
MASK = IDS > 0


@pytest.mark.parametrize("mode", MODES)
def test_embedding_is_pooled_over_tokens_and_normalized(mode: str) -> None:
    out = build_bert(mode)(IDS, attention_mask=MASK)
    h, n = out["last_hidden_state"], (5, 3)
    rows = {
        "mean": torch.stack([h[i, : n[i]].mean(0) for i in range(2)]),
        "first": h[:, 0],
        "last": torch.stack([h[i, n[i] - 1] for i in range(2)]),
        "max": torch.stack([h[i, : n[i]].amax(0) for i in range(2)]),
        "mean_sqrt_len_tokens": torch.stack([h[i, : n[i]].sum(0) / n[i] ** 0.5 for i in range(2)]),
        "weightedmean": torch.stack(
            [
                sum((k + 1) * h[i, k] for k in range(n[i])) / sum(range(1, n[i] + 1))  # type: ignore[misc]
                for i in range(2)
            ]
        ),
    }
    compare.assert_close(
        {"embedding": out["sentence_embedding"]},
        {"embedding": F.normalize(rows[mode], dim=-1)},
        1e-6,
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_saved_model_loads_with_its_pooling(mode: str, tmp_path: Path) -> None:
    model = build_bert(mode)
    model.save(tmp_path)
    loaded = qkv.load(tmp_path)
    assert loaded.pooling == model.pooling
    compare.assert_bitwise_equal(
        loaded(IDS, attention_mask=MASK),
        model(IDS, attention_mask=MASK),
        because=compare.SAME_KERNELS,
    )
    reference, info = transformers.BertModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    hidden = reference(IDS, attention_mask=MASK.long()).last_hidden_state * MASK[..., None]
    compare.assert_close(
        {"hidden": hidden},
        {"hidden": loaded(IDS, attention_mask=MASK)["last_hidden_state"] * MASK[..., None]},
        1e-5,
    )


def test_an_embedding_may_be_without_normalization(tmp_path: Path) -> None:
    build_bert("mean").save(tmp_path)
    modules = json.loads((tmp_path / "modules.json").read_text())
    (tmp_path / "modules.json").write_text(json.dumps(modules[:2]))
    model = qkv.load(tmp_path)
    assert model.pooling == Pooling("mean", normalize=False)
    assert (model(IDS)["sentence_embedding"].norm(dim=-1) - 1).abs().min() > 1e-3


def test_an_unsupported_module_gives_a_warning(tmp_path: Path) -> None:
    build_bert("mean").save(tmp_path)
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules[2]["type"] = "sentence_transformers.models.LSTM"
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.warns(UserWarning, match=r"LSTM: expected .* without its sentence embedding"):
        assert "sentence_embedding" not in qkv.load(tmp_path)(IDS)


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("1_Pooling/config.json", '{"pooling_mode_median": true}', "pooling_mode_median"),
        ("1_Pooling/config.json", '{"pooling_mode": ["cls", "mean"]}', "pooling_mode is"),
        (
            "1_Pooling/config.json",
            '{"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": true}',
            " and ",
        ),
        ("1_Pooling/config.json", "{}", "no pooling mode"),
        ("1_Pooling/config.json", "[]", "expected an object"),
        ("modules.json", "{}", "expected a JSON list"),
        ("modules.json", "[1]", "expected a JSON list"),
    ],
)
def test_invalid_files_are_errors(name: str, text: str, word: str, tmp_path: Path) -> None:
    build_bert("mean").save(tmp_path)
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=word):
        qkv.load(tmp_path)


def test_unsupported_pooling_is_an_error() -> None:
    with pytest.raises(ValueError, match="most"):
        qkv.build("bert", "tiny", pooling="most")
    with pytest.raises(ValueError, match="clip"):
        qkv.build("clip", pooling="mean")
