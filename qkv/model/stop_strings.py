"""StopStringCriteria: ends a sequence with the token that completes a stop string.

The engine has no tokenizer, so `Model.generate` and tasks pass it this function. It ends sequences
like Hugging Face's class of this name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qkv.text import Tokenizer

NUM_CONTEXT_TOKENS = 8  # decoded before the tokens that may contain a stop string


@dataclass(frozen=True, kw_only=True)
class StopStringCriteria:
    """The stopping criteria of one sequence: its last token completes a stop string.

    A stop string may begin in the prompt, and may end inside the last token: "st", "opera" completes
    "stop". Special tokens such as `</s>` are treated as text."""

    tokenizer: Tokenizer
    stop_strings: tuple[str, ...]
    prompt_ids: Sequence[int] = ()

    def __call__(self, new_token_ids: list[int]) -> bool:
        """Return whether a sequence with these new tokens is finished."""
        text = self.decode_ending(new_token_ids)
        ends = [
            index + len(stop_string)
            for stop_string in self.stop_strings
            if (index := text.rfind(stop_string)) >= 0
        ]
        if not ends:
            return False
        # The last token may complete a character of several bytes.
        previous = self.decode_ending(new_token_ids[:-1], num_dropped=1)
        return max(ends) > common_prefix_length(previous, text)

    def decode_ending(self, new_token_ids: list[int], num_dropped: int = 0) -> str:
        """Return the text of the last tokens, at least as long as the longest stop string.

        A token has at least one byte. `num_dropped` tokens at the end are omitted."""
        longest = max(len(stop_string.encode()) for stop_string in self.stop_strings)
        count = longest + NUM_CONTEXT_TOKENS - num_dropped
        token_ids = [*self.prompt_ids[-count:], *new_token_ids][-count:]
        # An id that pads the vocabulary of the network has no text; no stop string spans it.
        starts = [i + 1 for i, token_id in enumerate(token_ids) if token_id >= len(self.tokenizer)]
        return self.tokenizer.decode(token_ids[max(starts, default=0) :], skip_special_tokens=False)


def common_prefix_length(first: str, second: str) -> int:
    """Return the length of the longest prefix of both texts."""
    pairs = zip(first, second, strict=False)
    shortest = min(len(first), len(second))
    return next((index for index, (a, b) in enumerate(pairs) if a != b), shortest)


def build_stopping_criteria(
    tokenizer: Tokenizer | None, stop_strings: tuple[str, ...], prompt_ids: Sequence[int]
) -> StopStringCriteria | None:
    """Return the stopping criteria of a sequence; None if there are no stop strings."""
    if not stop_strings:
        return None
    if tokenizer is None:
        raise ValueError(
            f"stop_strings is {stop_strings!r}, and the model has no tokenizer to find them with: "
            "set model.tokenizer"
        )
    return StopStringCriteria(tokenizer=tokenizer, stop_strings=stop_strings, prompt_ids=prompt_ids)
