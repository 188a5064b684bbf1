"""adapter_config.json: what PEFT says of an adapter. A setting that changes numbers and is not known here is
an error. Knows no tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from qkv.families.family import Family
from qkv.model.hub import find
from qkv.model.model import Model
from qkv.spec import Two
from qkv.validate import number
from qkv.weights.tensors import read_json

CONFIG = "adapter_config.json"
READ = set(
    "peft_type r lora_alpha lora_dropout use_rslora alpha_pattern base_model_name_or_path revision task_type "
    "auto_mapping".split()
)
ASIDE = set(  # how it came to be; which modules it has, and of what rank, the tensors say
    "peft_version inference_mode target_modules modules_to_save exclude_modules layers_to_transform "
    "layers_pattern fan_in_fan_out rank_pattern eva_config megatron_core qalora_group_size runtime_config "
    "ensure_weight_tying".split()
)
ALLOWED = {  # other starts change the weights of the base as well
    "bias": ("none",), "init_lora_weights": (True, False, "gaussian", "orthogonal", "eva"),
}  # fmt: skip
NOTHING: tuple[object, ...] = (None, False, "", [], {})
TASKS = {  # the heads of each, the likeliest first
    "SEQ_CLS": ("label",), "TOKEN_CLS": ("tag",), "QUESTION_ANS": ("span",), "SEQ_2_SEQ_LM": ("lm",),
    "CAUSAL_LM": ("causal", "lm"), "FEATURE_EXTRACTION": ("none",),
}  # fmt: skip


class Settings(NamedTuple):
    alpha: float
    alphas: Mapping[str, float]  # by a pattern on the end of a module's name
    drop: float
    root: bool
    task: str | None
    made_for: str | None  # the class of the model

    def alpha_of(self, module: str) -> float:
        own = (x for end, x in self.alphas.items() if re.fullmatch(rf"(.*\.)?({end})", module))
        return next(own, self.alpha)

    def head(self, kin: Family) -> str | None:
        """The head that its model has, by its class or its task; None: as the base."""
        named = [head for head, names in kin.heads.items() if self.made_for in names.split()]
        asked = [head for head in TASKS.get(str(self.task), ()) if head in kin.heads]
        return next(iter(named + asked), None)


def read_settings(path: Path) -> Settings:
    """What a config says; whatever makes of it another thing than LoRA is named."""
    config: Any = read_json(path)
    if config.get("peft_type") != "LORA":
        raise ValueError(f"{path}: peft_type is {config.get('peft_type')!r}: expected 'LORA'")
    wrong = [
        f"{key} is {value!r}"
        for key, value in config.items()
        if key not in READ | ASIDE and value not in ALLOWED.get(key, NOTHING)
    ]
    if wrong:
        raise ValueError(f"{path}: not supported: {', '.join(wrong)}")
    found = {"lora_alpha": 8, "lora_dropout": 0.0, "use_rslora": False, **config}
    alphas = found.get("alpha_pattern") or {}
    try:
        number("lora_alpha", found["lora_alpha"], more_than=0)
        number("lora_dropout", found["lora_dropout"], at_least=0, less_than=1)
        for end, alpha in alphas.items():
            number(f"alpha_pattern[{end!r}]", alpha, more_than=0)
            re.compile(end)
        made_for = (found.get("auto_mapping") or {}).get("base_model_class")
    except (ValueError, AttributeError, re.error) as error:
        raise ValueError(f"{path}: {error}") from None
    return Settings(
        alpha=found["lora_alpha"], alphas=alphas, drop=found["lora_dropout"], root=bool(found["use_rslora"]),
        task=found.get("task_type"), made_for=made_for,
    )  # fmt: skip


def task_of(model: Model) -> str | None:
    """What PEFT calls the task of a model's head; None: it has no word for it."""
    spec, head = model.spec, model.args.get("head")
    if model.no_class() is not None or isinstance(spec, Two):
        return None
    if head == "lm" and spec.encoder and spec.decoder:
        return "SEQ_2_SEQ_LM"
    return next((task for task, heads in TASKS.items() if head in heads and task != "SEQ_2_SEQ_LM"), None)


def is_adapter(folder: Path) -> bool:
    """Is it a folder with an adapter and no model?"""
    return (folder / CONFIG).is_file() and not (folder / "config.json").exists()


def base_of(folder: Path) -> tuple[str, Path]:
    """The model that an adapter is of, as its config names it, and where that lies: nothing is fetched."""
    config = read_json(folder / CONFIG)
    named, revision = config.get("base_model_name_or_path"), config.get("revision")
    give = f"name its model, with --adapter {folder} (in Python: qkv.load(model, adapter={str(folder)!r}))"
    if not isinstance(named, str) or not named:
        raise ValueError(f"{folder}: an adapter that does not say of which model; {give}")
    try:
        return named, find(named, revision if isinstance(revision, str) else None, fetch=False)
    except ValueError:
        raise ValueError(
            f"{folder}: an adapter of {named!r}, which is no folder here and not in the hub's cache; {give}"
        ) from None
