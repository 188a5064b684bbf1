"""The initial tokenizer and model of a run, either new or pretrained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from qkv.data.encode.encoder import parse_template_columns
from qkv.data.encode.text_to_image import train_image_tokenizer
from qkv.data.read.record import TEXT_COLUMNS, Record
from qkv.families import get_family
from qkv.hints import find_known_name
from qkv.image_tokenizer import ImageTokenizer, find_image_tokenizer
from qkv.model.adapters.config import find_base_model, is_adapter
from qkv.model.adapters.names import find_default_target_modules
from qkv.model.adapters.write import build_adapter_files
from qkv.model.build import build
from qkv.model.hub import find_model_folder, find_settings_folder
from qkv.model.label_names import set_label_names
from qkv.model.load import load_folder
from qkv.model.model import Model
from qkv.model.transforms.heads import replace_head
from qkv.model.transforms.pooling import Pooling
from qkv.nn.lora import add_lora, lora_layers
from qkv.spec import VARIANT_KEYS
from qkv.staging import write_folder
from qkv.text import Tokenizer
from qkv.text.files import list_tokenizer_files
from qkv.train.label_names import match_label_names
from qkv.train.objectives.registry import ObjectiveSpec
from qkv.train.objectives.vocabulary import get_max_positions
from qkv.train.recipe import LoraConfig, Recipe

TOKENIZER_FOLDER = "tokenizer"  # in the folder of a run
TOKENIZER_SOURCE_FILE = "tokenizer.from"  # fingerprint of the training texts of the tokenizer


def prepare_tokenizer(recipe: Recipe, folder: Path, template: str, text_column: str) -> Tokenizer:
    """Load the tokenizer of the run, else a pretrained one, else train one on the training data.

    A record without a text is an error about the column `text_column`."""
    run_tokenizer_folder = folder / TOKENIZER_FOLDER
    if run_tokenizer_folder.exists():
        return Tokenizer.load(run_tokenizer_folder)
    pretrained_folder = find_tokenizer_folder(recipe)
    records = recipe.data.open_corpus(recipe.data.train)
    if pretrained_folder:
        tokenizer = Tokenizer.load(pretrained_folder)
    else:
        config = recipe.tokenizer
        tokenizer = Tokenizer.train(
            (
                text
                for record in records
                for text in collect_record_texts(recipe, record, text_column)
            ),
            type=config.type,
            vocab_size=config.vocab_size,
            template=config.template or template,
            lowercase=config.lowercase,
            num_sentinels=config.num_sentinels,
            extra_tokens=config.extra_tokens,
        )
        folder.mkdir(parents=True, exist_ok=True)
        (folder / TOKENIZER_SOURCE_FILE).write_text(records.fingerprint(), encoding="utf-8")
    image_tokenizer = prepare_image_tokenizer(recipe, records)
    with write_folder(run_tokenizer_folder) as staged:
        tokenizer.save(staged)
        if image_tokenizer is not None:
            image_tokenizer.save(staged)
    return tokenizer


def prepare_image_tokenizer(recipe: Recipe, records: Iterable[Record]) -> ImageTokenizer | None:
    """Load the image tokenizer of the recipe or of its model, else train one on the images."""
    config = recipe.image_tokenizer
    if config is None:
        name = recipe.model.load
        return (
            find_image_tokenizer(find_settings_folder(find_model_folder(name, None)))
            if name
            else None
        )
    if recipe.model.load:
        raise ValueError(
            f"image_tokenizer with model.load {recipe.model.load!r}, whose image tokenizer is used as "
            "it is; remove the table image_tokenizer (--image_tokenizer '')"
        )
    if config.load:
        return ImageTokenizer.load(find_model_folder(config.load, None))
    return train_image_tokenizer(
        records,
        type=config.type,
        image_size=config.image_size,
        patch_size=config.patch_size,
        vocab_size=config.vocab_size,
        seed=recipe.train.seed,
    )


def is_tokenizer_stale(recipe: Recipe, folder: Path) -> bool:
    """Return whether the tokenizer of a run that has not started must be prepared again: it was trained
    on other texts than the current ones, or it is the copy of a pretrained one, which may have changed."""
    source_file = folder / TOKENIZER_SOURCE_FILE
    if not source_file.exists():
        return True
    fingerprint = recipe.data.open_corpus(recipe.data.train).fingerprint()
    return source_file.read_text("utf-8") != fingerprint


def find_tokenizer_folder(recipe: Recipe) -> Path | None:
    """Return the folder of a pretrained tokenizer; that of an adapter takes precedence."""
    model = recipe.model
    model_names = [model.adapter, model.load or recipe.objective.settings.get("teacher")]
    names = [recipe.tokenizer.load] if recipe.tokenizer.load else model_names
    folders = [find_settings_folder(find_model_folder(name, None)) for name in names if name]
    if folders and is_adapter(folders[-1]):
        folders.append(find_base_model(folders[-1])[1])
    last_folder = folders[-1] if folders else None
    return next((folder for folder in folders if list_tokenizer_files(folder)), last_folder)


def collect_record_texts(recipe: Recipe, record: Record, text_column: str) -> list[str]:
    """Return every text of a record: the usual columns, and those of a template."""
    templates = (recipe.objective.settings.get(side) for side in ("source", "target"))
    template_columns = [
        column
        for template in templates
        if isinstance(template, str)
        for column in parse_template_columns(template)
    ]
    extra_texts = (record.get(column) for column in sorted({*template_columns} - {*TEXT_COLUMNS}))
    return [*record.iter_texts(), *(text for text in extra_texts if isinstance(text, str))] or [
        record.get_text(
            [*template_columns, text_column][0]
        )  # raises an error that lists the columns
    ]


def prepare_model(
    recipe: Recipe,
    tokenizer: Tokenizer | None,
    label_names: tuple[str, ...],
    *,
    head: str | None,
    pooling: str | None,
    image_tokenizer: ImageTokenizer | None = None,
) -> Model:
    """Build a new model for the vocabulary, or load a pretrained one, with the requested head.

    A model of images has no tokenizer."""
    config = recipe.model
    overrides = dict(config.overrides)
    if config.load:
        model = load_folder(
            config.load, adapter=config.adapter, family=config.family, head=head, device="cpu"
        )
        if label_names and head in (None, model.args.get("head")):
            label_names = match_label_names(model, recipe, label_names)
        model, new_parameters = replace_head(
            model, head, len(label_names), Pooling(pooling) if pooling else None, overrides
        )
        if recipe.lora:
            add_lora_adapters(model, recipe.lora, new_parameters, config.load)
    elif config.family is None:
        raise ValueError("model.family is missing; set it, or set model.load to a folder or hub id")
    else:
        inferred_args = infer_family_args(recipe, tokenizer, label_names, head)
        if image_tokenizer is not None and "vocab_size" in inferred_args:
            inferred_args["vocab_size"] += len(image_tokenizer)  # its codes follow the text tokens
        family_defaults = get_family(config.family).defaults
        for name in overrides.keys() - family_defaults.keys():
            if known_name := find_known_name(name, family_defaults):
                raise ValueError(f"model.{name} is unknown; did you mean model.{known_name}?")
        for tower in ("text", "image"):  # CLIP's towers have separate arguments
            if tower in inferred_args:
                overrides[tower] = inferred_args.pop(tower) | overrides.get(tower, {})
        model = build(
            config.family,
            config.size,
            **{name: getattr(config, name) for name in VARIANT_KEYS},
            pooling=pooling,
            device="cpu",
            **inferred_args | overrides,
        )
    if tokenizer is not None:
        model.tokenizer = tokenizer
    model.image_tokenizer = image_tokenizer
    if label_names:
        set_label_names(model, label_names)
    check_model_fits(model, tokenizer, recipe.data.max_length)
    return model


def infer_family_args(
    recipe: Recipe, tokenizer: Tokenizer | None, label_names: tuple[str, ...], head: str | None
) -> dict[str, Any]:
    """Return the family arguments that the tokenizer, the data and the objective determine."""
    assert recipe.model.family is not None
    defaults = get_family(recipe.model.family).defaults
    if tokenizer is None:
        args: dict[str, Any] = {
            "num_labels": len(label_names) or None,
            "head": head,
            "max_positions": recipe.data.max_length or None,
        }
        return {k: value for k, value in args.items() if k in defaults and value is not None}
    max_positions = recipe.data.max_length or None
    if max_positions and defaults.get(
        "positions_after_pad"
    ):  # RoBERTa's positions start at pad + 1
        max_positions += (tokenizer.pad_token_id or 0) + 1
    if "text" in defaults and "image" in defaults:
        if tokenizer.eos_token_id == 2:
            raise ValueError(
                "the EOS token has id 2, which in CLIP means that EOS is the largest id; "
                'set tokenizer.type = "bpe" for another id'
            )
        text_args = {
            "vocab_size": len(tokenizer),
            "eos_token_id": tokenizer.eos_token_id,
            "max_positions": max_positions,
        }
        return {"text": {name: value for name, value in text_args.items() if value is not None}}
    args = {
        "vocab_size": len(tokenizer),
        "num_labels": len(label_names) or None,
        "head": head,
        "pad_token_id": tokenizer.pad_token_id,
        "decoder_start_token_id": infer_decoder_start_token_id(defaults, tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "max_positions": max_positions,
    }
    return {name: value for name, value in args.items() if name in defaults and value is not None}


def infer_decoder_start_token_id(defaults: Mapping[str, Any], tokenizer: Tokenizer) -> int | None:
    """Return the token that starts the decoder in the family: EOS (BART) or pad (Marian)."""
    default_start = defaults.get("decoder_start_token_id")
    if default_start is not None and default_start == defaults.get("eos_token_id"):
        return tokenizer.eos_token_id
    if default_start is not None and default_start == defaults.get("pad_token_id"):
        return tokenizer.pad_token_id
    return tokenizer.bos_token_id


def add_lora_adapters(
    model: Model, lora_config: LoraConfig, modules_to_save: tuple[str, ...], base_model: str
) -> None:
    """Add LoRA adapters to a pretrained model; raise an error if they could not be saved later."""
    if lora_layers(model.net):
        raise ValueError(
            f"lora: {base_model} is an adapter, which is trained further without changes: "
            "remove the table lora (--lora '')"
        )
    model.base_model_name = base_model
    model.adapter_parameters_to_save = modules_to_save
    try:
        add_lora(
            model.net,
            r=lora_config.r,
            lora_alpha=lora_config.lora_alpha,
            lora_dropout=lora_config.lora_dropout,
            use_rslora=lora_config.use_rslora,
            target_modules=lora_config.target_modules or find_default_target_modules(model),
            modules_to_save=modules_to_save,
        )
        build_adapter_files(model)
    except ValueError as error:
        raise ValueError(f"lora: {error}") from None


def check_tokenizer(model: Model, spec: ObjectiveSpec) -> None:
    """Raise ValueError if the objective reads texts and the model has no tokenizer."""
    if spec.text_column is not None:
        get_tokenizer(model)


def get_tokenizer(model: Model) -> Tokenizer:
    """Return the tokenizer of a model; raise ValueError if it has none."""
    if model.tokenizer is None:
        raise ValueError(
            "the model has no tokenizer: set model.tokenizer, for example to Tokenizer.load(folder)"
        )
    return model.tokenizer


def save_tokenizers(model: Model, folder: Path) -> None:
    """Write the tokenizers of a model into a folder, for the workers that encode data."""
    if model.tokenizer is not None:
        model.tokenizer.save(folder)
    if model.image_tokenizer is not None:
        model.image_tokenizer.save(folder)


def check_model_fits(model: Model, tokenizer: Tokenizer | None, max_length: int) -> None:
    """Check that the model has every token and every position that the data needs."""
    if tokenizer is None:
        return
    vocab_size = model.args.get("vocab_size")
    max_positions = get_max_positions(model.spec)
    if vocab_size is not None and len(tokenizer) > vocab_size:
        raise ValueError(
            f"the tokenizer has {len(tokenizer)} tokens, but the model's vocab_size is {vocab_size}; "
            "do they belong together?"
        )
    if max_positions is not None and max_length > max_positions:
        raise ValueError(
            f"data.max_length {max_length}, expected at most the model's max_positions, {max_positions}"
        )
