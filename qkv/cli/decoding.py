"""Generation options of the commands that generate text. Knows no task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cyclopts import Parameter

from qkv.cli.inputs import StrictInt


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """Generation settings; defaults come from the model's generation_config.json.

    Parameters
    ----------
    num_beams
        beam width of beam search; 1 is greedy search
    num_return_sequences
        number of results, best first
    length_penalty
        exponent of the length that divides a beam's score; above 0 favors longer results
    max_new_tokens
        maximum number of generated tokens
    """

    num_beams: StrictInt | None = None
    num_return_sequences: StrictInt | None = None
    length_penalty: float | None = None
    max_new_tokens: StrictInt | None = None

    @property
    def settings(self) -> dict[str, Any]:
        return drop_none(
            num_beams=self.num_beams,
            num_return_sequences=self.num_return_sequences,
            length_penalty=self.length_penalty,
            max_new_tokens=self.max_new_tokens,
        )


DEFAULT_GENERATION = GenerationOptions()


def drop_none(**settings: Any) -> dict[str, Any]:
    """Return the settings that are not None."""
    return {name: value for name, value in settings.items() if value is not None}
