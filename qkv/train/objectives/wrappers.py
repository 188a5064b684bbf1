"""Modules that wrap two networks, ELECTRA's generator and discriminator or a student and its teacher,
and the builders of the module of a run.

masked ids ─ generator ─ sampled ids ─ discriminator ─ original or replaced
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qkv.batch import IGNORE_INDEX, Batch
from qkv.model.build import build
from qkv.model.file_names import replace_model
from qkv.model.load import load
from qkv.model.model import Model
from qkv.nn.heads import PredictionHead
from qkv.nn.network import DualEncoder, Network
from qkv.staging import write_folder
from qkv.train.objectives.context import SetupContext

SaveFunction = Callable[[Path], None]
ModuleFactory = Callable[[SetupContext], tuple[nn.Module, SaveFunction]]
GENERATOR_FOLDER = "generator"  # subfolder of the discriminator's folder
SHARED_EMBEDDINGS = ("tokens", "positions", "token_types")


class GeneratorDiscriminator(nn.Module):
    """A generator that fills the masked tokens of a batch, and a discriminator (ELECTRA).

    They share the token, position and token type embeddings (section 3.2). No gradient flows
    through the sampled tokens."""

    def __init__(self, generator: Network, discriminator: Network) -> None:
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        assert generator.encoder is not None
        assert discriminator.encoder is not None
        generator_embedding = generator.encoder.embedding
        discriminator_embedding = discriminator.encoder.embedding
        for name in SHARED_EMBEDDINGS:
            shared: nn.Embedding | None = getattr(discriminator_embedding, name, None)
            if shared is None:
                continue
            replaced: nn.Embedding = getattr(generator_embedding, name)
            if replaced.weight.shape != shared.weight.shape:
                raise ValueError(
                    f"objective.generator: the {name} embedding is {list(replaced.weight.shape)}, "
                    f"expected that of the model, {list(shared.weight.shape)}: "
                    "set the same embedding_width and max_positions for both"
                )
            setattr(generator_embedding, name, shared)
        head = generator.heads["lm"]
        assert isinstance(head, PredictionHead)
        if head.spec.tie_embeddings:
            head.out.weight = discriminator_embedding.tokens.weight

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        assert batch.encoder is not None
        assert batch.encoder.input_ids is not None
        assert batch.logit_positions is not None
        input_ids = batch.encoder.input_ids
        labels = batch.labels["labels"]  # (N,)
        logits = self.generator(batch)["logits"]  # (N, V)
        mask = labels != IGNORE_INDEX
        original = scatter_tokens(input_ids, batch.logit_positions, labels, mask)
        sampled = self.sample_tokens(logits.detach())
        corrupted = scatter_tokens(input_ids, batch.logit_positions, sampled, mask)
        inputs = replace(batch.encoder, input_ids=corrupted)
        outputs = self.discriminator(
            replace(batch, encoder=inputs, logit_positions=None, labels={})
        )
        return {
            **batch.labels,
            "logits": logits,
            "discriminator_logits": outputs["logits"],  # (B, T)
            "is_replaced": corrupted != original,
        }

    def sample_tokens(self, logits: Tensor) -> Tensor:
        """Sample one token per row; in evaluation, with a fixed seed."""
        generator = None if self.training else torch.Generator(logits.device).manual_seed(0)
        noise = torch.empty_like(logits, dtype=torch.float32).exponential_(generator=generator)
        return (logits.float() - noise.log()).argmax(-1)  # -log(exponential) is Gumbel


def scatter_tokens(input_ids: Tensor, positions: Tensor, token_ids: Tensor, mask: Tensor) -> Tensor:
    """Write token_ids (N,) to flat positions (N,) of input_ids (B, T) where mask (N,) is set."""
    # Tokens that are not masked are written to an additional last cell.
    flat = torch.cat([input_ids.flatten(), input_ids.new_zeros(1)])
    indices = torch.where(mask, positions, len(flat) - 1)
    return flat.scatter(0, indices, token_ids)[:-1].unflatten(0, input_ids.shape)


class StudentTeacher(nn.Module):
    """A student network, with the outputs of its teacher for the same batch.

    The teacher is frozen and not saved."""

    def __init__(self, student: Network, teacher: Network) -> None:
        super().__init__()
        self.student = student
        self._teacher = (teacher.eval().requires_grad_(False),)  # a tuple hides it from torch

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        student_outputs = self.student(batch)
        with torch.no_grad():
            teacher_outputs = self._teacher[0](replace(batch, labels={}))
        return {
            **student_outputs,
            "teacher_logits": teacher_outputs["logits"],
            "teacher_last_hidden_state": teacher_outputs["last_hidden_state"],
        }


@torch.no_grad()
def initialize_from_teacher(student: Model, teacher: Model) -> list[int]:
    """Copy the teacher's embeddings, head and evenly spaced layers to the student; return the
    layers.

    6 of 12 layers are 0, 2, 4, 7, 9 and 11, as in DistilBERT."""
    assert isinstance(student.net, Network)
    assert isinstance(teacher.net, Network)
    depth = len(student.net.last_stack.layers)
    teacher_depth = len(teacher.net.last_stack.layers)
    layers = [round(i * (teacher_depth - 1) / max(depth - 1, 1)) for i in range(depth)]
    parameters = dict(student.net.named_parameters())
    teacher_parameters = dict(teacher.net.named_parameters())
    teacher_names = {}
    for name in parameters:
        prefix, separator, suffix = name.partition(".layers.")
        layer, _, suffix = suffix.partition(".")
        teacher_names[name] = (
            f"{prefix}.layers.{layers[int(layer)]}.{suffix}" if separator else name
        )
    missing = [
        name
        for name, teacher_name in teacher_names.items()
        if teacher_name not in teacher_parameters
        or teacher_parameters[teacher_name].shape != parameters[name].shape
    ]
    if len(missing) == len(parameters) or any(".layers." in name for name in missing):
        raise ValueError(
            "objective.teacher: the teacher has no parameter of the same name and shape for "
            f"{', '.join(missing[:3])} of the student; "
            "expected models of the same width and kind, such as bert and distilbert"
        )
    if missing:
        warnings.warn(
            f"not in the teacher, so newly initialized in the student: {', '.join(missing)}",
            stacklevel=2,
        )
    for name, teacher_name in teacher_names.items():
        if name not in missing:
            parameters[name].copy_(teacher_parameters[teacher_name])
    return layers


def clamp_logit_scale(net: DualEncoder, max_scale: float = 100.0) -> DualEncoder:
    """Limit the scale of the logits to 100 in training (CLIP, section 2.5)."""

    def clamp(module: nn.Module, args: tuple[object, ...]) -> None:
        if module.training and net.logit_scale is not None:
            with torch.no_grad():
                net.logit_scale.clamp_(max=math.log(max_scale))

    net.register_forward_pre_hook(clamp)
    return net


def compute_generator_sizes(sizes: Mapping[str, Any], ratio: float = 0.25) -> dict[str, int]:
    """Return the sizes of a generator: a quarter of width, heads and feed-forward (ELECTRA, table 6)."""
    return {name: max(1, int(sizes[name] * ratio)) for name in ("width", "heads", "ffn_width")}


def build_default_module(context: SetupContext) -> tuple[nn.Module, SaveFunction]:
    """Return the network of the model."""
    return context.model.net, context.save


def build_contrastive_module(context: SetupContext) -> tuple[nn.Module, SaveFunction]:
    """Return the two encoders of CLIP, with a bounded logit scale."""
    net = context.model.net
    return (clamp_logit_scale(net) if isinstance(net, DualEncoder) else net), context.save


def build_generator_discriminator(context: SetupContext) -> tuple[nn.Module, SaveFunction]:
    """Return the model as discriminator, with a smaller generator, which is saved in a subfolder.

    `objective.generator` is the sizes of the generator, or the folder of a trained generator."""
    model = context.model
    device = str(model.device)
    setting = context.get_setting("generator", {})
    if not isinstance(setting, str | dict):
        raise ValueError(
            f"objective.generator is {setting!r}, expected sizes, {{ width = 64 }}, or a folder"
        )
    if context.trained_model_folder is not None:
        generator = load(context.trained_model_folder / GENERATOR_FOLDER, device=device)
    elif isinstance(setting, str):
        generator = load(setting, device=device)
        if not isinstance(generator.net, Network) or "lm" not in generator.net.heads:
            raise ValueError(
                f"objective.generator {setting}: expected a model with the head masked-lm"
            )
    else:
        sizes = compute_generator_sizes(model.args) | setting
        arguments = {**model.args, **sizes, "family": model.family.name, "head": "masked-lm"}
        generator = build(**arguments, **model.variant.to_config(), device=device)
        generator.tokenizer = model.tokenizer
    assert isinstance(model.net, Network)
    assert isinstance(generator.net, Network)

    def save(folder: Path) -> None:
        with write_folder(folder, replace_model) as staged:
            context.save(staged)
            generator.save(staged / GENERATOR_FOLDER)

    return GeneratorDiscriminator(generator.net, model.net), save


def build_student_teacher(context: SetupContext) -> tuple[nn.Module, SaveFunction]:
    """Return the model as student, with its teacher; a new student is initialized from it."""
    model = context.model
    folder = context.get_setting("teacher", None)
    if folder is None:
        raise ValueError("objective.teacher is missing, expected the folder of a trained model")
    teacher = load(folder, device=str(model.device))
    if not isinstance(model.net, Network) or not isinstance(teacher.net, Network):
        raise ValueError(
            f"objective.teacher {folder}: expected a teacher and a student that read text"
        )
    if not context.recipe.model.load and context.trained_model_folder is None:
        initialize_from_teacher(model, teacher)
    return StudentTeacher(model.net, teacher.net), context.save
