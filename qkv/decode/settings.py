"""GenerationSettings: the fields of GenerationConfig as typed keywords of `Model.generate` and tasks.

A field that holds a tuple also accepts what Hugging Face's `generate` accepts: a list, None, and for
some a single value. `parse_field_value` converts them; `tests/decode/test_settings.py` compares the
names and types with those of GenerationConfig."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, TypedDict

Phrase: TypeAlias = Sequence[int]


class GenerationSettings(TypedDict, total=False):
    """Generation settings by name; GenerationConfig documents them."""

    # Returned sequences.
    num_return_sequences: int
    best_of: int | None
    # Beam search.
    num_beams: int
    length_penalty: float
    early_stopping: bool | Literal["never"]
    num_beam_groups: int
    diversity_penalty: float
    force_words_ids: Sequence[Phrase | Sequence[Phrase]] | None
    # Sampling.
    do_sample: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    epsilon_cutoff: float
    eta_cutoff: float
    # Contrastive search.
    penalty_alpha: float
    # Lengths and the end.
    min_length: int
    max_length: int | None
    min_new_tokens: int | None
    max_new_tokens: int | None
    context_overflow: Literal["slide", "stop"]
    exponential_decay_length_penalty: tuple[int, float] | None
    stop_strings: str | Sequence[str] | None
    # Logits processors.
    repetition_penalty: float
    no_repeat_ngram_size: int
    encoder_repetition_penalty: float
    encoder_no_repeat_ngram_size: int
    bad_words_ids: Sequence[Phrase] | None
    sequence_bias: Mapping[tuple[int, ...], float] | Sequence[tuple[Phrase, float]] | None
    suppress_tokens: Phrase | None
    begin_suppress_tokens: Phrase | None
    forced_bos_token_id: int | None
    forced_eos_token_id: int | Phrase | None
    remove_invalid_values: bool
    renormalize_logits: bool
    guidance_scale: float
    # Special tokens.
    decoder_start_token_id: int | None
    eos_token_id: int | Phrase | None
    pad_token_id: int | None
    bos_token_id: int | None
    # Speculative decoding.
    num_assistant_tokens: int
