"""Text: ids, offsets and decoded text equal transformers', family by family, on texts hard to cut."""

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
from tests.support.text_oracle import CORPUS, MAKERS, PAIRS, TORTURE, pieces, theirs, write

Both = tuple[Tokenizer, Any]
ROWS: list[tuple[str, str | None]] = [*((text, None) for text in TORTURE), *PAIRS]
GLUED = {
    "gpt2",
    "gpt2-bos",
    "roberta",
    "bart",
    "modernbert",
}  # theirs sets words side by side, without a space
RABBIT = "Run, rabbit run. Dig that hole, forget the sun\n."


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of small tokenizers made so far."""
    return {"": tmp_path_factory.mktemp("text")}


def folder_of(name: str, made: dict[str, Path]) -> Path:
    if name not in made:
        made[name] = made[""] / name
        MAKERS[name][0](made[name])
    return made[name]


@pytest.fixture(params=MAKERS)
def both(request: pytest.FixtureRequest, made: dict[str, Path]) -> Both:
    """A small tokenizer of a family: ours, and theirs."""
    folder = folder_of(request.param, made)
    return Tokenizer.load(folder), theirs(MAKERS[request.param][1], folder)


def data() -> Path:
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    return Path(os.environ.get("QKV_DATA", beside)) / "tokenizers"


def openai_gpt2(folder: Path, place: Path) -> Path:
    """OpenAI's files under the names that transformers looks for."""
    for name, other in (("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt")):
        shutil.copy(folder / name, place / other)
    return place


def openai_clip(folder: Path, place: Path) -> Path:
    """OpenAI's file as transformers has it: https://github.com/openai/CLIP, clip/simple_tokenizer.py."""
    text = gzip.decompress((folder / "bpe_simple_vocab_16e6.txt.gz").read_bytes()).decode("utf-8")
    merges = text.split("\n")[1 : 49152 - 256 - 2 + 1]
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    letters = [chr(byte) for byte in seen] + [chr(256 + place) for place in range(256 - len(seen))]
    tokens = letters + [letter + "</w>" for letter in letters] + ["".join(pair.split()) for pair in merges]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    write(place, "vocab.json", {token: number for number, token in enumerate(tokens)})
    write(place, "merges.txt", "#version: 0.2\n" + "\n".join(merges) + "\n")
    return place


REAL = {
    "bert_uncased": ("BertTokenizer", None), "gpt2": ("GPT2Tokenizer", openai_gpt2),
    "clip": ("CLIPTokenizer", openai_clip), "albert": ("AlbertTokenizer", None), "t5": ("T5Tokenizer", None),
    "marian_en-mg": ("MarianTokenizer", None),
}  # fmt: skip


@pytest.fixture(params=REAL)
def real(request: pytest.FixtureRequest, tmp_path: Path) -> Both:
    """A published vocabulary: ours, and theirs."""
    kind, convert = REAL[request.param]
    folder = data() / request.param
    if not folder.is_dir():
        pytest.skip(f"needs the data folder {folder} (QKV_DATA names another shared/data)")
    return Tokenizer.load(folder), theirs(kind, convert(folder, tmp_path) if convert else folder)


def compare(ours: Tokenizer, other: Any) -> None:
    """The same in all that they say of these texts."""
    more = ("token_type_ids", "special_tokens_mask", "offsets_mapping") if other.is_fast else ()
    for text, pair in ROWS:
        one, hers = ours.encode(text, pair), other(text, pair, **{f"return_{name}": True for name in more})
        assert one.ids == hers["input_ids"], repr(text[:80])
        if other.is_fast:
            assert one.offsets == hers["offset_mapping"]
            assert one.types == hers["token_type_ids"]
            assert one.special == [mark == 1 for mark in hers["special_tokens_mask"]]
            assert (one.words, one.sequence) == (hers.word_ids(), hers.sequence_ids())
        for special in (False, True):
            assert ours.decode(one.ids, special=special) == other.decode(
                one.ids, skip_special_tokens=not special
            )
        bare = other(text, pair, add_special_tokens=False)["input_ids"]
        assert ours.encode(text, pair, special=False).ids == bare


def test_families_equal_theirs(both: Both) -> None:
    ours, other = both
    compare(ours, other)
    assert len(ours) == len(other)
    hers = {
        role: getattr(other, f"{role}_token_id")
        for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
    }
    assert ours.roles == {role: number for role, number in hers.items() if number is not None}
    assert {role: getattr(ours, role) for role in hers} == hers
    assert ours.side == other.padding_side
    assert ours.limit == (other.model_max_length if other.model_max_length < 10**9 else None)
    for token, number in ours.extras.items():
        assert other.convert_tokens_to_ids(token) == ours.id(token) == number
        assert ours.token(number) == token


def test_published_vocabularies_equal_theirs(real: Both) -> None:
    ours, other = real
    compare(ours, other)
    assert len(ours) == len(other)


def test_many_at_once_are_as_one_by_one(both: Both) -> None:
    ours, _ = both
    rows = [text if pair is None else (text, pair) for text, pair in ROWS]
    alone = [ours.encode(*row) for row in ROWS]
    assert ours.encode_many(rows) == alone
    assert ours.encode_ids(rows) == [one.ids for one in alone]
    assert ours.encode_many([]) == []


def test_lists_are_of_one_length_and_offsets_point_into_the_text(both: Both) -> None:
    ours, _ = both
    for text, pair in ROWS:
        one = ours.encode(text, pair)
        assert {len(getattr(one, field.name)) for field in fields(one)} == {len(one)}
        for (start, end), sequence in zip(one.offsets, one.sequence, strict=True):
            whole = (text, pair or "", "")[2 if sequence is None else sequence]
            assert 0 <= start <= end <= len(whole)


@pytest.mark.parametrize("name", MAKERS)
def test_words_equal_theirs(name: str, made: dict[str, Path]) -> None:
    folder = folder_of(name, made)
    ours, other = Tokenizer.load(folder), theirs(MAKERS[name][1], folder)
    words = ["Run", ",", "rabbit", "don't", "Käfer", "日本", "", "x y", "<mask>", "end"]
    one, pair = ours.encode_words(words), ours.encode_words(words, words[:3])
    for (start, end), word in zip(one.offsets, one.words, strict=True):
        assert word is None or 0 <= start <= end <= len(words[word])
    assert [word for word in pair.words if word is not None][-1] == 2
    if name not in GLUED:
        hers = other(words, is_split_into_words=True)
        assert one.ids == hers["input_ids"]
        if other.is_fast:
            assert one.words == hers.word_ids()


def test_words_of_a_byte_level_tokenizer_keep_their_spaces(made: dict[str, Path]) -> None:
    ours = Tokenizer.load(folder_of("gpt2", made))
    words = "The quick brown fox , jumps".split()
    one, whole = ours.encode_words(words), ours.encode(" ".join(words))
    assert one.ids == whole.ids
    places = zip(one.offsets, one.words, strict=True)
    cut = [words[word][start:end] for (start, end), word in places if word is not None]
    assert cut == [" ".join(words)[start:end].strip() for start, end in whole.offsets]


@pytest.mark.parametrize(
    ("kind", "joint"), [("wordpiece", "##"), ("byte", ""), ("unigram", ""), ("char", "")]
)
def test_the_mark_of_pieces_that_go_on_with_a_word(kind: str, joint: str) -> None:
    assert Tokenizer.train(["run rabbit run"] * 3, kind=kind, vocab=300, purpose="plain").joint == joint


def test_rabbit() -> None:
    folder = data() / "bert_uncased"
    if not folder.is_dir():
        pytest.skip(f"needs the data folder {folder} (QKV_DATA names another shared/data)")
    ids = "101 2448 1010 10442 2448 1012 10667 2008 4920 1010 5293 1996 3103 1012 102"
    one = Tokenizer.load(folder).encode(RABBIT)
    assert one.ids == [int(number) for number in ids.split()]
    assert [RABBIT[start:end] for start, end in one.offsets[1:4]] == ["Run", ",", "rabbit"]


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "marian", "ctrl", "mbart"])
def test_half_a_surrogate_pair_is_refused(name: str, made: dict[str, Path]) -> None:
    ours = Tokenizer.load(folder_of(name, made))
    for run in (
        lambda: ours.encode("ab\ud800"),
        lambda: ours.encode("ab", "ab\ud800"),
        lambda: ours.encode_many(["fine", "ab\ud800"]),
        lambda: ours.encode_ids(["ab\ud800"]),
        lambda: ours.encode_words(["fine", "ab\ud800"]),
    ):
        with pytest.raises(ValueError, match=r"a lone surrogate, U\+D800 at character 2"):
            run()
    with pytest.raises(ValueError, match="7: expected a string"):
        ours.encode_many(["fine", (7, None)])  # type: ignore[list-item]


def test_ids_that_are_not_there_are_refused(both: Both) -> None:
    ours, _ = both
    for wrong in (-1, len(ours) + 1000, 2**40):
        with pytest.raises(ValueError, match=f"id {wrong}: expected one of this tokenizer's"):
            ours.decode([wrong])
        with pytest.raises(ValueError, match=f"id {wrong}: expected"):
            ours.token(wrong)
    assert ours.id("no such token at all") is None


def test_languages_of_mbart(made: dict[str, Path]) -> None:
    for name in ("mbart", "mbart-de", "mbart50"):
        folder = folder_of(name, made)
        ours, other = Tokenizer.load(folder), theirs(MAKERS[name][1], folder)
        assert dict(ours.languages) == other.lang_code_to_id
        for text in TORTURE[:12]:
            assert ours.encode(text, target=True).ids == other(text_target=text)["input_ids"]
            other.src_lang = "fr_XX"
            assert ours.encode(text, language="fr_XX").ids == other(text)["input_ids"]
            assert ours.encode(text, "b", language="fr_XX").ids == other(text, "b")["input_ids"]
            other.src_lang = "de_DE" if name == "mbart-de" else "en_XX"
        with pytest.raises(ValueError, match="language 'xx_XX': not one of this tokenizer's"):
            ours.encode("a", language="xx_XX")


def test_sides_of_marian(made: dict[str, Path]) -> None:
    for name in ("marian", "marian-apart"):
        folder = folder_of(name, made)
        ours, other = Tokenizer.load(folder), theirs("MarianTokenizer", folder)
        for text in TORTURE:
            assert ours.encode(text, target=True).ids == other(text_target=text)["input_ids"]
        assert {*ours.languages} == {"fra", "deu"}
        for language in ("fra", ">>fra<<"):
            assert ours.encode("The dog", language=language).ids == other(">>fra<< The dog")["input_ids"]
        with pytest.raises(ValueError, match="language 'xxx'"):
            ours.encode("a", language="xxx")
        one = ours.encode("  The dog,\n>>x  ﬁne", language="deu")
        assert (one.special[0], one.sequence[0], one.words[0]) == (True, None, None)
        assert one.offsets[one.words.index(0)][0] == 2


def test_offsets_of_sentencepiece_cover_the_letters(made: dict[str, Path]) -> None:
    ours = Tokenizer.load(folder_of("marian", made))
    for text in TORTURE:
        one = ours.encode(text, special=False)
        covered = {place for start, end in one.offsets for place in range(start, end)}
        lost = [letter for place, letter in enumerate(text) if place not in covered and letter.isalnum()]
        assert lost == []


def test_offsets_of_bytes_are_of_their_letter(tmp_path: Path) -> None:
    model = pieces(byte_fallback=True, vocab_size=500)
    names = [
        "</s>",
        "<unk>",
        "<pad>",
        *(piece.text for piece in sentencepiece_model.read(model, tmp_path).pieces[3:]),
    ]
    for file in ("source.spm", "target.spm"):
        (tmp_path / file).write_bytes(model)
    write(tmp_path, "vocab.json", {token: number for number, token in enumerate(names)})
    one = Tokenizer.load(tmp_path).encode("a 😀b", special=False)
    assert one.offsets[-5:] == [(2, 3)] * 4 + [(3, 4)]


def test_sentinels_of_t5(made: dict[str, Path]) -> None:
    ours = Tokenizer.load(folder_of("t5", made))
    assert ours.sentinels == [*range(len(ours) - 1, len(ours) - 101, -1)]
    assert Tokenizer.load(folder_of("bert", made)).sentinels == []


def test_types_as_the_families_count_them(made: dict[str, Path]) -> None:
    xlnet = Tokenizer.load(folder_of("xlnet", made)).encode("a", "b")
    assert (xlnet.types[-1], xlnet.types[0], xlnet.types[-2]) == (2, 0, 1)
    bert = Tokenizer.load(folder_of("bert", made)).encode("a", "b")
    assert bert.types == [0, 0, 0, 1, 1]
    assert bert.sequence == [None, 0, None, 1, None]


@pytest.mark.parametrize("limit", [4, 5, 9, 10, 40])
def test_cut_equals_theirs(limit: int, made: dict[str, Path]) -> None:
    folder = folder_of("bert", made)
    ours, other = Tokenizer.load(folder), theirs("BertTokenizer", folder)
    for text, pair in [("one two three", None), ("one two three", "a b c d e f g h"), ("a b c d e f", "x")]:
        for side in ("right", "left"):
            other.truncation_side = side
            hers = other(text, pair, truncation="longest_first", max_length=limit)
            assert ours.encode(text, pair).cut(limit, side=side).ids == hers["input_ids"]


def test_windows_equal_theirs(made: dict[str, Path]) -> None:
    folder = folder_of("bert", made)
    ours, other = Tokenizer.load(folder), theirs("BertTokenizer", folder)
    text, passage = "which one?", " ".join(CORPUS[:3])
    for pair, rule in ((passage, "only_second"), (None, "only_first")):
        first = text if pair else passage
        for limit, stride in ((40, 0), (30, 7), (20, 3), (1000, 5)):
            hers = other(
                first, pair, truncation=rule, max_length=limit, stride=stride,
                return_overflowing_tokens=True, return_offsets_mapping=True,
            )  # fmt: skip
            mine = ours.encode(first, pair).windows(limit, stride=stride)
            assert [one.ids for one in mine] == hers["input_ids"]
            assert [one.offsets for one in mine] == hers["offset_mapping"]
    with pytest.raises(ValueError, match="stride 17: expected less than 17"):
        ours.encode(passage).windows(19, stride=17)
    with pytest.raises(ValueError, match="limit 2: expected at least 3"):
        ours.encode("a", "b").cut(2)
    empty = ours.encode("")
    assert empty.windows(5) == [empty] == [empty.cut(5)]


def test_pieces_are_what_sentencepiece_reads(made: dict[str, Path]) -> None:
    """Our reader against SentencePiece's own, as it also reads for the oracle where protobuf is missing."""
    for name, file in (("albert", "spiece.model"), ("llama", "tokenizer.model"), ("xlnet", "spiece.model")):
        path = folder_of(name, made) / file
        held, judge = (
            sentencepiece_model.read(path.read_bytes(), path),
            sentencepiece.SentencePieceProcessor(str(path)),
        )
        assert [each.text for each in held.pieces] == [judge.id_to_piece(i) for i in range(len(judge))]
        assert [each.score for each in held.pieces] == [judge.get_score(i) for i in range(len(judge))]
        assert [each.kind == sentencepiece_model.CONTROL for each in held.pieces] == [
            judge.is_control(i) for i in range(len(judge))
        ]
        assert held.pieces[held.unk].kind == sentencepiece_model.UNKNOWN
        assert judge.unk_id() == held.unk
    user = sentencepiece_model.read((folder_of("xlnet", made) / "spiece.model").read_bytes(), path).marked()
    assert [each.text for each in user if each.kind == sentencepiece_model.USER] == [
        ".",
        "(",
        ")",
        "–",
        "£",
        "€",
    ]


def test_a_tokenizer_goes_to_other_processes(both: Both) -> None:
    ours, _ = both
    again = pickle.loads(pickle.dumps(ours))
    assert [again.encode(*row) for row in ROWS[:20] + ROWS[-4:]] == [
        ours.encode(*row) for row in ROWS[:20] + ROWS[-4:]
    ]
    assert again.roles == ours.roles


def test_encoding_is_plain_data() -> None:
    one = Encoding([1], [(0, 1)], [0], [False], [0], [0])
    assert json.dumps([one.ids, one.offsets]) == "[[1], [[0, 1]]]"
    assert len(one) == 1
