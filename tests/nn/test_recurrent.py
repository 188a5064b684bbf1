"""Recurrent stacks: cells against torch's modules, and each model against the equations of its paper,
one row, one token and one source position at a time. Forward and gradients, all tensors random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

import qkv
from qkv import Batch, Inputs
from qkv.nn.network import Network
from qkv.nn.recurrent.cells import RecurrentCell
from qkv.nn.recurrent.rows import TextRows, reverse_rows
from qkv.nn.recurrent.stack import RecurrentStack
from qkv.spec import EmbeddingSpec, RecurrentStackSpec
from tests.support import compare, tiny

TORCH_CELLS: dict[str, Any] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
SOURCE_LENGTHS = (7, 3, 5)
TARGET_LENGTHS = (4, 6, 1)
Parameters = dict[str, Tensor]
State = tuple[Tensor, ...]


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("name", TORCH_CELLS)
class TestRecurrentCell:
    def build(self, name: str, bidirectional: bool) -> tuple[RecurrentCell, nn.RNNBase]:
        cell = RecurrentCell(name, 6, 5, bidirectional).double()
        tiny.randomize_parameters(cell, name)
        torch_cell = TORCH_CELLS[name](6, 5, batch_first=True, bidirectional=bidirectional).double()
        torch_cell.load_state_dict(cell.state_dict())  # the same names and shapes
        return cell, torch_cell

    def test_a_sequence_is_that_of_torch(self, name: str, bidirectional: bool) -> None:
        cell, torch_cell = self.build(name, bidirectional)
        x = torch.randn(3, 7, 6, dtype=torch.float64, requires_grad=True)
        state = tuple(
            torch.randn_like(part).view(-1, 3, 5) for part in cell.create_state(x.detach())
        )
        outputs, final = cell(x, state)
        expected, expected_final = torch_cell(x, state if len(state) > 1 else state[0])
        parts = expected_final if len(state) > 1 else (expected_final,)
        compare.assert_close(
            {"outputs": outputs, **dict(zip("hc", final, strict=False))},
            {"outputs": expected, **dict(zip("hc", parts, strict=False))},
            1e-12,
        )
        gradients, expected_gradients = (
            torch.autograd.grad(out.sin().sum(), [x, *module.parameters()])
            for out, module in ((outputs, cell), (expected, torch_cell))
        )
        for gradient, other in zip(gradients, expected_gradients, strict=True):
            compare.assert_close({"gradient": gradient}, {"gradient": other}, 1e-12)

    def test_rows_of_different_lengths_are_those_alone(
        self, name: str, bidirectional: bool
    ) -> None:
        cell, _ = self.build(name, bidirectional)
        x = torch.randn(4, 6, 6, dtype=torch.float64)
        state = tuple(torch.randn_like(part).view(-1, 4, 5) for part in cell.create_state(x))
        lengths = [4, 0, 6, 1]
        outputs, final = cell(x, state, torch.tensor(lengths))
        for n, length in enumerate(lengths):
            start = tuple(part[:, n : n + 1] for part in state)
            expected, last = cell(x[n : n + 1, :length], start) if length else (None, start)
            for part, other in zip(final, last, strict=True):
                compare.assert_close({"final": part[:, n]}, {"final": other[:, 0]}, 1e-12)
            if expected is not None:
                compare.assert_close(
                    {"outputs": outputs[n, :length]}, {"outputs": expected[0]}, 1e-12
                )

    def test_steps_are_the_sequence(self, name: str, bidirectional: bool) -> None:
        """Bidirectional cells have no steps: theirs are those of the first direction."""
        cell, _ = self.build(name, bidirectional)
        x = torch.randn(3, 7, 6, dtype=torch.float64)
        zeros = cell.create_state(x)
        outputs, _ = cell(x, zeros)
        state = tuple(part.view(-1, 3, 5)[0] for part in zeros)
        for t in range(7):
            gates = cell.project_inputs(x[:, t, :4]) + x[:, t, 4:] @ cell.get_feed_weight(2).T
            state = cell.step(gates, state)
            compare.assert_close({"hidden": state[0]}, {"hidden": outputs[:, t, :5]}, 1e-12)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_a_bidirectional_stack_is_that_of_torch_with_packed_rows(
    cell: Literal["gru", "lstm"], side: str
) -> None:
    """Two layers, of which the second reads the states of both directions, and rows with padding."""
    spec = RecurrentStackSpec(
        cell=cell, width=5, depth=2, direction="bidirectional",
        embedding=EmbeddingSpec(vocab_size=tiny.VOCAB), embedding_width=6,
    )  # fmt: skip
    stack = RecurrentStack(spec).double()
    tiny.randomize_parameters(stack, f"{cell} {side}")
    inputs, rows = build_padded(SOURCE_LENGTHS, side, 1)
    assert inputs.attention_mask is not None
    out = stack(inputs, Batch(encoder=inputs))
    actual = {
        "outputs": out["last_hidden_state"][inputs.attention_mask],
        "final_states": out["final_states"],
    }

    parameters = dict(stack.named_parameters())
    table = parameters.pop("embedding.tokens.weight")
    module = TORCH_CELLS[cell](6, 5, num_layers=2, batch_first=True, bidirectional=True).double()
    torch_names = {}  # layers.1.cell.weight_ih_l0_reverse -> weight_ih_l1_reverse
    for name in parameters:
        _, depth, _, cell_name = name.split(".")
        torch_names[name] = cell_name.replace("_l0", f"_l{depth}")
    module.load_state_dict({torch_names[name]: tensor for name, tensor in parameters.items()})
    packed = nn.utils.rnn.pack_sequence([table[row] for row in rows], enforce_sorted=False)
    packed_outputs, finals = module(packed)
    final_states = torch.stack(finals if cell == "lstm" else (finals,), dim=2)
    expected = {
        "outputs": torch.cat(nn.utils.rnn.unpack_sequence(packed_outputs)),
        # (depth * directions, N, 1 or 2, W) -> (N, depth, directions, 1 or 2, W)
        "final_states": final_states.unflatten(0, (2, 2)).permute(2, 0, 1, 3, 4),
    }
    compare.assert_close(actual, expected, 1e-12)

    torch_parameters = dict(module.named_parameters())
    gradients, expected_gradients = (
        torch.autograd.grad(
            outputs["outputs"].sin().sum() + outputs["final_states"].cos().sum(), variables
        )
        for outputs, variables in (
            (actual, [table, *parameters.values()]),
            (expected, [table, *(torch_parameters[name] for name in torch_names.values())]),
        )
    )
    names = ["embedding", *parameters]
    compare.assert_close(
        dict(zip(names, gradients, strict=True)),
        dict(zip(names, expected_gradients, strict=True)),
        1e-12,
    )


# --- the equations ---


def run_cell(p: Parameters, path: str, x: Tensor, state: State, suffix: str = "") -> State:
    """One step of torch's GRU or LSTM, by the equations of its documentation: x (E), state (W)."""
    w, u, b, c = (
        p[f"{path}.cell.{name}_l0{suffix}"]
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    width = u.shape[1]
    inputs = [w[i : i + width] @ x + b[i : i + width] for i in range(0, len(w), width)]
    hidden = [u[i : i + width] @ state[0] + c[i : i + width] for i in range(0, len(u), width)]
    if len(inputs) == 3:
        reset = torch.sigmoid(inputs[0] + hidden[0])
        update = torch.sigmoid(inputs[1] + hidden[1])
        new = torch.tanh(inputs[2] + reset * hidden[2])
        return ((1 - update) * new + update * state[0],)
    i, f, o = (torch.sigmoid(inputs[n] + hidden[n]) for n in (0, 1, 3))
    cell = f * state[1] + i * torch.tanh(inputs[2] + hidden[2])
    return o * torch.tanh(cell), cell


def run_layers(
    p: Parameters, stack: str, x: Tensor, states: list[State]
) -> tuple[Tensor, list[State]]:
    """One step of all layers: the hidden state of the last, and all states."""
    new = []
    for n, state in enumerate(states):
        new.append(run_cell(p, f"{stack}.layers.{n}", x, state))
        x = new[-1][0]
    return x, new


def zero_states(p: Parameters, depth: int, count: int) -> list[State]:
    width = p["encoder.layers.0.cell.weight_hh_l0"].shape[1]
    return [tuple(torch.zeros(width, dtype=torch.float64) for _ in range(count))] * depth


def linear(p: Parameters, path: str, x: Tensor) -> Tensor:
    return p[f"{path}.weight"] @ x + p.get(f"{path}.bias", torch.zeros((), dtype=x.dtype))


def maxout(p: Parameters, *parts: Tensor) -> Tensor:
    rows = linear(p, "decoder.output.dense", torch.cat(parts))
    return torch.stack([torch.maximum(rows[i], rows[i + 1]) for i in range(0, len(rows), 2)])


def compute_context(scores: list[Tensor], values: list[Tensor], factors: list[Any]) -> Tensor:
    """The sum of values by the softmax of the scores, times a factor each."""
    weights = torch.stack(scores).softmax(0)
    return sum(
        (w * f * v for w, f, v in zip(weights, factors, values, strict=True)),
        torch.zeros_like(values[0]),
    )


def additive(p: Parameters, path: str, query: Tensor, key: Tensor) -> Tensor:
    hidden = torch.tanh(query @ p[f"{path}.w"] + key @ p[f"{path}.u"])
    return (hidden @ p[f"{path}.v"])[0]


def embed(p: Parameters, stack: str, ids: Tensor) -> list[Tensor]:
    return list(p[f"{stack}.embedding.tokens.weight"][ids])


def cho(p: Parameters, source: Tensor, target: Tensor) -> list[Tensor]:
    """Cho et al. 2014, section 2.2 and appendix A."""
    states = zero_states(p, 1, 1)
    for x in embed(p, "encoder", source):
        hidden, states = run_layers(p, "encoder", x, states)
    summary = torch.tanh(linear(p, "decoder.summary.projection", hidden))
    states = [(torch.tanh(linear(p, "decoder.initial_state.projection", summary)),)]
    outputs = []
    for y in embed(p, "decoder", target):
        hidden, states = run_layers(p, "decoder", torch.cat([y, summary]), states)
        outputs.append(maxout(p, hidden, y, summary))
    return outputs


def sutskever(p: Parameters, source: Tensor, target: Tensor) -> list[Tensor]:
    """Sutskever et al. 2014: the source from its last word to its first, final states copied."""
    states = zero_states(p, 2, 2)
    for x in reversed(embed(p, "encoder", source)):
        _, states = run_layers(p, "encoder", x, states)
    outputs = []
    for y in embed(p, "decoder", target):
        hidden, states = run_layers(p, "decoder", y, states)
        outputs.append(hidden)
    return outputs


def encode_both_ways(p: Parameters, source: Tensor) -> tuple[list[Tensor], Tensor]:
    """The annotations [forward; backward] of each word, and the backward state of the first."""
    words = embed(p, "encoder", source)
    (forward,) = (backward,) = zero_states(p, 1, 1)
    forwards, backwards = [], []
    for x in words:
        forward = run_cell(p, "encoder.layers.0", x, forward)
        forwards.append(forward[0])
    for x in reversed(words):
        backward = run_cell(p, "encoder.layers.0", x, backward, "_reverse")
        backwards.append(backward[0])
    backwards.reverse()
    return [torch.cat(pair) for pair in zip(forwards, backwards, strict=True)], backwards[0]


def bahdanau(p: Parameters, source: Tensor, target: Tensor) -> list[Tensor]:
    """Bahdanau et al. 2014, section 3 and appendix A.1.2."""
    annotations, first = encode_both_ways(p, source)
    states: list[State] = [(torch.tanh(linear(p, "decoder.initial_state.projection", first)),)]
    outputs = []
    for y in embed(p, "decoder", target):
        query = states[0][0]
        scores = [additive(p, "decoder.cross_attention.score", query, h) for h in annotations]
        context = compute_context(scores, annotations, [1] * len(annotations))
        hidden, states = run_layers(p, "decoder", torch.cat([y, context]), states)
        outputs.append(maxout(p, hidden, y, context))
    return outputs


def luong(
    p: Parameters,
    source: Tensor,
    target: Tensor,
    feeds: bool = True,
    score: str = "general",
    select: str = "softmax",
) -> list[Tensor]:
    """Luong et al. 2015, section 3: scores, windows of 2 positions on each side, input feeding."""
    states = zero_states(p, 2, 2)
    annotations = []
    for x in reversed(embed(p, "encoder", source)):
        hidden, states = run_layers(p, "encoder", x, states)
        annotations.append(hidden)
    annotations.reverse()
    output = torch.zeros(tiny.WIDTH, dtype=torch.float64)
    outputs = []
    path = "decoder.cross_attention"

    def compute_score(query: Tensor, key: Tensor) -> Tensor:
        if score == "dot":
            return query @ key
        if score == "general":
            return query @ (key @ p[f"{path}.score.w"])
        hidden = torch.cat([query, key]) @ p[f"{path}.score.w"]
        return (torch.tanh(hidden) @ p[f"{path}.score.v"])[0]

    for t, y in enumerate(embed(p, "decoder", target)):
        x = torch.cat([y, output]) if feeds else y
        hidden, states = run_layers(p, "decoder", x, states)
        center: Any = t
        if select == "local-p":
            w, v = p[f"{path}.selection.w"], p[f"{path}.selection.v"]
            center = len(annotations) * torch.sigmoid((torch.tanh(hidden @ w) @ v)[0])
        is_local = select != "softmax"
        inside = [n for n in range(len(annotations)) if not is_local or abs(n - center) <= 2]
        values = [annotations[n] for n in inside]
        scores = [compute_score(hidden, value) for value in values]
        factors: list[Any] = [1] * len(inside)
        if select == "local-p":
            factors = [torch.exp(-((n - center) ** 2) / (2 * 1.0**2)) for n in inside]
        context = compute_context(scores, values, factors) if inside else torch.zeros_like(hidden)
        output = torch.tanh(p["decoder.output.dense.weight"] @ torch.cat([context, hidden]))
        outputs.append(output)
    return outputs


def run_lstmn(
    p: Parameters, path: str, x: Tensor, tape: list[State], last: Tensor, feed: Tensor
) -> State:
    """Cheng et al. 2016, equations 5 to 11: the next (hidden, cell, summary) of a layer."""
    scores = [additive(p, f"{path}.score", torch.cat([x, last]), entry[0]) for entry in tape]
    ones = [1] * len(tape)
    hidden = compute_context(scores, [entry[0] for entry in tape], ones)
    cell = compute_context(scores, [entry[1] for entry in tape], ones)
    return (*run_cell(p, path, torch.cat([x, feed]), (hidden, cell)), hidden)


def cheng(p: Parameters, source: Tensor, target: Tensor) -> list[Tensor]:
    """Cheng et al. 2016: LSTMN layers, shallow fusion with additive attention to the source."""
    zeros = torch.zeros(tiny.WIDTH, dtype=torch.float64)
    nothing = zeros[:0]
    tapes: list[list[State]] = [[], []]
    lasts = [zeros, zeros]
    annotations = []
    for x in embed(p, "encoder", source):
        for n in range(2):  # without a past, the state is zero
            tape = tapes[n] or [(zeros, zeros)]
            new = run_lstmn(p, f"encoder.layers.{n}", x, tape, lasts[n], nothing)
            tapes[n].append(new)
            x, _, lasts[n] = new
        annotations.append(x)
    tapes = [[tape[-1]] for tape in tapes]  # the decoder starts from the final states
    lasts = [zeros, zeros]
    outputs = []
    for y in embed(p, "decoder", target):
        query = tapes[-1][-1][0]
        scores = [additive(p, "decoder.cross_attention.score", query, h) for h in annotations]
        context = compute_context(scores, annotations, [1] * len(annotations))
        x = y
        for n in range(2):
            feed = nothing if n else context
            new = run_lstmn(p, f"decoder.layers.{n}", x, tapes[n], lasts[n], feed)
            tapes[n].append(new)
            x, _, lasts[n] = new
        outputs.append(torch.tanh(linear(p, "decoder.output.dense", torch.cat([x, context]))))
    return outputs


def dai(p: Parameters, source: Tensor, target: Tensor) -> list[Tensor]:
    """Dai and Le 2015: one LSTM and one table of embeddings for both stacks."""
    states = zero_states(p, 1, 2)
    for x in embed(p, "encoder", source):
        _, states = run_layers(p, "encoder", x, states)
    outputs = []
    for y in embed(p, "encoder", target):
        hidden, states = run_layers(p, "encoder", y, states)
        outputs.append(hidden)
    return outputs


def xu(p: Parameters, annotations: list[Tensor], target: Tensor) -> list[Tensor]:
    """Xu et al. 2015, sections 3.1.2 and 4.2.1. Three details are not the paper's: the gate is a vector,
    the output layer has a tanh, and a matrix for the embedding."""
    mean = sum(annotations, torch.zeros_like(annotations[0])) / len(annotations)
    initial = torch.tanh(linear(p, "decoder.initial_state.projection", mean))
    hidden, cell = initial[: len(initial) // 2], initial[len(initial) // 2 :]
    outputs = []
    for y in embed(p, "decoder", target):
        scores = [additive(p, "decoder.cross_attention.score", hidden, a) for a in annotations]
        gate = torch.sigmoid(linear(p, "decoder.cross_attention.gate", hidden))
        context = gate * compute_context(scores, annotations, [1] * len(annotations))
        hidden, cell = run_cell(p, "decoder.layers.0", torch.cat([y, context]), (hidden, cell))
        parts = torch.cat([hidden, y, context])
        outputs.append(torch.tanh(linear(p, "decoder.output.dense", parts)))
    return outputs


LOCAL = {"local-m": dict(name="local-m", window=2), "local-p": dict(name="local-p", window=2)}
REFERENCES: dict[str, tuple[str, dict[str, Any], Callable[..., list[Tensor]]]] = {
    "rnn-encoder-decoder": ("rnn-encoder-decoder", {}, cho),
    "lstm-seq2seq": ("lstm-seq2seq", {}, sutskever),
    "bahdanau": ("bahdanau", {}, bahdanau),
    "lstmn": ("lstmn", {}, cheng),
    "sequence-autoencoder": ("sequence-autoencoder", {}, dai),
    **{
        f"luong-{score}-{select}-{'feeding' if feeds else 'plain'}": (
            "luong",
            dict(
                attention_score=score,
                attention_select=LOCAL.get(select, select),
                input_feeding=feeds,
            ),
            partial(luong, feeds=feeds, score=score, select=select),
        )
        for score, select, feeds in (
            ("general", "softmax", True),
            ("general", "local-p", True),
            ("dot", "local-m", True),
            ("concat", "softmax", True),
            ("general", "local-m", False),
            ("dot", "local-p", False),
            ("concat", "softmax", False),
        )
    },
}


def build_padded(lengths: tuple[int, ...], side: str, seed: int) -> tuple[Inputs, list[Tensor]]:
    """Return padded inputs and the ids of each row."""
    ids = tiny.random_ids(len(lengths), max(lengths), seed=seed)
    columns = torch.arange(max(lengths))
    count = torch.tensor(lengths)[:, None]
    mask = columns < count if side == "right" else columns >= max(lengths) - count
    return Inputs.create(ids, attention_mask=mask), [
        row[m] for row, m in zip(ids, mask, strict=True)
    ]


@pytest.mark.parametrize("name", REFERENCES)
def test_a_model_follows_the_equations_of_its_paper(name: str) -> None:
    family, changes, reference = REFERENCES[name]
    model = tiny.build(family, **changes)
    encoder, sources = build_padded(SOURCE_LENGTHS, "left", 1)
    decoder, targets = build_padded(TARGET_LENGTHS, "right", 2)
    out = model.net(Batch(encoder=encoder, decoder=decoder))
    parameters = {
        key: tensor.detach().clone().requires_grad_()
        for key, tensor in model.net.named_parameters()
    }
    logits, expected_logits = [], []
    for n, (source, target) in enumerate(zip(sources, targets, strict=True)):
        hidden = torch.stack(reference(parameters, source, target))
        head = parameters["heads.lm.out.weight"], parameters["heads.lm.out.bias"]
        expected_logits.append(nn.functional.linear(hidden, *head))
        logits.append(out["logits"][n, : len(target)])
        compare.assert_close(
            {"last_hidden_state": out["last_hidden_state"][n, : len(target)]},
            {"last_hidden_state": hidden},
            1e-10,
        )
    torch.cat(logits).sin().sum().backward()
    torch.cat(expected_logits).sin().sum().backward()
    gradients = {key: p.grad for key, p in model.net.named_parameters() if p.grad is not None}
    expected = {key: p.grad for key, p in parameters.items() if p.grad is not None}
    assert gradients.keys() == expected.keys() == parameters.keys()
    compare.assert_close(gradients, expected, 1e-9)


class TestShowAttendTell:
    """The decoder against the equations, one row, one token and one annotation vector at a time."""

    def compare(
        self, net: nn.Module, batch: Batch, annotations: list[Tensor], variables: Parameters
    ) -> None:
        """Compare outputs, and gradients with respect to `variables`."""
        decoder, targets = build_padded(TARGET_LENGTHS, "right", 2)
        out = net(replace(batch, decoder=decoder))
        parameters: Parameters = dict(net.named_parameters())
        rows = [
            torch.stack(xu(parameters, [*vectors], target))
            for vectors, target in zip(annotations, targets, strict=True)
        ]
        head = parameters["heads.lm.out.weight"], parameters["heads.lm.out.bias"]
        expected = {
            "last_hidden_state": torch.cat(rows),
            "logits": nn.functional.linear(torch.cat(rows), *head),
        }
        is_token = decoder.attention_mask
        actual = {name: out[name][is_token] for name in expected}
        compare.assert_close(actual, expected, 1e-10)
        gradients, expected_gradients = (
            torch.autograd.grad(
                outputs["logits"].sin().sum(), [*variables.values()], retain_graph=True
            )
            for outputs in (actual, expected)
        )
        compare.assert_close(
            dict(zip(variables, gradients, strict=True)),
            dict(zip(variables, expected_gradients, strict=True)),
            1e-9,
        )

    def test_captions_follow_the_equations_of_the_paper(self) -> None:
        """The gradients are those of all parameters, also of the convolutional network."""
        model = tiny.build("show-attend-tell")
        assert isinstance(model.net, Network)
        assert model.net.encoder is not None
        pixel_values = tiny.build_pixel_values(model, tiny.random_ids(3, 2))
        images = Inputs.create(pixel_values=pixel_values, num_patches=9)
        batch = Batch(encoder=images)
        annotations = model.net.encoder(images, batch)["last_hidden_state"]
        self.compare(model.net, batch, [*annotations], dict(model.net.named_parameters()))

    def test_encoder_states_with_padding_follow_the_equations(self) -> None:
        model = tiny.build("show-attend-tell")
        encoder, _ = build_padded(SOURCE_LENGTHS, "left", 1)
        assert encoder.attention_mask is not None
        mask = encoder.attention_mask
        generator = torch.Generator().manual_seed(3)
        states = torch.randn(*mask.shape, tiny.WIDTH, dtype=torch.float64, generator=generator)
        states.requires_grad_()
        batch = Batch(
            encoder_hidden_states=Inputs.create(inputs_embeds=states, attention_mask=mask)
        )
        annotations = [row[m] for row, m in zip(states, mask, strict=True)]
        parameters = {
            name: tensor
            for name, tensor in model.net.named_parameters()
            if not name.startswith("encoder.")
        }
        self.compare(model.net, batch, annotations, {"annotations": states, **parameters})


# --- what `look` and the extra outputs show ---


def build_batch(**settings: Any) -> Batch:
    encoder, _ = build_padded(SOURCE_LENGTHS, "left", 1)
    decoder, _ = build_padded(TARGET_LENGTHS, "right", 2)
    return Batch(encoder=encoder, decoder=decoder, **settings)


@pytest.mark.parametrize("feeds", [False, True])
def test_statistics_of_hard_attention_are_those_of_the_softmax(feeds: bool) -> None:
    """In evaluation mode, the location is the most probable one."""
    soft = tiny.build("luong", depth=1, input_feeding=feeds)
    hard = tiny.build("luong", depth=1, input_feeding=feeds, attention_select="hard")
    hard.net.load_state_dict(soft.net.state_dict())
    batch = build_batch(extra_outputs=("attention_log_probs", "attention_entropy"))
    with qkv.look(soft, "decoder.cross_attention") as weights:
        assert "attention_log_probs" not in soft.net(batch)
    with qkv.look(hard, "decoder.cross_attention") as samples:
        out = hard.net(batch)
    probs = weights["decoder.cross_attention"][:, 0, :1]  # of the first step, (B, 1, S)
    expected = {
        "attention_log_probs": probs.amax(-1).log(),
        "attention_entropy": -(probs * probs.clamp(min=1e-300).log()).sum(-1),
    }
    compare.assert_close({name: out[name][:, :1] for name in expected}, expected, 1e-12)
    sample = samples["decoder.cross_attention"][:, 0, :1]
    assert torch.equal(sample.argmax(-1), probs.argmax(-1))
    assert set(sample.unique().tolist()) == {0.0, 1.0}
    for name in expected:
        assert out[name].shape == (3, 6)
        assert out[name][0, 4:].eq(0).all()  # padding


@pytest.mark.parametrize("family", ["bahdanau", "luong", "lstmn"])
def test_coverage_is_the_sum_of_the_weights_of_each_source_token(family: str) -> None:
    model = tiny.build(family)
    batch = build_batch(extra_outputs=("attention_coverage",))
    with qkv.look(model, "decoder.cross_attention") as weights:
        out = model.net(batch)
    alignment = weights["decoder.cross_attention"]
    assert alignment.shape == (3, 1, 6, 7)
    for n, (source, target) in enumerate(zip(SOURCE_LENGTHS, TARGET_LENGTHS, strict=True)):
        assert alignment[n, 0, :target, : 7 - source].eq(0).all()  # padding, on the left
        assert alignment[n, 0, target:].eq(0).all()
        ones = torch.ones(target, dtype=torch.float64)
        compare.assert_close({"sum": alignment[n, 0, :target].sum(-1)}, {"sum": ones}, 1e-12)
    compare.assert_close(
        {"coverage": out["attention_coverage"]}, {"coverage": alignment[:, 0].sum(1)}
    )


def test_lstmn_attends_to_its_past() -> None:
    """Column 0 is the initial state, column n + 1 token n; an encoder has only zeros there."""
    model = tiny.build("lstmn")
    with qkv.look(model) as weights:
        model.net(build_batch())
    paths = [f"{stack}.layers.{n}.attention" for stack in ("encoder", "decoder") for n in range(2)]
    assert [*weights] == [*paths, "decoder.cross_attention"]
    encoder = weights["encoder.layers.1.attention"]
    assert encoder.shape == (3, 1, 7, 8)
    first = torch.tensor([7 - length for length in SOURCE_LENGTHS])  # padded on the left
    rows = torch.arange(3)
    assert encoder[rows, 0, first, 0].eq(1).all()
    assert encoder[rows, 0, first + 1, 0].eq(0).all()
    assert encoder[rows, 0, first + 1, first + 1].eq(1).all()  # the only earlier token
    decoder = weights["decoder.layers.0.attention"]
    assert decoder.shape == (3, 1, 6, 7)
    assert decoder[0, 0, 2, :3].gt(0).all()
    assert decoder[0, 0].triu(1).eq(0).all()


def test_a_model_without_attention_has_nothing_to_look_at() -> None:
    with (
        pytest.raises(ValueError, match="this model has no attention"),
        qkv.look(tiny.build("lstm-seq2seq")),
    ):
        pass


def test_a_decoder_without_its_encoder_is_an_error() -> None:
    ids = Inputs.create(tiny.random_ids(1, 3))
    states = Inputs.create(inputs_embeds=torch.zeros(1, 4, tiny.WIDTH, dtype=torch.float64))
    for batch, message in (
        (Batch(decoder=ids), "no encoder states"),
        (Batch(decoder=ids, encoder_hidden_states=states), "no final states"),
    ):
        with pytest.raises(ValueError, match=message):
            tiny.build("luong").net(batch)


class TestTextRows:
    MASK = torch.tensor([[True, True, False, True], [False, False, True, True]])
    IDS = torch.arange(8).view(2, 4)

    def test_padding_moves_to_the_end(self) -> None:
        rows = TextRows.create(Inputs.create(self.IDS, attention_mask=self.MASK))
        assert rows.lengths is not None
        assert rows.lengths.tolist() == [3, 2]
        gathered = rows.gather(self.IDS)
        assert [row[:n].tolist() for row, n in zip(gathered, (3, 2), strict=True)] == [
            [0, 1, 3],
            [6, 7],
        ]
        assert rows.scatter(gathered).tolist() == [[0, 1, 0, 3], [0, 0, 6, 7]]
        assert reverse_rows(gathered, rows.lengths)[1, :2].tolist() == [7, 6]

    def test_a_document_has_a_row_of_its_own(self) -> None:
        documents = torch.tensor([[5, 5, 5, 2], [2, 2, 2, 9]])
        inputs = Inputs.create(self.IDS, attention_mask=self.MASK, document_ids=documents)
        rows = TextRows.create(inputs)
        assert rows.lengths is not None
        assert rows.documents is not None
        assert rows.lengths.tolist() == [2, 1, 1, 1]
        assert rows.documents.tolist() == [[0, 5], [0, 2], [1, 2], [1, 9]]
        gathered = rows.gather(self.IDS)
        assert gathered[:, 0].tolist() == [0, 3, 6, 7]
        assert rows.scatter(gathered).tolist() == [[0, 1, 0, 3], [0, 0, 6, 7]]

    def test_rows_without_padding_stay_as_they_are(self) -> None:
        rows = TextRows.create(Inputs.create(self.IDS))
        assert rows.gather(self.IDS) is self.IDS
        assert rows.scatter(self.IDS) is self.IDS
        assert reverse_rows(self.IDS, None).tolist() == [[3, 2, 1, 0], [7, 6, 5, 4]]
