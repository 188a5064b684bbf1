"""Published folders of GPT, GPT-2, CTRL and Llama."""

import torch

from tests.support.published.bert import KEPT_ASIDE, NEW
from tests.support.published.folder import PublishedFolder, issue, pull, source_file

WITHOUT_PREFIX = {r"^transformer\.": ""}
TRL = "https://github.com/huggingface/trl"
SUMMARY_KEYS = """
    summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
"""
GPT_KEYS = """
    attn_pdrop embd_pdrop initializer_range layer_norm_epsilon n_embd n_head n_layer n_positions
    resid_pdrop vocab_size
"""

GPT = [
    PublishedFolder(
        name="openai-gpt-config.json",
        source=source_file("v1.0.0", "pytorch_transformers/modeling_openai.py"),
        seen="n_special, n_ctx, predict_special_tokens, num_labels; no model_type; h.{}.attn.bias",
        case="openai-OpenAIGPTLMHeadModel", tied=r"lm_head\.weight",
        extra={"transformer.h.{}.attn.bias": (1, 1, 17, 17)},
        kept_keys=GPT_KEYS + SUMMARY_KEYS + "afn",
        config={"n_ctx": 17, "n_special": 0, "num_labels": 1, "predict_special_tokens": True},
        load={"family": "gpt", "head": "lm"},
    ),
    PublishedFolder(
        name="openai-gpt without the prefix",
        source=source_file("v0.6.2", "pytorch_pretrained_bert/modeling_openai.py"),
        seen="OpenAIGPTModel with tokens_embed, positions_embed and h.{}.attn.bias",
        case="openai-OpenAIGPTLMHeadModel", renamed=WITHOUT_PREFIX,
        extra={"h.{}.attn.bias": (1, 1, 17, 17)},
    ),
    PublishedFolder(
        name="OpenAIGPTDoubleHeadsModel of pytorch_pretrained_bert",
        source=source_file("v0.6.2", "pytorch_pretrained_bert/modeling_openai.py"),
        seen="lm_head.decoder is tied to tokens_embed; multiple_choice_head.linear",
        case="openai-OpenAIGPTDoubleHeadsModel", tied=r"transformer\.tokens_embed\.weight",
        renamed={
            r"^lm_head\.": "lm_head.decoder.",
            r"multiple_choice_head\.summary": "multiple_choice_head.linear",
        },
        extra={"transformer.h.{}.attn.bias": (1, 1, 17, 17)},
    ),
    PublishedFolder(
        name="transformer.position_ids",
        source=source_file("v3.5.0", "src/transformers/modeling_openai.py"),
        seen='register_buffer("position_ids", torch.arange(config.n_positions)), saved',
        case="openai-OpenAIGPTForSequenceClassification", extra={"transformer.position_ids": (17,)},
    ),
]  # fmt: skip

GPT2 = [
    PublishedFolder(
        name="gpt2",
        source=issue(26173),
        seen="wte.weight, wpe.weight, h.0.attn.bias: neither prefix nor lm_head",
        case="gpt2-GPT2LMHeadModel", renamed=WITHOUT_PREFIX,
        extra={"h.{}.attn.bias": (1, 1, 17, 17)},
    ),
    PublishedFolder(
        name="gpt2 as GPT2Model",
        source=pull(24113),
        seen="h.10.attn.bias, ... are not used by GPT2Model",
        case="gpt2-GPT2LMHeadModel", opens="GPT2Model", renamed=WITHOUT_PREFIX,
        extra={"h.{}.attn.bias": (1, 1, 17, 17)}, load={"head": "none"},
    ),
    PublishedFolder(
        name="a GPT2LMHeadModel of 2020",
        source=issue(3974),
        seen="transformer.h.0.attn.masked_bias, ...",
        case="gpt2-GPT2LMHeadModel", tied=r"lm_head\.weight",
        extra={
            "transformer.h.{}.attn.bias": (1, 1, 17, 17), "transformer.h.{}.attn.masked_bias": ()
        },
    ),
    PublishedFolder(
        name="DialoGPT",
        source=pull(1778),
        seen="lm_head.decoder.weight in place of lm_head.weight",
        case="gpt2-GPT2LMHeadModel", tied=r"lm_head\.weight", dtype=torch.float16,
        renamed={r"^lm_head\.": "lm_head.decoder."},
        extra={"transformer.h.{}.attn.bias": (1, 1, 17, 17)},
    ),
    PublishedFolder(
        name="GPT2DoubleHeadsModel of pytorch_pretrained_bert",
        source=source_file("v0.6.2", "pytorch_pretrained_bert/modeling_gpt2.py"),
        seen="lm_head.decoder and multiple_choice_head.linear",
        case="gpt2-GPT2DoubleHeadsModel", tied=r"lm_head\.weight",
        renamed={
            r"^lm_head\.": "lm_head.decoder.",
            r"multiple_choice_head\.summary": "multiple_choice_head.linear",
        },
    ),
    PublishedFolder(
        name="config.json of gpt2",
        source=issue(14541),
        seen="n_ctx, task_specific_params, use_cache, reorder_and_upcast_attn",
        case="gpt2-GPT2LMHeadModel",
        config={
            "n_ctx": 1024, "dtype": None, "transformers_version": "4.13.0.dev0",
            "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        },
    ),
    PublishedFolder(
        name="GPT2HeadWithValueModel",
        source=issue(43, TRL),
        seen="class GPT2HeadWithValueModel, with lm_head and v_head.summary",
        case="gpt2-GPT2LMHeadModel", tied=r"lm_head\.weight",
        extra={"v_head.summary.weight": (1, 24), "v_head.summary.bias": (1,)},
        config={"architectures": ["GPT2HeadWithValueModel"]}, load={"head": "lm"},
        warns=rf"v_head\.summary\.bias, v_head\.summary\.weight .*{KEPT_ASIDE}",
    ),
    PublishedFolder(
        name="a causal LM with v_head",
        source=pull(749, TRL),
        seen="v_head.summary.weight and .bias are not used by classes for causal LMs (CodeGen, GPT-J)",
        case="gpt2-GPT2LMHeadModel",
        extra={"v_head.summary.weight": (1, 24), "v_head.summary.bias": (1,)},
        warns=rf"v_head\.summary\.bias, v_head\.summary\.weight .*{KEPT_ASIDE}",
    ),
    PublishedFolder(
        name="a GPT2Model beside lm_head.weight",
        source=issue(33, "https://github.com/microsoft/dp-transformers"),
        seen="lm_head.weight, h.0.attn.bias, h.0.attn.masked_bias in one file",
        case="gpt2-GPT2LMHeadModel", opens="GPT2Model", tied=r"lm_head\.weight",
        renamed=WITHOUT_PREFIX,
        extra={"h.{}.attn.bias": (1, 1, 17, 17), "h.{}.attn.masked_bias": ()},
        config={"architectures": ["GPT2Model"]}, warns=rf"lm_head\.weight is .*{KEPT_ASIDE}",
    ),
]  # fmt: skip

CTRL = [
    PublishedFolder(
        name="ctrl-config.json",
        source=source_file("v2.1.0", "transformers/configuration_ctrl.py"),
        seen="n_ctx, num_labels, summary_* keys; no model_type; lm_head.weight is saved",
        case="ctrl-CTRLLMHeadModel", tied=r"lm_head\.weight", kept_keys=GPT_KEYS + "dff",
        config={
            "n_ctx": 17, "num_labels": 1, "summary_type": "cls_index", "summary_use_proj": True,
            "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
        },
        load={"family": "ctrl", "head": "lm"},
    ),
    PublishedFolder(
        name="ctrl as CTRLModel",
        source=source_file("v2.1.0", "transformers/modeling_ctrl.py"),
        seen="CTRLLMHeadModel has lm_head with a bias, which CTRLModel lacks",
        case="ctrl-CTRLLMHeadModel", opens="CTRLModel", tied=r"lm_head\.weight",
        config={"architectures": ["CTRLModel"]},
        warns=rf"lm_head\.bias, lm_head\.weight are .*{KEPT_ASIDE}",
    ),
]  # fmt: skip

LLAMA_BUFFERS = {"model.layers.{}.self_attn.rotary_emb.inv_freq": (3,)}
LLAMA = [
    PublishedFolder(
        name="LiteLlama-460M-1T",
        source=issue(270, "https://github.com/unslothai/unsloth"),
        seen="model.layers.0.self_attn.rotary_emb.inv_freq, ...",
        case="llama-LlamaForCausalLM", extra=LLAMA_BUFFERS,
    ),
    PublishedFolder(
        name="llama-7b-hf of decapoda-research",
        source=pull(251, "https://github.com/vllm-project/vllm"),
        seen="architectures [LLaMAForCausalLM]",
        case="llama-LlamaForCausalLM", extra=LLAMA_BUFFERS,
        config={"architectures": ["LLaMAForCausalLM"]},
    ),
    PublishedFolder(
        name="llama of transformers 4.28",
        source=source_file("v4.28.0", "src/transformers/models/llama/convert_llama_weights_to_hf.py"),
        seen="inv_freq is written; float16; configuration_llama.py has no num_key_value_heads, no rope",
        case="llama-LlamaForCausalLM", extra=LLAMA_BUFFERS, dtype=torch.float16,
        config={
            "num_key_value_heads": None, "rope_parameters": None, "head_dim": None,
            "attention_bias": None, "mlp_bias": None, "pretraining_tp": None, "dtype": None,
            "torch_dtype": "float16",
        },
    ),
    PublishedFolder(
        name="llama-2 as LlamaForSequenceClassification",
        source=issue(877, "https://github.com/huggingface/peft"),
        seen="lm_head.weight is not used by LlamaForSequenceClassification",
        case="llama-LlamaForCausalLM", opens="LlamaForSequenceClassification",
        load={"head": "sequence-classification"}, compared="last_hidden_state",
        warns=rf"heads\.sequence_classification\.out\.weight is {NEW}",
    ),
    PublishedFolder(
        name="a reward model beside lm_head.weight",
        source=pull(5295, TRL),
        seen="a causal LM as sequence classifier (Qwen2): lm_head.weight is unexpected",
        case="llama-LlamaForSequenceClassification", extra={"lm_head.weight": (53, 24)},
        warns=rf"lm_head\.weight is .*{KEPT_ASIDE}",
    ),
]  # fmt: skip

DECODERS = [*GPT, *GPT2, *CTRL, *LLAMA]
