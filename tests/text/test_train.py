"""Training tokenizers: what each kind learns, what stands around a text, and the same bytes each time."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qkv.text import Tokenizer
from qkv.text.train import KINDS, PURPOSES
from tests.support.text_oracle import CORPUS, TORTURE, theirs, write

ROOT = Path(__file__).resolve().parent.parent.parent
SOME = ["The quick brown fox, it isn't lazy.\nRun, rabbit run.", "Ein Käfer läuft über die Straße."]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("purpose", ["bert", "gpt", "seq2seq"])
def test_trained_tokenizers_open_there(kind: str, purpose: str, tmp_path: Path) -> None:
    ours = Tokenizer.train(CORPUS, kind=kind, vocab=420, purpose=purpose, limit=64)
    assert len(ours) <= 420
    assert (ours.limit, ours.side) == (64, "right")
    ours.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert (again.roles, again.limit, len(again)) == (ours.roles, 64, len(ours))
    for opener in ("AutoTokenizer", "PreTrainedTokenizerFast"):
        other = theirs(opener, tmp_path)
        for text in [*TORTURE, *SOME]:
            one = ours.encode(text, "b")
            hers = other(text, "b", return_offsets_mapping=True, return_token_type_ids=True)
            assert (one.ids, one.offsets, one.types) == tuple(
                hers[name] for name in ("input_ids", "offset_mapping", "token_type_ids")
            )
            assert again.encode(text, "b") == one
            assert ours.decode(one.ids) == other.decode(one.ids, skip_special_tokens=True)


@pytest.mark.parametrize("kind", KINDS)
def test_known_text_comes_back(kind: str) -> None:
    ours = Tokenizer.train(SOME * 3, kind=kind, vocab=400)
    for text in SOME:
        back = ours.decode(ours.encode(text).ids)
        if kind in ("char", "bpe", "byte"):
            assert back == text
        assert "".join(back.split()) == "".join(text.split())
        assert ours.unk not in ours.encode(text).ids


def test_every_character_is_a_token() -> None:
    text = " two  spaces\n\n\ttab, Käfer 日本 👍🏽\r\n \u0301 \x00 \u2028"
    ours = Tokenizer.train([text], kind="char", purpose="plain")
    assert len(ours) == len({*text}) + 2
    one = ours.encode(text)
    assert [ours.token(number) for number in one.ids] == list(text)
    assert one.offsets == [(place, place + 1) for place in range(len(text))]
    assert ours.decode(one.ids) == text
    assert ours.encode("z").ids == [ours.unk]
    few = Tokenizer.train(["aaabbc"], kind="char", purpose="plain", vocab=4)
    assert [few.token(number) for number in range(len(few))] == ["<pad>", "<unk>", "a", "b"]


def test_bytes_know_every_text() -> None:
    ours = Tokenizer.train(CORPUS, kind="byte", vocab=300)
    assert ours.unk is None
    for text in TORTURE:
        if "<|endoftext|>" not in text:
            assert ours.decode(ours.encode(text).ids) == text


@pytest.mark.parametrize("kind", KINDS)
def test_lower_case(kind: str) -> None:
    ours = Tokenizer.train(["ÜBER Über ΣΊΣΥΦΟΣ straße"] * 3, kind=kind, vocab=350, lower=True)
    assert ours.encode("ÜBER").ids == ours.encode("über").ids
    assert ours.unk not in ours.encode("ÜBER ΣΊΣΥΦΟΣ").ids
    one = ours.encode("İ ÜBER", special=False)
    assert all(0 <= start <= end <= 6 for start, end in one.offsets)


@pytest.mark.parametrize(
    ("purpose", "single", "pair", "types"),
    [
        ("bert", "[CLS] a [SEP]", "[CLS] a [SEP] b [SEP]", [0, 0, 0, 1, 1]),
        ("roberta", "<s> a </s>", "<s> a </s> </s> b </s>", [0] * 6),
        ("gpt", "a", "a b", [0, 1]),
        ("llama", "<s> a", "<s> a <s> b", [0, 0, 1, 1]),
        ("seq2seq", "a </s>", "a </s> b </s>", [0] * 4),
        ("bos-eos", "<s> a </s>", "<s> a </s> </s> b </s>", [0] * 6),
        ("t5", "a </s>", "a </s> b </s>", [0] * 4),
        ("xlnet", "a <sep> <cls>", "a <sep> b <sep> <cls>", [0, 0, 1, 1, 2]),
        ("plain", "a", "a b", [0, 1]),
    ],
)
def test_purposes(purpose: str, single: str, pair: str, types: list[int]) -> None:
    ours = Tokenizer.train(["a b"], kind="word", purpose=purpose)
    assert [ours.token(number) for number in ours.encode("a").ids] == single.split()
    both = ours.encode("a", "b")
    assert [ours.token(number) for number in both.ids] == pair.split()
    assert both.types == types
    assert ours.side == ("left" if purpose in ("llama", "xlnet") else "right")
    assert {*PURPOSES} >= {purpose}


def test_sentinels_and_languages(tmp_path: Path) -> None:
    ours = Tokenizer.train(
        CORPUS, kind="bpe", vocab=300, purpose="t5", sentinels=4, codes=["<de>", "en_XX", "Links"]
    )
    assert len(ours) == 300
    assert ours.sentinels == [299, 298, 297, 296]
    assert [ours.token(number) for number in range(6)] == ["<pad>", "<unk>", "</s>", "<de>", "en_XX", "Links"]
    ours.save(tmp_path)
    for each in (ours, Tokenizer.load(tmp_path)):
        assert dict(each.languages) == {"<de>": 3, "en_XX": 4, "Links": 5}
        plain, german = each.encode("the fox", "dog"), each.encode("the fox", "dog", language="<de>")
        assert german.ids == [3, *plain.ids]
        assert german.special[:2] == [True, False]
        assert german.sequence == [None, *plain.sequence]
        assert each.encode("<de>Links<extra_id_0>", special=False).ids == [3, 5, 299]
        assert each.encode_ids(["the fox"], language="en_XX")[0][0] == 4
    assert theirs("AutoTokenizer", tmp_path)("the fox")["input_ids"] == ours.encode("the fox").ids


@pytest.mark.parametrize("model", ["gpt2", "mbart", "xlnet", "marian", "qkv"])
def test_a_trained_tokenizer_is_its_own_beside_any_model(model: str, tmp_path: Path) -> None:
    ours = Tokenizer.train(CORPUS, kind="byte", vocab=300)
    ours.save(tmp_path)
    write(tmp_path, "config.json", {"model_type": model})
    again, other = Tokenizer.load(tmp_path), theirs("AutoTokenizer", tmp_path) if model != "qkv" else None
    assert (again.roles, again.side, again.limit) == (ours.roles, ours.side, ours.limit)
    for text in TORTURE:
        assert again.encode(text) == ours.encode(text)
        assert other is None or other(text)["input_ids"] == ours.encode(text).ids


def test_files_and_texts_are_learned_alike(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"{line}\n" for line in CORPUS), encoding="utf-8")
    lines = [f"{line}\n" for line in CORPUS]
    for kind in KINDS:
        sources: list[Any] = [[path], path, lines, iter(lines), (line for line in lines)]
        found = {str(Tokenizer.train(source, kind=kind, vocab=350)._core.json()) for source in sources}
        assert len(found) == 1


def test_reading_can_be_watched() -> None:
    seen = []
    Tokenizer.train((seen.append(text) or text for text in CORPUS), kind="byte", vocab=300)  # type: ignore[func-returns-value]
    assert seen == CORPUS


CODE = """
import sys
from pathlib import Path
from qkv.text import Tokenizer
from tests.support.text_oracle import CORPUS
for kind in sys.argv[2].split():
    tokenizer = Tokenizer.train(CORPUS, kind=kind, vocab=380, purpose="bert", sentinels=2, codes=["x"])
    tokenizer.save(Path(sys.argv[1]) / kind)
"""


def test_training_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    """In processes of their own: what Rust hashes by differs from one to the next."""
    for turn in "abc":
        command = [sys.executable, "-c", CODE, str(tmp_path / turn), " ".join(KINDS)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    for path in sorted((tmp_path / "a").rglob("*.json")):
        for turn in "bc":
            assert path.read_bytes() == (tmp_path / turn / path.relative_to(tmp_path / "a")).read_bytes()


def test_rare_letters_are_unknown() -> None:
    letters = "".join(chr(0x4E00 + place) for place in range(1500))
    common = letters[:990]
    for kind in ("wordpiece", "bpe", "unigram"):
        ours = Tokenizer.train(
            [" ".join(common)] * 2 + [" ".join(letters)], kind=kind, vocab=3000, purpose="plain"
        )
        assert ours.unk not in ours.encode(" ".join(common[:50])).ids
        assert ours.unk in ours.encode(letters[-1]).ids


@pytest.mark.parametrize(
    ("asked", "cause"),
    [
        (dict(kind="sentence"), "kind 'sentence': expected one of char, word, wordpiece, bpe, byte, unigram"),
        (dict(purpose="poetry"), "purpose 'poetry': expected one of bert"),
        (dict(kind="byte", vocab=100), "vocab 100: expected at least 257"),
        (dict(kind="bpe", vocab=5), "vocab 5: expected at least"),
        (dict(kind="wordpiece", vocab=5), "vocab 5: expected at least"),
        (dict(kind="char", vocab=2), "vocab 2: expected at least 3"),
        (dict(kind="unigram", vocab=5), "vocab 5: "),
        (dict(codes=["a:b"]), "code 'a:b': expected a name without :"),
        (dict(codes=[""]), "code '': expected a name"),
    ],
)
def test_what_cannot_be_is_refused(asked: dict[str, object], cause: str) -> None:
    with pytest.raises(ValueError, match=cause):
        Tokenizer.train(CORPUS, **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_is_refused(kind: str, tmp_path: Path) -> None:
    (tmp_path / "bytes.txt").write_bytes(b"fine\n\xff\xfe")
    with pytest.raises(ValueError, match="no text to learn from"):
        Tokenizer.train([], kind=kind)
    with pytest.raises(ValueError, match=r"nowhere\.txt: No such file"):
        Tokenizer.train([tmp_path / "nowhere.txt"], kind=kind)
    with pytest.raises(ValueError, match=r"bytes\.txt: not UTF-8 text"):
        Tokenizer.train([tmp_path / "bytes.txt"], kind=kind)
    with pytest.raises(ValueError, match="a lone surrogate"):
        Tokenizer.train(["fine", "bad \udc00"], kind=kind)
    with pytest.raises(ValueError, match="7: expected a string"):
        Tokenizer.train(["fine", 7], kind=kind)  # type: ignore[list-item]


def test_pieces_of_bpe_never_join_a_word_with_punctuation() -> None:
    texts = ["Is it?", "Yes, it is it?", "(it) isn't it?", 'He said: "it?"', "it 's it ."] * 20
    made = Tokenizer.train(texts, kind="bpe", vocab=70, purpose="plain")
    ids = made.encode('Is it? "it" isn\'t').ids
    pieces = [made.token(one) for one in ids]
    assert pieces == ["▁Is", "▁it", "?", '▁"', "it", '"', "▁isn't"]
    assert made.decode(ids) == 'Is it? "it" isn\'t'
    every = [made.token(one) for one in range(len(made))]
    assert not [one for one in every if re.search(r"\w", one) and re.search(r"[?,.:()\"]", one)]


def test_a_lone_string_is_no_list_of_texts() -> None:
    with pytest.raises(ValueError, match=r"^'l\.csv', expected a list of texts, or Path\(\.\.\.\)"):
        Tokenizer.train("l.csv", vocab=300)
