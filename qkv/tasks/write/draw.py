"""Drawing: an image from a text, by a decoder whose last tokens are the codes of an image tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from qkv.data.encode.images import build_image
from qkv.data.encode.text_to_image import get_padding_id, pad_caption
from qkv.decode import GenerationConfig, Result
from qkv.image_tokenizer import ImageTokenizer
from qkv.nn.network import Network
from qkv.tasks.base import InputRow, TextOrPair
from qkv.tasks.requirements import TaskRequirement, can_draw, check_model_supports_task
from qkv.tasks.write.base import GenerationTask
from qkv.text import Encoding

TEXT_SETTINGS = ("regex", "json_schema", "force_words")
CODE_SETTINGS = (  # which the number of codes and their ids determine
    "max_length", "max_new_tokens", "min_length", "min_new_tokens", "suppress_tokens", "stop_strings",
    "eos_token_id",
)  # fmt: skip
SEARCH_SETTINGS = ("num_beams", "penalty_alpha")  # methods other than sampling


@dataclass(frozen=True)
class Drawing:
    """An image that was drawn for a text.

    `pixels`: the levels (H, W, 3), or (H, W, 1) of a gray image. `codes`: their codes. `score`: the mean
    log-probability of the codes. `candidates`: all samples of the text, this one first."""

    text: str
    codes: tuple[int, ...]
    score: float
    pixels: NDArray[np.uint8] = field(compare=False, repr=False)
    candidates: tuple[Drawing, ...] = field(default=(), repr=False)

    def to_image(self, scale: int = 1) -> Any:
        """Return a Pillow image, with `scale` × `scale` pixels for each pixel."""
        return build_image(self.pixels, scale)


@dataclass(frozen=True, kw_only=True)
class DrawTask(GenerationTask[str, Drawing]):
    """An image from a text. The codes are sampled, unless `do_sample` is false or `num_beams` is given."""

    name: ClassVar[str] = "draw"
    requirement: ClassVar[TaskRequirement] = TaskRequirement(
        "a decoder with learned positions and the head lm", can_draw, ("lm",)
    )

    def __post_init__(self) -> None:
        check_model_supports_task(self.model, self.name, self.requirement)
        self.check_image_codes()
        for name in TEXT_SETTINGS:
            if getattr(self, name):
                raise ValueError(f"{name} is for texts and has no effect for `draw`: remove it")
        for name in CODE_SETTINGS:
            if name in self.generate_kwargs:
                raise ValueError(
                    f"{name} has no effect for `draw`, which generates the "
                    f"{self.image_tokenizer.num_codes} codes of an image: remove it"
                )
        super().__post_init__()

    def check_image_codes(self) -> None:
        """Raise ValueError unless the vocabulary is that of the texts and the codes of images."""
        model = self.model
        subject = f"{model.tokenizer_folder}: " if model.tokenizer_folder else ""
        if model.image_tokenizer is None:
            raise ValueError(
                f"{subject}the model has no image tokenizer; `draw` needs a model that was trained with "
                "the objective text-to-image"
            )
        sizes = (len(model.tokenizer or ()), len(model.image_tokenizer))
        vocab_size = model.args.get("vocab_size")
        if vocab_size != sum(sizes):
            raise ValueError(
                f"{subject}the model's vocab_size is {vocab_size}, expected {sizes[0]} tokens of texts "
                f"and {sizes[1]} codes of images; do the files belong together?"
            )
        if self.num_positions <= model.image_tokenizer.num_codes:
            raise ValueError(
                f"{subject}the model has {self.num_positions} positions, expected more than the "
                f"{model.image_tokenizer.num_codes} codes of an image; do the files belong together?"
            )

    @property
    def image_tokenizer(self) -> ImageTokenizer:
        assert self.model.image_tokenizer is not None
        return self.model.image_tokenizer

    @property
    def num_positions(self) -> int:
        """Number of learned positions, those of the caption and of the codes."""
        assert isinstance(self.model.net, Network)
        max_positions = self.model.net.last_stack.spec.max_positions
        assert max_positions is not None
        return max_positions

    @property
    def input_token_limit(self) -> int:
        limit = self.num_positions - self.image_tokenizer.num_codes
        return limit if self.max_input_length is None else min(limit, self.max_input_length)

    def derive_generation_settings(self, defaults: GenerationConfig) -> dict[str, Any]:
        """Sample exactly the codes of one image."""
        num_codes = self.image_tokenizer.num_codes
        return {
            "do_sample": not any(name in self.generate_kwargs for name in SEARCH_SETTINGS),
            "max_length": None,
            "min_length": 0,
            "max_new_tokens": num_codes,
            "min_new_tokens": num_codes,
            "suppress_tokens": tuple(range(len(self.tokenizer))),
        }

    def encode(self, texts: Sequence[TextOrPair]) -> list[Encoding]:
        return self.tokenizer.encode_batch(texts, add_special_tokens=False)

    def count_row_tokens(self, row: InputRow) -> int:
        return self.num_positions

    def build_request(self, row: InputRow) -> dict[str, Any]:
        num_text_tokens = self.num_positions - self.image_tokenizer.num_codes
        padding_id = get_padding_id(self.tokenizer.pad_token_id)
        request: dict[str, Any] = {
            "prompt": pad_caption(row.encoding.input_ids, num_text_tokens, padding_id)
        }
        if self.generation_config.guidance_scale != 1:
            request["negative_prompt_ids"] = pad_caption([], num_text_tokens, padding_id)
        return request

    def postprocess(
        self, task_input: str, rows: Sequence[InputRow], predictions: Sequence[list[Result]]
    ) -> Drawing:
        results = predictions[0]
        codes = np.array([result.token_ids for result in results]) - len(self.tokenizer)
        images = self.image_tokenizer.decode(codes)
        candidates = tuple(
            Drawing(task_input, tuple(row.tolist()), result.score, pixels)
            for row, result, pixels in zip(codes, results, images, strict=True)
        )
        return replace(candidates[0], candidates=candidates)
