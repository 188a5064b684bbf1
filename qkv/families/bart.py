"""BART, and the encoder-decoder that mBART, Marian and the original Transformer share with it.

paper    Lewis et al. 2019, arXiv:1910.13461
purpose  rewrite text: summarize, denoise, classify
differs  BERT's encoder and GPT's decoder, trained to restore noised text; positions start at 2"""

from dataclasses import replace
from typing import Literal

from qkv import spec as s
from qkv.families.family import CONDITIONAL_GENERATION, Args, Family, common_heads, head_classes


def bart(
    vocab_size: int = 50265, decoder_vocab_size: int | None = None, width: int = 1024,
    depth: int = 12, heads: int = 16, ffn_width: int = 4096, decoder_depth: int = 12,
    decoder_heads: int = 16, decoder_ffn_width: int = 4096, activation: str = "gelu",
    max_positions: int = 1024, scale_embedding: bool = False, norm_position: str = "post",
    embedding_norm: bool = True, final_norm: bool = False, sinusoidal: str | None = None,
    position_offset: int = 2, norm_eps: float = 1e-5, dropout: float = 0.1,
    attention_dropout: float = 0.0, activation_dropout: float = 0.0, classifier_dropout: float = 0.0,
    init_std: float | Literal["xavier"] = 0.02, tie_embeddings: bool = True,
    share_embeddings: bool = True, lm_bias: bool | Literal["fixed"] = "fixed",
    shift_right: str | None = "start", decoder_start_token_id: int | None = 2,
    pad_token_id: int | None = 1, eos_token_id: int | None = 2, num_labels: int = 3,
    head: str = "lm", family: str = "bart",
) -> s.Spec:  # fmt: skip
    """Return the spec. `sinusoidal`: the layout of sinusoidal positions; None: learned positions.

    `shift_right`: how decoder inputs are computed from input_ids by default (see ShiftRight)."""
    norm = s.NormSpec(eps=norm_eps)
    positions = (
        s.SinusoidalPositions(layout=sinusoidal, offset=position_offset)
        if sinusoidal
        else s.LearnedPositions(count=max_positions + position_offset, offset=position_offset)
    )

    def stack(
        vocab_size: int, depth: int, heads: int, ffn_width: int, is_decoder: bool
    ) -> s.StackSpec:
        attention = s.AttentionSpec(
            heads=heads, head_dim=s.head_width(width, heads), dropout=attention_dropout
        )
        layer = s.LayerSpec(
            attention=replace(attention, pattern=s.causal) if is_decoder else attention,
            cross_attention=attention if is_decoder else None,
            feed_forward=s.FeedForwardSpec(
                width=ffn_width, activation=activation, dropout=activation_dropout
            ),
            norm=norm,
            norm_position=norm_position,
            dropout=dropout,
        )
        embedding = s.EmbeddingSpec(
            vocab_size=vocab_size,
            positions=positions,
            scale=width**0.5 if scale_embedding else 1.0,
            norm=norm if embedding_norm else None,
            dropout=dropout,
            padding_idx=pad_token_id,
        )
        return s.StackSpec(
            width=width,
            embedding=embedding,
            layers=(layer,) * depth,
            final_norm=norm if final_norm else None,
        )

    is_decoder_only = head == "causal-lm"
    if decoder_vocab_size is None or share_embeddings:
        decoder_vocab_size = vocab_size
    encoder = None
    if not is_decoder_only:
        encoder = stack(vocab_size, depth, heads, ffn_width, is_decoder=False)
    decoder = stack(
        decoder_vocab_size, decoder_depth, decoder_heads, decoder_ffn_width, is_decoder=True
    )
    lm = s.HeadSpec(
        name="lm",
        out_features=decoder_vocab_size,
        bias=False if is_decoder_only else lm_bias,
        tie_embeddings=tie_embeddings,
    )
    pooling = dict(
        pooling="eos",
        eos_token_id=eos_token_id,
        dense_width=width,
        activation="tanh",
        classifier_dropout=classifier_dropout,
    )
    head_specs = common_heads(num_labels, classifier_dropout, lm, pooling=pooling) | {
        "causal-lm": (lm,)
    }
    shift = (
        s.ShiftRight(decoder_start_token_id or 0, shift_right) if shift_right is not None else None
    )
    return s.Spec(
        family=family,
        encoder=encoder,
        decoder=decoder,
        heads=head_specs[head],
        share_embeddings=share_embeddings and tie_embeddings,
        shift_right=None if is_decoder_only else shift,
        init=(("*", init_std),),
    )


SIZES = {
    "base":  dict(
        width=768, depth=6, heads=12, ffn_width=3072,
        decoder_depth=6, decoder_heads=12, decoder_ffn_width=3072,
    ),
    "large": {},
}  # fmt: skip

CONFIG = dict(
    vocab_size="vocab_size", width="d_model", depth="encoder_layers",
    heads="encoder_attention_heads", ffn_width="encoder_ffn_dim", decoder_depth="decoder_layers",
    decoder_heads="decoder_attention_heads", decoder_ffn_width="decoder_ffn_dim",
    activation="activation_function", max_positions="max_position_embeddings",
    scale_embedding="scale_embedding", dropout="dropout", attention_dropout="attention_dropout",
    activation_dropout="activation_dropout", classifier_dropout="classifier_dropout",
    init_std="init_std", tie_embeddings="tie_word_embeddings",
    decoder_start_token_id="decoder_start_token_id", pad_token_id="pad_token_id",
    eos_token_id="eos_token_id",
)  # fmt: skip

KEYS = """
    -                                                   model.@.version
    -                                                   @.version
    @.embedding.norm                                    model.@.layernorm_embedding
    @.layers.{}.attention.(q|k|v|o)                     model.@.layers.{}.self_attn.(q|k|v|out)_proj
    decoder.layers.{}.cross_attention.(q|k|v|o)         model.decoder.layers.{}.encoder_attn.(q|k|v|out)_proj
    @.layers.{}.feed_forward.(up|down)                  model.@.layers.{}.(fc1|fc2)
    @.layers.{}.PRE_OR_POST_attention_norm              model.@.layers.{}.self_attn_layer_norm
    decoder.layers.{}.PRE_OR_POST_cross_attention_norm  model.decoder.layers.{}.encoder_attn_layer_norm
    @.layers.{}.PRE_OR_POST_feed_forward_norm           model.@.layers.{}.final_layer_norm
    @.final_norm                                        model.@.layer_norm
    heads.lm.out.weight                                 lm_head.weight
    heads.lm.out.bias                                   final_logits_bias  row
    heads.sequence_classification.(dense|out)           classification_head.(dense|out_proj)
    heads.question_answering.out                        qa_outputs
"""
SEPARATE_TOKENS = "@.embedding.tokens model.@.embed_tokens\n"
SHARED_TOKENS = """
    encoder.embedding.tokens  model.shared
    encoder.embedding.tokens  model.@.embed_tokens  alias
"""


def names_table(args: Args) -> str:
    """Return the names table, with one token embedding for both stacks or one per stack.

    Hugging Face writes `model.shared` also for untied embeddings, which do not use it."""
    table = KEYS.replace("PRE_OR_POST", args["norm_position"])
    if args["sinusoidal"] is None:
        table += "@.embedding.positions model.@.embed_positions\n"
    else:  # computed positions; only Marian's classes without a head or encoder write them
        operation = "keep" if args["head"] in ("none", "causal-lm") else ""
        table += f"- model.@.embed_positions {operation}\n"
    if args["head"] == "causal-lm" or not args["share_embeddings"]:
        return table + SEPARATE_TOKENS
    if args["tie_embeddings"]:
        return table + SHARED_TOKENS
    return table + SEPARATE_TOKENS + "encoder.embedding.tokens model.shared copy\n"


def finish_config(config: Args, args: Args) -> Args:
    """State that no token is forced at the maximum length: Hugging Face's default is id 2."""
    return config | {"forced_eos_token_id": None}


def upgrade_config(config: Args) -> Args:
    """Rename the dropout rate of the classifier in the oldest files."""
    if "classif_dropout" not in config:
        return config
    return {"classifier_dropout": config["classif_dropout"]} | config


HEADS = "none lm causal-lm sequence-classification question-answering"
SUPPORTED_VALUES: dict[str, tuple[bool, ...]] = {
    "normalize_before": (False,),
    "add_final_layer_norm": (False,),
    "static_position_embeddings": (False,),
}

FAMILY = Family(
    name="bart", doc=__doc__, shape="encoder-decoder", build_spec=bart, sizes=SIZES,
    config=CONFIG, supported_values=SUPPORTED_VALUES, upgrade_config=upgrade_config,
    model_types=("bart",), heads=head_classes("Bart", HEADS, lm=CONDITIONAL_GENERATION),
    names_table=names_table, prefixes=("model.",), finish_config=finish_config,
)  # fmt: skip
