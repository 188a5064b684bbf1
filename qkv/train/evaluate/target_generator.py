"""TargetGenerator: texts of an encoder-decoder for evaluation, by beam search or sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from qkv.decode import GenerationConfig, generate
from qkv.decode.config import GENERATION_DEFAULTS, add_do_sample
from qkv.decode.config_file import parse_field_value
from qkv.decode.encoder_states import encode_images
from qkv.decode.request_checks import Source
from qkv.hints import describe_unknown_name
from qkv.model.model import Model
from qkv.nn.network import Network
from qkv.train.evaluate.generation import GENERATION_BATCH_SIZE
from qkv.validate import check_number

# Defaults that do not depend on the model, so that metrics can be compared.
EVAL_GENERATION_SETTINGS = {"num_beams": 5, "length_penalty": 1.0, "max_new_tokens": 200}


class TargetGenerator:
    """Generates the targets of source sequences; `settings` are fields of GenerationConfig, and `seed`.

    Missing ones are those of EVAL_GENERATION_SETTINGS."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings: dict[str, Any] = EVAL_GENERATION_SETTINGS | dict(settings)
        self.seed = self.settings.get("seed") or 0
        check_number("seed", self.seed, integer=True, at_least=0, less_than=2**32)
        fields = {}
        for name, value in self.settings.items():
            if name not in (*GENERATION_DEFAULTS, "seed"):
                raise ValueError(describe_unknown_name(name, (*GENERATION_DEFAULTS, "seed")))
            if name != "seed":
                fields[name] = parse_field_value(name, value)
        self.generation_config = GenerationConfig(**add_do_sample(fields))

    def __call__(self, model: Model, sources: Sequence[Source], /) -> list[list[int]]:
        """Return the best generated ids of each source (token ids, or the pixel values of an image),
        without EOS and ids that have no token."""
        tokenizer = model.tokenizer
        assert tokenizer is not None
        assert isinstance(model.net, Network)
        start_token_id = model.args.get("decoder_start_token_id")
        eos_token_id = tokenizer.eos_token_id
        if start_token_id is None or eos_token_id is None:
            raise ValueError(
                f"{model.family.name}: no start or end token;"
                " expected decoder_start_token_id and eos_token"
            )
        config = replace(
            self.generation_config,
            decoder_start_token_id=start_token_id,
            eos_token_id=(eos_token_id,),
        )
        images = [source for source in sources if isinstance(source, Tensor)]
        if images:
            sources = encode_images(model.net, torch.stack(images))
        else:
            sources = [source or [tokenizer.pad_token_id or 0] for source in sources]
        results = generate(
            model.net,
            sources=sources,
            generation_config=config,
            seed=self.seed,
            batch_size=GENERATION_BATCH_SIZE,
        )
        return [
            [i for i in best.token_ids if i != eos_token_id and i < len(tokenizer)]
            for best, *_ in results
        ]
