"""Classify: the labels of a text or a pair of texts; by a model of entailment, labels of the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from qkv.batch import Batch
from qkv.tasks.base import Out, Row, Task, Text, labels_of
from qkv.tasks.checks import candidates, check_template, check_top, checked, one_of

APPLY = ("softmax", "sigmoid", "none")


@dataclass(frozen=True)
class Label:
    """The best label and its score; `best` has the next best too, the first of them is this one."""

    label: str
    score: float
    best: tuple[Label, ...] = ()

    @staticmethod
    def of(labels: Sequence[str], scores: Tensor, top: int | None) -> Label:
        """Of these labels and their scores (N,), the best `top`."""
        order = scores.argsort(descending=True, stable=True).tolist()[:top]
        best = tuple(Label(labels[i], float(scores[i])) for i in order)
        return Label(best[0].label, best[0].score, best)


@dataclass(frozen=True, kw_only=True)
class Classify(Task[Text, Label]):
    """`top`: so many labels, None: all. `apply`: what makes scores of logits, None: as the config says.

    With `labels` the model must be one of entailment: each label is put into `template`, and the score is how
    much the text entails it; of all labels together, or, if there may be `several`, of each for itself."""

    name: ClassVar[str] = "classify"
    top: int | None = None
    apply: str | None = None
    labels: Sequence[str] = ()
    template: str = "This example is {}."
    several: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_top(self.top)
        if self.apply is not None:
            one_of("apply", self.apply, APPLY)
        object.__setattr__(self, "labels", candidates(self.labels))
        if self.labels:
            check_template(self.template)
            self.entails()

    @property
    def own(self) -> tuple[str, ...]:
        """The labels that the model was trained with."""
        return labels_of(self.model, self.model.args["labels"])

    def entails(self) -> int:
        """The place of the label that says that the second text follows from the first."""
        found = [i for i, label in enumerate(self.own) if label.lower().startswith("entail")]
        if not found:
            has = ", ".join(self.own[:5])
            raise ValueError(
                f"labels of your own need a model of NLI, with a label `entailment`; this one has {has}"
            )
        return found[0]

    def texts(self, given: Text, what: str) -> list[Text]:
        if isinstance(given, tuple):
            if len(given) != 2 or self.labels:
                raise ValueError(
                    f"{what}: {len(given)} texts, expected {'one' if self.labels else 'one or two'}"
                )
            return [(checked(given[0], what), checked(given[1], what))]
        text = checked(given, what)
        return [(text, self.template.replace("{}", label)) for label in self.labels] or [text]

    def read(self, out: Out, batch: Batch, rows: Sequence[Row]) -> list[Tensor]:
        return list(out["logits"].float().cpu())

    def found(self, given: Text, rows: Sequence[Row], said: Sequence[Any]) -> Label:
        logits = torch.stack(list(said))  # (1, labels of the model), or (labels given, labels of the model)
        if not self.labels:
            return Label.of(self.own, scores(logits[0], self.apply or self.usual()), self.top)
        entails = self.entails()
        if self.several or len(self.labels) == 1:  # against contradiction: what stands at the other end
            both = logits[:, [-1 if entails == 0 else 0, entails]].softmax(-1)[:, 1]
        else:
            both = logits[:, entails].softmax(-1)
        return Label.of(self.labels, both, self.top)

    def usual(self) -> str:
        """As the config says; without a word there, one label is a share, several exclude each other."""
        kind = self.model.config.get("problem_type")
        if kind == "regression":
            return "none"
        return "sigmoid" if kind == "multi_label_classification" or len(self.own) == 1 else "softmax"


def scores(logits: Tensor, apply: str) -> Tensor:
    return {"none": logits, "sigmoid": logits.sigmoid(), "softmax": logits.softmax(-1)}[apply]
