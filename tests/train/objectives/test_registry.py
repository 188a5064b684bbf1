"""Registry of objectives: every objective is built by its name; invalid settings raise errors."""

from __future__ import annotations

from typing import Any

import pytest

from qkv.train.objectives import build_objective
from qkv.train.objectives.registry import OBJECTIVE_SPECS
from tests.support.objectives import VOCAB


def test_every_registry_row_builds_the_objective_of_its_name() -> None:
    for name, spec in OBJECTIVE_SPECS.items():
        assert spec.build_objective(VOCAB).name == name


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
