"""The cases: every class of `transformers` with the config of its family, and the variants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from tests.support.oracle.classes import CLASSES, SIZES
from tests.support.oracle.variants import VARIANTS, Config

PADDINGS = ("none", "left", "right", "embeds")

# What the reference computes in fp32 even in an fp64 model: the tolerance is 1e-6.
FP32_PARTS = {
    "t5": "the norm's variance",
    "mt5": "the norm's variance",
    "switch_transformers": "the norm's variance, the router",
    "xlnet": "the sinusoids of the distances",
    "ctrl": "the position table",
    "marian": "the position table",
    "vit": "the softmax",
    "clip": "the softmax",
    "llama": "the norm, the rotary table",
    "modernbert": "the rotation, the softmax",
}

# Positions count padding, and forward has no position_ids: left-padded rows run alone.
COUNTS_PADDING = {"bart", "mbart", "marian"}


@dataclass(frozen=True, eq=False)
class Case:
    """A class of transformers with a config."""

    name: str
    family: str
    class_name: str
    sizes: dict[str, Any]
    outputs: dict[str, tuple[str, str]]  # name: axes, field of the class's output
    traits: frozenset[str]
    config_changes: Config  # to the written config.json

    @property
    def is_decoder_only(self) -> bool:
        is_half = self.family in COUNTS_PADDING and self.class_name.endswith("ForCausalLM")
        return is_half or self.family in {"openai", "gpt2", "ctrl", "llama"}

    @property
    def is_encoder_decoder(self) -> bool:
        families = {"bart", "mbart", "marian", "t5", "mt5", "switch_transformers"}
        single_stack = ("ForCausalLM", "EncoderModel", "ForTokenClassification")
        return self.family in families and not self.class_name.endswith(single_stack)

    @property
    def extra_outputs(self) -> tuple[str, ...]:
        """The `extra_outputs` of the call."""
        # Since 5.22 its router logits are logits.
        has_router = self.family == "switch_transformers" and transformers.__version__ >= "5.22"
        return ("hidden_states", "router_logits") if has_router else ("hidden_states",)

    def list_paddings(self) -> list[str]:
        """Return the paddings to test."""
        is_image = "text" not in self.traits and "image" in self.traits
        skip = {"right", "left", "embeds"} if is_image else set()
        skip |= {trait[1:] for trait in self.traits if trait.startswith("!")}
        is_base_class = self.class_name == f"{SIZES[self.family][0]}Model" and self.name.endswith(
            "Model"
        )
        skip |= set() if is_base_class and self.family != "clip" else {"embeds"}  # once a family
        return [padding for padding in PADDINGS if padding not in skip]

    def runs_rows_alone(self, padding: str, dtype: torch.dtype) -> bool:
        """Return whether rows run one by one, because the reference would read or count padding."""
        if padding not in ("left", "right") or "alone" in self.traits:
            return "alone" in self.traits
        # A padding query attends to no key: fp64's lowest number is -inf in their fp32 softmax.
        has_nan = {"left": ("clip", "llama", "modernbert"), "right": ("modernbert",)}
        if dtype == torch.float64 and self.family in has_nan[padding]:
            return True
        if padding == "left" and self.family in COUNTS_PADDING:
            return True
        reads_padding = {
            "left": {"first", "mean", "shift", "beam"},
            "right": {"last", "mean", "beam"},
        }
        return bool(reads_padding[padding] & self.traits)

    def __repr__(self) -> str:
        return self.name


def list_cases() -> Iterator[Case]:
    rows = {row.split()[0]: row.split()[1:] for row in CLASSES.strip().splitlines()}
    classes: list[Any] = [(class_name, "", {}, "") for class_name in rows]
    for class_name, label, keys, further_traits, *config_changes in classes + VARIANTS:
        family = next(f for f, (prefix, _) in SIZES.items() if class_name.startswith(prefix))
        sizes = SIZES[family][1]
        if class_name.startswith(("CLIPText", "CLIPVision")):
            sizes = sizes["text_config" if "Text" in class_name else "vision_config"]
        if "Classification" in class_name:
            names = {n: f"label {n}" for n in range(keys.get("num_labels", 3))}
            sizes = sizes | dict(id2label=names, label2id={name: n for n, name in names.items()})
        outputs = [word.replace("=", ":").split(":") for word in rows[class_name] if ":" in word]
        traits = {word for word in rows[class_name] if ":" not in word}
        traits |= set(further_traits.split())
        yield Case(
            name="-".join(filter(None, (family, class_name, label))),
            family=family,
            class_name=class_name,
            sizes=sizes | {key: value for key, value in keys.items() if key != "num_labels"},
            outputs={name: (axes, (field or [name])[0]) for name, axes, *field in outputs},
            traits=frozenset(traits - {trait[1:] for trait in traits if trait.startswith("-")}),
            config_changes=config_changes[0] if config_changes else {},
        )


CASES = list(list_cases())
