"""Reference models: tiny random models of every class of `transformers`, their inputs and outputs.

Inputs are arguments of `Model.run`; outputs are `{name: (tensor, axes)}` under its names. The axes
are one letter each:

    n  a row of the batch (or a choice)    t  a token of the last stack    s  a source token
    k  memory, then tokens                 q  tokens, then targets         .  anything else
"""

from __future__ import annotations

import inspect
import json
import os
import zlib
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

# The device of both models; QKV_DEVICE=cuda is a GPU. Results are compared on the CPU.
DEVICE = os.environ.get("QKV_DEVICE", "cpu")
torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False

Inputs = dict[str, Tensor]
Outputs = dict[str, tuple[Tensor, str]]
Row = dict[str, Tensor]

# Each class: its outputs as `name:axes=field`, and words on what its head reads:
#   first, last, mean   a column, or all columns: padding too, unless the row runs alone
#   shift               decoder inputs are made from input_ids    eos    the state at the end token
#   choices             input_ids are (B, C, T)                   beam   starts are chosen first
#   image, text         the modality (`text` needs an end token)
CLASSES = """
BertModel                                   pooler_output:n                                                   first
BertForPreTraining                          logits:nt=prediction_logits seq_relationship_logits:n             first
BertLMHeadModel                             logits:nt
BertForMaskedLM                             logits:nt
BertForNextSentencePrediction               seq_relationship_logits:n=logits                                  first
BertForSequenceClassification               logits:n                                                          first
BertForMultipleChoice                       logits:n mc_logits:n=logits                                       first choices
BertForTokenClassification                  logits:nt
BertForQuestionAnswering                    start_logits:nt end_logits:nt
RobertaModel                                pooler_output:n                                                   first
RobertaForCausalLM                          logits:nt
RobertaForMaskedLM                          logits:nt
RobertaForSequenceClassification            logits:n                                                          first
RobertaForMultipleChoice                    logits:n mc_logits:n=logits                                       first choices
RobertaForTokenClassification               logits:nt
RobertaForQuestionAnswering                 start_logits:nt end_logits:nt
AlbertModel                                 pooler_output:n                                                   first
AlbertForPreTraining                        logits:nt=prediction_logits seq_relationship_logits:n=sop_logits  first
AlbertForMaskedLM                           logits:nt
AlbertForSequenceClassification             logits:n                                                          first
AlbertForMultipleChoice                     logits:n mc_logits:n=logits                                       first choices
AlbertForTokenClassification                logits:nt
AlbertForQuestionAnswering                  start_logits:nt end_logits:nt
DistilBertModel
DistilBertForMaskedLM                       logits:nt
DistilBertForSequenceClassification         logits:n                                                          first
DistilBertForMultipleChoice                 logits:n mc_logits:n=logits                                       first choices
DistilBertForTokenClassification            logits:nt
DistilBertForQuestionAnswering              start_logits:nt end_logits:nt
ElectraModel
ElectraForPreTraining                       logits:nt
ElectraForCausalLM                          logits:nt
ElectraForMaskedLM                          logits:nt
ElectraForSequenceClassification            logits:n                                                          first
ElectraForMultipleChoice                    logits:n mc_logits:n=logits                                       first choices
ElectraForTokenClassification               logits:nt
ElectraForQuestionAnswering                 start_logits:nt end_logits:nt
XLNetModel
XLNetLMHeadModel                            logits:nt
XLNetForSequenceClassification              logits:n                                                          last
XLNetForMultipleChoice                      logits:n mc_logits:n=logits                                       last choices
XLNetForTokenClassification                 logits:nt
XLNetForQuestionAnsweringSimple             start_logits:nt end_logits:nt
XLNetForQuestionAnswering                   start_logits:nt end_logits:n.t logits:n=cls_logits                beam
OpenAIGPTModel
OpenAIGPTLMHeadModel                        logits:nt
OpenAIGPTDoubleHeadsModel                   logits:nt mc_logits:n                                             choices
OpenAIGPTForSequenceClassification          logits:n
GPT2Model
GPT2LMHeadModel                             logits:nt
GPT2DoubleHeadsModel                        logits:nt mc_logits:n                                             choices
GPT2ForSequenceClassification               logits:n
GPT2ForTokenClassification                  logits:nt
GPT2ForQuestionAnswering                    start_logits:nt end_logits:nt
CTRLModel
CTRLLMHeadModel                             logits:nt
CTRLForSequenceClassification               logits:n
BartModel
BartForConditionalGeneration                logits:nt
BartForSequenceClassification               logits:n                                                          shift eos
BartForQuestionAnswering                    start_logits:nt end_logits:nt                                     shift
BartForCausalLM                             logits:nt
MBartModel
MBartForConditionalGeneration               logits:nt
MBartForSequenceClassification              logits:n                                                          shift eos
MBartForQuestionAnswering                   start_logits:nt end_logits:nt                                     shift
MBartForCausalLM                            logits:nt
MarianModel
MarianMTModel                               logits:nt
MarianForCausalLM                           logits:nt
T5Model
T5EncoderModel
T5ForConditionalGeneration                  logits:nt
T5ForSequenceClassification                 logits:n                                                          shift eos
T5ForTokenClassification                    logits:nt
T5ForQuestionAnswering                      start_logits:nt end_logits:nt                                     shift
MT5Model
MT5EncoderModel
MT5ForConditionalGeneration                 logits:nt
MT5ForSequenceClassification                logits:n                                                          shift eos
MT5ForTokenClassification                   logits:nt
MT5ForQuestionAnswering                     start_logits:nt end_logits:nt                                     shift
SwitchTransformersModel
SwitchTransformersEncoderModel
SwitchTransformersForConditionalGeneration  logits:nt
CLIPModel                                   logits:..=logits_per_image text_embeds:n image_embeds:n           text image
CLIPTextModel                               pooler_output:n                                                   text
CLIPTextModelWithProjection                 text_embeds:n                                                     text
CLIPVisionModel                             pooler_output:n                                                   image
CLIPVisionModelWithProjection               image_embeds:n                                                    image
CLIPForImageClassification                  logits:n                                                          image
LlamaModel
LlamaForCausalLM                            logits:nt
LlamaForSequenceClassification              logits:n
LlamaForTokenClassification                 logits:nt
LlamaForQuestionAnswering                   start_logits:nt end_logits:nt
ModernBertModel
ModernBertForMaskedLM                       logits:nt
ModernBertForSequenceClassification         logits:n                                                          first
ModernBertForMultipleChoice                 logits:n mc_logits:n=logits                                       choices
ModernBertForTokenClassification            logits:nt
ModernBertForQuestionAnswering              start_logits:nt end_logits:nt
"""

# Module of transformers: the prefix of its class names, and tiny sizes.
_BERT = dict(
    vocab_size=53, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40
)
_BERT |= dict(max_position_embeddings=17, type_vocab_size=3)
_XLNET = dict(vocab_size=53, d_model=24, n_layer=2, n_head=4, d_inner=40)
_DISTIL = dict(
    vocab_size=53, dim=24, n_layers=2, n_heads=4, hidden_dim=40, max_position_embeddings=17
)
_GPT = dict(vocab_size=53, n_positions=17, n_embd=24, n_layer=2, n_head=4, pad_token_id=4)
_BART = dict(
    vocab_size=53, d_model=24, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4
)
_BART |= dict(
    decoder_attention_heads=4, encoder_ffn_dim=40, decoder_ffn_dim=40, max_position_embeddings=17
)
_T5 = dict(
    vocab_size=53, d_model=24, d_kv=6, d_ff=40, num_layers=2, num_heads=4, decoder_start_token_id=0
)
_T5 |= dict(relative_attention_num_buckets=8, relative_attention_max_distance=12)
_EXPERTS = dict(num_layers=3, num_decoder_layers=3, num_experts=3, expert_capacity=20)
_EXPERTS |= dict(num_sparse_encoder_layers=1, num_sparse_decoder_layers=1)
_TEXT = dict(
    vocab_size=53, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40
)
_TEXT |= dict(max_position_embeddings=17, projection_dim=10, eos_token_id=7, bos_token_id=6)
_IMAGE = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=28)
_IMAGE |= dict(image_size=12, patch_size=4, projection_dim=10)
_LLAMA = dict(
    vocab_size=53, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40
)
SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", _BERT),
    "roberta": ("Roberta", _BERT),
    "albert": ("Albert", _BERT | dict(embedding_size=12)),
    "distilbert": ("DistilBert", _DISTIL),
    "electra": ("Electra", _BERT | dict(embedding_size=12)),
    "xlnet": ("XLNet", _XLNET | dict(mem_len=5, start_n_top=3, end_n_top=2)),
    "openai": ("OpenAIGPT", _GPT),
    "gpt2": ("GPT2", _GPT | dict(n_inner=40)),
    "ctrl": ("CTRL", _GPT | dict(dff=40)),
    "bart": ("Bart", _BART),
    "mbart": ("MBart", _BART),
    "marian": ("Marian", _BART | dict(pad_token_id=52, decoder_start_token_id=3)),
    "t5": ("T5", _T5),
    "mt5": ("MT5", _T5),
    "switch_transformers": ("SwitchTransformers", _T5 | _EXPERTS),
    "clip": ("CLIP", dict(text_config=_TEXT, vision_config=_IMAGE, projection_dim=10)),
    "llama": ("Llama", _LLAMA | dict(pad_token_id=4, max_position_embeddings=32)),
    "modernbert": ("ModernBert", _LLAMA | dict(pad_token_id=4, num_hidden_layers=3, local_attention=4)),
}  # fmt: skip

# Further cases: class, name of the case, config keys, more words:
#   source      encoder_hidden_states are given          types    token_type_ids are given
#   memory      mems are given                           permute  perm_mask and target_mapping are given
#   loose       lm_head is a tensor of its own whatever the config says
#   bare        config.json without the keys that have their default value
#   alone       the reference runs rows one by one, because it cannot run them together
#   fp32        the reference cannot run in fp64
#   !left       no left padding: it would take an expert's capacity, or lie between memory and row
#   !none       only with padding: the reference needs a mask     !choice  without mc_token_ids
#   -first      a word of the class that does not apply
# and changes to the written config.json (None removes the key): the spellings of published folders.
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
Edit = dict[str, Any]
VARIANTS: list[tuple[str, str, dict[str, Any], str] | tuple[str, str, dict[str, Any], str, Edit]] = [
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
    ("CLIPModel", "highest", dict(text_config=_TEXT | _HIGHEST), ""),
    ("CLIPTextModel", "highest", _HIGHEST, ""),
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

# What the reference computes in fp32 even in an fp64 model: the tolerance is 1e-6.
DROPS = {
    "t5": "the norm's variance",
    "mt5": "the norm's variance",
    "switch_transformers": "the norm's variance, the router",
    "xlnet": "the sinusoids of the distances",
    "ctrl": "the position table",
    "marian": "the position table",
    "clip": "the softmax",
    "llama": "the norm, the rotary table",
    "modernbert": "the rotation, the softmax",
}

# Positions count padding and cannot be given: left-padded rows run alone.
COUNTS_PADS = {"bart", "mbart", "marian"}

PADDINGS = ("none", "left", "right", "embeds")
LENGTHS, TARGETS, SOURCES = (
    (9, 6, 4, 8, 5, 7),
    (5, 7, 3),
    (4, 2, 5),
)  # of rows, decoder inputs, given states
B, C, T, U, S, M, P = 3, 2, max(LENGTHS), max(TARGETS), max(SOURCES), 4, 2


@dataclass(frozen=True, eq=False)
class Case:
    """A class of transformers with a config."""

    name: str
    family: str
    kind: str  # the name of the class
    sizes: dict[str, Any]
    reads: dict[str, tuple[str, str]]  # output: axes, field of the class's output
    words: frozenset[str]
    edit: Edit

    @property
    def decoder(self) -> bool:
        """Whether it has only a decoder."""
        is_part = self.family in COUNTS_PADS and self.kind.endswith("ForCausalLM")
        return is_part or self.family in {"openai", "gpt2", "ctrl", "llama"}

    @property
    def both(self) -> bool:
        """Whether it has an encoder and a decoder."""
        families = {"bart", "mbart", "marian", "t5", "mt5", "switch_transformers"}
        single_stack = ("ForCausalLM", "EncoderModel", "ForTokenClassification")
        return self.family in families and not self.kind.endswith(single_stack)

    @property
    def keep(self) -> tuple[str, ...]:
        """The `extra_outputs` of the case."""
        # Since 5.22 its router logits are logits.
        has_router = self.family == "switch_transformers" and transformers.__version__ >= "5.22"
        return ("hidden_states", "router_logits") if has_router else ("hidden_states",)

    def paddings(self) -> list[str]:
        """The paddings to test."""
        skip = {"right", "left"} if "text" not in self.words and "image" in self.words else set()
        skip |= {word[1:] for word in self.words if word.startswith("!")}
        is_base_class = self.kind == f"{SIZES[self.family][0]}Model" and self.name.endswith("Model")
        skip |= set() if is_base_class and self.family != "clip" else {"embeds"}  # once a family
        return [p for p in PADDINGS if p not in skip]

    def alone(self, padding: str, dtype: torch.dtype) -> bool:
        """Whether rows run one by one, because the reference would read or count padding."""
        if padding not in ("left", "right") or "alone" in self.words:
            return "alone" in self.words
        # A padding query attends to no key: fp64's lowest number is -inf in their fp32 softmax.
        has_nan = {"left": ("clip", "llama", "modernbert"), "right": ("modernbert",)}
        if dtype == torch.float64 and self.family in has_nan[padding]:
            return True
        if padding == "left" and self.family in COUNTS_PADS:
            return True
        reads = {"left": {"first", "mean", "shift", "beam"}, "right": {"last", "mean", "beam"}}
        return bool(reads[padding] & self.words)

    def __repr__(self) -> str:
        return self.name


def cases() -> Iterator[Case]:
    rows = {row.split()[0]: row.split()[1:] for row in CLASSES.strip().splitlines()}
    classes: list[Any] = [(kind, "", {}, "") for kind in rows]
    for kind, label, changes, more_words, *edit in classes + VARIANTS:
        family = next(f for f, (start, _) in SIZES.items() if kind.startswith(start))
        sizes = SIZES[family][1]
        if kind.startswith(("CLIPText", "CLIPVision")):
            sizes = sizes["text_config" if "Text" in kind else "vision_config"]
        if "Classification" in kind:
            names = {n: f"label {n}" for n in range(changes.get("num_labels", 3))}
            sizes = sizes | dict(id2label=names, label2id={name: n for n, name in names.items()})
        outputs = [word.replace("=", ":").split(":") for word in rows[kind] if ":" in word]
        words = {word for word in rows[kind] if ":" not in word} | set(more_words.split())
        yield Case(
            name="-".join(filter(None, (family, kind, label))),
            family=family,
            kind=kind,
            sizes=sizes | {k: v for k, v in changes.items() if k != "num_labels"},
            reads={name: (axes, (field or [name])[0]) for name, axes, *field in outputs},
            words=frozenset(
                words - {word.removeprefix("-") for word in words if word.startswith("-")}
            ),
            edit=edit[0] if edit else {},
        )


CASES = list(cases())


@cache
def make(case: Case, dtype: torch.dtype = torch.float32) -> Any:
    """Return the reference model with random tensors."""
    if dtype != torch.float32:
        model = deepcopy(make(case)).to(dtype)
        if case.family == "xlnet":  # its query stream multiplies an fp32 table with fp64 weights
            base = getattr(model, "transformer", model)
            table = type(base).relative_positional_encoding
            base.relative_positional_encoding = lambda *a, **k: table(base, *a, **k).to(dtype)
        return model
    kind = getattr(transformers, case.kind)
    model = kind(kind.config_class(**deepcopy(case.sizes), attn_implementation="eager")).eval()
    if "loose" in case.words:
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
        model.all_tied_weights_keys.pop("lm_head.weight")
    generator = torch.Generator().manual_seed(zlib.crc32(case.name.encode()))
    tensors = dict(model.named_parameters())
    tensors |= {name: x for name, x in model.named_buffers() if "logits_bias" in name}
    with torch.no_grad():
        for name, tensor in tensors.items():
            noise = torch.randn(tensor.shape, generator=generator)
            if name.endswith("embed_positions.weight") and case.family == "marian":
                continue  # sinusoids
            if tensor.ndim == 0:
                tensor.copy_(0.7 + 0.1 * noise)
            elif tensor.ndim == 1 and name.endswith("weight"):
                tensor.copy_(1 + 0.2 * noise)
            else:  # small values where every layer computes in fp32, so that its error does not grow
                is_small = case.family in DROPS and case.family not in ("xlnet", "ctrl", "marian")
                is_embedding = "embed" in name or "shared" in name
                tensor.copy_((0.25 if not is_small else 0.3 if is_embedding else 0.1) * noise)
    return model.to(DEVICE)


def save(case: Case, folder: Path, **options: Any) -> Path:
    """Save the reference model, then add an unknown key and the case's edits to config.json."""
    model = make(case)
    model.save_pretrained(folder, **options)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    if "bare" in case.words:
        required = {key: config[key] for key in ("architectures", "model_type")}
        default = json.loads(type(model.config)().to_json_string(use_diff=False))
        config = changed_keys(config, default) | required
    config |= {"made_up": {"of": [1, "two", None]}} | case.edit
    config = {
        key: value for key, value in config.items() if value is not None or key not in case.edit
    }
    path.write_text(json.dumps(config))
    return folder


def changed_keys(config: Edit, default: Edit) -> Edit:
    """Return the keys that differ from the default."""
    nested = {
        key: changed_keys(value, default[key])
        for key, value in config.items()
        if key.endswith("_config")
    }
    return {key: value for key, value in config.items() if value != default.get(key, ...)} | nested


def inputs(case: Case, padding: str, dtype: torch.dtype = torch.float32) -> Inputs:
    """Return the arguments of `Model.run`."""
    generator = torch.Generator().manual_seed(1 + zlib.crc32(case.name.encode()))
    normal = partial(torch.randn, generator=generator, dtype=torch.float64)
    config = make(case).config
    config = getattr(config, "text_config", config)
    shape = (B, C) if "choices" in case.words else (B,)
    lengths = torch.tensor(LENGTHS[: B * C] if "choices" in case.words else LENGTHS[:B])
    if padding in ("none", "embeds"):
        lengths = torch.full_like(lengths, T)
    is_padded = padding in ("left", "right")
    x: Inputs = {}
    if "text" in case.words or "image" not in case.words:
        mask = token_mask(lengths, T, padding)
        x["input_ids"] = tokens(config, config.vocab_size, mask, generator)
        ends = (torch.arange(T) * mask).argmax(1)  # of the last token of a row
        rows = torch.arange(len(mask))
        if "text" in case.words and config.eos_token_id == 2:
            x["input_ids"][rows, ends] = config.vocab_size - 1
        elif "text" in case.words or "eos" in case.words:
            x["input_ids"][rows, ends] = config.eos_token_id
            if "text" in case.words:
                x["input_ids"][0, ends[0] - 3] = config.eos_token_id  # the first one counts
        num_types = getattr(config, "type_vocab_size", 0) or ("types" in case.words and 2)
        if num_types:
            x["token_type_ids"] = torch.randint(num_types, mask.shape, generator=generator)
        if case.kind.endswith("DoubleHeadsModel") and "!choice" not in case.words:
            x["mc_token_ids"] = ends - torch.arange(len(mask)) % 2
        if is_padded:
            x["attention_mask"] = mask
        x = {key: value.unflatten(0, shape) for key, value in x.items()}
    if "image" in case.words:
        vision = getattr(make(case).config, "vision_config", config)
        x["pixel_values"] = normal(B, vision.num_channels, vision.image_size, vision.image_size)
    if case.both and "shift" not in case.words:
        lengths = torch.tensor(TARGETS) if is_padded else torch.full((B,), U)
        mask = token_mask(lengths, U, padding)
        vocab_size = getattr(config, "decoder_vocab_size", config.vocab_size)
        x["decoder_input_ids"] = tokens(config, vocab_size, mask, generator)
        if is_padded:
            x["decoder_attention_mask"] = mask
    if "source" in case.words:
        x["encoder_hidden_states"] = normal(B, S, config.hidden_size)
        if is_padded:
            x["encoder_attention_mask"] = token_mask(torch.tensor(SOURCES), S, padding)
    if "memory" in case.words:
        x["mems"] = normal(config.n_layer, B, M, config.d_model)
    if "permute" in case.words:  # a random factorization order; the targets are late in it
        order = torch.stack([torch.randperm(T, generator=generator) for _ in range(B)])
        order = (
            torch.where(x["attention_mask"], order, order + T) if "attention_mask" in x else order
        )
        rank = order.argsort(1).argsort(1)
        x["perm_mask"] = (rank[:, :, None] <= rank[:, None, :]).to(torch.float64)
        targets = rank.argsort(1).gather(1, torch.stack([lengths // 2, lengths - 1], 1))  # (B, P)
        x["target_mapping"] = (torch.arange(T) == targets[:, :, None]).to(torch.float64)
    if padding == "embeds":
        shape = (*x.pop("input_ids").shape, make(case).get_input_embeddings().embedding_dim)
        x["inputs_embeds"] = normal(shape)
    return {
        key: value.to(dtype) if value.is_floating_point() else value for key, value in x.items()
    }


def token_mask(lengths: Tensor, width: int, padding: str) -> Tensor:
    """Return the attention mask (B, width) of rows of these lengths."""
    columns = torch.arange(width)
    if padding == "left":
        return columns >= width - lengths[:, None]
    return columns < lengths[:, None]


def tokens(config: Any, vocab_size: int, mask: Tensor, generator: torch.Generator) -> Tensor:
    """Return random ids with padding outside of the mask, and neither pads nor end tokens inside."""
    pad = 0 if config.pad_token_id is None else config.pad_token_id
    allowed = torch.tensor([n for n in range(vocab_size) if n not in (pad, config.eos_token_id)])
    ids = allowed[torch.randint(len(allowed), mask.shape, generator=generator)]
    return torch.where(mask, ids, pad)


def theirs(case: Case, x: Inputs) -> dict[str, Any]:
    """Return the arguments of the reference model's forward."""
    y: dict[str, Any] = {k: v.long() if v.dtype == torch.bool else v.clone() for k, v in x.items()}
    if "mems" in x:
        y["mems"] = list(x["mems"].transpose(1, 2))  # (layers, B, M, W) -> a list of (M, B, W)
    accepted = inspect.signature(make(case).forward).parameters
    if "attention_mask" in x:
        y["attention_mask"] = y["attention_mask"].flatten(0, -2)
        if "position_ids" in accepted and case.family != "roberta":  # which skips padding itself
            y["position_ids"] = (y["attention_mask"].cumsum(1) - 1).clamp(min=0)
    return y


def run(case: Case, model: Any, x: Inputs) -> Outputs:
    """Run the reference model on DEVICE; return its outputs under the names of `Model.run`."""
    if DEVICE == "cpu":
        return run_on_device(case, model, x)
    outputs = run_on_device(case, model, {name: value.to(DEVICE) for name, value in x.items()})
    return {name: (value.cpu(), axes) for name, (value, axes) in outputs.items()}


def run_on_device(case: Case, model: Any, x: Inputs) -> Outputs:
    captured: dict[str, Tensor] = {}
    hooks = []
    # The beam head returns the best starts and ends only.
    for name in ("start_logits", "end_logits") if "beam" in case.words else ():
        capture = lambda module, args, out, name=name: captured.update({name: out})  # noqa: E731
        hooks.append(getattr(model, name).register_forward_hook(capture))
    settings = {"output_router_logits": True} if "router_logits" in case.keep else {}
    out = model(**theirs(case, x), **settings, output_hidden_states=True, output_attentions=True)
    for hook in hooks:
        hook.remove()
    if captured:
        captured["end_logits"] = captured["end_logits"].transpose(1, 2)  # (B, T, K) -> (B, K, T)
    fields = {**out, **captured}
    outputs: Outputs = {name: (fields[field], axes) for name, (axes, field) in case.reads.items()}
    if case.kind == "CLIPModel":
        outputs |= attention("text.encoder", "attention", out.text_model_output.attentions, "n.tt")
        return outputs | attention(
            "image.encoder", "attention", out.vision_model_output.attentions, "n..."
        )
    if case.both:
        outputs |= states("hidden_states", out.decoder_hidden_states, "nt")
        outputs |= states("encoder_hidden_states", out.encoder_hidden_states, "ns")
        outputs["last_hidden_state"] = (out.decoder_hidden_states[-1], "nt")
        outputs["encoder_last_hidden_state"] = (out.encoder_last_hidden_state, "ns")
        outputs |= states("router_logits", out.get("decoder_router_logits") or (), "nt")
        outputs |= states("encoder_router_logits", out.get("encoder_router_logits") or (), "ns")
        outputs |= attention("encoder", "attention", out.encoder_attentions, "n.ss")
        outputs |= attention("decoder", "attention", out.decoder_attentions, "n.tt")
        return outputs | attention("decoder", "cross_attention", out.cross_attentions, "n.ts")
    last = out.get("last_hidden_state")
    hidden_states = list(out.hidden_states)
    weights = list(out.attentions)
    stack = "decoder" if case.decoder else "encoder"
    state_axes, weight_axes = "nt", "n.tk"
    if case.family == "clip":
        stack = "text.encoder" if "text" in case.words else "image.encoder"
        state_axes, weight_axes = ("nt", "n.tt") if "text" in case.words else ("n.", "n...")
        hidden_states[-1] = (
            hidden_states[-1] if last is None else last
        )  # hidden_states are taken before the final norm
    if "target_mapping" in x:  # streams alternate; the query stream's weights have a row a token
        hidden_states = [
            torch.cat(pair, 1) for pair in zip(hidden_states[::2], hidden_states[1::2], strict=True)
        ]
        index = x["target_mapping"].argmax(2)[:, None, :, None]  # (B, 1, P, 1)
        weights = [torch.cat([h, g.take_along_dim(index, 2)], 2) for h, g in weights]
        outputs["last_hidden_state"] = (hidden_states[-1][:, -P:], "n.")
        outputs |= {
            name: (value, "n." if axes == "nt" else axes) for name, (value, axes) in outputs.items()
        }
        state_axes, weight_axes = "nq", "n.qk"
    elif case.family != "clip" or last is not None:
        outputs["last_hidden_state"] = (hidden_states[-1], state_axes)
    if out.get("mems") is not None and "attention_mask" not in x:
        outputs["mems"] = (torch.stack(out.mems).transpose(1, 2), ".n.")
    outputs |= states("hidden_states", hidden_states, state_axes)
    outputs |= states("router_logits", out.get("router_logits") or (), "nt")
    outputs |= attention(stack, "attention", weights, weight_axes)
    return outputs | attention(stack, "cross_attention", out.get("cross_attentions") or (), "n.ts")


def states(name: str, tensors: Any, axes: str) -> Outputs:
    return {f"{name}.{n}": (tensor, axes) for n, tensor in enumerate(tensors)}


def attention(stack: str, part: str, tensors: Any, axes: str) -> Outputs:
    return {f"{stack}.layers.{n}.{part}": (tensor, axes) for n, tensor in enumerate(tensors)}


def single(x: Inputs, n: int) -> Inputs:
    """Return row `n` of the arguments without padding, as a batch of one."""
    batch_dims = x["input_ids"].ndim - 1
    mask = x.get("attention_mask", torch.ones_like(x["input_ids"], dtype=torch.bool)).flatten(
        0, -2
    )[n]
    row_masks = {"input_ids": mask, "token_type_ids": mask, "perm_mask": mask}
    masks = {
        "decoder_input_ids": "decoder_attention_mask",
        "encoder_hidden_states": "encoder_attention_mask",
    }
    row_masks |= {key: x[name][n] for key, name in masks.items() if name in x}
    y = {}
    for key, value in x.items():
        if key == "mc_token_ids":
            y[key] = (mask.cumsum(0) - 1)[value.flatten()[n]].view(1, 1)
        elif key == "mems":
            y[key] = value[:, n : n + 1]
        elif not key.endswith("attention_mask"):
            row = value.flatten(0, batch_dims - 1)[n][row_masks.get(key, slice(None))]
            y[key] = (row[:, mask] if key in ("perm_mask", "target_mapping") else row)[
                (None,) * batch_dims
            ]
    return y


def rows(outputs: Outputs, x: Inputs) -> list[Row]:
    """Return the values at tokens, row by row; what belongs to no row goes to the first."""
    batch_shape = next(iter(x.values())).shape[:1]  # (B,) or (B, C)
    width = 0
    if "input_ids" in x:
        *batch_dims, width = x["input_ids"].shape
        batch_shape = torch.Size(batch_dims)
    elif "inputs_embeds" in x:
        batch_shape, width = x["inputs_embeds"].shape[:1], x["inputs_embeds"].shape[1]
    count = batch_shape.numel()
    t = torch.ones(count, width, dtype=torch.bool)
    if "attention_mask" in x:
        t = x["attention_mask"].flatten(0, -2)
    s = t
    if "encoder_hidden_states" in x:
        s = torch.ones(x["encoder_hidden_states"].shape[:2], dtype=torch.bool)
    s = x.get("encoder_attention_mask", s)
    if "decoder_input_ids" in x:
        t = x.get(
            "decoder_attention_mask", torch.ones_like(x["decoder_input_ids"], dtype=torch.bool)
        )
    memory = torch.ones(count, x["mems"].shape[2] if "mems" in x else 0, dtype=torch.bool)
    num_targets = x["target_mapping"].shape[1] if "target_mapping" in x else 0
    targets = torch.ones(count, num_targets, dtype=torch.bool)
    masks = {"t": t, "s": s, "k": torch.cat([memory, t], 1), "q": torch.cat([t, targets], 1)}
    selected: list[Row] = [{} for _ in range(count)]
    for name, (value, axes) in outputs.items():
        if "n" not in axes:
            selected[0][name] = value
            continue
        if len(batch_shape) == 2 and value.shape[:2] == batch_shape:
            value = value.flatten(0, 1)  # (B, C, ...) -> (B*C, ...)
        for n in range(count):
            part = value
            for axis, letter in reversed(list(enumerate(axes))):
                if letter == "n":
                    part = part.select(axis, n)
                elif letter != ".":
                    part = part.index_select(axis, masks[letter][n].nonzero()[:, 0])
            selected[n][name] = part
    return selected


def expected(
    case: Case, x: Inputs, padding: str, dtype: torch.dtype
) -> tuple[list[Row], dict[str, str]]:
    """Return the reference values at tokens, row by row, and the axes of each output."""
    model = make(case, dtype)
    if not case.alone(padding, dtype):
        outputs = run(case, model, x)
        return rows(outputs, x), {name: axes for name, (_, axes) in outputs.items()}
    parts = [single(x, n) for n in range(x["input_ids"].shape[:-1].numel())]
    results = [run(case, model, part) for part in parts]
    axes = {name: axes for name, (_, axes) in results[0].items() if "n" in axes}
    if "attention_mask" in x:
        axes.pop("mems", None)  # padding is remembered too
    selected = [
        rows({name: outputs[name] for name in axes}, part)[0]
        for outputs, part in zip(results, parts, strict=True)
    ]
    return selected, axes


def loss(selected: list[Row]) -> Tensor:
    """Return one number that depends on every output with a gradient."""
    total = torch.zeros((), dtype=torch.float64)
    for n, row in enumerate(selected):
        for name, value in row.items():
            if name == "mems" or "." in name:  # detached; part of another output
                continue
            generator = torch.Generator().manual_seed(zlib.crc32(f"{n} {name}".encode()))
            weight = torch.randn(value.shape, generator=generator, dtype=torch.float64)
            total = total + (value * weight).sum() / value.numel() ** 0.5
    return total


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Return the gradients, zeros where there are none, and reset them."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    grads = {
        name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in parameters.items()
    }
    model.zero_grad(set_to_none=True)
    return grads
