"""Encoders and sources: records become rows and examples; what is wrong is said with its place."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.data.batches.dataset import Documents, Framed, Packed, Pieces, Segmented, Stream, Windows
from qkv.data.encode.encoder import Coded, Encoder, Pairs, Sentences, Texts
from qkv.data.encode.labels import Answered, Chosen, Labelled, Tagged, from_bits, labels_of, to_bits
from qkv.data.encode.special_tokens import frame
from qkv.data.read.record import Record
from qkv.data.store.prepare import prepare
from qkv.data.store.shards import Shards
from qkv.text import Tokenizer

LINES = ["the cat sat on the mat.", "a dog ran to the red house!", "who is there? it is Anna."]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer")
    made = Tokenizer.train(LINES * 9, kind="wordpiece", vocab=70, purpose="bert", codes=["Pets", "Ships"])
    made.save(folder)
    return str(folder)


def record(**values: object) -> Record:
    return Record(values, "x.csv, line 7")


def kept(encoder: Encoder, records: list[Record], folder: Path) -> Shards:
    return prepare(records, encoder, folder, fields=encoder.fields(), made_from={})


def test_a_frame_is_what_a_tokenizer_puts_around_texts(home: str) -> None:
    text = Tokenizer.load(home)
    a, b = (np.array(ids) for ids in text.encode_ids(LINES[:2], special=False))
    one, two = frame(text), frame(text, 2)
    assert one.tokens(a).tolist() == text.encode(LINES[0]).ids
    assert two.tokens(a, b).tolist() == text.encode(LINES[0], LINES[1]).ids
    assert two.kinds(a, b).tolist() == text.encode(LINES[0], LINES[1]).types
    assert (one.size, two.size) == (2, 3)


def test_a_tokenizer_that_was_made_anew_is_read_anew(tmp_path: Path) -> None:
    folder = str(tmp_path / "tok")
    for text in ("a bc", "c ab d"):
        made = Tokenizer.train([text], kind="char", purpose="plain")
        made.save(folder)
        encoder = Texts(tokenizer=folder)
        assert encoder([record(text=text)])[0]["tokens"] == made.encode(text).ids
        assert "text" in vars(encoder)
        assert "text" not in vars(pickle.loads(pickle.dumps(encoder)))  # each process opens its own


def test_running_text_ends_every_record_and_tells_where_words_begin(home: str) -> None:
    text = Tokenizer.load(home)
    plain, marked = Texts(tokenizer=home), Texts(tokenizer=home, words=True)
    rows, more = plain([record(text=LINES[0])]), marked([record(text=LINES[0])])
    assert rows[0]["tokens"] == more[0]["tokens"] == [*text.encode(LINES[0], special=False).ids, text.sep]
    words = text.encode(LINES[0], special=False).words
    assert sum(more[0]["starts"]) == len({*words}) + 1
    assert more[0]["starts"][0] == 1


def test_what_is_too_long_is_refused_cut_or_left_to_be_split(home: str) -> None:
    long = record(text=LINES[0] * 9)
    with pytest.raises(ValueError, match=r"x\.csv, line 7: \d+ tokens, expected at most 18"):
        Texts(tokenizer=home, length=20, around=2)([long])
    cut = Texts(tokenizer=home, length=20, around=2, long="cut", ends=False)([long])
    assert len(cut[0]["tokens"]) == 18
    whole = Texts(tokenizer=home, length=20, around=2, long="split", ends=False)([long])
    assert len(whole[0]["tokens"]) > 20
    with pytest.raises(ValueError, match=r"data\.long 'split', expected one of refuse, cut: what is asked"):
        Labelled(tokenizer=home, long="split")
    with pytest.raises(ValueError, match=r"data\.long 'drop', expected one of refuse, cut, split"):
        Texts(tokenizer=home, long="drop")


def test_documents_are_cut_framed_and_packed(home: str, tmp_path: Path) -> None:
    encoder = Texts(tokenizer=home, ends=False, words=True, length=16, around=2, long="split")
    held = kept(encoder, [record(text=line) for line in (LINES[0] * 3, LINES[1], LINES[2])], tmp_path)
    text = Tokenizer.load(home)
    around, pieces = frame(text), Pieces(Documents(held), 14)
    assert pieces.lengths().max() == 14
    assert sum(pieces.lengths()) == held.tokens()
    framed = Framed(pieces, around)
    assert framed[0]["tokens"][[0, -1]].tolist() == [text.cls, text.sep]
    assert len(framed[0]["starts"]) == len(framed[0]["tokens"]) == 16
    rows = Packed(framed, pieces.lengths() + 2, 32)
    assert sum(len(rows[i]["tokens"]) for i in range(len(rows))) == held.tokens() + 2 * len(pieces)
    for i in range(len(rows)):
        row = rows[i]
        assert len(row["tokens"]) == len(row["starts"]) == len(row["document"]) <= 32
        starts = np.flatnonzero(np.diff(row["document"], prepend=-1))
        assert (row["tokens"][starts] == text.cls).all()


def test_a_stream_has_blocks_of_any_place(home: str, tmp_path: Path) -> None:
    held = kept(Texts(tokenizer=home, ends=False), [record(text=line) for line in LINES], tmp_path)
    stream = Stream(held, 8, ahead=1)
    assert stream[3]["tokens"].tolist() == held.slice(3, 12).tolist()
    with pytest.raises(ValueError, match=r"tokens in all, expected 1001 at least"):
        Stream(held, 1000, ahead=1)


def test_documents_are_made_of_sentences(home: str, tmp_path: Path) -> None:
    encoder = Sentences(tokenizer=home)
    by_line, by_stop = encoder([record(text="\n".join(LINES)), record(text=" ".join(LINES))])
    assert len(by_line["sentences"]) == 3
    assert len(by_stop["sentences"]) == 4  # who is there? it is Anna.
    assert sum(by_stop["sentences"]) == len(by_stop["tokens"])
    held = kept(
        Sentences(tokenizer=home, words=True), [record(text="\n".join(LINES)), record(text="a")], tmp_path
    )
    made = Segmented(Documents(held), 1000, marked=True)
    assert len(made) == 1  # one token is no pair
    sentences = made[0]["documents"][0]
    assert [len(each) for each in sentences] == by_line["sentences"]
    assert (np.concatenate(sentences) >> 1).tolist() == by_line["tokens"]


def test_a_code_is_one_that_the_tokenizer_knows(home: str) -> None:
    text, encoder = Tokenizer.load(home), Coded(tokenizer=home)
    assert encoder([record(code="Ships", text=LINES[0])])[0]["code"] == [text.languages["Ships"]]
    with pytest.raises(ValueError, match=r"line 7: code 'Cars', expected one of: Pets, Ships"):
        encoder([record(code="Cars", text="x")])
    with pytest.raises(ValueError, match=r"line 7: no column 'code'; the columns are 'text'"):
        encoder([record(text="x")])


def test_a_source_is_made_of_columns(home: str) -> None:
    text = Tokenizer.load(home)
    encoder = Pairs(tokenizer=home, source="{question} {context}", target="{answers}")
    one = record(question="who?", context="it is Anna.", answers=[{"text": "Anna", "start": 6}])
    row = encoder([one])[0]
    assert row == {"source": text.encode("who? it is Anna.").ids, "target": text.encode("Anna").ids}
    assert encoder([record(question="who?", context="it", answers=[])])[0]["target"] == text.encode("").ids
    with pytest.raises(ValueError, match=r"line 7: no column 'context'"):
        encoder([record(question="who?", answers=[])])
    with pytest.raises(
        ValueError, match=r"objective\.source 'translate': expected a text with columns in it"
    ):
        Pairs(tokenizer=home, source="translate")


def test_labels_are_names_several_names_or_numbers(home: str) -> None:
    texts: dict[str, Any] = dict(text=LINES[0], pair=LINES[1])
    single = Labelled(tokenizer=home, labels=("no", "yes"))
    assert single([record(**texts, label="yes")])[0]["label"] == [1]
    assert single([record(**texts, label="yes")])[0]["types"][-1] == 1
    with pytest.raises(ValueError, match=r"line 7: label 'maybe', expected one of no, yes"):
        single([record(**texts, label="maybe")])
    with pytest.raises(ValueError, match=r"line 7: no column 'label'"):
        single([record(**texts)])
    several = Labelled(tokenizer=home, labels=("a", "b", "c"), kind="several")
    rows = several(
        [record(text="x", label=["c", "a"]), record(text="x", label="b, c"), record(text="x", label=[])]
    )
    assert [row["label"] for row in rows] == [[0, 2], [1, 2], []]
    number = Labelled(tokenizer=home, kind="regression")
    bits = number([record(text="x", label="-2.5")])[0]["label"]
    assert from_bits(np.array(bits)).tolist() == [-2.5]
    assert from_bits(np.array([to_bits(0.1, record())])).tolist() == [np.float32(0.1)]
    for wrong in ("x", "nan", None):
        with pytest.raises(ValueError, match=r"line 7: label .*, expected a number"):
            number([record(text="x", label=wrong)])
    assert labels_of([record(label="10"), record(label="9"), record(label="x")]) == ("9", "10", "x")
    assert labels_of([record(label="b,a")], kind="several") == ("a", "b")


def test_the_first_token_of_a_word_has_its_tag(home: str) -> None:
    encoder = Tagged(tokenizer=home, labels=("O", "NAME"))
    row = encoder([record(words=["it", "is", "Annabel"], tags=["O", "O", "NAME"])])[0]
    text = Tokenizer.load(home)
    words = text.encode_words(["it", "is", "Annabel"]).words
    first = [i for i, word in enumerate(words) if word is not None and word not in words[:i]]
    assert [row["labels"][i] for i in first] == [1, 1, 2]
    assert all(label == 0 for i, label in enumerate(row["labels"]) if i not in first)
    with pytest.raises(ValueError, match=r"line 7: 2 words and 1 tags, expected one each"):
        encoder([record(words=["it", "is"], tags=["O"])])
    with pytest.raises(ValueError, match=r"line 7: column 'words' holds 'it is', expected a list"):
        encoder([record(words="it is", tags=["O"])])


def test_an_answer_is_found_in_the_windows_that_hold_it(home: str, tmp_path: Path) -> None:
    text = Tokenizer.load(home)
    context = " ".join(LINES[:2] * 3) + " " + LINES[2]
    start = context.index("Anna")
    one = record(question="who?", context=context, answers=[{"text": "Anna", "start": start}])
    none = record(question="who?", context=context, answers=[])
    encoder = Answered(tokenizer=home, length=32, long="split", stride=8)
    row, empty = encoder([one, none])
    assert len(row["windows"]) > 2
    assert {*empty["start"], *empty["end"]} == {0}  # the token [CLS]
    held = Windows(Documents(kept(encoder, [one, none], tmp_path)))
    assert len(held) == 2 * len(row["windows"])
    assert held.lengths().tolist() == 2 * row["windows"]
    found = 0
    for i in range(len(row["windows"])):
        window = held[i]
        assert len(window["tokens"]) == len(window["types"]) <= 32
        if window["start"]:
            found += 1
            inside = window["tokens"][window["start"] : window["end"] + 1].tolist()
            assert text.decode(inside) == "Anna"
    assert found >= 1


def test_a_window_that_cuts_an_answer_does_not_hold_it(home: str) -> None:
    context = " ".join(LINES[:2] * 3)
    long = context[40:]
    one = record(question="who?", context=context, answers=[{"text": long, "start": 40}])
    row = Answered(tokenizer=home, length=24, long="split", stride=4)([one])[0]
    assert len(row["windows"]) > 2
    assert {*row["start"], *row["end"]} == {0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(answers=[{"text": "Anna", "start": 1}]), "does not stand at character 1"),
        (dict(answers=[{"text": "Anna"}]), "expected a text and its start"),
        (dict(answers="Anna"), "answer 'Anna', expected a text and its start"),
        (dict(answers=7), "column 'answers' holds 7, expected a list"),
        (dict(question="who is there? " * 9), "expected more than the stride, 8"),
    ],
)
def test_an_answer_that_is_wrong_is_refused(home: str, change: Mapping[str, Any], message: str) -> None:
    given = {"question": "who?", "context": LINES[2], "answers": [{"text": "Anna", "start": 20}], **change}
    with pytest.raises(ValueError, match=rf"x\.csv, line 7: .*{message}"):
        Answered(tokenizer=home, length=32, long="split", stride=8)([record(**given)])


def test_choices_are_of_one_number(home: str) -> None:
    encoder = Chosen(tokenizer=home, choices=2)
    text = Tokenizer.load(home)
    row = encoder([record(text="who?", choices=["Anna", "a dog"], label=1)])[0]
    ids = [text.encode("who?", choice).ids for choice in ("Anna", "a dog")]
    assert row["tokens"] == [*ids[0], *ids[1]]
    assert row["windows"] == [len(each) for each in ids]
    with pytest.raises(ValueError, match=r"line 7: 3 choices, expected 2"):
        encoder([record(text="who?", choices=["a", "b", "c"], label=1)])
    with pytest.raises(ValueError, match=r"line 7: label 2, expected one of 0, 1"):
        encoder([record(text="who?", choices=["a", "b"], label=2)])


def test_an_image_is_scaled_and_cut_around_its_middle(home: str, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    from qkv.data.encode.images import MEAN, STD, Captioned, pixels

    wide = image.new("RGB", (40, 20), (255, 0, 0))
    wide.paste((0, 0, 255), (0, 0, 10, 20))
    wide.save(tmp_path / "wide.png")
    found = pixels(str(tmp_path / "wide.png"), 10)
    assert found.shape == (3, 10, 10)
    assert found[:, 5, 5] == pytest.approx((np.array([1, 0, 0]) - MEAN) / STD, abs=1e-5)
    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(ValueError, match=r"line 7: .*text\.png is no image that can be read"):
        Captioned(tokenizer=home)([record(image=str(tmp_path / "text.png"), caption="x")])


@pytest.mark.parametrize("config", [
    {"size": "large"}, {"size": {"longest_edge": 3}}, {"crop_size": {"height": 3}}, {"size": 0},
    {"crop_size": 10**9}, {"image_mean": [1.0]}, {"image_std": [1, 0, 1]}, {"resample": 9},
    {"resample": "cubic"}, {"image_mean": 3},
])  # fmt: skip
def test_a_preprocessor_that_cannot_be_is_refused(config: dict[str, object]) -> None:
    from qkv.data.encode.images import Pixels

    with pytest.raises(ValueError, match=r"expected|is not as CLIP has it"):
        Pixels.of(config)
