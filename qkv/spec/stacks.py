"""Encoders and decoders: Transformer stacks and recurrent stacks."""

from __future__ import annotations

from typing import Literal

from qkv.spec.embeddings import AlibiSpec, EmbeddingSpec, LearnedPositions, RelativeBucketsSpec
from qkv.spec.layers import LayerSpec, NormSpec, ScoreSpec, SelectionSpec, SpecPart
from qkv.spec.patterns import Pattern, full


class SegmentRecurrence(SpecPart):
    """The next segment attends to the hidden states of the last `memory_length` tokens."""

    memory_length: int | None
    reuse_length: int | None = None  # keep only the first states of each segment
    starts_with_zeros: bool = False  # the first segment attends to a memory of zeros


class StackSpec(SpecPart):
    """An encoder or a decoder."""

    width: int
    layers: tuple[LayerSpec, ...]
    embedding: EmbeddingSpec
    layer_order: tuple[int, ...] | None = None  # index of the layer at each depth; None: in order
    final_norm: NormSpec | None = None
    position_bias: RelativeBucketsSpec | AlibiSpec | None = None
    recurrence: SegmentRecurrence | None = None
    dropout: float = 0.0  # after the last layer

    @property
    def depth(self) -> int:
        """The number of layers that run."""
        return len(self.layer_order or self.layers)

    @property
    def input_width(self) -> int:
        """The width of the embeddings that the first layer reads."""
        return self.width

    @property
    def output_width(self) -> int:
        """The width of `last_hidden_state`."""
        return self.width

    @property
    def max_positions(self) -> int | None:
        """The number of learned positions; None means no limit."""
        table = self.embedding.positions
        return table.count - table.offset if isinstance(table, LearnedPositions) else None


class RecurrentAttentionSpec(SpecPart):
    """Attention of a recurrent decoder to the states of its encoder.

    `place` is "before": the query is the last state, and the context enters the first layer (Bahdanau),
    or "after": the query is the new state, and the context enters the output layer (Luong)."""

    score: ScoreSpec = ScoreSpec(name="additive")
    score_width: int | None = None  # hidden layer of the score; None: the width of a key
    select: SelectionSpec = SelectionSpec()
    place: Literal["before", "after"] = "before"
    pattern: Pattern = full  # of target and source positions; Local(window): Luong's local-m
    gate: bool = False  # the context is multiplied by a sigmoid of the query (Xu et al. 2015)


class RecurrentSourceSpec(SpecPart):
    """What a recurrent decoder reads of its encoder.

    `initial_state` is "copy": each layer starts from the final state of the encoder's layer;
    "projection": from tanh(W s), where s is the final state of the encoder's last layer, backward if
    it is bidirectional; "mean": from tanh(W m), where m is the mean of the encoder's states."""

    width: int  # of the encoder's states
    state_width: int  # of a final state, in one direction
    initial_state: Literal["copy", "projection", "mean"] = "copy"
    summary_width: int | None = None  # tanh(V s), a fixed vector in every step and the output (Cho)
    attention: RecurrentAttentionSpec | None = None

    @property
    def context_width(self) -> int:
        """The width of the context in every step: that of the attention or the fixed vector, or 0."""
        return self.width if self.attention else self.summary_width or 0


class RecurrentOutputSpec(SpecPart):
    """Output layer of a recurrent decoder: activation(W [state; embedding; context])."""

    width: int
    parts: tuple[Literal["state", "embedding", "context"], ...] = ("state", "embedding", "context")
    activation: str = "maxout"  # "maxout": the larger of two, so that W has 2 * width rows
    bias: bool = True


class RecurrentStackSpec(SpecPart):
    """A recurrent encoder or decoder.

    Cells: "rnn" (tanh), "gru", "lstm", "lstmn" (an LSTM that attends to its own past states).
    A "backward" encoder runs from the last token to the first: the reversed source of Sutskever et al."""

    width: int
    cell: Literal["rnn", "gru", "lstm", "lstmn"]
    depth: int
    embedding: EmbeddingSpec
    embedding_width: int | None = None  # None: the width of the stack
    direction: Literal["forward", "backward", "bidirectional"] = "forward"
    dropout: float = 0.0  # between layers and after the last
    source: RecurrentSourceSpec | None = None
    output: RecurrentOutputSpec | None = None
    input_feeding: bool = False  # the last output enters the first layer (Luong)

    @property
    def input_width(self) -> int:
        """The width of the embeddings that the first layer reads."""
        return self.embedding_width or self.width

    @property
    def output_width(self) -> int:
        """The width of `last_hidden_state`."""
        directions = 2 if self.direction == "bidirectional" else 1
        return self.output.width if self.output else directions * self.width

    @property
    def feed_width(self) -> int:
        """The width of what enters the first layer beside the embedding."""
        if self.input_feeding:
            return self.output_width
        if self.source is None or (
            self.source.attention and self.source.attention.place == "after"
        ):
            return 0
        return self.source.context_width

    @property
    def layers(self) -> tuple[LayerSpec, ...]:
        """Attention layers: none."""
        return ()

    @property
    def recurrence(self) -> SegmentRecurrence | None:
        """Segment recurrence: None. The recurrence of this stack is that of its cells."""
        return None

    @property
    def max_positions(self) -> int | None:
        """None: there is no limit."""
        return None


AnyStackSpec = StackSpec | RecurrentStackSpec
