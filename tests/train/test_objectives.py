"""Objectives: inputs, labels and target counts; losses against transformers or the papers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor

import qkv
from qkv.batch import IGNORE_INDEX, Batch
from qkv.data.batches.collate import Example
from qkv.data.batches.dataset import DocumentDataset, PackedDataset, SentencePairDataset
from qkv.data.batches.sampler import build_example_sampler
from qkv.data.encode import labels
from qkv.data.encode.special_tokens import SpecialTokensTemplate
from qkv.data.noise.span_corruption import compute_input_and_target_lengths
from qkv.data.read.record import Record
from qkv.data.store.prepare import prepare_shards
from qkv.data.store.shards import Shards
from qkv.model.build import build
from qkv.nn.transformer import DualEncoder, Transformer
from qkv.spec import ShiftRight
from qkv.train.objectives import VocabularyInfo, build_objective
from qkv.train.objectives.objective import Objective
from qkv.train.objectives.registry import OBJECTIVE_SPECS
from qkv.train.objectives.wrappers import (
    GeneratorDiscriminator,
    StudentTeacher,
    clamp_logit_scale,
    initialize_from_teacher,
)
from tests.support import compare

# A vocabulary of 60: five special tokens, then words.
PAD, UNK, CLS, SEP, MASK = range(5)
FIRST_WORD = 5
VOCAB_SIZE = 60
SINGLE = SpecialTokensTemplate(((CLS,), (SEP,)), ((0,), (0,)), (0,))
PAIR = SpecialTokensTemplate(((CLS,), (SEP,), (SEP,)), ((0,), (0,), (1,)), (0, 1))
VOCAB = VocabularyInfo(
    vocab_size=VOCAB_SIZE,
    pad_token_id=PAD,
    mask_token_id=MASK,
    special_token_ids=(PAD, UNK, CLS, SEP, MASK),
    single_template=SINGLE,
    pair_template=PAIR,
    eos_token_id=SEP,
    decoder_start_token_id=SEP,
    sentence_end_ids=(FIRST_WORD,),
    sentinel_token_ids=tuple(range(VOCAB_SIZE - 1, VOCAB_SIZE - 11, -1)),
    num_labels=3,
    max_length=32,
)
SMALL_BERT = dict(
    vocab_size=VOCAB_SIZE,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=64,
    pad_token_id=PAD,
)


def rng(seed: int | tuple[int, int] = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def make_text(length: int, seed: int = 0) -> Any:
    return rng(seed).integers(FIRST_WORD, VOCAB_SIZE - 10, length)


def make_row(length: int, seed: int = 0) -> Example:
    return {"tokens": SINGLE.build_token_ids(make_text(length, seed))}


def make_batch(objective: Objective, examples: Sequence[Example], seed: int = 0) -> Batch:
    return objective.collate(
        [objective.noise(example, rng((seed, i))) for i, example in enumerate(examples)]
    )


def get_ids(inputs: Any) -> Tensor:
    assert inputs is not None
    assert inputs.input_ids is not None
    return inputs.input_ids


def get_mask(inputs: Any) -> Tensor:
    if inputs.attention_mask is None:
        return torch.ones_like(get_ids(inputs))
    return inputs.attention_mask.long()


def scatter_labels(batch: Batch) -> Tensor:
    """Labels (N,) at the logit positions, as (B, T)."""
    assert batch.logit_positions is not None
    input_ids = get_ids(batch.encoder)
    flat = torch.full((input_ids.numel(),), IGNORE_INDEX)
    mask = batch.labels["labels"] != IGNORE_INDEX
    flat[batch.logit_positions[mask]] = batch.labels["labels"][mask]
    return flat.view(input_ids.shape)


def build_reference_pair(reference: Any, folder: Path) -> tuple[Any, Any]:
    """A tiny model of transformers with random weights, and the same network here."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in reference.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * 0.2 + parameter * 0.1)
    reference.eval().save_pretrained(folder)
    return reference, qkv.load(folder).net.eval()


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=2e-5)


def test_every_registry_row_builds_the_objective_of_its_name() -> None:
    for name, spec in OBJECTIVE_SPECS.items():
        assert spec.build_objective(VOCAB).name == name


# Masked language modeling.


def test_masked_tokens_are_a_fraction_of_the_regular_tokens() -> None:
    objective = build_objective("masked-lm", VOCAB)
    for seed in range(20):
        example = make_row(40, seed)
        noisy = objective.noise(example, rng(seed))
        mask = noisy["labels"] != IGNORE_INDEX
        assert mask.sum() == round(0.15 * 40)
        assert not np.isin(example["tokens"][mask], VOCAB.special_token_ids).any()
        assert (noisy["labels"][mask] == example["tokens"][mask]).all()
        assert (noisy["tokens"][~mask] == example["tokens"][~mask]).all()


def test_masking_is_80_percent_mask_10_percent_random_10_percent_unchanged() -> None:
    objective = build_objective("masked-lm", VOCAB)
    num_masked = num_random = num_unchanged = 0
    for seed in range(200):
        example = make_row(100, seed)
        noisy = objective.noise(example, rng(seed))
        mask = noisy["labels"] != IGNORE_INDEX
        inputs = noisy["tokens"][mask]
        targets = example["tokens"][mask]
        num_masked += int((inputs == MASK).sum())
        num_unchanged += int((inputs == targets).sum())
        num_random += int(((inputs != MASK) & (inputs != targets)).sum())
    total = num_masked + num_random + num_unchanged
    assert num_masked / total == pytest.approx(0.8, abs=0.02)
    assert num_random / total == pytest.approx(0.1 * (1 - 1 / 55), abs=0.02)
    assert num_unchanged / total == pytest.approx(0.1 * (1 + 1 / 55), abs=0.02)


def test_masked_lm_batches_of_one_shape_have_the_same_number_of_logits() -> None:
    objective = build_objective("masked-lm", VOCAB)
    batches = [
        make_batch(objective, [make_row(length, i) for i, length in enumerate(lengths)])
        for lengths in ([40, 12, 30], [40, 40, 40])
    ]
    for batch in batches:
        batch_labels = batch.labels["labels"]
        assert batch.logit_positions is not None
        assert len(batch.logit_positions) == len(batch_labels) == 3 * round(0.15 * 42)
        assert objective.count_targets(batch) == {"loss": int((batch_labels != IGNORE_INDEX).sum())}
    # round(0.15 n), n without special tokens
    assert objective.count_targets(batches[0])["loss"] == 6 + 2 + 4


def test_whole_word_masking_and_ngrams() -> None:
    starts = np.tile([1, 0, 1, 0, 0, 1], 20)
    word_ids = np.cumsum(starts)
    words = range(1, word_ids.max() + 1)
    objective = build_objective("masked-lm", VOCAB, whole_word=True)
    ngram_objective = build_objective("masked-lm", VOCAB, whole_word=True, max_ngram=3)
    example = {
        "tokens": SINGLE.build_token_ids(make_text(120)),
        "starts": SINGLE.extend_values(starts, 1),
    }
    longest = 0
    for seed in range(30):
        mask = (objective.noise(example, rng(seed))["labels"] != IGNORE_INDEX)[1:-1]
        assert all(mask[word_ids == w].all() or not mask[word_ids == w].any() for w in words)
        mask = (ngram_objective.noise(example, rng(seed))["labels"] != IGNORE_INDEX)[1:-1]
        flags = "".join("01"[int(mask[word_ids == w].all())] for w in words)
        longest = max(longest, max(map(len, flags.split("0"))))
    assert longest >= 3


def test_fixed_noise_is_the_same_in_every_epoch() -> None:
    objective = build_objective("masked-lm", VOCAB)
    rows = [make_row(40, i) for i in range(4)]

    def fetch_tokens(fixed_noise: bool, epoch: int) -> Any:
        sampler = build_example_sampler(rows, batch_size=2, fixed_noise=fixed_noise)
        examples = sampler.fetch_examples(np.arange(4), epoch, objective.noise)
        return np.stack([example["tokens"] for example in examples])

    assert (fetch_tokens(True, 0) == fetch_tokens(True, 1)).all()
    assert (fetch_tokens(False, 0) != fetch_tokens(False, 1)).any()


def test_masked_lm_loss_equals_bert(tmp_path: Path) -> None:
    reference, net = build_reference_pair(hf.BertForMaskedLM(hf.BertConfig(**SMALL_BERT)), tmp_path)
    objective = build_objective("masked-lm", VOCAB)
    batch = make_batch(objective, [make_row(20), make_row(9, 1)])
    expected = reference(
        get_ids(batch.encoder), attention_mask=get_mask(batch.encoder), labels=scatter_labels(batch)
    ).loss
    assert_close(objective(net(batch)), expected)


def test_packed_documents_have_the_loss_of_separate_rows(tmp_path: Path) -> None:
    _, net = build_reference_pair(hf.BertForMaskedLM(hf.BertConfig(**SMALL_BERT)), tmp_path)
    objective = build_objective("masked-lm", VOCAB)
    rows = [make_row(n, n) for n in (10, 14, 5)]
    lengths = np.array([len(row["tokens"]) for row in rows])
    packed = objective.noise(PackedDataset(rows, lengths, 40)[0], rng())
    ends = np.cumsum(np.bincount(packed["document_ids"]))[:-1]
    tokens = np.split(packed["tokens"], ends)
    targets = np.split(packed["labels"], ends)
    separate = [{"tokens": a, "labels": b} for a, b in zip(tokens, targets, strict=True)]
    packed_loss = objective(net(objective.collate([packed])))
    assert_close(packed_loss, objective(net(objective.collate(separate))))


# Sentence pairs.


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    """Forty documents of six sentences; sentence s of document d is token FIRST_WORD + d, s + 2
    times."""
    rows = [
        {
            "tokens": [FIRST_WORD + d for s in range(6) for _ in range(s + 2)],
            "sentences": [s + 2 for s in range(6)],
        }
        for d in range(40)
    ]
    field_sizes = {"tokens": VOCAB_SIZE, "sentences": 2**31}
    folder = tmp_path_factory.mktemp("documents")
    return prepare_shards(rows, list, folder, field_sizes=field_sizes, provenance={})


def test_half_of_the_second_texts_follow_the_first(documents: Shards) -> None:
    objective = build_objective(
        "masked-lm-sentence-pair", VOCAB, pair_task="next", short_seq_prob=0.0, mask_prob=0.01
    )
    examples = SentencePairDataset(DocumentDataset(documents), 29)
    num_random = 0
    for i in range(len(examples)):
        for seed in range(5):
            noisy = objective.noise(examples[i], rng((i, seed)))
            is_ignored = noisy["labels"] == IGNORE_INDEX
            tokens = np.where(is_ignored, noisy["tokens"], noisy["labels"])
            assert len(tokens) <= VOCAB.max_length
            assert tokens[0] == CLS
            is_word = ~np.isin(tokens, VOCAB.special_token_ids)
            first, second = (tokens[is_word & (noisy["types"] == t)] for t in (0, 1))
            assert len({*first}) == len({*second}) == 1
            assert (first[0] != second[0]) == noisy["pair_label"]
            num_random += noisy["pair_label"]
    assert num_random / (5 * len(examples)) == pytest.approx(0.5, abs=0.08)


def test_half_of_the_pairs_are_swapped_in_the_order_task(documents: Shards) -> None:
    objective = build_objective(
        "masked-lm-sentence-pair", VOCAB, pair_task="order", short_seq_prob=0.0
    )
    examples = SentencePairDataset(DocumentDataset(documents), 29)
    is_swapped = [
        objective.noise(examples[i], rng((i, seed)))["pair_label"]
        for i in range(len(examples))
        for seed in range(5)
    ]
    assert np.mean(is_swapped) == pytest.approx(0.5, abs=0.08)


def test_examples_of_a_document_cover_its_parts_in_turn() -> None:
    objective = build_objective(
        "masked-lm-sentence-pair", VOCAB, pair_task="order", short_seq_prob=0.0, mask_prob=0.01
    )
    ids = np.arange(FIRST_WORD, FIRST_WORD + 50)
    documents = [np.split(ids, 5)]
    for turn, part in enumerate((ids[:30], ids[30:])):  # sentences of 10, rows of at most 29
        noisy = objective.noise({"documents": documents, "number": 0, "turn": turn}, rng())
        is_ignored = noisy["labels"] == IGNORE_INDEX
        tokens = np.where(is_ignored, noisy["tokens"], noisy["labels"])
        assert {*tokens} - {CLS, SEP} <= {*part}


def test_whole_words_of_pairs_are_masked() -> None:
    objective = build_objective(
        "masked-lm-sentence-pair", VOCAB, pair_task="order", whole_word=True, short_seq_prob=0.0
    )
    ids = np.arange(FIRST_WORD, FIRST_WORD + 20)
    marked = [2 * ids + (np.arange(20) % 2 == 0)]  # words of two tokens
    noisy = objective.noise({"documents": [marked], "number": 0, "turn": 0}, rng())
    is_ignored = noisy["labels"] == IGNORE_INDEX
    targets = noisy["labels"][~is_ignored]
    pairs = [*zip(targets[::2], targets[1::2], strict=False)]
    tokens = np.where(is_ignored, noisy["tokens"], noisy["labels"])
    assert {*tokens} - {CLS, SEP} == {*ids}
    assert pairs or len(targets) == 1


def test_sentence_pair_loss_equals_bert_and_albert(tmp_path: Path, documents: Shards) -> None:
    dataset = SentencePairDataset(DocumentDataset(documents), 29)
    examples = [dataset[i] for i in range(6)]
    bert = build_reference_pair(
        hf.BertForPreTraining(hf.BertConfig(**SMALL_BERT)), tmp_path / "bert"
    )
    albert = build_reference_pair(
        hf.AlbertForPreTraining(hf.AlbertConfig(**SMALL_BERT, embedding_size=8)),
        tmp_path / "albert",
    )
    for (reference, net), pair_task, label_name in (
        (bert, "next", "next_sentence_label"),
        (albert, "order", "sentence_order_label"),
    ):
        objective = build_objective("masked-lm-sentence-pair", VOCAB, pair_task=pair_task)
        batch = make_batch(objective, examples)
        assert batch.encoder is not None
        expected = reference(
            get_ids(batch.encoder),
            token_type_ids=batch.encoder.token_type_ids,
            attention_mask=get_mask(batch.encoder),
            labels=scatter_labels(batch),
            **{label_name: batch.labels["pair_label"]},
        ).loss
        assert_close(objective(net(batch)), expected)
        assert objective.count_targets(batch)["pair"] == 6


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
    assert isinstance(generator, Transformer)
    assert isinstance(discriminator, Transformer)
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
    assert isinstance(student.net, Transformer)
    assert isinstance(teacher.net, Transformer)
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


# Running text.


def test_next_token_labels_stay_within_a_document() -> None:
    objective = build_objective("causal-lm", VOCAB)
    example = {"tokens": np.array([7, 8, 9, 10]), "document_ids": np.array([0, 0, 1, 1])}
    noisy = objective.noise(example, rng())
    assert noisy["tokens"].tolist() == [7, 8, 9]
    assert noisy["labels"].tolist() == [8, IGNORE_INDEX, 10]


def test_control_code_is_an_input_and_no_target(tmp_path: Path) -> None:
    objective = build_objective("control-code-lm", VOCAB)
    code = 50
    tokens = make_text(12)
    examples: list[Example] = [
        {"tokens": tokens, "code": np.array([code])},
        {"tokens": make_text(7, 1), "code": np.array([51])},
    ]
    batch = make_batch(objective, examples)
    input_ids = get_ids(batch.decoder)
    targets = batch.labels["labels"]
    assert input_ids[0].tolist() == [code, *tokens[:-1].tolist()]
    assert targets[0].tolist() == tokens.tolist()
    config = hf.CTRLConfig(
        vocab_size=VOCAB_SIZE, n_positions=64, n_embd=16, dff=32, n_layer=2, n_head=2
    )
    reference, net = build_reference_pair(hf.CTRLLMHeadModel(config), tmp_path)
    # transformers shifts the labels itself
    longer_ids = torch.cat([input_ids, input_ids[:, -1:]], 1)
    longer_targets = torch.cat([torch.full((2, 1), IGNORE_INDEX), targets], 1)
    assert_close(objective(net(batch)), reference(longer_ids, labels=longer_targets).loss)


def test_segment_recurrent_lm_reads_the_mems_of_the_previous_segment() -> None:
    net = build(
        "transformer-xl",
        vocab_size=VOCAB_SIZE,
        width=16,
        embedding_width=16,
        depth=2,
        heads=2,
        head_dim=8,
        ffn_width=32,
        mem_len=8,
        cutoffs=(20,),
        dropout=0.0,
        init_std=0.3,
        proj_init_std=0.3,
    ).net.eval()
    objective = build_objective("segment-recurrent-lm", VOCAB)
    assert objective.is_recurrent
    first, second = (make_batch(objective, [{"tokens": make_text(9, s)}]) for s in (0, 1))
    outputs = net(replace(second, mems=net(first)["mems"]))
    log_probabilities = outputs["logits"]
    expected = -log_probabilities.gather(-1, second.labels["labels"][..., None]).mean()
    assert_close(objective(outputs), expected)
    assert_close(log_probabilities.exp().sum(-1), torch.ones(1, 8))
    assert not torch.allclose(objective(net(second)), expected)


@pytest.mark.parametrize("pad_left", [False, True])
def test_permutation_lm_loss_equals_xlnet(tmp_path: Path, pad_left: bool) -> None:
    config = hf.XLNetConfig(
        vocab_size=VOCAB_SIZE, d_model=16, n_layer=2, n_head=2, d_inner=32, pad_token_id=PAD
    )
    reference, net = build_reference_pair(hf.XLNetLMHeadModel(config), tmp_path)
    objective = build_objective("permutation-lm", VOCAB._replace(pad_left=pad_left))
    rows = [make_row(24), make_row(24, 1)] if pad_left else [make_row(24)]
    examples = [objective.noise(row, rng(i)) for i, row in enumerate(rows)]
    batch = objective.collate(examples)
    perm_mask = torch.stack([torch.from_numpy(example["perm_mask"]) for example in examples])
    positions = torch.stack([torch.from_numpy(example["target_positions"]) for example in examples])
    expected = reference(
        get_ids(batch.encoder),
        perm_mask=perm_mask.float(),
        target_mapping=F.one_hot(positions, 26).float(),
        labels=batch.labels["labels"],
    ).loss
    assert_close(objective(net(batch)), expected)
    assert objective.count_targets(batch)["loss"] == len(rows) * round(26 / 6)


SMALL_XLNET: dict[str, Any] = dict(
    vocab_size=VOCAB_SIZE, width=16, depth=2, heads=2, head_dim=8, ffn_width=32, init_std=0.3
)


def test_target_depends_neither_on_itself_nor_on_later_targets() -> None:
    net = build("xlnet", **SMALL_XLNET).net.eval()
    objective = build_objective("permutation-lm", VOCAB)
    noisy = objective.noise(make_row(30), rng())
    positions = noisy["target_positions"]
    logits = net(objective.collate([noisy]))["logits"][0]
    is_hidden = torch.from_numpy(noisy["perm_mask"])[positions][:, positions]  # (P, P)
    num_changed = 0
    for i, position in enumerate(positions):
        changed = {**noisy, "tokens": noisy["tokens"].copy()}
        changed["tokens"][position] = FIRST_WORD
        changed_logits = net(objective.collate([changed]))["logits"][0]
        is_changed = (changed_logits - logits).abs().amax(-1) > 1e-6
        assert not is_changed[is_hidden[:, i]].any()
        num_changed += int(is_changed.sum())
    assert num_changed > 0


def test_permutation_lm_rows_of_different_lengths_are_independent() -> None:
    net = build("xlnet", **SMALL_XLNET).net.eval()
    for pad_left in (False, True):
        objective = build_objective("permutation-lm", VOCAB._replace(pad_left=pad_left))
        examples = [objective.noise(make_row(n, n), rng(n)) for n in (24, 11)]
        single_batches = [objective.collate([example]) for example in examples]
        counts = [objective.count_targets(batch)["loss"] for batch in single_batches]
        losses = [objective(net(batch)).item() for batch in single_batches]
        total = sum(loss * count for loss, count in zip(losses, counts, strict=True))
        batch = objective.collate(examples)
        assert objective.count_targets(batch)["loss"] == sum(counts)
        assert objective(net(batch)).item() == pytest.approx(total / sum(counts), abs=1e-5)


# Sequence to sequence.


def make_text_pairs() -> list[Example]:
    return [
        {"source": make_text(6), "target": make_text(5, 1)},
        {"source": make_text(3, 2), "target": make_text(8, 3)},
    ]


def test_decoder_reads_the_labels_shifted_right() -> None:
    objective = build_objective("seq2seq", VOCAB, label_smoothing=0.1)
    pairs = make_text_pairs()
    batch = make_batch(objective, pairs)
    targets = batch.labels["labels"]
    assert get_ids(batch.decoder)[1].tolist() == [SEP, *pairs[1]["target"][:-1]]
    assert targets[1].tolist() == pairs[1]["target"].tolist()
    assert targets[0].tolist() == [*pairs[0]["target"], *[IGNORE_INDEX] * 3]
    logits = torch.randn(2, 8, VOCAB_SIZE)
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), label_smoothing=0.1)
    assert_close(objective({"logits": logits, **batch.labels}), expected)


def test_r_drop_is_the_divergence_of_two_runs() -> None:
    objective = build_objective("seq2seq", VOCAB, label_smoothing=0.1, r_drop=2.5)
    pairs = make_text_pairs()
    single = make_batch(build_objective("seq2seq", VOCAB), pairs)
    batch = make_batch(objective, pairs)
    assert get_ids(batch.encoder).tolist() == get_ids(single.encoder).tolist() * 2
    assert batch.labels["labels"].tolist() == single.labels["labels"].tolist() * 2
    assert objective.count_targets(batch) == {"loss": 2 * 13, "r_drop": 2 * 13}
    logits = torch.randn(4, 8, VOCAB_SIZE)
    mask = single.labels["labels"] != IGNORE_INDEX
    a, b = (half[mask].log_softmax(-1) for half in logits.chunk(2))
    divergence = F.kl_div(a, b, log_target=True, reduction="batchmean")
    reverse_divergence = F.kl_div(b, a, log_target=True, reduction="batchmean")
    losses = objective.compute_losses({"logits": logits, **batch.labels})
    assert_close(losses["r_drop"], 2.5 * (divergence + reverse_divergence) / 2)
    flat_labels = batch.labels["labels"].flatten()
    expected = F.cross_entropy(logits.flatten(0, 1), flat_labels, label_smoothing=0.1)
    assert_close(losses["loss"], expected)
    equal_logits = logits[:2].repeat(2, 1, 1)
    losses = objective.compute_losses({"logits": equal_logits, **batch.labels})
    assert losses["r_drop"].item() == 0


SMALL_BART: dict[str, Any] = dict(
    vocab_size=VOCAB_SIZE,
    d_model=16,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=32,
    decoder_ffn_dim=32,
    max_position_embeddings=64,
    pad_token_id=PAD,
    bos_token_id=CLS,
    eos_token_id=SEP,
    decoder_start_token_id=SEP,
    forced_eos_token_id=SEP,
)


def assert_reference_loss(objective: Objective, net: Any, reference: Any, batch: Batch) -> None:
    """The objective's loss equals that of a reference model with the same inputs and labels."""
    expected = reference(
        get_ids(batch.encoder),
        attention_mask=get_mask(batch.encoder),
        labels=batch.labels["labels"],
    ).loss
    assert_close(objective(net(batch)), expected)


def test_denoising_loss_equals_bart(tmp_path: Path) -> None:
    objective = build_objective("denoising", VOCAB)
    tokens = make_text(20)
    batch = make_batch(objective, [{"tokens": tokens}, {"tokens": make_text(12, 1)}])
    assert batch.labels["labels"][0].tolist() == [CLS, *tokens, SEP]
    assert get_ids(batch.decoder)[0].tolist() == [SEP, CLS, *tokens]
    source = get_ids(batch.encoder)[0][get_mask(batch.encoder)[0].bool()]
    assert source[0] == CLS
    assert source[-1] == SEP
    rest = source[(source != MASK)][1:-1]
    assert len(rest) == 20 - 6  # 0.3 of them are masked
    assert {*rest.tolist()} <= {*tokens.tolist()}
    reference, net = build_reference_pair(
        hf.BartForConditionalGeneration(hf.BartConfig(**SMALL_BART)), tmp_path
    )
    assert_reference_loss(objective, net, reference, batch)


@pytest.mark.parametrize("name", ["denoising", "multilingual-denoising"])
def test_token_deletion_and_document_rotation(name: str) -> None:
    tokens = np.arange(20, 40)
    example: dict[str, Any] = {"tokens": tokens}
    if name == "multilingual-denoising":
        example["code"] = np.array([50])

    def corrupt(**settings: Any) -> list[int]:
        objective = build_objective(name, VOCAB, mask_prob=0.0, permute_sentences=False, **settings)
        ids = get_ids(make_batch(objective, [example]).encoder)[0].tolist()
        return [i for i in ids if 20 <= i < 40]

    assert corrupt() == tokens.tolist()
    rest = corrupt(delete_prob=0.25)
    assert (len(rest), rest) == (15, sorted(rest))
    rotated = corrupt(rotate_document=True)
    start = rotated.index(20)
    assert rotated[start:] + rotated[:start] == tokens.tolist() != rotated
    assert len(corrupt(delete_prob=0.25, rotate_document=True)) == 15


def test_multilingual_denoising_loss_equals_mbart(tmp_path: Path) -> None:
    """A text ends with its language code, and the decoder starts with it."""
    objective = build_objective("multilingual-denoising", VOCAB)
    examples: list[Example] = [
        {"tokens": make_text(20, n), "code": np.array([50 + n])} for n in range(2)
    ]
    batch = make_batch(objective, examples)
    for n in range(2):
        source = get_ids(batch.encoder)[n][get_mask(batch.encoder)[n].bool()]
        tokens = examples[n]["tokens"]
        assert source[-2:].tolist() == [SEP, 50 + n]
        assert batch.labels["labels"][n].tolist() == [*tokens, SEP, 50 + n]
        assert get_ids(batch.decoder)[n].tolist() == [50 + n, *tokens, SEP]
    reference, net = build_reference_pair(
        hf.MBartForConditionalGeneration(hf.MBartConfig(**SMALL_BART)), tmp_path
    )
    assert_reference_loss(objective, net, reference, batch)


def test_language_code_at_the_end_of_the_target_starts_the_decoder_of_mbart(tmp_path: Path) -> None:
    objective = build_objective("seq2seq", VOCAB._replace(shift=ShiftRight(0, "wrap")))
    pairs: list[Example] = [
        {"source": make_text(9, n), "target": np.array([6, 7, SEP, 50 + n])} for n in range(2)
    ]
    batch = make_batch(objective, pairs)
    assert get_ids(batch.decoder).tolist() == [[50, 6, 7, SEP], [51, 6, 7, SEP]]
    reference, net = build_reference_pair(
        hf.MBartForConditionalGeneration(hf.MBartConfig(**SMALL_BART)), tmp_path
    )
    assert_reference_loss(objective, net, reference, batch)


SMALL_T5: dict[str, Any] = dict(
    vocab_size=VOCAB_SIZE,
    d_model=16,
    d_kv=8,
    d_ff=32,
    num_layers=2,
    num_heads=2,
    decoder_start_token_id=PAD,
    pad_token_id=PAD,
    eos_token_id=SEP,
)


def test_span_corruption_loss_equals_t5(tmp_path: Path) -> None:
    vocab = VOCAB._replace(decoder_start_token_id=PAD)
    sentinels = vocab.sentinel_token_ids
    objective = build_objective("span-corruption", vocab)
    size, target_length = compute_input_and_target_lengths(32)
    batch = make_batch(objective, [{"tokens": make_text(size, n)} for n in range(3)])
    input_ids = get_ids(batch.encoder)
    targets = batch.labels["labels"]
    assert input_ids.shape == (3, 32)
    assert targets.shape == (3, target_length)
    assert get_ids(batch.decoder)[0].tolist() == [PAD, *targets[0][:-1].tolist()]
    for source, target in zip(input_ids, targets, strict=True):
        source_sentinels = [t for t in source.tolist() if t in sentinels]
        target_sentinels = [t for t in target.tolist() if t in sentinels]
        assert source_sentinels == target_sentinels == [*sentinels[: len(source_sentinels)]]
        assert source[-1] == target[-1] == SEP
    reference, net = build_reference_pair(
        hf.T5ForConditionalGeneration(hf.T5Config(**SMALL_T5)), tmp_path
    )
    assert_close(objective(net(batch)), reference(input_ids, labels=targets).loss)


def test_router_losses() -> None:
    sizes: dict[str, Any] = dict(vocab_size=VOCAB_SIZE, width=16, heads=2, head_dim=8, ffn_width=32)
    net = build(
        "switch",
        depth=2,
        decoder_depth=2,
        num_experts=4,
        num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1,
        router_jitter_noise=0.0,
        dropout=0.0,
        **sizes,
    ).net.eval()
    objective = build_objective(
        "span-corruption", VOCAB, router_aux_loss_coef=0.01, router_z_loss_coef=0.001
    )
    size, _ = compute_input_and_target_lengths(32)
    batch = make_batch(objective, [{"tokens": make_text(size, n)} for n in range(3)])
    outputs = net(batch)
    losses = objective.compute_losses(outputs)
    aux_loss = z_loss = 0.0
    for logits in (outputs["encoder_router_logits"][0], outputs["router_logits"][0]):
        z_loss += torch.logsumexp(logits, -1).square().mean().item()
        for probabilities in logits.softmax(-1):  # eq. 4 of Switch, one row at a time
            chosen = probabilities.argmax(-1)
            fractions = torch.bincount(chosen, minlength=4) / len(probabilities)
            aux_loss += 4 * (fractions * probabilities.mean(0)).sum().item() / 3
    assert losses["balance"].item() == pytest.approx(0.01 * aux_loss, rel=1e-5)
    assert losses["z"].item() == pytest.approx(0.001 * z_loss, rel=1e-5)
    dense = build("t5", depth=1, **sizes).net
    with pytest.raises(ValueError, match="the model has no experts"):
        objective.compute_losses(dense(batch))


# Contrastive objectives.


def test_sentence_contrastive_loss() -> None:
    objective = build_objective("sentence-contrastive", VOCAB, temperature=0.1)
    net = build(
        "bert",
        vocab_size=VOCAB_SIZE,
        width=16,
        depth=2,
        heads=2,
        ffn_width=32,
        max_positions=64,
        pooling="mean",
    ).net.eval()
    pairs = [
        {"source": make_row(n, n)["tokens"], "target": make_row(n + 3, n + 9)["tokens"]}
        for n in range(4, 8)
    ]
    batch = make_batch(objective, pairs)
    assert objective.full_batch_outputs == ("sentence_embedding",)
    assert objective.count_targets(batch) == {"loss": 4}

    def embed(tokens: Any) -> Tensor:
        outputs = net(objective.collate([{"source": tokens, "target": tokens}]))
        return outputs["sentence_embedding"][0]

    sources = torch.stack([embed(pair["source"]) for pair in pairs])
    targets = torch.stack([embed(pair["target"]) for pair in pairs])
    scores = F.cosine_similarity(sources[:, None], targets[None], dim=-1) / 0.1
    assert_close(objective(net(batch)), F.cross_entropy(scores, torch.arange(4)))


def test_image_text_contrastive_loss_equals_clip(tmp_path: Path) -> None:
    sizes = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2)
    text_config = dict(
        sizes,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=32,
        eos_token_id=SEP,
        bos_token_id=CLS,
        pad_token_id=PAD,
    )
    vision_config = dict(sizes, image_size=16, patch_size=8)
    config = hf.CLIPConfig(text_config=text_config, vision_config=vision_config, projection_dim=8)
    reference, net = build_reference_pair(hf.CLIPModel(config), tmp_path)
    objective = build_objective("image-text-contrastive", VOCAB._replace(num_image_tokens=5))
    pixels = rng().normal(size=(4, 3, 16, 16)).astype(np.float32)
    batch = objective.collate([{**make_row(6 + n, n), "pixels": pixels[n]} for n in range(4)])
    assert batch.image is not None
    expected = reference(
        get_ids(batch.encoder),
        pixel_values=batch.image.pixel_values,
        attention_mask=get_mask(batch.encoder),
        return_loss=True,
    ).loss
    assert_close(objective(net(batch)), expected)
    assert isinstance(net, DualEncoder)
    assert net.logit_scale is not None
    with torch.no_grad():
        net.logit_scale.fill_(9.0)
    clamp_logit_scale(net).train()(batch)
    assert net.logit_scale.exp().item() == pytest.approx(100.0, rel=1e-5)


# Classification.


@pytest.mark.parametrize(
    ("problem_type", "label"),
    [
        ("single_label_classification", [[2], [0]]),
        ("multi_label_classification", [[0, 2], []]),
        ("regression", [[labels.encode_float_bits(x, Record({}, ""))] for x in (0.25, -3)]),
    ],
)
def test_sequence_classification_loss_equals_bert(
    tmp_path: Path, problem_type: str, label: Any
) -> None:
    num_labels = 1 if problem_type == "regression" else 3
    config = hf.BertConfig(**SMALL_BERT, num_labels=num_labels, problem_type=problem_type)
    reference, net = build_reference_pair(hf.BertForSequenceClassification(config), tmp_path)
    objective = build_objective("sequence-classification", VOCAB, problem_type=problem_type)
    examples = [{**make_row(9 + n, n), "label": np.array(label[n], np.int64)} for n in range(2)]
    batch = make_batch(objective, examples)
    assert_reference_loss(objective, net, reference, batch)
    if problem_type == "regression":
        assert batch.labels["labels"].tolist() == [0.25, -3.0]
    if problem_type == "multi_label_classification":
        assert batch.labels["labels"].tolist() == [[1, 0, 1], [0, 0, 0]]


def test_token_classification_loss_equals_bert(tmp_path: Path) -> None:
    config = hf.BertConfig(**SMALL_BERT, num_labels=3)
    reference, net = build_reference_pair(hf.BertForTokenClassification(config), tmp_path)
    objective = build_objective("token-classification", VOCAB)
    rows = [make_row(9 + n, n) for n in range(2)]
    batch = make_batch(
        objective, [{**row, "labels": np.arange(len(row["tokens"])) % 4} for row in rows]
    )
    assert batch.labels["labels"][0].tolist()[:4] == [IGNORE_INDEX, 0, 1, 2]
    assert_reference_loss(objective, net, reference, batch)


@pytest.mark.parametrize("name", ["sequence-classification", "token-classification"])
def test_class_weights_are_those_of_cross_entropy(name: str) -> None:
    vocab = VOCAB._replace(num_labels=3, label_names=("no", "yes", "not sure"))
    labels = torch.tensor([2, 0, 0, 1, 2, 2])
    if name == "token-classification":
        labels[3] = IGNORE_INDEX
    batch = Batch(labels={"labels": labels})
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    weights = torch.tensor([0.5, 1.0, 3.0])
    expected = F.cross_entropy(logits, labels, weight=weights, ignore_index=IGNORE_INDEX)
    for setting in ([0.5, 1, 3.0], {"not sure": 3.0, "no": 0.5}):
        objective = build_objective(name, vocab, class_weights=setting)
        loss = objective({"logits": logits, "labels": labels})
        torch.testing.assert_close(loss, expected, atol=1e-6, rtol=0)
        total = float(weights[labels[labels != IGNORE_INDEX]].sum())
        assert objective.count_targets(batch) == {"loss": pytest.approx(total)}
    unweighted = build_objective(name, vocab)({"logits": logits, "labels": labels})
    assert abs(loss - unweighted) > 0.01


def test_class_weights_of_ignored_labels_give_no_nan() -> None:
    vocab = VOCAB._replace(num_labels=2, label_names=("O", "B"))
    objective = build_objective("token-classification", vocab, class_weights=[1.0, 2.0])
    outputs = {"logits": torch.randn(1, 3, 2), "labels": torch.full((1, 3), IGNORE_INDEX)}
    assert objective(outputs) == 0


def test_question_answering_loss_equals_bert(tmp_path: Path) -> None:
    reference, net = build_reference_pair(
        hf.BertForQuestionAnswering(hf.BertConfig(**SMALL_BERT)), tmp_path
    )
    objective = build_objective("question-answering", VOCAB)
    examples = [{**make_row(9 + n, n), "start": 2 + n, "end": 5} for n in range(2)]
    batch = make_batch(objective, examples)
    expected = reference(
        get_ids(batch.encoder),
        attention_mask=get_mask(batch.encoder),
        start_positions=batch.labels["start_positions"],
        end_positions=batch.labels["end_positions"],
    ).loss
    assert_close(objective(net(batch)), expected)


def test_multiple_choice_loss_equals_bert(tmp_path: Path) -> None:
    reference, net = build_reference_pair(
        hf.BertForMultipleChoice(hf.BertConfig(**SMALL_BERT)), tmp_path
    )
    objective = build_objective("multiple-choice", VOCAB)
    examples = []
    for n in range(2):
        choices = [make_row(5, n), make_row(7, 3 + n), make_row(6, 6 + n)]
        tokens = np.concatenate([choice["tokens"] for choice in choices])
        examples.append(
            {
                "tokens": tokens,
                "types": np.zeros_like(tokens),
                "windows": np.array([len(choice["tokens"]) for choice in choices]),
                "label": np.array([n]),
            }
        )
    batch = make_batch(objective, examples)
    input_ids = get_ids(batch.encoder).unflatten(0, (2, 3))
    mask = get_mask(batch.encoder).unflatten(0, (2, 3))
    expected = reference(input_ids, attention_mask=mask, labels=torch.tensor([0, 1])).loss
    assert_close(objective(net(batch)), expected)


def test_decoder_of_a_classifier_reads_the_text_shifted_right(tmp_path: Path) -> None:
    config = hf.BartConfig(**SMALL_BART, num_labels=3)
    reference, net = build_reference_pair(hf.BartForSequenceClassification(config), tmp_path)
    shift: Any = qkv.load(tmp_path).spec.shift_right  # type: ignore[union-attr]
    objective = build_objective("sequence-classification", VOCAB._replace(shift=shift))
    examples = [{**make_row(9 + n, n), "label": np.array([n])} for n in range(2)]
    assert_reference_loss(objective, net, reference, make_batch(objective, examples))


def test_token_types_are_clamped_to_those_of_the_model() -> None:
    objective = build_objective("sequence-classification", VOCAB._replace(type_vocab_size=1))
    example = {
        **make_row(4),
        "types": np.array([0, 0, 0, 1, 1, 1]),
        "label": np.array([0]),
    }
    batch = make_batch(objective, [example])
    assert batch.encoder is not None
    assert batch.encoder.token_type_ids is not None
    assert batch.encoder.token_type_ids.max() == 0


# Errors.


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("masked", {}, r"objective\.name 'masked', expected one of causal-lm"),
        (
            "masked-lm",
            {"mask_p": 0.1},
            r"objective\.mask_p: masked-lm has no such setting; it has mask_prob, mask_token_prob",
        ),
        (
            "causal-lm",
            {"mask_prob": 0.1},
            r"objective\.mask_prob: causal-lm has no such setting; it has none",
        ),
        (
            "masked-lm",
            {"mask_prob": "0.1"},
            r"objective\.mask_prob is '0\.1', expected a value such as 0\.15",
        ),
        (
            "masked-lm",
            {"mask_prob": 1.5},
            r"objective\.mask_prob is 1\.5: expected a number, more than 0",
        ),
        ("masked-lm", {"max_ngram": 0}, r"objective\.max_ngram is 0"),
        (
            "masked-lm-sentence-pair",
            {"pair_task": "swap"},
            r"objective\.pair_task 'swap', expected one of next, order",
        ),
        (
            "sequence-classification",
            {"problem_type": "many"},
            r"objective\.problem_type 'many', expected one of single_label_classification, "
            r"multi_label_classification, regression",
        ),
        (
            "sequence-classification",
            {"class_weights": [1.0, 2.0], "problem_type": "multi_label_classification"},
            r"objective\.class_weights with problem_type 'multi_label_classification', expected single",
        ),
        (
            "sequence-classification",
            {"class_weights": [1.0, 2.0]},
            r"objective\.class_weights has 2 weights, expected one for each of 3 labels: 0, 1, 2",
        ),
        (
            "token-classification",
            {"class_weights": {"B-PER": 2.0}},
            r"objective\.class_weights has 'B-PER', expected labels: 0, 1, 2",
        ),
        (
            "token-classification",
            {"class_weights": [1.0, 0.0, 1.0]},
            r"objective\.class_weights of '1' is 0\.0: expected a number, more than 0",
        ),
        (
            "token-classification",
            {"class_weights": 2.0},
            r"objective\.class_weights is 2\.0, expected",
        ),
        ("seq2seq", {"label_smoothing": 1}, r"objective\.label_smoothing is 1"),
        ("seq2seq", {"r_drop": -1}, r"objective\.r_drop is -1"),
        ("sentence-contrastive", {"temperature": 0.0}, r"objective\.temperature is 0\.0"),
        ("denoising", {"mean_span_length": 0.0}, r"objective\.mean_span_length is 0\.0"),
        ("denoising", {"delete_prob": 1.0}, r"objective\.delete_prob is 1\.0"),
        (
            "denoising",
            {"rotate_documents": True},
            r"it has mask_prob, .*; did you mean rotate_document\?",
        ),
        ("masked-lm", {"mask_token_prob": 5.0}, r"objective\.mask_token_prob is 5\.0"),
        (
            "masked-lm",
            {"random_token_prob": 0.9},
            r"objective\.random_token_prob is 0\.9: .* at most 0\.2",
        ),
        (
            "replaced-token-detection",
            {"discriminator_weight": -5.0},
            r"objective\.discriminator_weight is -5\.0",
        ),
        (
            "masked-lm-sentence-pair",
            {"short_seq_prob": 7.0},
            r"objective\.short_seq_prob is 7\.0",
        ),
    ],
)
def test_invalid_setting_raises(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_objective(name, VOCAB, **settings)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("masked-lm", dict(mask_token_id=None), "no mask token"),
        ("denoising", dict(mask_token_id=None), "no mask token"),
        ("span-corruption", dict(sentinel_token_ids=()), "no sentinels"),
        ("masked-lm-sentence-pair", dict(max_length=0), r"data\.max_length 0"),
    ],
)
def test_tokenizer_without_a_needed_token_raises(
    name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build_objective(name, VOCAB._replace(**changes))


def test_answer_positions_are_shifted_by_left_padding() -> None:
    objective = build_objective("question-answering", VOCAB._replace(pad_left=True))
    examples = [
        {**make_row(9), "start": 2, "end": 4},
        {**make_row(5, 1), "start": 2, "end": 3},
    ]
    batch = make_batch(objective, examples)
    assert batch.labels["start_positions"].tolist() == [2, 6]
    assert batch.labels["end_positions"].tolist() == [4, 7]
    assert get_ids(batch.encoder)[1, 6] == make_row(5, 1)["tokens"][2]
