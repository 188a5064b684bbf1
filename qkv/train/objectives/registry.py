"""Registry of objectives: one row (ObjectiveSpec) per objective, with everything that a run needs.

A new objective needs a row of OBJECTIVE_SPECS and a function that builds its Objective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from qkv.data.read.columns import find_columns
from qkv.data.read.lines import STDIN
from qkv.data.read.record import TEXT_COLUMNS
from qkv.hints import find_closest_name
from qkv.model.model import Model
from qkv.spec import DualSpec, Spec
from qkv.train.evaluate import answer_evaluator, evaluators, retrieval_evaluator
from qkv.train.evaluate.generation import (
    CAPTION_GENERATION,
    TARGET_GENERATION,
    GenerationSpec,
)
from qkv.train.objectives import (
    captioning,
    causal_lm,
    check_objective_settings,
    classification,
    contrastive,
    encoders,
    image_classification,
    masked_lm,
    samplers,
    seq2seq,
    text_to_image,
    wrappers,
)
from qkv.train.objectives.objective import Objective
from qkv.train.objectives.reinforce import REINFORCE_DEFAULTS
from qkv.train.objectives.vocabulary import get_max_positions
from qkv.train.recipe import Recipe, as_list

TEXT_PAIR_FIELDS = ("source", "target")
STRING_SETTINGS = {*TEXT_PAIR_FIELDS, "teacher"}  # extra settings that are strings
DEFAULT_MAX_LENGTH = 512  # upper limit of the default row length, in tokens
NEXT_TOKEN_HEADS = ("lm", "causal-lm", "double-heads")  # heads that predict the next token
# Heads that an objective accepts, by the head of its row; None is the default head of a family.
COMPATIBLE_HEADS = {None: NEXT_TOKEN_HEADS, "masked-lm": ("masked-lm", "pretraining")}


@dataclass(frozen=True, kw_only=True)
class ObjectiveSpec:
    """An objective and everything that a run needs for it."""

    build_objective: Callable[..., Objective]  # given VocabularyInfo and settings of the objective
    build_encoder: encoders.EncoderFactory
    build_sampler: samplers.SamplerFactory
    build_module: wrappers.ModuleFactory = wrappers.build_default_module
    build_evaluator: evaluators.EvaluatorFactory = evaluators.build_token_evaluator
    head: str | None = None  # None: the default of the family
    pooling: str | None = None  # for models that return one embedding per text
    tokenizer_template: str = "bert"  # template of a tokenizer that is trained for the run
    columns: tuple[str, ...] = ("text",)  # required columns of a record, in the order of a tuple
    label_column: str | None = None
    extra_settings: tuple[str, ...] = ()  # settings that build_objective does not take
    variable_length: bool = False  # rows have the length of their texts, not a fixed length
    predicts_every_token: bool = False  # the loss covers every token of the text exactly once
    generation: GenerationSpec | None = None  # evaluation of generated texts

    @property
    def text_column(self) -> str | None:
        """The column of the training texts of a tokenizer; None: the objective reads no text."""
        return next((name for name in self.columns if name in TEXT_COLUMNS), None)


OBJECTIVE_SPECS: dict[str, ObjectiveSpec] = {
    "causal-lm": ObjectiveSpec(  # GPT
        build_objective=causal_lm.build_causal_lm_objective,
        build_encoder=encoders.build_running_text_encoder,
        build_sampler=samplers.build_causal_lm_sampler,
        tokenizer_template="gpt",
        predicts_every_token=True,
    ),
    "segment-recurrent-lm": ObjectiveSpec(  # Transformer-XL
        build_objective=causal_lm.build_segment_recurrent_lm_objective,
        build_encoder=encoders.build_running_text_encoder,
        build_sampler=samplers.build_segment_recurrent_lm_sampler,
        tokenizer_template="plain",
        predicts_every_token=True,
    ),
    "control-code-lm": ObjectiveSpec(  # CTRL
        build_objective=causal_lm.build_control_code_lm_objective,
        build_encoder=encoders.build_control_code_encoder,
        build_sampler=samplers.build_control_code_sampler,
        tokenizer_template="gpt",
        columns=("text", "code"),
    ),
    "permutation-lm": ObjectiveSpec(  # XLNet
        build_objective=causal_lm.build_permutation_lm_objective,
        build_encoder=encoders.build_raw_text_encoder,
        build_sampler=samplers.build_permutation_lm_sampler,
        head="lm",
        tokenizer_template="xlnet",
    ),
    "masked-lm": ObjectiveSpec(  # BERT, RoBERTa
        build_objective=masked_lm.build_masked_lm_objective,
        build_encoder=encoders.build_raw_text_encoder,
        build_sampler=samplers.build_packed_sampler,
        head="masked-lm",
    ),
    "masked-lm-sentence-pair": ObjectiveSpec(  # BERT, ALBERT
        build_objective=masked_lm.build_masked_lm_sentence_pair_objective,
        build_encoder=encoders.build_sentences_encoder,
        build_sampler=samplers.build_sentence_pair_sampler,
        build_evaluator=evaluators.build_sentence_pair_evaluator,
        head="pretraining",
    ),
    "replaced-token-detection": ObjectiveSpec(  # ELECTRA
        build_objective=masked_lm.build_replaced_token_detection_objective,
        build_encoder=encoders.build_raw_text_encoder,
        build_sampler=samplers.build_packed_sampler,
        build_module=wrappers.build_generator_discriminator,
        build_evaluator=evaluators.build_replaced_token_detection_evaluator,
        head="replaced-token-detection",
        extra_settings=("generator",),
    ),
    "distillation": ObjectiveSpec(  # DistilBERT
        build_objective=masked_lm.build_distillation_objective,
        build_encoder=encoders.build_raw_text_encoder,
        build_sampler=samplers.build_packed_sampler,
        build_module=wrappers.build_student_teacher,
        head="masked-lm",
        extra_settings=("teacher",),
    ),
    "seq2seq": ObjectiveSpec(  # the Transformer, Marian
        build_objective=seq2seq.build_seq2seq_objective,
        build_encoder=encoders.build_text_pair_encoder,
        build_sampler=samplers.build_record_sampler_factory(*TEXT_PAIR_FIELDS),
        head="lm",
        tokenizer_template="seq2seq",
        columns=TEXT_PAIR_FIELDS,
        extra_settings=TEXT_PAIR_FIELDS,
        variable_length=True,
        generation=TARGET_GENERATION,
    ),
    "denoising": ObjectiveSpec(  # BART
        build_objective=seq2seq.build_denoising_objective,
        build_encoder=encoders.build_raw_text_encoder,
        build_sampler=samplers.build_document_chunk_sampler,
        head="lm",
        tokenizer_template="roberta",
    ),
    "multilingual-denoising": ObjectiveSpec(  # mBART
        build_objective=seq2seq.build_multilingual_denoising_objective,
        build_encoder=encoders.build_language_code_encoder,
        build_sampler=samplers.build_document_chunk_sampler,
        head="lm",
        tokenizer_template="roberta",
        columns=("text", "language"),
    ),
    "span-corruption": ObjectiveSpec(  # T5, Switch
        build_objective=seq2seq.build_span_corruption_objective,
        build_encoder=encoders.build_running_text_encoder,
        build_sampler=samplers.build_span_corruption_sampler,
        head="lm",
        tokenizer_template="t5",
    ),
    "sentence-contrastive": ObjectiveSpec(  # sentence embeddings
        build_objective=contrastive.build_sentence_contrastive_objective,
        build_encoder=encoders.build_text_pair_encoder,
        build_sampler=samplers.build_record_sampler_factory(*TEXT_PAIR_FIELDS),
        build_evaluator=retrieval_evaluator.build_sentence_retrieval_evaluator,
        pooling="mean",
        columns=TEXT_PAIR_FIELDS,
        extra_settings=TEXT_PAIR_FIELDS,
        variable_length=True,
    ),
    "image-captioning": ObjectiveSpec(  # Show, Attend and Tell
        build_objective=captioning.build_image_captioning_objective,
        build_encoder=encoders.build_caption_encoder,
        build_sampler=samplers.build_record_sampler_factory("tokens"),
        head="lm",
        tokenizer_template="seq2seq",
        columns=("image", "caption"),
        variable_length=True,
        generation=CAPTION_GENERATION,
    ),
    "image-text-contrastive": ObjectiveSpec(  # CLIP
        build_objective=contrastive.build_image_text_contrastive_objective,
        build_encoder=encoders.build_caption_encoder,
        build_sampler=samplers.build_record_sampler_factory("tokens"),
        build_module=wrappers.build_contrastive_module,
        build_evaluator=retrieval_evaluator.build_image_retrieval_evaluator,
        tokenizer_template="bos-eos",
        columns=("image", "caption"),
        variable_length=True,
    ),
    "text-to-image": ObjectiveSpec(  # DALL-E
        build_objective=text_to_image.build_text_to_image_objective,
        build_encoder=encoders.build_text_to_image_encoder,
        build_sampler=samplers.build_record_sampler_factory("tokens"),
        tokenizer_template="plain",
        columns=("image", "caption"),
        variable_length=True,
    ),
    "sequence-classification": ObjectiveSpec(
        build_objective=classification.build_sequence_classification_objective,
        build_encoder=encoders.build_label_encoder,
        build_sampler=samplers.build_record_sampler_factory("tokens"),
        build_evaluator=evaluators.build_sequence_classification_evaluator,
        head="sequence-classification",
        columns=("text", "label"),
        label_column="label",
        variable_length=True,
    ),
    "image-classification": ObjectiveSpec(  # ViT
        build_objective=image_classification.build_image_classification_objective,
        build_encoder=encoders.build_image_label_encoder,
        build_sampler=samplers.build_image_sampler,
        build_evaluator=evaluators.build_image_classification_evaluator,
        head="image-classification",
        columns=("image", "label"),
        label_column="label",
        variable_length=True,
    ),
    "frame-classification": ObjectiveSpec(  # synchronous sequence to sequence
        build_objective=image_classification.build_frame_classification_objective,
        build_encoder=encoders.build_frame_label_encoder,
        build_sampler=samplers.build_image_sampler,
        build_evaluator=evaluators.build_frame_classification_evaluator,
        head="frame-classification",
        columns=("frames", "labels"),
        label_column="labels",
        variable_length=True,
    ),
    "token-classification": ObjectiveSpec(
        build_objective=classification.build_token_classification_objective,
        build_encoder=encoders.build_tag_encoder,
        build_sampler=samplers.build_record_sampler_factory("tokens"),
        build_evaluator=evaluators.build_token_classification_evaluator,
        head="token-classification",
        columns=("words", "tags"),
        label_column="tags",
        variable_length=True,
    ),
    "question-answering": ObjectiveSpec(
        build_objective=classification.build_question_answering_objective,
        build_encoder=encoders.build_answer_span_encoder,
        build_sampler=samplers.build_window_sampler,
        build_evaluator=answer_evaluator.build_question_answering_evaluator,
        head="question-answering",
        columns=("context", "question", "answers"),
        extra_settings=("stride", "max_answer_tokens"),
        variable_length=True,
    ),
    "multiple-choice": ObjectiveSpec(
        build_objective=classification.build_multiple_choice_objective,
        build_encoder=encoders.build_choice_encoder,
        build_sampler=samplers.build_record_sampler_factory("tokens"),
        build_evaluator=evaluators.build_multiple_choice_evaluator,
        head="multiple-choice",
        columns=("text", "choices", "label"),
        variable_length=True,
    ),
}
VARIABLE_LENGTH_OBJECTIVES = {
    name for name, spec in OBJECTIVE_SPECS.items() if spec.variable_length
}


def find_objective_spec(name: str) -> ObjectiveSpec:
    """Return the row of this name; an unknown name is an error that lists the known names."""
    if name not in OBJECTIVE_SPECS:
        closest = find_closest_name(name, OBJECTIVE_SPECS)
        hint = f"; did you mean {closest}?" if closest else ""
        known = ", ".join(OBJECTIVE_SPECS)
        raise ValueError(f"objective.name {name!r}, expected one of {known}{hint}")
    return OBJECTIVE_SPECS[name]


def get_objective_spec(recipe: Recipe) -> ObjectiveSpec:
    """Return the row of the recipe's objective, and validate the names and types of its settings."""
    name = recipe.objective.name
    spec = find_objective_spec(name)
    settings = recipe.objective.settings
    # "balanced" class weights are computed from the data.
    computed = [key for key in ("class_weights",) if isinstance(settings.get(key), str)]
    typed_settings = {key: value for key, value in settings.items() if key not in computed}
    check_objective_settings(
        name, spec.build_objective, typed_settings, (*spec.extra_settings, *REINFORCE_DEFAULTS)
    )
    for key in sorted(STRING_SETTINGS & settings.keys() & {*spec.extra_settings}):
        if not isinstance(settings[key], str):
            raise ValueError(f"objective.{key} is {settings[key]!r}, expected a text")
    return spec


def list_compatible_heads(spec: ObjectiveSpec) -> tuple[str | None, ...]:
    """Return the heads that the objective can train, the default first; empty if it uses no head."""
    if spec.pooling or spec.build_module is wrappers.build_contrastive_module:
        return ()
    return COMPATIBLE_HEADS.get(spec.head, (spec.head,))


def check_head(spec: ObjectiveSpec, model: Model, objective_name: str) -> None:
    """Raise ValueError if the model lacks the head or the pooling that the objective trains."""
    if spec.pooling and model.pooling is None:
        raise ValueError(
            f"objective {objective_name!r} with a model without pooling: "
            f"build it with pooling={spec.pooling!r}"
        )
    head = model.args["head"]
    heads = list_compatible_heads(spec)
    if heads and head not in heads:
        raise ValueError(
            f"objective {objective_name!r} with a model of head {head!r}, expected {heads[0]!r}: "
            f"build it with head={heads[0]!r}"
        )


def find_default_objective(model: Model) -> str | None:
    """Return the objective that trains the head of the model; None if the head does not determine it."""
    head = model.args.get("head")
    if head in OBJECTIVE_SPECS:  # such as masked-lm or sequence-classification
        return str(head)
    if head == "pretraining":
        return "masked-lm-sentence-pair"
    if model.image_tokenizer is not None:
        return "text-to-image"
    if isinstance(model.spec, DualSpec):
        return "image-text-contrastive" if model.spec.text and model.spec.image else None
    if head in NEXT_TOKEN_HEADS:
        return find_language_model_objective(model.spec)
    return "sentence-contrastive" if model.pooling else None


def find_language_model_objective(spec: Spec) -> str | None:
    """Return the objective of a language model head; None for an encoder that predicts no text."""
    if spec.encoder is not None and spec.encoder.embedding.query_stream:
        return "permutation-lm"
    if spec.decoder is None:
        return None
    if spec.encoder is not None:
        return "image-captioning" if spec.encoder.embedding.patches else "seq2seq"
    return "causal-lm" if spec.decoder.recurrence is None else "segment-recurrent-lm"


def choose_objective(model: Model, name: str | None, argument: str = "objective") -> str:
    """Return the name, or else the objective that trains the head of the model; `argument` sets it."""
    name = name or find_default_objective(model)
    if name is None:
        raise ValueError(
            f"{argument}: the head {model.args.get('head')!r} of this {model.family.name} model does "
            f"not determine it; set {argument}, or load the model with another head, such as "
            "head='sequence-classification'"
        )
    find_objective_spec(name)
    return name


def choose_max_length(model: Model, objective_name: str) -> int:
    """Return the default row length of an objective with rows of equal length; 0 for others."""
    if objective_name in VARIABLE_LENGTH_OBJECTIVES:
        return 0
    return min(get_max_positions(model.spec) or DEFAULT_MAX_LENGTH, DEFAULT_MAX_LENGTH)


def find_data_columns(recipe: Recipe, paths: str | list[str]) -> Recipe:
    """Return the recipe with `data.columns` set, if the files have other usual names for the columns of
    the objective. Standard input and pipes, which can be read only once, are not inspected."""
    data = recipe.data
    if data.columns is not None or STDIN in as_list(paths):
        return recipe
    corpus = data.open_corpus(paths)
    if any(Path(file).is_fifo() for file in corpus.list_files()):
        return recipe
    columns = find_columns(corpus, get_objective_spec(recipe).columns)
    return replace(recipe, data=replace(data, columns=columns)) if columns else recipe


def infer_objective_settings(model: Model, objective_name: str) -> dict[str, str]:
    """Return the settings of an objective that follow from the model: the problem type of a sequence
    classification head, which is a regression if it has one label."""
    if objective_name != "sequence-classification":
        return {}
    problem_type = model.config.get("problem_type")
    if problem_type is None and model.args.get("num_labels") == 1:
        problem_type = "regression"
    return {"problem_type": problem_type} if problem_type in classification.PROBLEM_TYPES else {}


def check_head_setting(spec: ObjectiveSpec, recipe: Recipe) -> None:
    """Raise ValueError if `model.head` is not a head that the objective trains."""
    heads = list_compatible_heads(spec)
    if recipe.model.head is not None and heads and recipe.model.head not in heads:
        raise ValueError(
            f"model.head {recipe.model.head!r}, expected {heads[0]!r} for objective "
            f"{recipe.objective.name}; remove it, or choose another objective"
        )
