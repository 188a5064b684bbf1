"""Long texts are translated and summarized in chunks."""

from typing import Any

import pytest

import qkv
from qkv.tasks.chunking import chunk_text
from qkv.tasks.registry import create_task
from tests.tasks.test_tasks import load_golden
from tests.tasks.test_write import TEXTS, build_seq2seq

LONG = "Anna lives here. She plays the harp! Marie (his sister.) sings and sings and sings\nThe end comes"


def test_chunks_end_with_sentences_else_words_else_anywhere() -> None:
    task = qkv.task("translate", load_golden("marian"))

    def encode(text: str) -> Any:
        return task.encode([text])[0]

    def chunk(text: str, limit: int, before: str = "") -> list[str]:
        chunks = [*chunk_text(text, limit, encode, before)]
        assert "".join(gap + body for gap, body in chunks) == text
        assert all(len(encode(before + body)) <= limit for _, body in chunks)
        return [body for _, body in chunks]

    assert chunk(LONG, 200) == [LONG]
    num_tokens = len(encode(LONG))
    for body in chunk(LONG, num_tokens * 2 // 3):
        assert body.endswith((".", "!", ".)", "sings", "comes"))
    assert all(LONG.count(word) for body in chunk(LONG, 12) for word in body.split())
    assert len(chunk("sings" * 30, 12)) > 8
    assert chunk(LONG, 30, "Anna: ") != chunk(LONG, 30)
    even = [len(encode(body)) for body in chunk("Anna lives here. " * 9 + "Anna.", 30)]
    assert min(even) > max(even) / 2  # the last chunk is not much shorter
    with pytest.raises(ValueError, match="max_input_length leaves no token for the text"):
        chunk(LONG, 1)


def test_a_long_line_is_translated_in_chunks() -> None:
    task = qkv.task(
        "translate",
        load_golden("marian"),
        max_new_tokens=5,
        max_input_length=24,
        num_return_sequences=2,
    )
    text = f"  Anna.\n\n{LONG}\n"
    with pytest.raises(ValueError, match="tokens, expected at most 24"):
        task(text)
    result = task(text, overflow="window")
    assert len(result.candidates) == 2
    window = task.with_settings({"overflow": "window"})
    parts = [*window.segment_text(text)]
    assert "".join(gap + body for gap, body in parts) == text
    assert len(parts) > 5
    assert result.text == "".join(gap + (task(body).text if body else "") for gap, body in parts)
    assert result.text.startswith("  ")
    assert result.text.count("\n") == 4
    assert [item.text for item in window.map([text, "Anna."])] == [result.text, task("Anna.").text]
    by_sentence = task.with_settings(
        {"overflow": "window", "unit": "sentence", "max_input_length": 64}
    )
    # Equal to the bit: the same kernels run on the same shapes.
    assert by_sentence(LONG) == task(LONG, unit="sentence", max_input_length=64)


def test_segments_with_a_detected_language_are_those_that_were_encoded() -> None:
    """The code is one more token of every chunk, in encoding and in joining."""
    task = qkv.task(
        "translate", build_seq2seq(">>en<<", ">>de<<"), max_new_tokens=3, overflow="window"
    )
    for text in (TEXTS[0] * 4, TEXTS[1] * 4, f">>en<< {TEXTS[0]}"):
        for length in range(7, 30):
            directed, source = task.with_settings({"max_input_length": length}).resolve_direction(
                text
            )
            parts = [body for _, body in directed.segment_text(source) if body]
            result = task(text, max_input_length=length, alignment_layer="mean")
            assert len(result.alignments) == len(parts)
            assert result.text == directed(source).text


def test_segments_have_alignments() -> None:
    for name, model, text in (
        ("translate", load_golden("marian"), f"  Anna.\n\n{LONG}\n"),
        ("summarize", load_golden("t5"), LONG),
    ):
        settings: dict[str, Any] = dict(max_new_tokens=5, max_input_length=32, overflow="window")
        result = create_task(name, model, settings | {"alignment_layer": "mean"})(text)
        assert len(result.alignments) > 2
        ends = [0]
        for item in result.alignments:
            assert all(
                piece.text == text[piece.start : piece.end]
                for piece in item.source
                if piece.end > piece.start
            )
            assert item.source[0].start >= ends[-1]
            ends.append(item.source[-1].end)
        assert ends[-1] == len(text.rstrip())


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_a_long_text_is_summarized_in_chunks(name: str) -> None:
    task = qkv.task(
        "summarize",
        load_golden(name),
        max_new_tokens=6,
        num_return_sequences=2,
        max_input_length=32,
        overflow="window",
    )
    bodies = [str(item)[len(task.source_prefix) :] for item in task.prepare_texts(LONG, "text")]
    assert len(bodies) > 2
    parts = [task(body) for body in bodies]
    result = task(LONG)
    assert result.text == " ".join(item.text for item in parts)
    assert result.score == pytest.approx(sum(item.score for item in parts))
    assert len(result.candidates) == 2
    # Equal to the bit: the same kernels run on the same shapes.
    assert task("Anna lives.") == task("Anna lives.", overflow="error")


def test_recursive_summaries() -> None:
    task = qkv.task(
        "summarize",
        load_golden("bart"),
        max_new_tokens=9,
        min_length=0,
        max_input_length=32,
        overflow="window",
    )
    text = LONG * 3
    single_pass, recursive = task(text), task(text, recursive=True)
    passes = [text, single_pass.text]
    while len(task.prepare_texts(passes[-2], "text")) > 1 and len(passes[-1]) < len(passes[-2]):
        passes.append(task(passes[-1]).text)
    assert len(passes) > 2
    assert recursive.text == passes[-1]
    results = task.map(["Anna.", text], recursive=True)
    assert [item.text for item in results] == [task("Anna.").text, recursive.text]
