"""Recurrent stacks in words, and the blocks of their diagrams. Knows no coordinates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from qkv.pictures.models.blocks import Block
from qkv.spec import Local, RecurrentAttentionSpec, RecurrentStackSpec

CELL_NAMES = {
    "rnn": "RNN",
    "gru": "GRU",
    "lstm": "LSTM",
    "lstmn": "LSTM with attention to its own past",
}
DIRECTION_DESCRIPTIONS = {
    "forward": "from the first token to the last",
    "backward": "from the last token to the first",
    "bidirectional": "in both directions",
}
PLACE_DESCRIPTIONS = {
    "before": "query: the last state; the context enters the first layer",
    "after": "query: the new state; the context enters the output layer",
}
INITIAL_STATE_DESCRIPTIONS = {
    "copy": "starts from the final states of the encoder",
    "projection": "starts from a projection of the encoder's final state",
    "mean": "starts from a projection of the mean of the encoder's states",
}


class RecurrentBlock(NamedTuple):
    """A block of a recurrent stack, and whether it reads the encoder."""

    block: Block
    reads_encoder: bool = False


def describe_recurrent_stack(stack: RecurrentStackSpec) -> list[str]:
    """Return depth, width, cell and direction of a stack, and what a decoder reads beside its input."""
    layers = f"{stack.depth} layer{'s' * (stack.depth > 1)} of width {stack.width:,}"
    descriptions = [layers, f"cell: {CELL_NAMES[stack.cell]}"]
    if stack.source is None:
        return [*descriptions, DIRECTION_DESCRIPTIONS[stack.direction]]
    descriptions.append(INITIAL_STATE_DESCRIPTIONS[stack.source.initial_state])
    if stack.source.summary_width:
        descriptions.append("a fixed vector of the source enters every step")
    if stack.input_feeding:
        descriptions.append("the last output enters the next step")
    return descriptions


def describe_recurrent_attention(attention: RecurrentAttentionSpec) -> list[str]:
    """Return the score and the selection, and where the attention happens."""
    functions = f"score: {attention.score.name}, weights: {attention.select.name}"
    if isinstance(attention.pattern, Local):
        functions += f", at most {attention.pattern.window} from the target's position"
    gate = ["the context is gated"] if attention.gate else []
    return [functions, PLACE_DESCRIPTIONS[attention.place], *gate]


def list_recurrent_blocks(stack: RecurrentStackSpec) -> Iterator[RecurrentBlock]:
    """Yield the blocks of a stack in the order in which they run."""
    attention = stack.source.attention if stack.source else None
    attention_block = None
    if attention is not None:
        details = tuple(describe_recurrent_attention(attention))
        attention_block = RecurrentBlock(Block("attention", "Cross-attention", details), True)
        if attention.place == "before":
            yield attention_block
    depth = f"{stack.depth} layers of " if stack.depth > 1 else ""
    input_width = stack.input_width + stack.feed_width
    details = (f"{input_width:,} → {stack.width:,}", *describe_recurrent_stack(stack)[2:])
    layers = Block("feed-forward", depth + CELL_NAMES[stack.cell], details)
    yield RecurrentBlock(layers, stack.source is not None and attention_block is None)
    if attention is not None and attention.place == "after":
        assert attention_block is not None
        yield attention_block
    if stack.output is not None:
        read = ", ".join(stack.output.parts)
        details = (f"{stack.output.activation} of {stack.output.width:,}", f"reads: {read}")
        yield RecurrentBlock(Block("feed-forward", "Output layer", details))
