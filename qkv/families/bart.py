"""BART, and the one function that mBART, Marian and the original Transformer share with it.

paper    Lewis et al. 2019, arXiv:1910.13461
purpose  rewrite: summarise, denoise, classify
differs  BERT's encoder with GPT's decoder, trained to mend noised text; positions start at 2"""

from dataclasses import replace
from typing import Any, Literal

from qkv import spec as s
from qkv.families.family import WRITER, Args, Family, classes, readers


def bart(
    vocab: int = 50265, target_vocab: int | None = None, width: int = 1024, depth: int = 12, heads: int = 16,
    feed: int = 4096, decoder_depth: int = 12, decoder_heads: int = 16, decoder_feed: int = 4096,
    act: str = "gelu", length: int = 1024, scaled: bool = False, norms: str = "after",
    embed_norm: bool = True, final_norm: bool = False, sinusoid: str | None = None, offset: int = 2,
    drop: float = 0.1, attend_drop: float = 0.0, feed_drop: float = 0.0, label_drop: float = 0.0,
    std: float | Literal["xavier"] = 0.02, tied: bool = True, shared: bool = True,
    lm_bias: bool | Literal["fixed"] = "fixed", shift: str | None = "start", start: int | None = 2,
    pad: int | None = 1, end: int | None = 2, labels: int = 3, head: str = "lm", family: str = "bart",
) -> s.Spec:  # fmt: skip
    norm, learned = s.Norm(), s.Learned(count=length + offset, offset=offset)
    places = s.Sinusoid(layout=sinusoid, offset=offset) if sinusoid else learned

    def stack(count: int, heads: int, feed: int, vocab: int, writes: bool) -> s.Stack:
        attend = s.Attend(heads=heads, head_dim=s.per_head(width, heads), drop=attend_drop)
        dense = s.Dense(width=feed, act=act, drop=feed_drop)
        layer = s.Layer(attend=attend, feed=dense, norm=norm, place=norms, drop=drop)
        if writes:
            layer = replace(layer, attend=replace(attend, pattern=s.causal), cross=attend)
        embed = s.Embed(
            vocab=vocab, positions=places, scale=width**0.5 if scaled else 1.0,
            norm=norm if embed_norm else None, drop=drop, pad=pad,
        )  # fmt: skip
        return s.Stack(width=width, embed=embed, layers=(layer,) * count, final=norm if final_norm else None)

    alone = head == "causal"
    words = vocab if target_vocab is None or shared else target_vocab
    encoder = None if alone else stack(depth, heads, feed, vocab, writes=False)
    decoder = stack(decoder_depth, decoder_heads, decoder_feed, words, writes=True)
    lm = s.Head(name="lm", size=words, bias=lm_bias if not alone else False, tied=tied)
    ends = dict(take="end", end=end, dense=width, act="tanh", mid_drop=label_drop)
    found = readers(labels, label_drop, lm, vector=ends) | {"causal": (lm,)}
    how = None if shift is None or alone else s.Shift(start or 0, shift)
    same: Any = dict(family=family, heads=found[head], init=(("*", std),), shift=how)
    return s.Spec(encoder=encoder, decoder=decoder, shared=shared and tied, **same)


BASE = dict(width=768, depth=6, heads=12, feed=3072, decoder_depth=6, decoder_heads=12, decoder_feed=3072)
SIZES = {"base": BASE, "large": {}}

CONFIG = dict(
    vocab="vocab_size", width="d_model", depth="encoder_layers", heads="encoder_attention_heads",
    feed="encoder_ffn_dim", decoder_depth="decoder_layers", decoder_heads="decoder_attention_heads",
    decoder_feed="decoder_ffn_dim", act="activation_function", length="max_position_embeddings",
    scaled="scale_embedding", drop="dropout", attend_drop="attention_dropout", feed_drop="activation_dropout",
    label_drop="classifier_dropout", std="init_std", tied="tie_word_embeddings",
    start="decoder_start_token_id", pad="pad_token_id", end="eos_token_id",
)  # fmt: skip

POSITIONS = "@.embed.positions model.@.embed_positions"
KEYS = f"""
    {POSITIONS}
    @.embed.norm                         model.@.layernorm_embedding
    @.layers.{{}}.attend.(q|k|v|o)         model.@.layers.{{}}.self_attn.(q|k|v|out)_proj
    decoder.layers.{{}}.cross.(q|k|v|o)    model.decoder.layers.{{}}.encoder_attn.(q|k|v|out)_proj
    @.layers.{{}}.feed.(up|down)           model.@.layers.{{}}.(fc1|fc2)
    @.layers.{{}}.SIDE_(attend|feed)       model.@.layers.{{}}.(self_attn|final)_layer_norm
    decoder.layers.{{}}.SIDE_cross         model.decoder.layers.{{}}.encoder_attn_layer_norm
    @.norm                               model.@.layer_norm
    heads.lm.out.weight                  lm_head.weight
    heads.lm.out.bias                    final_logits_bias                                row
    heads.label.(dense|out)              classification_head.(dense|out_proj)
    heads.span.out                       qa_outputs
"""


def keys(args: Args) -> str:
    """One table for all tokens, or one for each side; untied, a shared one is written that nobody reads."""
    table = KEYS.replace("SIDE", args["norms"])
    apart = "@.embed.tokens model.@.embed_tokens\n"
    if args["sinusoid"]:  # a computed table, which only Marian's bare classes write
        word = "keep" if args["head"] in ("none", "causal") else ""
        table = table.replace(POSITIONS, f"- model.@.embed_positions {word}")
    if args["head"] == "causal" or not args["shared"]:
        return table + apart
    if args["tied"]:
        return table + "encoder.embed.tokens model.shared\nencoder.embed.tokens model.@.embed_tokens alias\n"
    return table + apart + "encoder.embed.tokens model.shared copy\n"


HEADS = "none lm causal label span"
ONLY = dict.fromkeys(("normalize_before", "add_final_layer_norm", "static_position_embeddings"), (False,))

FAMILY = Family(
    name="bart", doc=__doc__, make=bart, sizes=SIZES, config=CONFIG, keys=keys, model_types=("bart",),
    prefixes=("model.",), heads=classes("Bart", HEADS, lm=WRITER), shape="encoder-decoder", only=ONLY,
)  # fmt: skip
