"""Transformer-XL: segments that remember, distances, and an adaptive vocabulary.

paper    Dai et al. 2019, arXiv:1901.02860
purpose  write beyond a fixed length
differs  segments see the states of those before; adaptive embedding and softmax"""

from qkv import spec as s
from qkv.families.family import Args, Family, classes, readers


def transformer_xl(
    vocab: int = 267735, cutoffs: tuple[int, ...] = (20000, 40000, 200000), divide: int = 4,
    width: int = 1024, embed_width: int = 1024, depth: int = 18, heads: int = 16, head_dim: int = 64,
    feed: int = 4096, pre_norm: bool = False, memory: int = 1600, clamp: int = 1000, same_length: bool = True,
    own_biases: bool = True, eps: float = 1e-5, drop: float = 0.1, attend_drop: float = 0.0,
    std: float = 0.02, project_std: float = 0.01, tied: bool = True,
    tied_projects: tuple[bool, ...] | None = None, labels: int = 2, head: str = "lm",
) -> s.Spec:  # fmt: skip
    attend = s.Attend(
        heads=heads, head_dim=head_dim, pattern=s.Banded(memory) if same_length else s.causal, bias=False,
        drop=attend_drop, relate=s.XL(width=width, clamp=clamp, shared=not own_biases, drop=drop),
    )  # fmt: skip
    dense, place = s.Dense(width=feed, act="relu", drop=drop), "before" if pre_norm else "after"
    layer = s.Layer(attend=attend, feed=dense, drop=drop, norm=s.Norm(eps=eps), place=place)
    embed = s.Embed(vocab=vocab, width=embed_width, cutoffs=tuple(cutoffs), divide=divide, drop=drop)
    recall = s.Recall(length=memory, zeros=True)
    stack = s.Stack(width=width, embed=embed, layers=(layer,) * depth, recall=recall, drop=drop)
    ties = (False,) + (True,) * len(cutoffs) if tied_projects is None else tuple(tied_projects)
    lm = s.AdaptiveHead(name="lm", tied=tied, tied_projects=ties)
    init, found = (("*.projects.*", project_std), ("*", std)), readers(labels, 0.0) | {"lm": (lm,)}
    return s.Spec(family="transformer-xl", decoder=stack, heads=found[head], init=init, norm_std=std)


SIZES = {
    "wt103": {},
    "enwik8": dict(
        vocab=204, cutoffs=(), divide=1, width=512, embed_width=512, depth=12, heads=8, feed=2048, memory=512,
        clamp=-1, same_length=False,
    ),
}  # fmt: skip

CONFIG = dict(
    vocab="vocab_size", width="d_model", depth="n_layer", heads="n_head", head_dim="d_head", feed="d_inner",
    memory="mem_len", clamp="clamp_len", same_length="same_length", drop="dropout",
    tied="tie_word_embeddings",
)  # fmt: skip

KEYS = """
    decoder.embed.tokens.tables.{}           transformer.word_emb.emb_layers.{}
    decoder.embed.tokens.projects.{}.weight  transformer.word_emb.emb_projs.{}
    -                                        transformer.pos_emb.inv_freq
    decoder.layers.{}.attend.q,k,v           transformer.layers.{}.dec_attn.qkv_net
    decoder.layers.{}.attend.(o|relative.r)  transformer.layers.{}.dec_attn.(o|r)_net
    decoder.layers.{}.feed.(up|down)         transformer.layers.{}.pos_ff.CoreNet.(0|3)
    decoder.layers.{}.SIDE_(attend|feed)     transformer.layers.{}.(dec_attn|pos_ff).layer_norm
    heads.lm.tables.{}                       crit.out_layers.{}
    heads.lm.projects.{}.weight              crit.out_projs.{}
    heads.lm.clusters.(weight|bias)          crit.cluster_(weight|bias)
    heads.label.out                          score
"""
OWN = "decoder.layers.{}.attend.relative.(u|v)  transformer.layers.{}.dec_attn.r_(w|r)_bias"
SHARED = f"{OWN} alias\ndecoder.layers.0.attend.relative.(u|v)   transformer.r_(w|r)_bias"


def keys(args: Args) -> str:
    side = "before" if args["pre_norm"] else "after"
    return KEYS.replace("SIDE", side) + (OWN if args["own_biases"] else SHARED)


FAMILY = Family(
    name="transformer-xl", doc=__doc__, make=transformer_xl, sizes=SIZES, keys=keys,
    model_types=("transfo-xl",), removed=True, prefixes=("transformer.",), shape="decoder",
    config=CONFIG | dict(
        cutoffs="cutoffs", divide="div_val", embed_width="d_embed", pre_norm="pre_lnorm",
        own_biases="untie_r", eps="layer_norm_epsilon", attend_drop="dropatt", std="init_std",
        project_std="proj_init_std", tied_projects="tie_projs",
    ),
    heads=classes("TransfoXL", "none lm label"), only={"attn_type": (0,), "sample_softmax": (-1, 0)},
)  # fmt: skip
