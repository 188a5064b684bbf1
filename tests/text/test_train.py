"""Training of tokenizers: every type, every template, and determinism."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qkv.text import Tokenizer
from qkv.text.train import TOKENIZER_TEMPLATES, TOKENIZER_TRAINERS
from tests.support.limits import limit_time_and_memory
from tests.support.text_oracle import CORPUS, DIFFICULT_TEXTS, load_reference, write_file

ROOT = Path(__file__).resolve().parent.parent.parent
SOME = ["The quick brown fox, it isn't lazy.\nRun, rabbit run.", "Ein Käfer läuft über die Straße."]


@pytest.mark.parametrize("tokenizer_type", TOKENIZER_TRAINERS)
@pytest.mark.parametrize("template", ["bert", "gpt", "seq2seq"])
def test_trained_tokenizers_open_there(tokenizer_type: str, template: str, tmp_path: Path) -> None:
    ours = Tokenizer.train(
        CORPUS, type=tokenizer_type, vocab_size=420, template=template, model_max_length=64
    )
    assert len(ours) <= 420
    assert (ours.model_max_length, ours.padding_side) == (64, "right")
    ours.save(tmp_path)
    reloaded = Tokenizer.load(tmp_path)
    assert (reloaded.special_token_ids, reloaded.model_max_length, len(reloaded)) == (
        ours.special_token_ids,
        64,
        len(ours),
    )
    for opener in ("AutoTokenizer", "PreTrainedTokenizerFast"):
        other = load_reference(opener, tmp_path)
        for text in [*DIFFICULT_TEXTS, *SOME]:
            (encoding,) = ours.encode_batch([(text, "b")])
            expected = other(text, "b", return_offsets_mapping=True, return_token_type_ids=True)
            assert (encoding.input_ids, encoding.offset_mapping, encoding.token_type_ids) == tuple(
                expected[name] for name in ("input_ids", "offset_mapping", "token_type_ids")
            )
            assert reloaded.encode_batch([(text, "b")]) == [encoding]
            assert ours.decode(encoding.input_ids, skip_special_tokens=True) == other.decode(
                encoding.input_ids, skip_special_tokens=True
            )


@pytest.mark.parametrize("tokenizer_type", TOKENIZER_TRAINERS)
def test_known_text_comes_back(tokenizer_type: str) -> None:
    ours = Tokenizer.train(SOME * 3, type=tokenizer_type, vocab_size=400)
    for text in SOME:
        back = ours.decode(ours.encode(text), skip_special_tokens=True)
        if tokenizer_type in ("char", "bpe", "byte"):
            assert back == text
        assert "".join(back.split()) == "".join(text.split())
        assert ours.unk_token_id not in ours.encode(text)


def test_every_character_is_a_token() -> None:
    text = " two  spaces\n\n\ttab, Käfer 日本 👍🏽\r\n \u0301 \x00 \u2028"
    ours = Tokenizer.train([text], type="char", template="plain")
    assert len(ours) == len({*text}) + 2
    (encoding,) = ours.encode_batch([text])
    assert ours.convert_ids_to_tokens(encoding.input_ids) == list(text)
    assert encoding.offset_mapping == [(i, i + 1) for i in range(len(text))]
    assert ours.decode(encoding.input_ids, skip_special_tokens=True) == text
    assert ours.encode("z") == [ours.unk_token_id]
    few = Tokenizer.train(["aaabbc"], type="char", template="plain", vocab_size=4)
    assert few.convert_ids_to_tokens(range(len(few))) == [
        "<pad>",
        "<unk>",
        "a",
        "b",
    ]


def test_bytes_know_every_text() -> None:
    ours = Tokenizer.train(CORPUS, type="byte", vocab_size=300)
    assert ours.unk_token_id is None
    for text in DIFFICULT_TEXTS:
        if "<|endoftext|>" not in text:
            assert ours.decode(ours.encode(text), skip_special_tokens=True) == text


@pytest.mark.parametrize("tokenizer_type", TOKENIZER_TRAINERS)
def test_lower_case(tokenizer_type: str) -> None:
    ours = Tokenizer.train(
        ["ÜBER Über ΣΊΣΥΦΟΣ straße"] * 3, type=tokenizer_type, vocab_size=350, lowercase=True
    )
    assert ours.encode("ÜBER") == ours.encode("über")
    assert ours.unk_token_id not in ours.encode("ÜBER ΣΊΣΥΦΟΣ")
    (encoding,) = ours.encode_batch(["İ ÜBER"], add_special_tokens=False)
    assert all(0 <= start <= end <= 6 for start, end in encoding.offset_mapping)


@pytest.mark.parametrize(
    ("template", "single", "pair", "types"),
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
def test_templates(template: str, single: str, pair: str, types: list[int]) -> None:
    ours = Tokenizer.train(["a b"], type="word", template=template)
    assert ours.convert_ids_to_tokens(ours.encode("a")) == single.split()
    (pair_encoding,) = ours.encode_batch([("a", "b")])
    assert ours.convert_ids_to_tokens(pair_encoding.input_ids) == pair.split()
    assert pair_encoding.token_type_ids == types
    assert ours.padding_side == ("left" if template in ("llama", "xlnet") else "right")
    assert {*TOKENIZER_TEMPLATES} >= {template}


def test_sentinels_and_languages(tmp_path: Path) -> None:
    ours = Tokenizer.train(
        CORPUS,
        type="bpe",
        vocab_size=300,
        template="t5",
        num_sentinels=4,
        extra_tokens=["<de>", "en_XX", "Links"],
    )
    assert len(ours) == 300
    assert ours.sentinel_token_ids == [299, 298, 297, 296]
    assert ours.convert_ids_to_tokens(range(6)) == [
        "<pad>",
        "<unk>",
        "</s>",
        "<de>",
        "en_XX",
        "Links",
    ]
    ours.save(tmp_path)
    for tokenizer in (ours, Tokenizer.load(tmp_path)):
        assert dict(tokenizer.languages) == {"<de>": 3, "en_XX": 4, "Links": 5}
        plain, german = (
            *tokenizer.encode_batch([("the fox", "dog")]),
            *tokenizer.encode_batch([("the fox", "dog")], language="<de>"),
        )
        assert german.input_ids == [3, *plain.input_ids]
        assert german.special_tokens_mask[:2] == [True, False]
        assert german.sequence_ids == [None, *plain.sequence_ids]
        assert tokenizer.encode("<de>Links<extra_id_0>", add_special_tokens=False) == [
            3,
            5,
            299,
        ]
        assert tokenizer.encode_ids(["the fox"], language="en_XX")[0][0] == 4
    assert load_reference("AutoTokenizer", tmp_path)("the fox")["input_ids"] == ours.encode(
        "the fox"
    )


@pytest.mark.parametrize("model", ["gpt2", "mbart", "xlnet", "marian", "qkv"])
def test_a_trained_tokenizer_is_its_own_beside_any_model(model: str, tmp_path: Path) -> None:
    ours = Tokenizer.train(CORPUS, type="byte", vocab_size=300)
    ours.save(tmp_path)
    write_file(tmp_path, "config.json", {"model_type": model})
    reloaded, other = (
        Tokenizer.load(tmp_path),
        load_reference("AutoTokenizer", tmp_path) if model != "qkv" else None,
    )
    assert (reloaded.special_token_ids, reloaded.padding_side, reloaded.model_max_length) == (
        ours.special_token_ids,
        ours.padding_side,
        ours.model_max_length,
    )
    for text in DIFFICULT_TEXTS:
        assert reloaded.encode_batch([text]) == ours.encode_batch([text])
        assert other is None or other(text)["input_ids"] == ours.encode(text)


def test_files_and_texts_are_learned_alike(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"{line}\n" for line in CORPUS), encoding="utf-8")
    lines = [f"{line}\n" for line in CORPUS]
    for tokenizer_type in TOKENIZER_TRAINERS:
        sources: list[Any] = [[path], path, lines, iter(lines), (line for line in lines)]
        outputs = {
            str(Tokenizer.train(source, type=tokenizer_type, vocab_size=350)._backend.serialize())
            for source in sources
        }
        assert len(outputs) == 1


def test_reading_can_be_watched() -> None:
    seen = []
    Tokenizer.train((seen.append(text) or text for text in CORPUS), type="byte", vocab_size=300)  # type: ignore[func-returns-value]
    assert seen == CORPUS


CODE = """
import sys
from pathlib import Path
from qkv.text import Tokenizer
from tests.support.limits import limit_time_and_memory
from tests.support.text_oracle import CORPUS
for type in sys.argv[2].split():
    tokenizer = Tokenizer.train(
        CORPUS, type=type, vocab_size=380, template="bert", num_sentinels=2, extra_tokens=["x"]
    )
    tokenizer.save(Path(sys.argv[1]) / type)
"""


def test_training_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    """In separate processes, since the hash seed of Rust differs between processes."""
    for turn in "abc":
        command = [sys.executable, "-c", CODE, str(tmp_path / turn), " ".join(TOKENIZER_TRAINERS)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    for path in sorted((tmp_path / "a").rglob("*.json")):
        for turn in "bc":
            assert (
                path.read_bytes()
                == (tmp_path / turn / path.relative_to(tmp_path / "a")).read_bytes()
            )


def test_rare_letters_are_unknown() -> None:
    letters = "".join(chr(0x4E00 + i) for i in range(1500))
    common = letters[:990]
    for tokenizer_type in ("wordpiece", "bpe", "unigram"):
        ours = Tokenizer.train(
            [" ".join(common)] * 2 + [" ".join(letters)],
            type=tokenizer_type,
            vocab_size=3000,
            template="plain",
        )
        assert ours.unk_token_id not in ours.encode(" ".join(common[:50]))
        assert ours.unk_token_id in ours.encode(letters[-1])


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        (
            dict(type="sentence"),
            "type 'sentence': expected one of char, word, wordpiece, bpe, byte, unigram",
        ),
        (dict(template="poetry"), "template 'poetry': expected one of bert"),
        (dict(type="byte", vocab_size=100), "vocab_size 100: expected at least 257"),
        (dict(type="bpe", vocab_size=5), "vocab_size 5: expected at least"),
        (dict(type="wordpiece", vocab_size=5), "vocab_size 5: expected at least"),
        (dict(type="char", vocab_size=2), "vocab_size 2: expected at least 3"),
        (dict(type="unigram", vocab_size=5), "vocab_size 5: "),
        (dict(extra_tokens=["a:b"]), "extra token 'a:b': expected a name without :"),
        (dict(extra_tokens=[""]), "extra token '': expected a name"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, object], cause: str) -> None:
    with pytest.raises(ValueError, match=cause):
        Tokenizer.train(CORPUS, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("tokenizer_type", TOKENIZER_TRAINERS)
def test_no_text_is_refused(tokenizer_type: str, tmp_path: Path) -> None:
    (tmp_path / "bytes.txt").write_bytes(b"fine\n\xff\xfe")
    with pytest.raises(ValueError, match="no text to train on"):
        Tokenizer.train([], type=tokenizer_type)
    with pytest.raises(ValueError, match=r"nowhere\.txt: No such file"):
        Tokenizer.train([tmp_path / "nowhere.txt"], type=tokenizer_type)
    with pytest.raises(ValueError, match=r"bytes\.txt: not UTF-8 text"):
        Tokenizer.train([tmp_path / "bytes.txt"], type=tokenizer_type)
    with pytest.raises(ValueError, match="a lone surrogate"):
        Tokenizer.train(["fine", "bad \udc00"], type=tokenizer_type)
    with pytest.raises(ValueError, match="7: expected a string"):
        Tokenizer.train(["fine", 7], type=tokenizer_type)  # type: ignore[list-item]


def test_pieces_of_bpe_never_join_a_word_with_punctuation() -> None:
    texts = ["Is it?", "Yes, it is it?", "(it) isn't it?", 'He said: "it?"', "it 's it ."] * 20
    tokenizer = Tokenizer.train(texts, type="bpe", vocab_size=70, template="plain")
    ids = tokenizer.encode('Is it? "it" isn\'t')
    pieces = tokenizer.convert_ids_to_tokens(ids)
    assert pieces == ["▁Is", "▁it", "?", '▁"', "it", '"', "▁isn't"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == 'Is it? "it" isn\'t'
    vocabulary = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    assert not [
        token for token in vocabulary if re.search(r"\w", token) and re.search(r"[?,.:()\"]", token)
    ]


def test_a_lone_string_is_no_list_of_texts() -> None:
    with pytest.raises(ValueError, match=r"^'l\.csv', expected a list of texts, or Path\(\.\.\.\)"):
        Tokenizer.train("l.csv", vocab_size=300)


@pytest.mark.parametrize("type", ["wordpiece", "bpe", "byte", "unigram"])
def test_a_vocabulary_that_cannot_be_allocated_is_refused(type: str) -> None:
    with pytest.raises(ValueError, match=r"vocab_size 1000000000.*at most 2,097,152"):
        Tokenizer.train(["a b"], type=type, vocab_size=10**9, template="plain")


@pytest.mark.parametrize("type", ["char", "word", "wordpiece", "bpe", "byte", "unigram"])
def test_a_very_long_word_does_not_stop_training(type: str) -> None:
    with limit_time_and_memory():
        tokenizer = Tokenizer.train(
            ["the cat sat on the mat", "ab" * 100_000], type=type, vocab_size=300, template="plain"
        )
    assert len(tokenizer) > 3
