"""Published folders of BERT, RoBERTa, XLM-RoBERTa and CamemBERT."""

from tests.support.published.folder import PublishedFolder, issue, pull, source_file

KEPT_ASIDE = "kept aside"
NEW = "newly initialized"
GAMMA_BETA = {r"LayerNorm\.weight$": "LayerNorm.gamma", r"LayerNorm\.bias$": "LayerNorm.beta"}
POSITION_IDS = {"bert.embeddings.position_ids": (1, 17)}
BERT_KEYS = """
    attention_probs_dropout_prob hidden_act hidden_dropout_prob hidden_size initializer_range
    intermediate_size max_position_embeddings num_attention_heads num_hidden_layers
    type_vocab_size vocab_size
"""
SIMPLE = "https://github.com/ThilinaRajapakse/simpletransformers"

BERT = [
    PublishedFolder(
        name="bert-base-uncased",
        source=issue(11809),
        seen="LayerNorm.gamma and LayerNorm.beta; cls.predictions.decoder.bias is missing",
        case="bert-BertForPreTraining", opens="BertForMaskedLM",
        tied=r"cls\.predictions\.decoder\.weight", renamed=GAMMA_BETA,
        config={"architectures": ["BertForMaskedLM"]}, warns=KEPT_ASIDE,
    ),
    PublishedFolder(
        name="bert-base-uncased as BertForPreTraining",
        source=issue(11809),
        seen="BertForPreTraining.from_pretrained: only cls.predictions.decoder.bias is new",
        case="bert-BertForPreTraining", renamed=GAMMA_BETA,
        config={"architectures": ["BertForMaskedLM"]}, load={"head": "pretraining"},
    ),
    PublishedFolder(
        name="bert-large-uncased as BertForNextSentencePrediction",
        source=issue(9319),
        seen="a comment: cls.predictions.* is not used by BertForNextSentencePrediction",
        case="bert-BertForPreTraining", opens="BertForNextSentencePrediction",
        tied=r"cls\.predictions\.decoder\..*", load={"head": "next-sentence-prediction"},
    ),
    PublishedFolder(
        name="gamma and beta without the prefix",
        source=issue(2, "https://github.com/qjay612/meta_learning_NL2SQL"),
        seen="encoder.layer.6.output.LayerNorm.gamma, without bert.",
        case="bert-BertModel", renamed=GAMMA_BETA,
    ),
    PublishedFolder(
        name="bert.embeddings.position_ids",
        source=issue(16353),
        seen="bert.embeddings.position_ids in a saved BertForSequenceClassification",
        case="bert-BertForSequenceClassification", extra=POSITION_IDS,
    ),
    PublishedFolder(
        name="bert.botxo.pytorch as BertModel",
        source=issue(167, "https://github.com/alexandrainst/danlp"),
        seen="cls.seq_relationship.*, cls.predictions.* are not used by BertModel",
        case="bert-BertForPreTraining", opens="BertModel", tied=r"cls\.predictions\.decoder\.weight",
        config={"architectures": ["BertModel"]}, warns=KEPT_ASIDE,
    ),
    PublishedFolder(
        name="a masked LM without pooler as BertModel",
        source=issue(8887),
        seen="bert.pooler.dense.weight and bert.pooler.dense.bias are newly initialized",
        case="bert-BertForMaskedLM", opens="BertModel",
        config={"architectures": ["BertModel"]}, compared="last_hidden_state",
        warns=f"heads.pooler.dense.weight, heads.pooler.dense.bias are {NEW}|{KEPT_ASIDE}",
    ),
    PublishedFolder(
        name="bert-base-uncased as BertForTokenClassification",
        source=issue(180),
        seen="classifier.weight and classifier.bias are not initialized, cls.* is not used",
        case="bert-BertForPreTraining", opens="BertForTokenClassification",
        load={"head": "token-classification"}, compared="last_hidden_state",
        warns=f"heads.token_classification.out.weight, .* are {NEW}",
    ),
    PublishedFolder(
        name="BertForTokenClassification with a pooler",
        source=pull(351, "https://github.com/guillaume-be/rust-bert"),
        seen="NER models with a pooler, and newer ones (bert-small-finetuned-wnut17-ner) without",
        case="bert-BertForTokenClassification", warns=KEPT_ASIDE,
        extra={"bert.pooler.dense.weight": (24, 24), "bert.pooler.dense.bias": (24,)},
    ),
    PublishedFolder(
        name="16 labels, no names",
        source=issue(135),
        seen="classifier of 16 labels, loaded with the default of 2",
        case="bert-BertForSequenceClassification-multi",
        config={"id2label": None, "label2id": None, "problem_type": None},
        warns="the head has 5 labels, config.json has 2",
    ),
    PublishedFolder(
        name="clinicalBERT discharge_readmission",
        source=issue(6, "https://github.com/kexinhuang12345/clinicalBERT"),
        seen="classifier.weight of shape [1, 768], opened with num_labels=2",
        case="bert-BertForSequenceClassification-regression", compared="logits",
        config={"id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "num_labels": 2, "problem_type": None},
        warns="the head has 1 labels, config.json has 2",
    ),
    PublishedFolder(
        name="bert-base-cased-finetuned-conll03-english of April 2020",
        source=pull(21, "https://github.com/guillaume-be/rust-bert"),
        seen="_num_labels in place of num_labels",
        case="bert-BertForTokenClassification-count", config={"_num_labels": 4, "id2label": None},
    ),
    PublishedFolder(
        name="bert-base-chinese",
        source=issue(3773),
        seen="architectures, but no model_type; directionality and pooler_* keys",
        case="bert-BertForMaskedLM", kept_keys=BERT_KEYS + "architectures",
        config={
            "directionality": "bidi", "pooler_fc_size": 768, "pooler_num_attention_heads": 12,
            "pooler_num_fc_layers": 3, "pooler_size_per_head": 128,
            "pooler_type": "first_token_transform",
        },
    ),
    PublishedFolder(
        name="FinBERT",
        source=issue(13, "https://github.com/valuesimplex/FinBERT"),
        seen="config.json without model_type",
        case="bert-BertForSequenceClassification", kept_keys=BERT_KEYS,
        config={"num_labels": 3}, load={"family": "bert", "head": "sequence-classification"},
    ),
    PublishedFolder(
        name="bert-base-uncased-config.json of February 2020",
        source=issue(246, SIMPLE),
        seen="eos_token_ids, finetuning_task, num_labels and id2label, decoding settings",
        case="bert-BertForMaskedLM",
        config={
            "bos_token_id": None, "do_sample": False, "eos_token_ids": None, "finetuning_task": None,
            "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1},
            "length_penalty": 1.0, "max_length": 20, "num_beams": 1, "num_labels": 2,
            "num_return_sequences": 1, "output_attentions": False, "output_hidden_states": False,
        },
    ),
    PublishedFolder(
        name="JointBERT",
        source=issue(3, "https://github.com/monologg/JointBERT"),
        seen="architectures [JointBERT]; model/module.py: intent_classifier.linear",
        case="bert-BertModel", renamed={"^": "bert."},
        extra={
            "intent_classifier.linear.weight": (7, 24), "intent_classifier.linear.bias": (7,),
            "slot_classifier.linear.weight": (9, 24), "slot_classifier.linear.bias": (9,),
        },
        config={"architectures": ["JointBERT"]}, load={"head": "none"}, reload={"head": "none"},
        warns=rf"intent_classifier\.linear\.bias, .*{KEPT_ASIDE}",
    ),
    PublishedFolder(
        name="BertForMultiLabelSequenceClassification",
        source=issue(339),
        seen="a class of its own, with classifier.weight and classifier.bias",
        case="bert-BertForSequenceClassification-multi",
        config={"architectures": ["BertForMultiLabelSequenceClassification"]},
        load={"head": "sequence-classification"},
    ),
]  # fmt: skip

ROBERTA = [
    PublishedFolder(
        name="roberta-base of 2019",
        source=issue(2202),
        seen="lm_head.weight in the file, lm_head.decoder.weight in the class",
        case="roberta-RobertaForMaskedLM", tied=r"lm_head\.decoder\.weight",
        renamed={r"lm_head\.decoder\.weight": "lm_head.weight"},
    ),
    PublishedFolder(
        name="roberta.embeddings.position_ids",
        source=source_file("v3.5.0", "src/transformers/modeling_roberta.py"),
        seen='register_buffer("position_ids") and lm_head.decoder.bias, both saved',
        case="roberta-RobertaForMaskedLM", tied=r"lm_head\.decoder\..*",
        extra={"roberta.embeddings.position_ids": (1, 17)},
    ),
    PublishedFolder(
        name="roberta-base as RobertaModel",
        source=issue(33, "https://github.com/fhamborg/NewsMTSC"),
        seen="lm_head.layer_norm.bias, lm_head.decoder.weight, lm_head.bias, ... are not used",
        case="roberta-RobertaForMaskedLM", opens="RobertaModel", tied=r"lm_head\.decoder\.weight",
        load={"head": "none"}, compared="last_hidden_state", warns=f"heads.pooler.dense.*{NEW}",
    ),
    PublishedFolder(
        name="twitter-roberta-base-sentiment-latest",
        source=issue(14, "https://github.com/cardiffnlp/tweetnlp"),
        seen="roberta.pooler.dense.* in RobertaForSequenceClassification",
        case="roberta-RobertaForSequenceClassification", warns=KEPT_ASIDE,
        extra={"roberta.pooler.dense.weight": (24, 24), "roberta.pooler.dense.bias": (24,)},
    ),
    PublishedFolder(
        name="xlm-roberta-large as XLMRobertaModel",
        source=issue(59, "https://github.com/Unbabel/COMET"),
        seen="lm_head.* and roberta.pooler.dense.* in the file",
        case="roberta-RobertaForMaskedLM", opens="XLMRobertaModel", tied=r"lm_head\.decoder\.weight",
        extra={"roberta.pooler.dense.weight": (24, 24), "roberta.pooler.dense.bias": (24,)},
        config={"model_type": "xlm-roberta", "architectures": ["XLMRobertaForMaskedLM"]},
        load={"head": "none"}, compared="last_hidden_state",
    ),
    PublishedFolder(
        name="xlm-roberta-base",
        source=issue(9579),
        seen="XLMRobertaForMaskedLM without lm_head.decoder.bias",
        case="roberta-RobertaForMaskedLM", opens="XLMRobertaForMaskedLM",
        tied=r"lm_head\.decoder\.weight",
        config={"model_type": "xlm-roberta", "architectures": ["XLMRobertaForMaskedLM"]},
        compared="logits last_hidden_state",
    ),
    PublishedFolder(
        name="xlm-roberta-large after run_ner.py",
        source=issue(2487),
        seen="id2label with LABEL_0 and LABEL_1 after training on more labels",
        case="roberta-RobertaForTokenClassification",
        config={
            "model_type": "xlm-roberta", "architectures": ["XLMRobertaForTokenClassification"],
            "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1},
        },
        warns="the head has 3 labels, config.json has 2",
    ),
    PublishedFolder(
        name="camembert-base",
        source=issue(7167),
        seen="CamembertForMaskedLM without lm_head.decoder.bias",
        case="roberta-RobertaForMaskedLM", opens="CamembertForMaskedLM",
        tied=r"lm_head\.decoder\.weight",
        config={"model_type": "camembert", "architectures": ["CamembertForMaskedLM"]},
        compared="logits last_hidden_state",
    ),
    PublishedFolder(
        name="CamembertForSequenceClassification",
        source=pull(19312),
        seen="the prefix of CamemBERT's checkpoints is roberta",
        case="roberta-RobertaForSequenceClassification",
        config={"model_type": "camembert", "architectures": ["CamembertForSequenceClassification"]},
    ),
]  # fmt: skip
