"""Task: the base class of all tasks, with settings, preprocessing and batching by length.

input ─ texts ─ encodings ─ rows that fit ─ batches by length ─ network ─ predictions ─ result
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeAlias, TypeVar, overload

import numpy as np
import torch
from torch import Tensor

from qkv.batch import Batch
from qkv.data.batches.collate import pad_sequences
from qkv.data.encode.overflow import (
    DEFAULT_OVERFLOW,
    ONE_ROW_MODES,
    apply_overflow,
    check_overflow,
)
from qkv.memory import is_memory_error
from qkv.model.inputs import build_input_batch, check_inputs
from qkv.model.model import Model
from qkv.spec import DualSpec, RelativeXLSpec, Spec, StackSpec
from qkv.tasks.batching import (
    TaskProgress,
    build_progress_reporter,
    catch_error,
    evaluation_mode,
    group_rows_by_length,
    is_any_error,
    map_in_parts,
    raise_first_error,
)
from qkv.tasks.checks import (
    check_boolean_settings,
    check_input_text,
    check_list,
    check_setting_names,
)
from qkv.tasks.requirements import TaskRequirement, check_model_supports_task
from qkv.text import Encoding, Tokenizer
from qkv.validate import check_number

DEFAULT_MAX_INPUT_LENGTH = 8192  # tokens, if neither the model nor its tokenizer has a limit
TEXTS_PER_CHUNK = 1024  # number of texts that are encoded and sorted by length at a time

TextOrPair: TypeAlias = str | tuple[str, str]
OutputTensors: TypeAlias = dict[str, Tensor]
InputT = TypeVar("InputT")
ResultT = TypeVar("ResultT")


class InputRow(NamedTuple):
    """One row of a batch: a text or a window of it, and the positions that need logits."""

    encoding: Encoding
    target_positions: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Task(ABC, Generic[InputT, ResultT]):
    """A model and the settings of a task; the arguments of a call override the settings.

    `max_input_length`: maximum number of input tokens per row; default: the limit of the model.
    `overflow`: mode for longer texts: "error", "truncate" or "window" (docs/long-texts.md).
    `stride`: tokens that neighboring windows share."""

    name: ClassVar[str]
    requirement: ClassVar[TaskRequirement]  # requirement of the model
    overflow_modes: ClassVar[tuple[str, ...]] = ONE_ROW_MODES
    truncation: ClassVar[str] = "longest_first"  # strategy of `apply_overflow`
    uses_stride: ClassVar[bool] = False  # whether neighboring windows share tokens
    reads_text: ClassVar[bool] = True  # whether it needs a tokenizer
    model: Model
    overflow: str = DEFAULT_OVERFLOW
    max_input_length: int | None = None
    stride: int | None = None

    def __post_init__(self) -> None:
        check_model_supports_task(self.model, self.name, self.requirement)
        if self.model.tokenizer is None and self.reads_text:
            raise ValueError(
                f"`{self.name}`: the model has no tokenizer; expected its files next to the weights"
            )
        check_boolean_settings(self)
        check_overflow("overflow", self.overflow, self.overflow_modes, f"`{self.name}`")
        if self.max_input_length is not None:
            check_number("max_input_length", self.max_input_length, integer=True, at_least=1)
        if self.stride is not None and not self.uses_stride:
            raise ValueError(
                f"stride is {self.stride!r}, but stride has no effect for `{self.name}`: it has no "
                "overlapping windows; remove stride"
            )
        if self.stride is not None:
            check_number("stride", self.stride, integer=True, at_least=0)

    def __call__(self, task_input: InputT, /, **settings: Any) -> ResultT:
        """Return the result for one input."""
        return self.with_settings(settings).compute_results([task_input])[0]

    @overload
    def map(
        self, inputs: Iterable[InputT], /, *, batch_tokens: int = 4096,
        progress: TaskProgress = False, return_exceptions: Literal[False] = False, **settings: Any,
    ) -> list[ResultT]: ...  # fmt: skip
    @overload
    def map(
        self, inputs: Iterable[InputT], /, *, batch_tokens: int = 4096,
        progress: TaskProgress = False, return_exceptions: Literal[True], **settings: Any,
    ) -> list[ResultT | Exception]: ...  # fmt: skip
    def map(
        self, inputs: Iterable[InputT], /, *, batch_tokens: int = 4096,
        progress: TaskProgress = False, return_exceptions: bool = False, **settings: Any,
    ) -> Any:  # fmt: skip
        """Return the results for many inputs, in their order.

        `batch_tokens` is the maximum number of tokens of a batch, including padding. The error of an
        input is raised, or is its result with `return_exceptions`, and the others go on."""
        task = self.with_settings(settings)
        return task.compute_outcomes(
            check_list("inputs", inputs), batch_tokens, progress, return_exceptions
        )

    def with_settings(self, settings: dict[str, Any]) -> Self:
        """Return the task with other settings."""
        names = [field.name for field in fields(self) if field.name != "model"]
        check_setting_names(settings, names)
        return replace(self, **settings) if settings else self

    # --- overridden by tasks ---

    def prepare_texts(self, task_input: InputT, input_name: str) -> list[TextOrPair]:
        """Return the texts or text pairs of one input; `input_name` is its name in error messages."""
        return [check_input_text(task_input, input_name)]

    def build_rows(self, encoding: Encoding, input_name: str) -> list[InputRow]:
        """Return the rows of a text: the whole text, its beginning or its windows."""
        return [InputRow(part) for part in self.split_encoding(encoding, input_name)]

    def get_input_ids(self, row: InputRow) -> list[int]:
        return row.encoding.input_ids

    def count_row_tokens(self, row: InputRow) -> int:
        """Return the number of tokens of a row in a batch."""
        return len(row.encoding)

    def encode(self, texts: Sequence[TextOrPair]) -> list[Encoding]:
        return self.tokenizer.encode_batch(texts)

    def predict(self, rows: Sequence[InputRow]) -> list[Any]:
        """Return the prediction of every row of a batch, by default from one forward pass."""
        return self.extract_predictions(*self.forward(rows), rows)

    def extract_predictions(
        self, outputs: OutputTensors, batch: Batch, rows: Sequence[InputRow]
    ) -> list[Any]:
        """Return the prediction of every row; a task without this method overrides `predict`."""
        raise NotImplementedError

    @abstractmethod
    def postprocess(
        self, task_input: InputT, rows: Sequence[InputRow], predictions: Sequence[Any]
    ) -> ResultT:
        """Return the result of an input, given the predictions of its rows."""

    # --- shared by tasks ---

    @property
    def tokenizer(self) -> Tokenizer:
        assert self.model.tokenizer is not None
        return self.model.tokenizer

    @property
    def input_token_limit(self) -> int:
        """Maximum number of input tokens per row."""
        spec = self.model.spec
        text_spec = spec.text if isinstance(spec, DualSpec) else spec
        assert text_spec is not None
        reads_decoder = text_spec.encoder is None or text_spec.shift_right
        stacks = [text_spec.encoder, text_spec.decoder if reads_decoder else None]
        limits = [stack.max_positions for stack in stacks if stack]
        limits += [self.tokenizer.model_max_length, self.max_input_length]
        return min(
            (limit for limit in limits if limit is not None), default=DEFAULT_MAX_INPUT_LENGTH
        )

    @property
    def sequences_per_row(self) -> int:
        """Number of sequences that the network reads per row, such as beams."""
        return 1

    def split_encoding(self, encoding: Encoding, input_name: str) -> list[Encoding]:
        """Return the parts of a text, each of which fits into a row."""
        if all(sequence_id is None for sequence_id in encoding.sequence_ids):
            raise ValueError(
                f"{input_name}: the tokenizer has no tokens for its characters; expected words"
            )
        return apply_overflow(
            encoding,
            self.input_token_limit,
            self.overflow,
            text_name=input_name,
            modes=self.overflow_modes,
            truncation=self.truncation,
            stride=self.stride,
        )

    @contextmanager
    def evaluation_mode(self) -> Iterator[Self]:
        """Yield the task with its network in evaluation mode, within torch's inference mode."""
        with evaluation_mode(self.model) as model:
            yield self if model is self.model else replace(self, model=model)

    def compute_results(
        self, inputs: Sequence[InputT], batch_tokens: int = 4096, progress: TaskProgress = False
    ) -> list[ResultT]:
        """Return the results of all inputs with the settings of this task, or raise an error."""
        return raise_first_error(self.compute_outcomes(inputs, batch_tokens, progress))

    def compute_outcomes(
        self,
        inputs: Sequence[InputT],
        batch_tokens: int = 4096,
        progress: TaskProgress = False,
        return_exceptions: bool = False,
    ) -> list[ResultT | Exception]:
        """Return the result of every input, or its error with `return_exceptions`."""
        check_number("batch_tokens", batch_tokens, integer=True, at_least=1)
        outcomes: list[ResultT | Exception] = []
        with self.evaluation_mode() as task:
            for start in range(0, len(inputs), TEXTS_PER_CHUNK):
                chunk = inputs[start : start + TEXTS_PER_CHUNK]
                names = [
                    f"text {start + i + 1}" if len(inputs) > 1 else "text"
                    for i in range(len(chunk))
                ]
                rows = task.preprocess_in_parts(chunk, names, return_exceptions)
                all_rows = [row for input_rows in rows for row in list_input_rows(input_rows)]
                chunk_size = len(chunk)
                total = len(inputs)
                if total <= TEXTS_PER_CHUNK:  # the number of rows is known
                    chunk_size = max(len(all_rows), chunk_size)
                    total = chunk_size
                report_progress = build_progress_reporter(
                    self.name, start, chunk_size, total, progress
                )
                predictions = iter(
                    task.predict_all(all_rows, batch_tokens, report_progress, return_exceptions)
                )
                outcomes += [
                    task.build_outcome(
                        task_input,
                        input_rows,
                        [next(predictions) for _ in list_input_rows(input_rows)],
                    )
                    for task_input, input_rows in zip(chunk, rows, strict=True)
                ]
                if not return_exceptions:
                    raise_first_error(outcomes)
        return outcomes

    def preprocess_in_parts(
        self, inputs: Sequence[InputT], input_names: Sequence[str], return_exceptions: bool
    ) -> list[list[InputRow] | Exception]:
        """Return the rows of every input, or its error with `return_exceptions`."""

        def preprocess(named_inputs: Sequence[tuple[InputT, str]]) -> list[list[InputRow]]:
            return self.preprocess(
                [task_input for task_input, _ in named_inputs], [name for _, name in named_inputs]
            )

        if not return_exceptions:
            return [*self.preprocess(inputs, input_names)]
        return map_in_parts(preprocess, [*zip(inputs, input_names, strict=True)], is_any_error)

    def build_outcome(
        self, task_input: InputT, rows: list[InputRow] | Exception, predictions: Sequence[Any]
    ) -> ResultT | Exception:
        """Return the result of an input, or the first error of its rows."""
        errors = [error for error in (rows, *predictions) if isinstance(error, Exception)]
        if errors or isinstance(rows, Exception):
            return errors[0]
        return catch_error(lambda: self.postprocess(task_input, rows, predictions))

    def preprocess(
        self, inputs: Sequence[InputT], input_names: Sequence[str]
    ) -> list[list[InputRow]]:
        """Return the rows of every input; all texts are encoded together."""
        texts = [
            self.prepare_texts(task_input, name)
            for task_input, name in zip(inputs, input_names, strict=True)
        ]
        encodings = iter(self.encode([text for input_texts in texts for text in input_texts]))
        return [
            [row for _ in input_texts for row in self.build_rows(next(encodings), name)]
            for input_texts, name in zip(texts, input_names, strict=True)
        ]

    def predict_all(
        self,
        rows: Sequence[InputRow],
        batch_tokens: int,
        report_progress: Callable[[float], None],
        return_exceptions: bool = False,
    ) -> list[Any]:
        """Return the predictions of all rows in their order; batches are built by length.

        A batch that lacks memory is halved."""
        predictions: list[Any] = [None] * len(rows)
        num_done = 0
        lengths = [self.count_row_tokens(row) for row in rows]
        for indices in group_rows_by_length(lengths, batch_tokens // self.sequences_per_row):
            batch_rows = [rows[index] for index in indices]
            batch_predictions = map_in_parts(
                self.predict, batch_rows, is_any_error if return_exceptions else is_memory_error
            )
            for index, prediction in zip(indices, batch_predictions, strict=True):
                predictions[index] = prediction
            num_done += len(batch_rows)
            report_progress(num_done / len(rows))
        return predictions

    def forward(self, rows: Sequence[InputRow]) -> tuple[OutputTensors, Batch]:
        """Run the network on the rows; return its outputs and the batch."""
        batch = self.build_batch(rows)
        return self.model.net(batch), batch

    def build_batch(self, rows: Sequence[InputRow]) -> Batch:
        """Return the padded batch of the rows; logits are computed only at target positions."""
        model = self.model
        input_ids = pad_sequences(
            [np.array(self.get_input_ids(row)) for row in rows], self.tokenizer.pad_token_id or 0
        )
        masks = [np.ones(len(row.encoding), np.int64) for row in rows]
        inputs: dict[str, Any] = {
            "input_ids": input_ids,
            "attention_mask": pad_sequences(masks, 0) > 0,
        }
        if isinstance(model.spec, Spec) and uses_token_type_ids(model.spec):
            token_type_ids = [np.array(row.encoding.token_type_ids) for row in rows]
            inputs["token_type_ids"] = pad_sequences(token_type_ids, 0)
        check_inputs(model.spec, inputs)
        tensors = {name: tensor.to(model.device) for name, tensor in inputs.items()}
        batch = build_input_batch(model.spec, **tensors)
        positions = [
            i * input_ids.shape[1] + position
            for i, row in enumerate(rows)
            for position in row.target_positions
        ]
        if not positions:
            return batch
        return replace(batch, logit_positions=torch.tensor(positions, device=model.device))


def list_input_rows(rows: list[InputRow] | Exception) -> list[InputRow]:
    """Return the rows of an input; one that failed has none."""
    return [] if isinstance(rows, Exception) else rows


def uses_token_type_ids(spec: Spec) -> bool:
    """Return whether the model has segment embeddings; GPT's token types are not segments."""
    first_stack: StackSpec = spec.encoder or spec.decoder  # type: ignore[assignment]
    token_types = first_stack.embedding.token_types
    has_segment_bias = any(
        isinstance(layer.attention.relative_position, RelativeXLSpec)
        and layer.attention.relative_position.segment_bias
        for layer in first_stack.layers[:1]
    )
    return (isinstance(token_types, int) and token_types > 1) or has_segment_bias


def trim_span(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the span without leading and trailing whitespace, which some tokenizers include."""
    part = text[start:end]
    start += len(part) - len(part.lstrip())
    return start, max(start, start + len(part.strip()))


def get_model_label_names(model: Model, num_labels: int) -> tuple[str, ...]:
    """Return the label names of a head, from `id2label` of config.json."""
    id2label = model.config.get("id2label") or {}
    return tuple(
        str(id2label.get(str(i), id2label.get(i, f"LABEL_{i}"))) for i in range(num_labels)
    )
