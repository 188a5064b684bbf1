"""A call of the tokenizer equals transformers': padding, truncation, pairs, tensors; models read it."""

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qkv.text import BatchEncoding, Tokenizer
from tests.support import tiny
from tests.support.text_oracle import TOKENIZERS, load_reference, write_bert, write_file

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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("batch")


def load_both(name: str, folder: Path) -> tuple[Tokenizer, Any]:
    """Return a small tokenizer and transformers', both with a pad token."""
    write, kind = TOKENIZERS[name]
    if not (folder / name).exists():
        write(folder / name)
    tokenizer, reference = Tokenizer.load(folder / name), load_reference(kind, folder / name)
    for either in (tokenizer, reference):
        if either.pad_token is None:
            either.pad_token = either.eos_token
    return tokenizer, reference


def call_reference(tokenizer: Tokenizer, reference: Any, *texts: Any, **options: Any) -> Any:
    """Call transformers' tokenizer so that it returns the fields that ours returns."""
    has_types = "token_type_ids" in tokenizer.model_input_names
    return reference(*texts, return_token_type_ids=has_types, **options)


@pytest.mark.parametrize("name", NAMES)
def test_padding_and_truncation_equal_theirs(name: str, folder: Path) -> None:
    tokenizer, reference = load_both(name, folder)
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
    name: str, padding_side: str, truncation_side: str, folder: Path
) -> None:
    tokenizer, reference = load_both(name, folder)
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
def test_tensors_equal_theirs(name: str, folder: Path) -> None:
    tokenizer, reference = load_both(name, folder)
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


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2-bos", "t5", "xlnet", "ctrl", "marian"])
def test_encode_and_decode_equal_theirs(name: str, folder: Path) -> None:
    tokenizer, reference = load_both(name, folder)
    assert tokenizer.encode(TEXTS[2]) == reference.encode(TEXTS[2])
    for text_pair in (None, SECOND_TEXTS[0]):
        ids = tokenizer.encode(TEXTS[2], text_pair, truncation=True, max_length=7)
        if name != "ctrl" or text_pair is None:  # an odd number of tokens: see MAX_LENGTHS
            assert ids == reference.encode(TEXTS[2], text_pair, truncation=True, max_length=7)
        assert ids == tokenizer(TEXTS[2], text_pair, truncation=True, max_length=7).input_ids
    rows = [tokenizer.encode(text) for text in TEXTS]
    for skip in (False, True):
        expected = reference.batch_decode(rows, skip_special_tokens=skip)
        assert tokenizer.batch_decode(rows, skip_special_tokens=skip) == expected
        tensors = [torch.tensor(row) for row in rows]
        assert tokenizer.batch_decode(tensors, skip_special_tokens=skip) == expected
        for row, tensor, text in zip(rows, tensors, expected, strict=True):
            for ids_of_row in (row, tuple(row), tensor, np.array(row)):
                assert tokenizer.decode(ids_of_row, skip_special_tokens=skip) == text
    assert tokenizer.batch_decode(torch.tensor([rows[1] * 2] * 3)) == (
        reference.batch_decode([rows[1] * 2] * 3)
    )
    assert (
        tokenizer.decode(rows[0][0])
        == tokenizer.decode(tensors[0][0])
        == (reference.decode(rows[0][0]))
    )
    tokens = reference.convert_ids_to_tokens(rows[0])
    assert tokenizer.convert_ids_to_tokens(rows[0]) == tokens
    assert tokenizer.convert_ids_to_tokens(tensors[0]) == tokens
    assert tokenizer.convert_ids_to_tokens(rows[0][0]) == tokens[0]
    assert tokenizer.convert_tokens_to_ids(tokens) == rows[0]
    assert tokenizer.convert_tokens_to_ids(tokens[0]) == rows[0][0]
    assert tokenizer.convert_tokens_to_ids("no such token") == (
        reference.convert_tokens_to_ids("no such token")
    )


@pytest.mark.parametrize("name", TOKENIZERS)
def test_special_tokens_and_vocabulary_equal_theirs(name: str, folder: Path) -> None:
    write, kind = TOKENIZERS[name]
    if not (folder / name).exists():
        write(folder / name)
    tokenizer, reference = Tokenizer.load(folder / name), load_reference(kind, folder / name)
    for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"):
        assert getattr(tokenizer, f"{role}_token") == getattr(reference, f"{role}_token")
    assert {*tokenizer.all_special_tokens} >= {*reference.special_tokens_map.values()}
    assert (
        tokenizer.convert_tokens_to_ids(tokenizer.all_special_tokens) == tokenizer.all_special_ids
    )
    assert len({*tokenizer.all_special_ids}) == len(tokenizer.all_special_ids)
    assert tokenizer.get_vocab() == reference.get_vocab()


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


def test_rows_of_different_lengths_need_padding(folder: Path) -> None:
    tokenizer, _ = load_both("bert", folder)
    for return_tensors in ("pt", "np"):
        with pytest.raises(ValueError, match=r"rows of 3 to \d+ tokens, .* set padding=True$"):
            tokenizer(TEXTS, return_tensors=return_tensors)
    assert tokenizer(["a", "b"], return_tensors="pt").input_ids.shape == (2, 3)


def test_padding_needs_a_pad_token(tmp_path: Path) -> None:
    TOKENIZERS["gpt2"][0](tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    for text in (TEXTS, TEXTS[0]):
        with pytest.raises(ValueError, match=r"no pad token; set one, such as tokenizer.pad_token"):
            tokenizer(text, padding=True)
    with pytest.raises(ValueError, match=r"pad_token '\[PAD\]': expected a token of the vocab"):
        tokenizer.pad_token = "[PAD]"
    assert tokenizer.pad_token_id is None
    tokenizer.pad_token = tokenizer.eos_token
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    assert tokenizer(TEXTS[:2], padding=True).input_ids[1][-1] == tokenizer.eos_token_id
    tokenizer.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").pad_token == "<|endoftext|>"
    assert load_reference("GPT2Tokenizer", tmp_path / "saved").pad_token == "<|endoftext|>"
    tokenizer.pad_token = None
    assert "pad" not in tokenizer.special_token_ids


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
    texts: Any, options: dict[str, Any], message: str, folder: Path
) -> None:
    tokenizer, _ = load_both("bert", folder)
    with pytest.raises(ValueError, match=message) as caught:
        tokenizer(*texts, **options)
    assert "\n" not in str(caught.value)


def test_decode_and_batch_decode_name_each_other(folder: Path) -> None:
    tokenizer, _ = load_both("bert", folder)
    with pytest.raises(ValueError, match="one row; use batch_decode for a batch"):
        tokenizer.decode([[5, 6]])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="a batch of rows; use decode for one row"):
        tokenizer.batch_decode(torch.tensor([5, 6]))


def test_a_batch_encoding_is_a_dict_with_attributes(folder: Path) -> None:
    tokenizer, _ = load_both("bert", folder)
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


def test_targets_and_languages_of_a_call(folder: Path) -> None:
    tokenizer, reference = load_both("mbart", folder)
    assert (
        tokenizer(TEXTS, is_target=True)["input_ids"] == reference(text_target=TEXTS)["input_ids"]
    )
    reference.src_lang = "fr_XX"
    assert dict(tokenizer(TEXTS, language="fr_XX")) == dict(reference(TEXTS))


def test_torch_is_imported_only_for_tensors() -> None:
    script = (
        "import sys; from qkv import Tokenizer; t = Tokenizer.train(['a b c'], vocab_size=300);"
        " t('a b'); t.decode([1]); assert not {'torch', 'numpy'} & sys.modules.keys();"
        " t('a b', return_tensors='pt'); assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


# Family -> small tokenizer, changes of the tiny model.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {}), "distilbert": ("bert", {}), "electra": ("bert", {}), "albert": ("albert", {}),
    "roberta": ("roberta", {}), "modernbert": ("modernbert", {}), "xlnet": ("xlnet", {}),
    "gpt": ("gpt", {}), "gpt2": ("gpt2", {}), "gpt3": ("gpt2", {}), "sparse": ("gpt2", {}),
    "ctrl": ("ctrl", {}), "llama": ("llama", {}), "transformer-xl": ("gpt2", dict(cutoffs=(50, 90))),
    "t5": ("t5", {}), "switch": ("t5", {}), "bart": ("bart", {}), "mbart": ("mbart", {}),
    "marian": ("marian", {}), "transformer": ("marian", {}), "clip": ("clip", {}),
}  # fmt: skip
# Encoder-decoders that do not shift input_ids themselves.
READ_DECODER_INPUTS = {"t5", "switch", "marian", "transformer"}


@pytest.mark.parametrize("family", MODELS)
def test_models_read_what_both_tokenizers_return(family: str, folder: Path) -> None:
    name, changes = MODELS[family]
    tokenizer, reference = load_both(name, folder)
    if family == "clip":
        changes = dict(eos_token_id=tokenizer.eos_token_id)
    model = tiny.build(family, dtype=torch.float32, vocab_size=len(tokenizer), **changes)
    for text in (TEXTS[3], TEXTS[2:]):
        padding = tokenizer.pad_token is not None
        if isinstance(text, list) and not padding:
            continue
        outputs = []
        options: dict[str, Any] = dict(padding=padding, return_tensors="pt")
        for batch in (
            tokenizer(text, **options),
            call_reference(tokenizer, reference, text, **options),
        ):
            more = {}
            if family in READ_DECODER_INPUTS:
                more["decoder_input_ids"] = batch["input_ids"][:, :3]
            outputs.append(model(**batch, **more))
        assert outputs[0]
        for field, output in outputs[0].items():
            assert torch.equal(output, outputs[1][field])


def test_pairs_of_a_model_without_token_types(folder: Path) -> None:
    tokenizer, _ = load_both("bert", folder)
    model = tiny.build("modernbert", dtype=torch.float32, vocab_size=len(tokenizer))
    batch = tokenizer(TEXTS, SECOND_TEXTS, padding=True, return_tensors="pt")
    assert batch.token_type_ids.max() == 1
    expected = model(batch.input_ids, attention_mask=batch.attention_mask)
    assert torch.equal(model(**batch).logits, expected.logits)


def test_token_types_reach_the_model(folder: Path) -> None:
    tokenizer, _ = load_both("bert", folder)
    model = tiny.build("bert", dtype=torch.float32, vocab_size=len(tokenizer))
    batch = tokenizer(TEXTS[0], SECOND_TEXTS[0], return_tensors="pt")
    other = model(batch.input_ids, attention_mask=batch.attention_mask)
    assert not torch.allclose(model(**batch).logits, other.logits)


def test_generate_reads_a_batch_encoding(folder: Path) -> None:
    tokenizer, _ = load_both("gpt2", folder)
    model = tiny.build("gpt2", dtype=torch.float32, vocab_size=len(tokenizer))
    batch = tokenizer(TEXTS[:2], padding=True, return_tensors="pt")
    alone = tokenizer(TEXTS[1], return_tensors="pt")
    generated = model.generate(**batch, max_new_tokens=4, eos_token_id=None)
    assert generated.shape[0] == 2
    new_ids = model.generate(**alone, max_new_tokens=4, eos_token_id=None)[0]
    assert new_ids.tolist() == generated[1, : len(new_ids)].tolist()
