"""Every class of `transformers` with its outputs, and tiny sizes for every family."""

from __future__ import annotations

from typing import Any

# Each class: its outputs as `name:axes=field`, and traits of its head:
#   first, last, mean   reads one column, or all: padding too, unless the row runs alone
#   shift               decoder_input_ids are input_ids, shifted     eos    reads the state at EOS
#   choices             input_ids are (B, C, T)                      beam   chooses starts, then ends
#   image, text         the modality (`text` needs an EOS token)
# The axes of an output are one letter each:
#   n  a row of the batch (or a choice)    t  a token of the last stack    s  a source token
#   k  memory, then tokens                 q  tokens, then targets         .  anything else
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
ViTModel                                    pooler_output:n                                                   image
ViTForImageClassification                   logits:n                                                          image
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

# Each module of transformers: the prefix of its class names, and tiny sizes.
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
TEXT_SIZES = dict(
    vocab_size=53, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40
)
TEXT_SIZES |= dict(max_position_embeddings=17, projection_dim=10, eos_token_id=7, bos_token_id=6)
_IMAGE = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=28)
_IMAGE |= dict(image_size=12, patch_size=4)
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
    "vit": ("ViT", _IMAGE),
    "clip": ("CLIP", dict(text_config=TEXT_SIZES, vision_config=_IMAGE | dict(projection_dim=10), projection_dim=10)),
    "llama": ("Llama", _LLAMA | dict(pad_token_id=4, max_position_embeddings=32)),
    "modernbert": ("ModernBert", _LLAMA | dict(pad_token_id=4, num_hidden_layers=3, local_attention=4)),
}  # fmt: skip
