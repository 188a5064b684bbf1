"""Evaluators: metrics over all data, in batches of any size and order, against counts by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import qkv
from qkv.batch import IGNORE_INDEX
from qkv.data.batches.sampler import BatchSampler, build_fixed_size_plan
from qkv.data.encode.encoder import Encoder
from qkv.data.encode.labels import QuestionAnsweringEncoder
from qkv.data.read.record import Record
from qkv.data.store.prepare import prepare_shards
from qkv.text import Tokenizer
from qkv.train.config import TrainConfig
from qkv.train.evaluate import retrieval_evaluator
from qkv.train.evaluate.evaluation_loop import evaluate_batches, list_metric_names
from qkv.train.evaluate.evaluation_set import build_evaluation_set, select_records
from qkv.train.evaluate.evaluator import Evaluator, add_custom_metrics
from qkv.train.evaluate.evaluators import TOKEN_EVALUATOR
from qkv.train.evaluate.generation import select_spaced_indices
from qkv.train.evaluate.metrics import HIGHER_IS_BETTER_METRICS
from qkv.train.objectives import VocabularyInfo, build_objective
from qkv.train.objectives.context import SetupContext
from qkv.train.objectives.registry import OBJECTIVE_SPECS
from qkv.train.objectives.samplers import DataSplit
from qkv.train.recipe import DataConfig, ModelConfig, ObjectiveConfig, Recipe

LINES = [
    "the cat sat on the mat in New York",
    "a dog ran to the red house of Ada",
    "who is there",
]

# Metrics of evaluators that `train.best_metric` minimizes. A metric in neither set was forgotten.
LOWER_IS_BETTER_METRICS: frozenset[str] = frozenset()


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    Tokenizer.train(LINES * 9, type="wordpiece", vocab_size=70, template="bert").save(folder)
    return folder


def build_evaluator(
    tokenizer_folder: Path,
    name: str,
    records: Sequence[dict[str, Any]] = (),
    *,
    label_names: tuple[str, ...] = (),
    max_length: int = 0,
    overflow: str | None = None,
    **settings: Any,
) -> tuple[Evaluator, Encoder, SetupContext]:
    """The evaluator of an objective over these records, with its encoder and context."""
    spec = OBJECTIVE_SPECS[name]
    recipe = Recipe(
        model=ModelConfig(),
        data=DataConfig(train="", batch_size=1, max_length=max_length, overflow=overflow),
        train=TrainConfig(steps=1),
        objective=ObjectiveConfig(name=name, settings=settings),
    )
    model = qkv.build("bert", "tiny", vocab_size=100, head=spec.head or "none")
    model.tokenizer = Tokenizer.load(tokenizer_folder)
    context = SetupContext.from_recipe(recipe, tokenizer_folder, model, (), label_names=label_names)
    encoder = spec.build_encoder(context)
    all_records = [Record(record, f"record {index}") for index, record in enumerate(records)]
    return spec.build_evaluator(context, encoder, lambda: all_records), encoder, context


def evaluate_in_batches(
    evaluator: Evaluator, outputs: Sequence[dict[str, Tensor]], seed: int
) -> dict[str, float]:
    """The metrics of examples, one per output, collected in batches of random size and order."""
    rng = random.Random(seed)
    order = list(range(len(outputs)))
    collected: list[Any] = []
    rng.shuffle(order)
    while order:
        size = rng.randrange(1, 4)
        indices = order[:size]
        order = order[size:]
        batch = {name: torch.stack([outputs[i][name] for i in indices]) for name in outputs[0]}
        collected += evaluator.collect(batch, np.array(indices))
    rng.shuffle(collected)
    metrics = evaluator.compute_metrics(collected)
    assert tuple(metrics) == evaluator.metric_names
    assert {*evaluator.metric_names} <= HIGHER_IS_BETTER_METRICS | LOWER_IS_BETTER_METRICS
    return metrics


def test_single_label_classification_of_two_labels(tokenizer_folder: Path) -> None:
    evaluator, _, _ = build_evaluator(
        tokenizer_folder, "sequence-classification", label_names=("no", "yes")
    )
    pairs = [(1, 1), (1, 1), (1, 0), (0, 1), (0, 0), (0, 0), (0, 0)]  # prediction, reference
    outputs = [
        {"logits": torch.eye(2)[prediction], "labels": torch.tensor(reference)}
        for prediction, reference in pairs
    ]
    for seed in range(3):
        metrics = evaluate_in_batches(evaluator, outputs, seed)
        assert metrics["accuracy"] == pytest.approx(5 / 7)
        assert metrics["f1"] == pytest.approx(2 * 2 / (3 + 3))  # of "yes"
        assert metrics["macro_f1"] == pytest.approx((2 / 3 + 3 / 4) / 2)
        assert metrics["matthews_correlation"] == pytest.approx(
            (2 * 3 - 1 * 1) / (3 * 3 * 4 * 4) ** 0.5
        )
    assert evaluator.describe_settings() == {"f1": "of yes"}


def test_single_label_classification_of_three_labels(tokenizer_folder: Path) -> None:
    evaluator, _, _ = build_evaluator(
        tokenizer_folder, "sequence-classification", label_names=("a", "b", "c")
    )
    outputs = [{"logits": torch.eye(3)[i % 3], "labels": torch.tensor(i % 2)} for i in range(12)]
    metrics = evaluate_in_batches(evaluator, outputs, 0)
    assert evaluator.metric_names == ("accuracy", "macro_f1", "matthews_correlation")
    assert metrics["accuracy"] == pytest.approx(4 / 12)


def test_multi_label_classification(tokenizer_folder: Path) -> None:
    evaluator, _, _ = build_evaluator(
        tokenizer_folder,
        "sequence-classification",
        label_names=("a", "b", "c"),
        problem_type="multi_label_classification",
    )
    predictions = [{0, 1}, {1}, set(), {2}]
    references = [{0, 1}, {1, 2}, set(), {0}]
    rows = [
        [[1.0 if i in labels else -1.0 for i in range(3)] for labels in side]
        for side in (predictions, references)
    ]
    outputs = [
        {"logits": torch.tensor(a), "labels": torch.tensor(b).clamp(min=0)}
        for a, b in zip(*rows, strict=True)
    ]
    metrics = evaluate_in_batches(evaluator, outputs, 1)
    assert metrics["accuracy"] == 2 / 4
    assert metrics["f1"] == pytest.approx(2 * 3 / (4 + 5))
    assert metrics["macro_f1"] == pytest.approx((2 / 3 + 1 + 0) / 3)


def test_regression(tokenizer_folder: Path) -> None:
    evaluator, _, _ = build_evaluator(
        tokenizer_folder,
        "sequence-classification",
        label_names=("score",),
        problem_type="regression",
    )
    predictions = [1.0, 2.0, 3.0, 10.0]
    references = [1.0, 2.0, 3.0, 4.0]
    outputs = [
        {"logits": torch.tensor([a]), "labels": torch.tensor(b)}
        for a, b in zip(predictions, references, strict=True)
    ]
    metrics = evaluate_in_batches(evaluator, outputs, 2)
    assert metrics["spearman"] == pytest.approx(1)
    assert metrics["pearson"] == pytest.approx(14 / (50 * 5) ** 0.5)


def test_multiple_choice() -> None:
    spec = OBJECTIVE_SPECS["multiple-choice"]
    evaluator = spec.build_evaluator(None, None, list)  # type: ignore[arg-type]
    outputs = {
        "mc_logits": torch.tensor([[1.0], [2.0], [3.0], [1.0]]),
        "labels": torch.tensor([1, 1]),
    }
    collected = evaluator.collect(outputs, np.arange(2))
    assert evaluator.compute_metrics(collected) == {"accuracy": 0.5}


def test_replaced_token_detection() -> None:
    spec = OBJECTIVE_SPECS["replaced-token-detection"]
    evaluator = spec.build_evaluator(None, None, list)  # type: ignore[arg-type]
    outputs = {
        "logits": torch.eye(4)[[0, 1, 2]],
        "labels": torch.tensor([0, 3, IGNORE_INDEX]),
        "attention_mask": torch.tensor([[True, True, True, True], [True, True, False, False]]),
        "discriminator_logits": torch.tensor([[2.0, -1.0, 1.0, -3.0], [1.0, -1.0, 5.0, -5.0]]),
        "is_replaced": torch.tensor([[True, False, False, True], [True, False, True, True]]),
    }
    collected = evaluator.collect(outputs, np.arange(2)) + evaluator.collect(outputs, np.arange(2))
    metrics = evaluator.compute_metrics(collected)
    assert metrics == pytest.approx(
        {"accuracy": 1 / 2, "replaced_accuracy": 4 / 6, "replaced_f1": 2 * 2 / (3 + 3)}
    )
    assert {*metrics} <= HIGHER_IS_BETTER_METRICS | LOWER_IS_BETTER_METRICS


def test_sentence_pairs() -> None:
    spec = OBJECTIVE_SPECS["masked-lm-sentence-pair"]
    evaluator = spec.build_evaluator(None, None, list)  # type: ignore[arg-type]
    outputs = {
        "logits": torch.eye(4)[[0, 1, 2]],
        "labels": torch.tensor([0, 3, IGNORE_INDEX]),
        "seq_relationship_logits": torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 1.0]]),
        "pair_label": torch.tensor([0, 1, 1]),
    }
    metrics = evaluator.compute_metrics(evaluator.collect(outputs, np.arange(3)) * 2)
    assert metrics == pytest.approx({"accuracy": 1 / 2, "pair_accuracy": 2 / 3})
    assert tuple(metrics) == evaluator.metric_names
    assert {*metrics} <= HIGHER_IS_BETTER_METRICS


def test_predicted_tokens_are_compared_by_custom_metrics() -> None:
    def collect_lists(predictions: list[Any], references: list[Any]) -> float:
        lists.extend([predictions, references])
        return sum(a == b for a, b in zip(predictions, references, strict=True))

    lists: list[Any] = []
    evaluator = add_custom_metrics(TOKEN_EVALUATOR, {"correct": collect_lists}, "causal-lm")
    collected = []
    for labels in ([[0, 3, IGNORE_INDEX]], [[IGNORE_INDEX, 1, 1]]):
        outputs = {"logits": torch.eye(4)[[0, 1, 2]][None], "labels": torch.tensor(labels)}
        collected += evaluator.collect(outputs, np.arange(1))
    assert evaluator.compute_metrics(collected) == {"accuracy": 2 / 4, "correct": 2.0}
    assert lists == [[0, 1, 1, 2], [0, 3, 1, 1]]


# --- embeddings ---


@pytest.mark.parametrize("max_candidates", [7, 100])
def test_retrieval_equals_a_search_one_by_one(
    max_candidates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrieval_evaluator, "MAX_CANDIDATES", max_candidates)
    monkeypatch.setattr(retrieval_evaluator, "RANK_CHUNK_SIZE", 3)
    generator = torch.Generator().manual_seed(0)
    sources = torch.randn(20, 4, generator=generator)
    targets = sources + 0.9 * torch.randn(20, 4, generator=generator)
    targets[5] = targets[4]  # the same text: not nearer than its twin

    def rank_one_by_one(queries: Tensor, candidates: Tensor) -> list[int]:
        ranks = []
        for i, query in enumerate(queries):
            start = i // max_candidates * max_candidates
            part = candidates[start : start + max_candidates]
            scores = torch.nn.functional.cosine_similarity(query[None], part)
            ranks.append(
                1 + sum(float(score) > float(scores[i - start]) + 1e-6 for score in scores)
            )
        return ranks

    ranks = rank_one_by_one(sources, targets)
    assert len({*ranks}) > 3
    evaluator = OBJECTIVE_SPECS["sentence-contrastive"].build_evaluator(None, None, list)  # type: ignore[arg-type]
    pairs = torch.stack([sources, targets], 1).flatten(0, 1)  # (2N, W)
    collected = [
        *evaluator.collect({"sentence_embedding": pairs[:12]}, np.arange(6)),
        *evaluator.collect({"sentence_embedding": pairs[12:]}, np.arange(6, 20)),
    ]
    metrics = evaluator.compute_metrics(collected)
    assert metrics == pytest.approx(
        {
            "recall_1": ranks.count(1) / 20,
            "recall_5": sum(rank <= 5 for rank in ranks) / 20,
            "mrr": sum(1 / rank for rank in ranks) / 20,
        }
    )
    assert tuple(metrics) == evaluator.metric_names
    evaluator = OBJECTIVE_SPECS["image-text-contrastive"].build_evaluator(None, None, list)  # type: ignore[arg-type]
    hashes = torch.arange(20)
    outputs = {"scaled_image_embeds": 50 * sources, "text_embeds": targets, "text_hashes": hashes}
    metrics = evaluator.compute_metrics(evaluator.collect(outputs, np.arange(20)))
    reverse = rank_one_by_one(targets, sources)
    assert metrics == pytest.approx(
        {
            "text_recall_1": ranks.count(1) / 20,
            "text_recall_5": sum(rank <= 5 for rank in ranks) / 20,
            "image_recall_1": reverse.count(1) / 20,
            "image_recall_5": sum(rank <= 5 for rank in reverse) / 20,
        }
    )
    assert tuple(metrics) == evaluator.metric_names
    assert {*metrics} <= HIGHER_IS_BETTER_METRICS


# --- tags ---

TAGS = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")
SENTENCES = [
    (["Ada", "saw", "New", "York"], ["B-PER", "O", "B-LOC", "I-LOC"]),
    (["in", "New", "York"], ["O", "B-LOC", "I-LOC"]),
    (["Ada"], ["B-PER"]),
]


def build_tag_outputs(encoder: Any, record: dict[str, Any], tags: list[str]) -> dict[str, Tensor]:
    """The outputs of a network that predicts these tags; ten tokens, the last are padding."""
    encoded_labels = encoder([Record(record, "x")])[0]["labels"]
    labels = torch.full((10,), IGNORE_INDEX)
    logits = torch.zeros(10, len(TAGS))
    remaining_tags = iter(tags)
    for position, label in enumerate(encoded_labels):
        if label:
            labels[position] = label - 1
            logits[position, TAGS.index(next(remaining_tags))] = 1.0
    return {"labels": labels, "logits": logits}


def test_entities(tokenizer_folder: Path) -> None:
    """2 of 4 entities are correct; one more ends too early, one has the wrong type."""
    records = [dict(words=words, tags=tags) for words, tags in SENTENCES]
    evaluator, encoder, _ = build_evaluator(
        tokenizer_folder, "token-classification", records, label_names=TAGS
    )
    predictions = [["B-PER", "O", "B-LOC", "O"], ["O", "B-LOC", "I-LOC"], ["B-LOC"]]
    outputs = [
        build_tag_outputs(encoder, record, tags)
        for record, tags in zip(records, predictions, strict=True)
    ]
    for seed in range(3):
        metrics = evaluate_in_batches(evaluator, outputs, seed)
        assert metrics == pytest.approx(
            {"accuracy": 6 / 8, "precision": 1 / 2, "recall": 1 / 2, "f1": 1 / 2}
        )
    assert "entities" in evaluator.describe_settings()["f1"]


def test_truncated_words_are_missed(tokenizer_folder: Path) -> None:
    records = [dict(words=words, tags=tags) for words, tags in SENTENCES[:1]]
    evaluator, encoder, _ = build_evaluator(
        tokenizer_folder, "token-classification", records, label_names=TAGS
    )
    length = len(encoder([Record(records[0], "x")])[0]["tokens"])
    truncating_evaluator, truncating_encoder, _ = build_evaluator(
        tokenizer_folder,
        "token-classification",
        records,
        label_names=TAGS,
        max_length=length - 2,
        overflow="truncate",
    )
    tags = SENTENCES[0][1]
    outputs = build_tag_outputs(encoder, records[0], tags)
    assert evaluate_in_batches(evaluator, [outputs], 0)["f1"] == 1
    truncated_outputs = build_tag_outputs(truncating_encoder, records[0], tags)
    metrics = evaluate_in_batches(truncating_evaluator, [truncated_outputs], 0)
    assert metrics["recall"] == 1 / 2
    assert metrics["accuracy"] < 1


def test_tags_that_name_no_entities(tokenizer_folder: Path) -> None:
    records = [dict(words=["the", "cat"], tags=["DET", "NOUN"])]
    evaluator, _, _ = build_evaluator(
        tokenizer_folder, "token-classification", records, label_names=("DET", "NOUN")
    )
    outputs = {
        "logits": torch.tensor([[0.0, 0], [1, 0], [1, 0]]),
        "labels": torch.tensor([IGNORE_INDEX, 0, 1]),
    }
    assert evaluate_in_batches(evaluator, [outputs], 0) == pytest.approx(
        {"accuracy": 1 / 2, "macro_f1": (2 / 3 + 0) / 2}
    )


# --- answers ---


def test_answers_over_windows(tokenizer_folder: Path) -> None:
    """Long contexts; a network that knows all answers but one, which it leaves unanswered."""
    context = " ".join([*LINES[:2]] * 4)
    answers = [
        ("New York", context.index("New York")),
        ("Ada", context.rindex("Ada")),
        ("cat", context.index("cat")),
    ]
    records = [
        dict(
            question="who?",
            context=context,
            answers={"text": [text, "nobody"], "answer_start": [start, 0]},
        )
        for text, start in answers
    ]
    records.append(dict(question="who?", context=context, answers={"text": [], "answer_start": []}))
    evaluator, encoder, _ = build_evaluator(
        tokenizer_folder, "question-answering", records, max_length=24, overflow="window", stride=6
    )
    rows = encoder([Record(record, "x") for record in records])
    outputs = []
    for index, row in enumerate(rows):
        for length, *positions in zip(row["windows"], row["start"], row["end"], strict=True):
            logits = {name: torch.full((24,), -9.0) for name in ("start_logits", "end_logits")}
            logits["start_logits"][length:] = 99.0  # padding
            logits["end_logits"][length:] = 99.0
            for name, position in zip(logits, positions, strict=True):
                logits[name][position if index != 2 else 0] = 3.0
            outputs.append(logits)
    assert len(outputs) > 12
    for seed in range(3):
        assert evaluate_in_batches(evaluator, outputs, seed) == {"exact_match": 3 / 4, "f1": 3 / 4}
    assert evaluator.describe_settings() == {
        "max_answer_tokens": 30,
        "stride": 6,
        "allow_no_answer": True,
    }


def test_every_question_gets_an_answer_if_all_have_one(tokenizer_folder: Path) -> None:
    records = [dict(question="who?", context="the cat", answers=["The cat!", "a dog"])]
    settings: dict[str, Any] = dict(max_length=24, overflow="window")
    evaluator, encoder, _ = build_evaluator(
        tokenizer_folder, "question-answering", records, stride=6, **settings
    )
    assert isinstance(encoder, QuestionAnsweringEncoder)
    sequence_ids = encoder.encode_windows([Record(records[0], "x")])[0][0].sequence_ids
    first = sequence_ids.index(1)
    last = len(sequence_ids) - 1 - sequence_ids[::-1].index(1)
    start_logits = torch.full((1, len(sequence_ids)), 9.0)
    end_logits = torch.full((1, len(sequence_ids)), 9.0)
    start_logits[0, first : last + 1] = -9.0
    end_logits[0, first : last + 1] = -9.0
    start_logits[0, first] = -8.0  # the best of the context
    end_logits[0, last] = -8.0
    outputs = {"start_logits": start_logits, "end_logits": end_logits}
    collected = evaluator.collect(outputs, np.array([0]))
    assert evaluator.compute_metrics(collected) == {"exact_match": 1, "f1": 1}
    assert evaluator.describe_settings()["allow_no_answer"] is False
    message = r"objective\.max_answer_tokens is 0: expected a whole number, at least 1"
    with pytest.raises(ValueError, match=message):
        build_evaluator(
            tokenizer_folder, "question-answering", records, max_answer_tokens=0, **settings
        )


def test_every_metric_has_one_direction() -> None:
    assert not HIGHER_IS_BETTER_METRICS & LOWER_IS_BETTER_METRICS


# --- losses ---


def test_metric_names_are_those_of_the_computed_metrics() -> None:
    torch.manual_seed(0)
    net = qkv.build("gpt2", vocab_size=30, width=16, depth=1, heads=2, max_positions=16).net
    sampler = BatchSampler([{"tokens": np.arange(1, 9)}] * 5, build_fixed_size_plan(5, 2))
    objective = build_objective("causal-lm", VocabularyInfo(vocab_size=30))

    def compute_losses(outputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return dict.fromkeys("ab", objective(outputs))

    two_terms = replace(
        objective,
        compute_losses=compute_losses,
        count_targets=lambda batch: dict.fromkeys("ab", 7),
    )
    with torch.no_grad():
        metrics = evaluate_batches(net, sampler, objective).metrics
        assert list_metric_names(sampler, objective, TOKEN_EVALUATOR) == [*metrics]
        metrics = evaluate_batches(net, sampler, two_terms, Evaluator()).metrics
        assert list_metric_names(sampler, two_terms, Evaluator()) == [*metrics]
    names = list_metric_names(sampler, objective, TOKEN_EVALUATOR)
    assert names == "loss accuracy perplexity bits_per_token".split()
    names = list_metric_names(sampler, two_terms, Evaluator())
    assert names == "loss a b perplexity bits_per_token".split()


def test_records_of_a_split_are_those_of_its_examples(
    tokenizer_folder: Path, tmp_path: Path
) -> None:
    """A validation split takes records at random: evaluator and sampler must use the same ones."""
    records = [Record({"words": [word] * 3, "tags": ["B-PER"] * 3}, "x") for word in "abcdefghijkl"]
    _, encoder, context = build_evaluator(
        tokenizer_folder, "token-classification", label_names=TAGS
    )
    shards = prepare_shards(
        records, encoder, tmp_path / "shards", field_sizes=encoder.field_sizes(), provenance={}
    )
    split = DataSplit(is_train=False, validation_fraction=0.4)
    documents = split.select_documents(shards, 0)
    selected = list(select_records(iter(records), documents.indices))
    assert 2 < len(selected) < 8
    assert [encoder([record])[0]["tokens"] for record in selected] == [
        documents[i]["tokens"].tolist() for i in range(len(documents))
    ]
    objective = build_objective("token-classification", context.vocab)
    evaluation_set = build_evaluation_set(context, objective, encoder, shards, records, split)
    outputs = {
        "labels": torch.zeros(len(selected), 3).long(),
        "logits": torch.zeros(len(selected), 3, len(TAGS)),
    }
    collected = evaluation_set.evaluator.collect(outputs, np.arange(len(selected)))
    assert evaluation_set.evaluator.compute_metrics(collected)["accuracy"] == 0
    assert evaluation_set.generation_metrics == ()


def test_spaced_indices() -> None:
    assert select_spaced_indices(10, 4) == [0, 3, 6, 9]
    assert select_spaced_indices(3, 9) == [0, 1, 2]
    assert select_spaced_indices(7, 1) == [0]
