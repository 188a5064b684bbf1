"""Generation options of the commands that generate text, including `eval`. Does not depend on tasks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from cyclopts import Parameter

from qkv.cli.flags import PatternText, StrictInt, StringList


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Search and sampling; defaults come from the model's generation_config.json.

    Parameters
    ----------
    num_beams
        beam width of beam search; 1 is greedy search
    length_penalty
        exponent of the length that divides the score of a beam; above 0 favors longer results
    max_new_tokens
        maximum number of generated tokens
    do_sample
        sample instead of greedy or beam search
    temperature
        sampling temperature; implies --do-sample
    top_p
        nucleus sampling threshold; implies --do-sample
    seed
        random seed of sampling
    """

    num_beams: StrictInt | None = None
    length_penalty: float | None = None
    max_new_tokens: StrictInt | None = None
    do_sample: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: StrictInt | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The options that were given, by the names of the library."""
        if self.temperature == 0:
            raise ValueError(
                "--temperature 0: expected above 0; use --no-do-sample for greedy search"
            )
        return {name: value for name, value in asdict(self).items() if value not in (None, ())}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class GenerationOptions(SearchOptions):
    """Generation settings; defaults come from the model's generation_config.json.

    Parameters
    ----------
    num_return_sequences
        number of results, best first
    stop_strings
        end a result with the first of these strings
    context_overflow
        when all positions of the model are used: slide (continue with the last tokens) or stop
    regex
        regular expression that the result matches
    json_schema
        JSON schema of the result: a file, or JSON text
    force_words
        words that the result contains, by beam search
    assistant_model
        draft model of speculative decoding: a folder or hub id of a model with the same tokenizer
    """

    num_return_sequences: StrictInt | None = None
    stop_strings: StringList = ()
    context_overflow: Literal["slide", "stop"] | None = None
    regex: PatternText | None = None
    json_schema: str | None = None
    force_words: StringList = ()
    assistant_model: str | None = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TopKOption(SearchOptions):
    """--top-k of commands in which it is not the number of results.

    Parameters
    ----------
    top_k
        sample from the k most probable tokens; implies --do-sample
    """

    top_k: StrictInt | None = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EvalOptions(TopKOption):
    """Options of `eval`, whose defaults do not depend on the model."""

    num_beams: StrictInt = 5
    length_penalty: float = 1.0
    max_new_tokens: StrictInt = 200


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TextGenerationOptions(GenerationOptions, TopKOption):
    """Generation settings with --top-k."""


DEFAULT_EVAL = EvalOptions()
DEFAULT_GENERATION = GenerationOptions()
DEFAULT_TEXT_GENERATION = TextGenerationOptions()
