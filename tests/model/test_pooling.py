"""Sentence vectors: what they are, and sentence-transformers' files for them."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers

import qkv
from tests.support import tiny


def bert(take: str) -> qkv.Model:
    model = qkv.build("bert", "tiny", vocab=50, width=12, heads=2, feed=20, vector=take)
    tiny.randomise(model.net)
    return model


IDS = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 0, 0]])
MASK = IDS > 0


@pytest.mark.parametrize("take", ["mean", "first", "last"])
def test_a_vector_is_pooled_over_the_seats_and_of_length_one(take: str) -> None:
    out = bert(take).run(IDS, mask=MASK)
    h, n = out["hidden"], (5, 3)
    rows = {
        "mean": torch.stack([h[i, : n[i]].mean(0) for i in range(2)]),
        "first": h[:, 0],
        "last": torch.stack([h[i, n[i] - 1] for i in range(2)]),
    }
    tiny.close({"vector": out["vector"]}, {"vector": F.normalize(rows[take], dim=-1)}, 1e-6)


@pytest.mark.parametrize("take", ["mean", "first", "last"])
def test_there_and_back(take: str, tmp_path: Path) -> None:
    model = bert(take)
    model.save(tmp_path)
    again = qkv.load(tmp_path)
    assert again.vector == model.vector
    tiny.close(again.run(IDS, mask=MASK), model.run(IDS, mask=MASK), 0)
    theirs, info = transformers.BertModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    hidden = theirs(IDS, attention_mask=MASK.long()).last_hidden_state * MASK[..., None]
    tiny.close({"hidden": hidden}, {"hidden": again.run(IDS, mask=MASK)["hidden"] * MASK[..., None]}, 1e-5)


def test_a_vector_that_is_not_normalised(tmp_path: Path) -> None:
    bert("mean").save(tmp_path)
    modules = json.loads((tmp_path / "modules.json").read_text())
    (tmp_path / "modules.json").write_text(json.dumps(modules[:2]))
    model = qkv.load(tmp_path)
    assert model.vector == ("mean", False)
    assert (model.run(IDS)["vector"].norm(dim=-1) - 1).abs().min() > 1e-3


def test_a_module_that_is_not_here_is_named(tmp_path: Path) -> None:
    bert("mean").save(tmp_path)
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules[2]["type"] = "sentence_transformers.models.Dense"
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.warns(UserWarning, match="Dense"):
        assert "vector" not in qkv.load(tmp_path).run(IDS)


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("1_Pooling/config.json", '{"pooling_mode_max_tokens": true}', "pooling_mode_max_tokens"),
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
def test_wrong_files(name: str, text: str, word: str, tmp_path: Path) -> None:
    bert("mean").save(tmp_path)
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=word):
        qkv.load(tmp_path)


def test_wrong_asking() -> None:
    with pytest.raises(ValueError, match="most"):
        qkv.build("bert", "tiny", vector="most")
    with pytest.raises(ValueError, match="clip"):
        qkv.build("clip", vector="mean")
