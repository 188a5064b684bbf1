"""VocabularyInfo: the properties of a tokenizer and a model that objectives need."""

from __future__ import annotations

from typing import Any, NamedTuple

from qkv.data.encode.images import ImageProcessor
from qkv.data.encode.special_tokens import SpecialTokensTemplate, build_special_tokens_template
from qkv.image_tokenizer import ImageTokenizer
from qkv.model.model import Model
from qkv.spec import DualSpec, ShiftRight, Spec, find_patches
from qkv.text import Tokenizer

EMPTY_PAIR_TEMPLATE = SpecialTokensTemplate(((), (), ()), ((), (), ()), (0, 0))


class VocabularyInfo(NamedTuple):
    """Special tokens, templates and sizes."""

    vocab_size: int
    pad_token_id: int = 0
    mask_token_id: int | None = None
    decoder_start_token_id: int | None = None
    eos_token_id: int | None = None
    special_token_ids: tuple[int, ...] = ()
    pad_left: bool = False
    single_template: SpecialTokensTemplate = SpecialTokensTemplate()  # for one text
    pair_template: SpecialTokensTemplate = EMPTY_PAIR_TEMPLATE  # for a pair of texts
    sentence_end_ids: tuple[int, ...] = ()  # tokens that end a sentence
    sentinel_token_ids: tuple[int, ...] = ()  # T5's sentinels, in order
    num_labels: int = 0  # of a classification head
    label_names: tuple[str, ...] = ()
    max_length: int = 0  # tokens per row
    type_vocab_size: int = 0  # token types of the model; 0: unlimited
    shift: ShiftRight | None = None  # builds the decoder input of a classification head
    image_size: int = 0  # pixels per side
    num_image_tokens: int = 0  # patches of an image and the class token
    image_processor: ImageProcessor | None = None  # of a model that reads images
    image_tokenizer: ImageTokenizer | None = None  # of images that are drawn


def build_vocabulary_info(
    tokenizer: Tokenizer | None,
    model: Model,
    *,
    max_length: int = 0,
    label_names: tuple[str, ...] = (),
) -> VocabularyInfo:
    """Return the VocabularyInfo of a tokenizer, if the model has one, and a model."""
    sizes = read_spec_sizes(model.spec)
    sizes |= {"num_labels": model.args.get("num_labels") or 0, "label_names": label_names}
    if (image_config := model.image_processor_config) is not None:
        sizes["image_processor"] = ImageProcessor.from_config(image_config)
    if tokenizer is None:
        return VocabularyInfo(vocab_size=0, max_length=max_length, **sizes)
    return VocabularyInfo(
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id or 0,
        mask_token_id=tokenizer.mask_token_id,
        decoder_start_token_id=model.args.get("decoder_start_token_id"),
        eos_token_id=tokenizer.eos_token_id,
        special_token_ids=tuple(sorted(tokenizer.all_special_ids)),
        pad_left=tokenizer.padding_side == "left",
        single_template=build_special_tokens_template(tokenizer),
        pair_template=build_special_tokens_template(tokenizer, 2),
        sentence_end_ids=find_sentence_end_ids(tokenizer),
        sentinel_token_ids=tuple(tokenizer.sentinel_token_ids),
        max_length=max_length,
        **sizes,
        image_tokenizer=model.image_tokenizer,
    )


def find_sentence_end_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the tokens for a full stop, a question mark and an exclamation mark after a word."""
    marks = ".!?"
    encoded = tokenizer.encode_ids([f"a{mark}" for mark in marks], add_special_tokens=False)
    last_ids = [ids[-1] for ids in encoded]
    mark_ids = {
        i
        for i, mark in zip(last_ids, marks, strict=True)
        if tokenizer.decode(i, skip_special_tokens=True).strip() == mark
    }
    return tuple(sorted(mark_ids))


def read_spec_sizes(spec: Spec | DualSpec) -> dict[str, Any]:
    """Return the fields of VocabularyInfo that the model's spec determines."""
    patches = find_patches(spec)
    sizes: dict[str, Any] = {}
    if patches is not None:
        sizes |= {"image_size": patches.image_size, "num_image_tokens": patches.num_tokens}
    if isinstance(spec, Spec):
        stack = spec.encoder or spec.decoder
        assert stack is not None
        token_types = stack.embedding.token_types
        type_vocab_size = token_types if isinstance(token_types, int) else 0
        sizes |= {"type_vocab_size": type_vocab_size, "shift": spec.shift_right}
    return sizes


def get_max_positions(spec: Spec | DualSpec) -> int | None:
    """Return the maximum text length of a model with learned positions; None: no limit."""
    text_spec = spec.text if isinstance(spec, DualSpec) else spec
    stacks = [text_spec.encoder, text_spec.decoder] if text_spec else []
    limits = [stack.max_positions for stack in stacks if stack and not stack.embedding.patches]
    return min((limit for limit in limits if limit is not None), default=None)
