"""Further configs of the classes: keys that implementations often miss, and published spellings."""

from __future__ import annotations

from typing import Any

from tests.support.oracle.classes import TEXT_SIZES

# Each variant: class, label, config keys, and further traits:
#   source      with encoder_hidden_states      types    with token_type_ids
#   pad-inside  the pad id is also a token of the texts
#   memory      with mems                       permute  with perm_mask and target_mapping
#   loose       lm_head is a tensor of its own whatever the config says
#   bare        config.json without the keys that have their default value
#   alone       the reference runs rows one by one, because it cannot run them together
#   fp32        the reference cannot run in fp64
#   !left       no left padding: it would take an expert's capacity, or lie between memory and row
#   !none       only with padding: the reference needs a mask     !choice  without mc_token_ids
#   -first      without this trait of the class
# and, last, changes to the written config.json (None removes the key), as published folders have it.
_CROSS = dict(is_decoder=True, add_cross_attention=True)
_ROPE3 = dict(
    rope_type="llama3", rope_theta=5e3, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0
)
_ROPE3 |= dict(original_max_position_embeddings=8)
_UNTIED = dict(tie_word_embeddings=False)
_OLD = dict(
    tie_word_embeddings=False, scale_decoder_outputs=None, dense_act_fn=None, is_gated_act=None
)
_NAMELESS = dict(id2label=None, label2id=None)
_MULTI = dict(num_labels=5, problem_type="multi_label_classification")
_UNI = dict(attn_type="uni", ff_activation="relu", layer_norm_eps=0.01, mem_len=0)
_TWO = dict(share_encoder_decoder_embeddings=False, decoder_vocab_size=41, pad_token_id=40)
_GATED = dict(feed_forward_proj="gated-gelu")
_KEYS: dict[str, Any] = dict(hidden_act="gelu", layer_norm_eps=0.01)
_HIGHEST = _KEYS | dict(eos_token_id=2)
_LINEAR = dict(rope_parameters=dict(rope_type="linear", rope_theta=5e3, factor=3.0))
_BIASES = dict(
    norm_bias=True, attention_bias=True, mlp_bias=True, decoder_bias=False, classifier_bias=True
)
_INVERSE = dict(scale_attn_by_inverse_layer_idx=True)
_EVERY = dict(global_attn_every_n_layers=2, num_hidden_layers=5)
_SWITCH = "SwitchTransformersForConditionalGeneration"
_HEADS: dict[str, Any] = dict(num_key_value_heads=2, head_dim=8)
_DEEP: dict[str, Any] = dict(
    encoder_layers=3, decoder_layers=1, encoder_ffn_dim=20, decoder_ffn_dim=36
)
_DEEP |= dict(encoder_attention_heads=2, decoder_attention_heads=6, scale_embedding=True)
_DEEP |= dict(activation_function="relu")
Config = dict[str, Any]
VARIANTS: list[tuple[str, str, Config, str] | tuple[str, str, Config, str, Config]] = [
    ("BertModel", "keys", dict(hidden_act="silu", layer_norm_eps=0.01, num_attention_heads=2), ""),
    ("BertForMaskedLM", "untied", _UNTIED | dict(hidden_act="relu", layer_norm_eps=0.02), ""),
    ("BertForPreTraining", "gelu_new", dict(hidden_act="gelu_new", pad_token_id=9), ""),
    ("BertModel", "decoder", dict(is_decoder=True), ""),
    ("BertLMHeadModel", "cross", _CROSS, "source"),
    ("BertLMHeadModel", "uncrossed", _CROSS, ""),
    ("BertForSequenceClassification", "regression", dict(num_labels=1, problem_type="regression"), ""),
    ("BertForSequenceClassification", "multi", _MULTI, ""),
    ("BertForSequenceClassification", "two", dict(num_labels=2), "", _NAMELESS),
    ("BertForTokenClassification", "count", dict(num_labels=4), "", _NAMELESS | dict(num_labels=4)),
    ("BertForMaskedLM", "bare", {}, "bare"),
    ("RobertaModel", "pad", dict(pad_token_id=6, type_vocab_size=1, max_position_embeddings=24), ""),
    ("RobertaModel", "pad-inside", dict(pad_token_id=6), "pad-inside"),
    ("RobertaForCausalLM", "pad-inside", dict(is_decoder=True), "pad-inside"),
    ("RobertaForMaskedLM", "untied", _UNTIED | dict(hidden_act="relu", layer_norm_eps=0.01), ""),
    ("RobertaForCausalLM", "cross", _CROSS, "source"),
    ("RobertaForSequenceClassification", "bare", dict(pad_token_id=0), "bare"),
    ("AlbertModel", "groups", dict(num_hidden_layers=5, num_hidden_groups=2, inner_group_num=2), ""),
    ("AlbertForMaskedLM", "untied", _UNTIED | dict(hidden_act="gelu", layer_norm_eps=0.01), ""),
    ("AlbertForMaskedLM", "wide", dict(embedding_size=24, num_hidden_groups=2), ""),
    ("AlbertForPreTraining", "bare", {}, "bare"),
    ("DistilBertForMaskedLM", "untied", _UNTIED | dict(activation="relu"), ""),
    ("DistilBertModel", "sinusoid", dict(sinusoidal_pos_embds=True), ""),
    ("DistilBertForSequenceClassification", "bare", {}, "bare"),
    ("ElectraForPreTraining", "equal", dict(embedding_size=24, hidden_act="relu", layer_norm_eps=0.01), ""),
    ("ElectraForMaskedLM", "untied", _UNTIED | dict(hidden_act="silu"), ""),
    ("ElectraForCausalLM", "cross", _CROSS, "source"),
    ("ElectraForMultipleChoice", "mean", dict(summary_type="mean", summary_activation="tanh"), "mean"),
    ("ElectraForMultipleChoice", "last", dict(summary_type="last", summary_use_proj=False), "last"),
    ("ElectraForPreTraining", "bare", {}, "bare"),
    ("XLNetModel", "uni", _UNI, "alone"),
    ("XLNetLMHeadModel", "clamp", _UNTIED | dict(clamp_len=3, reuse_len=7, mem_len=None), "types"),
    ("XLNetModel", "memory", dict(mem_len=6, reuse_len=3), "memory types !left"),
    ("XLNetModel", "length", dict(attn_type="uni", same_length=True, mem_len=4), "memory alone !left"),
    ("XLNetLMHeadModel", "permute", {}, "permute types"),
    ("XLNetLMHeadModel", "both", dict(clamp_len=6, reuse_len=2), "permute memory !left"),
    ("XLNetLMHeadModel", "uni-permute", dict(attn_type="uni"), "permute memory alone !left"),
    ("XLNetForSequenceClassification", "mean", dict(summary_type="mean", summary_activation="gelu"), "mean"),
    ("XLNetForSequenceClassification", "first", dict(summary_type="first", summary_use_proj=False), "first"),
    ("XLNetLMHeadModel", "bare", {}, "bare"),
    ("OpenAIGPTModel", "keys", dict(afn="silu", layer_norm_epsilon=0.01), "types"),
    ("OpenAIGPTLMHeadModel", "untied", _UNTIED | dict(afn="relu"), ""),
    ("OpenAIGPTDoubleHeadsModel", "tanh", dict(summary_activation="tanh"), ""),
    ("OpenAIGPTLMHeadModel", "bare", {}, "bare"),
    ("GPT2Model", "keys", dict(n_inner=None, activation_function="relu", layer_norm_epsilon=0.01), "types"),
    ("GPT2LMHeadModel", "untied", _UNTIED | dict(scale_attn_weights=False), ""),
    ("GPT2LMHeadModel", "inverse", _INVERSE | dict(n_layer=3), ""),
    ("GPT2LMHeadModel", "upcast", dict(reorder_and_upcast_attn=True), "fp32"),
    ("GPT2LMHeadModel", "cross", _INVERSE | dict(add_cross_attention=True), "source"),
    ("GPT2LMHeadModel", "uncrossed", dict(add_cross_attention=True), ""),
    ("GPT2DoubleHeadsModel", "last", dict(summary_activation="gelu"), "last !choice"),
    ("GPT2LMHeadModel", "bare", {}, "bare"),
    ("CTRLModel", "keys", dict(layer_norm_epsilon=0.01, n_head=3), "types"),
    ("CTRLLMHeadModel", "untied", _UNTIED, ""),
    ("CTRLLMHeadModel", "bare", {}, "bare"),
    ("BartForConditionalGeneration", "deep", _DEEP, ""),
    ("BartForConditionalGeneration", "untied", _UNTIED, ""),
    ("BartModel", "shift", dict(decoder_start_token_id=5), "shift"),
    ("BartForCausalLM", "cross", dict(scale_embedding=True), "source"),
    ("BartForSequenceClassification", "three", {}, "", _NAMELESS),
    ("BartForConditionalGeneration", "bare", {}, "bare"),
    ("MBartForConditionalGeneration", "deep", _DEEP, ""),
    ("MBartForConditionalGeneration", "untied", _UNTIED, ""),
    ("MBartModel", "shift", {}, "shift"),
    ("MBartForCausalLM", "cross", dict(scale_embedding=True), "source"),
    ("MBartForConditionalGeneration", "bare", {}, "bare"),
    ("MarianMTModel", "deep", _DEEP | dict(d_model=30, activation_function="silu"), ""),
    ("MarianMTModel", "untied", _UNTIED, ""),
    ("MarianMTModel", "two", _TWO, ""),
    ("MarianMTModel", "two-untied", _UNTIED | dict(share_encoder_decoder_embeddings=False), ""),
    ("MarianForCausalLM", "cross", dict(scale_embedding=True), "source"),
    ("MarianMTModel", "bare", {}, "bare"),
    ("T5Model", "keys", dict(d_kv=5, num_heads=3, num_decoder_layers=3, layer_norm_epsilon=0.01), ""),
    ("T5Model", "buckets", dict(relative_attention_num_buckets=12, relative_attention_max_distance=7), ""),
    ("T5ForConditionalGeneration", "gated", _GATED, ""),
    ("T5ForConditionalGeneration", "silu", dict(feed_forward_proj="gated-silu", num_decoder_layers=1), ""),
    ("T5ForConditionalGeneration", "1.1", _UNTIED | _GATED, "loose"),
    ("T5ForConditionalGeneration", "published", _UNTIED | _GATED, "loose", _OLD),
    ("T5ForConditionalGeneration", "bare", {}, "bare"),
    ("MT5ForConditionalGeneration", "loose", {}, "loose", _OLD),
    ("MT5ForConditionalGeneration", "bare", {}, "bare"),
    (_SWITCH, "overflow", dict(expert_capacity=2), "!left"),
    (_SWITCH, "keys", dict(router_bias=True, dense_act_fn="gelu_new", d_kv=5), ""),
    (_SWITCH, "steps",
     dict(num_layers=4, num_decoder_layers=2, num_sparse_encoder_layers=2, num_sparse_decoder_layers=2), ""),
    (_SWITCH, "none",
     dict(num_layers=2, num_sparse_encoder_layers=0, num_sparse_decoder_layers=3), ""),
    (_SWITCH, "untied", _UNTIED, ""),
    (_SWITCH, "bare", {}, "bare"),
    ("CLIPModel", "highest", dict(text_config=TEXT_SIZES | _HIGHEST), ""),
    ("CLIPTextModel", "highest", _HIGHEST, ""),
    ("ViTModel", "keys", _KEYS | dict(hidden_act="relu", num_channels=1, pooler_output_size=9, pooler_act="relu"), ""),
    ("ViTForImageClassification", "bare", dict(image_size=9, patch_size=2, encoder_stride=7), "bare"),
    ("CLIPVisionModel", "keys", _KEYS | dict(num_channels=2, patch_size=3), ""),
    ("CLIPModel", "bare", {}, "bare"),
    ("LlamaForCausalLM", "keys", _HEADS | dict(hidden_act="gelu", rms_norm_eps=0.01), ""),
    ("LlamaForCausalLM", "biases", dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True), ""),
    ("LlamaModel", "llama3", dict(head_dim=8, rope_parameters=_ROPE3), ""),
    ("LlamaModel", "linear", _LINEAR, ""),
    ("LlamaModel", "published", _LINEAR, "",
     dict(rope_parameters=None, head_dim=None, rope_theta=5e3, rope_scaling=dict(type="linear", factor=3.0))),
    ("LlamaForCausalLM", "bare", {}, "bare"),
    ("ModernBertModel", "every", _EVERY | dict(local_attention=6), ""),
    ("ModernBertModel", "published", _EVERY, "",
     dict(layer_types=None, rope_parameters=None, global_rope_theta=1.6e5, local_rope_theta=1e4)),
    ("ModernBertForMaskedLM", "biases", _BIASES | dict(norm_eps=0.01), ""),
    ("ModernBertForMaskedLM", "untied",
     _UNTIED | dict(hidden_activation="silu", classifier_activation="relu"), ""),
    ("ModernBertForSequenceClassification", "mean", dict(classifier_pooling="mean"), "-first"),
    ("ModernBertForMultipleChoice", "mean", dict(classifier_pooling="mean"), "fp32 !none"),
    ("ModernBertForMaskedLM", "bare", {}, "bare"),
]  # fmt: skip
