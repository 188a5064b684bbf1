"""Model: a network with its spec, config and tokenizer; forward pass, generation and saving."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from pathlib import Path
from typing import Any, Literal, Self, Unpack

import torch
from torch import Tensor, nn

from qkv.decode.settings import GenerationSettings
from qkv.families.family import Args, Family
from qkv.files import save_json
from qkv.hints import describe_unknown_name
from qkv.image_tokenizer import ImageTokenizer
from qkv.model.config import MODEL_FORMAT_VERSION, build_hf_config
from qkv.model.file_names import replace_model
from qkv.model.inputs import build_input_batch, check_inputs, list_accepted_inputs
from qkv.model.loss import compute_loss, shift_labels_right
from qkv.model.output import ModelOutput
from qkv.model.preprocessing import (
    PREPROCESSOR_FILE,
    build_preprocessor_config,
    complete_preprocessor_config,
)
from qkv.model.token_ids import (
    GENERATION_HEADS,
    build_generation_config,
    list_network_roles,
    state_token_ids,
)
from qkv.model.transforms.pooling import Pooling
from qkv.model.transforms.sentence_transformers import DENSE_PREFIX, write_sentence_transformer
from qkv.model.transforms.variant import FAMILY_VARIANT, Variant
from qkv.nn.evaluation import view_in_evaluation_mode
from qkv.nn.lora import lora_layers
from qkv.nn.network import DualEncoder, Network
from qkv.spec import VARIANT_KEYS, DualSpec, ShiftRight, Spec, find_patches
from qkv.staging import write_folder
from qkv.text import Tokenizer
from qkv.text.files import TokenizerFiles
from qkv.weights.int8 import quantize_int8
from qkv.weights.names_table import NamesTable
from qkv.weights.tensors import write_tensors

# Inputs (B, C, ...) of multiple choice that are flattened to (B * C, ...).
CHOICE_INPUTS = {
    "input_ids", "attention_mask", "position_ids", "token_type_ids", "inputs_embeds", "mc_token_ids",
}  # fmt: skip
EXTRA_OUTPUT_SUFFIXES = ("hidden_states", "router_logits")


class Model:
    """A network with everything that is needed to run and to save it."""

    def __init__(
        self, family: Family, args: Args, net: Network | DualEncoder, config: Mapping[str, Any], *,
        variant: Variant = FAMILY_VARIANT, pooling: Pooling | None = None,
        checkpoint_prefix: str | None = None, extra_tensors: dict[str, Tensor] | None = None,
        tokenizer_files: TokenizerFiles | None = None, generation_config: Mapping[str, Any] | None = None,
        new_parameters: tuple[str, ...] = (), preprocessor_config: Mapping[str, Any] | None = None,
        image_tokenizer: ImageTokenizer | None = None,
    ) -> None:  # fmt: skip
        self.family = family
        self.args = args
        self.net = net
        self.config: dict[str, Any] = dict(config)
        self.variant = variant
        self.pooling = pooling
        self.generation_config = None if generation_config is None else dict(generation_config)
        # The content of preprocessor_config.json, if the folder has one.
        self.preprocessor_config = (
            None if preprocessor_config is None else dict(preprocessor_config)
        )
        self.checkpoint_prefix = checkpoint_prefix  # prefix of tensor names in the checkpoint
        self.extra_tensors = extra_tensors or {}  # checkpoint tensors that the network does not use
        self.new_parameters = new_parameters  # those that the checkpoint lacks
        self.tokenizer_files = tokenizer_files  # of the folder that the model was loaded from
        self.image_tokenizer = image_tokenizer  # of a model whose last tokens are codes of images
        self.base_model_name: str | None = None  # the base model of its adapters
        self.adapter_parameters_to_save: tuple[str, ...] = ()  # those that the base lacks
        self._tokenizer: Tokenizer | None = None

    @property
    def spec(self) -> Spec | DualSpec:
        """The spec of the network."""
        return self.net.spec

    @property
    def image_processor_config(self) -> dict[str, Any] | None:
        """The settings of the image processor: those of preprocessor_config.json, completed by those of
        the family; None for a model that reads no images."""
        patches = find_patches(self.spec)
        if patches is None:
            return None
        if self.preprocessor_config is None:
            return build_preprocessor_config(self.family, patches)
        return complete_preprocessor_config(self.family, self.preprocessor_config)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the model folder, built from its files on first use."""
        files = self.tokenizer_files
        if self._tokenizer is None and files is not None and files.contents:
            self._tokenizer = Tokenizer.from_files(files)
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self.tokenizer_files = None
        if tokenizer is not None:
            self._state_token_ids(tokenizer)

    @property
    def tokenizer_folder(self) -> Path | None:
        """The folder of the tokenizer, if the model was loaded with it."""
        return self.tokenizer_files.folder if self.tokenizer_files is not None else None

    def _state_token_ids(self, tokenizer: Tokenizer) -> None:
        """State the special token ids of the tokenizer in the configs."""
        roles = list_network_roles(self.spec, self.args)
        self.config = state_token_ids(self.config, tokenizer, roles)
        if self.args.get("head") in GENERATION_HEADS:
            self.generation_config = build_generation_config(
                self.config, self.generation_config, self.args
            )

    def __repr__(self) -> str:
        count = sum(p.numel() for p in self.net.parameters())
        return f"qkv.Model({self.family.name}, {count:,} parameters)"

    # --- as a torch module ---

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.net.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return next(self.net.parameters()).dtype

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move or cast the weights, as `torch.nn.Module.to` does."""
        self.net.to(*args, **kwargs)
        return self

    def train(self, mode: bool = True) -> Self:
        """Set training mode: dropout is active."""
        self.net.train(mode)
        return self

    def eval(self) -> Self:
        """Set evaluation mode."""
        return self.train(False)

    def view_in_evaluation_mode(self) -> Self:
        """Return the model with its network in evaluation mode, and the same weights.

        The mode of this model is not changed."""
        net = view_in_evaluation_mode(self.net)
        if net is self.net:
            return self
        view = copy(self)
        view.net = net
        return view

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the parameters, for an optimizer."""
        return self.net.parameters()

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Return the parameters with their paths."""
        return self.net.named_parameters()

    def get_input_embeddings(self) -> nn.Module:
        """Return the token embedding of the encoder, or of a decoder-only model."""
        net = self.net.text if isinstance(self.net, DualEncoder) else self.net
        if net is None:
            raise ValueError("get_input_embeddings: this model has no text encoder")
        stack = net.encoder or net.decoder
        assert stack is not None
        return stack.embedding.tokens

    # --- forward ---

    def __call__(
        self, input_ids: Tensor | None = None, *, attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None, position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None, decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None, pixel_values: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None, encoder_attention_mask: Tensor | None = None,
        mems: Tensor | None = None, perm_mask: Tensor | None = None,
        target_mapping: Tensor | None = None, mc_token_ids: Tensor | None = None,
        labels: Tensor | None = None, extra_outputs: tuple[str, ...] = (), **unknown: Tensor,
    ) -> ModelOutput:  # fmt: skip
        """Run the network; inputs and outputs have Hugging Face's names.

        With `labels`, the outputs contain a `loss`. A model without token types ignores
        `token_type_ids`, which its tokenizer may return. `extra_outputs` adds "hidden_states" or
        "router_logits" to the outputs. `qkv.look` records attention weights."""
        named = {
            "input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids,
            "position_ids": position_ids, "inputs_embeds": inputs_embeds,
            "decoder_input_ids": decoder_input_ids, "decoder_attention_mask": decoder_attention_mask,
            "pixel_values": pixel_values, "encoder_hidden_states": encoder_hidden_states,
            "encoder_attention_mask": encoder_attention_mask, "mems": mems, "perm_mask": perm_mask,
            "target_mapping": target_mapping, "mc_token_ids": mc_token_ids,
        }  # fmt: skip
        for name in unknown:
            known_names = [*named, "labels", "extra_outputs"]
            raise TypeError(f"input {describe_unknown_name(name, known_names)}")
        inputs = {name: value for name, value in named.items() if value is not None}
        if "token_type_ids" not in list_accepted_inputs(self.spec):
            inputs.pop("token_type_ids", None)
        if labels is not None and decoder_input_ids is None:
            inputs |= self._decoder_inputs(labels)
        check_inputs(self.spec, inputs, extra_outputs)
        tensors = {name: value.to(self.device) for name, value in inputs.items()}
        choices = None
        if isinstance(self.spec, Spec) and self.spec.is_multiple_choice:
            choices = tensors["inputs_embeds" if input_ids is None else "input_ids"].shape[:2]
            tensors = {k: x.flatten(0, 1) if k in CHOICE_INPUTS else x for k, x in tensors.items()}
        batch = build_input_batch(self.spec, extra_outputs=tuple(extra_outputs), **tensors)
        outputs = ModelOutput(
            (name, value)
            for name, value in self.net(batch).items()
            if _is_requested(name, extra_outputs)
        )
        if choices is not None:
            for name, value in outputs.items():
                if name not in ("hidden_states", "mems"):
                    outputs[name] = value.unflatten(0, choices)
            outputs["mc_logits"] = outputs["mc_logits"].squeeze(-1)
            outputs.setdefault("logits", outputs["mc_logits"])
        if labels is not None:
            if not isinstance(self.spec, Spec):
                raise ValueError("labels: a dual encoder takes no labels; remove them")
            head = str(self.args.get("head"))
            outputs["loss"] = compute_loss(
                self.spec, head, self.config, outputs, labels.to(self.device)
            )
        return outputs

    def _decoder_inputs(self, labels: Tensor) -> dict[str, Tensor]:
        """Return decoder_input_ids from labels, for an encoder-decoder with a language model head."""
        spec = self.spec
        if not isinstance(spec, Spec) or spec.encoder is None or spec.decoder is None:
            return {}
        if self.args.get("head") != "lm":
            return {}
        start = self.args.get("decoder_start_token_id")
        shift = spec.shift_right
        if shift is None and start is None:
            raise ValueError(
                "labels: this model has no decoder_start_token_id; pass decoder_input_ids"
            )
        shift = shift or ShiftRight(int(start or 0))
        pad = self.args.get("pad_token_id", self.config.get("pad_token_id"))
        return {"decoder_input_ids": shift_labels_right(labels, shift, int(pad or 0))}

    def generate(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        seed: int = 0,
        **settings: Unpack[GenerationSettings],
    ) -> Tensor:
        """Generate token ids (B, T), as Hugging Face's `generate`.

        `settings` are fields of GenerationConfig: max_new_tokens, num_beams, do_sample, top_p, …"""
        from qkv.model.generate import generate_ids

        return generate_ids(self, input_ids, attention_mask, seed=seed, **settings)

    # --- saving ---

    def to_checkpoint_tensors(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Convert tensors by parameter name to the names and layout of published checkpoints."""
        names = (name for name, _ in self.net.named_parameters() if name in parameters)
        return {
            mapping.checkpoint_name: mapping.to_checkpoint(parameters)
            for mapping in self._build_names_table().map_parameters(names)
            if mapping.operation != "copy"
        }

    def save(
        self, folder: str | Path, *, format: Literal["auto", "hf", "qkv"] = "auto",
        quantization: Literal["int8"] | None = None, max_shard_size: int = 5_000_000_000,
    ) -> None:  # fmt: skip
        """Write config.json, the weights and the tokenizer, all in one step or not at all.

        A model in the folder is replaced; other files stay.

        `format` is "hf" (Hugging Face's), "qkv", or "auto": "hf" if it supports the model. A
        Transformer is saved as Marian if `format` is "hf". `quantization` is None, or "int8" for a
        quarter of the size, which only qkv can load."""
        if format not in ("auto", "hf", "qkv"):
            raise ValueError(f"format {format!r}: expected auto, hf or qkv")
        if quantization not in (None, "int8"):
            raise ValueError(f"quantization {quantization!r}: expected int8 or None")
        folder = Path(folder)
        incompatibility = "int8 weights" if quantization else self.find_hf_incompatibility()
        if lora_layers(self.net):
            raise ValueError(
                f"{folder}: not written, because the model has adapters; "
                "call merge_lora or write_adapter"
            )
        if format == "hf" and self.family.hf_family and not quantization:
            from qkv.model.transforms.hf_family import convert_to_hf_family

            convert_to_hf_family(self).save(folder, max_shard_size=max_shard_size)
            return
        if format == "hf" and incompatibility is not None:
            raise ValueError(
                f"Hugging Face's format cannot hold {incompatibility}: save with format='qkv'"
            )
        tensors = {name: p.detach() for name, p in self.net.named_parameters()}
        is_hf = incompatibility is None and format != "qkv"
        if is_hf:
            mappings = self._build_names_table().map_parameters(tensors)
            tensors = {
                mapping.checkpoint_name: mapping.to_checkpoint(tensors)
                for mapping in mappings
                if not mapping.checkpoint_name.startswith(DENSE_PREFIX)  # written with the pooling
            }
            tensors |= self.extra_tensors
        config = self._build_config(is_hf, torch.float32 if quantization else self.dtype)
        if quantization:
            tensors = quantize_int8(tensors)
            config["weights"] = quantization
        with write_folder(folder, replace_model) as staged:
            write_tensors(staged, tensors, max_shard_size=max_shard_size)
            self._write_config(staged, config)

    def save_config(self, folder: str | Path) -> None:
        """Write everything but the weights: config.json, generation_config.json, the image settings and
        the tokenizer."""
        is_hf = self.find_hf_incompatibility() is None
        config = self._build_config(is_hf, self.dtype)
        with write_folder(Path(folder)) as staged:
            self._write_config(staged, config)

    def _write_config(self, folder: Path, config: Mapping[str, Any]) -> None:
        save_json(config, folder / "config.json")
        if self.generation_config is not None:
            save_json(self.generation_config, folder / "generation_config.json")
        if preprocessor_config := self.preprocessor_config or self.image_processor_config:
            save_json(preprocessor_config, folder / PREPROCESSOR_FILE)
        self.save_tokenizer_and_pooling(folder)

    def _build_config(self, is_hf: bool, dtype: torch.dtype) -> dict[str, Any]:
        """Return config.json in Hugging Face's or qkv's format."""
        if is_hf and self.config.get("model_type", "qkv") != "qkv":
            config = dict(self.config)
        elif is_hf:
            if self.tokenizer is not None:
                self._state_token_ids(self.tokenizer)
            config = self._to_hf_config()
        else:
            config = self._to_qkv_config()
        dtype_key = "torch_dtype" if "torch_dtype" in config and "dtype" not in config else "dtype"
        return {**config, dtype_key: str(dtype).removeprefix("torch.")}

    def _to_qkv_config(self) -> dict[str, Any]:
        """Return the config of qkv's format: the family and its arguments that are not defaults."""
        defaults = self.family.defaults
        args = {name: value for name, value in self.args.items() if value != defaults[name]}
        config = {
            **self.config, "model_type": "qkv", "format_version": MODEL_FORMAT_VERSION,
            "family": self.family.name, "arguments": args, **self.variant.to_config(),
        }  # fmt: skip
        return config

    def _to_hf_config(self) -> dict[str, Any]:
        """Convert a config of qkv's format to Hugging Face's; other keys, such as label names, are
        kept."""
        stated = build_hf_config(self.family, self.args)
        replaced = {"format_version", "family", "arguments", *VARIANT_KEYS, *stated} - {
            "id2label", "label2id", "bos_token_id", "eos_token_id", "pad_token_id",
        }  # fmt: skip
        return stated | {key: value for key, value in self.config.items() if key not in replaced}

    def save_tokenizer_and_pooling(self, folder: Path) -> None:
        """Write the tokenizers, and the files of sentence-transformers if the model has pooling, into
        a staging folder."""
        if self.tokenizer_files is not None:  # unchanged, used or not
            self.tokenizer_files.write(folder)
        elif self._tokenizer is not None:
            self._tokenizer.save(folder)
        if self.image_tokenizer is not None:
            self.image_tokenizer.save(folder)
        if self.pooling is not None and isinstance(self.net, Network):
            prefix = "heads.sentence_dense.dense."
            dense_tensors = {
                name.removeprefix(prefix): p.detach()
                for name, p in self.net.named_parameters()
                if name.startswith(prefix)
            }
            width = self.net.last_stack.spec.width
            write_sentence_transformer(folder, self.pooling, width, dense_tensors)

    def find_hf_incompatibility(self) -> str | None:
        """Return the part of this model that Hugging Face's format does not support, or None."""
        family = self.family
        if not family.model_types or family.removed_from_hf:
            return f"the {family.name} family"
        if self.variant != FAMILY_VARIANT:
            return f"{self.variant.describe()} in {family.name}"
        known = {*family.config, *family.nested, "num_labels", "head"}
        unknown = [
            f"{name}={value!r}"
            for name, value in self.args.items()
            if name not in known and value != family.defaults[name]
        ]
        return f"{', '.join(unknown)} in {family.name}" if unknown else None

    def _build_names_table(self) -> NamesTable:
        return self.family.build_names_table(self.args, self.checkpoint_prefix)


def _is_requested(name: str, extra_outputs: tuple[str, ...]) -> bool:
    """Return whether an output is always returned, or requested."""
    return (
        not name.endswith(EXTRA_OUTPUT_SUFFIXES) or name.removeprefix("encoder_") in extra_outputs
    )
