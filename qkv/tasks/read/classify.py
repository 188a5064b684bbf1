"""Classification of a text or text pair; with an NLI model, zero-shot classification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from qkv.batch import Batch
from qkv.model.model import Model
from qkv.tasks.base import InputRow, OutputTensors, Task, TextOrPair, get_model_label_names
from qkv.tasks.checks import (
    check_choice,
    check_hypothesis_template,
    check_input_text,
    check_top_k,
    parse_candidate_labels,
)
from qkv.tasks.requirements import TaskRequirement, require_head

SCORE_FUNCTIONS = ("softmax", "sigmoid", "none")


@dataclass(frozen=True)
class Classification:
    """The best label and its score; `candidates` are the best labels, this one first."""

    label: str
    score: float
    candidates: tuple[Classification, ...] = ()

    @staticmethod
    def from_scores(labels: Sequence[str], scores: Tensor, top_k: int | None) -> Classification:
        """Return the best `top_k` labels (None: all labels), given the scores (N,) of all labels."""
        order = scores.argsort(descending=True, stable=True).tolist()[:top_k]
        best = tuple(Classification(labels[i], float(scores[i])) for i in order)
        return Classification(best[0].label, best[0].score, best)


@dataclass(frozen=True, kw_only=True)
class ClassifyTask(Task[TextOrPair, Classification]):
    """Sequence classification.

    `top_k`: number of labels, None: all.
    `function_to_apply`: softmax, sigmoid or none, None: by `problem_type` of the config.
    `candidate_labels`: labels for zero-shot classification by an NLI model. Each is inserted into
    `hypothesis_template`; its score is the probability that the text entails it. Scores sum to 1 over
    all labels; with `multi_label`, they are independent."""

    name: ClassVar[str] = "classify"
    requirement: ClassVar[TaskRequirement] = TaskRequirement(
        "a sequence-classification head",
        require_head("sequence_classification"),
        ("sequence-classification",),
    )
    top_k: int | None = None
    function_to_apply: str | None = None
    candidate_labels: Sequence[str] = ()
    hypothesis_template: str = "This example is {}."
    multi_label: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_top_k(self.top_k)
        if self.function_to_apply is not None:
            check_choice("function_to_apply", self.function_to_apply, SCORE_FUNCTIONS)
        labels = parse_candidate_labels(self.candidate_labels)
        object.__setattr__(self, "candidate_labels", labels)
        if self.candidate_labels:
            check_hypothesis_template(self.hypothesis_template)
            self.find_entailment_index()

    @property
    def model_labels(self) -> tuple[str, ...]:
        """The labels that the model was trained with."""
        return get_model_label_names(self.model, self.model.args["num_labels"])

    def find_entailment_index(self) -> int:
        """Return the index of the NLI label `entailment`."""
        indices = [
            i for i, label in enumerate(self.model_labels) if label.lower().startswith("entail")
        ]
        if not indices:
            labels = ", ".join(self.model_labels[:5])
            raise ValueError(
                "candidate_labels need an NLI model, with a label `entailment`; "
                f"this model has {labels}"
            )
        return indices[0]

    def prepare_texts(self, task_input: TextOrPair, input_name: str) -> list[TextOrPair]:
        if isinstance(task_input, tuple):
            if len(task_input) != 2 or self.candidate_labels:
                expected = "one" if self.candidate_labels else "one or two"
                raise ValueError(f"{input_name}: {len(task_input)} texts, expected {expected}")
            first, second = (check_input_text(text, input_name) for text in task_input)
            return [(first, second)]
        text = check_input_text(task_input, input_name)
        if not self.candidate_labels:
            return [text]
        return [
            (text, self.hypothesis_template.replace("{}", label)) for label in self.candidate_labels
        ]

    def extract_predictions(
        self, outputs: OutputTensors, batch: Batch, rows: Sequence[InputRow]
    ) -> list[Tensor]:
        return list(outputs["logits"].float().cpu())

    def postprocess(
        self, task_input: TextOrPair, rows: Sequence[InputRow], predictions: Sequence[Any]
    ) -> Classification:
        logits = torch.stack(list(predictions))  # (1 or candidate labels, labels of the model)
        if not self.candidate_labels:
            function = self.function_to_apply or infer_score_function(
                self.model, len(self.model_labels)
            )
            scores = apply_score_function(logits[0], function)
            return Classification.from_scores(self.model_labels, scores, self.top_k)
        entailment = self.find_entailment_index()
        if self.multi_label or len(self.candidate_labels) == 1:
            contradiction = -1 if entailment == 0 else 0  # the label at the other end of the list
            scores = logits[:, [contradiction, entailment]].softmax(-1)[:, 1]
        else:
            scores = logits[:, entailment].softmax(-1)
        return Classification.from_scores(self.candidate_labels, scores, self.top_k)


def infer_score_function(model: Model, num_labels: int) -> str:
    """Return the function for the problem type of the config; by default, sigmoid for one label."""
    problem_type = model.config.get("problem_type")
    if problem_type == "regression":
        return "none"
    if problem_type == "multi_label_classification" or num_labels == 1:
        return "sigmoid"
    return "softmax"


def apply_score_function(logits: Tensor, function_to_apply: str) -> Tensor:
    if function_to_apply == "sigmoid":
        return logits.sigmoid()
    return logits.softmax(-1) if function_to_apply == "softmax" else logits
