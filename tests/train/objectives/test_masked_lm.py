"""Masked language modeling and sentence pairs: noise, and losses against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers as hf

from qkv.batch import IGNORE_INDEX
from qkv.data.batches.dataset import DocumentDataset, PackedDataset, SentencePairDataset
from qkv.data.batches.sampler import build_example_sampler
from qkv.data.store.prepare import prepare_shards
from qkv.data.store.shards import Shards
from qkv.train.objectives import build_objective
from tests.support.objectives import (
    CLS,
    FIRST_WORD,
    MASK,
    SEP,
    SINGLE,
    SMALL_BERT,
    VOCAB,
    VOCAB_SIZE,
    assert_close,
    build_reference_pair,
    get_ids,
    get_mask,
    make_batch,
    make_row,
    make_text,
    rng,
    scatter_labels,
)

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
