"""Published folders of BART, mBART, Marian, T5, mT5 and Switch."""

from tests.support.published.bert import KEPT_ASIDE
from tests.support.published.folder import PublishedFolder, issue, pull, source_file

WITHOUT_PREFIX = {r"^model\.": ""}
VERSIONS = {"encoder.version": (1,), "decoder.version": (1,)}
MODEL_VERSIONS = {f"model.{name}": shape for name, shape in VERSIONS.items()}
BART_TIED = r"(model\.)?(encoder|decoder)\.embed_tokens\.weight"

BART = [
    PublishedFolder(
        name="bart-large as BartForConditionalGeneration",
        source=issue(6652),
        seen="encoder.version, decoder.version",
        case="bart-BartForConditionalGeneration", tied=BART_TIED, removed="final_logits_bias",
        renamed=WITHOUT_PREFIX, extra=VERSIONS,
        config={"architectures": ["BartModel"]}, load={"head": "lm"},
    ),
    PublishedFolder(
        name="bart-large as BartModel",
        source=issue(8005),
        seen="facebook/bart-large without final_logits_bias",
        case="bart-BartModel", tied=BART_TIED, extra=VERSIONS,
    ),
    PublishedFolder(
        name="bart-large-cnn",
        source=source_file("v3.1.0", "src/transformers/modeling_bart.py"),
        seen="authorized_missing_keys: final_logits_bias, encoder.version, decoder.version",
        case="bart-BartForConditionalGeneration", tied=BART_TIED, extra=MODEL_VERSIONS,
    ),
    PublishedFolder(
        name="encoder.version beside the prefix model",
        source=source_file("v4.30.0", "src/transformers/models/bart/modeling_bart.py"),
        seen="_keys_to_ignore_on_load_unexpected: encoder.version, decoder.version",
        case="bart-BartForQuestionAnswering", extra=VERSIONS,
    ),
    PublishedFolder(
        name="bart-large-mnli",
        source=pull(2745),
        seen="bart-large-mnli is a BartForSequenceClassification of 3 labels",
        case="bart-BartForSequenceClassification", tied=BART_TIED, extra=MODEL_VERSIONS,
        config={"id2label": None, "label2id": None, "_num_labels": 3},
    ),
    PublishedFolder(
        name="config.json of BART in May 2020",
        source=source_file("v2.9.0", "src/transformers/configuration_bart.py"),
        seen="classif_dropout, static_position_embeddings, normalize_before, add_bias_logits, ...",
        case="bart-BartForConditionalGeneration", tied=r".*",
        config={
            "classifier_dropout": None, "classif_dropout": 0.0, "static_position_embeddings": False,
            "normalize_before": False, "normalize_embedding": True, "add_final_layer_norm": False,
            "add_bias_logits": False, "output_past": True, "num_hidden_layers": 2,
        },
    ),
    PublishedFolder(
        name="bart-base as BartForCausalLM",
        source=issue(17375),
        seen="BartForCausalLM.from_pretrained('facebook/bart-base')",
        case="bart-BartModel", opens="BartForCausalLM", tied=BART_TIED,
        load={"head": "causal-lm"}, compared="last_hidden_state",
    ),
    PublishedFolder(
        name="force_bos_token_to_be_generated",
        source=pull(6526),
        seen="force_bos_token_to_be_generated in config.json of bart-large-cnn and distilbart",
        case="bart-BartForConditionalGeneration-deep",
        config={"force_bos_token_to_be_generated": True},
    ),
]  # fmt: skip

MBART = [
    PublishedFolder(
        name="mbart-large-en-ro",
        source=issue(5321),
        seen="lm_head.weight in the file, final_logits_bias missing",
        case="mbart-MBartForConditionalGeneration", tied=rf"lm_head\.weight|{BART_TIED}",
        removed="final_logits_bias",
    ),
    PublishedFolder(
        name="config.json of mBART in May 2020",
        source=source_file("v2.9.0", "src/transformers/configuration_bart.py"),
        seen="normalize_before, add_final_layer_norm, normalize_embedding",
        case="mbart-MBartForConditionalGeneration",
        config={
            "normalize_before": True, "add_final_layer_norm": True, "normalize_embedding": True,
            "static_position_embeddings": False, "add_bias_logits": False,
        },
    ),
    PublishedFolder(
        name="versions in mBART",
        source=source_file("v4.30.0", "src/transformers/models/mbart/modeling_mbart.py"),
        seen="_keys_to_ignore_on_load_missing: encoder.version, decoder.version",
        case="mbart-MBartForConditionalGeneration", extra=MODEL_VERSIONS,
    ),
]  # fmt: skip

MARIAN_TIED = rf"lm_head\.weight|{BART_TIED}"
MARIAN = [
    PublishedFolder(
        name="sinusoids of Marian",
        source=source_file("v4.0.0", "src/transformers/models/marian/modeling_marian.py"),
        seen="_keys_to_ignore_on_save: model.encoder.embed_positions.weight, which was saved before",
        case="marian-MarianMTModel",
        tied=rf"model\.(encoder|decoder)\.embed_positions\.weight|{MARIAN_TIED}",
    ),
    PublishedFolder(
        name="config.json of opus-mt-en-de",
        source=pull(3908),
        seen="static_position_embeddings, add_bias_logits, normalize_embedding",
        case="marian-MarianMTModel", tied=MARIAN_TIED,
        config={
            "static_position_embeddings": True, "add_bias_logits": True,
            "normalize_embedding": False, "normalize_before": False, "add_final_layer_norm": False,
            "share_encoder_decoder_embeddings": None, "decoder_vocab_size": None,
        },
    ),
    PublishedFolder(
        name="opus-mt-tc-big",
        source=pull(15831),
        seen="share_encoder_decoder_embeddings, decoder_vocab_size; lm_head is tied to the decoder",
        case="marian-MarianMTModel-two", tied=r"lm_head\.weight",
    ),
]  # fmt: skip

CROSS_BIAS: dict[str, tuple[int, ...]] = {
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": (8, 4)
}
NORM_BIASES: dict[str, tuple[int, ...]] = {
    "encoder.block.{}.layer.0.layer_norm.bias": (24,), "encoder.block.{}.layer.1.layer_norm.bias": (24,),
    "decoder.block.{}.layer.0.layer_norm.bias": (24,), "decoder.block.{}.layer.1.layer_norm.bias": (24,),
    "decoder.block.{}.layer.2.layer_norm.bias": (24,),
    "encoder.final_layer_norm.bias": (24,), "decoder.final_layer_norm.bias": (24,),
}  # fmt: skip
T5_TIED = r"(encoder|decoder)\.embed_tokens\.weight"
T5 = [
    PublishedFolder(
        name="t5-small",
        source=issue(9157),
        seen="decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
        case="t5-T5ForConditionalGeneration", tied=T5_TIED, extra=CROSS_BIAS,
    ),
    PublishedFolder(
        name="t5-small of March 2020",
        source=issue(3553),
        seen="layer_norm.bias of every layer; no embed_tokens, no lm_head",
        case="t5-T5ForConditionalGeneration", extra=CROSS_BIAS | NORM_BIASES,
    ),
    PublishedFolder(
        name="config.json of t5-small",
        source=pull(17607),
        seen="architectures [T5WithLMHeadModel], n_positions, dense_act_fn, is_gated_act",
        case="t5-T5ForConditionalGeneration", tied=rf"lm_head\.weight|{T5_TIED}", extra=CROSS_BIAS,
        config={
            "architectures": ["T5WithLMHeadModel"], "n_positions": 512, "output_past": True,
            "dtype": None, "task_specific_params": {"summarization": {"prefix": "summarize: "}},
        },
    ),
    PublishedFolder(
        name="t5-large as T5EncoderModel",
        source=issue(33, "https://github.com/lucidrains/imagen-pytorch"),
        seen="weights of t5-large are not used by T5EncoderModel: the decoder",
        case="t5-T5ForConditionalGeneration", opens="T5EncoderModel", tied=T5_TIED,
        extra=CROSS_BIAS, load={"head": "encoder"},
    ),
    PublishedFolder(
        name="T5EncoderModel with a decoder in the file",
        source=source_file("v4.49.0", "src/transformers/models/t5/modeling_t5.py"),
        seen="T5EncoderModel._keys_to_ignore_on_load_unexpected: decoder",
        case="t5-T5ForConditionalGeneration", opens="T5EncoderModel", extra=CROSS_BIAS,
        config={"architectures": ["T5EncoderModel"]},
        warns=rf"decoder\.block\.0\.layer\.0\.SelfAttention\.k\.weight, .*{KEPT_ASIDE}",
    ),
    PublishedFolder(
        name="madlad400-3b-mt",
        source=issue(48154),
        seen="decoder.embed_tokens.weight and lm_head.weight, no shared.weight",
        case="t5-T5ForConditionalGeneration-published", tied=r"decoder\.embed_tokens\.weight",
        removed=r"shared\.weight",
    ),
    PublishedFolder(
        name="text_encoder_2 of FLUX.1-dev",
        source=issue(636, "https://github.com/modelscope/DiffSynth-Studio"),
        seen="T5EncoderModel without encoder.embed_tokens.weight; is_encoder_decoder true",
        case="t5-T5EncoderModel",
        config={
            "is_encoder_decoder": True, "output_past": True, "tie_word_embeddings": False,
            "use_cache": True, "classifier_dropout": 0.0, "dtype": None, "torch_dtype": "bfloat16",
        },
    ),
    PublishedFolder(
        name="flan-t5-base",
        source=pull(903, "https://github.com/huggingface/candle"),
        seen="lm_head is read because word embeddings are not tied",
        case="t5-T5ForConditionalGeneration-published", tied=T5_TIED,
        config={"n_positions": 512, "output_past": True},
    ),
    PublishedFolder(
        name="a T5 with lm_head.weight as T5Model",
        source=issue(5851),
        seen="lm_head.weight is not used by T5Model",
        case="t5-T5ForConditionalGeneration-1.1", opens="T5Model",
        config={"architectures": ["T5Model"]}, warns=rf"lm_head\.weight is .*{KEPT_ASIDE}",
    ),
    PublishedFolder(
        name="mt5-large",
        source=issue(83, "https://github.com/google-research/multilingual-t5"),
        seen="DenseReluDense.wi_0 and wi_1",
        case="mt5-MT5ForConditionalGeneration-loose", tied=T5_TIED,
    ),
    PublishedFolder(
        name="mt5-small of transformers 4.0",
        source=source_file("v4.0.0", "src/transformers/models/mt5/modeling_mt5.py"),
        seen="EncDecAttention.relative_attention_bias.weight, embed_tokens",
        case="mt5-MT5ForConditionalGeneration-loose", tied=T5_TIED, extra=CROSS_BIAS,
        config={"tokenizer_class": "T5Tokenizer"},
    ),
]  # fmt: skip

SWITCH = [
    PublishedFolder(
        name="switch-base-8",
        source=pull(19323),
        seen="decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight, embed_tokens",
        case="switch_transformers-SwitchTransformersForConditionalGeneration",
        tied=rf"lm_head\.weight|{T5_TIED}", extra=CROSS_BIAS,
        config={"router_type": "tokens_masked", "n_positions": 512},
    ),
]  # fmt: skip

ENCODER_DECODERS = [*BART, *MBART, *MARIAN, *T5, *SWITCH]
