"""Encoders and datasets: records become rows and examples; errors name the record's location."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.data.batches.dataset import (
    ChunkedDataset,
    DocumentDataset,
    PackedDataset,
    SentencePairDataset,
    SpecialTokensDataset,
    TokenStreamDataset,
    WindowDataset,
)
from qkv.data.encode.encoder import (
    ControlCodeEncoder,
    PlainTextEncoder,
    RecordEncoder,
    SentenceSplitEncoder,
    SourceTargetEncoder,
)
from qkv.data.encode.labels import (
    MultipleChoiceEncoder,
    QuestionAnsweringEncoder,
    SequenceClassificationEncoder,
    TokenClassificationEncoder,
    collect_label_names,
    decode_float_bits,
    encode_float_bits,
)
from qkv.data.encode.special_tokens import build_special_tokens_template
from qkv.data.read.record import Record
from qkv.data.store.prepare import prepare_shards
from qkv.data.store.shards import Shards
from qkv.text import Tokenizer

LINES = ["the cat sat on the mat.", "a dog ran to the red house!", "who is there? it is Anna."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tokenizer")
    tokenizer = Tokenizer.train(
        LINES * 9, type="wordpiece", vocab_size=70, template="bert", extra_tokens=["Pets", "Ships"]
    )
    tokenizer.save(path)
    return str(path)


@pytest.fixture(scope="module")
def tokenizer(folder: str) -> Tokenizer:
    return Tokenizer.load(folder)


def make_record(**values: object) -> Record:
    return Record(values, "x.csv, line 7")


def prepare(encoder: RecordEncoder, records: list[Record], path: Path) -> Shards:
    return prepare_shards(records, encoder, path, field_sizes=encoder.field_sizes(), provenance={})


def test_a_template_adds_the_special_tokens_of_the_tokenizer(tokenizer: Tokenizer) -> None:
    a, b = (np.array(ids) for ids in tokenizer.encode_ids(LINES[:2], add_special_tokens=False))
    single = build_special_tokens_template(tokenizer)
    pair = build_special_tokens_template(tokenizer, 2)
    (encoding,) = tokenizer.encode_batch([(LINES[0], LINES[1])])
    assert single.build_token_ids(a).tolist() == tokenizer.encode(LINES[0])
    assert pair.build_token_ids(a, b).tolist() == encoding.input_ids
    assert pair.build_token_type_ids(a, b).tolist() == encoding.token_type_ids
    assert (single.num_special_tokens, pair.num_special_tokens) == (2, 3)


def test_an_encoder_opens_the_tokenizer_once_a_process(tmp_path: Path) -> None:
    path = str(tmp_path / "tokenizer")
    for text in ("a bc", "c ab d"):
        tokenizer = Tokenizer.train([text], type="char", template="plain")
        tokenizer.save(path)
        encoder = PlainTextEncoder(tokenizer_folder=path)
        assert encoder([make_record(text=text)])[0]["tokens"] == tokenizer.encode(text)
        assert "tokenizer" in vars(encoder)
        assert "tokenizer" not in vars(pickle.loads(pickle.dumps(encoder)))


def test_plain_text_has_an_end_token_and_word_starts(tokenizer: Tokenizer, folder: str) -> None:
    plain = PlainTextEncoder(tokenizer_folder=folder)
    marked = PlainTextEncoder(tokenizer_folder=folder, mark_word_starts=True)
    (row,) = plain([make_record(text=LINES[0])])
    (marked_row,) = marked([make_record(text=LINES[0])])
    (encoding,) = tokenizer.encode_batch([LINES[0]], add_special_tokens=False)
    assert row["tokens"] == [*encoding.input_ids, tokenizer.sep_token_id]
    assert marked_row["tokens"] == row["tokens"]
    assert sum(marked_row["starts"]) == len({*encoding.word_ids}) + 1
    assert marked_row["starts"][0] == 1


def test_long_texts_follow_the_overflow_mode(folder: str) -> None:
    record = make_record(text=LINES[0] * 9)
    options: dict[str, Any] = dict(tokenizer_folder=folder, max_length=20, num_special_tokens=2)
    with pytest.raises(
        ValueError, match=r"x\.csv, line 7: \d+ tokens, expected at most 18; set a larger data"
    ):
        PlainTextEncoder(**options)([record])
    truncated = PlainTextEncoder(**options, overflow="truncate", add_eos=False)([record])
    assert len(truncated[0]["tokens"]) == 18
    full = PlainTextEncoder(**options, overflow="window", add_eos=False)([record])
    assert len(full[0]["tokens"]) > 20
    with pytest.raises(
        ValueError, match=r"data\.overflow is 'window', expected one of error, truncate: the obj"
    ):
        SequenceClassificationEncoder(tokenizer_folder=folder, overflow="window")
    with pytest.raises(
        ValueError, match=r"data\.overflow is 'drop', expected one of error, truncate, window$"
    ):
        PlainTextEncoder(tokenizer_folder=folder, overflow="drop")


def test_documents_are_chunked_and_packed_with_special_tokens(
    tokenizer: Tokenizer, folder: str, tmp_path: Path
) -> None:
    encoder = PlainTextEncoder(
        tokenizer_folder=folder,
        add_eos=False,
        mark_word_starts=True,
        max_length=16,
        num_special_tokens=2,
        overflow="window",
    )
    records = [make_record(text=line) for line in (LINES[0] * 3, LINES[1], LINES[2])]
    shards = prepare(encoder, records, tmp_path)
    chunks = ChunkedDataset(DocumentDataset(shards), 14)
    assert chunks.lengths().max() == 14
    assert sum(chunks.lengths()) == shards.count_tokens()
    dataset = SpecialTokensDataset(chunks, build_special_tokens_template(tokenizer))
    ends = dataset[0]["tokens"][[0, -1]].tolist()
    assert ends == [tokenizer.cls_token_id, tokenizer.sep_token_id]
    assert len(dataset[0]["starts"]) == len(dataset[0]["tokens"]) == 16
    packed = PackedDataset(dataset, chunks.lengths() + 2, 32)
    num_tokens = sum(len(packed[i]["tokens"]) for i in range(len(packed)))
    assert num_tokens == shards.count_tokens() + 2 * len(chunks)
    for i in range(len(packed)):
        row = packed[i]
        assert len(row["tokens"]) == len(row["starts"]) == len(row["document_ids"]) <= 32
        starts = np.flatnonzero(np.diff(row["document_ids"], prepend=-1))
        assert (row["tokens"][starts] == tokenizer.cls_token_id).all()


def test_a_token_stream_has_blocks_at_any_position(folder: str, tmp_path: Path) -> None:
    encoder = PlainTextEncoder(tokenizer_folder=folder, add_eos=False)
    shards = prepare(encoder, [make_record(text=line) for line in LINES], tmp_path)
    stream = TokenStreamDataset(shards, 8, lookahead=1)
    assert stream[3]["tokens"].tolist() == shards.get_token_range(3, 12).tolist()
    with pytest.raises(ValueError, match=r"tokens in total, expected at least 1001"):
        TokenStreamDataset(shards, 1000, lookahead=1)


def test_documents_are_split_into_sentences(folder: str, tmp_path: Path) -> None:
    encoder = SentenceSplitEncoder(tokenizer_folder=folder)
    by_line, by_punctuation = encoder(
        [make_record(text="\n".join(LINES)), make_record(text=" ".join(LINES))]
    )
    assert len(by_line["sentences"]) == 3
    assert len(by_punctuation["sentences"]) == 4  # who is there? it is Anna.
    assert sum(by_punctuation["sentences"]) == len(by_punctuation["tokens"])
    shards = prepare(
        SentenceSplitEncoder(tokenizer_folder=folder, mark_word_starts=True),
        [make_record(text="\n".join(LINES)), make_record(text="a")],
        tmp_path,
    )
    dataset = SentencePairDataset(DocumentDataset(shards), 1000, mark_word_starts=True)
    assert len(dataset) == 1  # a single token is no pair
    sentences = dataset[0]["documents"][0]
    assert [len(sentence) for sentence in sentences] == by_line["sentences"]
    assert (np.concatenate(sentences) >> 1).tolist() == by_line["tokens"]


def test_a_control_code_must_be_known_to_the_tokenizer(tokenizer: Tokenizer, folder: str) -> None:
    encoder = ControlCodeEncoder(tokenizer_folder=folder)
    (row,) = encoder([make_record(code="Ships", text=LINES[0])])
    assert row["code"] == [tokenizer.languages["Ships"]]
    with pytest.raises(ValueError, match=r"line 7: code 'Cars', expected one of: Pets, Ships"):
        encoder([make_record(code="Cars", text="x")])
    with pytest.raises(ValueError, match=r"line 7: no column 'code'; the columns are 'text'"):
        encoder([make_record(text="x")])


def test_a_source_is_a_template_of_columns(tokenizer: Tokenizer, folder: str) -> None:
    encoder = SourceTargetEncoder(
        tokenizer_folder=folder, source="{question} {context}", target="{answers}"
    )
    answers = [{"text": "Anna", "start": 6}]
    (row,) = encoder([make_record(question="who?", context="it is Anna.", answers=answers)])
    assert row == {
        "source": tokenizer.encode("who? it is Anna."),
        "target": tokenizer.encode("Anna"),
    }
    (row,) = encoder([make_record(question="who?", context="it", answers=[])])
    assert row["target"] == tokenizer.encode("")
    with pytest.raises(ValueError, match=r"line 7: no column 'context'"):
        encoder([make_record(question="who?", answers=[])])
    with pytest.raises(
        ValueError, match=r"objective\.source 'translate': expected a template with column names"
    ):
        SourceTargetEncoder(tokenizer_folder=folder, source="translate")


def test_single_labels_are_encoded(folder: str) -> None:
    texts: dict[str, Any] = dict(text=LINES[0], pair=LINES[1])
    encoder = SequenceClassificationEncoder(tokenizer_folder=folder, label_names=("no", "yes"))
    (row,) = encoder([make_record(**texts, label="yes")])
    assert row["label"] == [1]
    assert row["types"][-1] == 1
    with pytest.raises(ValueError, match=r"line 7: label 'maybe', expected one of no, yes"):
        encoder([make_record(**texts, label="maybe")])
    with pytest.raises(ValueError, match=r"line 7: no column 'label'"):
        encoder([make_record(**texts)])


def test_multiple_labels_are_encoded(folder: str) -> None:
    encoder = SequenceClassificationEncoder(
        tokenizer_folder=folder,
        label_names=("a", "b", "c"),
        problem_type="multi_label_classification",
    )
    rows = encoder([make_record(text="x", label=label) for label in (["c", "a"], "b, c", [])])
    assert [row["label"] for row in rows] == [[0, 2], [1, 2], []]


def test_regression_labels_are_numbers(folder: str) -> None:
    encoder = SequenceClassificationEncoder(tokenizer_folder=folder, problem_type="regression")
    bits = encoder([make_record(text="x", label="-2.5")])[0]["label"]
    assert decode_float_bits(np.array(bits)).tolist() == [-2.5]
    bits = [encode_float_bits(0.1, make_record())]
    assert decode_float_bits(np.array(bits)).tolist() == [np.float32(0.1)]
    for label in ("x", "nan", None):
        with pytest.raises(ValueError, match=r"line 7: label .*, expected a number"):
            encoder([make_record(text="x", label=label)])


def test_label_names_are_collected_in_order() -> None:
    records = [make_record(label=label) for label in ("10", "9", "x")]
    assert collect_label_names(records) == ("9", "10", "x")
    names = collect_label_names(
        [make_record(label="b,a")], problem_type="multi_label_classification"
    )
    assert names == ("a", "b")


def test_the_first_token_of_a_word_has_its_tag(tokenizer: Tokenizer, folder: str) -> None:
    encoder = TokenClassificationEncoder(tokenizer_folder=folder, label_names=("O", "NAME"))
    (row,) = encoder([make_record(words=["it", "is", "Annabel"], tags=["O", "O", "NAME"])])
    words = tokenizer.encode_words(["it", "is", "Annabel"]).word_ids
    first = [i for i, word in enumerate(words) if word is not None and word not in words[:i]]
    assert [row["labels"][i] for i in first] == [1, 1, 2]
    assert all(label == 0 for i, label in enumerate(row["labels"]) if i not in first)
    with pytest.raises(ValueError, match=r"line 7: 2 words and 1 tags, expected one tag per word"):
        encoder([make_record(words=["it", "is"], tags=["O"])])
    with pytest.raises(ValueError, match=r"line 7: column 'words' holds 'it is', expected a list"):
        encoder([make_record(words="it is", tags=["O"])])


def test_an_answer_is_in_the_windows_that_contain_it(
    tokenizer: Tokenizer, folder: str, tmp_path: Path
) -> None:
    context = " ".join(LINES[:2] * 3) + " " + LINES[2]
    answers = [{"text": "Anna", "start": context.index("Anna")}]
    answerable = make_record(question="who?", context=context, answers=answers)
    unanswerable = make_record(question="who?", context=context, answers=[])
    encoder = QuestionAnsweringEncoder(
        tokenizer_folder=folder, max_length=32, overflow="window", stride=8
    )
    row, row_without = encoder([answerable, unanswerable])
    num_windows = len(row["windows"])
    assert num_windows > 2
    assert {*row_without["start"], *row_without["end"]} == {0}  # the token [CLS]
    shards = prepare(encoder, [answerable, unanswerable], tmp_path)
    windows = WindowDataset(DocumentDataset(shards))
    assert len(windows) == 2 * num_windows
    assert windows.lengths().tolist() == 2 * row["windows"]
    num_answers = 0
    for i in range(num_windows):
        window = windows[i]
        assert len(window["tokens"]) == len(window["types"]) <= 32
        if window["start"]:
            num_answers += 1
            answer = window["tokens"][window["start"] : window["end"] + 1].tolist()
            assert tokenizer.decode(answer, skip_special_tokens=True) == "Anna"
    assert num_answers >= 1


def test_a_window_with_a_part_of_the_answer_does_not_contain_it(folder: str) -> None:
    context = " ".join(LINES[:2] * 3)
    answers = [{"text": context[40:], "start": 40}]
    encoder = QuestionAnsweringEncoder(
        tokenizer_folder=folder, max_length=24, overflow="window", stride=4
    )
    (row,) = encoder([make_record(question="who?", context=context, answers=answers)])
    assert len(row["windows"]) > 2
    assert {*row["start"], *row["end"]} == {0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(answers=[{"text": "Anna", "start": 1}]), "is not at character 1"),
        (dict(answers=[{"text": "Anna"}]), "expected a text and its start"),
        (dict(answers="Anna"), "answer 'Anna' has no start, expected a text and its start"),
        (dict(answers=7), "column 'answers' holds 7, expected a list"),
        (dict(question="who is there? " * 9), "expected more than the stride, 8"),
    ],
)
def test_bad_answers_are_errors(folder: str, changes: Mapping[str, Any], message: str) -> None:
    answers = [{"text": "Anna", "start": 20}]
    values = {"question": "who?", "context": LINES[2], "answers": answers, **changes}
    encoder = QuestionAnsweringEncoder(
        tokenizer_folder=folder, max_length=32, overflow="window", stride=8
    )
    with pytest.raises(ValueError, match=rf"x\.csv, line 7: .*{message}"):
        encoder([make_record(**values)])


def test_all_records_have_the_same_number_of_choices(tokenizer: Tokenizer, folder: str) -> None:
    encoder = MultipleChoiceEncoder(tokenizer_folder=folder, num_choices=2)
    (row,) = encoder([make_record(text="who?", choices=["Anna", "a dog"], label=1)])
    ids = [tokenizer.encode("who?", choice) for choice in ("Anna", "a dog")]
    assert row["tokens"] == [*ids[0], *ids[1]]
    assert row["windows"] == [len(choice_ids) for choice_ids in ids]
    with pytest.raises(ValueError, match=r"line 7: 3 choices, expected 2"):
        encoder([make_record(text="who?", choices=["a", "b", "c"], label=1)])
    with pytest.raises(ValueError, match=r"line 7: label 2, expected one of 0, 1"):
        encoder([make_record(text="who?", choices=["a", "b"], label=2)])


def test_an_image_is_resized_and_center_cropped(folder: str, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    from qkv.data.encode.images import (
        OPENAI_CLIP_MEAN,
        OPENAI_CLIP_STD,
        ImageCaptionEncoder,
        ImageProcessor,
    )

    wide = image.new("RGB", (40, 20), (255, 0, 0))
    wide.paste((0, 0, 255), (0, 0, 10, 20))
    wide.save(tmp_path / "wide.png")
    pixels = ImageProcessor.for_size(10)(tmp_path / "wide.png")
    assert pixels.shape == (3, 10, 10)
    assert pixels[:, 5, 5] == pytest.approx(
        (np.array([1, 0, 0]) - OPENAI_CLIP_MEAN) / OPENAI_CLIP_STD, abs=1e-5
    )
    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(ValueError, match=r"line 7: .*text\.png: not a readable image"):
        ImageCaptionEncoder(tokenizer_folder=folder)(
            [make_record(image=str(tmp_path / "text.png"), caption="x")]
        )


@pytest.mark.parametrize("config", [
    {"size": "large"}, {"size": {"longest_edge": 3}}, {"crop_size": {"height": 3}}, {"size": 0},
    {"crop_size": 10**9}, {"image_mean": [1.0]}, {"image_std": [1, 0, 1]}, {"resample": 9},
    {"resample": "cubic"}, {"image_mean": 3},
])  # fmt: skip
def test_bad_preprocessor_configs_are_errors(config: dict[str, object]) -> None:
    from qkv.data.encode.images import ImageProcessor

    with pytest.raises(ValueError, match="expected"):
        ImageProcessor.from_config(config)
