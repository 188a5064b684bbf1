"""GenerationTask and Seq2SeqTask: base classes of tasks that generate text.

Defaults come from the model folder: generation_config.json, or config.json in older folders, and the
task's entry of `task_specific_params`."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import accumulate
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeVar

from qkv.data.encode.overflow import OVERFLOW_MODES
from qkv.decode import Engine, GenerationConfig, Result, read_generation_config
from qkv.decode.config import add_do_sample
from qkv.decode.config_file import parse_field_value
from qkv.model.stop_strings import build_stopping_criteria
from qkv.nn.transformer import Transformer
from qkv.spec import Spec
from qkv.tasks.alignment import Alignment, locate_source_tokens, locate_target_tokens
from qkv.tasks.base import DEFAULT_MAX_INPUT_LENGTH, InputRow, InputT, Task, TextOrPair
from qkv.tasks.checks import check_input_text, check_setting_names, check_string_settings
from qkv.tasks.chunking import chunk_text, find_chunk_starts
from qkv.tasks.cross_attention import (
    AttentionResult,
    check_alignment_layer,
    compute_cross_attention,
)
from qkv.tasks.requirements import SEQ2SEQ_REQUIREMENT, TaskRequirement
from qkv.tasks.write.decoding import select_engine
from qkv.validate import check_number

GENERATION_SETTINGS = tuple(field.name for field in fields(GenerationConfig))
GenerationT = TypeVar("GenerationT")


@dataclass(frozen=True)
class GeneratedText:
    """A generated text, its score and its tokens.

    `score`: log-probability divided by length to the power of `length_penalty`.
    `candidates`: the best texts, this one first.
    `alignments`: with `alignment_layer`, one alignment per segment of the source."""

    text: str
    score: float
    tokens: tuple[str, ...]
    candidates: tuple[GeneratedText, ...] = ()
    alignments: tuple[Alignment, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GenerationTask(Task[InputT, GenerationT]):
    """A task that generates text.

    `seed`: seed of sampling.
    `generate_kwargs`: fields of GenerationConfig, which may also be passed as settings by name.
    A sampling setting (temperature, top_k, top_p, min_p, typical_p, epsilon_cutoff, eta_cutoff,
    best_of) implies `do_sample=True`, unless `do_sample` is given or `penalty_alpha` selects
    contrastive search. `num_return_sequences` without `num_beams` raises the number of beams."""

    seed: int = 0
    generate_kwargs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("seed", self.seed, integer=True, at_least=0, less_than=2**32)
        if not isinstance(self.generate_kwargs, Mapping):
            raise ValueError(
                f"generate_kwargs is {self.generate_kwargs!r}, expected settings by name"
            )
        check_setting_names(self.generate_kwargs, GENERATION_SETTINGS)
        self.generation_config  # noqa: B018  raises for wrong values

    def with_settings(self, settings: dict[str, Any]) -> Self:
        field_names = [field.name for field in fields(self) if field.name != "model"]
        check_setting_names(settings, [*field_names, *GENERATION_SETTINGS])
        changes = {name: value for name, value in settings.items() if name in field_names}
        generate_kwargs = {
            name: value for name, value in settings.items() if name not in field_names
        }
        if generate_kwargs:
            changes["generate_kwargs"] = {
                **self.generate_kwargs,
                **changes.get("generate_kwargs", {}),
                **generate_kwargs,
            }
        return replace(self, **changes) if changes else self

    @property
    def task_specific_key(self) -> str | None:
        """The key of this task in `task_specific_params` of config.json."""
        return None

    @property
    def task_specific_params(self) -> Mapping[str, Any]:
        """`task_specific_params` of config.json."""
        params = self.model.config.get("task_specific_params")
        return params if isinstance(params, dict) else {}

    @cached_property
    def generation_config(self) -> GenerationConfig:
        """The generation config of the folder, overridden by the settings of the task."""
        model = self.model
        tokenizer = self.tokenizer
        settings = add_do_sample(
            {name: parse_field_value(name, value) for name, value in self.generate_kwargs.items()}
        )
        defaults = read_generation_config(
            model.generation_config, model.config, self.task_specific_key
        )
        num_return_sequences = settings.get("num_return_sequences")
        do_sample = settings.get("do_sample", defaults.do_sample)
        if isinstance(num_return_sequences, int) and "num_beams" not in settings and not do_sample:
            settings["num_beams"] = max(defaults.num_beams, num_return_sequences)
        end_ids = [
            token_id
            for token_id in (tokenizer.eos_token_id, tokenizer.sep_token_id)
            if token_id is not None
        ]
        if not defaults.eos_token_id and end_ids:
            settings.setdefault("eos_token_id", (end_ids[0],))
        start_id = model.args.get("decoder_start_token_id")
        if defaults.decoder_start_token_id is None and start_id is not None:
            settings.setdefault("decoder_start_token_id", start_id)
        for total, new in (("max_length", "max_new_tokens"), ("min_length", "min_new_tokens")):
            if settings.get(total) is not None:
                settings.setdefault(
                    new, None
                )  # otherwise, the folder's value would take precedence
        return replace(defaults, **{**self.derive_generation_settings(defaults), **settings})

    def derive_generation_settings(self, defaults: GenerationConfig) -> dict[str, Any]:
        """Return generation settings that other settings of the task determine."""
        return {}

    @property
    def sequences_per_row(self) -> int:
        return max(self.generation_config.num_beams, self.generation_config.num_samples)

    @abstractmethod
    def build_request(self, row: InputRow) -> dict[str, Any]:
        """Return the arguments of `Engine.add_request` for a row, such as prompt or source."""

    def add_request(self, engine: Engine, row: InputRow) -> int:
        """Add the request of a row to an engine, and return its id."""
        config = self.generation_config
        request = self.build_request(row)
        start_ids = [] if config.decoder_start_token_id is None else [config.decoder_start_token_id]
        criteria = build_stopping_criteria(
            self.tokenizer, config.stop_strings, request.get("prompt", start_ids)
        )
        return engine.add_request(
            **request, generation_config=config, seed=self.seed, stopping_criteria=criteria
        )

    def predict(self, rows: Sequence[InputRow]) -> list[list[Result]]:
        """Return the results of every row.

        All rows use the same seed, so that no result depends on its position in the batch."""
        assert isinstance(self.model.net, Transformer)
        results: dict[int, list[Result]] = {}
        with select_engine(self.model.net, len(rows) * self.sequences_per_row) as engine:
            request_ids = [self.add_request(engine, row) for row in rows]
            while engine.has_unfinished_requests:
                for output in engine.step():
                    if output.results is not None:
                        results[output.request_id] = output.results
        return [self.sort_results(results[request_id]) for request_id in request_ids]

    def sort_results(self, results: list[Result]) -> list[Result]:
        """Return the results sorted by score; sampled results are not sorted yet."""
        if not results:
            length_penalty = self.generation_config.length_penalty
            raise ValueError(
                f"no result with length_penalty {length_penalty:g}; "
                "set a length_penalty closer to 0, or fewer bad_words_ids"
            )
        return sorted(results, key=lambda result: result.score, reverse=True)

    def filter_vocabulary_ids(self, token_ids: Sequence[int]) -> list[int]:
        """Return the ids without those that only pad the vocabulary of the network."""
        return [token_id for token_id in token_ids if token_id < len(self.tokenizer)]

    def convert_ids_to_tokens(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        vocabulary_ids = self.filter_vocabulary_ids(token_ids)
        return tuple(self.tokenizer.convert_ids_to_tokens(vocabulary_ids))


@dataclass(frozen=True, kw_only=True)
class Seq2SeqTask(GenerationTask[str, GeneratedText]):
    """A task of an encoder-decoder that maps a text to a text.

    `prefix`: text before every source, such as T5's task names, None: that of the folder.
    `alignment_layer`: decoder layer whose cross-attention gives the alignments: an index,
    "penultimate", or "mean" for all layers. It needs one additional forward pass."""

    requirement: ClassVar[TaskRequirement] = SEQ2SEQ_REQUIREMENT
    overflow_modes: ClassVar[tuple[str, ...]] = OVERFLOW_MODES
    prefix: str | None = None
    alignment_layer: str | int | None = None

    def __post_init__(self) -> None:
        check_string_settings(prefix=self.prefix)
        super().__post_init__()
        assert isinstance(self.model.net, Transformer)
        check_alignment_layer(self.alignment_layer, len(self.model.net.last_stack.layer_order))
        if self.alignment_layer is not None and self.generation_config.context_overflow == "slide":
            raise ValueError(
                "context_overflow is 'slide' with alignment_layer, which needs one context: "
                "set it to 'stop', or remove one of the two"
            )

    def derive_generation_settings(self, defaults: GenerationConfig) -> dict[str, Any]:
        """Stop at the last position if the cross-attention of the whole result is needed."""
        return {} if self.alignment_layer is None else {"context_overflow": "stop"}

    @property
    def input_token_limit(self) -> int:
        """Maximum number of source tokens.

        With relative positions only, as in T5, the limit of the tokenizer applies only if longer texts
        are truncated or split."""
        spec = self.model.spec
        assert isinstance(spec, Spec)
        assert spec.encoder is not None
        if self.overflow != "error" or spec.encoder.embedding.positions is not None:
            return super().input_token_limit
        return self.max_input_length or DEFAULT_MAX_INPUT_LENGTH

    def build_request(self, row: InputRow) -> dict[str, Any]:
        return {"source": row.encoding.input_ids}

    def chunk_long_text(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield the text with overflow "window" in chunks that fit, each after its whitespace."""
        if self.overflow == "window":
            return chunk_text(
                text,
                self.input_token_limit,
                lambda part: self.encode([part])[0],
                self.source_prefix,
            )
        return iter([("", text)])

    @property
    def source_prefix(self) -> str:
        """The prefix of the task, else that of the folder."""
        if self.prefix is not None:
            return self.prefix
        params = self.task_specific_params.get(self.task_specific_key or "")
        prefix = params.get("prefix") if isinstance(params, dict) else None
        return str(prefix if prefix is not None else self.model.config.get("prefix") or "")

    def predict(self, rows: Sequence[InputRow]) -> list[list[Result]]:
        row_results = super().predict(rows)
        if self.alignment_layer is None:
            return row_results
        net = self.model.net
        assert isinstance(net, Transformer)
        flat_results = [result for results in row_results for result in results]
        sources = [
            row.encoding.input_ids
            for row, results in zip(rows, row_results, strict=True)
            for _ in results
        ]
        attention_results = iter(
            compute_cross_attention(
                net, sources, flat_results, self.generation_config, self.alignment_layer
            )
        )
        return [[next(attention_results) for _ in results] for results in row_results]

    def build_output(
        self, result: Result, row: InputRow | None = None, source_text: str = "", offset: int = 0
    ) -> GeneratedText:
        """Return the text of a result.

        With cross-attention weights, it has the alignment with the row, whose text starts at `offset`
        in the user's text."""
        token_ids = self.filter_vocabulary_ids(result.token_ids)
        text = self.tokenizer.decode(token_ids, skip_special_tokens=True).strip()
        output = GeneratedText(text, result.score, self.convert_ids_to_tokens(token_ids))
        if row is None or not isinstance(result, AttentionResult):
            return output
        source = locate_source_tokens(
            self.tokenizer, row.encoding, source_text, offset, self.source_prefix
        )
        target = locate_target_tokens(self.tokenizer, token_ids, text)
        weights = tuple(
            tuple(token_weights[: len(source)])
            for token_id, token_weights in zip(
                result.token_ids, result.cross_attention_weights, strict=True
            )
            if self.filter_vocabulary_ids([token_id])
        )
        return replace(output, alignments=(Alignment(source, target, weights),))

    def segment_text(self, task_input: str) -> Iterator[tuple[str, str]]:
        """Yield the segments that are processed separately, each after its whitespace."""
        return self.chunk_long_text(task_input)

    def prepare_texts(self, task_input: str, input_name: str) -> list[TextOrPair]:
        text = check_input_text(task_input, input_name)
        return [self.source_prefix + body for _, body in self.segment_text(text) if body]

    def postprocess(
        self, task_input: str, rows: Sequence[InputRow], predictions: Sequence[list[Result]]
    ) -> GeneratedText:
        segments = [*self.segment_text(task_input)]
        source_offset = self.get_source_offset(task_input)
        segment_outputs = [
            [
                self.build_output(result, row, task_input, start + source_offset)
                for result in results
            ]
            for row, start, results in zip(
                rows, find_chunk_starts(segments), predictions, strict=True
            )
        ]
        candidates = tuple(
            concatenate_outputs(outputs, self.join_outputs(segments, outputs))
            for outputs in zip(*segment_outputs, strict=False)
        )
        return replace(candidates[0], candidates=candidates)

    def get_source_offset(self, task_input: str) -> int:
        """Return the number of characters before the source, such as a language code."""
        return 0

    @abstractmethod
    def join_outputs(
        self, segments: Sequence[tuple[str, str]], outputs: Sequence[GeneratedText]
    ) -> list[str]:
        """Return the outputs and the whitespace between them, which concatenated form the text."""


def concatenate_outputs(outputs: Sequence[GeneratedText], texts: Sequence[str]) -> GeneratedText:
    """Concatenate the outputs of segments; their scores are added."""
    tokens = tuple(token for output in outputs for token in output.tokens)
    ends = accumulate(map(len, texts))
    alignments = tuple(
        alignment.shift_target(end - len(output.text))
        for output, end in zip(outputs, ends, strict=False)
        for alignment in output.alignments
    )
    score = math.fsum(output.score for output in outputs)
    return GeneratedText("".join(texts), score, tokens, alignments=alignments)
