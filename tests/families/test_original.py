"""The original Transformer against the layers of `torch.nn`, with copied weights."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qkv
from tests.support import tiny

LENGTHS = (9, 6, 4)
DECODER_LENGTHS = (5, 7, 3)
VARIANTS: dict[str, dict[str, Any]] = {
    "post": dict(norm_position="post"),
    "pre": dict(norm_position="pre", final_norm=True),
    "final": dict(norm_position="post", final_norm=True),
    "untied": dict(tie_embeddings=False, lm_bias=True),
    "two": dict(share_embeddings=False, decoder_vocab_size=41),
    "plain": dict(scale_embedding=False, activation="gelu"),
}


class TorchTransformer(nn.Module):
    """Scaled tokens, sinusoidal positions, torch's encoder and decoder, tied outputs."""

    def __init__(self, model: qkv.Model) -> None:
        super().__init__()
        args = model.args
        width = args["width"]
        decoder_vocab_size = (
            args["vocab_size"] if args["share_embeddings"] else args["decoder_vocab_size"]
        )
        settings = dict(
            dropout=0.0,
            activation=args["activation"],
            batch_first=True,
            norm_first=args["norm_position"] == "pre",
        )
        encoder_layer = nn.TransformerEncoderLayer(
            width, args["heads"], args["ffn_width"], **settings
        )
        decoder_layer = nn.TransformerDecoderLayer(
            width, args["decoder_heads"], args["decoder_ffn_width"], **settings
        )
        norms = [nn.LayerNorm(width) if args["final_norm"] else None for _ in range(2)]
        self.encoder = nn.TransformerEncoder(
            encoder_layer, args["depth"], norms[0], enable_nested_tensor=False
        )
        self.decoder = nn.TransformerDecoder(decoder_layer, args["decoder_depth"], norms[1])
        self.source, self.target = (
            nn.Embedding(args["vocab_size"], width),
            nn.Embedding(decoder_vocab_size, width),
        )
        self.out = nn.Linear(width, decoder_vocab_size)
        self.scale = math.sqrt(width) if args["scale_embedding"] else 1.0
        self.double()

    def forward(
        self,
        input_ids: Tensor,
        decoder_input_ids: Tensor,
        attention_mask: Tensor,
        decoder_attention_mask: Tensor,
    ) -> dict[str, Tensor]:
        """Rows are padded on the right, so that padding changes no positions."""
        length = decoder_input_ids.shape[1]
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        encoded = self.encoder(
            self.embed(self.source, input_ids), src_key_padding_mask=~attention_mask
        )
        hidden = self.decoder(
            self.embed(self.target, decoder_input_ids), encoded, tgt_mask=future,
            tgt_key_padding_mask=~decoder_attention_mask, memory_key_padding_mask=~attention_mask,
        )  # fmt: skip
        return {
            "encoder_last_hidden_state": encoded,
            "last_hidden_state": hidden,
            "logits": self.out(hidden),
        }

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


def build_names_table(model: qkv.Model) -> dict[str, list[str]]:
    """Return our parameter, or the three that torch fuses, for each parameter of torch."""
    args = model.args
    table = {}
    for side, depth in (("encoder", args["depth"]), ("decoder", args["decoder_depth"])):
        norm = {"attention": "norm1", "feed_forward": "norm2"}
        if side == "decoder":
            norm = {"attention": "norm1", "cross_attention": "norm2", "feed_forward": "norm3"}
        for n in range(depth):
            layer = f"{side}.layers.{n}"
            for leaf in ("weight", "bias"):
                for part in norm:
                    table[f"{layer}.{norm[part]}.{leaf}"] = [
                        f"{layer}.{args['norm_position']}_{part}_norm.{leaf}"
                    ]
                for part, name in (
                    ("attention", "self_attn"),
                    ("cross_attention", "multihead_attn"),
                ):
                    if part in norm:
                        fused = [f"{layer}.{part}.{x}.{leaf}" for x in "qkv"]
                        table[f"{layer}.{name}.in_proj_{leaf}"] = fused
                        table[f"{layer}.{name}.out_proj.{leaf}"] = [f"{layer}.{part}.o.{leaf}"]
                table[f"{layer}.linear1.{leaf}"] = [f"{layer}.feed_forward.up.{leaf}"]
                table[f"{layer}.linear2.{leaf}"] = [f"{layer}.feed_forward.down.{leaf}"]
        if args["final_norm"]:
            table |= {
                f"{side}.norm.{leaf}": [f"{side}.final_norm.{leaf}"] for leaf in ("weight", "bias")
            }
    table |= {
        "source.weight": ["encoder.embedding.tokens.weight"],
        "target.weight": ["decoder.embedding.tokens.weight"],
    }
    table |= {"out.weight": ["heads.lm.out.weight"]} | (
        {"out.bias": ["heads.lm.out.bias"]} if args["lm_bias"] else {}
    )
    return table


def build_pair(
    variant: str, dtype: torch.dtype
) -> tuple[qkv.Model, TorchTransformer, dict[str, list[str]]]:
    """Return our model, torch's with the same weights, and the table of names."""
    model = tiny.build("transformer", dtype=dtype, **VARIANTS[variant])
    reference = TorchTransformer(model)
    table = build_names_table(model)
    ours = dict(model.net.named_parameters(remove_duplicate=False))
    assert set(ours) == {name for parts in table.values() for name in parts}
    parameters = dict(reference.named_parameters())
    with torch.no_grad():
        parameters["out.bias"].zero_()
        assert parameters.keys() == table.keys() | {"out.bias"}
        for name, parts in table.items():
            parameters[name].copy_(torch.cat([ours[part] for part in parts]))
    return model, reference, table


def build_inputs(model: qkv.Model, padded: bool) -> dict[str, Any]:
    vocab_size = model.args["decoder_vocab_size"] or tiny.VOCAB
    mask = torch.arange(9) < torch.tensor(LENGTHS if padded else (9, 9, 9))[:, None]
    decoder_mask = torch.arange(7) < torch.tensor(DECODER_LENGTHS if padded else (7, 7, 7))[:, None]
    ids = {
        "input_ids": tiny.random_ids(3, 9),
        "decoder_input_ids": tiny.random_ids(3, 7, seed=1) % vocab_size,
    }
    return ids | {"attention_mask": mask, "decoder_attention_mask": decoder_mask}


def pad_left(x: Tensor, mask: Tensor) -> Tensor:
    """Move the tokens of each row to its right end."""
    return torch.stack([row.roll(int((~m).sum())) for row, m in zip(x, mask, strict=True)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
@pytest.mark.parametrize("padding", ["none", "right", "left"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_outputs_and_gradients_match_the_reference(
    variant: str, padding: str, dtype: torch.dtype
) -> None:
    tolerance: dict[str, Any] = (
        dict(atol=2e-5, rtol=1e-4) if dtype == torch.float32 else dict(atol=1e-9, rtol=1e-9)
    )
    model, reference, table = build_pair(variant, dtype)
    inputs = build_inputs(model, padded=padding != "none")
    masks = {
        "encoder_last_hidden_state": inputs["attention_mask"],
        "last_hidden_state": inputs["decoder_attention_mask"],
        "logits": inputs["decoder_attention_mask"],
    }
    our_masks = masks
    expected_outputs = reference(**inputs)
    if padding == "left":
        our_masks = {name: pad_left(mask, mask) for name, mask in masks.items()}
        for side in ("", "decoder_"):
            ids = f"{side}input_ids"
            mask = f"{side}attention_mask"
            inputs |= {name: pad_left(inputs[name], inputs[mask]) for name in (ids, mask)}
    outputs = model(**inputs)
    losses = []
    for name in masks:
        actual = outputs[name][our_masks[name]].double()
        expected = expected_outputs[name][masks[name]]
        torch.testing.assert_close(actual, expected, **tolerance)
        weight = torch.randn(expected.shape, dtype=torch.float64) / expected.numel() ** 0.5
        losses += [(actual * weight).sum(), (expected * weight).sum()]
    torch.stack(losses).sum().backward()
    parameters = dict(model.net.named_parameters(remove_duplicate=False))
    tied: dict[int, list[str]] = {}
    for name, parts in table.items():
        tied.setdefault(id(parameters[parts[0]]), []).append(name)
    for group in tied.values():  # the gradient of a tied tensor is the sum over torch's tensors
        expected = torch.stack([get_gradient(reference, name) for name in group]).sum(0)
        actual = torch.cat([get_gradient(model.net, part) for part in table[group[0]]])
        torch.testing.assert_close(actual.double(), expected, **tolerance)


def get_gradient(net: nn.Module, name: str) -> Tensor:
    grad = net.get_parameter(name).grad
    assert grad is not None, name
    return grad


@pytest.mark.parametrize("variant", VARIANTS)
def test_attention_weights_match_the_reference(variant: str) -> None:
    """Recorded weights equal those of torch's attention in the first layer of each stack."""
    model, reference, _ = build_pair(variant, torch.float64)
    inputs = build_inputs(model, padded=False)
    with qkv.look(model) as recorded:
        model(**inputs)
    layer = reference.encoder.layers[0]
    y = reference.embed(reference.source, inputs["input_ids"])
    y = layer.norm1(y) if model.args["norm_position"] == "pre" else y
    weights = layer.self_attn(y, y, y, average_attn_weights=False)[1]
    torch.testing.assert_close(
        recorded["encoder.layers.0.attention"], weights, atol=1e-9, rtol=1e-9
    )
    layer = reference.decoder.layers[0]
    y = reference.embed(reference.target, inputs["decoder_input_ids"])
    y = layer.norm1(y) if model.args["norm_position"] == "pre" else y
    future = torch.ones(7, 7, dtype=torch.bool).triu(1)
    weights = layer.self_attn(y, y, y, attn_mask=future, average_attn_weights=False)[1]
    torch.testing.assert_close(
        recorded["decoder.layers.0.attention"], weights, atol=1e-9, rtol=1e-9
    )
    assert len(recorded) == model.args["depth"] + 2 * model.args["decoder_depth"]


@pytest.mark.parametrize(("size", "millions", "dropout"), [("base", 65, 0.1), ("big", 213, 0.3)])
def test_sizes_and_dropout_are_those_of_the_paper(size: str, millions: int, dropout: float) -> None:
    """Table 3, with the shared English-German vocabulary of 37000."""
    with torch.device("meta"):
        model = qkv.build("transformer", size)
    assert sum(p.numel() for p in model.net.parameters()) / 1e6 == pytest.approx(millions, rel=0.04)
    assert {m.p for m in model.net.modules() if isinstance(m, nn.Dropout) and m.p} == {dropout}
