"""GPT (Radford et al. 2018): a causal decoder with norms after the steps."""

from __future__ import annotations

from typing import Any

from qkv.families.family import Args, Family, label, summary
from qkv.spec import Attend, Dense, Embed, Head, Layer, Learned, Norm, Spec, Stack, causal, per_head


def gpt(
    vocab: int = 40478, width: int = 768, depth: int = 12, heads: int = 12, act: str = "gelu", length: int = 512,
    eps: float = 1e-5, drop: float = 0.1, embed_drop: float = 0.1, attend_drop: float = 0.1,
    summary_kind: str = "cls_index", summary_project: bool = True, summary_act: str | None = None,
    summary_labels: bool = True, summary_drop: float = 0.1, std: float = 0.02, tied: bool = True, labels: int = 2,
    head: str = "lm",
) -> Spec:  # fmt: skip
    feed = Dense(width=4 * width, act="gelu_new" if act == "gelu" else act)
    attend = Attend(heads=heads, head_dim=per_head(width, heads), pattern=causal, drop=attend_drop)
    layer = Layer(attend=attend, feed=feed, after=Norm(eps=eps), drop=drop)
    embed = Embed(vocab=vocab, positions=Learned(count=length), types="tokens", drop=embed_drop)
    lm = Head(name="lm", size=vocab, bias=False, tied="decoder" if tied else "")
    double = summary(
        1 if summary_labels else width, summary_kind, summary_project, summary_act, out=("choice",), drop=summary_drop
    )
    found: dict[str, tuple[Any, ...]] = {
        "none": (), "lm": (lm,), "double": (lm, double), "label": (label(labels, take="last", bias=False),),
    }  # fmt: skip
    return Spec(
        family="gpt", decoder=Stack(width=width, embed=embed, layers=(layer,) * depth), heads=found[head],
        choices=head == "double", init=(("*", std),),
    )  # fmt: skip


KEYS = """
    decoder.embed.positions         transformer.positions_embed
    -                               transformer.position_ids
    decoder.layers.{}.attend.q,k,v  transformer.h.{}.attn.c_attn   conv1d
    decoder.layers.{}.attend.o      transformer.h.{}.attn.c_proj   conv1d
    -                               transformer.h.{}.attn.bias
    decoder.layers.{}.after_attend  transformer.h.{}.ln_1
    decoder.layers.{}.feed.up       transformer.h.{}.mlp.c_fc      conv1d
    decoder.layers.{}.feed.down     transformer.h.{}.mlp.c_proj    conv1d
    decoder.layers.{}.after_feed    transformer.h.{}.ln_2
    heads.summary.dense             multiple_choice_head.summary
    heads.label.out                 score
"""


def keys(args: Args) -> str:
    """The double-headed class writes a tied table under the head's name."""
    tokens = "heads.lm.out lm_head\ndecoder.embed.tokens transformer.tokens_embed"
    if args["head"] == "double" and args["tied"]:
        return KEYS + f"{tokens} alias\ndecoder.embed.tokens lm_head\n"
    return KEYS + tokens


FAMILY = Family(
    name="gpt", make=gpt, sizes={"base": {}}, keys=keys, model_types=("openai-gpt",), prefix="transformer.",
    shape="decoder",
    config=dict(
        vocab="vocab_size", width="n_embd", depth="n_layer", heads="n_head", act="afn", length="n_positions",
        eps="layer_norm_epsilon", drop="resid_pdrop", embed_drop="embd_pdrop", attend_drop="attn_pdrop",
        summary_kind="summary_type", summary_project="summary_use_proj", summary_act="summary_activation",
        summary_labels="summary_proj_to_labels", summary_drop="summary_first_dropout", std="initializer_range",
        tied="tie_word_embeddings",
    ),
    heads={
        "none": "OpenAIGPTModel", "lm": "OpenAIGPTLMHeadModel", "double": "OpenAIGPTDoubleHeadsModel",
        "label": "OpenAIGPTForSequenceClassification",
    },
    paper="Radford et al. 2018", purpose="write; choose an ending",
    differs="the first: a language model, then a task; post-norm, tanh GELU",
)  # fmt: skip
