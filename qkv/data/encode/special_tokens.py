"""Special tokens template: the special tokens that a tokenizer adds to texts, and their token types.
Does not depend on torch.

(CLS)  text  (SEP)               one text: two runs of special tokens
(CLS)  a  (SEP)  b  (SEP)        a pair: three runs
"""

from __future__ import annotations

from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkv.data.store.shards import TokenIdArray
from qkv.text import Tokenizer

TokenRun = tuple[int, ...]


class SpecialTokensTemplate(NamedTuple):
    """The special tokens before, between and after texts."""

    token_ids: tuple[TokenRun, ...] = ((), ())
    token_type_ids: tuple[TokenRun, ...] = ((), ())
    text_type_ids: TokenRun = (0,)  # the token type of each text

    @property
    def num_special_tokens(self) -> int:
        """The number of tokens that the template adds."""
        return sum(map(len, self.token_ids))

    def build_token_ids(self, *texts: TokenIdArray) -> NDArray[np.int64]:
        """Return the texts with their special tokens."""
        return self._interleave(self.token_ids, texts)

    def build_token_type_ids(self, *texts: TokenIdArray) -> NDArray[np.int64]:
        """Return the token types of build_token_ids."""
        return self._interleave(
            self.token_type_ids,
            [
                np.full(len(text), type_id)
                for text, type_id in zip(texts, self.text_type_ids, strict=True)
            ],
        )

    def extend_values(self, values: TokenIdArray, fill_value: int) -> NDArray[np.int64]:
        """Extend the values of a single text's tokens with `fill_value` for each special token."""
        return self._interleave([[fill_value] * len(run) for run in self.token_ids], [values])

    @staticmethod
    def _interleave(
        runs: tuple[TokenRun, ...] | list[list[int]],
        texts: tuple[TokenIdArray, ...] | list[TokenIdArray],
    ) -> NDArray[np.int64]:
        parts = chain.from_iterable(zip(runs, [*texts, ()], strict=True))
        return np.concatenate([np.asarray(part, np.int64) for part in parts])


def build_special_tokens_template(
    tokenizer: Tokenizer, num_texts: int = 1
) -> SpecialTokensTemplate:
    """Build the template that a tokenizer applies to one text, or to a pair."""
    (encoding,) = tokenizer.encode_batch([("a", "a") if num_texts == 2 else "a"])
    text_positions = [
        [i for i, sequence_id in enumerate(encoding.sequence_ids) if sequence_id == text]
        for text in range(num_texts)
    ]
    if not all(text_positions):
        raise ValueError(
            "the tokenizer has neither a token for the letter 'a' nor an unknown token; expected one"
        )
    text_bounds = chain.from_iterable((positions[0], positions[-1]) for positions in text_positions)
    bounds = [-1, *text_bounds, len(encoding)]
    runs = [range(a + 1, b) for a, b in list(pairwise(bounds))[::2]]
    return SpecialTokensTemplate(
        tuple(tuple(encoding.input_ids[i] for i in run) for run in runs),
        tuple(tuple(encoding.token_type_ids[i] for i in run) for run in runs),
        tuple(encoding.token_type_ids[positions[0]] for positions in text_positions),
    )
