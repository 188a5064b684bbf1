"""Text completion by a causal model, with optional streaming."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from qkv.data.encode.overflow import OVERFLOW_MODES
from qkv.decode import GenerationConfig, Result
from qkv.decode.request_checks import DEFAULT_MAX_NEW_TOKENS
from qkv.nn.evaluation import view_in_evaluation_mode
from qkv.nn.network import Network
from qkv.tasks.base import InputRow, TextOrPair
from qkv.tasks.checks import check_input_text, check_string_settings
from qkv.tasks.requirements import TaskRequirement, can_complete_text
from qkv.tasks.write.base import GenerationTask
from qkv.text import Encoding

REPLACEMENT_CHARACTER = "\ufffd"  # bytes that are not, or not yet, a character
UNSTABLE_ENDING = re.compile(  # endings that tokenizers may join with what follows: do n 't
    r"(?:(?: n)?(?: ?'[vr]?)? ?|@@)\Z"
)


@dataclass(frozen=True)
class Completion:
    """A prompt with its continuation.

    `new_text`: the continuation only. `score`: its log-probability divided by its length to the
    power of `length_penalty`. `finish_reason`: "eos", "stop", "length" or "context".
    `candidates`: the best completions, this one first."""

    text: str
    new_text: str
    score: float
    tokens: tuple[str, ...]
    finish_reason: str
    candidates: tuple[Completion, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CompleteTask(GenerationTask[str, Completion]):
    """Text completion by a causal model.

    `control_code`: a control code of CTRL, or one that the tokenizer was trained with.
    `overflow`: a prompt is truncated on the left, to leave room for `max_new_tokens` but at most
    half of the model's positions. "truncate" does so if the prompt alone is too long, "window" also
    if it leaves less room; with "window", models with a segment memory read the whole prompt."""

    name: ClassVar[str] = "complete"
    requirement: ClassVar[TaskRequirement] = TaskRequirement(
        "a decoder with the head lm, or XLNet with it", can_complete_text, ("lm",)
    )
    overflow_modes: ClassVar[tuple[str, ...]] = OVERFLOW_MODES
    control_code: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_string_settings(control_code=self.control_code)
        if self.control_code is not None:
            self.check_control_code(self.control_code)

    def check_control_code(self, control_code: str) -> None:
        """Check that the tokenizer has the code; the codes of CTRL are tokens of its vocabulary."""
        tokenizer = self.tokenizer
        if control_code in tokenizer.languages:
            return
        if tokenizer.languages or self.model.family.name != "ctrl":
            codes = ", ".join(tokenizer.languages) or "none: this model has no control codes"
            raise ValueError(f"control_code is {control_code!r}, expected one of {codes}")
        if tokenizer.convert_tokens_to_ids(control_code) in (None, tokenizer.unk_token_id):
            raise ValueError(
                f"control_code is {control_code!r}, expected one of CTRL's, such as Links or Books"
            )

    @property
    def task_specific_key(self) -> str | None:
        return "text-generation"

    def derive_generation_settings(self, defaults: GenerationConfig) -> dict[str, Any]:
        """Ignore the folder's `max_length`, which counts the prompt: GPT-2's is only 50."""
        return {"max_length": None}

    @property
    def input_token_limit(self) -> int:
        return max(super().input_token_limit - 1, 1)  # leaves one position for a new token

    def prepare_texts(self, task_input: str, input_name: str) -> list[TextOrPair]:
        text = check_input_text(task_input, input_name)
        if self.control_code is not None and not self.tokenizer.languages:
            text = f"{self.control_code} {text}"
        return [text]

    def encode(self, texts: Sequence[TextOrPair]) -> list[Encoding]:
        """Return the encodings without the special tokens that a tokenizer adds at the end."""
        language = self.control_code if self.tokenizer.languages else None
        encodings = [
            encoding.strip_trailing_special_tokens()
            for encoding in self.tokenizer.encode_batch(texts, language=language)
        ]
        if self.control_code is None or language is not None:
            return encodings
        return [  # the code becomes a special token, which truncation keeps
            replace(encoding, sequence_ids=[None, *encoding.sequence_ids[1:]])
            for encoding in encodings
        ]

    @property
    def has_memory(self) -> bool:
        """Whether the model has segment recurrence with a memory of limited length."""
        assert isinstance(self.model.net, Network)
        recurrence = self.model.net.last_stack.spec.recurrence
        return recurrence is not None and bool(recurrence.memory_length)

    def split_encoding(self, encoding: Encoding, input_name: str) -> list[Encoding]:
        limit = self.input_token_limit
        max_new_tokens = self.generation_config.max_new_tokens or DEFAULT_MAX_NEW_TOKENS
        prompt_limit = limit + 1 - min(max_new_tokens, limit // 2)
        if self.overflow == "window" and len(encoding) > prompt_limit:
            if self.has_memory:
                return [encoding]
            return [encoding.truncate(prompt_limit, truncation_side="left")]
        if self.overflow == "truncate" and len(encoding) > limit:
            return [encoding.truncate(prompt_limit, truncation_side="left")]
        return super().split_encoding(encoding, input_name)

    def build_request(self, row: InputRow) -> dict[str, Any]:
        return {"prompt": row.encoding.input_ids}

    def decode_new_text(self, prompt_ids: list[int], token_ids: Sequence[int]) -> str:
        """Return the text that new tokens add to a prompt."""
        new_ids = self.filter_vocabulary_ids(token_ids)
        if not new_ids:
            return ""
        prompt_text = self.tokenizer.decode(prompt_ids, skip_special_tokens=True)
        text = self.tokenizer.decode([*prompt_ids, *new_ids], skip_special_tokens=True)
        if text.startswith(prompt_text):
            return text[len(prompt_text) :]
        return self.tokenizer.decode(new_ids, skip_special_tokens=True)

    def build_completion(
        self, prompt_text: str, prompt_ids: list[int], result: Result
    ) -> Completion:
        new_text = self.decode_new_text(prompt_ids, result.token_ids)
        tokens = self.convert_ids_to_tokens(result.token_ids)
        return Completion(
            prompt_text + new_text, new_text, result.score, tokens, result.finish_reason
        )

    def postprocess(
        self, task_input: str, rows: Sequence[InputRow], predictions: Sequence[list[Result]]
    ) -> Completion:
        prompt_ids = rows[0].encoding.input_ids
        candidates = tuple(
            self.build_completion(task_input, prompt_ids, result) for result in predictions[0]
        )
        return replace(candidates[0], candidates=candidates)

    def stream(self, prompt: str, /, **settings: Any) -> Iterator[str]:
        """Yield the new text piece by piece; the joined pieces are `new_text`.

        Only complete characters are yielded."""
        task = self.with_settings(settings)
        config = task.generation_config
        for name in ("num_return_sequences", "best_of"):
            value = getattr(config, name)
            if value is not None and value > 1:
                raise ValueError(f"{name} is {value}, expected 1 for a stream")
        ((row,),) = task.preprocess([prompt], ["text"])
        prompt_ids = row.encoding.input_ids
        streamed_ids: list[int] = []
        streamed_text = ""
        net = view_in_evaluation_mode(task.model.net)
        assert isinstance(net, Network)
        engine = task.create_engine(net)
        task.add_request(engine, row)
        while engine.has_unfinished_requests:
            outputs = engine.step()
            for output in outputs:
                streamed_ids += output.new_token_ids
                is_done = output.results is not None
                if output.results is None:
                    new_text = task.decode_new_text(prompt_ids, streamed_ids)
                    new_text = UNSTABLE_ENDING.sub("", new_text.rstrip(REPLACEMENT_CHARACTER))
                else:
                    best = task.sort_results(output.results)[0]
                    new_text = task.decode_new_text(prompt_ids, best.token_ids)
                is_longer = len(new_text) > len(streamed_text)
                if is_longer and (is_done or new_text.startswith(streamed_text)):
                    yield new_text[len(streamed_text) :]
                    streamed_text = new_text
