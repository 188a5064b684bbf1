"""PublishedFolder: a row of the tables, the folder that it describes, and the expected outputs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

from tests.support.oracle.cases import CASES, Case
from tests.support.oracle.inputs import Inputs, build_inputs
from tests.support.oracle.models import build_reference, save_reference
from tests.support.oracle.outputs import run_reference

CASES_BY_NAME = {case.name: case for case in CASES}
REPOSITORY = "https://github.com/huggingface/transformers"


def issue(number: int, repository: str = REPOSITORY) -> str:
    return f"{repository}/issues/{number}"


def pull(number: int, repository: str = REPOSITORY) -> str:
    return f"{repository}/pull/{number}"


def source_file(tag: str, path: str) -> str:
    """Return the address of a file of transformers at a release."""
    return f"{REPOSITORY}/blob/{tag}/{path}"


@dataclass(frozen=True, kw_only=True)
class PublishedFolder:
    """A folder that differs from what `save_pretrained` of the case's class writes today."""

    name: str
    source: str  # where the spelling was seen
    seen: str  # what was seen there
    case: str  # the tensors: a name in CASES
    opens: str = ""  # the class that transformers opens it as; default: that of the case
    # Tensors. `tied`: names of the state dict that are not written today (a regular expression);
    # `extra`: name -> shape of tensors that no class reads, with `{}` for layers 0 and 1.
    tied: str = "(?!)"
    removed: str = "(?!)"
    renamed: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    # config.json. `kept_keys`: only these keys, if not empty; then changes, of which None removes a key.
    kept_keys: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    load: Mapping[str, Any] = field(default_factory=dict)  # arguments of qkv.load
    reload: Mapping[str, Any] = field(default_factory=dict)  # the same, after saving
    compared: str = ""  # names of outputs; default: all that the class returns
    warns: str = ""  # a regular expression for the only warning; default: no warning

    def __repr__(self) -> str:
        return self.name

    @property
    def written_case(self) -> Case:
        return CASES_BY_NAME[self.case]

    @property
    def opened_case(self) -> Case:
        """The case whose class opens the folder."""
        if not self.opens:
            return self.written_case
        class_name = re.sub("XLMRoberta|Camembert", "Roberta", self.opens)
        return CASES_BY_NAME[f"{self.written_case.family}-{class_name}"]

    def write(self, folder: Path) -> Path:
        """Write config.json and the weights."""
        save_reference(self.written_case, folder)
        config_path = folder / "config.json"
        config = json.loads(config_path.read_text())
        if self.kept_keys:
            config = {key: value for key, value in config.items() if key in self.kept_keys.split()}
        config |= self.config
        removed = [key for key, value in self.config.items() if value is None]
        config_path.write_text(
            json.dumps({key: value for key, value in config.items() if key not in removed})
        )
        save_file(self.build_tensors(), folder / "model.safetensors")
        return folder

    def build_tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the file under their published names."""
        model = build_reference(self.written_case)
        unwritten = {*model.all_tied_weights_keys, *(model._keys_to_ignore_on_save or ())}
        tensors = {}
        for name, tensor in model.state_dict().items():
            if name in unwritten and not re.fullmatch(self.tied, name):
                continue
            if re.fullmatch(self.removed, name):
                continue
            for pattern, replacement in self.renamed.items():
                name = re.sub(pattern, replacement, name)
            tensors[name] = tensor.clone().contiguous().to(self.dtype)
        generator = torch.Generator().manual_seed(0)
        for pattern, shape in self.extra.items():
            for name in {pattern.format(layer, layer) for layer in (0, 1)}:
                assert name not in tensors, name
                tensors[name] = torch.randn(shape, generator=generator)
        return tensors

    def compute_expected(self) -> tuple[Inputs, dict[str, Tensor]]:
        """Return inputs, and the outputs of the class of transformers that holds the same tensors."""
        reference = build_reference(self.written_case)
        if self.dtype != torch.float32:
            reference = deepcopy(reference).to(self.dtype).float()
        if re.fullmatch(self.removed, "final_logits_bias"):
            reference = deepcopy(reference)
            reference.final_logits_bias.zero_()
        if self.opens:
            model_class = getattr(transformers, self.opens)
            config = reference.config
            towers = [getattr(config, key, None) for key in ("text_config", "vision_config")]
            configs = [c for c in towers if isinstance(c, model_class.config_class)]
            reference = model_class.from_pretrained(
                None,
                config=deepcopy(configs[0] if configs else config),
                state_dict=dict(reference.state_dict()),
                attn_implementation="eager",
            ).eval()
        inputs = build_inputs(self.opened_case, "none")
        with torch.no_grad():
            outputs = run_reference(self.opened_case, reference, inputs)
        names = self.compared.split() or [name for name in outputs if "." not in name]
        return inputs, {name: outputs[name][0] for name in names}
