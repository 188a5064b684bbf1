"""preprocessor_config.json: how images become pixel values. Reads no images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qkv.families.family import Args, Family
from qkv.spec import ConvolutionSpec, FrameSpec, PatchSpec

PREPROCESSOR_FILE = "preprocessor_config.json"


def build_preprocessor_config(
    family: Family, patches: PatchSpec | ConvolutionSpec | FrameSpec
) -> Args:
    """Return the settings of a new model: those of the family, for the size and the channels of the
    model."""
    square = {"height": patches.image_size, "width": patches.image_size}
    config = {"image_processor_type": "CLIPImageProcessor", **family.preprocessor_config}
    if config.get("do_center_crop", True):
        config |= {"size": {"shortest_edge": patches.image_size}, "crop_size": square}
    else:
        config["size"] = square
    if patches.channels != 3:
        config |= {key: [0.5] * patches.channels for key in ("image_mean", "image_std")}
    return config


def complete_preprocessor_config(family: Family, config: Mapping[str, Any]) -> Args:
    """Return the settings of a file with those that it lacks; a size of one number is the shortest
    edge, or both sides in a family that does not crop."""
    complete = {**family.preprocessor_config}
    complete |= {key: value for key, value in config.items() if value is not None}
    if isinstance(complete.get("size"), int) and not complete.get("do_center_crop", True):
        complete["size"] = {"height": complete["size"], "width": complete["size"]}
    return complete
