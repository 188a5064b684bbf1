"""The originals, as tables: tiny random models of every class of `transformers`, what goes in and comes out.

It knows nothing of qkv but the words of `Model.run`: an input is a dict of its arguments, an output is
`{name: (tensor, axes)}` under its names. One letter an axis says what stands there:

    n  a row (choices are rows)    t  a token of the last stack    s  a token of the source
    k  memory, then tokens         q  tokens, then targets         .  anything else
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

# Where both sides run: the CPU, or a GPU that `QKV_DEVICE=cuda` names. They are compared on the CPU.
DEVICE = os.environ.get("QKV_DEVICE", "cpu")
torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False

Inputs = dict[str, Tensor]
Outputs = dict[str, tuple[Tensor, str]]
Row = dict[str, Tensor]

# Every class: the outputs it has, `our name:axes=its field`, and words on what its head reads:
#   first, last, mean   a column, or all of them: pads too, unless a row goes through alone
#   shift               it makes the decoder's input from `ids`        eos    the state at the end token
#   choices             ids are (B, C, T)                              beam   it picks starts before ends
#   image, text         the modality (`text` needs an end token)
CLASSES = """
BertModel                                   pooled:n=pooler_output                                     first
BertForPreTraining                          logits:nt=prediction_logits pair:n=seq_relationship_logits first
BertLMHeadModel                             logits:nt
BertForMaskedLM                             logits:nt
BertForNextSentencePrediction               pair:n=logits                                              first
BertForSequenceClassification               logits:n                                                   first
BertForMultipleChoice                       logits:n choice:n=logits                           first choices
BertForTokenClassification                  logits:nt
BertForQuestionAnswering                    start:nt=start_logits end:nt=end_logits
RobertaModel                                pooled:n=pooler_output                                     first
RobertaForCausalLM                          logits:nt
RobertaForMaskedLM                          logits:nt
RobertaForSequenceClassification            logits:n                                                   first
RobertaForMultipleChoice                    logits:n choice:n=logits                           first choices
RobertaForTokenClassification               logits:nt
RobertaForQuestionAnswering                 start:nt=start_logits end:nt=end_logits
AlbertModel                                 pooled:n=pooler_output                                     first
AlbertForPreTraining                        logits:nt=prediction_logits pair:n=sop_logits              first
AlbertForMaskedLM                           logits:nt
AlbertForSequenceClassification             logits:n                                                   first
AlbertForMultipleChoice                     logits:n choice:n=logits                           first choices
AlbertForTokenClassification                logits:nt
AlbertForQuestionAnswering                  start:nt=start_logits end:nt=end_logits
DistilBertModel
DistilBertForMaskedLM                       logits:nt
DistilBertForSequenceClassification         logits:n                                                   first
DistilBertForMultipleChoice                 logits:n choice:n=logits                           first choices
DistilBertForTokenClassification            logits:nt
DistilBertForQuestionAnswering              start:nt=start_logits end:nt=end_logits
ElectraModel
ElectraForPreTraining                       logits:nt
ElectraForCausalLM                          logits:nt
ElectraForMaskedLM                          logits:nt
ElectraForSequenceClassification            logits:n                                                   first
ElectraForMultipleChoice                    logits:n choice:n=logits                           first choices
ElectraForTokenClassification               logits:nt
ElectraForQuestionAnswering                 start:nt=start_logits end:nt=end_logits
XLNetModel
XLNetLMHeadModel                            logits:nt
XLNetForSequenceClassification              logits:n                                                    last
XLNetForMultipleChoice                      logits:n choice:n=logits                            last choices
XLNetForTokenClassification                 logits:nt
XLNetForQuestionAnsweringSimple             start:nt=start_logits end:nt=end_logits
XLNetForQuestionAnswering                   start:nt=start_logits end:n.t=end_logits logits:n=cls_logits beam
OpenAIGPTModel
OpenAIGPTLMHeadModel                        logits:nt
OpenAIGPTDoubleHeadsModel                   logits:nt choice:n=mc_logits                             choices
OpenAIGPTForSequenceClassification          logits:n
GPT2Model
GPT2LMHeadModel                             logits:nt
GPT2DoubleHeadsModel                        logits:nt choice:n=mc_logits                             choices
GPT2ForSequenceClassification               logits:n
GPT2ForTokenClassification                  logits:nt
GPT2ForQuestionAnswering                    start:nt=start_logits end:nt=end_logits
CTRLModel
CTRLLMHeadModel                             logits:nt
CTRLForSequenceClassification               logits:n
BartModel
BartForConditionalGeneration                logits:nt
BartForSequenceClassification               logits:n                                               shift eos
BartForQuestionAnswering                    start:nt=start_logits end:nt=end_logits                    shift
BartForCausalLM                             logits:nt
MBartModel
MBartForConditionalGeneration               logits:nt
MBartForSequenceClassification              logits:n                                               shift eos
MBartForQuestionAnswering                   start:nt=start_logits end:nt=end_logits                    shift
MBartForCausalLM                            logits:nt
MarianModel
MarianMTModel                               logits:nt
MarianForCausalLM                           logits:nt
T5Model
T5EncoderModel
T5ForConditionalGeneration                  logits:nt
T5ForSequenceClassification                 logits:n                                               shift eos
T5ForTokenClassification                    logits:nt
T5ForQuestionAnswering                      start:nt=start_logits end:nt=end_logits                    shift
MT5Model
MT5EncoderModel
MT5ForConditionalGeneration                 logits:nt
MT5ForSequenceClassification                logits:n                                               shift eos
MT5ForTokenClassification                   logits:nt
MT5ForQuestionAnswering                     start:nt=start_logits end:nt=end_logits                    shift
SwitchTransformersModel
SwitchTransformersEncoderModel
SwitchTransformersForConditionalGeneration  logits:nt
CLIPModel                                   logits:..=logits_per_image text:n=text_embeds image:n=image_embeds  text image
CLIPTextModel                               pooled:n=pooler_output                                      text
CLIPTextModelWithProjection                 text:n=text_embeds                                          text
CLIPVisionModel                             pooled:n=pooler_output                                     image
CLIPVisionModelWithProjection               image:n=image_embeds                                       image
CLIPForImageClassification                  logits:n                                                   image
LlamaModel
LlamaForCausalLM                            logits:nt
LlamaForSequenceClassification              logits:n
LlamaForTokenClassification                 logits:nt
LlamaForQuestionAnswering                   start:nt=start_logits end:nt=end_logits
ModernBertModel
ModernBertForMaskedLM                       logits:nt
ModernBertForSequenceClassification         logits:n                                                   first
ModernBertForMultipleChoice                 logits:n choice:n=logits                                 choices
ModernBertForTokenClassification            logits:nt
ModernBertForQuestionAnswering              start:nt=start_logits end:nt=end_logits
"""  # noqa: E501

# Module of transformers: the start of its class names, what a folder's `model_type` says, and tiny sizes.
_BERT = dict(vocab_size=53, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40)
_BERT |= dict(max_position_embeddings=17, type_vocab_size=3)
_XLNET = dict(vocab_size=53, d_model=24, n_layer=2, n_head=4, d_inner=40)
_DISTIL = dict(vocab_size=53, dim=24, n_layers=2, n_heads=4, hidden_dim=40, max_position_embeddings=17)
_GPT = dict(vocab_size=53, n_positions=17, n_embd=24, n_layer=2, n_head=4, pad_token_id=4)
_BART = dict(vocab_size=53, d_model=24, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4)
_BART |= dict(decoder_attention_heads=4, encoder_ffn_dim=40, decoder_ffn_dim=40, max_position_embeddings=17)
_T5 = dict(vocab_size=53, d_model=24, d_kv=6, d_ff=40, num_layers=2, num_heads=4, decoder_start_token_id=0)
_T5 |= dict(relative_attention_num_buckets=8, relative_attention_max_distance=12)
_EXPERTS = dict(num_layers=3, num_decoder_layers=3, num_experts=3, expert_capacity=20)
_EXPERTS |= dict(num_sparse_encoder_layers=1, num_sparse_decoder_layers=1)
_TEXT = dict(vocab_size=53, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40)
_TEXT |= dict(max_position_embeddings=17, projection_dim=10, eos_token_id=7, bos_token_id=6)
_IMAGE = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=28)
_IMAGE |= dict(image_size=12, patch_size=4, projection_dim=10)
_LLAMA = dict(vocab_size=53, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40)
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

# What implementations miss: class, a word for the case, the keys, more words:
#   source      states of another encoder are given             types    token types are given
#   memory      an earlier call's memory is given               permute  permutation mask and target mapping
#   loose       lm_head is its own tensor whatever the config says
#   bare        config.json without the keys that stand at their default
#   alone       rows go through the original one by one: it cannot take them together
#   fp32        the original cannot run in fp64
#   !left       not with left padding: pads would take an expert's room, or stand between memory and row
#   !none       only with padding: the original needs a mask       !choice  no token index for the double head
#   -first      not what the class says
# and the changes to config.json as written (None: the key goes), for the spellings of published folders.
_CROSS = dict(is_decoder=True, add_cross_attention=True)
_ROPE3 = dict(rope_type="llama3", rope_theta=5e3, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0)
_ROPE3 |= dict(original_max_position_embeddings=8)
_UNTIED = dict(tie_word_embeddings=False)
_OLD = dict(tie_word_embeddings=False, scale_decoder_outputs=None, dense_act_fn=None, is_gated_act=None)
_NAMELESS = dict(id2label=None, label2id=None)
_MULTI = dict(num_labels=5, problem_type="multi_label_classification")
_UNI = dict(attn_type="uni", ff_activation="relu", layer_norm_eps=0.01, mem_len=0)
_TWO = dict(share_encoder_decoder_embeddings=False, decoder_vocab_size=41, pad_token_id=40)
_GATED = dict(feed_forward_proj="gated-gelu")
_KEYS: dict[str, Any] = dict(hidden_act="gelu", layer_norm_eps=0.01)
_HIGHEST = _KEYS | dict(eos_token_id=2)
_LINEAR = dict(rope_parameters=dict(rope_type="linear", rope_theta=5e3, factor=3.0))
_BIASES = dict(norm_bias=True, attention_bias=True, mlp_bias=True, decoder_bias=False, classifier_bias=True)
_INVERSE = dict(scale_attn_by_inverse_layer_idx=True)
_EVERY = dict(global_attn_every_n_layers=2, num_hidden_layers=5)
_SWITCH = "SwitchTransformersForConditionalGeneration"
_HEADS: dict[str, Any] = dict(num_key_value_heads=2, head_dim=8)
_DEEP: dict[str, Any] = dict(encoder_layers=3, decoder_layers=1, encoder_ffn_dim=20, decoder_ffn_dim=36)
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

# Where the original drops to fp32 inside an fp64 model, and may be met within 1e-6 only.
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

# Positions are counted over pads there and cannot be given: a left-padded row goes through alone.
COUNTS_PADS = {"bart", "mbart", "marian"}

PADDINGS = ("none", "left", "right", "embeds")
LENGTHS, TARGETS, SOURCES = (9, 6, 4, 8, 5, 7), (5, 7, 3), (4, 2, 5)  # rows, the decoder's, given states
B, C, T, U, S, M, P = 3, 2, max(LENGTHS), max(TARGETS), max(SOURCES), 4, 2
WORDS = {  # our argument: theirs
    "ids": "input_ids", "mask": "attention_mask", "types": "token_type_ids", "embeds": "inputs_embeds",
    "target": "decoder_input_ids", "target_mask": "decoder_attention_mask", "images": "pixel_values",
    "source": "encoder_hidden_states", "source_mask": "encoder_attention_mask", "memory": "mems",
    "permute": "perm_mask", "targets": "target_mapping", "choice": "mc_token_ids",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Case:
    """A class of the originals with a config."""

    name: str
    family: str
    kind: str  # the class
    sizes: dict[str, Any]
    reads: dict[str, tuple[str, str]]  # our output: axes, their field
    words: frozenset[str]
    edit: Edit

    @property
    def decoder(self) -> bool:
        """It has no encoder, or none was saved."""
        part = self.family in COUNTS_PADS and self.kind.endswith("ForCausalLM")
        return part or self.family in {"openai", "gpt2", "ctrl", "llama"}

    @property
    def both(self) -> bool:
        """Encoder and decoder."""
        pairs = {"bart", "mbart", "marian", "t5", "mt5", "switch_transformers"}
        alone = ("ForCausalLM", "EncoderModel", "ForTokenClassification")
        return self.family in pairs and not self.kind.endswith(alone)

    @property
    def keep(self) -> tuple[str, ...]:
        """What more can be asked for."""
        routed = (
            self.family == "switch_transformers" and transformers.__version__ >= "5.22"
        )  # logits since then
        return ("hiddens", "router") if routed else ("hiddens",)

    def paddings(self) -> list[str]:
        """The ways its rows are laid out."""
        skip = {"right", "left"} if "text" not in self.words and "image" in self.words else set()
        skip |= {word[1:] for word in self.words if word.startswith("!")}
        plain = self.kind == f"{SIZES[self.family][0]}Model" and self.name.endswith("Model")  # once a family
        skip |= set() if plain and self.family != "clip" else {"embeds"}
        return [p for p in PADDINGS if p not in skip]

    def alone(self, padding: str, dtype: torch.dtype) -> bool:
        """Its rows go through one by one, because the original would read or count pads."""
        if padding not in ("left", "right") or "alone" in self.words:
            return "alone" in self.words
        blind = {"left": ("clip", "llama", "modernbert"), "right": ("modernbert",)}
        if dtype == torch.float64 and self.family in blind[padding]:
            return True  # a pad that sees nothing: fp64's lowest number is -inf in their fp32 softmax
        if padding == "left" and self.family in COUNTS_PADS:
            return True
        reads = {"left": {"first", "mean", "shift", "beam"}, "right": {"last", "mean", "beam"}}
        return bool(reads[padding] & self.words)

    def __repr__(self) -> str:
        return self.name


def cases() -> Iterator[Case]:
    rows = {row.split()[0]: row.split()[1:] for row in CLASSES.strip().splitlines()}
    plain: list[Any] = [(kind, "", {}, "") for kind in rows]
    for kind, label, changes, more, *edit in plain + VARIANTS:
        family = next(f for f, (start, _) in SIZES.items() if kind.startswith(start))
        sizes = SIZES[family][1]
        if kind.startswith(("CLIPText", "CLIPVision")):
            sizes = sizes["text_config" if "Text" in kind else "vision_config"]
        if "Classification" in kind:
            names = {n: f"label {n}" for n in range(changes.get("num_labels", 3))}
            sizes = sizes | dict(id2label=names, label2id={name: n for n, name in names.items()})
        outputs = [word.replace("=", ":").split(":") for word in rows[kind] if ":" in word]
        words = {word for word in rows[kind] if ":" not in word} | set(more.split())
        yield Case(
            name="-".join(filter(None, (family, kind, label))),
            family=family,
            kind=kind,
            sizes=sizes | {k: v for k, v in changes.items() if k != "num_labels"},
            reads={name: (axes, (field or [name])[0]) for name, axes, *field in outputs},
            words=frozenset(words - {word.removeprefix("-") for word in words if word.startswith("-")}),
            edit=edit[0] if edit else {},
        )


CASES = list(cases())


@cache
def make(case: Case, dtype: torch.dtype = torch.float32) -> Any:
    """The original, every tensor random and away from any symmetric value."""
    if dtype != torch.float32:
        model = deepcopy(make(case)).to(dtype)
        if case.family == "xlnet":  # with two streams it multiplies its fp32 table with fp64 weights
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
    held = dict(model.named_parameters()) | {k: v for k, v in model.named_buffers() if "logits_bias" in k}
    with torch.no_grad():
        for name, tensor in held.items():
            noise = torch.randn(tensor.shape, generator=generator)
            if name.endswith("embed_positions.weight") and case.family == "marian":
                continue  # the sinusoids, which are not for learning
            if tensor.ndim == 0:
                tensor.copy_(0.7 + 0.1 * noise)
            elif tensor.ndim == 1 and name.endswith("weight"):
                tensor.copy_(1 + 0.2 * noise)
            else:  # what drops to fp32 at every layer must not grow its error
                small = case.family in DROPS and case.family not in ("xlnet", "ctrl", "marian")
                embedding = "embed" in name or "shared" in name
                tensor.copy_((0.25 if not small else 0.3 if embedding else 0.1) * noise)
    return model.to(DEVICE)


def save(case: Case, folder: Path, **options: Any) -> Path:
    """Write the original as it writes itself, then mend config.json: an extra key, the case's edits."""
    model = make(case)
    model.save_pretrained(folder, **options)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    if "bare" in case.words:
        kept = {key: config[key] for key in ("architectures", "model_type")}
        config = bare(config, json.loads(type(model.config)().to_json_string(use_diff=False))) | kept
    config |= {"made_up": {"of": [1, "two", None]}} | case.edit
    config = {key: value for key, value in config.items() if value is not None or key not in case.edit}
    path.write_text(json.dumps(config))
    return folder


def bare(config: Edit, default: Edit) -> Edit:
    """Only what differs from the default."""
    nested = {key: bare(value, default[key]) for key, value in config.items() if key.endswith("_config")}
    return {key: value for key, value in config.items() if value != default.get(key, ...)} | nested


def inputs(case: Case, padding: str, dtype: torch.dtype = torch.float32) -> Inputs:
    """The arguments of `Model.run`."""
    generator = torch.Generator().manual_seed(1 + zlib.crc32(case.name.encode()))
    normal = partial(torch.randn, generator=generator, dtype=torch.float64)
    config = make(case).config
    config = getattr(config, "text_config", config)
    shape = (B, C) if "choices" in case.words else (B,)
    lengths = torch.tensor(LENGTHS[: B * C] if "choices" in case.words else LENGTHS[:B])
    if padding in ("none", "embeds"):
        lengths = torch.full_like(lengths, T)
    x: Inputs = {}
    if "text" in case.words or "image" not in case.words:
        seats = seat(lengths, T, padding)
        x["ids"] = tokens(config, config.vocab_size, seats, generator)
        ends = (torch.arange(T) * seats).argmax(1)  # the last token of a row
        rows = torch.arange(len(seats))
        if "text" in case.words and config.eos_token_id == 2:
            x["ids"][rows, ends] = config.vocab_size - 1
        elif "text" in case.words or "eos" in case.words:
            x["ids"][rows, ends] = config.eos_token_id
            if "text" in case.words:
                x["ids"][0, ends[0] - 3] = config.eos_token_id  # the first one counts
        if kinds := getattr(config, "type_vocab_size", 0) or ("types" in case.words and 2):
            x["types"] = torch.randint(kinds, seats.shape, generator=generator)
        if case.kind.endswith("DoubleHeadsModel") and "!choice" not in case.words:
            x["choice"] = ends - torch.arange(len(seats)) % 2
        if padding in ("left", "right"):
            x["mask"] = seats
        x = {key: value.unflatten(0, shape) for key, value in x.items()}
    if "image" in case.words:
        vision = getattr(make(case).config, "vision_config", config)
        x["images"] = normal(B, vision.num_channels, vision.image_size, vision.image_size)
    if case.both and "shift" not in case.words:
        lengths = torch.tensor(TARGETS) if padding in ("left", "right") else torch.full((B,), U)
        seats = seat(lengths, U, padding)
        vocab = getattr(config, "decoder_vocab_size", config.vocab_size)
        x["target"] = tokens(config, vocab, seats, generator)
        x |= {"target_mask": seats} if padding in ("left", "right") else {}
    if "source" in case.words:
        x["source"] = normal(B, S, config.hidden_size)
        x |= {"source_mask": seat(torch.tensor(SOURCES), S, padding)} if padding in ("left", "right") else {}
    if "memory" in case.words:
        x["memory"] = normal(config.n_layer, B, M, config.d_model)
    if "permute" in case.words:  # a token sees those before it in a random order; two late ones are asked for
        order = torch.stack([torch.randperm(T, generator=generator) for _ in range(B)])
        order = torch.where(x["mask"], order, order + T) if "mask" in x else order
        rank = order.argsort(1).argsort(1)
        x["permute"] = (rank[:, :, None] <= rank[:, None, :]).to(torch.float64)
        asked = rank.argsort(1).gather(1, torch.stack([lengths // 2, lengths - 1], 1))  # (B, P)
        x["targets"] = (torch.arange(T) == asked[:, :, None]).to(torch.float64)
    if padding == "embeds":
        shape = (*x.pop("ids").shape, make(case).get_input_embeddings().embedding_dim)
        x["embeds"] = normal(shape)
    return {key: value.to(dtype) if value.is_floating_point() else value for key, value in x.items()}


def seat(lengths: Tensor, width: int, padding: str) -> Tensor:
    columns = torch.arange(width)
    return (columns >= width - lengths[:, None]) if padding == "left" else (columns < lengths[:, None])


def tokens(config: Any, vocab: int, seats: Tensor, generator: torch.Generator) -> Tensor:
    """Random ids, the pad id where no token stands and only there, no end token."""
    pad = 0 if config.pad_token_id is None else config.pad_token_id
    allowed = torch.tensor([n for n in range(vocab) if n not in (pad, config.eos_token_id)])
    ids = allowed[torch.randint(len(allowed), seats.shape, generator=generator)]
    return torch.where(seats, ids, pad)


def theirs(case: Case, x: Inputs) -> dict[str, Any]:
    """The same arguments in the original's words."""
    y: dict[str, Any] = {WORDS[k]: v.long() if v.dtype == torch.bool else v.clone() for k, v in x.items()}
    if "memory" in x:
        y["mems"] = list(x["memory"].transpose(1, 2))  # (layers, B, M, W) -> a list of (M, B, W)
    accepted = inspect.signature(make(case).forward).parameters
    if "mask" in x:
        y["attention_mask"] = y["attention_mask"].flatten(0, -2)
        if "position_ids" in accepted and case.family != "roberta":  # which counts over the tokens
            y["position_ids"] = (y["attention_mask"].cumsum(1) - 1).clamp(min=0)
    return y


def run(case: Case, model: Any, x: Inputs) -> Outputs:
    """What the original gives on DEVICE, under our names; compared on the CPU."""
    if DEVICE == "cpu":
        return run_here(case, model, x)
    found = run_here(case, model, {name: value.to(DEVICE) for name, value in x.items()})
    return {name: (value.cpu(), axes) for name, (value, axes) in found.items()}


def run_here(case: Case, model: Any, x: Inputs) -> Outputs:
    caught: dict[str, Tensor] = {}
    hooks = []
    for name in ("start_logits", "end_logits") if "beam" in case.words else ():  # it returns the best only
        keep = lambda module, args, out, name=name: caught.update({name: out})  # noqa: E731
        hooks.append(getattr(model, name).register_forward_hook(keep))
    asked = {"output_router_logits": True} if "router" in case.keep else {}
    out = model(**theirs(case, x), **asked, output_hidden_states=True, output_attentions=True)
    for hook in hooks:
        hook.remove()
    if caught:
        caught["end_logits"] = caught["end_logits"].transpose(1, 2)  # (B, T, K) -> (B, K, T)
    fields = {**out, **caught}
    found: Outputs = {name: (fields[field], axes) for name, (axes, field) in case.reads.items()}
    if case.kind == "CLIPModel":
        found |= attention("text.encoder", "attend", out.text_model_output.attentions, "n.tt")
        return found | attention("image.encoder", "attend", out.vision_model_output.attentions, "n...")
    if case.both:
        found |= states("hiddens", out.decoder_hidden_states, "nt")
        found |= states("encoded_hiddens", out.encoder_hidden_states, "ns")
        found["hidden"] = (out.decoder_hidden_states[-1], "nt")
        found["encoded"] = (out.encoder_last_hidden_state, "ns")
        found |= states("router", out.get("decoder_router_logits") or (), "nt")
        found |= states("encoded_router", out.get("encoder_router_logits") or (), "ns")
        found |= attention("encoder", "attend", out.encoder_attentions, "n.ss")
        found |= attention("decoder", "attend", out.decoder_attentions, "n.tt")
        return found | attention("decoder", "cross", out.cross_attentions, "n.ts")
    last, hiddens, weights = out.get("last_hidden_state"), list(out.hidden_states), list(out.attentions)
    stack = "decoder" if case.decoder else "encoder"
    hidden, across = "nt", "n.tk"
    if case.family == "clip":
        stack = "text.encoder" if "text" in case.words else "image.encoder"
        hidden, across = ("nt", "n.tt") if "text" in case.words else ("n.", "n...")
        hiddens[-1] = hiddens[-1] if last is None else last  # theirs is before the final norm
    if "targets" in x:  # two streams: h, g, h, g, ...; the query stream's weights have a row a token
        hiddens = [torch.cat(pair, 1) for pair in zip(hiddens[::2], hiddens[1::2], strict=True)]
        index = x["targets"].argmax(2)[:, None, :, None]  # (B, 1, P, 1)
        weights = [torch.cat([h, g.take_along_dim(index, 2)], 2) for h, g in weights]
        found["hidden"] = (hiddens[-1][:, -P:], "n.")
        found |= {name: (value, "n." if axes == "nt" else axes) for name, (value, axes) in found.items()}
        hidden, across = "nq", "n.qk"
    elif case.family != "clip" or last is not None:
        found["hidden"] = (hiddens[-1], hidden)
    if out.get("mems") is not None and "mask" not in x:
        found["memory"] = (torch.stack(out.mems).transpose(1, 2), ".n.")
    found |= states("hiddens", hiddens, hidden) | states("router", out.get("router_logits") or (), "nt")
    found |= attention(stack, "attend", weights, across)
    return found | attention(stack, "cross", out.get("cross_attentions") or (), "n.ts")


def states(name: str, tensors: Any, axes: str) -> Outputs:
    return {f"{name}.{n}": (tensor, axes) for n, tensor in enumerate(tensors)}


def attention(stack: str, part: str, tensors: Any, axes: str) -> Outputs:
    return {f"{stack}.layers.{n}.{part}": (tensor, axes) for n, tensor in enumerate(tensors)}


def single(x: Inputs, n: int) -> Inputs:
    """Row `n` of the arguments without its pads, as a batch of one."""
    choices = x["ids"].ndim - 1  # axes before the tokens
    mask = x.get("mask", torch.ones_like(x["ids"], dtype=torch.bool)).flatten(0, -2)[n]
    cut = {"ids": mask, "types": mask, "permute": mask}
    cut |= {key.removesuffix("_mask"): x[key][n] for key in ("target_mask", "source_mask") if key in x}
    y = {}
    for key, value in x.items():
        if key == "choice":
            y[key] = (mask.cumsum(0) - 1)[value.flatten()[n]].view(1, 1)
        elif key == "memory":
            y[key] = value[:, n : n + 1]
        elif not key.endswith("mask"):
            row = value.flatten(0, choices - 1)[n][cut.get(key, slice(None))]
            y[key] = (row[:, mask] if key in ("permute", "targets") else row)[(None,) * choices]
    return y


def rows(found: Outputs, x: Inputs) -> list[Row]:
    """For every row the values where a token stands; what belongs to no row goes with the first."""
    lead = x["ids"].shape[:-1] if "ids" in x else x["embeds" if "embeds" in x else "images"].shape[:1]
    number = lead.numel()  # (B,) or (B, C)
    width = x["ids"].shape[-1] if "ids" in x else x["embeds"].shape[1] if "embeds" in x else 0
    t = x["mask"].flatten(0, -2) if "mask" in x else torch.ones(number, width, dtype=torch.bool)
    s = t if "source" not in x else torch.ones(x["source"].shape[:2], dtype=torch.bool)
    s = x.get("source_mask", s)
    if "target" in x:
        t = x.get("target_mask", torch.ones_like(x["target"], dtype=torch.bool))
    memory = torch.ones(number, x["memory"].shape[2] if "memory" in x else 0, dtype=torch.bool)
    asked = torch.ones(number, x["targets"].shape[1] if "targets" in x else 0, dtype=torch.bool)
    seats = {"t": t, "s": s, "k": torch.cat([memory, t], 1), "q": torch.cat([t, asked], 1)}
    picked: list[Row] = [{} for _ in range(number)]
    for name, (value, axes) in found.items():
        if "n" not in axes:
            picked[0][name] = value
            continue
        if len(lead) == 2 and value.shape[:2] == lead:
            value = value.flatten(0, 1)  # (B, C, ...) -> (B*C, ...)
        for n in range(number):
            part = value
            for axis, letter in reversed(list(enumerate(axes))):
                if letter == "n":
                    part = part.select(axis, n)
                elif letter != ".":
                    part = part.index_select(axis, seats[letter][n].nonzero()[:, 0])
            picked[n][name] = part
    return picked


def expected(case: Case, x: Inputs, padding: str, dtype: torch.dtype) -> tuple[list[Row], dict[str, str]]:
    """Row by row what the original gives where a token stands, and the axes by which to read ours alike."""
    model = make(case, dtype)
    if not case.alone(padding, dtype):
        found = run(case, model, x)
        return rows(found, x), {name: axes for name, (_, axes) in found.items()}
    parts = [single(x, n) for n in range(x["ids"].shape[:-1].numel())]
    alone = [run(case, model, part) for part in parts]
    axes = {name: axes for name, (_, axes) in alone[0].items() if "n" in axes}  # the others belong to no row
    if "mask" in x:
        axes.pop("memory", None)  # pads would be remembered too
    picked = [rows({k: found[k] for k in axes}, part)[0] for found, part in zip(alone, parts, strict=True)]
    return picked, axes


def loss(picked: list[Row]) -> Tensor:
    """One number that depends on every output a gradient can come from."""
    total = torch.zeros((), dtype=torch.float64)
    for n, row in enumerate(picked):
        for name, value in row.items():
            if name == "memory" or "." in name:  # detached; a part of another
                continue
            generator = torch.Generator().manual_seed(zlib.crc32(f"{n} {name}".encode()))
            weight = torch.randn(value.shape, generator=generator, dtype=torch.float64)
            total = total + (value * weight).sum() / value.numel() ** 0.5
    return total


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Those of the last `backward`, zeros where none came; they are taken away."""
    held = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in held.items()}
    model.zero_grad(set_to_none=True)
    return found
