"""Tokenizers: ids, offsets and decoded text equal transformers' for every family, on difficult texts."""

import gzip
import json
import os
import pickle
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from qkv.text import Encoding, Tokenizer, sentencepiece_model
from tests.support.text_oracle import (
    CORPUS,
    DIFFICULT_TEXTS,
    TEXT_PAIRS,
    TOKENIZERS,
    load_reference,
    train_sentencepiece,
    write_file,
)

TokenizerPair = tuple[Tokenizer, Any]
ROWS: list[tuple[str, str | None]] = [*((text, None) for text in DIFFICULT_TEXTS), *TEXT_PAIRS]
# transformers joins the words of these families without a space.
GLUED = {"gpt2", "gpt2-bos", "roberta", "bart", "modernbert"}
RABBIT = "Run, rabbit run. Dig that hole, forget the sun\n."


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of the small tokenizers built so far, by name."""
    return {"": tmp_path_factory.mktemp("text")}


def folder_of(name: str, folders: dict[str, Path]) -> Path:
    if name not in folders:
        folders[name] = folders[""] / name
        TOKENIZERS[name][0](folders[name])
    return folders[name]


@pytest.fixture(params=TOKENIZERS)
def tokenizers(request: pytest.FixtureRequest, folders: dict[str, Path]) -> TokenizerPair:
    """A small tokenizer of a family: ours, and theirs."""
    folder = folder_of(request.param, folders)
    return Tokenizer.load(folder), load_reference(TOKENIZERS[request.param][1], folder)


def data() -> Path:
    default = Path(__file__).resolve().parents[3] / "shared" / "data"
    return Path(os.environ.get("QKV_DATA", default)) / "tokenizers"


def openai_gpt2(folder: Path, index: Path) -> Path:
    """OpenAI's files under the names that transformers looks for."""
    for name, other in (("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt")):
        shutil.copy(folder / name, index / other)
    return index


def openai_clip(folder: Path, index: Path) -> Path:
    """OpenAI's file as transformers has it: https://github.com/openai/CLIP, clip/simple_tokenizer.py."""
    text = gzip.decompress((folder / "bpe_simple_vocab_16e6.txt.gz").read_bytes()).decode("utf-8")
    merges = text.split("\n")[1 : 49152 - 256 - 2 + 1]
    seen = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    letters = [chr(byte) for byte in seen] + [chr(256 + index) for index in range(256 - len(seen))]
    tokens = (
        letters
        + [letter + "</w>" for letter in letters]
        + ["".join(pair.split()) for pair in merges]
    )
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    write_file(index, "vocab.json", {token: token_id for token_id, token in enumerate(tokens)})
    write_file(index, "merges.txt", "#version: 0.2\n" + "\n".join(merges) + "\n")
    return index


REAL = {
    "bert_uncased": ("BertTokenizer", None), "gpt2": ("GPT2Tokenizer", openai_gpt2),
    "clip": ("CLIPTokenizer", openai_clip), "albert": ("AlbertTokenizer", None), "t5": ("T5Tokenizer", None),
    "marian_en-mg": ("MarianTokenizer", None),
}  # fmt: skip


@pytest.fixture(params=REAL)
def real(request: pytest.FixtureRequest, tmp_path: Path) -> TokenizerPair:
    """A published vocabulary: ours, and theirs."""
    kind, convert = REAL[request.param]
    folder = data() / request.param
    if not folder.is_dir():
        pytest.skip(f"needs the data folder {folder} (QKV_DATA names another shared/data)")
    return Tokenizer.load(folder), load_reference(
        kind, convert(folder, tmp_path) if convert else folder
    )


def encode_fully(tokenizer: Tokenizer, text: str, text_pair: str | None = None) -> Encoding:
    return tokenizer.encode_batch([text if text_pair is None else (text, text_pair)])[0]


def compare(ours: Tokenizer, other: Any) -> None:
    """Assert that both tokenizers give the same results on all texts."""
    more = ("token_type_ids", "special_tokens_mask", "offsets_mapping") if other.is_fast else ()
    for text, pair in ROWS:
        encoding, expected = (
            encode_fully(ours, text, pair),
            other(text, pair, **{f"return_{name}": True for name in more}),
        )
        assert encoding.input_ids == expected["input_ids"], repr(text[:80])
        if other.is_fast:
            assert encoding.offset_mapping == expected["offset_mapping"]
            assert encoding.token_type_ids == expected["token_type_ids"]
            assert encoding.special_tokens_mask == [
                mark == 1 for mark in expected["special_tokens_mask"]
            ]
            assert (encoding.word_ids, encoding.sequence_ids) == (
                expected.word_ids(),
                expected.sequence_ids(),
            )
        for skip in (False, True):
            assert ours.decode(encoding.input_ids, skip_special_tokens=skip) == other.decode(
                encoding.input_ids, skip_special_tokens=skip
            )
        bare = other(text, pair, add_special_tokens=False)["input_ids"]
        assert ours.encode(text, pair, add_special_tokens=False) == bare


def test_families_equal_theirs(tokenizers: TokenizerPair) -> None:
    ours, other = tokenizers
    compare(ours, other)
    assert len(ours) == len(other)
    expected = {
        role: getattr(other, f"{role}_token_id")
        for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
    }
    assert ours.special_token_ids == {
        role: token_id for role, token_id in expected.items() if token_id is not None
    }
    assert {role: getattr(ours, f"{role}_token_id") for role in expected} == expected
    assert ours.padding_side == other.padding_side
    assert ours.model_max_length == (
        other.model_max_length if other.model_max_length < 10**9 else None
    )
    for token, token_id in ours.extra_special_tokens.items():
        assert other.convert_tokens_to_ids(token) == ours.convert_tokens_to_ids(token) == token_id
        assert ours.convert_ids_to_tokens(token_id) == token


def test_published_vocabularies_equal_theirs(real: TokenizerPair) -> None:
    ours, other = real
    compare(ours, other)
    assert len(ours) == len(other)


def test_many_at_once_are_as_one_by_one(tokenizers: TokenizerPair) -> None:
    ours, _ = tokenizers
    rows = [text if pair is None else (text, pair) for text, pair in ROWS]
    alone = [encode_fully(ours, *row) for row in ROWS]
    assert ours.encode_batch(rows) == alone
    assert ours.encode_ids(rows) == [encoding.input_ids for encoding in alone]
    assert ours.encode_batch([]) == []


def test_lists_are_of_one_length_and_offsets_point_into_the_text(tokenizers: TokenizerPair) -> None:
    ours, _ = tokenizers
    for text, pair in ROWS:
        encoding = encode_fully(ours, text, pair)
        assert {len(getattr(encoding, field.name)) for field in fields(encoding)} == {len(encoding)}
        for (start, end), sequence in zip(
            encoding.offset_mapping, encoding.sequence_ids, strict=True
        ):
            context = (text, pair or "", "")[2 if sequence is None else sequence]
            assert 0 <= start <= end <= len(context)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_words_equal_theirs(name: str, folders: dict[str, Path]) -> None:
    folder = folder_of(name, folders)
    ours, other = Tokenizer.load(folder), load_reference(TOKENIZERS[name][1], folder)
    words = ["Run", ",", "rabbit", "don't", "Käfer", "日本", "", "x y", "<mask>", "end"]
    encoding, pair = ours.encode_words(words), ours.encode_words(words, words[:3])
    for (start, end), word in zip(encoding.offset_mapping, encoding.word_ids, strict=True):
        assert word is None or 0 <= start <= end <= len(words[word])
    assert [word for word in pair.word_ids if word is not None][-1] == 2
    if name not in GLUED:
        expected = other(words, is_split_into_words=True)
        assert encoding.input_ids == expected["input_ids"]
        if other.is_fast:
            assert encoding.word_ids == expected.word_ids()


def test_words_of_a_byte_level_tokenizer_keep_their_spaces(folders: dict[str, Path]) -> None:
    ours = Tokenizer.load(folder_of("gpt2", folders))
    words = "The quick brown fox , jumps".split()
    encoding, context = ours.encode_words(words), encode_fully(ours, " ".join(words))
    assert encoding.input_ids == context.input_ids
    spans = zip(encoding.offset_mapping, encoding.word_ids, strict=True)
    cut = [words[word][start:end] for (start, end), word in spans if word is not None]
    assert cut == [" ".join(words)[start:end].strip() for start, end in context.offset_mapping]


@pytest.mark.parametrize(
    ("kind", "joint"), [("wordpiece", "##"), ("byte", ""), ("unigram", ""), ("char", "")]
)
def test_the_mark_of_pieces_that_go_on_with_a_word(kind: str, joint: str) -> None:
    assert (
        Tokenizer.train(
            ["run rabbit run"] * 3, type=kind, vocab_size=300, template="plain"
        ).continuing_subword_prefix
        == joint
    )


def test_rabbit() -> None:
    folder = data() / "bert_uncased"
    if not folder.is_dir():
        pytest.skip(f"needs the data folder {folder} (QKV_DATA names another shared/data)")
    ids = "101 2448 1010 10442 2448 1012 10667 2008 4920 1010 5293 1996 3103 1012 102"
    encoding = encode_fully(Tokenizer.load(folder), RABBIT)
    assert encoding.input_ids == [int(token_id) for token_id in ids.split()]
    assert [RABBIT[start:end] for start, end in encoding.offset_mapping[1:4]] == [
        "Run",
        ",",
        "rabbit",
    ]


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "marian", "ctrl", "mbart"])
def test_half_a_surrogate_pair_is_refused(name: str, folders: dict[str, Path]) -> None:
    ours = Tokenizer.load(folder_of(name, folders))
    for run in (
        lambda: ours.encode("ab\ud800"),
        lambda: ours.encode("ab", "ab\ud800"),
        lambda: ours.encode_batch(["fine", "ab\ud800"]),
        lambda: ours.encode_ids(["ab\ud800"]),
        lambda: ours.encode_words(["fine", "ab\ud800"]),
    ):
        with pytest.raises(ValueError, match=r"a lone surrogate, U\+D800 at character 2"):
            run()
    with pytest.raises(ValueError, match="7: expected a string"):
        ours.encode_batch(["fine", (7, None)])  # type: ignore[list-item]


def test_ids_that_are_not_there_are_refused(tokenizers: TokenizerPair) -> None:
    ours, _ = tokenizers
    for wrong in (-1, len(ours) + 1000, 2**40):
        with pytest.raises(ValueError, match=f"id {wrong}: expected one of the {len(ours)} ids"):
            ours.decode([wrong])
        with pytest.raises(ValueError, match=f"id {wrong}: expected"):
            ours.convert_ids_to_tokens(wrong)
    assert ours.convert_tokens_to_ids("no such token at all") == ours.unk_token_id
    assert "no such token at all" not in ours.get_vocab()


def test_languages_of_mbart(folders: dict[str, Path]) -> None:
    for name in ("mbart", "mbart-de", "mbart50"):
        folder = folder_of(name, folders)
        ours, other = Tokenizer.load(folder), load_reference(TOKENIZERS[name][1], folder)
        assert dict(ours.languages) == other.lang_code_to_id
        for text in DIFFICULT_TEXTS[:12]:
            assert ours.encode(text, is_target=True) == other(text_target=text)["input_ids"]
            other.src_lang = "fr_XX"
            assert ours.encode(text, language="fr_XX") == other(text)["input_ids"]
            assert ours.encode(text, "b", language="fr_XX") == other(text, "b")["input_ids"]
            other.src_lang = "de_DE" if name == "mbart-de" else "en_XX"
        with pytest.raises(
            ValueError, match="language 'xx_XX': expected one of this tokenizer's languages"
        ):
            ours.encode("a", language="xx_XX")


def test_sides_of_marian(folders: dict[str, Path]) -> None:
    for name in ("marian", "marian-separate"):
        folder = folder_of(name, folders)
        ours, other = Tokenizer.load(folder), load_reference("MarianTokenizer", folder)
        for text in DIFFICULT_TEXTS:
            assert ours.encode(text, is_target=True) == other(text_target=text)["input_ids"]
        assert {*ours.languages} == {"fra", "deu"}
        for language in ("fra", ">>fra<<"):
            assert (
                ours.encode("The dog", language=language) == other(">>fra<< The dog")["input_ids"]
            )
        with pytest.raises(ValueError, match="language 'xxx'"):
            ours.encode("a", language="xxx")
        (encoding,) = ours.encode_batch(["  The dog,\n>>x  ﬁne"], language="deu")
        assert (
            encoding.special_tokens_mask[0],
            encoding.sequence_ids[0],
            encoding.word_ids[0],
        ) == (
            True,
            None,
            None,
        )
        assert encoding.offset_mapping[encoding.word_ids.index(0)][0] == 2


@pytest.mark.parametrize("clean_up", [None, False, True])
@pytest.mark.parametrize("name", ["marian", "ctrl"])
def test_clean_up_of_tokenization_spaces(name: str, clean_up: bool | None, tmp_path: Path) -> None:
    write, kind = TOKENIZERS[name]
    write(tmp_path)
    if clean_up is not None:
        config = {"clean_up_tokenization_spaces": clean_up}
        write_file(tmp_path, "tokenizer_config.json", config)
    ours, other = Tokenizer.load(tmp_path), load_reference(kind, tmp_path)
    texts = ["the dog , the fox .", "do n't ' you ' ? we 've it 's !"]
    for text in [*texts, *DIFFICULT_TEXTS]:
        token_ids = other(text)["input_ids"]
        for skip in (False, True):
            expected = other.decode(token_ids, skip_special_tokens=skip)
            assert ours.decode(token_ids, skip_special_tokens=skip) == expected
    decoded = [ours.decode(ours.encode(text), skip_special_tokens=True) for text in texts]
    # CTRL's small vocabulary lacks some of these, not all.
    assert any(f" {mark}" in text for text in decoded for mark in ".,?!") is not bool(clean_up)
    ours.save(tmp_path / "saved")
    saved = Tokenizer.load(tmp_path / "saved")
    assert [saved.decode(ours.encode(text), skip_special_tokens=True) for text in texts] == decoded


def test_offsets_of_sentencepiece_cover_the_letters(folders: dict[str, Path]) -> None:
    ours = Tokenizer.load(folder_of("marian", folders))
    for text in DIFFICULT_TEXTS:
        (encoding,) = ours.encode_batch([text], add_special_tokens=False)
        covered = {index for start, end in encoding.offset_mapping for index in range(start, end)}
        uncovered = [
            letter for index, letter in enumerate(text) if index not in covered and letter.isalnum()
        ]
        assert uncovered == []


def test_offsets_of_bytes_are_of_their_letter(tmp_path: Path) -> None:
    model = train_sentencepiece(byte_fallback=True, vocab_size=500)
    tokens = [
        "</s>",
        "<unk>",
        "<pad>",
        *(
            piece.piece
            for piece in sentencepiece_model.parse_sentencepiece_model(model, tmp_path).pieces[3:]
        ),
    ]
    for file in ("source.spm", "target.spm"):
        (tmp_path / file).write_bytes(model)
    write_file(tmp_path, "vocab.json", {token: token_id for token_id, token in enumerate(tokens)})
    (encoding,) = Tokenizer.load(tmp_path).encode_batch(["a 😀b"], add_special_tokens=False)
    assert encoding.offset_mapping[-5:] == [(2, 3)] * 4 + [(3, 4)]


def test_sentinels_of_t5(folders: dict[str, Path]) -> None:
    ours = Tokenizer.load(folder_of("t5", folders))
    assert ours.sentinel_token_ids == [*range(len(ours) - 1, len(ours) - 101, -1)]
    assert Tokenizer.load(folder_of("bert", folders)).sentinel_token_ids == []


def test_types_as_the_families_count_them(folders: dict[str, Path]) -> None:
    xlnet = encode_fully(Tokenizer.load(folder_of("xlnet", folders)), "a", "b")
    assert (xlnet.token_type_ids[-1], xlnet.token_type_ids[0], xlnet.token_type_ids[-2]) == (
        2,
        0,
        1,
    )
    bert = encode_fully(Tokenizer.load(folder_of("bert", folders)), "a", "b")
    assert bert.token_type_ids == [0, 0, 0, 1, 1]
    assert bert.sequence_ids == [None, 0, None, 1, None]


@pytest.mark.parametrize("limit", [4, 5, 9, 10, 40])
def test_cut_equals_theirs(limit: int, folders: dict[str, Path]) -> None:
    folder = folder_of("bert", folders)
    ours, other = Tokenizer.load(folder), load_reference("BertTokenizer", folder)
    for text, pair in [
        ("one two three", None),
        ("one two three", "a b c d e f g h"),
        ("a b c d e f", "x"),
    ]:
        for side in ("right", "left"):
            other.truncation_side = side
            expected = other(text, pair, truncation="longest_first", max_length=limit)
            assert (
                encode_fully(ours, text, pair).truncate(limit, truncation_side=side).input_ids
                == expected["input_ids"]
            )


def test_windows_equal_theirs(folders: dict[str, Path]) -> None:
    folder = folder_of("bert", folders)
    ours, other = Tokenizer.load(folder), load_reference("BertTokenizer", folder)
    text, passage = "which one?", " ".join(CORPUS[:3])
    for pair, rule in ((passage, "only_second"), (None, "only_first")):
        first = text if pair else passage
        for limit, stride in ((40, 0), (30, 7), (20, 3), (1000, 5)):
            expected = other(
                first, pair, truncation=rule, max_length=limit, stride=stride,
                return_overflowing_tokens=True, return_offsets_mapping=True,
            )  # fmt: skip
            windows = encode_fully(ours, first, pair).split_into_windows(limit, stride=stride)
            assert [encoding.input_ids for encoding in windows] == expected["input_ids"]
            assert [encoding.offset_mapping for encoding in windows] == expected["offset_mapping"]
    with pytest.raises(ValueError, match="stride 17: expected less than 17"):
        encode_fully(ours, passage).split_into_windows(19, stride=17)
    with pytest.raises(ValueError, match="max_length 2: expected at least 3"):
        encode_fully(ours, "a", "b").truncate(2)
    empty = encode_fully(ours, "")
    assert empty.split_into_windows(5) == [empty] == [empty.truncate(5)]


def test_pieces_are_what_sentencepiece_reads(folders: dict[str, Path]) -> None:
    """Our parser agrees with SentencePiece; the oracle also uses it where protobuf is missing."""
    for name, file in (
        ("albert", "spiece.model"),
        ("llama", "tokenizer.model"),
        ("xlnet", "spiece.model"),
    ):
        path = folder_of(name, folders) / file
        model = sentencepiece_model.parse_sentencepiece_model(path.read_bytes(), path)
        processor = sentencepiece.SentencePieceProcessor(str(path))
        assert [piece.piece for piece in model.pieces] == [
            processor.id_to_piece(i) for i in range(len(processor))
        ]
        assert [piece.score for piece in model.pieces] == [
            processor.get_score(i) for i in range(len(processor))
        ]
        assert [piece.type == sentencepiece_model.CONTROL_PIECE for piece in model.pieces] == [
            processor.is_control(i) for i in range(len(processor))
        ]
        assert model.pieces[model.unk_id].type == sentencepiece_model.UNKNOWN_PIECE
        assert processor.unk_id() == model.unk_id
    user = sentencepiece_model.parse_sentencepiece_model(
        (folder_of("xlnet", folders) / "spiece.model").read_bytes(), path
    ).get_special_pieces()
    assert [
        piece.piece for piece in user if piece.type == sentencepiece_model.USER_DEFINED_PIECE
    ] == [
        ".",
        "(",
        ")",
        "–",
        "£",
        "€",
    ]


def test_a_tokenizer_goes_to_other_processes(tokenizers: TokenizerPair) -> None:
    ours, _ = tokenizers
    copy = pickle.loads(pickle.dumps(ours))
    rows = [text if pair is None else (text, pair) for text, pair in ROWS[:20] + ROWS[-4:]]
    assert copy.encode_batch(rows) == ours.encode_batch(rows)
    assert copy.special_token_ids == ours.special_token_ids


def test_encoding_is_plain_data() -> None:
    encoding = Encoding([1], [(0, 1)], [0], [False], [0], [0])
    assert json.dumps([encoding.input_ids, encoding.offset_mapping]) == "[[1], [[0, 1]]]"
    assert len(encoding) == 1
