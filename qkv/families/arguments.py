"""FamilyArguments: the arguments of all families, typed, for the signature of `qkv.build`.

No family has all of them; `Family.defaults` has those of one family. `tests/families/test_arguments.py`
compares names and types with the signatures of the families."""

from typing import Any, Literal, TypedDict


class FamilyArguments(TypedDict, total=False):
    """Keywords of `qkv.build`: arguments of a family that replace its defaults and those of a size."""

    # Sizes.
    vocab_size: int
    width: int
    depth: int
    heads: int
    head_dim: int | None
    kv_heads: int | None
    ffn_width: int | None
    max_positions: int
    embedding_width: int | None
    type_vocab_size: int
    decoder_vocab_size: int | None
    decoder_depth: int | None
    decoder_heads: int
    decoder_ffn_width: int
    maxout_width: int
    attention_width: int | None
    projection_dim: int
    num_groups: int
    inner_group_num: int
    image_size: int
    patch_size: int
    num_channels: int
    conv_widths: tuple[int, ...]
    feature_width: int
    pooler_output_size: int | None
    text: dict[str, Any] | None
    image: dict[str, Any] | None
    # Heads.
    head: str
    num_labels: int
    pooler_act: str
    lm_activation: str | None
    lm_bias: bool | Literal["fixed"]
    classifier_pooling: str | None
    classifier_activation: str
    classifier_bias: bool
    summary_type: str
    summary_use_proj: bool
    summary_activation: str | None
    summary_proj_to_labels: bool
    start_n_top: int
    logit_scale: float
    # Dropout.
    dropout: float
    attention_dropout: float
    activation_dropout: float
    embedding_dropout: float
    mlp_dropout: float
    classifier_dropout: float | None
    qa_dropout: float
    summary_dropout: float
    # Layers.
    activation: str
    feed_forward_proj: str
    norm_position: str
    norm_eps: float
    layer_norm_eps: float | None
    final_norm: bool
    pre_lnorm: bool
    norm_bias: bool
    attention_bias: bool
    ffn_bias: bool
    is_decoder: bool
    add_cross_attention: bool
    scale_attn_weights: bool
    scale_attn_by_inverse_layer_idx: bool
    num_experts: int
    expert_capacity: int
    num_sparse_encoder_layers: int
    num_sparse_decoder_layers: int
    router_bias: bool
    router_jitter_noise: float
    cell: Literal["rnn", "gru", "lstm"] | None
    reverse_source: bool
    input_feeding: bool
    # Attention patterns.
    pattern: str
    stride: int
    num_summary: int
    split: str
    window: int
    local_attention: int
    global_attn_every_n_layers: int
    layer_types: tuple[str, ...] | None
    attn_type: str
    # Positions and memory.
    sinusoidal: bool | str | None
    positions_after_pad: bool
    position_offset: int
    rope_parameters: dict[str, Any] | None
    relative_attention_num_buckets: int
    relative_attention_max_distance: int
    clamp_len: int
    same_length: bool
    untie_r: bool
    mem_len: int | None
    reuse_len: int | None
    # Embeddings.
    tie_embeddings: bool
    share_embeddings: bool
    share_layers: bool
    scale_embedding: bool
    embedding_norm: bool
    cutoffs: tuple[int, ...]
    div_val: int
    tie_projs: tuple[bool, ...] | None
    multilingual: bool
    scale_decoder_outputs: bool
    # Special tokens.
    pad_token_id: int | None
    eos_token_id: int | None
    decoder_start_token_id: int | None
    shift_right: str | None
    # Initialization.
    init_std: float | Literal["xavier"]
    init_bound: float
    proj_init_std: float
    initializer_factor: float
    scale_residual_init: bool
