"""What written texts were made of: the weights that `look` gives, and where pieces and words stand."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

import qkv
from qkv.tasks.alignment import Alignment, Piece, written_pieces
from qkv.tasks.base import trimmed
from tests.tasks.test_tasks import folder
from tests.tasks.test_write import TEXTS, ours, shaken

LINES = "  Wo ist der Bahnhof?\r\n\n\tSüß – 東京 👍🏽!  Ein Zug fährt.\n"


@cache
def deep() -> qkv.Model:
    """A decoder of three layers, of which no two align alike."""
    text = qkv.Tokenizer.train(TEXTS * 5, kind="char", vocab=90, purpose="seq2seq")
    sizes: dict[str, Any] = dict(width=16, depth=1, heads=2, feed=24, decoder_depth=3, decoder_heads=4)
    ids: dict[str, Any] = dict(vocab=len(text), length=64, start=text.bos, pad=text.pad, end=text.eos)
    model = shaken(qkv.build("transformer", **sizes, **ids, head="lm"))
    model.tokenizer = text
    return model


MODELS: dict[str, tuple[Callable[[], qkv.Model], dict[str, Any]]] = {
    "deep": (deep, {}), "ours": (lambda: ours(">>en<<", ">>de<<"), {"target": "en"}),
    "marian": (lambda: folder("marian"), {}), "bart": (lambda: folder("bart"), {}),
    "mbart": (lambda: folder("mbart"), {"source": "en", "target": "de"}),
    "t5": (lambda: folder("t5"), {"prefix": "to German: "}),
}  # fmt: skip


def translate(name: str, **settings: Any) -> Any:
    model, more = MODELS[name]
    return qkv.task("translate", model(), max_new=9, **more, **settings)


def seen(task: Any, text: str, tokens: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """What `look` sees of a plain run on what was read and written: (heads, written, read)."""
    (row,) = task.all_rows([text], ["text"])[0]
    ids = [task.tokenizer.id(token) for token in tokens]
    shift = task.model.net.spec.shift
    start = shift.first if task.how.start is None else task.how.start
    with qkv.look(task.model, r"decoder\..*\.cross") as found:
        task.model.run(torch.tensor([row.tokens.ids]), target=torch.tensor([[start, *ids[:-1]]]))
    return {path: weights[0] for path, weights in found.items()}


@pytest.mark.parametrize("name", [*MODELS])
def test_weights_are_those_that_look_gives(name: str) -> None:
    task = translate(name, beams=2)
    plain = task(TEXTS[0])
    every = seen(task, TEXTS[0], plain.tokens)
    layers = [weights.mean(0) for weights in every.values()]
    wanted = {"penultimate": layers[-2], "mean": torch.stack(layers).mean(0), 0: layers[0], -1: layers[-1]}
    for layer, weights in wanted.items():
        found = task(TEXTS[0], alignment=layer)
        assert (found.text, found.score, found.tokens) == (plain.text, plain.score, plain.tokens)
        (alignment,) = found.alignments
        assert len(alignment.target) == len(plain.tokens)
        torch.testing.assert_close(torch.tensor(alignment.weights), weights.float(), rtol=0, atol=1e-6)
        assert [sum(row) for row in alignment.weights] == pytest.approx([1.0] * len(plain.tokens), abs=1e-5)
    assert plain.alignments == ()


def test_of_three_layers_the_middle_one_is_the_penultimate() -> None:
    task = translate("deep")
    assert task(TEXTS[0], alignment="penultimate") == task(TEXTS[0], alignment=1)
    every = [task(TEXTS[0], alignment=layer).alignments for layer in (0, 1, 2)]
    assert every[0] != every[1] != every[2] != every[0]
    assert task(TEXTS[0], alignment=-3).alignments == every[0]


def test_every_result_has_its_own() -> None:
    found = translate("deep", alignment="mean")(TEXTS[0], results=3)
    assert found.alignments == found.best[0].alignments
    assert len({one.alignments for one in found.best}) == 3
    for one in found.best:
        assert tuple(len(each.target) for each in one.alignments) == (len(one.tokens),)


@pytest.mark.parametrize("name", [*MODELS])
def test_alone_is_as_in_company(name: str) -> None:
    task = translate(name, alignment="penultimate", results=2)
    texts = [TEXTS[0], "Ein Zug.", " ".join(TEXTS), LINES] if name != "bart" else TEXTS
    alone = [task(text) for text in texts]
    for budget in (1, 4096):
        for one, other in zip(task.many(texts, batch_tokens=budget), alone, strict=True):
            assert one.text == other.text
            for mine, theirs in zip(one.alignments, other.alignments, strict=True):
                assert (mine.source, mine.target) == (theirs.source, theirs.target)
                for row, wanted in zip(mine.weights, theirs.weights, strict=True):
                    assert row == pytest.approx(wanted, abs=1e-5)


# --- where pieces stand ---


@pytest.mark.parametrize("name", [*MODELS])
@pytest.mark.parametrize("by", ["line", "sentence"])
def test_offsets_point_into_both_texts(name: str, by: str) -> None:
    found = translate(name, alignment="mean", by=by)(LINES)
    more = ["Süß – 東京 👍🏽!  Ein Zug fährt."] if by == "line" else ["Süß – 東京 👍🏽!", "Ein Zug fährt."]
    for alignment, part in zip(found.alignments, ["Wo ist der Bahnhof?", *more], strict=True):
        start, end = LINES.index(part), LINES.index(part) + len(part)
        for one in (alignment, alignment.words()):
            for pieces, text in ((one.source, LINES), (one.target, found.text)):
                held = [piece for piece in pieces if piece.start < piece.end]
                assert all(text[piece.start : piece.end] == piece.text for piece in held)
                assert [piece.start for piece in pieces] == sorted(piece.start for piece in pieces)
            assert all(start <= piece.start <= piece.end <= end for piece in one.source)
        read = {place for piece in alignment.source for place in range(piece.start, piece.end)}
        assert {place for place in range(start, end) if not LINES[place].isspace()} <= read
    written = {p for one in found.alignments for piece in one.target for p in range(piece.start, piece.end)}
    assert {place for place, letter in enumerate(found.text) if not letter.isspace()} <= written


def test_what_was_not_given_has_no_characters() -> None:
    (alignment,) = translate("t5", alignment=0)(TEXTS[0]).alignments
    before = [piece for piece in alignment.source if piece.start == piece.end == 0]
    assert "".join(piece.text for piece in before).replace(" ", "").endswith("toGerman:")
    assert alignment.source[-1] == Piece("</s>", 19, 19)
    (alignment,) = translate("ours", alignment=0)(TEXTS[0]).alignments
    assert alignment.source[0] == Piece(">>en<<", 0, 0)
    words = alignment.words()
    assert "".join(piece.text for piece in words.source) == TEXTS[0].replace(" ", "")


@pytest.mark.parametrize("kind", "char word wordpiece bpe byte unigram".split())
def test_written_pieces_lie_where_an_encoding_says(kind: str) -> None:
    purpose = "bert" if kind == "wordpiece" else "seq2seq"
    tokenizer = qkv.Tokenizer.train(TEXTS * 3, kind=kind, vocab=400, purpose=purpose)
    for text in ("Wo ist der Zug?", "Where is the Zug", "Süß – 東京 👍🏽!"):
        encoding = tokenizer.encode(text)
        said = tokenizer.decode(encoding.ids).strip()
        pieces = written_pieces(tokenizer, encoding.ids, said)
        assert all(said[one.start : one.end] in (one.text, "") for one in pieces)
        assert {i for one in pieces for i in range(one.start, one.end)} >= {
            i for i, letter in enumerate(said) if not letter.isspace()
        }
        if said == text:
            spans = [trimmed(text, *span) for span in encoding.offsets]
            held = [(one, span) for one, span in zip(pieces, spans, strict=True) if span[0] < span[1]]
            assert [(one.start, one.end) for one, _ in held] == [span for _, span in held]


# --- words ---


def test_words_sum_over_the_source_and_mean_over_the_target() -> None:
    source = (Piece(">>en<<", 0, 0), Piece("Bahn", 0, 4), Piece("hof", 4, 7), Piece("?", 7, 8))
    target = (Piece("sta", 2, 5), Piece("tion", 5, 9), Piece("?", 9, 10), Piece("</s>", 10, 10))
    rows = ((0.1, 0.2, 0.3, 0.4), (0.3, 0.3, 0.4, 0.0), (0.0, 0.0, 0.25, 0.75), (1.0, 0.0, 0.0, 0.0))
    words = Alignment(source, target, rows).words()
    assert words.source == (Piece("Bahnhof", 0, 7), Piece("?", 7, 8))
    assert words.target == (Piece("station", 2, 9), Piece("?", 9, 10))
    assert words.weights[0] == pytest.approx((0.6, 0.2))
    assert words.weights[1] == pytest.approx((0.25, 0.75))
    assert words.best() == (0, 1)
    assert words.words() == words
    assert Alignment((), target[:1], ((),)).words().best() == (None,)


@pytest.mark.parametrize(("text", "words"), [
    ("It's on-line, z.B. 3.5 m!", "It's on-line , z.B . 3.5 m !"), ("<b>x</b> ", "<b>x< / b>"), ("", ""),
    ("„Ja“, sagte sie.", "„ Ja “ , sagte sie ."), ("a_b 'tis' €5", "a_b ' tis ' €5"),
    ("हिन्दी में", "हिन्दी में"), ("e\u0301te\u0301 là", "e\u0301te\u0301 là"), ("東京へ。", "東 京 へ 。"),
])  # fmt: skip
def test_what_a_word_is(text: str, words: str) -> None:
    letters = tuple(Piece(letter, i, i + 1) for i, letter in enumerate(text) if not letter.isspace())
    found = Alignment(letters, (), ()).words().source
    assert [piece.text for piece in found] == words.split()


def test_a_piece_belongs_where_it_begins() -> None:
    pieces = (
        Piece("東京", 0, 2),
        Piece("へ", 2, 3),
        Piece("in the", 4, 10),
        Piece("m", 10, 11),
        Piece("é", 12, 13),
    )
    both = Alignment((*pieces, pieces[-1]), (), ()).words().source
    assert [piece.text for piece in both] == ["東京", "へ", "in the", "m", "é"]


@pytest.mark.parametrize("layer", [3, -4, 1.0, True, "last", ()])
def test_no_such_layer(layer: Any) -> None:
    with pytest.raises(ValueError, match=r"alignment is .*expected") as error:
        translate("deep", alignment=layer)
    assert "\n" not in str(error.value)
