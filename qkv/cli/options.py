"""Options of the commands of all tasks: model, device and batching. Does not depend on tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import Parameter

from qkv.builtin import get_builtin_name
from qkv.cli.card import print_model_card
from qkv.cli.console import show_progress_bar
from qkv.cli.flags import BoolFlag, JsonFlag, StrictInt, drop_none
from qkv.model.device import DEFAULT_DEVICE
from qkv.validate import check_number

if TYPE_CHECKING:
    from qkv.tasks.base import Task


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Model, device and batching.

    Parameters
    ----------
    model
        folder of a model, or hub id
    adapter
        folder of a LoRA adapter to load onto the model
    device
        auto, cpu, cuda or mps
    batch_tokens
        maximum number of tokens per batch, including padding
    overflow
        mode for texts longer than the maximum of the model: error, truncate or window;
        default: window for tag, answer, detect and score, else error
    as_json
        print JSON, one object per line and text
    """

    model: str | None
    adapter: str | None = None
    device: str = DEFAULT_DEVICE
    batch_tokens: StrictInt = 4096
    overflow: Literal["error", "truncate", "window"] | None = None
    as_json: JsonFlag = False

    def make_task(self, name: str, **settings: Any) -> Task[Any, Any]:
        """Load the model and return the task on it."""
        from qkv.tasks.registry import create_task

        check_number("batch_tokens", self.batch_tokens, integer=True, at_least=1)
        settings |= drop_none(overflow=self.overflow)
        return create_task(name, self.model, settings, adapter=self.adapter, device=self.device)

    def run_task(self, task: Task[Any, Any], inputs: Sequence[Any]) -> list[Any]:
        """Return the results for all inputs, with progress on stderr; None for a blank input."""
        texts = [task_input for task_input in inputs if not is_blank(task_input)]
        results: Iterator[Any] = iter(())
        if texts:
            with show_progress_bar(task.name) as report_progress:
                results = iter(
                    task.map(texts, batch_tokens=self.batch_tokens, progress=report_progress)
                )
        return [None if is_blank(task_input) else next(results) for task_input in inputs]


def is_blank(task_input: Any) -> bool:
    """Return whether a text, or one of a pair of texts, has no characters but whitespace."""
    texts = task_input if isinstance(task_input, tuple) else (task_input,)
    return any(isinstance(text, str) and not text.strip() for text in texts)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BuiltinModelOptions(ModelOptions):
    """Options of a task for which the package has a built-in model.

    Parameters
    ----------
    model
        folder of a model, or hub id; default: the built-in model
    show_card
        print the model card: data, license, scores and limitations
    """

    model: str | None = None
    show_card: BoolFlag = False

    def print_card(self, task_name: str) -> None:
        """Print the model card of the model of this task."""
        print_model_card(
            get_builtin_name(task_name) if self.model is None else self.model, self.as_json
        )


DEFAULT_BUILTIN_MODEL = BuiltinModelOptions()
