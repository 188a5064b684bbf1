"""GenerationTask: the base class of tasks that generate text.

Defaults come from the model folder: generation_config.json, or config.json in older folders, and the
task's entry of `task_specific_params`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar

from qkv.decode import Engine, GenerationConfig, Result, read_generation_config
from qkv.decode.config import add_do_sample
from qkv.decode.config_file import override_settings, parse_field_value
from qkv.decode.generation import run_requests
from qkv.model.model import Model
from qkv.model.stop_strings import build_stopping_criteria
from qkv.nn.evaluation import view_in_evaluation_mode
from qkv.nn.network import Network
from qkv.tasks.base import InputRow, InputT, Task
from qkv.tasks.batching import catch_error
from qkv.tasks.checks import check_setting_names, check_string_settings
from qkv.tasks.write.constraints import (
    JsonSchema,
    TextGrammar,
    encode_force_words,
    join_stopping_criteria,
)
from qkv.tasks.write.decoding import load_assistant_model, select_engine
from qkv.validate import check_number

GENERATION_SETTINGS = tuple(field.name for field in fields(GenerationConfig))
GenerationT = TypeVar("GenerationT")


@dataclass(frozen=True, kw_only=True)
class GenerationTask(Task[InputT, GenerationT]):
    """A task that generates text.

    `regex`: regular expression of the text, as Rust's regex crate spells it; `json_schema`: a
    mapping, JSON text or a file (constraints.py). Spaces around the text are not part of it.
    `force_words`: words that must be generated, by beam search; of a list of alternatives, one.
    `assistant_model`: draft model of speculative decoding: a Model, a folder or a hub id.
    `seed`: seed of sampling.
    `generate_kwargs`: fields of GenerationConfig, which may also be passed as settings by name.
    A sampling setting (temperature, top_k, top_p, min_p, typical_p, epsilon_cutoff, eta_cutoff,
    best_of) implies `do_sample=True`, unless `do_sample` is given or `penalty_alpha` selects
    contrastive search. `num_return_sequences` without `num_beams` raises the number of beams."""

    regex: str | None = None
    json_schema: JsonSchema | None = None
    force_words: Sequence[str | Sequence[str]] = ()
    assistant_model: Model | str | Path | None = None
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
        check_string_settings(regex=self.regex)
        if self.assistant_model is not None:
            object.__setattr__(
                self, "assistant_model", load_assistant_model(self.model, self.assistant_model)
            )
        elif "num_assistant_tokens" in self.generate_kwargs:
            raise ValueError(
                "num_assistant_tokens has no effect without assistant_model: remove it, or set that"
            )
        self.generation_config  # noqa: B018  raises for wrong values
        if self.grammar is not None:
            self.grammar.check()

    def with_settings(self, settings: dict[str, Any]) -> Self:
        field_names = [field.name for field in fields(self) if field.name != "model"]
        check_setting_names(settings, [*field_names, *GENERATION_SETTINGS])
        changes = {name: value for name, value in settings.items() if name in field_names}
        generate_kwargs = {
            name: value for name, value in settings.items() if name not in field_names
        }
        if generate_kwargs:
            base = {**self.generate_kwargs, **changes.get("generate_kwargs", {})}
            changes["generate_kwargs"] = override_settings(base, generate_kwargs)
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
        derived = self.derive_generation_settings(defaults)
        do_sample = settings.get("do_sample", derived.get("do_sample", defaults.do_sample))
        if self.force_words:
            settings["force_words_ids"] = encode_force_words(tokenizer, self.force_words)
            settings = {"do_sample": False, "num_beams": max(defaults.num_beams, 4)} | settings
        elif self.assistant_model is not None:
            settings = {"num_beams": 1} | settings
        elif (
            isinstance(num_return_sequences, int) and "num_beams" not in settings and not do_sample
        ):
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
        return read_generation_config(
            model.generation_config,
            model.config,
            self.task_specific_key,
            settings={**derived, **settings},
        )

    def derive_generation_settings(self, defaults: GenerationConfig) -> dict[str, Any]:
        """Return generation settings that other settings of the task determine."""
        return {}

    @property
    def sequences_per_row(self) -> int:
        return max(self.generation_config.num_beams, self.generation_config.num_samples)

    @abstractmethod
    def build_request(self, row: InputRow) -> dict[str, Any]:
        """Return the arguments of `Engine.add_request` for a row, such as prompt or source."""

    @cached_property
    def grammar(self) -> TextGrammar | None:
        """The grammar of the text, if there is one."""
        if self.regex is None and self.json_schema is None:
            return None
        if self.regex is not None and self.json_schema is not None:
            raise ValueError("regex and json_schema are both set, expected one of them")
        assert isinstance(self.model.net, Network)
        config = self.generation_config
        return TextGrammar(
            tokenizer=self.tokenizer,
            vocab_size=self.model.net.last_stack.spec.embedding.vocab_size,
            eos_token_ids=tuple(self.filter_vocabulary_ids(config.eos_token_id)),
            ignored_token_id=config.forced_bos_token_id,
            regex=self.regex,
            json_schema=self.json_schema,
        )

    def create_engine(self, net: Network) -> Engine:
        """Return an engine of a network, with the draft model if there is one."""
        assistant = self.assistant_model
        assert assistant is None or isinstance(assistant, Model)
        assistant_net = None if assistant is None else view_in_evaluation_mode(assistant.net)
        assert assistant_net is None or isinstance(assistant_net, Network)
        return Engine(net, assistant_model=assistant_net)

    def add_request(self, engine: Engine, row: InputRow) -> int:
        """Add the request of a row to an engine, and return its id."""
        config = self.generation_config
        request = self.build_request(row)
        start_ids = [] if config.decoder_start_token_id is None else [config.decoder_start_token_id]
        criteria = build_stopping_criteria(
            self.tokenizer, config.stop_strings, request.get("prompt", start_ids)
        )
        return engine.add_request(
            **request,
            generation_config=config,
            seed=self.seed,
            prefix_allowed_tokens_fn=self.grammar,
            stopping_criteria=join_stopping_criteria(criteria, self.grammar),
        )

    def predict(self, rows: Sequence[InputRow]) -> list[list[Result] | Exception]:
        """Return the results of every row, or its error.

        All rows use the same seed, so that no result depends on its position in the batch."""
        assert isinstance(self.model.net, Network)
        num_rows = len(rows) * self.sequences_per_row
        with select_engine(self.model.net, num_rows, self.create_engine) as engine:
            calls = [partial(self.add_request, engine, row) for row in rows]
            results = run_requests(engine, calls, return_exceptions=True)
        return [catch_error(partial(self.sort_results, row_results)) for row_results in results]

    def sort_results(self, results: list[Result]) -> list[Result]:
        """Return the results sorted by score, or raise their error; samples are not sorted yet."""
        for result in results:
            if result.error is not None:
                raise result.error
        if not results:
            length_penalty = self.generation_config.length_penalty
            if self.force_words:
                raise ValueError(
                    f"no result contains all of force_words {[*self.force_words]!r}; "
                    "set max_new_tokens or num_beams higher, or no_repeat_ngram_size to 0"
                )
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
