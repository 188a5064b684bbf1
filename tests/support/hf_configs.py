"""Configs of transformers, by model type."""

from __future__ import annotations

import json
from typing import Any

import transformers

from qkv.families.clip import IMAGE, TEXT
from qkv.families.family import Args

MODEL_TYPES = """
    bert roberta albert distilbert electra xlnet openai-gpt gpt2 ctrl bart mbart marian t5 mt5
    switch_transformers vit clip clip_text_model clip_vision_model llama modernbert
""".split()
TOWERS: dict[str, Args] = {"text": TEXT, "image": IMAGE}


def get_config_class(model_type: str) -> Any:
    return transformers.CONFIG_MAPPING[model_type]


def to_plain_dict(config: Any) -> dict[str, Any]:
    """Return a config of Hugging Face as in a file."""
    values: dict[str, Any] = json.loads(json.dumps(config.to_dict()))
    return values
