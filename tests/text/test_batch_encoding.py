"""A call of the tokenizer equals transformers': padding, truncation, pairs, tensors; models read it."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qkv.text import BatchEncoding, Tokenizer
from tests.support.text_oracle import TOKENIZERS, load_reference, write_bert, write_file
from tests.text.conftest import LoadBoth, call_reference

TEXTS = [
    "The quick brown fox, über die Straße",
    "a",
    "one two three four five six seven eight nine ten, there and then",
    "Run, rabbit run.",
]
SECOND_TEXTS = ["the lazy dog", "sleeps on the other side of the hill, quite a lot", "x", "b c"]
NAMES = (
    "bert roberta roberta-space bart gpt2 gpt2-bos clip albert xlnet t5 mbart mbart50 llama marian modernbert"
).split()
# Available lengths of Marian's pairs are even: transformers' tokenizers in Python give an odd token
# to the first text, those in Rust, as ours, to the second.
MAX_LENGTHS = (7, 13, 41)


@pytest.mark.parametrize("name", NAMES)
def test_padding_and_truncation_equal_theirs(name: str, load_both: LoadBoth) -> None:
    tokenizer, reference = load_both(name)
    num_compared = num_refused = 0
    for padding, truncation, max_length, add_special_tokens in itertools.product(
        (False, True, "longest", "max_length"),
        (False, True, "longest_first", "only_first", "only_second"),
        (None, *MAX_LENGTHS),
        (True, False),
    ):
        options: dict[str, Any] = dict(
            padding=padding,
            truncation=truncation,
            max_length=max_length,
            add_special_tokens=add_special_tokens,
            return_offsets_mapping=reference.is_fast,
        )
        for texts in ((TEXTS,), (TEXTS, SECOND_TEXTS), (TEXTS[0],), (TEXTS[2], SECOND_TEXTS[1])):
            if max_length and not truncation and padding != "max_length":
                with pytest.raises(ValueError, match=f"max_length {max_length} has no effect"):
                    tokenizer(*texts, **options)
                continue
            if padding == "max_length" and not max_length and not tokenizer.model_max_length:
                with pytest.raises(ValueError, match="no model_max_length; set max_length"):
                    tokenizer(*texts, **options)
                continue
            if not reference.is_fast and len(texts) == 2 and not add_special_tokens:
                continue  # an odd number of tokens: see MAX_LENGTHS
            try:
                expected = call_reference(tokenizer, reference, *texts, **options)
            except Exception:  # tokenizers raises no other one
                expected = None
            if expected is None or has_longer_rows(expected, texts, options):
                with pytest.raises(ValueError, match=r"tokens that truncation 'only_.*' keeps"):
                    tokenizer(*texts, **options)
                num_refused += 1
                continue
            assert dict(tokenizer(*texts, **options)) == dict(expected), (options, texts)
            num_compared += 1
    assert num_compared > 200
    assert num_refused > 20


def has_longer_rows(batch: Any, texts: Any, options: dict[str, Any]) -> bool:
    """Return whether a tokenizer in Python could not truncate to `max_length`, and did not say so."""
    rows = batch["input_ids"] if isinstance(texts[0], list) else [batch["input_ids"]]
    return bool(options["truncation"]) and max(map(len, rows)) > (options["max_length"] or 10**9)


@pytest.mark.parametrize("name", ["bert", "gpt2", "xlnet", "t5", "marian"])
@pytest.mark.parametrize("padding_side", ["left", "right"])
@pytest.mark.parametrize("truncation_side", ["left", "right"])
def test_sides_equal_theirs(
    name: str, padding_side: str, truncation_side: str, load_both: LoadBoth
) -> None:
    tokenizer, reference = load_both(name)
    for either in (tokenizer, reference):
        either.padding_side = padding_side
        either.truncation_side = truncation_side
    options: dict[str, Any] = dict(padding=True, truncation=True, max_length=9)
    for texts in ((TEXTS,), (TEXTS, SECOND_TEXTS)):
        batch = tokenizer(*texts, **options)
        assert dict(batch) == dict(call_reference(tokenizer, reference, *texts, **options))
        assert {len(row) for row in batch.input_ids} == {9}


def test_sides_of_the_config(tmp_path: Path) -> None:
    write_bert(tmp_path, padding_side="left", truncation_side="left")
    tokenizer = Tokenizer.load(tmp_path)
    assert (tokenizer.padding_side, tokenizer.truncation_side) == ("left", "left")
    write_file(tmp_path, "tokenizer_config.json", {"truncation_side": "top"})
    with pytest.raises(ValueError, match="truncation_side 'top', expected left or right"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_tensors_equal_theirs(name: str, load_both: LoadBoth) -> None:
    tokenizer, reference = load_both(name)
    for texts in ((TEXTS[0],), (TEXTS,), (TEXTS, SECOND_TEXTS)):
        options: dict[str, Any] = dict(padding=True, return_offsets_mapping=reference.is_fast)
        batch = tokenizer(*texts, return_tensors="pt", **options)
        arrays = tokenizer(*texts, return_tensors="np", **options)
        expected = call_reference(tokenizer, reference, *texts, return_tensors="pt", **options)
        assert batch.keys() == arrays.keys() == expected.keys()
        num_rows = len(texts[0]) if isinstance(texts[0], list) else 1
        for field, tensor in batch.items():
            assert tensor.dtype == torch.int64
            assert tensor.shape[0] == num_rows
            assert torch.equal(tensor, expected[field])
            assert arrays[field].dtype == np.int64
            assert (torch.from_numpy(arrays[field]) == tensor).all()


@pytest.mark.parametrize(
    ("name", "declared", "has_types"),
    [
        ("bert", None, True),
        ("bert", "ElectraTokenizer", True),
        ("bert", "DistilBertTokenizer", False),
        ("albert", None, True),
        ("xlnet", None, True),
        ("roberta", None, False),
        ("gpt2", None, False),
        ("t5", None, False),
        ("marian", None, False),
        ("modernbert", None, False),
    ],
)
def test_token_types_where_the_model_has_them(
    name: str, declared: str | None, has_types: bool, tmp_path: Path
) -> None:
    TOKENIZERS[name][0](tmp_path)
    if declared is not None:
        write_file(tmp_path, "tokenizer_config.json", {"tokenizer_class": declared})
    tokenizer = Tokenizer.load(tmp_path)
    fields = ["input_ids", "token_type_ids", "attention_mask"]
    assert [*tokenizer("a", "b")] == (fields if has_types else fields[::2])
    tokenizer.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved")("a", "b") == tokenizer("a", "b")


def test_model_input_names_of_the_config_decide(tmp_path: Path) -> None:
    write_bert(tmp_path, model_input_names=["input_ids"])
    assert [*Tokenizer.load(tmp_path)("a")] == ["input_ids"]
    write_file(tmp_path, "tokenizer_config.json", {"model_input_names": "x"})
    with pytest.raises(ValueError, match="model_input_names 'x', expected a list of strings"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("template", ["bert", "xlnet", "roberta", "gpt", "llama", "t5", "plain"])
def test_a_trained_tokenizer_returns_the_same_fields_there(template: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(TEXTS, type="byte", vocab_size=300, template=template)
    tokenizer.save(tmp_path)
    reference = load_reference("PreTrainedTokenizerFast", tmp_path)
    for texts in ((TEXTS[0],), (TEXTS[0], SECOND_TEXTS[0])):
        assert dict(tokenizer(*texts)) == dict(reference(*texts))
    assert ("token_type_ids" in tokenizer("a")) == (template in ("bert", "xlnet"))


def test_rows_of_different_lengths_need_padding(load_both: LoadBoth) -> None:
    tokenizer, _ = load_both("bert")
    for return_tensors in ("pt", "np"):
        with pytest.raises(ValueError, match=r"rows of 3 to \d+ tokens, .* set padding=True$"):
            tokenizer(TEXTS, return_tensors=return_tensors)
    assert tokenizer(["a", "b"], return_tensors="pt").input_ids.shape == (2, 3)


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (("a",), dict(padding="most"), "padding 'most': expected True, False or one of 'longest'"),
        (("a",), dict(truncation="first"), "truncation 'first': expected .*'only_second'$"),
        (("a",), dict(truncation=True, max_length=0), "max_length 0: expected an integer of 1"),
        (("a",), dict(truncation=True, max_length="9"), "max_length '9': expected an integer"),
        (("a",), dict(truncation=True, max_length=1), "expected at least 2, the number of tokens"),
        (
            ("a b",),
            dict(truncation="only_second", max_length=3),
            "more than 4, .*'only_second' keeps$",
        ),
        (("a",), dict(return_tensors="tf"), "return_tensors 'tf': expected 'pt', 'np' or None"),
        ((["a"], "b"), {}, "one text and a list; expected two texts or two lists"),
        (("a", ["b"]), {}, "one text and a list; expected two texts or two lists"),
        ((["a"], ["b", "c"]), {}, "text has 1 texts and text_pair 2; expected one text_pair"),
        ((7,), {}, "text is a int, expected a string or a list of strings"),
        (([7],), {}, "7: expected a string"),
        ((["a", None],), {}, "None: expected a string"),
    ],
)
def test_wrong_options_are_one_line(
    texts: Any, options: dict[str, Any], message: str, load_both: LoadBoth
) -> None:
    tokenizer, _ = load_both("bert")
    with pytest.raises(ValueError, match=message) as caught:
        tokenizer(*texts, **options)
    assert "\n" not in str(caught.value)


def test_a_batch_encoding_is_a_dict_with_attributes(load_both: LoadBoth) -> None:
    tokenizer, _ = load_both("bert")
    batch = tokenizer(TEXTS, SECOND_TEXTS, padding=True)
    assert batch.input_ids is batch["input_ids"]
    assert "token_type_ids" in dir(batch)
    with pytest.raises(AttributeError, match="no field 'labels': this encoding has input_ids"):
        _ = batch.labels
    with pytest.raises(ValueError, match='set return_tensors="pt"'):
        batch.to("cpu")
    moved = tokenizer("a", return_tensors="pt").to("meta")
    assert isinstance(moved, BatchEncoding)
    assert moved.input_ids.device.type == "meta"
    assert (
        tokenizer([(TEXTS[0], SECOND_TEXTS[0])])["input_ids"]
        == (tokenizer(TEXTS[:1], SECOND_TEXTS[:1])["input_ids"])
    )
    assert tokenizer([]) == {"input_ids": [], "token_type_ids": [], "attention_mask": []}


def test_targets_and_languages_of_a_call(load_both: LoadBoth) -> None:
    tokenizer, reference = load_both("mbart")
    assert (
        tokenizer(TEXTS, is_target=True)["input_ids"] == reference(text_target=TEXTS)["input_ids"]
    )
    reference.src_lang = "fr_XX"
    assert dict(tokenizer(TEXTS, language="fr_XX")) == dict(reference(TEXTS))
