"""The original Transformer against the layers of `torch.nn`, with weights copied by hand."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qkv
from tests.support import tiny

LENGTHS, TARGETS = (9, 6, 4), (5, 7, 3)
FORMS: dict[str, dict[str, Any]] = {
    "after": dict(norms="after"),
    "before": dict(norms="before", final_norm=True),
    "final": dict(norms="after", final_norm=True),
    "untied": dict(tied=False, lm_bias=True),
    "two": dict(shared=False, target_vocab=41),
    "plain": dict(scaled=False, act="gelu"),
}


class Theirs(nn.Module):
    """Tokens times sqrt(width), sinusoids in pairs, torch's stacks, and the table again as output."""

    def __init__(self, model: qkv.Model) -> None:
        super().__init__()
        args = model.args
        width, before, final = args["width"], args["norms"] == "before", args["final_norm"]
        words = args["target_vocab"] if not args["shared"] else args["vocab"]
        more = dict(dropout=0.0, activation=args["act"], batch_first=True, norm_first=before)
        reader = nn.TransformerEncoderLayer(width, args["heads"], args["feed"], **more)
        writer = nn.TransformerDecoderLayer(width, args["decoder_heads"], args["decoder_feed"], **more)
        norms = [nn.LayerNorm(width) if final else None for _ in range(2)]
        self.encoder = nn.TransformerEncoder(reader, args["depth"], norms[0], enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(writer, args["decoder_depth"], norms[1])
        self.source, self.target = nn.Embedding(args["vocab"], width), nn.Embedding(words, width)
        self.out = nn.Linear(width, words)
        self.scale = math.sqrt(width) if args["scaled"] else 1.0
        self.double()

    def forward(self, ids: Tensor, target: Tensor, mask: Tensor, target_mask: Tensor) -> dict[str, Tensor]:
        """Rows are padded on the right: torch knows no positions, so pads change none."""
        future = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        encoded = self.encoder(self.embed(self.source, ids), src_key_padding_mask=~mask)
        hidden = self.decoder(
            self.embed(self.target, target), encoded, tgt_mask=future, tgt_key_padding_mask=~target_mask,
            memory_key_padding_mask=~mask,
        )  # fmt: skip
        return {"encoded": encoded, "hidden": hidden, "logits": self.out(hidden)}

    def embed(self, table: nn.Embedding, ids: Tensor) -> Tensor:
        return table(ids) * self.scale + sinusoids(ids.shape[1], table.embedding_dim)


def sinusoids(length: int, width: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/width)), PE(pos, 2i+1) = cos(the same); section 3.5."""
    table = torch.empty(length, width, dtype=torch.float64)
    for pos in range(length):
        for i in range(0, width, 2):
            angle = pos / 10000 ** (i / width)
            table[pos, i], table[pos, i + 1] = math.sin(angle), math.cos(angle)
    return table


def names(model: qkv.Model, theirs: nn.Module) -> dict[str, list[str]]:
    """Their parameter: ours, or the three that theirs holds."""
    args, table = model.args, {}
    for side, depth in (("encoder", args["depth"]), ("decoder", args["decoder_depth"])):
        norm = {"attend": "norm1", "feed": "norm2"}
        if side == "decoder":
            norm = {"attend": "norm1", "cross": "norm2", "feed": "norm3"}
        for n in range(depth):
            here, there = f"{side}.layers.{n}", f"{side}.layers.{n}"
            for leaf in ("weight", "bias"):
                for part in norm:
                    table[f"{there}.{norm[part]}.{leaf}"] = [f"{here}.{args['norms']}_{part}.{leaf}"]
                for part, name in (("attend", "self_attn"), ("cross", "multihead_attn")):
                    if part in norm:
                        fused = [f"{here}.{part}.{x}.{leaf}" for x in "qkv"]
                        table[f"{there}.{name}.in_proj_{leaf}"] = fused
                        table[f"{there}.{name}.out_proj.{leaf}"] = [f"{here}.{part}.o.{leaf}"]
                table[f"{there}.linear1.{leaf}"] = [f"{here}.feed.up.{leaf}"]
                table[f"{there}.linear2.{leaf}"] = [f"{here}.feed.down.{leaf}"]
        if args["final_norm"]:
            table |= {f"{side}.norm.{leaf}": [f"{side}.norm.{leaf}"] for leaf in ("weight", "bias")}
    table |= {
        "source.weight": ["encoder.embed.tokens.weight"],
        "target.weight": ["decoder.embed.tokens.weight"],
    }
    table |= {"out.weight": ["heads.lm.out.weight"]} | (
        {"out.bias": ["heads.lm.out.bias"]} if args["lm_bias"] else {}
    )
    return table


def pair(form: str, dtype: torch.dtype) -> tuple[qkv.Model, Theirs, dict[str, list[str]]]:
    model = tiny.model("transformer", dtype=dtype, **FORMS[form])
    theirs = Theirs(model)
    table = names(model, theirs)
    ours = dict(model.net.named_parameters(remove_duplicate=False))
    assert set(ours) == {name for parts in table.values() for name in parts}
    held = dict(theirs.named_parameters())
    with torch.no_grad():
        held["out.bias"].zero_()
        assert held.keys() == table.keys() | {"out.bias"}
        for name, parts in table.items():
            held[name].copy_(torch.cat([ours[part] for part in parts]))
    return model, theirs, table


def inputs(model: qkv.Model, padded: bool) -> dict[str, Any]:
    words = model.args["target_vocab"] or tiny.VOCAB
    mask = torch.arange(9) < torch.tensor(LENGTHS if padded else (9, 9, 9))[:, None]
    target_mask = torch.arange(7) < torch.tensor(TARGETS if padded else (7, 7, 7))[:, None]
    x = {"ids": tiny.ids(3, 9), "target": tiny.ids(3, 7, seed=1) % words}
    return x | {"mask": mask, "target_mask": target_mask}


def toward_left(x: Tensor, mask: Tensor) -> Tensor:
    """Every row's tokens at its right end."""
    return torch.stack([row.roll(int((~seats).sum())) for row, seats in zip(x, mask, strict=True)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
@pytest.mark.parametrize("padding", ["none", "right", "left"])
@pytest.mark.parametrize("form", FORMS)
def test_numbers(form: str, padding: str, dtype: torch.dtype) -> None:
    close: dict[str, Any] = (
        dict(atol=2e-5, rtol=1e-4) if dtype == torch.float32 else dict(atol=1e-9, rtol=1e-9)
    )
    model, theirs, table = pair(form, dtype)
    x = inputs(model, padded=padding != "none")
    masks = {"encoded": x["mask"], "hidden": x["target_mask"], "logits": x["target_mask"]}
    seats = masks
    there = theirs(**x)
    if padding == "left":
        seats = {name: toward_left(mask, mask) for name, mask in masks.items()}
        x |= {name: toward_left(x[name], x["mask"]) for name in ("ids", "mask")}
        x |= {name: toward_left(x[name], x["target_mask"]) for name in ("target", "target_mask")}
    here = model.run(**x)
    losses = []
    for name in masks:
        ours, original = here[name][seats[name]].double(), there[name][masks[name]]
        torch.testing.assert_close(ours, original, **close)
        weight = torch.randn(original.shape, dtype=torch.float64) / original.numel() ** 0.5
        losses += [(ours * weight).sum(), (original * weight).sum()]
    torch.stack(losses).sum().backward()
    held = dict(model.net.named_parameters(remove_duplicate=False))
    tied: dict[int, list[str]] = {}
    for name, parts in table.items():
        tied.setdefault(id(held[parts[0]]), []).append(name)
    for group in tied.values():  # one tensor of ours may be several of theirs: the gradient is their sum
        total = torch.stack([gradient(theirs, name) for name in group]).sum(0)
        mine = torch.cat([gradient(model.net, part) for part in table[group[0]]])
        torch.testing.assert_close(mine.double(), total, **close)


def gradient(net: nn.Module, name: str) -> Tensor:
    found = net.get_parameter(name).grad
    assert found is not None, name
    return found


@pytest.mark.parametrize("form", FORMS)
def test_attention_weights(form: str) -> None:
    """Seen by us, and given by torch's own attention in the first layer of each stack."""
    model, theirs, _ = pair(form, torch.float64)
    x = inputs(model, padded=False)
    with qkv.look(model) as seen:
        model.run(**x)
    layer = theirs.encoder.layers[0]
    y = theirs.embed(theirs.source, x["ids"])
    y = layer.norm1(y) if model.args["norms"] == "before" else y
    weights = layer.self_attn(y, y, y, average_attn_weights=False)[1]
    torch.testing.assert_close(seen["encoder.layers.0.attend"], weights, atol=1e-9, rtol=1e-9)
    layer = theirs.decoder.layers[0]
    y = theirs.embed(theirs.target, x["target"])
    y = layer.norm1(y) if model.args["norms"] == "before" else y
    future = torch.ones(7, 7, dtype=torch.bool).triu(1)
    weights = layer.self_attn(y, y, y, attn_mask=future, average_attn_weights=False)[1]
    torch.testing.assert_close(seen["decoder.layers.0.attend"], weights, atol=1e-9, rtol=1e-9)
    assert len(seen) == model.args["depth"] + 2 * model.args["decoder_depth"]


@pytest.mark.parametrize(("size", "millions", "drop"), [("base", 65, 0.1), ("big", 213, 0.3)])
def test_sizes_are_the_papers(size: str, millions: int, drop: float) -> None:
    """Table 3, with the shared English-German vocabulary of 37000."""
    with torch.device("meta"):
        model = qkv.build("transformer", size)
    assert sum(p.numel() for p in model.net.parameters()) / 1e6 == pytest.approx(millions, rel=0.04)
    assert {m.p for m in model.net.modules() if isinstance(m, nn.Dropout) and m.p} == {drop}
