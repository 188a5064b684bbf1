"""Tokenizer files: detection, saving, and one-line errors for bad files."""

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qkv.text import Tokenizer
from tests.support.text_oracle import (
    DIFFICULT_TEXTS,
    TEXT_PAIRS,
    TOKENIZERS,
    load_reference,
    write_bert,
    write_file,
    write_gpt2,
    write_marian,
    write_modernbert,
    write_roberta,
    write_t5,
)
from tools.attack.file_events import run_at_every_event

WHOLE, CONFIG, SPECIAL = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"


def change(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    value = json.loads(path.read_text())
    edit(value)
    path.write_text(json.dumps(value))


@pytest.mark.parametrize("name", TOKENIZERS)
def test_what_is_saved_opens_here_and_there(name: str, tmp_path: Path) -> None:
    make, kind = TOKENIZERS[name]
    make(tmp_path / "first")
    ours = Tokenizer.load(tmp_path / "first")
    ours.save(tmp_path / "second")
    reloaded = Tokenizer.load(tmp_path / "second")
    reloaded.save(tmp_path / "third")
    for attribute in (
        "special_token_ids",
        "extra_special_tokens",
        "padding_side",
        "model_max_length",
        "languages",
        "sentinel_token_ids",
    ):
        assert getattr(reloaded, attribute) == getattr(ours, attribute)
    assert reloaded.encode_batch(DIFFICULT_TEXTS) == ours.encode_batch(DIFFICULT_TEXTS)
    once = Tokenizer.load(tmp_path / "third")
    once.save(tmp_path / "third")
    once.save(tmp_path / "fourth")
    for file in sorted((tmp_path / "third").iterdir()):
        assert file.read_bytes() == (tmp_path / "fourth" / file.name).read_bytes()
    for old in (tmp_path / "first").iterdir():  # SentencePiece files are copied unchanged
        if old.suffix in (".model", ".spm"):
            assert old.read_bytes() == (tmp_path / "third" / old.name).read_bytes()
    for with_config in (False, True):
        if with_config:
            shutil.copy(tmp_path / "first" / "config.json", tmp_path / "second")
        for opener in ("AutoTokenizer", kind):
            other = load_reference(opener, tmp_path / "second")
            assert len(other) == len(ours)
            for text in DIFFICULT_TEXTS:
                assert ours.encode(text) == other(text)["input_ids"]
            for row in TEXT_PAIRS:
                assert ours.encode(*row) == other(*row)["input_ids"]


def test_tokenizer_json_wins(tmp_path: Path) -> None:
    write_bert(tmp_path)
    before = Tokenizer.load(tmp_path)
    write_modernbert(tmp_path)
    assert len(Tokenizer.load(tmp_path)) != len(before)


def test_saving_over_another_leaves_none_of_it(tmp_path: Path) -> None:
    write_marian(tmp_path / "marian")
    write_modernbert(tmp_path)
    write_file(tmp_path, "added_tokens.json", {"<new>": 615})
    Tokenizer.load(tmp_path / "marian").save(tmp_path)
    (tmp_path / "config.json").unlink()
    assert Tokenizer.load(tmp_path).encode("a") == Tokenizer.load(tmp_path / "marian").encode("a")
    assert not [
        file.name for file in tmp_path.iterdir() if file.name in (WHOLE, "added_tokens.json")
    ]


def test_a_killed_save_is_all_or_nothing(memory_path: Path) -> None:
    folder = memory_path / "folder"
    write_marian(memory_path / "marian")
    tokenizer = Tokenizer.load(memory_path / "marian")

    def reset() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        write_modernbert(folder)
        (folder / "notes.txt").write_text("mine")

    def read() -> dict[str, bytes]:
        Tokenizer.load(folder)
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}

    reset()
    before = read()
    tokenizer.save(folder)
    after = read()
    assert "notes.txt" in after
    assert WHOLE not in after
    outcomes = []
    for _ in run_at_every_event(lambda: tokenizer.save(folder), folder, reset=reset):
        outcomes.append([before, after].index(read()))
        tokenizer.save(folder)
        assert {path.name for path in folder.iterdir()} == after.keys()
    assert outcomes == sorted(outcomes)
    assert {*outcomes} == {0, 1}


def test_a_vocabulary_of_others_is_not_replaced(tmp_path: Path) -> None:
    write_bert(tmp_path / "bert")
    tokenizer = Tokenizer.load(tmp_path / "bert")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "tokenizer.json").write_text("{}")
    (tmp_path / "mine" / "vocab.txt").write_text("words")
    with pytest.raises(ValueError, match=r"tokenizer\.json would be replaced"):
        tokenizer.save(tmp_path / "mine")
    (tmp_path / "mine" / "tokenizer.json").unlink()
    tokenizer.save(tmp_path / "mine")
    assert (tmp_path / "mine" / "vocab.txt").read_text() == "words"


@pytest.mark.parametrize(
    ("name", "kind"), [("roberta", "RobertaTokenizer"), ("gpt2", "GPT2Tokenizer")]
)
def test_family_is_told_by_class_or_model_or_vocabulary(
    name: str, kind: str, tmp_path: Path
) -> None:
    TOKENIZERS[name][0](tmp_path)
    before = Tokenizer.load(tmp_path).encode("a", "b")
    (tmp_path / "config.json").unlink()
    assert Tokenizer.load(tmp_path).encode("a", "b") == before
    write_file(tmp_path, "config.json", {"model_type": "qkv"})
    assert Tokenizer.load(tmp_path).encode("a", "b") == before
    write_file(tmp_path, CONFIG, {"tokenizer_class": f"{kind}Fast"})
    write_file(tmp_path, "config.json", {"model_type": "something"})
    assert Tokenizer.load(tmp_path).encode("a", "b") == before


@pytest.mark.parametrize(
    "name", ["bert", "gpt", "clip", "ctrl", "albert", "xlnet", "t5", "mbart", "llama", "marian"]
)
def test_family_is_guessed_from_the_files(name: str, tmp_path: Path) -> None:
    make, kind = TOKENIZERS[name]
    make(tmp_path)
    settings = tmp_path / CONFIG
    if settings.exists():
        change(settings, lambda value: value.pop("tokenizer_class", None))
    before = Tokenizer.load(tmp_path)
    (tmp_path / "config.json").unlink()
    after = Tokenizer.load(tmp_path)
    assert repr(after) == repr(before)
    assert kind in repr(after)
    assert after.encode_batch(DIFFICULT_TEXTS) == before.encode_batch(DIFFICULT_TEXTS)


def test_a_family_without_its_files_is_refused(tmp_path: Path) -> None:
    write_gpt2(tmp_path)
    write_file(tmp_path, CONFIG, {"tokenizer_class": "Qwen2Tokenizer"})
    with pytest.raises(
        ValueError,
        match=r"declares .Qwen2Tokenizer., but its files are of gpt2, roberta, gpt, clip, ctrl",
    ):
        Tokenizer.load(tmp_path)


def test_added_tokens_equal_theirs(tmp_path: Path) -> None:
    write_bert(tmp_path)
    size = len(Tokenizer.load(tmp_path))
    write_file(tmp_path, "added_tokens.json", {"<new>": size, "New": size + 1})
    write_file(tmp_path, SPECIAL, {"additional_special_tokens": ["<new>"]})
    ours, other = Tokenizer.load(tmp_path), load_reference("BertTokenizer", tmp_path)
    assert ours.extra_special_tokens == {"<new>": size}
    for text in ("a <new>b", "a<new> new news New"):
        assert ours.encode(text) == other(text)["input_ids"]
    write_file(tmp_path, "added_tokens.json", {"<new>": size + 5})
    with pytest.raises(ValueError, match=f"'<new>' has id {size}, expected {size + 5}"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("name", ["ctrl", "marian"])
def test_added_tokens_have_the_ids_they_were_given(name: str, tmp_path: Path) -> None:
    make, kind = TOKENIZERS[name]
    make(tmp_path)
    size = len(Tokenizer.load(tmp_path))
    write_file(tmp_path, "added_tokens.json", {"<new>": size + 5, "new": size})
    ours, other = Tokenizer.load(tmp_path), load_reference(kind, tmp_path)
    assert (ours.convert_tokens_to_ids("<new>"), ours.convert_ids_to_tokens(size + 5)) == (
        size + 5,
        "<new>",
    )
    for text in ("a <new>b", "new, a<new> news"):
        ids = ours.encode(text)
        assert ids == other(text)["input_ids"]
        assert ours.decode(ids, skip_special_tokens=True) == other.decode(
            ids, skip_special_tokens=True
        )
    ours.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").encode("a <new>b") == ours.encode("a <new>b")
    write_file(tmp_path, "added_tokens.json", {"<new>": 3})
    with pytest.raises(ValueError, match=r"and '<new>' have id 3, expected unique ids"):
        Tokenizer.load(tmp_path)


def test_settings_of_tokens_equal_theirs(tmp_path: Path) -> None:
    write_roberta(tmp_path)
    mask = {
        "content": "<mask>",
        "lstrip": True,
        "rstrip": False,
        "normalized": False,
        "single_word": False,
    }
    for name, value in (
        (SPECIAL, {"mask_token": mask}),
        (CONFIG, {"mask_token": {**mask, "__type": "AddedToken"}}),
    ):
        write_file(tmp_path, name, value)
        ours, other = (
            Tokenizer.load(tmp_path),
            load_reference("RobertaTokenizer", tmp_path),
        )
        for text in DIFFICULT_TEXTS:
            assert ours.encode(text) == other(text)["input_ids"]
        (tmp_path / name).unlink()
    write_bert(tmp_path / "bert", pad_token="[P]", model_max_length=1e30, added_tokens_decoder={
        "0": {"content": "[PAD]", "lstrip": False, "rstrip": True, "normalized": False, "special": True},
    })  # fmt: skip
    ours, other = (
        Tokenizer.load(tmp_path / "bert"),
        load_reference("BertTokenizer", tmp_path / "bert"),
    )
    assert ours.pad_token_id == other.pad_token_id == len(ours) - 1
    assert ours.model_max_length is None
    assert ours.encode("a [PAD]  b[P]c") == other("a [PAD]  b[P]c")["input_ids"]


def test_a_tokenizer_json_alone_has_its_roles(tmp_path: Path) -> None:
    write_modernbert(tmp_path)
    before = Tokenizer.load(tmp_path)
    for name in (CONFIG, "config.json"):
        (tmp_path / name).unlink()
    after = Tokenizer.load(tmp_path)
    assert after.special_token_ids == before.special_token_ids
    assert after.encode_batch([("a", "b")]) == before.encode_batch([("a", "b")])
    write_file(tmp_path, SPECIAL, {"pad_token": "[PAD]", "eos_token": "<|end|>"})
    declared, other = (
        Tokenizer.load(tmp_path),
        load_reference("PreTrainedTokenizerFast", tmp_path),
    )
    assert declared.special_token_ids == {"pad": before.pad_token_id, "eos": len(before)}
    assert declared.encode("a<|end|>b") == other("a<|end|>b")["input_ids"]


def test_code_named_in_a_file_is_not_run(tmp_path: Path) -> None:
    write_bert(tmp_path, auto_map={"AutoTokenizer": ["evil.Tokenizer", None]})
    (tmp_path / "evil.py").write_text("raise SystemExit")
    Tokenizer.load(tmp_path).save(tmp_path / "saved")
    assert "auto_map" not in (tmp_path / "saved" / CONFIG).read_text()


def test_templates_are_no_format_strings(tmp_path: Path) -> None:
    Tokenizer.train(["a b"], type="char", extra_tokens=["<en>"]).save(tmp_path)
    change(
        tmp_path / CONFIG,
        lambda value: value.update(language_template=["{language.__class__}:0 $A:0", "$A:0"]),
    )
    with pytest.raises(ValueError, match="not in the vocabulary"):
        Tokenizer.load(tmp_path)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no such folder"):
        Tokenizer.load(tmp_path / "nowhere")
    with pytest.raises(
        ValueError, match=r"no tokenizer; expected one of tokenizer.json, .*vocab.txt.*has nothing$"
    ):
        Tokenizer.load(tmp_path)
    write_file(tmp_path, "vocab.json", {"a": 0})
    with pytest.raises(ValueError, match=r"vocab.json \+ merges.txt.*the folder has vocab.json$"):
        Tokenizer.load(tmp_path)


def edit_json(edit: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def break_it(folder: Path) -> None:
        write_modernbert(folder)
        change(folder / WHOLE, edit)

    return break_it


def part(make: Callable[[Path], None], name: str, value: object) -> Callable[[Path], None]:
    def break_it(folder: Path) -> None:
        make(folder)
        (folder / name).unlink(missing_ok=True)
        if isinstance(value, bytes):
            (folder / name).write_bytes(value)
        else:
            write_file(folder, name, value)

    return break_it


def cut(make: Callable[[Path], None], name: str, size: int) -> Callable[[Path], None]:
    def break_it(folder: Path) -> None:
        make(folder)
        (folder / name).write_bytes((folder / name).read_bytes()[:size])

    return break_it


def clip_file(data: bytes) -> Callable[[Path], None]:
    return part(lambda folder: folder.mkdir(), "bpe_simple_vocab_16e6.txt.gz", data)


def other_kind(folder: Path) -> None:
    TOKENIZERS["llama"][0](folder)
    (folder / "tokenizer.model").rename(folder / "spiece.model")
    write_file(folder, CONFIG, {"tokenizer_class": "T5Tokenizer"})


def template(value: dict[str, Any]) -> object:
    return value["post_processor"].update(special_tokens={})


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "whole-json": (cut(write_modernbert, WHOLE, 100), "tokenizer.json: not JSON"),
    "whole-empty": (cut(write_modernbert, WHOLE, 0), "tokenizer.json: empty"),
    "whole-list": (part(write_modernbert, WHOLE, []), "a JSON list, expected an object"),
    "whole-deep": (part(write_modernbert, WHOLE, "[" * 200_000), "nested too deep"),
    "whole-bytes": (part(write_modernbert, WHOLE, b"\xff\xfe"), "not UTF-8 text at byte 0"),
    "whole-no-model": (edit_json(lambda v: v.pop("model")), "tokenizer.json: Model missing"),
    "whole-kind": (edit_json(lambda v: v["model"].update(type="Pickle")), "tokenizer.json: "),
    "whole-negative": (edit_json(lambda v: v["model"]["vocab"].update(a=-1)), "'a' has id -1, expected"),
    "whole-twice": (edit_json(lambda v: v["model"]["vocab"].update(a=5)), "and 'a' have id 5"),
    "whole-text-id": (edit_json(lambda v: v["model"]["vocab"].update(a="5")), "'a' has id '5'"),
    "whole-huge-id": (edit_json(lambda v: v["model"]["vocab"].update(a=2**40)), "'a' has id 1099511627776"),
    "whole-merges": (
        edit_json(lambda v: v["model"]["merges"].append(["zzz", "q"])), "`zzz` out of vocabulary"
    ),
    "whole-added": (edit_json(lambda v: v["added_tokens"][0].update(id=9999)), "has id 608, expected 9999"),
    "whole-template": (edit_json(template), "no entry found|Missing SpecialToken"),
    "config-json": (part(write_bert, CONFIG, "{"), "tokenizer_config.json: not JSON"),
    "config-flag": (part(write_bert, CONFIG, {"do_lower_case": "yes"}), "do_lower_case 'yes', expected true"),
    "config-class": (
        part(write_bert, CONFIG, {"tokenizer_class": 5}), "tokenizer_class 5, expected a string"
    ),
    "config-limit": (part(write_bert, CONFIG, {"model_max_length": "x"}), "model_max_length 'x', expected"),
    "config-side": (
        part(write_bert, CONFIG, {"padding_side": "up"}), "padding_side 'up', expected left or right"
    ),
    "config-token": (part(write_bert, CONFIG, {"pad_token": 7}), "pad_token 7, expected a token"),
    "config-marks": (
        part(write_bert, CONFIG, {"pad_token": {"content": "[PAD]", "lstrip": "no"}}),
        "pad_token .* expected a"
    ),
    "config-extras": (
        part(write_bert, CONFIG, {"additional_special_tokens": "x"}), "expected a list of tokens"
    ),
    "config-added": (part(write_bert, CONFIG, {"added_tokens_decoder": {"x": "y"}}), "expected tokens by id"),
    "config-no-unk": (part(write_bert, CONFIG, {"unk_token": None}), "vocab.txt: no unk_token; expected one"),
    "config-no-cls": (part(write_bert, CONFIG, {"cls_token": None}), "vocab.txt: no cls_token; expected one"),
    "config-sentinels": (part(write_t5, CONFIG, {"extra_ids": 10**12}), "extra_ids 1000000000000, expected"),
    "config-language": (part(TOKENIZERS["mbart"][0], CONFIG, {"src_lang": "xx"}), "language 'xx', expected"),
    "config-languages": (
        part(write_modernbert, CONFIG, {"language_codes": ["x"]}), r"language_template \[\], exp"
    ),
    "config-codes": (
        part(write_modernbert, CONFIG, {"language_codes": [1]}), r"language_codes \[1\], expected"
    ),
    "special-list": (part(write_bert, SPECIAL, []), "special_tokens_map.json: a JSON list"),
    "added-negative": (part(write_bert, "added_tokens.json", {"x": -4}), "added_tokens.json: 'x' has id -4"),
    "added-twice": (part(write_bert, "added_tokens.json", '{"x": 1, "x": 2}'), "'x' is a duplicate key"),
    "model-config": (part(write_bert, "config.json", "nonsense"), "config.json: not JSON"),
    "lines-twice": (part(write_bert, "vocab.txt", "[UNK]\nx\ny\nx\n"), "'x' on lines 2 and 4, expected once"),
    "lines-folder": (lambda f: (f / "vocab.txt").mkdir(parents=True), "a folder, pipe or device"),
    "numbers-negative": (part(write_gpt2, "vocab.json", {"a": -1}), "vocab.json: 'a' has id -1"),
    "numbers-twice": (
        part(write_gpt2, "vocab.json", {"a": 1, "b": 1}), "'a' and 'b' have id 1, expected unique"
    ),
    "numbers-true": (part(write_gpt2, "vocab.json", {"a": True}), "'a' has id True"),
    "numbers-float": (part(write_gpt2, "vocab.json", {"a": 1.5}), "'a' has id 1.5"),
    "numbers-none": (part(write_gpt2, "vocab.json", {}), "vocab.json: no tokens"),
    "numbers-same": (part(write_gpt2, "vocab.json", '{"a": 1, "a": 2}'), "'a' is a duplicate key"),
    "merges-three": (
        part(write_gpt2, "merges.txt", "#version: 0.2\na b c\n"), "line 2 is 'a b c', expected two"
    ),
    "merges-lost": (part(write_gpt2, "merges.txt", "zzz q\n"), "`zzz` out of vocabulary"),
    "clip-gzip": (clip_file(b"nonsense"), "not gzipped text"),
    "clip-cut": (clip_file(gzip.compress(b"a b\n" * 999)[:-9]), "not gzipped text"),
    "pieces-cut": (cut(write_t5, "spiece.model", 1000), "spiece.model: not a SentencePiece model"),
    "pieces-text": (part(write_t5, "spiece.model", b"version https://git-lfs"), "not a SentencePiece model"),
    "pieces-none": (part(write_t5, "spiece.model", b"\x12\x00"), "not a SentencePiece model"),
    "pieces-kind": (other_kind, "a SentencePiece model of type 2, expected 1 for t5"),
    "marian-cut": (cut(write_marian, "source.spm", 1000), "source.spm: not a SentencePiece model"),
    "marian-unk": (part(write_marian, "vocab.json", {"a": 0}), "vocab.json: no <unk> in the vocabulary"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_bad_files_are_one_line(name: str, tmp_path: Path) -> None:
    break_it, cause = BROKEN[name]
    folder = tmp_path / name
    break_it(folder)
    with pytest.raises(ValueError, match=cause) as caught:
        Tokenizer.load(folder)
    message = str(caught.value)
    assert message.startswith(str(folder))
    assert message.count(str(folder)) == 1
    assert "\n" not in message
    assert type(caught.value) is ValueError


@pytest.mark.parametrize("name", ["modernbert", "t5", "gpt2", "marian", "bert", "ctrl"])
def test_damage_anywhere_is_a_value_error_or_nothing(name: str, tmp_path: Path) -> None:
    """A flipped bit gives a working tokenizer or a ValueError, nothing else."""
    TOKENIZERS[name][0](tmp_path / "whole")
    messages = []
    for file in sorted((tmp_path / "whole").iterdir()):
        data = file.read_bytes()
        for turn in range(12):
            folder = tmp_path / f"{file.name}-{turn}"
            shutil.copytree(tmp_path / "whole", folder)
            position = (turn * 7919 + 13) % len(data)
            flipped = bytes([data[position] ^ (1 << turn % 8)])
            (folder / file.name).write_bytes(data[:position] + flipped + data[position + 1 :])
            try:
                Tokenizer.load(folder).encode_batch(DIFFICULT_TEXTS[:10])
            except ValueError as error:
                messages.append(str(error))
    assert messages
    assert not [message for message in messages if "\n" in message]
