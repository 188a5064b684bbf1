"""task: a task by its name, on a model of the user's. Each is imported when it is first asked for."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from qkv.builtin import TASKS as SHIPPED
from qkv.builtin import builtin
from qkv.model.load import load
from qkv.model.model import Model
from qkv.tasks.base import Task
from qkv.tasks.checks import one_of

if TYPE_CHECKING:
    from qkv.tasks.read.answer import Reply
    from qkv.tasks.read.classify import Classify
    from qkv.tasks.read.detect import Detect
    from qkv.tasks.read.embed import Embed
    from qkv.tasks.read.fill import Fill
    from qkv.tasks.read.match import Match
    from qkv.tasks.read.score import Measure
    from qkv.tasks.read.tag import Tag
    from qkv.tasks.write.complete import Complete
    from qkv.tasks.write.generative_answer import Respond
    from qkv.tasks.write.summarize import Summarise
    from qkv.tasks.write.translate import Translate

TASKS = {
    "classify": ("read.classify", "Classify"), "tag": ("read.tag", "Tag"), "fill": ("read.fill", "Fill"),
    "answer": ("read.answer", "Reply"), "embed": ("read.embed", "Embed"), "match": ("read.match", "Match"),
    "detect": ("read.detect", "Detect"), "score": ("read.score", "Measure"),
    "translate": ("write.translate", "Translate"), "complete": ("write.complete", "Complete"),
    "summarise": ("write.summarize", "Summarise"),
}  # fmt: skip
Where = str | Path | Model | None


# fmt: off
@overload
def task(name: Literal["classify"], model: Where = ..., **settings: Any) -> Classify: ...
@overload
def task(name: Literal["tag"], model: Where = ..., **settings: Any) -> Tag: ...
@overload
def task(name: Literal["fill"], model: Where = ..., **settings: Any) -> Fill: ...
@overload
def task(name: Literal["answer"], model: Where = ..., **settings: Any) -> Reply | Respond: ...
@overload
def task(name: Literal["embed"], model: Where = ..., **settings: Any) -> Embed: ...
@overload
def task(name: Literal["match"], model: Where = ..., **settings: Any) -> Match: ...
@overload
def task(name: Literal["detect"], model: Where = ..., **settings: Any) -> Detect: ...
@overload
def task(name: Literal["score"], model: Where = ..., **settings: Any) -> Measure: ...
@overload
def task(name: Literal["translate"], model: Where = ..., **settings: Any) -> Translate: ...
@overload
def task(name: Literal["complete"], model: Where = ..., **settings: Any) -> Complete: ...
@overload
def task(name: Literal["summarise"], model: Where = ..., **settings: Any) -> Summarise: ...
@overload
def task(name: str, model: Where = ..., **settings: Any) -> Task[Any, Any]: ...
# fmt: on


def task(
    name: str, model: Where = None, *, device: str = "cpu", adapter: str | Path | None = None, **settings: Any
) -> Task[Any, Any]:
    """A task on a model: the folder or hub id of one, or a Model; settings are those of the task.

    Without a model, `translate`, `complete` and `classify` take the one that comes with the package."""
    one_of("task", name, [*TASKS])
    if model is None and name in SHIPPED:
        model = builtin(name)
    if model is None:
        raise ValueError(f"`{name}` of which model? Expected model= and a folder, a hub id or a Model")
    if isinstance(model, Model) and (adapter is not None or device != "cpu"):
        raise ValueError(
            "device and adapter are for a model that is opened here; expected a folder or a hub id"
        )
    for what, value in (("model", model), ("adapter", adapter)):
        if value is not None and not isinstance(value, str | Path | Model):
            raise ValueError(f"{what} is a {type(value).__name__}, expected a folder or a hub id")
    module, class_name = TASKS[name]
    kind: type[Task[Any, Any]] = getattr(import_module(f"qkv.tasks.{module}"), class_name)
    opened = model if isinstance(model, Model) else load(model, device=device, adapter=adapter)
    if name == "answer":  # with a part of the text, or in words of its own
        from qkv.tasks.write.generative_answer import answering

        kind = answering(opened, settings.pop("generative", None))
    made = kind(model=opened)
    return made.changed(settings)
