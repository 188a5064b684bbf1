"""EvaluationSet: the data and metrics of an evaluation: a sampler, an evaluator of the outputs, and
examples for text generation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

import numpy as np
from torch import nn

from qkv.data.batches.sampler import BatchSampler, Indices
from qkv.data.encode.encoder import Encoder
from qkv.data.read.record import Record
from qkv.data.store.shards import Shards
from qkv.model.model import Model
from qkv.train.config import TRAIN_DEFAULTS, TrainConfig
from qkv.train.evaluate.evaluation_loop import (
    SINGLE_PROCESS,
    Evaluation,
    EvaluationFunction,
    evaluate_batches,
    list_metric_names,
)
from qkv.train.evaluate.evaluator import (
    Evaluator,
    MetricFunction,
    add_custom_metrics,
    check_metric_names,
)
from qkv.train.evaluate.generation import (
    GenerationExamples,
    TextGenerator,
    select_spaced_indices,
)
from qkv.train.objectives.context import SetupContext
from qkv.train.objectives.objective import Objective
from qkv.train.objectives.registry import get_objective_spec
from qkv.train.objectives.samplers import DataSplit
from qkv.train.recipe import Recipe
from qkv.train.sharding import Sharding

# Settings of `train` that have no effect without validation data.
VALIDATION_SETTINGS = ("best_metric", "higher_is_better", "eval_generate", "patience", "eval_every")


@dataclass(frozen=True, kw_only=True)
class EvaluationSet:
    """The data and metrics of an evaluation."""

    objective: Objective
    shards: Shards
    sampler: BatchSampler
    evaluator: Evaluator
    generation_metrics: tuple[str, ...]  # empty: the model generates no texts
    build_generation_examples: Callable[[int], GenerationExamples]  # given the maximum number
    custom_generation_metrics: Mapping[str, MetricFunction]  # of generated texts

    def check_settings(self, train_config: TrainConfig, generator: TextGenerator | None) -> None:
        """Raise ValueError if a setting requires a metric that is not computed."""
        num_generated = train_config.eval_generate
        if num_generated and not self.generation_metrics:
            name = self.objective.name
            raise ValueError(
                f"train.eval_generate {num_generated}: {name} generates no texts, expected 0"
            )
        if num_generated and generator is None:
            raise ValueError(
                f"train.eval_generate {num_generated}: there is no text generator, expected 0; "
                "qkv train has one"
            )
        custom_names = [*self.custom_generation_metrics]
        if custom_names and not num_generated:
            raise ValueError(
                f"metrics {', '.join(custom_names)}: those of {self.objective.name} are computed from "
                "generated texts; set eval_generate to the number of texts"
            )
        names = list_metric_names(self.sampler, self.objective, self.evaluator)
        if num_generated:
            names += [*self.generation_metrics, *custom_names]
        if train_config.best_metric not in names:
            hint = ""
            if self.generation_metrics and not num_generated:
                hint = f"; train.eval_generate adds {', '.join(self.generation_metrics)}"
            raise ValueError(
                f"train.best_metric {train_config.best_metric!r}, "
                f"expected one of the metrics: {', '.join(names)}{hint}"
            )

    def build_evaluation_function(
        self,
        model: Model,
        train_config: TrainConfig,
        generator: TextGenerator | None = None,
        sharding: Sharding = SINGLE_PROCESS,
    ) -> EvaluationFunction:
        """Return the evaluation of a training run, which generates texts for a sample."""
        evaluate = partial(
            evaluate_batches,
            sampler=self.sampler,
            objective=self.objective,
            evaluator=self.evaluator,
            sharding=sharding,
        )
        if generator is None or not train_config.eval_generate:
            return evaluate
        if sharding.strategy == "fsdp" and sharding.dp_size > 1:
            raise ValueError(
                f"train.eval_generate {train_config.eval_generate} with train.parallelism 'fsdp': "
                "a sharded network cannot generate; expected 0, or 'ddp'"
            )
        examples = self.build_generation_examples(train_config.eval_generate)

        def evaluate_with_texts(net: nn.Module) -> Evaluation:
            texts = examples.generate(model, generator, sharding=sharding)
            generation_metrics, _ = examples.compute_metrics(
                texts, custom_metrics=self.custom_generation_metrics
            )
            evaluation = evaluate(net)
            return replace(evaluation, metrics=evaluation.metrics | generation_metrics)

        return evaluate_with_texts


def build_evaluation_set(
    context: SetupContext,
    objective: Objective,
    encoder: Encoder,
    shards: Shards,
    records: Iterable[Record],
    split: DataSplit,
    metrics: Mapping[str, MetricFunction] = MappingProxyType({}),
) -> EvaluationSet:
    """Build the evaluation set of a split of the shards of these records, with custom `metrics`."""
    spec = get_objective_spec(context.recipe)
    seed = context.recipe.train.seed
    indices = split.select_documents(shards, seed, context.stratify_field).indices
    evaluator = spec.build_evaluator(context, encoder, lambda: select_records(records, indices))

    generation = spec.generation

    def build_generation_examples(max_count: int) -> GenerationExamples:
        assert generation is not None
        sample = indices[select_spaced_indices(len(indices), max_count)]
        sample_records = list(select_records(records, sample))
        return generation.build_examples(encoder, shards, sample.tolist(), sample_records)

    generation_metrics: tuple[str, ...] = ()
    if generation is not None:
        generation_metrics = generation.list_metrics(encoder)
        check_metric_names(metrics, (*evaluator.metric_names, *generation_metrics))
    else:
        evaluator = add_custom_metrics(evaluator, metrics, context.recipe.objective.name)
    return EvaluationSet(
        objective=objective,
        shards=shards,
        sampler=spec.build_sampler(context, shards, split),
        evaluator=evaluator,
        generation_metrics=generation_metrics,
        build_generation_examples=build_generation_examples,
        custom_generation_metrics=metrics if generation_metrics else {},
    )


def check_without_validation(recipe: Recipe) -> None:
    """Raise ValueError if there is no validation data and a setting needs it."""
    if recipe.data.validation:
        return
    for name in VALIDATION_SETTINGS:
        value = getattr(recipe.train, name)
        if value != TRAIN_DEFAULTS[name]:
            raise ValueError(
                f"train.{name} {value!r}: there is no validation data; set data.validation, or remove it"
            )


def select_records(records: Iterable[Record], indices: Indices) -> Iterator[Record]:
    """Yield the records with these indices, which are in ascending order."""
    remaining = iter(np.append(indices, -1).tolist())
    next_index = next(remaining)
    for index, record in enumerate(records):
        if index == next_index:
            yield record
            next_index = next(remaining)
        if next_index < 0:
            return
