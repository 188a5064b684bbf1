"""Checks of requests: settings, prompts and sources that a network can process."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from qkv.decode.config import GenerationConfig, format_setting_value
from qkv.decode.config_file import check_config_token_ids
from qkv.decode.logits.forced_words import count_forced_tokens
from qkv.nn.network import Network
from qkv.nn.transformer import Stack
from qkv.validate import check_sequence_length

DEFAULT_MAX_NEW_TOKENS = 256  # when the settings have no maximum length

Source = Sequence[int] | Tensor


def check_config(net: Network, assistant_model: Network | None, config: GenerationConfig) -> None:
    """Raise an error if this network cannot decode with these settings."""
    vocab_size = get_vocab_size(net)
    check_config_token_ids(config, vocab_size)
    if config.penalty_alpha and config.top_k > vocab_size:
        raise ValueError(
            f"top_k is {config.top_k} with penalty_alpha, expected at most the vocabulary size "
            f"{vocab_size:,}"
        )
    if not has_truncatable_cache(net) and (config.penalty_alpha or assistant_model is not None):
        setting = "penalty_alpha" if config.penalty_alpha else "assistant_model"
        raise ValueError(
            f"{setting} needs a cache that can be truncated, and a recurrent model has none: remove it"
        )
    if config.guidance_scale != 1 and (
        not has_truncatable_cache(net)
        or is_encoder_decoder_model(net)
        or assistant_model is not None
    ):
        raise ValueError(
            f"guidance_scale is {config.guidance_scale:g}, expected 1 for an encoder-decoder, a recurrent "
            "model or with assistant_model: remove it"
        )
    if assistant_model is not None and (config.num_beams > 1 or config.penalty_alpha):
        raise ValueError(
            "assistant_model works with greedy search and sampling: remove num_beams and penalty_alpha"
        )


def prepare_prompt(
    net: Network, prompt: list[int], source: Source | None, config: GenerationConfig
) -> list[int]:
    """Check prompt and source, and return the prompt with the start token."""
    check_prompt("prompt", prompt, get_vocab_size(net))
    if not is_encoder_decoder_model(net):
        prompt = prompt or ([] if config.bos_token_id is None else [config.bos_token_id])
        if not prompt:
            raise ValueError(
                "prompt is empty, expected at least one token id: add one or set bos_token_id"
            )
        return prompt
    if source is None or not len(source):
        raise ValueError("source is empty, expected the token ids of the encoder")
    encoder = net.encoder
    assert encoder is not None
    if isinstance(source, Tensor):
        check_encoder_states(source, encoder.spec.width)
    elif encoder.spec.embedding.patches is not None:
        raise ValueError(
            "source is a list of token ids, expected the encoder states (S, W) of an image"
        )
    else:
        check_prompt("source", source, encoder.spec.embedding.vocab_size)
        check_sequence_length("source", len(source), encoder.spec.max_positions, "the encoder")
    shift = net.spec.shift_right
    start_token_id = config.decoder_start_token_id
    if start_token_id is None:
        start_token_id = shift.start_token_id if shift else config.bos_token_id
    if start_token_id is None:
        raise ValueError("an encoder-decoder needs a start token: set decoder_start_token_id")
    return prompt if prompt[:1] == [start_token_id] else [start_token_id, *prompt]


def prepare_negative_prompt(
    net: Network, prompt: list[int], negative_prompt: Sequence[int] | None, config: GenerationConfig
) -> list[int] | None:
    """Return the negative prompt of guidance, by default the last token of the prompt, or None."""
    if config.guidance_scale == 1:
        if negative_prompt is not None:
            raise ValueError(
                "negative_prompt_ids has no effect without guidance_scale: remove it, or set that"
            )
        return None
    token_ids = prompt[-1:] if negative_prompt is None else [*negative_prompt]
    check_prompt("negative_prompt_ids", token_ids, get_vocab_size(net))
    if not 1 <= len(token_ids) <= len(prompt):
        raise ValueError(
            f"negative_prompt_ids has {len(token_ids)} token ids, expected 1 to {len(prompt)}, as many "
            "as the prompt has"
        )
    return token_ids


def check_encoder_states(states: Tensor, width: int) -> None:
    """Raise an error unless a tensor contains the hidden states (S, W) of an encoder."""
    if states.dim() != 2 or states.shape[1] != width or not states.dtype.is_floating_point:
        shape = "x".join(map(str, states.shape))
        raise ValueError(
            f"source is a tensor of shape {shape} and {states.dtype}, expected hidden states of the "
            f"encoder, (S, {width}) floating point numbers"
        )


def check_assistant_length(assistant_model: Network, prompt: list[int]) -> None:
    """Raise an error if the prompt is too long for the assistant model."""
    max_positions = assistant_model.last_stack.spec.max_positions
    check_sequence_length("prompt", len(prompt), max_positions, "assistant_model")


def compute_max_length(
    net: Network, token_ids: list[int], config: GenerationConfig
) -> tuple[int, str]:
    """Return the maximum length of a sequence, prompt included, and its finish reason."""
    if config.max_new_tokens is not None:
        requested = len(token_ids) + config.max_new_tokens
    elif config.max_length is not None:
        requested = config.max_length
    else:
        requested = len(token_ids) + DEFAULT_MAX_NEW_TOKENS
    max_positions = net.last_stack.spec.max_positions or requested
    is_beyond = requested > max_positions
    if len(token_ids) >= min(requested, max_positions):
        limit = (
            f"the model has {max_positions} positions"
            if is_beyond
            else f"max_length is {requested}"
        )
        raise ValueError(
            f"prompt has {len(token_ids)} tokens and leaves no room for new tokens: {limit}"
        )
    # Rows with guidance do not slide: a window without the prompt would have no guidance.
    stops = is_beyond and (config.context_overflow == "stop" or config.guidance_scale != 1)
    max_length, limit_reason = (max_positions, "context") if stops else (requested, "length")
    num_forced = count_forced_tokens(config.force_words_ids)
    if num_forced > max_length - len(token_ids):
        raise ValueError(
            f"force_words_ids needs {num_forced} tokens, "
            f"and {max_length - len(token_ids)} are left: set max_new_tokens higher"
        )
    return max_length, limit_reason


def get_vocab_size(net: Network) -> int:
    """Return the vocabulary size of the stack that generates."""
    return net.last_stack.spec.embedding.vocab_size


def has_segment_recurrence(net: Network) -> bool:
    """Return whether the network has segment-level recurrence (Transformer-XL, XLNet)."""
    return net.last_stack.spec.recurrence is not None


def has_truncatable_cache(net: Network) -> bool:
    """Return whether the last tokens of a row can be taken back: not in a recurrent network."""
    return isinstance(net.last_stack, Stack) and not has_segment_recurrence(net)


def is_encoder_decoder_model(net: Network) -> bool:
    """Return whether the network reads a source besides the prompt."""
    return net.encoder is not None and net.decoder is not None


def check_prompt(name: str, token_ids: Source, vocab_size: int) -> None:
    """Raise an error if an element is not a token id of the vocabulary."""
    invalid = [
        token_id
        for token_id in token_ids
        if type(token_id) is not int or not 0 <= token_id < vocab_size
    ]
    if invalid:
        raise ValueError(
            f"{name} contains {format_setting_value(invalid[0])}, expected token ids from 0 to "
            f"{vocab_size - 1:,}"
        )


def check_assistant_model(net: Network, assistant_model: Network) -> None:
    """Raise an error if a network cannot draft for another."""
    if get_vocab_size(net) != get_vocab_size(assistant_model):
        raise ValueError(
            f"assistant_model has a vocabulary of {get_vocab_size(assistant_model):,}, "
            f"expected {get_vocab_size(net):,} as the model has"
        )
    is_other_shape = (net.encoder is None) != (assistant_model.encoder is None)
    if is_other_shape or not has_truncatable_cache(assistant_model):
        raise ValueError(
            "assistant_model has another architecture, expected a decoder for a decoder, "
            "an encoder-decoder for an encoder-decoder, and no recurrence"
        )
