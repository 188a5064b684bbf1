"""Alignments: the weights that `look` gives, and the offsets of tokens and words."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

import qkv
from qkv.tasks.alignment import Alignment, TextSpan, locate_target_tokens
from qkv.tasks.base import trim_span
from tests.tasks.test_tasks import load_golden
from tests.tasks.test_write import TEXTS, build_seq2seq, randomize

LINES = "  Wo ist der Bahnhof?\r\n\n\tSüß – 東京 👍🏽!  Ein Zug fährt.\n"


@cache
def build_deep_decoder() -> qkv.Model:
    """Return a model with three decoder layers that align differently."""
    tokenizer = qkv.Tokenizer.train(TEXTS * 5, type="char", vocab_size=90, template="seq2seq")
    sizes: dict[str, Any] = dict(
        width=16, depth=1, heads=2, ffn_width=24, decoder_depth=3, decoder_heads=4,
        vocab_size=len(tokenizer), max_positions=64,
    )  # fmt: skip
    token_ids: dict[str, Any] = dict(
        decoder_start_token_id=tokenizer.bos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = randomize(qkv.build("transformer", **sizes, **token_ids, head="lm"))
    model.tokenizer = tokenizer
    return model


MODELS: dict[str, tuple[Callable[[], qkv.Model], dict[str, Any]]] = {
    "deep": (build_deep_decoder, {}),
    "seq2seq": (lambda: build_seq2seq(">>en<<", ">>de<<"), {"tgt_lang": "en"}),
    "marian": (lambda: load_golden("marian"), {}), "bart": (lambda: load_golden("bart"), {}),
    "mbart": (lambda: load_golden("mbart"), {"src_lang": "en", "tgt_lang": "de"}),
    "t5": (lambda: load_golden("t5"), {"prefix": "to German: "}),
}  # fmt: skip


def build_translate_task(name: str, **settings: Any) -> Any:
    model, more = MODELS[name]
    return qkv.task("translate", model(), max_new_tokens=9, **more, **settings)


def look_at_cross_attention(
    task: Any, text: str, tokens: tuple[str, ...]
) -> dict[str, torch.Tensor]:
    """Return what `look` gives for source and generated tokens: (heads, target, source)."""
    (row,) = task.preprocess([text], ["text"])[0]
    ids = task.tokenizer.convert_tokens_to_ids([*tokens])
    start = task.generation_config.decoder_start_token_id
    if start is None:
        start = task.model.net.spec.shift_right.start_token_id
    decoder_input_ids = torch.tensor([[start, *ids[:-1]]])
    with qkv.look(task.model, r"decoder\..*\.cross_attention") as result:
        task.model(torch.tensor([row.encoding.input_ids]), decoder_input_ids=decoder_input_ids)
    return {path: weights[0] for path, weights in result.items()}


@pytest.mark.parametrize("name", [*MODELS])
def test_weights_equal_those_of_look(name: str) -> None:
    task = build_translate_task(name, num_beams=2)
    plain = task(TEXTS[0])
    by_layer = look_at_cross_attention(task, TEXTS[0], plain.tokens)
    layers = [weights.mean(0) for weights in by_layer.values()]
    expected = {
        "penultimate": layers[-2],
        "mean": torch.stack(layers).mean(0),
        0: layers[0],
        -1: layers[-1],
    }
    for layer, weights in expected.items():
        result = task(TEXTS[0], alignment_layer=layer)
        assert (result.text, result.score, result.tokens) == (plain.text, plain.score, plain.tokens)
        (alignment,) = result.alignments
        assert len(alignment.target) == len(plain.tokens)
        torch.testing.assert_close(
            torch.tensor(alignment.weights), weights.float(), rtol=0, atol=1e-6
        )
        assert [sum(row) for row in alignment.weights] == pytest.approx(
            [1.0] * len(plain.tokens), abs=1e-5
        )
    assert plain.alignments == ()


def test_penultimate_of_three_layers() -> None:
    task = build_translate_task("deep")
    # Equal to the bit: the same kernels run on the same shapes.
    assert task(TEXTS[0], alignment_layer="penultimate") == task(TEXTS[0], alignment_layer=1)
    alignments = [task(TEXTS[0], alignment_layer=layer).alignments[0] for layer in (0, 1, 2)]
    assert [alignment.layer for alignment in alignments] == [0, 1, 2]
    by_layer = [alignment.weights for alignment in alignments]
    assert by_layer[0] != by_layer[1] != by_layer[2] != by_layer[0]
    assert task(TEXTS[0], alignment_layer=-3).alignments == (alignments[0],)
    (mean,) = task(TEXTS[0], alignment_layer="mean").alignments
    assert mean.layer == mean.merge_into_words().layer == "mean"


def test_every_candidate_has_an_alignment() -> None:
    result = build_translate_task("deep", alignment_layer="mean")(TEXTS[0], num_return_sequences=3)
    assert result.alignments == result.candidates[0].alignments
    assert len({item.alignments for item in result.candidates}) == 3
    for item in result.candidates:
        assert tuple(len(each.target) for each in item.alignments) == (len(item.tokens),)


@pytest.mark.parametrize("name", [*MODELS])
def test_alignments_do_not_depend_on_the_batch(name: str) -> None:
    task = build_translate_task(name, alignment_layer="penultimate", num_return_sequences=2)
    texts = [TEXTS[0], "Ein Zug.", " ".join(TEXTS), LINES] if name != "bart" else TEXTS
    alone = [task(text) for text in texts]
    for budget in (1, 4096):
        for item, other in zip(task.map(texts, batch_tokens=budget), alone, strict=True):
            assert item.text == other.text
            for alignment, expected_alignment in zip(
                item.alignments, other.alignments, strict=True
            ):
                assert (alignment.source, alignment.target) == (
                    expected_alignment.source,
                    expected_alignment.target,
                )
                for row, expected in zip(
                    alignment.weights, expected_alignment.weights, strict=True
                ):
                    assert row == pytest.approx(expected, abs=1e-5)


# --- where pieces stand ---


@pytest.mark.parametrize("name", [*MODELS])
@pytest.mark.parametrize("unit", ["line", "sentence"])
def test_offsets_refer_to_both_texts(name: str, unit: str) -> None:
    result = build_translate_task(name, alignment_layer="mean", unit=unit)(LINES)
    more = (
        ["Süß – 東京 👍🏽!  Ein Zug fährt."]
        if unit == "line"
        else ["Süß – 東京 👍🏽!", "Ein Zug fährt."]
    )
    for alignment, part in zip(result.alignments, ["Wo ist der Bahnhof?", *more], strict=True):
        start, end = LINES.index(part), LINES.index(part) + len(part)
        for item in (alignment, alignment.merge_into_words()):
            for pieces, text in ((item.source, LINES), (item.target, result.text)):
                nonempty = [piece for piece in pieces if piece.start < piece.end]
                assert all(text[piece.start : piece.end] == piece.text for piece in nonempty)
                assert [piece.start for piece in pieces] == sorted(piece.start for piece in pieces)
            assert all(start <= piece.start <= piece.end <= end for piece in item.source)
        read = {place for piece in alignment.source for place in range(piece.start, piece.end)}
        assert {place for place in range(start, end) if not LINES[place].isspace()} <= read
    covered = {
        p
        for item in result.alignments
        for piece in item.target
        for p in range(piece.start, piece.end)
    }
    assert {place for place, letter in enumerate(result.text) if not letter.isspace()} <= covered


def test_prefix_and_special_tokens_have_no_characters() -> None:
    (alignment,) = build_translate_task("t5", alignment_layer=0)(TEXTS[0]).alignments
    without_characters = [piece for piece in alignment.source if piece.start == piece.end == 0]
    assert (
        "".join(piece.text for piece in without_characters).replace(" ", "").endswith("toGerman:")
    )
    assert alignment.source[-1] == TextSpan("</s>", 19, 19)
    (alignment,) = build_translate_task("seq2seq", alignment_layer=0)(TEXTS[0]).alignments
    assert alignment.source[0] == TextSpan(">>en<<", 0, 0)
    words = alignment.merge_into_words()
    assert "".join(piece.text for piece in words.source) == TEXTS[0].replace(" ", "")


@pytest.mark.parametrize("tokenizer_type", "char word wordpiece bpe byte unigram".split())
def test_target_spans_equal_the_offsets_of_an_encoding(tokenizer_type: str) -> None:
    template = "bert" if tokenizer_type == "wordpiece" else "seq2seq"
    tokenizer = qkv.Tokenizer.train(
        TEXTS * 3, type=tokenizer_type, vocab_size=400, template=template
    )
    for text in ("Wo ist der Zug?", "Where is the Zug", "Süß – 東京 👍🏽!"):
        (encoding,) = tokenizer.encode_batch([text])
        decoded = tokenizer.decode(encoding.input_ids, skip_special_tokens=True).strip()
        pieces = locate_target_tokens(tokenizer, encoding.input_ids, decoded)
        assert all(decoded[item.start : item.end] in (item.text, "") for item in pieces)
        assert {i for item in pieces for i in range(item.start, item.end)} >= {
            i for i, letter in enumerate(decoded) if not letter.isspace()
        }
        if decoded == text:
            spans = [trim_span(text, *span) for span in encoding.offset_mapping]
            nonempty = [
                (item, span) for item, span in zip(pieces, spans, strict=True) if span[0] < span[1]
            ]
            assert [(item.start, item.end) for item, _ in nonempty] == [
                span for _, span in nonempty
            ]


# --- words ---


def test_word_weights_are_summed_over_source_and_averaged_over_target() -> None:
    source = (
        TextSpan(">>en<<", 0, 0),
        TextSpan("Bahn", 0, 4),
        TextSpan("hof", 4, 7),
        TextSpan("?", 7, 8),
    )
    target = (
        TextSpan("sta", 2, 5),
        TextSpan("tion", 5, 9),
        TextSpan("?", 9, 10),
        TextSpan("</s>", 10, 10),
    )
    rows = (
        (0.1, 0.2, 0.3, 0.4),
        (0.3, 0.3, 0.4, 0.0),
        (0.0, 0.0, 0.25, 0.75),
        (1.0, 0.0, 0.0, 0.0),
    )
    words = Alignment(source, target, rows).merge_into_words()
    assert words.source == (TextSpan("Bahnhof", 0, 7), TextSpan("?", 7, 8))
    assert words.target == (TextSpan("station", 2, 9), TextSpan("?", 9, 10))
    assert words.weights[0] == pytest.approx((0.6, 0.2))
    assert words.weights[1] == pytest.approx((0.25, 0.75))
    assert words.argmax() == (0, 1)
    assert words.merge_into_words() == words
    assert Alignment((), target[:1], ((),)).merge_into_words().argmax() == (None,)


@pytest.mark.parametrize(("text", "words"), [
    ("It's on-line, z.B. 3.5 m!", "It's on-line , z.B . 3.5 m !"), ("<b>x</b> ", "<b>x< / b>"), ("", ""),
    ("„Ja“, sagte sie.", "„ Ja “ , sagte sie ."), ("a_b 'tis' €5", "a_b ' tis ' €5"),
    ("हिन्दी में", "हिन्दी में"), ("e\u0301te\u0301 là", "e\u0301te\u0301 là"), ("東京へ。", "東 京 へ 。"),
])  # fmt: skip
def test_word_boundaries(text: str, words: str) -> None:
    letters = tuple(
        TextSpan(letter, i, i + 1) for i, letter in enumerate(text) if not letter.isspace()
    )
    result = Alignment(letters, (), ()).merge_into_words().source
    assert [piece.text for piece in result] == words.split()


def test_a_token_belongs_to_the_word_in_which_it_starts() -> None:
    pieces = (
        TextSpan("東京", 0, 2),
        TextSpan("へ", 2, 3),
        TextSpan("in the", 4, 10),
        TextSpan("m", 10, 11),
        TextSpan("é", 12, 13),
    )
    both = Alignment((*pieces, pieces[-1]), (), ()).merge_into_words().source
    assert [piece.text for piece in both] == ["東京", "へ", "in the", "m", "é"]


@pytest.mark.parametrize("layer", [3, -4, 1.0, True, "last", ()])
def test_invalid_layers(layer: Any) -> None:
    with pytest.raises(ValueError, match=r"alignment_layer is .*expected") as error:
        build_translate_task("deep", alignment_layer=layer)
    assert "\n" not in str(error.value)
