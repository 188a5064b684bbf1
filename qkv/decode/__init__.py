"""Decoding: generation of token ids with a network, for many requests at once. Does not depend on text."""

from qkv.decode.config import GenerationConfig
from qkv.decode.config_file import read_generation_config, write_generation_config
from qkv.decode.engine import Engine
from qkv.decode.generation import generate, stream_generate
from qkv.decode.optimize_for_inference import optimize_model
from qkv.decode.request import RequestOutput, Result

__all__ = [
    "Engine",
    "GenerationConfig",
    "RequestOutput",
    "Result",
    "generate",
    "optimize_model",
    "read_generation_config",
    "stream_generate",
    "write_generation_config",
]
