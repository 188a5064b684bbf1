"""Hints for unknown names: the name of a setting in other libraries, or the closest known name."""

import difflib
from collections.abc import Iterable

NAME_HINTS = {  # a name in other libraries: our name, or an instruction
    # sizes of a model
    "hidden_size": "width",
    "d_model": "width",
    "n_embd": "width",
    "num_hidden_layers": "depth",
    "num_layers": "depth",
    "n_layer": "depth",
    "num_attention_heads": "heads",
    "num_heads": "heads",
    "n_head": "heads",
    "num_key_value_heads": "kv_heads",
    "intermediate_size": "ffn_width",
    "d_ff": "ffn_width",
    "max_position_embeddings": "max_positions",
    "n_positions": "max_positions",
    "hidden_act": "activation",
    "tie_word_embeddings": "tie_embeddings",
    # training
    "learning_rate": "lr",
    "lr_scheduler_type": "lr_schedule",
    "max_steps": "steps",
    "num_train_epochs": "epochs",
    "batch": "batch_size",
    "per_device_train_batch_size": "batch_size",
    "gradient_accumulation_steps": "grad_accum",
    "max_grad_norm": "grad_clip",
    "gradient_checkpointing": "activation_checkpointing",
    "label_smoothing_factor": "label_smoothing",
    "eval_dataset": "validation",
    "eval_steps": "eval_every",
    "logging_steps": "log_every",
    "compute_metrics": "metrics",
    "rank": "r",
    # word vectors: gensim
    "alpha": "lr",
    "min_alpha": "min_lr_ratio",
    "sg": "algorithm",
    "size": "vector_size",
    "workers": "num_threads",
    "top_n": "topn",
    # generation and tasks
    "beam": "num_beams",
    "beams": "num_beams",
    "beam_size": "num_beams",
    "n_best": "num_return_sequences",
    "nbest": "num_return_sequences",
    "max_length": "max_new_tokens",
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "stop": "stop_strings",
    "batch_size": "batch_tokens",
    "truncation": "overflow",
    "doc_stride": "stride",
    "max_answer_len": "max_answer_tokens",
    "handle_impossible_answer": "allow_no_answer",
    "aggregation_strategy": "aggregation",
    "labels": "candidate_labels",
    "source_lang": "src_lang",
    "target_lang": "tgt_lang",
    "from": "src_lang",
    "to": "tgt_lang",
    "columns": "column",
    "text_column": "column",
    "output": "out",
    # tasks: the pipelines of Hugging Face
    "text-generation": "complete",
    "translation": "translate",
    "summarization": "summarize",
    "text-classification": "classify",
    "sentiment-analysis": "classify",
    "zero-shot-classification": "classify",
    "token-classification": "tag",
    "ner": "tag",
    "fill-mask": "fill",
    "question-answering": "answer",
    "feature-extraction": "embed",
    "image-classification": "classify",
    "zero-shot-image-classification": "match",
    # constrained and speculative decoding: vLLM
    "guided_regex": "regex",
    "guided_json": "json_schema",
    "draft_model": "assistant_model",
    # outputs of a model
    "output_attentions": "attention weights are recorded by qkv.look(model)",
    "output_hidden_states": 'use extra_outputs=("hidden_states",)',
    "output_router_logits": 'use extra_outputs=("router_logits",)',
    "return_dict": "outputs are always a dict with attributes; leave it out",
    "use_cache": "generation always uses a KV cache; leave it out",
}


def find_closest_name(name: str, known_names: Iterable[str]) -> str | None:
    """Return the known name that is most similar to an unknown one, if any is close."""
    return next(iter(difflib.get_close_matches(name, known_names, n=1)), None)


def find_known_name(name: str, known_names: Iterable[str]) -> str | None:
    """Return the known name for an unknown name: that of NAME_HINTS, or the closest one."""
    known_names = list(known_names)
    hint = NAME_HINTS.get(name)
    return hint if hint in known_names else find_closest_name(name, known_names)


def describe_unknown_name(
    name: str, known_names: Iterable[str], *, prefix: str = "", max_listed: int = 30
) -> str:
    """Return an error message about an unknown name: "X is unknown; did you mean Y?"

    If no name is close, the message lists the first known names. `prefix` is added to all names, for
    example `--` or `train.`"""
    known_names = list(known_names)
    subject = f"{prefix}{name} is unknown"
    hint = NAME_HINTS.get(name, "")
    if " " in hint:
        return f"{subject}; {hint}"
    known_name = find_known_name(name, known_names)
    if known_name is not None:
        return f"{subject}; did you mean {prefix}{known_name}?"
    listed = ", ".join(prefix + known_name for known_name in known_names[:max_listed])
    more = " ..." if len(known_names) > max_listed else ""
    return f"{subject}; expected one of {listed}{more}"
