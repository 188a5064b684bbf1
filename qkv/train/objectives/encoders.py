"""Builders of the record encoders of a run, one per type of objective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qkv.data.encode.encoder import (
    ControlCodeEncoder,
    Encoder,
    PlainTextEncoder,
    RecordEncoder,
    SentenceSplitEncoder,
    SourceTargetEncoder,
)
from qkv.data.encode.images import ImageCaptionEncoder, ImageProcessor
from qkv.data.encode.labels import (
    MultipleChoiceEncoder,
    QuestionAnsweringEncoder,
    SequenceClassificationEncoder,
    TokenClassificationEncoder,
    get_column,
)
from qkv.data.encode.pixels import FrameClassificationEncoder, ImageClassificationEncoder
from qkv.data.encode.text_to_image import TextToImageEncoder
from qkv.spec import ConvolutionSpec, FrameSpec, PatchSpec, find_patches
from qkv.train.objectives.context import SetupContext
from qkv.validate import check_number

SPLIT_REASON = "long texts are split into rows of data.max_length tokens"
EncoderFactory = Callable[[SetupContext], Encoder]


def build_running_text_encoder(context: SetupContext) -> RecordEncoder:
    """Build the encoder of plain text; EOS separates records unless they are parts of one document."""
    context.check_overflow_unset(SPLIT_REASON)
    return PlainTextEncoder(
        add_eos=not context.is_single_document, tokenizer_folder=context.tokenizer_folder
    )


def build_raw_text_encoder(context: SetupContext) -> RecordEncoder:
    """Build the encoder of plain text without special tokens, which the sampler or objective adds."""
    if context.is_single_document:
        context.check_overflow_unset(f'with data.unit = "file", {SPLIT_REASON}')
    return PlainTextEncoder(
        add_eos=False,
        mark_word_starts=context.get_setting("whole_word", False),
        max_length=0 if context.is_single_document else context.row_length,
        num_special_tokens=context.vocab.single_template.num_special_tokens,
        **context.encoder_kwargs,
    )


def build_sentences_encoder(context: SetupContext) -> RecordEncoder:
    """Build the encoder of documents split into sentences."""
    context.check_overflow_unset(
        "sentence pairs of at most data.max_length tokens are sampled from long texts"
    )
    return SentenceSplitEncoder(
        mark_word_starts=context.get_setting("whole_word", False),
        tokenizer_folder=context.tokenizer_folder,
    )


def build_control_code_encoder(context: SetupContext) -> RecordEncoder:
    """Build the encoder of texts with control codes (CTRL)."""
    return ControlCodeEncoder(
        num_special_tokens=0, max_length=context.row_length, **context.encoder_kwargs
    )


def build_language_code_encoder(context: SetupContext) -> RecordEncoder:
    """Build the encoder of texts with language codes (mBART)."""
    return ControlCodeEncoder(
        code_column="language",
        add_eos=False,
        num_special_tokens=2,
        max_length=context.row_length,
        **context.encoder_kwargs,
    )


def build_text_pair_encoder(context: SetupContext) -> RecordEncoder:
    """Build the encoder of sources and targets, each from a template such as "{source}"."""
    return SourceTargetEncoder(
        max_length=context.max_length,
        languages=context.recipe.data.languages,
        source=context.get_setting("source", "{source}"),
        target=context.get_setting("target", "{target}"),
        **context.encoder_kwargs,
    )


def build_label_encoder(context: SetupContext) -> RecordEncoder:
    """Build the encoder of texts or text pairs with labels."""
    return SequenceClassificationEncoder(
        label_names=context.label_names,
        problem_type=context.recipe.objective.problem_type,
        max_length=context.max_length,
        **context.encoder_kwargs,
    )


def build_tag_encoder(context: SetupContext) -> RecordEncoder:
    """Build the encoder of words with tags."""
    return TokenClassificationEncoder(
        label_names=context.label_names, max_length=context.max_length, **context.encoder_kwargs
    )


def build_answer_span_encoder(context: SetupContext) -> RecordEncoder:
    """Build the encoder of questions and windows of their contexts, with answer positions."""
    for name in ("stride", "max_answer_tokens"):
        check_number(f"objective.{name}", context.get_setting(name, 1), integer=True, at_least=1)
    stride = context.get_setting("stride", 128)
    return QuestionAnsweringEncoder(
        stride=stride, max_length=context.max_length, **context.encoder_kwargs
    )


def build_choice_encoder(context: SetupContext) -> RecordEncoder:
    """Build the encoder of texts with choices; the first record determines the number of choices."""
    first = next(iter(context.records), None)
    if first is None:
        raise ValueError(
            "the training data has no records, expected at least one: is the file empty?"
        )
    choices = get_column(first, "choices")
    num_choices = len(choices) if isinstance(choices, list) else 0
    if num_choices < 2:
        raise ValueError(f"{first.location}: {num_choices} choices, expected a list of at least 2")
    return MultipleChoiceEncoder(
        num_choices=num_choices, max_length=context.max_length, **context.encoder_kwargs
    )


def build_image_label_encoder(context: SetupContext) -> Encoder:
    """Build the encoder of images with labels."""
    processor = get_image_processor(context, PatchSpec | ConvolutionSpec, "vit")
    return ImageClassificationEncoder(
        image_processor=processor,
        image_size=context.vocab.image_size,
        label_names=context.label_names,
    )


def build_frame_label_encoder(context: SetupContext) -> Encoder:
    """Build the encoder of clips with a label for every frame."""
    processor = get_image_processor(context, FrameSpec, "video-transformer")
    return FrameClassificationEncoder(
        image_processor=processor,
        image_size=context.vocab.image_size,
        label_names=context.label_names,
        max_length=context.model.args.get("max_positions") or 0,
    )


def get_image_processor(context: SetupContext, readers: Any, expected: str) -> ImageProcessor:
    """Return the image processor of a model with one of these ways to read pixels."""
    context.check_overflow_unset("it reads no text")
    processor = context.vocab.image_processor
    if processor is None or not isinstance(find_patches(context.model.spec), readers):
        raise ValueError(
            f"objective {context.recipe.objective.name}: {context.model.family.name} does not read such "
            f"images, expected a family such as {expected}"
        )
    return processor


def build_caption_encoder(context: SetupContext) -> RecordEncoder:
    """Build the encoder of images and captions."""
    if not context.vocab.num_image_tokens:
        raise ValueError(
            f"objective {context.recipe.objective.name}: {context.model.family.name} has no image "
            "encoder, expected clip or vision-encoder-decoder"
        )
    return ImageCaptionEncoder(
        image_processor=context.vocab.image_processor,
        max_length=context.max_length,
        **context.encoder_kwargs,
    )


def build_text_to_image_encoder(context: SetupContext) -> RecordEncoder:
    """Build the encoder of captions and codes of images; augmentation also needs the pixels."""
    image_tokenizer = context.vocab.image_tokenizer
    assert image_tokenizer is not None
    if context.max_length <= image_tokenizer.num_codes:
        raise ValueError(
            f"data.max_length {context.max_length}, expected more than the {image_tokenizer.num_codes} "
            "codes of an image: the others are tokens of its caption"
        )
    settings = ("translate", "scale", "color_jitter")
    is_augmented = any(context.get_setting(name, 0) for name in settings)
    if is_augmented and image_tokenizer.num_channels != 3:
        raise ValueError(
            f"objective.{', '.join(settings)}: gray images are not augmented; expected 0"
        )
    return TextToImageEncoder(
        max_length=context.max_length, keep_pixels=is_augmented, **context.encoder_kwargs
    )
