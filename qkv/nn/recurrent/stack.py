"""RecurrentStack: a recurrent encoder or decoder, with the same interface as Stack.

    encoder   embedding -> layers -> last_hidden_state, final states
    decoder   [embedding; feed] -> layers -> output layer([state; embedding; context])

The context of a decoder is a fixed vector, or that of an attention to the encoder states. What is fed
into the first layer beside the embedding is the context or the last output. Layers run over whole
sequences, unless a step needs the result of the last one.
N rows (texts), L columns, P rows of the source, E embedding width, W width, C context width."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.batch import Batch, Inputs
from qkv.nn.attention_record import RecordingKernel
from qkv.nn.cache import KVCache, RecurrentState
from qkv.nn.embedding import Embedding
from qkv.nn.recurrent.attention import Attended, RecurrentAttention, SourceKeys
from qkv.nn.recurrent.cells import State
from qkv.nn.recurrent.decoder import (
    build_initial_state,
    build_output,
    build_summary,
    mean_over_tokens,
)
from qkv.nn.recurrent.layers import AnyLayer, History, IntraAttentionLayer, RecurrentLayer, Tape
from qkv.nn.recurrent.rows import TextRows, gather_last, reverse_rows
from qkv.nn.transformer import LayerCache
from qkv.spec import RecurrentStackSpec


class Start(NamedTuple):
    """What a stack starts from: the beginning of texts, or the state in its caches."""

    layers: list[History | Tape]
    num_read: Tensor  # (N|1, 1), tokens read so far
    source: SourceKeys | None = None
    summary: Tensor | None = None  # (N, C), the fixed vector
    output: Tensor | None = None  # (N, O), the last output, for input feeding
    source_rows: TextRows | None = None  # where the states of the source stand
    order: Tensor | None = None  # (N,), the row of the source of each row

    def get_positions(self, x: Tensor) -> Tensor:
        """Return the positions of new tokens (N, L, ...): (N|1, L)."""
        return self.num_read + torch.arange(x.shape[1], device=x.device)


class RecurrentStack(nn.Module):
    """A recurrent encoder or decoder: embedding, layers, attention to the source, output layer."""

    def __init__(self, spec: RecurrentStackSpec) -> None:
        super().__init__()
        self.spec = spec
        self.layer_order = tuple(range(spec.depth))
        self.embedding = Embedding(spec)
        self.layers = nn.ModuleList(build_layer(spec, depth) for depth in range(spec.depth))
        self.dropout = nn.Dropout(spec.dropout)
        self.cross_attention: RecurrentAttention | None = None
        self.attends_before = False
        source = spec.source
        if source is not None:
            self.summary = build_summary(source)
            self.initial_state = build_initial_state(spec, source)
            if source.attention is not None:
                self.cross_attention = RecurrentAttention(
                    source.attention, spec.width, source.width
                )
                self.attends_before = source.attention.place == "before"
        self.output = build_output(spec)
        self.needs_steps = self.attends_before or spec.input_feeding or spec.cell == "lstmn"

    @property
    def recurrent_layers(self) -> list[AnyLayer]:
        return cast(list[AnyLayer], list(self.layers))

    def forward(
        self, inputs: Inputs, batch: Batch, encoder_outputs: Inputs | None = None,
        caches: list[LayerCache] | None = None,
    ) -> dict[str, Tensor]:  # fmt: skip
        """Return `last_hidden_state` (B, T, W), the `final_states` of an encoder, and the extra
        outputs of the attention."""
        rows = TextRows.create(inputs)
        x = rows.gather(self.embedding(inputs))  # (B, T, E) -> (N, L, E)
        if caches and len(caches[0].attention):
            start = self.resume(caches)
        else:
            start = self.start(x, rows, encoder_outputs)
            if caches and start.source is not None:
                start.source.write(caches[0].cross_attention)
        is_encoder = self.spec.source is None
        is_backward = self.spec.direction == "backward"
        x = reverse_rows(x, rows.lengths) if is_backward else x
        run = self.run_steps if self.needs_steps else self.run_layers
        output, attended, finals = run(x, start, rows.lengths, is_encoder or bool(caches))
        output = reverse_rows(output, rows.lengths) if is_backward else output
        if caches:
            self.write_caches(caches, start, rows, output, finals)
        out = {"last_hidden_state": rows.scatter(output)}
        if is_encoder:
            states = [torch.stack(state, dim=2) for state in finals]  # (N, directions, 1 or 2, W)
            out["final_states"] = torch.stack(states, dim=1)
        return out | self.report_attention(batch, rows, start, attended)

    def start(self, x: Tensor, rows: TextRows, encoder_outputs: Inputs | None) -> Start:
        """Return the beginning of texts: zeros, or what the encoder gives."""
        num_read = torch.zeros(1, 1, dtype=torch.long, device=x.device)
        spec = self.spec.source
        if spec is None:
            layers = [layer.start(layer.cell.create_state(x)) for layer in self.recurrent_layers]
            return Start(layers, num_read)
        if encoder_outputs is None or encoder_outputs.inputs_embeds is None:
            raise ValueError("no encoder states, expected those of a source: add encoder inputs")
        source_rows = TextRows.create(encoder_outputs)
        values = source_rows.gather(encoder_outputs.inputs_embeds)  # (P, S, C)
        mask = source_rows.get_mask(values.shape[1])
        final_states = encoder_outputs.final_states
        order = rows.find_sources(source_rows)
        if order is not None:
            values = values[order]
            mask = None if mask is None else mask[order]
            final_states = None if final_states is None else final_states[order]
        if spec.initial_state == "mean":
            vector = mean_over_tokens(values, mask)
        elif final_states is None:
            raise ValueError("no final states, expected those of a recurrent encoder")
        else:
            vector = final_states[:, -1, -1, 0]  # of the last layer and direction, hidden
        vector = self.summary(vector)
        states = self.initial_state(vector, final_states)
        attention = self.cross_attention
        return Start(
            [
                layer.start(state)
                for layer, state in zip(self.recurrent_layers, states, strict=True)
            ],
            num_read,
            source=None if attention is None else attention.prepare_source(values, mask),
            summary=vector if spec.summary_width else None,
            output=x.new_zeros(len(x), self.spec.output_width) if self.spec.input_feeding else None,
            source_rows=source_rows,
            order=order,
        )

    def resume(self, caches: list[LayerCache]) -> Start:
        """Return the state in the caches."""
        first = caches[0].attention
        assert first.positions is not None
        tensors = first.tensors if isinstance(first, RecurrentState) else {}
        return Start(
            [
                layer.resume(cache.attention)
                for layer, cache in zip(self.recurrent_layers, caches, strict=True)
            ],
            first.positions.amax(1, keepdim=True),
            SourceKeys.read(caches[0].cross_attention),
            summary=tensors["summary"][:, 0] if "summary" in tensors else None,
            output=tensors["output"][:, 0] if "output" in tensors else None,
        )

    def run_layers(
        self, x: Tensor, start: Start, lengths: Tensor | None, needs_finals: bool
    ) -> tuple[Tensor, Attended | None, list[State]]:
        """Run each layer over whole sequences x (N, L, E); return the outputs, the attention, and the
        final states of each layer (N, directions, W)."""
        embedding = x
        context = None
        if start.summary is not None:
            context = start.summary[:, None].expand(-1, x.shape[1], -1)
            x = torch.cat([x, context], dim=-1)
        finals = []
        for depth, (layer, history) in enumerate(
            zip(self.recurrent_layers, start.layers, strict=True)
        ):
            assert isinstance(history, History)
            x = self.dropout(x) if depth else x
            x, final = layer.cell(x, history.states[0], lengths if needs_finals else None)
            finals.append(tuple(part.transpose(0, 1) for part in final))
        attended = None
        if self.cross_attention is not None:
            assert start.source is not None
            attended = self.cross_attention(x, start.get_positions(x), start.source)
            context = attended.context
        return self.output(x, embedding, context), attended, finals

    def run_steps(
        self, x: Tensor, start: Start, lengths: Tensor | None, needs_finals: bool
    ) -> tuple[Tensor, Attended | None, list[State]]:
        """Read the tokens of x (N, L, E) one by one; return what `run_layers` does."""
        first = self.recurrent_layers[0].cell
        gates = first.project_inputs(x).unbind(1)
        feed_weight = first.get_feed_weight(self.spec.feed_width)
        positions = start.get_positions(x).split(1, dim=1)
        hidden = start.layers[-1].hidden
        output = start.output
        hiddens: list[Tensor] = []
        outputs: list[Tensor] = []
        steps: list[Attended] = []

        def compute_context(query: Tensor, t: int) -> Tensor:
            assert self.cross_attention is not None
            assert start.source is not None
            steps.append(self.cross_attention(query[:, None], positions[t], start.source))
            return steps[-1].context[:, 0]

        for t, token in enumerate(x.unbind(1)):
            feed = compute_context(hidden, t) if self.attends_before else output
            first_gates = gates[t] if feed is None else gates[t] + F.linear(feed, feed_weight)
            hidden = self.step_layers(token, first_gates, start.layers)
            hiddens.append(hidden)
            if self.spec.input_feeding:
                output = self.output(hidden, token, compute_context(hidden, t))
                outputs.append(output)
        attended = Attended.join(steps) if steps else None
        if outputs:
            all_outputs = torch.stack(outputs, dim=1)
        else:
            context = attended.context if attended else None
            all_outputs = self.output(torch.stack(hiddens, dim=1), x, context)
        finals = [layer.finish(lengths) for layer in start.layers] if needs_finals else []
        return all_outputs, attended, finals

    def step_layers(self, token: Tensor, gates: Tensor, states: list[History | Tape]) -> Tensor:
        """Read one token in all layers: the input of the first (N, E) and its gates (N, G) -> the
        hidden state of the last (N, W)."""
        for depth, (layer, state) in enumerate(zip(self.recurrent_layers, states, strict=True)):
            if depth:
                token = self.dropout(token)
                gates = layer.cell.project_inputs(token)
            token = layer.step(token, gates, state)  # type: ignore[arg-type]
        return token

    def write_caches(
        self,
        caches: list[LayerCache],
        start: Start,
        rows: TextRows,
        output: Tensor,
        finals: list[State],
    ) -> None:
        """Store the state after the last token of each row."""
        num_rows, length = output.shape[:2]
        old = start.num_read.expand(num_rows, 1)
        new = old + (length if rows.lengths is None else rows.lengths[:, None])
        extra: dict[str, Tensor] = {}
        if start.summary is not None:
            extra["summary"] = start.summary[:, None]
        if start.output is not None:
            outputs = torch.cat([start.output[:, None], output], dim=1)
            extra["output"] = gather_last(outputs, rows.lengths)[:, None]
        for cache, state, final in zip(caches, start.layers, finals, strict=True):
            if isinstance(state, Tape):
                positions = old + 1 + torch.arange(length, device=output.device)
                mask = rows.get_mask(length)
                if mask is not None:
                    positions = positions.masked_fill(~mask, -1)
                if not len(cache.attention):
                    cache.attention.update(state.past, torch.zeros_like(old))
                cache.attention.update(state.stack_new(), positions)
            else:
                tensors = dict(zip(("hidden", "cell"), final, strict=False))
                cache.attention.update(tensors | extra, new)
                extra = {}  # only in the first layer

    def report_attention(
        self, batch: Batch, rows: TextRows, start: Start, attended: Attended | None
    ) -> dict[str, Tensor]:
        """Give the weights to `look`; return what the batch asks for: the statistics of samples, for
        REINFORCE, and the sum of the weights of each source token."""
        for layer, tape in zip(self.layers, start.layers, strict=True):
            if isinstance(layer, IntraAttentionLayer) and isinstance(tape, Tape):
                products = partial(layer.get_products, tape)
                layer.kernel(tape.stack_weights(), rows, rows, None, products)
        if attended is None or self.cross_attention is None:
            return {}
        recorder = self.cross_attention.kernel
        places = (rows, start.source_rows, start.order)
        assert start.source is not None
        recorder(
            attended.weights,
            *places,
            partial(self.cross_attention.get_products, attended.query, start.source),
        )
        out = {}
        if "attention_coverage" in batch.extra_outputs:
            weights = recorder.weights(attended.weights, *places)
            out["attention_coverage"] = weights[:, 0].sum(1)  # (B, S)
        samples = {
            "attention_log_probs": attended.log_probs,
            "attention_entropy": attended.entropy,
        }
        for name, values in samples.items():
            if values is not None and name in batch.extra_outputs:
                out[name] = rows.scatter(values)
        return out

    def create_caches(self, batch_size: int) -> list[LayerCache]:
        """Return an empty cache per layer; the source is in the cross-attention cache of the first."""
        return [LayerCache(layer.create_cache(), KVCache()) for layer in self.recurrent_layers]

    def get_attention_kernels(self) -> dict[str, RecordingKernel]:
        """Return the modules from which `look` reads weights, by path."""
        kernels: dict[str, RecordingKernel] = {
            f"layers.{depth}.attention": layer.kernel
            for depth, layer in enumerate(self.recurrent_layers)
            if isinstance(layer, IntraAttentionLayer)
        }
        if self.cross_attention is not None:
            kernels["cross_attention"] = self.cross_attention.kernel
        return kernels


def build_layer(spec: RecurrentStackSpec, depth: int) -> AnyLayer:
    """Return the layer at a depth; the first reads the embedding and what is fed."""
    is_bidirectional = spec.direction == "bidirectional"
    input_width = spec.input_width if depth == 0 else (1 + is_bidirectional) * spec.width
    feed_width = spec.feed_width if depth == 0 else 0
    if spec.cell != "lstmn":
        return RecurrentLayer(spec.cell, input_width + feed_width, spec.width, is_bidirectional)
    if (
        spec.direction != "forward"
        or spec.input_feeding
        or (spec.source and spec.source.summary_width)
    ):
        raise ValueError(
            "cell is 'lstmn' with another direction than forward, input feeding or a fixed vector, "
            "which it does not support: use 'lstm'"
        )
    return IntraAttentionLayer(input_width, feed_width, spec.width, hides_first=spec.source is None)
