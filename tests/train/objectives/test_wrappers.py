"""Replaced token detection and distillation: two models trained as one, against transformers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf

import qkv
from qkv.batch import IGNORE_INDEX, Batch
from qkv.model.build import build
from qkv.nn.network import Network
from qkv.train.objectives import build_objective
from qkv.train.objectives.wrappers import (
    GeneratorDiscriminator,
    StudentTeacher,
    initialize_from_teacher,
)
from tests.support import compare
from tests.support.objectives import (
    MASK,
    SMALL_BERT,
    VOCAB,
    VOCAB_SIZE,
    assert_close,
    build_reference_pair,
    get_ids,
    get_mask,
    make_batch,
    make_row,
    rng,
    scatter_labels,
)

# Replaced token detection.


@pytest.fixture
def module() -> GeneratorDiscriminator:
    sizes: dict[str, Any] = dict(
        vocab_size=VOCAB_SIZE,
        depth=2,
        heads=2,
        ffn_width=32,
        max_positions=64,
        embedding_width=16,
        init_std=0.2,
    )
    generator = build("electra", width=8, head="masked-lm", **sizes).net
    discriminator = build("electra", width=16, head="replaced-token-detection", **sizes).net
    assert isinstance(generator, Network)
    assert isinstance(discriminator, Network)
    return GeneratorDiscriminator(generator, discriminator).eval()


def test_discriminator_reads_the_samples_of_the_generator(module: GeneratorDiscriminator) -> None:
    objective = build_objective("replaced-token-detection", VOCAB)
    examples = [make_row(30), make_row(12, 1)]
    batch = make_batch(objective, examples)
    discriminator_batches: list[Batch] = []
    module.discriminator.register_forward_pre_hook(
        lambda net, args: discriminator_batches.append(args[0])
    )
    outputs = module(batch)
    mask = scatter_labels(batch) != IGNORE_INDEX
    corrupted = get_ids(discriminator_batches[0].encoder)
    original = torch.zeros_like(corrupted)
    for i, example in enumerate(examples):
        original[i, : len(example["tokens"])] = torch.from_numpy(example["tokens"])
    assert (corrupted == original)[~mask].all()
    assert outputs["is_replaced"].tolist() == (corrupted != original).tolist()
    assert 0 < outputs["is_replaced"].sum() <= mask.sum()
    assert objective.count_targets(batch) == {"lm": int(mask.sum()), "replaced": 32 + 14}


def test_generator_inputs_are_mask_or_original_tokens() -> None:
    objective = build_objective("replaced-token-detection", VOCAB)
    num_masked = num_chosen = 0
    for seed in range(100):
        example = make_row(100, seed)
        noisy = objective.noise(example, rng(seed))
        chosen = noisy["labels"] != IGNORE_INDEX
        inputs = noisy["tokens"][chosen]
        assert ((inputs == MASK) | (inputs == example["tokens"][chosen])).all()
        num_masked += int((inputs == MASK).sum())
        num_chosen += len(inputs)
    assert num_masked / num_chosen == pytest.approx(0.85, abs=0.03)


def test_replaced_token_detection_losses_equal_electra(tmp_path: Path) -> None:
    config = dict(SMALL_BERT, embedding_size=16)
    small = hf.ElectraForMaskedLM(hf.ElectraConfig(**dict(config, hidden_size=8)))
    large = hf.ElectraForPreTraining(hf.ElectraConfig(**config))
    for name in ("word", "position", "token_type"):
        table = getattr(large.electra.embeddings, f"{name}_embeddings")
        setattr(small.electra.embeddings, f"{name}_embeddings", table)
    small.tie_weights()
    build_reference_pair(large, tmp_path / "large")
    _, generator = build_reference_pair(small, tmp_path / "small")
    large.save_pretrained(tmp_path / "large")  # again: the shared embeddings have changed
    discriminator = qkv.load(tmp_path / "large").net
    module = GeneratorDiscriminator(generator, discriminator).eval()  # type: ignore[arg-type]
    objective = build_objective("replaced-token-detection", VOCAB)
    batch = make_batch(objective, [make_row(30), make_row(12, 1)])
    discriminator_batches: list[Batch] = []
    discriminator.register_forward_pre_hook(lambda net, args: discriminator_batches.append(args[0]))
    losses = objective.compute_losses(module(batch))
    input_ids = get_ids(batch.encoder)
    mask = get_mask(batch.encoder)
    targets = scatter_labels(batch)
    assert_close(losses["lm"], small(input_ids, attention_mask=mask, labels=targets).loss)
    corrupted = get_ids(discriminator_batches[0].encoder)
    original = torch.where(targets == IGNORE_INDEX, input_ids, targets)
    is_replaced = (corrupted != original).long()
    expected = large(corrupted, attention_mask=mask, labels=is_replaced).loss
    assert_close(losses["replaced"], 50 * expected)


def test_generator_shares_embeddings_and_samples_have_no_gradient(
    module: GeneratorDiscriminator,
) -> None:
    generator = module.generator
    discriminator = module.discriminator
    assert generator.encoder is not None
    assert discriminator.encoder is not None
    assert generator.encoder.embedding.tokens is discriminator.encoder.embedding.tokens
    lm_head: Any = generator.heads["lm"]
    assert lm_head.out.weight is discriminator.encoder.embedding.tokens.weight
    objective = build_objective("replaced-token-detection", VOCAB)
    batch = make_batch(objective, [make_row(30)])
    objective.compute_losses(module(batch))["replaced"].backward()
    assert all(p.grad is None for p in generator.encoder.layers.parameters())
    assert discriminator.encoder.embedding.tokens.weight.grad is not None


def test_tokens_are_sampled_by_their_probability(module: GeneratorDiscriminator) -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.2])
    module.train()
    torch.manual_seed(0)
    samples = module.sample_tokens(probabilities.log().expand(20000, 3))
    frequencies = torch.bincount(samples, minlength=3) / 20000
    torch.testing.assert_close(frequencies, probabilities, atol=0.02, rtol=0)
    module.eval()
    logits = probabilities.log().expand(50, 3)
    # In evaluation mode, tokens are sampled with the same random numbers.
    assert module.sample_tokens(logits).tolist() == module.sample_tokens(logits).tolist()


# Distillation.


def test_distillation_losses_and_initialization_equal_distilbert() -> None:
    sizes: dict[str, Any] = dict(
        vocab_size=VOCAB_SIZE,
        width=16,
        heads=2,
        ffn_width=32,
        max_positions=64,
        init_std=0.2,
        head="masked-lm",
    )
    teacher = build("bert", depth=12, **sizes)
    student = build("distilbert", depth=6, **sizes)
    assert initialize_from_teacher(student, teacher) == [0, 2, 4, 7, 9, 11]
    student_parameters = dict(student.net.named_parameters())
    teacher_parameters = dict(teacher.net.named_parameters())
    for student_name, teacher_name in (
        (
            "encoder.layers.3.feed_forward.up.weight",
            "encoder.layers.7.feed_forward.up.weight",
        ),
        ("heads.lm.dense.weight", "heads.lm.dense.weight"),
    ):
        compare.assert_bitwise_equal(
            student_parameters[student_name],
            teacher_parameters[teacher_name],
            because=compare.COPIED,
        )
    assert isinstance(student.net, Network)
    assert isinstance(teacher.net, Network)
    net = StudentTeacher(student.net, teacher.net).eval()
    assert len([*net.parameters()]) == len([*student.net.parameters()])
    objective = build_objective("distillation", VOCAB)
    batch = make_batch(objective, [make_row(20), make_row(9, 1)])
    outputs = net(batch)
    mask = get_mask(batch.encoder).bool()
    with torch.no_grad():
        teacher_outputs = teacher.net(replace(batch, labels={}))
    # as in the authors' script, distiller.py
    student_logits = outputs["logits"][mask] / 2
    teacher_logits = teacher_outputs["logits"][mask] / 2
    divergence = torch.nn.KLDivLoss(reduction="batchmean")(
        F.log_softmax(student_logits, -1), F.softmax(teacher_logits, -1)
    )
    targets = batch.labels["labels"]
    lm_loss = F.cross_entropy(
        outputs["logits"].flatten(0, 1), targets.flatten(), ignore_index=IGNORE_INDEX
    )
    student_states = outputs["last_hidden_state"][mask]
    teacher_states = teacher_outputs["last_hidden_state"][mask]
    cosine_loss = torch.nn.CosineEmbeddingLoss()(
        student_states, teacher_states, torch.ones(len(student_states))
    )
    losses = objective.compute_losses(outputs)
    assert_close(losses["soft"], 5 * divergence * 4)
    assert_close(losses["lm"], 2 * lm_loss)
    assert_close(losses["cosine"], cosine_loss)
    assert objective.count_targets(batch) == {
        "soft": 33,
        "lm": int((targets != IGNORE_INDEX).sum()),
        "cosine": 33,
    }


def test_student_of_another_width_raises() -> None:
    teacher = build("bert", "tiny", vocab_size=VOCAB_SIZE, head="masked-lm")
    student = build(
        "distilbert", vocab_size=VOCAB_SIZE, width=64, depth=1, heads=2, head="masked-lm"
    )
    with pytest.raises(ValueError, match="the teacher has no parameter of the same name and shape"):
        initialize_from_teacher(student, teacher)
