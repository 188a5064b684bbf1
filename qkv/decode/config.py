"""GenerationConfig: the settings of decoding, validated on creation. Does not depend on networks.

The fields are the keys of generation_config.json, `best_of` and `context_overflow`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

MAX_COUNT = 1_000  # upper limit of beams, returned sequences and draft tokens
MAX_VOCAB_SIZE = 1 << 28  # upper limit of token ids and lengths
MAX_NUMBER = 1e6  # upper limit of penalties and of the temperature
TokenIds = tuple[int, ...]
SAMPLING_SETTINGS = (  # in tasks and commands, any of them implies do_sample=True
    "temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff",
    "best_of",
)  # fmt: skip
LENGTH_LIMITS = (("min_length", "max_length"), ("min_new_tokens", "max_new_tokens"))


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """Decoding settings. A field at its default value has no effect.

    A value that has no effect with the other fields, such as a temperature without do_sample, is an
    error; `read_generation_config` ignores such values of a file."""

    # Returned sequences.
    num_return_sequences: int = 1  # from beam search or from sampling
    best_of: int | None = None  # sample this many, return the num_return_sequences of highest score
    # Beam search.
    num_beams: int = 1
    length_penalty: float = 1.0  # score = sum of log-probabilities / length ** length_penalty
    # When num_beams hypotheses are finished: True stops, False stops if no running beam is likely
    # to be better, "never" only if none can be.
    early_stopping: bool | Literal["never"] = False
    num_beam_groups: int = 1  # diverse beam search (Vijayakumar et al. 2016)
    diversity_penalty: float = 0.0  # subtracted per beam of earlier groups with the same token
    force_words_ids: tuple[tuple[TokenIds, ...], ...] = ()  # one phrase of each must be generated
    # Sampling.
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0  # number of candidate tokens; 0: all
    top_p: float = 1.0  # nucleus sampling threshold
    min_p: float = 0.0  # minimum probability relative to the most likely token
    typical_p: float = 1.0  # locally typical sampling threshold
    epsilon_cutoff: float = 0.0  # minimum probability
    eta_cutoff: float = 0.0  # minimum probability that depends on the entropy
    # Contrastive search with top_k candidates.
    penalty_alpha: float = 0.0  # degeneration penalty
    # Lengths in tokens: of prompt and new tokens, or of the new tokens only, which take precedence.
    min_length: int = 0
    max_length: int | None = None
    min_new_tokens: int | None = None
    max_new_tokens: int | None = None
    # When all positions of the model are used: continue with the last tokens, or stop.
    context_overflow: Literal["slide", "stop"] = "slide"
    exponential_decay_length_penalty: tuple[int, float] | None = None  # start, factor of EOS
    # Applied by tasks and Model.generate, which have a tokenizer. A sequence ends with the token
    # that completes a stop string.
    stop_strings: tuple[str, ...] = ()
    # Logits processors.
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0  # no n-gram of this size occurs twice
    encoder_repetition_penalty: float = 1.0
    encoder_no_repeat_ngram_size: int = 0  # no n-gram of this size is copied from the source
    bad_words_ids: tuple[TokenIds, ...] = ()
    sequence_bias: tuple[tuple[TokenIds, float], ...] = ()
    suppress_tokens: TokenIds = ()
    begin_suppress_tokens: TokenIds = ()  # not generated as the first new token
    forced_bos_token_id: int | None = None  # the second token of a sequence
    forced_eos_token_id: TokenIds = ()  # one of these is the token at the maximum length
    remove_invalid_values: bool = False  # replace NaN and infinite logits
    renormalize_logits: bool = False
    # Classifier-free guidance: above 1, the scores are those of the prompt against a negative prompt.
    guidance_scale: float = 1.0
    # Special tokens.
    decoder_start_token_id: int | None = None  # of an encoder-decoder; None: that of the model
    eos_token_id: TokenIds = ()
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    # Speculative decoding.
    num_assistant_tokens: int = 5  # draft tokens per step

    def __post_init__(self) -> None:
        for field in fields(self):
            check_generation_field(field.name, getattr(self, field.name))
        check_field_combinations(self)

    @property
    def num_samples(self) -> int:
        """Number of sequences sampled for a prompt; 1 without sampling and for beam search."""
        if not self.do_sample or self.num_beams > 1:
            return 1
        return max(self.num_return_sequences, self.best_of or 1)

    @property
    def all_token_ids(self) -> Iterator[int]:
        """Token ids of all fields that must be in the vocabulary; padding and BOS need not be."""
        for token_id in (self.decoder_start_token_id, self.forced_bos_token_id):
            if token_id is not None:
                yield token_id
        yield from self.suppress_tokens
        yield from self.begin_suppress_tokens
        yield from self.forced_eos_token_id
        yield from self.eos_token_id
        for phrase in self.bad_words_ids:
            yield from phrase
        for phrase, _ in self.sequence_bias:
            yield from phrase
        for phrases in self.force_words_ids:
            for phrase in phrases:
                yield from phrase


GENERATION_DEFAULTS: dict[str, Any] = {
    field.name: field.default for field in fields(GenerationConfig)
}
INTEGER_RANGES = {
    "num_return_sequences": (1, MAX_COUNT),
    "best_of": (1, MAX_COUNT),
    "num_beams": (1, MAX_COUNT),
    "num_beam_groups": (1, MAX_COUNT),
    "top_k": (0, MAX_VOCAB_SIZE),
    "min_length": (0, MAX_VOCAB_SIZE),
    "max_length": (1, MAX_VOCAB_SIZE),
    "min_new_tokens": (0, MAX_VOCAB_SIZE),
    "max_new_tokens": (1, MAX_VOCAB_SIZE),
    "no_repeat_ngram_size": (0, MAX_VOCAB_SIZE),
    "encoder_no_repeat_ngram_size": (0, MAX_VOCAB_SIZE),
    "forced_bos_token_id": (0, MAX_VOCAB_SIZE),
    "decoder_start_token_id": (0, MAX_VOCAB_SIZE),
    "pad_token_id": (0, MAX_VOCAB_SIZE),
    "bos_token_id": (0, MAX_VOCAB_SIZE),
    "num_assistant_tokens": (1, MAX_COUNT),
}
REQUIRED_INTEGER_FIELDS = {  # not None
    "num_return_sequences",
    "num_beams",
    "num_beam_groups",
    "top_k",
    "min_length",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "num_assistant_tokens",
}
NUMBER_RANGES = {
    "length_penalty": (-10.0, 10.0),
    "diversity_penalty": (0.0, MAX_NUMBER),
    "temperature": (1e-6, MAX_NUMBER),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "typical_p": (1e-6, 1.0),
    "epsilon_cutoff": (0.0, 1.0),
    "eta_cutoff": (0.0, 1.0),
    "penalty_alpha": (0.0, 1.0),
    "repetition_penalty": (1e-6, MAX_NUMBER),
    "encoder_repetition_penalty": (1e-6, MAX_NUMBER),
    "guidance_scale": (0.0, MAX_NUMBER),
}
BOOLEAN_FIELDS = ("do_sample", "remove_invalid_values", "renormalize_logits")
TOKEN_ID_FIELDS = (
    "suppress_tokens",
    "begin_suppress_tokens",
    "forced_eos_token_id",
    "eos_token_id",
)


def add_do_sample(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings with do_sample=True if a sampling setting implies it.

    It does not if `do_sample` is given, or if `penalty_alpha` selects contrastive search."""
    is_implied = any(name in settings for name in SAMPLING_SETTINGS)
    return (
        {"do_sample": True, **settings}
        if is_implied and not settings.get("penalty_alpha")
        else settings
    )


def check_generation_field(name: str, value: Any) -> None:
    """Raise an error if the value of one field is invalid by itself."""
    expected = find_field_problem(name, value)
    if expected:
        raise ValueError(f"{name} is {format_setting_value(value)}, expected {expected}")


def find_field_problem(name: str, value: Any) -> str | None:
    """Return what was expected of a field, or None if its value is valid."""
    if name in INTEGER_RANGES:
        low, high = INTEGER_RANGES[name]
        if value is None and name not in REQUIRED_INTEGER_FIELDS:
            return None
        is_valid = _is_integer(value) and low <= value <= high
        return None if is_valid else f"an integer from {low:,} to {high:,}"
    if name in NUMBER_RANGES:
        minimum, maximum = NUMBER_RANGES[name]
        is_valid = _is_finite_number(value) and minimum <= value <= maximum
        return None if is_valid else f"a number from {minimum:,g} to {maximum:,g}"
    if name in BOOLEAN_FIELDS:
        return None if isinstance(value, bool) else "true or false"
    if name == "early_stopping":
        return None if isinstance(value, bool) or value == "never" else 'true, false or "never"'
    if name == "context_overflow":
        return None if value in ("slide", "stop") else '"slide" or "stop"'
    if name in TOKEN_ID_FIELDS:
        return (
            None if _is_token_id_tuple(value, allow_empty=True) else "token ids (integers from 0)"
        )
    if name == "bad_words_ids":
        is_valid = _is_tuple_of(value, _is_token_id_tuple)
        return None if is_valid else "phrases of one token id or more"
    if name == "stop_strings":
        is_valid = _is_tuple_of(value, _is_nonempty_string)
        return None if is_valid else "strings of one character or more"
    if name == "force_words_ids":
        is_valid = _is_tuple_of(value, _is_phrase_choice)
        return None if is_valid else "phrases of one token id or more, or lists of alternatives"
    if name == "sequence_bias":
        return None if _is_tuple_of(value, _is_phrase_bias) else "pairs of a phrase and a number"
    assert name == "exponential_decay_length_penalty"
    is_valid = value is None or _is_length_decay(value)
    return None if is_valid else "a pair of a start from 0 and a factor above 0"


def check_field_combinations(config: GenerationConfig) -> None:
    """Raise an error if fields that are valid by themselves contradict each other."""
    if config.num_beams % config.num_beam_groups:
        raise ValueError(
            f"num_beam_groups is {config.num_beam_groups}, expected a divisor of num_beams={config.num_beams}"
        )
    if config.diversity_penalty and config.num_beam_groups == 1:
        raise ValueError(
            f"diversity_penalty is {config.diversity_penalty:g}, expected 0 with one beam group: "
            "set num_beam_groups to 2 or more"
        )
    if config.num_beam_groups > 1 and (config.do_sample or config.force_words_ids):
        raise ValueError(
            f"num_beam_groups is {config.num_beam_groups}, expected 1 with do_sample or force_words_ids"
        )
    if config.force_words_ids and (config.num_beams == 1 or config.do_sample):
        raise ValueError(
            "force_words_ids needs beam search without do_sample: set num_beams to 2 or more"
        )
    for name, expected in find_ineffective_fields(vars(config)).items():
        value = format_setting_value(getattr(config, name))
        raise ValueError(f"{name} is {value}, expected {expected}")
    _check_num_return_sequences(config)
    if config.best_of is not None and (config.num_beams > 1 or not config.do_sample):
        raise ValueError(
            f"best_of is {config.best_of}, expected do_sample=True and num_beams=1 with it"
        )
    if config.penalty_alpha and (config.num_beams > 1 or config.do_sample or config.top_k < 2):
        raise ValueError(
            f"penalty_alpha is {config.penalty_alpha:g}, expected top_k of 2 or more with it, "
            "without do_sample and num_beams"
        )
    forced_bos = () if config.forced_bos_token_id is None else (config.forced_bos_token_id,)
    forced = {"forced_bos_token_id": forced_bos, "forced_eos_token_id": config.forced_eos_token_id}
    for name, token_ids in forced.items():
        if token_ids and {*token_ids} <= {*config.suppress_tokens}:
            raise ValueError(
                f"{name} is {format_setting_value(token_ids)}, and suppress_tokens forbids it: remove one"
            )


def find_ineffective_fields(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields that contradict the others or have no effect with them, and what is expected.

    `values` has a valid value for every field."""
    expected: dict[str, str] = {}
    if not values["do_sample"]:
        # top_k is also the number of candidates of contrastive search
        other_uses = {"best_of", *(["top_k"] if values["penalty_alpha"] else [])}
        for name in SAMPLING_SETTINGS:
            if name not in other_uses and values[name] != GENERATION_DEFAULTS[name]:
                expected[name] = (
                    f"{GENERATION_DEFAULTS[name]!r} without sampling: remove it, or set do_sample=True"
                )
    if values["num_beams"] == 1 and values["early_stopping"]:
        expected["early_stopping"] = (
            "False without beam search: remove it, or set num_beams to 2 or more"
        )
    if values["guidance_scale"] != 1 and (values["num_beams"] > 1 or values["penalty_alpha"]):
        expected["guidance_scale"] = (
            "1 with num_beams or penalty_alpha: remove it, or use greedy search or sampling"
        )
    for minimum, maximum in LENGTH_LIMITS:
        if values[maximum] is not None and (values[minimum] or 0) > values[maximum]:
            expected[minimum] = f"at most {maximum}={values[maximum]}: change one of the two"
    return expected


def _check_num_return_sequences(config: GenerationConfig) -> None:
    if config.num_beams > 1:
        maximum = config.num_beams
        reason = f"num_beams={config.num_beams}"
    elif config.do_sample:
        maximum = config.best_of or MAX_COUNT
        reason = f"best_of={maximum}"
    else:
        maximum = 1
        reason = "greedy search"
    if config.num_return_sequences > maximum:
        raise ValueError(
            f"num_return_sequences is {config.num_return_sequences}, expected at most {maximum} with {reason}"
        )


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite_number(value: Any) -> bool:
    return (isinstance(value, float) or _is_integer(value)) and math.isfinite(value)


def _is_number_or_inf(value: Any) -> bool:
    return _is_finite_number(value) or value in (math.inf, -math.inf)


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2


def _is_tuple_of(value: Any, predicate: Callable[[Any], bool]) -> bool:
    return isinstance(value, tuple) and all(predicate(item) for item in value)


def _is_token_id(value: Any) -> bool:
    return _is_integer(value) and 0 <= value < MAX_VOCAB_SIZE


def _is_token_id_tuple(value: Any, allow_empty: bool = False) -> bool:
    return _is_tuple_of(value, _is_token_id) and (allow_empty or len(value) > 0)


def _is_nonempty_string(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_phrase_choice(value: Any) -> bool:
    return bool(value) and _is_tuple_of(value, _is_token_id_tuple)


def _is_phrase_bias(value: Any) -> bool:
    return _is_pair(value) and _is_token_id_tuple(value[0]) and _is_number_or_inf(value[1])


def _is_length_decay(value: Any) -> bool:
    if not _is_pair(value):
        return False
    start, factor = value
    return _is_integer(start) and start >= 0 and _is_finite_number(factor) and factor > 0


def format_setting_value(value: Any) -> str:
    """Return the repr of a value, shortened to 60 characters for an error message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
