"""adapter_config.json of PEFT; a setting that changes outputs and is not supported is an error. Does
not depend on torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from qkv.families.family import Family
from qkv.files import join_problems, read_json_object
from qkv.model.adapters.module_pattern import ModulePattern
from qkv.model.file_names import ADAPTER_CONFIG_FILE
from qkv.model.hub import find_model_folder
from qkv.model.model import Model
from qkv.spec import DualSpec
from qkv.validate import check_number, shorten_repr

MAX_PATTERNS = 1000
SUPPORTED_ADAPTER_KEYS = set(
    "peft_type r lora_alpha lora_dropout use_rslora alpha_pattern base_model_name_or_path "
    "revision task_type "
    "auto_mapping".split()
)
IGNORED_ADAPTER_KEYS = (
    set(  # settings of training; the modules and their ranks are read from the tensors
        "peft_version inference_mode target_modules modules_to_save exclude_modules "
        "layers_to_transform "
        "layers_pattern fan_in_fan_out rank_pattern eva_config megatron_core qalora_group_size "
        "runtime_config "
        "ensure_weight_tying".split()
    )
)
SUPPORTED_ADAPTER_VALUES = {  # other initializations also change the weights of the base model
    "bias": ("none",),
    "init_lora_weights": (True, False, "gaussian", "orthogonal", "eva"),
}
EMPTY_VALUES: tuple[object, ...] = (None, False, "", [], {})
HEADS_BY_TASK_TYPE = {  # the most common head first
    "SEQ_CLS": ("sequence-classification",),
    "TOKEN_CLS": ("token-classification",),
    "QUESTION_ANS": ("question-answering",),
    "SEQ_2_SEQ_LM": ("lm",),
    "CAUSAL_LM": ("causal-lm", "lm"),
    "FEATURE_EXTRACTION": ("none",),
}


class AdapterConfig(NamedTuple):
    """The settings of a LoRA adapter."""

    lora_alpha: float
    alpha_pattern: Sequence[tuple[ModulePattern, float]]
    lora_dropout: float
    use_rslora: bool
    task_type: str | None
    base_model_class: str | None

    def get_lora_alpha(self, module: str) -> float:
        """Return the alpha of a module."""
        for pattern, alpha in self.alpha_pattern:
            if pattern.matches(module):
                return alpha
        return self.lora_alpha

    def find_head(self, family: Family) -> str | None:
        """Return the head of the adapted model by its class or task; None means that of the base
        model."""
        by_class = [
            head for head, names in family.heads.items() if self.base_model_class in names.split()
        ]
        by_task = [
            head for head in HEADS_BY_TASK_TYPE.get(str(self.task_type), ()) if head in family.heads
        ]
        return next(iter(by_class + by_task), None)


def read_adapter_config(path: Path) -> AdapterConfig:
    """Read a config; anything but plain LoRA is an error."""
    config: Any = read_json_object(path)
    if config.get("peft_type") != "LORA":
        raise ValueError(f"{path}: peft_type is {config.get('peft_type')!r}: expected 'LORA'")
    unsupported = [
        f"{key[:80]} is {shorten_repr(value)}"
        for key, value in config.items()
        if key not in SUPPORTED_ADAPTER_KEYS | IGNORED_ADAPTER_KEYS
        and value not in SUPPORTED_ADAPTER_VALUES.get(key, EMPTY_VALUES)
    ]
    if unsupported:
        raise ValueError(f"{path}: not supported: {join_problems(unsupported)}")
    settings = {"lora_alpha": 8, "lora_dropout": 0.0, "use_rslora": False, **config}
    alpha_pattern = settings.get("alpha_pattern") or {}
    try:
        check_number("lora_alpha", settings["lora_alpha"], more_than=0)
        check_number("lora_dropout", settings["lora_dropout"], at_least=0, less_than=1)
        if len(alpha_pattern) > MAX_PATTERNS:
            raise ValueError(
                f"{len(alpha_pattern):,} alpha_patterns, expected at most {MAX_PATTERNS:,}"
            )
        for pattern, alpha in alpha_pattern.items():
            check_number(f"alpha_pattern[{shorten_repr(pattern)}]", alpha, more_than=0)
        patterns = [(ModulePattern(pattern), alpha) for pattern, alpha in alpha_pattern.items()]
        base_model_class = (settings.get("auto_mapping") or {}).get("base_model_class")
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{path}: {error}") from None
    return AdapterConfig(
        lora_alpha=settings["lora_alpha"],
        alpha_pattern=patterns,
        lora_dropout=settings["lora_dropout"],
        use_rslora=bool(settings["use_rslora"]),
        task_type=settings.get("task_type"),
        base_model_class=base_model_class,
    )


def get_task_type(model: Model) -> str | None:
    """Return PEFT's task type of a model's head; None if it has none."""
    spec = model.spec
    head = model.args.get("head")
    if model.find_hf_incompatibility() is not None or isinstance(spec, DualSpec):
        return None
    if head == "lm" and spec.encoder and spec.decoder:
        return "SEQ_2_SEQ_LM"
    task_types = [task for task, heads in HEADS_BY_TASK_TYPE.items() if head in heads]
    return next((task for task in task_types if task != "SEQ_2_SEQ_LM"), None)


def is_adapter(folder: Path) -> bool:
    """Return whether a folder contains an adapter and no model."""
    return (folder / ADAPTER_CONFIG_FILE).is_file() and not (folder / "config.json").exists()


def find_base_model(folder: Path) -> tuple[str, Path]:
    """Return the name of an adapter's base model in its config, and its folder, without a
    download."""
    config = read_json_object(folder / ADAPTER_CONFIG_FILE)
    name = config.get("base_model_name_or_path")
    revision = config.get("revision")
    call = f"qkv.load(model, adapter={str(folder)!r})"
    fix = f"give its base model and --adapter {folder} (in Python: {call})"
    if not isinstance(name, str) or not name:
        raise ValueError(f"{folder}: an adapter without base_model_name_or_path; {fix}")
    try:
        path = find_model_folder(
            name, revision if isinstance(revision, str) else None, download=False
        )
    except ValueError:
        raise ValueError(
            f"{folder}: the base model {name!r} is neither a folder nor in the hub's cache; {fix}"
        ) from None
    return name, path
