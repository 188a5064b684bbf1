"""Long texts in tasks: one test for each row and column of the table in docs/long-texts.md."""

from importlib import import_module
from typing import Any

import pytest

import qkv
from qkv.tasks.base import InputRow, Task
from qkv.tasks.registry import TASK_CLASSES
from qkv.tasks.write.generative_answer import GenerativeAnswerTask
from tests.support.long_texts import read_overflow_rows
from tests.tasks.test_tasks import TEXTS, build_input, build_task, load_golden

ROWS = read_overflow_rows("Tasks")
LONG_TEXT = " ".join(TEXTS * 4).replace("\n", " ")
WITH_STRIDE = ("tag", "detect", "score", "answer")
TEXT_TASKS = [name for name in TASK_CLASSES if name != "caption"]  # which reads images only
TASKS = [*TEXT_TASKS, "generative answer"]


def get_task_class(name: str) -> type[Task[Any, Any]]:
    if name == "generative answer":
        return GenerativeAnswerTask
    module_name, class_name = TASK_CLASSES[name]
    task_class: type[Task[Any, Any]] = getattr(
        import_module(f"qkv.tasks.{module_name}"), class_name
    )
    return task_class


def build_long_task(name: str, **settings: Any) -> Any:
    """A task with a limit of at most 64 tokens."""
    if name == "generative answer":
        return qkv.task(
            "answer", load_golden("bart"), generative=True, max_input_length=40, **settings
        )
    return build_task(name, **settings)


def build_rows(task: Any, name: str) -> list[InputRow]:
    text = f"<mask> {LONG_TEXT}" if name == "fill" else LONG_TEXT
    task_input = build_input("answer" if "answer" in name else name, text)
    (rows,) = task.preprocess([task_input], ["text"])
    return list(rows)


def get_page_row(name: str) -> Any:
    return ROWS[name.removeprefix("generative ")]


def test_the_page_has_every_task() -> None:
    assert sorted(ROWS) == sorted(TEXT_TASKS)


@pytest.mark.parametrize("name", TASKS)
def test_default_and_values_are_those_of_the_page(name: str) -> None:
    row = get_page_row(name)
    task_class = get_task_class(name)
    assert row == (task_class.__dataclass_fields__["overflow"].default, task_class.overflow_modes)
    assert row.default in row.modes


@pytest.mark.parametrize("name", TASKS)
def test_error(name: str) -> None:
    others = " or ".join(f'"{mode}"' for mode in get_page_row(name).modes[1:])
    message = rf"^text: \d+ tokens, expected at most \d+; shorten .* set overflow to {others}$"
    with pytest.raises(ValueError, match=message):
        build_rows(build_long_task(name, overflow="error"), name)
    if get_page_row(name).default == "error":
        with pytest.raises(ValueError, match=message):
            build_rows(build_long_task(name), name)


@pytest.mark.parametrize("name", TASKS)
def test_truncate_gives_one_row_that_fits(name: str) -> None:
    task = build_long_task(name, overflow="truncate")
    (row,) = build_rows(task, name)
    if name != "complete":
        assert len(row.encoding) == task.input_token_limit
        offsets = [end for _, end in row.encoding.offset_mapping]
        assert 0 < max(offsets) < len(LONG_TEXT) / 2  # the beginning
    else:
        assert len(row.encoding) <= task.input_token_limit
        assert row.encoding.offset_mapping[-1][1] == len(LONG_TEXT)  # the end of the prompt


@pytest.mark.parametrize("name", TASKS)
def test_window(name: str) -> None:
    if "window" not in get_page_row(name).modes:
        with pytest.raises(ValueError, match=rf"^overflow is 'window', .* `{name}` reads a text"):
            build_long_task(name, overflow="window")
        return
    task = build_long_task(name, overflow="window")
    rows = build_rows(task, name)
    assert max(len(row.encoding) for row in rows) <= task.input_token_limit
    if name == "complete":
        assert len(rows) == 1
        assert rows[0].encoding.offset_mapping[-1][1] == len(LONG_TEXT)
        return
    if name in ("translate", "summarize"):  # chunks are texts of their own
        num_characters = sum(row.encoding.offset_mapping[-2][1] for row in rows)
        assert len(LONG_TEXT) * 0.95 < num_characters <= len(LONG_TEXT)
    else:
        covered = {
            i
            for row in rows
            for (start, end), sequence_id in zip(
                row.encoding.offset_mapping, row.encoding.sequence_ids, strict=True
            )
            if sequence_id == int("answer" in name)
            for i in range(start, end)
        }
        assert {i for i, letter in enumerate(LONG_TEXT) if letter.isalnum()} <= covered
    assert len(rows) > 1
    if get_page_row(name).default == "window":
        assert build_rows(build_long_task(name), name) == rows


@pytest.mark.parametrize("name", TEXT_TASKS)
def test_stride_without_overlapping_windows_is_an_error(name: str) -> None:
    if name in WITH_STRIDE:
        task = build_task(name, stride=3)
        assert len(build_rows(task, name)) < len(build_rows(build_task(name, stride=12), name))
    else:
        with pytest.raises(ValueError, match=rf"^stride is 3, but .* no effect for `{name}`"):
            build_task(name, stride=3)


def test_the_question_is_never_truncated() -> None:
    task = build_long_task("answer", overflow="truncate")
    (row,) = build_rows(task, "answer")
    assert row.encoding.sequence_ids.count(0) == len(
        task.tokenizer.encode("Who waits?", add_special_tokens=False)
    )


def test_limit_of_relative_positions() -> None:
    """T5 reads more than its tokenizer's limit; truncation and windows use that limit."""
    model = load_golden("t5")
    assert model.tokenizer is not None
    limit = model.tokenizer.model_max_length
    assert limit == 64
    limits = {
        overflow: qkv.task("summarize", model, overflow=overflow).input_token_limit
        for overflow in ("error", "truncate", "window")
    }
    assert limits == {"error": 8192, "truncate": limit, "window": limit}
