"""Word alignment: the weights of pieces merged into words, in the rows that predict them."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.explorer.inputs.builder import InputBuilder
from qkv.explorer.inputs.labels import TokenLabel, TokenSequence
from qkv.explorer.inputs.trace_inputs import UserInput
from qkv.explorer.trace.alignment import align_words, group_tokens
from qkv.explorer.trace.trace import Trace
from tests.explorer import models
from tests.explorer.trace.test_trace import look

SOURCE, TARGET = "cats sat on the tall mats", "dogs sang near the river"
WHOLE = slice(None)


def build_trace(name: str) -> Trace:
    builder = InputBuilder(model=models.build_model(name))
    user_input = UserInput(
        text=SOURCE if builder.describe_inputs()["text"] else "",
        target=TARGET,
        image=models.build_image() if builder.describe_inputs()["image"] else None,
    )
    return Trace(builder.model, builder.build(user_input))


def sum_by_word(weights: Tensor, trace: Trace, path: str) -> dict[tuple[int, int], float]:
    """Return the weights of words, added token by token: the row before a target token predicts it."""
    info = trace.attentions[path]
    target, source = trace.sequences[info.queries], trace.sequences[info.keys[0]]
    merged: dict[tuple[int, int], float] = {}
    counts = [
        sum(token.word == word for token in target.tokens) for word in range(len(target.words))
    ]
    for t, token in enumerate(target.tokens):
        if token.word is None:
            continue
        for s, key in enumerate(source.tokens):
            column = s if source.grid else key.word
            if column is not None and not key.special:
                place = (token.word, column)
                share = float(weights[t - 1, s]) / counts[token.word]
                merged[place] = merged.get(place, 0.0) + share
    return merged


def test_words_are_sums_over_their_pieces() -> None:
    for name in ("bart", "t5", "bahdanau"):
        trace = build_trace(name)
        for path, weights in look(trace).items():
            info = trace.attentions[path]
            if info.kind == "self":
                continue
            mean = weights.mean(0)
            words = align_words(trace, info, trace.compute_mean_weights(path, WHOLE, WHOLE)[0])
            assert words.source == SOURCE.split()
            assert words.target == TARGET.split()
            assert words.weights.shape == (5, 6)
            for (i, j), value in sum_by_word(mean, trace, path).items():
                assert abs(float(words.weights[i, j]) - value) < 1e-5
            assert words.weights.sum(-1).max() < 1 + 1e-5
    pieces = trace.sequences["encoder"].tokens
    assert len([token for token in pieces if token.word == 0]) > 1


def test_patches_are_columns() -> None:
    trace = build_trace("show-attend-tell")
    info = trace.attentions["decoder.cross_attention"]
    weights = trace.compute_mean_weights(info.path, WHOLE, WHOLE)[0]
    words = align_words(trace, info, weights)
    assert words.target == TARGET.split()
    assert words.source[:4] == ["0,0", "0,1", "0,2", "1,0"]
    torch.testing.assert_close(words.weights.sum(-1), torch.ones(5))
    for (i, j), value in sum_by_word(weights, trace, info.path).items():
        assert abs(float(words.weights[i, j]) - value) < 1e-5


def test_self_attention_is_not_shifted() -> None:
    builder = InputBuilder(model=models.build_model("bert"))
    trace = Trace(builder.model, builder.build(UserInput(text="cats sat", text_pair="the mats")))
    info = trace.attentions["encoder.layers.0.attention"]
    weights = trace.compute_mean_weights(info.path, WHOLE, WHOLE)[0]
    words = align_words(trace, info, weights)
    assert words.source == words.target == ["cats", "sat", "the", "mats"]
    tokens = trace.sequences["encoder"].tokens
    rows, columns = ([t for t, token in enumerate(tokens) if token.word == word] for word in (3, 0))
    expected = weights[rows][:, columns].sum(-1).mean()
    torch.testing.assert_close(words.weights[3, 0], expected)


def test_memory_comes_before_the_text() -> None:
    builder = InputBuilder(model=models.build_model("transformer-xl"))
    trace = Trace(builder.model, builder.build(UserInput(text="the cat", text_pair="sat on")))
    info = trace.attentions["decoder.layers.1.attention"]
    weights = trace.compute_mean_weights(info.path, WHOLE, WHOLE)[0]
    words = align_words(trace, info, weights)
    assert words.source == ["the", "cat", "sat", "on"]
    assert words.target == ["on"]  # "sat" is predicted by no row
    torch.testing.assert_close(words.weights[0, :3], weights[0, [3, 4, 5]])


def test_tokens_without_words_are_left_out() -> None:
    tokens = [TokenLabel(text="[CLS]", special=True), *(TokenLabel(text=x, word=n) for x, n in
              (("a", 0), ("b", 0))), TokenLabel(text=" "), TokenLabel(text="c", word=1)]  # fmt: skip
    sequence = TokenSequence(label="text", tokens=tuple(tokens), words=("ab", "c"))
    assert group_tokens(sequence, 0) == (["ab", "c"], [[1, 2], [4]])
    assert group_tokens(sequence, 2) == (["ab", "c"], [[2], [4]])
    assert group_tokens(sequence, 3) == (["c"], [[4]])
