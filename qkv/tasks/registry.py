"""The function `task`, which returns a task by name. The module of a task is imported on first use."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from qkv.builtin import BUILTIN_TASKS, get_builtin_name
from qkv.hints import describe_unknown_name
from qkv.model.device import DEFAULT_DEVICE
from qkv.model.inputs import list_accepted_inputs
from qkv.model.load import load
from qkv.model.model import Model
from qkv.spec import DualSpec, Spec
from qkv.tasks.base import Task
from qkv.tasks.requirements import TaskRequirement, combine_requirements
from qkv.tasks.settings import (
    AnswerSettings,
    CaptionSettings,
    ClassifySettings,
    CompleteSettings,
    DetectSettings,
    DrawSettings,
    EmbedSettings,
    FillSettings,
    MatchSettings,
    ScoreSettings,
    SummarizeSettings,
    TagSettings,
    TranslateSettings,
)

if TYPE_CHECKING:
    from qkv.tasks.read.answer import ExtractiveAnswerTask
    from qkv.tasks.read.classify import ClassifyTask
    from qkv.tasks.read.classify_image import ImageClassifyTask
    from qkv.tasks.read.detect import DetectTask
    from qkv.tasks.read.embed import EmbedTask
    from qkv.tasks.read.fill import FillTask
    from qkv.tasks.read.match import MatchTask
    from qkv.tasks.read.score import ScoreTask
    from qkv.tasks.read.tag import TagTask
    from qkv.tasks.write.caption import CaptionTask
    from qkv.tasks.write.complete import CompleteTask
    from qkv.tasks.write.draw import DrawTask
    from qkv.tasks.write.generative_answer import GenerativeAnswerTask
    from qkv.tasks.write.summarize import SummarizeTask
    from qkv.tasks.write.translate import TranslateTask

TASK_CLASSES = {  # task name: module, class
    "classify":  ("read.classify", "ClassifyTask"),
    "tag":       ("read.tag", "TagTask"),
    "fill":      ("read.fill", "FillTask"),
    "answer":    ("read.answer", "ExtractiveAnswerTask"),  # or GenerativeAnswerTask
    "embed":     ("read.embed", "EmbedTask"),
    "match":     ("read.match", "MatchTask"),
    "detect":    ("read.detect", "DetectTask"),
    "score":     ("read.score", "ScoreTask"),
    "translate": ("write.translate", "TranslateTask"),
    "complete":  ("write.complete", "CompleteTask"),
    "summarize": ("write.summarize", "SummarizeTask"),
    "caption":   ("write.caption", "CaptionTask"),
    "draw":      ("write.draw", "DrawTask"),
}  # fmt: skip
PIXEL_TASK_CLASSES = {  # those of models that read images alone, under the same names
    "classify": ("read.classify_image", "ImageClassifyTask"),
    "tag":      ("read.classify_image", "FrameTagTask"),
}  # fmt: skip
ModelSource = str | Path | Model | None


# fmt: off
@overload
def task(
    name: Literal["classify"], model: ModelSource = ..., *, device: str = ...,
    adapter: str | Path | None = ..., **settings: Unpack[ClassifySettings],
) -> ClassifyTask | ImageClassifyTask: ...
@overload
def task(
    name: Literal["tag"], model: ModelSource = ..., *, device: str = ...,
    adapter: str | Path | None = ..., **settings: Unpack[TagSettings],
) -> TagTask: ...  # of texts; a model of clips returns a FrameTagTask
@overload
def task(
    name: Literal["fill"], model: ModelSource = ..., *, device: str = ...,
    adapter: str | Path | None = ..., **settings: Unpack[FillSettings],
) -> FillTask: ...
@overload
def task(
    name: Literal["answer"], model: ModelSource = ..., *, device: str = ...,
    adapter: str | Path | None = ..., **settings: Unpack[AnswerSettings],
) -> ExtractiveAnswerTask | GenerativeAnswerTask: ...
@overload
def task(
    name: Literal["embed"], model: ModelSource = ..., *, device: str = ...,
    adapter: str | Path | None = ..., **settings: Unpack[EmbedSettings],
) -> EmbedTask: ...
@overload
def task(
    name: Literal["match"], model: ModelSource = ..., *, device: str = ...,
    adapter: str | Path | None = ..., **settings: Unpack[MatchSettings],
) -> MatchTask: ...
@overload
def task(
    name: Literal["detect"], model: ModelSource = ..., *, device: str = ...,
    adapter: str | Path | None = ..., **settings: Unpack[DetectSettings],
) -> DetectTask: ...
@overload
def task(
    name: Literal["score"], model: ModelSource = ..., *, device: str = ...,
    adapter: str | Path | None = ..., **settings: Unpack[ScoreSettings],
) -> ScoreTask: ...
@overload
def task(
    name: Literal["translate"], model: ModelSource = ..., *, device: str = ...,
    adapter: str | Path | None = ..., **settings: Unpack[TranslateSettings],
) -> TranslateTask: ...
@overload
def task(
    name: Literal["complete"], model: ModelSource = ..., *, device: str = ...,
    adapter: str | Path | None = ..., **settings: Unpack[CompleteSettings],
) -> CompleteTask: ...
@overload
def task(
    name: Literal["summarize"], model: ModelSource = ..., *, device: str = ...,
    adapter: str | Path | None = ..., **settings: Unpack[SummarizeSettings],
) -> SummarizeTask: ...
@overload
def task(
    name: Literal["caption"], model: ModelSource = ..., *, device: str = ...,
    adapter: str | Path | None = ..., **settings: Unpack[CaptionSettings],
) -> CaptionTask: ...
@overload
def task(
    name: Literal["draw"], model: ModelSource = ..., *, device: str = ...,
    adapter: str | Path | None = ..., **settings: Unpack[DrawSettings],
) -> DrawTask: ...
@overload
def task(  # a name that is not a literal: settings follow with `with_settings`, or in each call
    name: str, model: ModelSource = ..., *, device: str = ..., adapter: str | Path | None = ...,
) -> Task[Any, Any]: ...
# fmt: on


def task(
    name: str,
    model: ModelSource = None,
    *,
    device: str = DEFAULT_DEVICE,
    adapter: str | Path | None = None,
    **settings: Any,
) -> Task[Any, Any]:
    """Return a task with a model: a folder, a hub id or a Model. `settings` are those of the task.

    Without a model, `translate`, `complete` and `classify` use the built-in model. In tasks that
    generate text, a sampling setting (temperature, top_p, top_k, …) implies `do_sample=True`."""
    return create_task(name, model, settings, device=device, adapter=adapter)


def create_task(
    name: str,
    model: ModelSource,
    settings: Mapping[str, Any],
    *,
    device: str = DEFAULT_DEVICE,
    adapter: str | Path | None = None,
) -> Task[Any, Any]:
    """Return the task of a name that is known at run time; `task` is the typed form."""
    if name not in TASK_CLASSES:
        raise ValueError(f"task {describe_unknown_name(name, TASK_CLASSES)}")
    if model is None and name in BUILTIN_TASKS:
        model = get_builtin_name(name)
    if model is None:
        raise ValueError(f"`{name}` has no model; expected model=: a folder, a hub id or a Model")
    if isinstance(model, Model) and (adapter is not None or device != DEFAULT_DEVICE):
        raise ValueError(
            "device and adapter apply to a model that is loaded here; "
            "expected model to be a folder or a hub id"
        )
    for argument, value in (("model", model), ("adapter", adapter)):
        if value is not None and not isinstance(value, str | Path | Model):
            raise ValueError(
                f"{argument} is a {type(value).__name__}, expected a folder or a hub id"
            )
    loaded = model if isinstance(model, Model) else load(model, device=device, adapter=adapter)
    task_class = get_task_class(name, reads_pixels=reads_pixels(loaded.spec))
    if name == "answer":
        from qkv.tasks.write.generative_answer import select_answer_task

        settings = dict(settings)
        task_class = select_answer_task(loaded, settings.pop("generative", None))
    return task_class(model=loaded).with_settings(dict(settings))


def get_task_class(name: str, *, reads_pixels: bool = False) -> type[Task[Any, Any]]:
    """Return the class of a task, imported when it is first used."""
    classes = TASK_CLASSES | PIXEL_TASK_CLASSES if reads_pixels else TASK_CLASSES
    module_name, class_name = classes[name]
    task_class: type[Task[Any, Any]] = getattr(
        import_module(f"qkv.tasks.{module_name}"), class_name
    )
    return task_class


def reads_pixels(spec: Spec | DualSpec) -> bool:
    """Return whether a model reads images and no texts."""
    accepted = list_accepted_inputs(spec)
    return "pixel_values" in accepted and not accepted & {"input_ids", "decoder_input_ids"}


def get_task_requirement(name: str) -> TaskRequirement:
    """Return the model requirement of a task, that of either of its classes if it has two."""
    if name in PIXEL_TASK_CLASSES:
        pixel_class = get_task_class(name, reads_pixels=True)
        return combine_requirements(get_task_class(name).requirement, pixel_class.requirement)
    if name != "answer":
        return get_task_class(name).requirement
    from qkv.tasks.write.generative_answer import ANSWER_REQUIREMENT

    return ANSWER_REQUIREMENT
