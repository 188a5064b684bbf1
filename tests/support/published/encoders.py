"""Published folders of ALBERT, DistilBERT, ELECTRA, XLNet, ModernBERT, CLIP and ViT."""

from tests.support.published.bert import BERT_KEYS, KEPT_ASIDE, NEW, SIMPLE
from tests.support.published.folder import PublishedFolder, issue, pull, source_file

ALBERT = [
    PublishedFolder(
        name="albert-base-v2 as AlbertForPreTraining",
        source=issue(9319),
        seen="sop_classifier.classifier.weight and .bias are newly initialized",
        case="albert-AlbertForMaskedLM", opens="AlbertForPreTraining",
        extra={"albert.pooler.weight": (24, 24), "albert.pooler.bias": (24,)},
        load={"head": "pretraining"}, compared="logits last_hidden_state",
        warns=rf"heads\.next_sentence_prediction\.out\.weight, .*{NEW}",
    ),
    PublishedFolder(
        name="albert_chinese_base as AlbertModel",
        source=issue(1, "https://github.com/hyznlp/nlp"),
        seen="predictions.decoder.weight, predictions.decoder.bias, predictions.bias, ...",
        case="albert-AlbertForPreTraining", opens="AlbertModel", tied=r"predictions\.decoder\..*",
        removed=r"sop_classifier.*", config={"architectures": ["AlbertModel"]}, warns=KEPT_ASIDE,
    ),
    PublishedFolder(
        name="albert_chinese_base as AlbertForSequenceClassification",
        source=issue(10603),
        seen="predictions.bias, ... are not used; the output is random",
        case="albert-AlbertForPreTraining", opens="AlbertForSequenceClassification",
        load={"head": "sequence-classification"}, compared="last_hidden_state",
        warns=rf"heads\.sequence_classification\.out\.weight, .*{NEW}",
    ),
    PublishedFolder(
        name="albert-base-v2-config.json",
        source=source_file("v2.2.0", "transformers/configuration_albert.py"),
        seen="down_scale_factor; no model_type",
        case="albert-AlbertForMaskedLM", kept_keys=BERT_KEYS + """
            embedding_size num_hidden_groups inner_group_num layer_norm_eps
        """,
        config={"down_scale_factor": 1}, load={"family": "albert", "head": "masked-lm"},
    ),
    PublishedFolder(
        name="albert.embeddings.position_ids",
        source=source_file("v3.5.0", "src/transformers/modeling_albert.py"),
        seen='register_buffer("position_ids"), saved',
        case="albert-AlbertForQuestionAnswering", extra={"albert.embeddings.position_ids": (1, 17)},
    ),
]  # fmt: skip

DISTILBERT = [
    PublishedFolder(
        name="distilbert-base-uncased as DistilBertModel",
        source=issue(15, "https://github.com/m-bain/frozen-in-time"),
        seen="vocab_projector.*, vocab_transform.*, vocab_layer_norm.* are not used",
        case="distilbert-DistilBertForMaskedLM", opens="DistilBertModel",
        tied=r"vocab_projector\.weight", config={"architectures": ["DistilBertModel"]},
        warns=rf"vocab_layer_norm\.bias, .*{KEPT_ASIDE}",
    ),
    PublishedFolder(
        name="distilbert-base-uncased as DistilBertForSequenceClassification",
        source=issue(242, "https://github.com/amaiya/ktrain"),
        seen="classifier and pre_classifier are newly initialized",
        case="distilbert-DistilBertForMaskedLM", opens="DistilBertForSequenceClassification",
        load={"head": "sequence-classification"}, compared="last_hidden_state",
        warns=rf"heads\.sequence_classification\.dense\.weight, .*{NEW}",
    ),
    PublishedFolder(
        name="distilbert-base-german-cased",
        source=issue(228, "https://github.com/guillaume-be/rust-bert"),
        seen="sinusoidal_pos_embds true, with positions in the file",
        case="distilbert-DistilBertForMaskedLM", config={"sinusoidal_pos_embds": True},
    ),
    PublishedFolder(
        name="distilbert-base-uncased-config.json",
        source=source_file("v2.0.0", "transformers/configuration_distilbert.py"),
        seen="tie_weights_; no model_type, no architectures",
        case="distilbert-DistilBertForMaskedLM", tied=r"vocab_projector\.weight",
        kept_keys="""
            activation attention_dropout dim dropout hidden_dim initializer_range
            max_position_embeddings n_heads n_layers qa_dropout seq_classif_dropout
            sinusoidal_pos_embds vocab_size
        """,
        config={"tie_weights_": True}, load={"family": "distilbert", "head": "masked-lm"},
    ),
]  # fmt: skip

ELECTRA = [
    PublishedFolder(
        name="electra-base-discriminator",
        source=issue(560, SIMPLE),
        seen="electra.embeddings_project.* although embedding_size is hidden_size",
        case="electra-ElectraForPreTraining-equal",
        extra={
            "electra.embeddings_project.weight": (24, 24), "electra.embeddings_project.bias": (24,)
        },
    ),
    PublishedFolder(
        name="electra-small-discriminator as ElectraForMaskedLM",
        source=issue(9730),
        seen="generator_predictions.* are newly initialized",
        case="electra-ElectraForPreTraining", opens="ElectraForMaskedLM",
        load={"head": "masked-lm"}, compared="last_hidden_state",
        warns=rf"heads\.lm\.dense\.weight, .*{NEW}",
    ),
    PublishedFolder(
        name="chinese-electra-180g-small-discriminator as ElectraModel",
        source=issue(84, "https://github.com/ymcui/Chinese-ELECTRA"),
        seen="discriminator_predictions.* are not used",
        case="electra-ElectraForPreTraining", opens="ElectraModel",
        config={"architectures": ["ElectraModel"]},
        warns=rf"discriminator_predictions\.dense\.bias, .*{KEPT_ASIDE}",
    ),
    PublishedFolder(
        name="chinese-electra-small-ex-generator",
        source=issue(63, "https://github.com/ymcui/Chinese-ELECTRA"),
        seen="generator_predictions.*, generator_lm_head.weight and .bias",
        case="electra-ElectraForMaskedLM", tied=r"generator_lm_head\.weight",
    ),
    PublishedFolder(
        name="electra.embeddings.position_ids",
        source=source_file("v3.5.0", "src/transformers/modeling_electra.py"),
        seen='register_buffer("position_ids"), saved',
        case="electra-ElectraForTokenClassification",
        extra={"electra.embeddings.position_ids": (1, 17)},
    ),
]  # fmt: skip

XLNET_KEYS = """
    attn_type bi_data clamp_len d_head d_inner d_model dropout end_n_top ff_activation
    initializer_range layer_norm_eps n_head n_layer same_length start_n_top summary_activation
    summary_last_dropout summary_type summary_use_proj
"""
XLNET = [
    PublishedFolder(
        name="chinese_xlnet_base_pytorch",
        source=issue(40, "https://github.com/ymcui/Chinese-XLNet"),
        seen="n_token for vocab_size, mem_len null, output_past, pruned_heads, use_bfloat16",
        case="xlnet-XLNetLMHeadModel", tied=r"lm_loss\.weight", kept_keys=XLNET_KEYS,
        config={
            "n_token": 53, "finetuning_task": None, "num_labels": 2, "output_attentions": False,
            "output_hidden_states": False, "output_past": True, "pruned_heads": {},
            "torchscript": False, "untie_r": True, "use_bfloat16": False,
        },
        load={"family": "xlnet", "head": "lm"}, compared="logits last_hidden_state",
    ),
    PublishedFolder(
        name="a fine-tuned XLNetForSequenceClassification of 2019",
        source=issue(809),
        seen="XLNetConfig with num_labels=2, finetuning_task='sentiment'",
        case="xlnet-XLNetForSequenceClassification",
        config={"id2label": None, "label2id": None, "num_labels": 3, "finetuning_task": "sentiment"},
    ),
    PublishedFolder(
        name="lm_loss.weight",
        source=source_file("v1.0.0", "pytorch_transformers/modeling_xlnet.py"),
        seen="lm_loss is a linear layer with a weight, which is saved",
        case="xlnet-XLNetLMHeadModel", tied=r"lm_loss\.weight",
    ),
]  # fmt: skip

MODERNBERT = [
    PublishedFolder(
        name="ModernBERT-base as ModernBertForTokenClassification",
        source=pull(35344),
        seen="head.dense and head.norm of the masked LM are loaded by the token classifier",
        case="modernbert-ModernBertForMaskedLM", opens="ModernBertForTokenClassification",
        load={"head": "token-classification"}, compared="last_hidden_state",
        warns=rf"heads\.token_classification\.out\.weight, heads\.token_classification\.out\.bias .*{NEW}",
    ),
    PublishedFolder(
        name="ModernBERT-base of December 2024",
        source=source_file("v4.48.0", "src/transformers/models/modernbert/configuration_modernbert.py"),
        seen="global_rope_theta, local_rope_theta, reference_compile, repad_logits_with_grad",
        case="modernbert-ModernBertForMaskedLM",
        config={
            "layer_types": None, "rope_parameters": None, "global_rope_theta": 160000.0,
            "local_rope_theta": 10000.0, "deterministic_flash_attn": False,
            "reference_compile": None, "repad_logits_with_grad": False, "sparse_prediction": False,
            "sparse_pred_ignore_index": -100, "dtype": None, "torch_dtype": "float32",
        },
    ),
    PublishedFolder(
        name="decoder.weight of ModernBERT",
        source=pull(6518, "https://github.com/marin-community/marin"),
        seen="checkpoints with decoder.weight, and tied ones with decoder.bias alone",
        case="modernbert-ModernBertForMaskedLM", tied=r"decoder\.weight",
    ),
]  # fmt: skip

CLIP_POSITION_IDS = {
    "text_model.embeddings.position_ids": (1, 17), "vision_model.embeddings.position_ids": (1, 10)
}  # fmt: skip
CLIP = [
    PublishedFolder(
        name="clip-vit-base-patch32",
        source=source_file("v4.6.0", "src/transformers/models/clip/configuration_clip.py"),
        seen="text_config_dict and vision_config_dict; position_ids of both encoders",
        case="clip-CLIPModel", extra=CLIP_POSITION_IDS,
        config={"text_config_dict": {}, "vision_config_dict": {}},
    ),
    PublishedFolder(
        name="text encoder of Stable Diffusion",
        source=issue(46, "https://github.com/haofanwang/ControlNet-for-Diffusers"),
        seen="text_model.embeddings.position_ids in a CLIPTextModel",
        case="clip-CLIPTextModel", renamed={"^(?!text_model)": "text_model."},
        extra={"text_model.embeddings.position_ids": (1, 17)},
    ),
    PublishedFolder(
        name="text encoder of stable-diffusion-v1-5",
        source=issue(10754, "https://github.com/huggingface/diffusers"),
        seen="eos_token_id 2, dropout, model_type clip_text_model, torch_dtype",
        case="clip-CLIPTextModel-highest",
        config={"dropout": 0.0, "dtype": None, "torch_dtype": "float32", "projection_dim": 768},
    ),
    PublishedFolder(
        name="clip-vit-large-patch14 as CLIPVisionModelWithProjection",
        source=issue(14, "https://github.com/navervision/lincir"),
        seen="logit_scale, text_model.* and text_model.embeddings.position_ids are not used",
        case="clip-CLIPModel", opens="CLIPVisionModelWithProjection", extra=CLIP_POSITION_IDS,
        load={"head": "image-embedding"},
    ),
    PublishedFolder(
        name="clip-vit-large-patch14 as CLIPTextModel",
        source=issue(10, "https://github.com/CompVis/stable-diffusion"),
        seen="vision_model.* and logit_scale are not used",
        case="clip-CLIPModel", opens="CLIPTextModel", extra=CLIP_POSITION_IDS,
        load={"head": "text"},
    ),
]  # fmt: skip

VIT = [
    PublishedFolder(
        name="vit-base-patch32-384 as ViTModel",
        source=issue(150, "https://github.com/google-research/vision_transformer"),
        seen="classifier.* is not used; vit.pooler.dense.* is newly initialized",
        case="vit-ViTForImageClassification", opens="ViTModel", load={"head": "none"},
        compared="last_hidden_state", warns=rf"heads\.pooler\.dense\.weight, .*{NEW}",
    ),
    PublishedFolder(
        name="vit-base-patch16-224",
        source=source_file("v4.6.0", "src/transformers/models/vit/configuration_vit.py"),
        seen="no keys of the pooler",
        case="vit-ViTForImageClassification", kept_keys="""
            architectures model_type hidden_size num_hidden_layers num_attention_heads intermediate_size
            hidden_act hidden_dropout_prob attention_probs_dropout_prob initializer_range layer_norm_eps
            image_size patch_size num_channels id2label label2id
        """,
    ),
]  # fmt: skip

ENCODERS = [*ALBERT, *DISTILBERT, *ELECTRA, *XLNET, *MODERNBERT, *CLIP, *VIT]
