"""The meanings of settings and arguments whose definition has no comment; a test compares the names."""

from __future__ import annotations

_SCORES = "dot, scaled-dot, general, additive, concat, cosine or gaussian"
_SELECTIONS = "softmax, hard, gumbel, local-p, top-k, sparsemax or entmax15"

# Tables of a recipe and GenerationConfig. The keys of "objective" are those of all objectives.
MEANINGS: dict[str, dict[str, str]] = {
    "recipe": {
        "run": "output folder; default: `runs/` and the name of the recipe",
        "device": "`auto`, `cpu`, `cuda` or `mps`",
    },
    "model": {
        "family": "family of a new model",
        "size": "preset of the family; default: the first",
        "position_embedding_type": "position embeddings: none, sinusoid, learned, t5, alibi, rotary or xl",
        "attention_score": f"score of attention: {_SCORES}; or `{{ name = \"cosine\", temperature = 0.1 }}`",
        "attention_select": f"selection of attention: {_SELECTIONS}; or `{{ name = \"top-k\", k = 4 }}`",
    },
    "tokenizer": {
        "load": "folder of a pretrained tokenizer",
        "type": "char, word, wordpiece, bpe, byte (byte-level BPE) or unigram",
        "vocab_size": "vocabulary size, with special tokens",
        "lowercase": "lowercase the texts",
        "num_sentinels": "number of T5 sentinel tokens",
        "extra_tokens": "language or control codes, each one token",
    },
    "image_tokenizer": {
        "load": "folder of a pretrained image tokenizer",
    },
    "data": {
        "train": "training files, `-` for standard input, or `hf:owner/name:split`",
        "validation": "validation files, or the fraction of the training data to hold out",
        "test": "files for `qkv eval`",
        "format": "file format, if the file names do not show it: txt, jsonl, csv ...",
        "columns": "column names of qkv and of the file: `{ text = \"review\" }`",
        "column_names": "names of the columns of files without a header",
        "unit": "one text of a text file: line, document (between blank lines) or file",
        "max_length": "maximum number of tokens per row; 0: the maximum of the model",
        "batch_size": "rows per batch",
        "batch_tokens": "tokens per batch, including padding",
        "languages": "language codes of source and target",
        "fixed_noise": "use the same masks and noise in every epoch",
        "num_workers": "processes that encode texts and build batches",
    },
    "objective": {
        "name": "the objective",
        "alpha_ce": "weight of the distillation loss",
        "alpha_cos": "weight of the cosine loss of the hidden states",
        "alpha_mlm": "weight of the masked LM loss",
        "baseline_decay": "decay of the moving average that is subtracted from the loss: hard attention",
        "entropy_weight": "weight of the entropy of hard attention, which is raised",
        "reinforce_weight": "weight of the gradient of hard attention (REINFORCE)",
        "caption_dropout": "fraction of captions that are replaced by padding, for guidance",
        "coverage_weight": "weight of doubly stochastic attention: places of an image are read equally often",
        "class_weights": "weights of the cross-entropy: balanced, a list by label id, `{ label = weight }`",
        "delete_prob": "fraction of deleted tokens",
        "discriminator_weight": "weight of the discriminator's loss",
        "generator": "sizes of the generator, or folder of a trained masked LM",
        "label_smoothing": "label smoothing of the cross-entropy",
        "mask_alpha": "one token in this many is predicted",
        "mask_prob": "fraction of tokens that are masked",
        "mask_token_prob": "fraction of masked positions that are replaced by the mask token",
        "max_answer_tokens": "maximum length of an answer in evaluation",
        "max_ngram": "longest masked run of words",
        "max_span_length": "longest predicted span",
        "mean_span_length": "mean length of a masked span",
        "noise_density": "fraction of corrupted tokens",
        "pair_task": "next (next sentence prediction) or order (sentence order prediction)",
        "permute_sentences": "shuffle the sentences",
        "problem_type": "single_label_classification, multi_label_classification or regression",
        "r_drop": "weight of R-Drop's divergence between two dropout masks",
        "random_token_prob": "fraction of masked positions that are replaced by a random token",
        "rotate_document": "start the text at a random token",
        "router_aux_loss_coef": "weight of the load balancing loss of a mixture of experts",
        "router_z_loss_coef": "weight of the router z-loss",
        "short_seq_prob": "fraction of pairs that are shorter than the maximum",
        "source": "template of the source, with column names: `{to} {source}`",
        "stride": "tokens by which windows of a long context overlap",
        "target": "template of the target",
        "teacher": "folder or hub id of the teacher",
        "color_jitter": "augmentation: largest change of brightness, contrast and colors, as a fraction",
        "erase_prob": "augmentation: probability that a rectangle of the image is erased",
        "scale": "augmentation: largest change of the size of the image, as a fraction",
        "temperature": "softmax temperature",
        "translate": "augmentation: largest shift of the image, as a fraction of its side",
        "use_mems": "use the memory of the previous batch",
        "whole_word": "mask whole words",
    },
    "train": {
        "lr_schedule": "learning rate schedule",
        "warmup_steps": "steps of the linear warmup of the learning rate",
        "optimizer": "optimizer",
        "betas": "betas of AdamW",
        "eps": "epsilon of AdamW",
        "weight_decay": "weight decay of matrices",
        "precision": "autocast precision",
        "compile": "compile the layers and the loss",
        "seed": "random seed",
    },
    "lora": {
        "r": "rank",
        "lora_alpha": "scale of the update: lora_alpha / r",
        "lora_dropout": "dropout of the adapter's input",
    },
    "GenerationConfig": {
        "num_return_sequences": "number of results of a prompt, from beam search or sampling",
        "exponential_decay_length_penalty": "(n, factor): the EOS score grows by the factor after n tokens",
        "forced_bos_token_id": "the second token of a sequence, such as a language code",
        "decoder_start_token_id": "first token of the decoder; default: that of the model",
        "stop_strings": "strings that end a sequence when they are generated (tasks, `Model.generate`)",
        "num_beams": "number of beams; 1: no beam search",
        "do_sample": "sample instead of taking the most likely token",
        "temperature": "sampling temperature",
        "min_length": "minimum length of prompt and new tokens",
        "max_length": "maximum length of prompt and new tokens",
        "min_new_tokens": "minimum number of new tokens; takes precedence over min_length",
        "max_new_tokens": "maximum number of new tokens; takes precedence over max_length",
        "repetition_penalty": "penalty for tokens of the row; 1: none",
        "encoder_repetition_penalty": "penalty for tokens that are not in the source; 1: none",
        "bad_words_ids": "phrases that are never generated",
        "sequence_bias": "phrases and the bias that is added to their scores",
        "suppress_tokens": "tokens that are never generated",
        "renormalize_logits": "normalize the scores after all processors",
        "eos_token_id": "end-of-sequence tokens",
        "pad_token_id": "padding token",
        "bos_token_id": "beginning-of-sequence token",
    },
}  # fmt: skip

_MODEL = "the model; its tokenizer is `model.tokenizer`"
_DATA = "a path, tuples, dicts, a DataFrame, a Dataset of Hugging Face, or texts"
_COLUMNS = (
    'column names of the objective and of the data: `{"text": "review"}`; None: the usual names'
)
_MAX_LENGTH = (
    "maximum number of tokens per row; 0: that of the model, for rows of equal length at most 512"
)
_OVERFLOW = (
    "mode for longer texts: error, truncate or window; None: error, or the mode of the objective"
)
_METRICS = (
    "functions `(predictions, references) -> number` by name, computed on the validation data"
)
_DEVICE = "cpu, cuda or mps; auto: the first available one of cuda, mps and cpu"
_OBJECTIVE_SETTINGS = 'settings of the objective by name, such as `{"label_smoothing": 0.1}`'

ARGUMENT_MEANINGS: dict[str, dict[str, str]] = {
    "qkv.load": {
        "name_or_path": "a folder or file, a hub id, or a built-in model such as `builtin:translate`",
        "family": "family of a folder whose config.json does not state it",
        "head": "head that replaces that of the files; None: that of the files",
        "label_names": "labels of the head by id; None: those of the files",
        "adapter": "folder or hub id of a LoRA adapter to add",
        "device": _DEVICE,
        "dtype": "dtype of the weights; None: that of the files",
        "revision": "branch, tag or commit of a hub id",
    },
    "qkv.build": {
        "family": "name of a family: `qkv.list_families()`",
        "size": "preset of the family; None: the first",
        "position_embedding_type": "none, sinusoid, learned, t5, alibi, rotary or xl; None: the family's",
        "attention_score": f"{_SCORES}; or a dict of the name and settings",
        "attention_select": f"{_SELECTIONS}; or a dict of the name and settings",
        "pooling": "mean, first, last or another pooling: adds a sentence embedding; None: none",
        "device": _DEVICE,
        "arguments": "arguments of the family: [the table](settings.md#arguments-of-families)",
    },
    "qkv.attention": {
        "query": "queries (..., T, D)",
        "key": "keys (..., S, D)",
        "value": "values (..., S, Dv)",
        "score": "dot, scaled-dot, cosine, gaussian, a module, or a function (query, key) → (..., T, S)",
        "select": "softmax, hard, gumbel, top-k, sparsemax, entmax15, a module, or a function",
        "mask": "true where a query may attend; broadcasts to (..., T, S); None: everywhere",
    },
    "qkv.fit": {
        "model": f"{_MODEL}; it is trained in place",
        "data": f"training data: {_DATA}",
        "validation": f"fraction of the data to hold out, or validation data: {_DATA}; 0: none",
        "steps": "optimizer steps; `steps` or `epochs` is required",
        "epochs": "passes over the training data",
        "objective": "name, or a loss function of the outputs; None: the objective that trains the head",
        "base_objective": "objective whose batches a loss function receives; None: that of the head",
        "columns": _COLUMNS,
        "batch_size": "rows per batch",
        "max_length": _MAX_LENGTH,
        "overflow": _OVERFLOW,
        "class_weights": "balanced, a list of weights by label id, or a dict by label name; None: all 1",
        "metrics": _METRICS,
        "objective_settings": _OBJECTIVE_SETTINGS,
        "progress": "show the progress: a panel on a terminal, lines elsewhere",
        "callbacks": "functions that receive every report of training and of validation",
        "train_settings": "other keys of the table [train](settings.md#train) of a recipe; "
        "the default of `lr` for a loaded model is at most 5e-5 · 768 / width",
    },
    "qkv.evaluate": {
        "model": _MODEL,
        "data": f"labeled data: {_DATA}",
        "objective": "name of the objective; None: the one that trains the head",
        "columns": _COLUMNS,
        "batch_size": "rows per batch",
        "max_length": _MAX_LENGTH,
        "overflow": _OVERFLOW,
        "metrics": "functions `(predictions, references) -> number` by name",
        "objective_settings": _OBJECTIVE_SETTINGS,
        "generate": "whether a seq2seq model generates texts, for BLEU, chrF and ROUGE",
        "generation_settings": "settings of `Model.generate` by name; defaults: 5 beams, at most 200 tokens",
    },
    "qkv.export_model": {
        "model": "the model",
        "folder": "a new or empty folder",
        "to": "onnx, ctranslate2 or pt2",
        "quantization": "type of CTranslate2: int8, int8_float32, int8_float16, int8_bfloat16, int16, "
        "float16, bfloat16 or float32; None: that of the weights",
    },
    "qkv.task": {
        "name": "name of the task: [Tasks](../tasks.md)",
        "model": "a folder, a hub id, a built-in model or a Model; None: the built-in model of the task",
        "device": _DEVICE,
        "adapter": "folder or hub id of a LoRA adapter of the model",
        "settings": "settings of the task: [Tasks](../tasks.md)",
    },
    "qkv.look": {
        "model": "a model, or a network",
        "paths": "regular expression of the paths to record, or a function of a path; None: all",
        "heads": "slice of the heads to record",
        "rows": "slice of the queries to record: `slice(-1, None)` is the last one",
    },
    "qkv.view": {
        "model": "a Model, a folder, a hub id or a built-in model",
        "text": "text that the model reads; of an encoder-decoder, the source",
        "text_pair": "second text: of an encoder, a pair; with segment recurrence, the text whose memory "
        "the first is",
        "target": "text of the decoder; None: what the model generates",
        "image": "path of an image, or a Pillow image",
        "src_lang": "source language of a multilingual model",
        "tgt_lang": "target language of a multilingual model",
        "compare": "a second model for the same input, as `model`",
        "paths": "regular expression of the paths in a saved page, or a function of a path; None: all",
        "view": "head, model, matrix, alignment, neuron, generation, beams, patterns, image or compare; "
        "None: alignment of an encoder-decoder, image of a model of images, compare of two models, else head",
        "layer": "layer of the view; None: the first; of alignments, the last but one",
        "path": "path of an attention instead of a layer",
        "head": "head of the view; None: all heads, or their mean",
        "query": "index of a token whose weights alone are shown",
        "rollout": "attention rollout instead of weights, in the view matrix",
        "num_beams": "beams of the view beams",
        "max_new_tokens": "maximum number of generated tokens in the views generation and beams",
    },
    "Model.save": {
        "folder": "output folder",
        "format": "hf, qkv, or auto: hf if Hugging Face has a class for the model",
        "quantization": "int8: a quarter of the size, which only qkv can load; None: no quantization",
        "max_shard_size": "maximum size of one file in bytes",
    },
    "Model.generate": {
        "input_ids": "prompts, or the sources of an encoder-decoder, (B, T)",
        "attention_mask": "1 for tokens, 0 for padding; None: all ones",
        "seed": "random seed of sampling",
        "settings": "fields of [GenerationConfig](settings.md#generationconfig); default: the model's",
    },
    "Tokenizer.train": {
        "source": "texts, or files whose lines are texts",
        "type": "char, word, wordpiece, bpe, byte (byte-level BPE) or unigram",
        "vocab_size": "vocabulary size, with special tokens",
        "template": "special tokens and their positions: bert, roberta, gpt, llama, seq2seq, bos-eos, t5, "
        "xlnet or plain",
        "lowercase": "lowercase the texts",
        "num_sentinels": "number of T5 sentinel tokens",
        "extra_tokens": "language or control codes, each one token",
        "model_max_length": "maximum number of tokens of a text; None: no limit",
    },
}  # fmt: skip
