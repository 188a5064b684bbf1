"""Translation checkpoints of fairseq: small ones, written here, agree with FSMT of transformers."""

from __future__ import annotations

import argparse
import json
import sys
import types
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import transformers
from torch import Tensor

import qkv
from qkv.model.foreign.fairseq import load_fairseq
from tests.support.errors import assert_error
from tests.support.fairseq_files import fuse_projections
from tests.support.fairseq_translation import (
    BART_SETTINGS,
    CODES,
    SETTINGS,
    WIDTH,
    WORDS,
    build_fsmt,
    to_fairseq_bart_state,
    to_fairseq_state,
    write_checkpoint,
    write_codes,
    write_dictionary,
)
from tests.support.sentencepiece_files import train_sentencepiece

TOLERANCE: dict[str, Any] = dict(atol=2e-5, rtol=1e-4)
TARGET_WORDS = [*WORDS, "then@@", "there"]
SOURCE_IDS = torch.tensor([[5, 9, 20, 33, 2], [7, 12, 2, 1, 1]])  # 1 is the pad
TARGET_IDS = torch.tensor([[2, 8, 9, 4], [2, 30, 31, 5]])
MASK = SOURCE_IDS != 1


def compute_logits(model: qkv.Model) -> Tensor:
    with torch.no_grad():
        outputs = model(SOURCE_IDS, attention_mask=MASK, decoder_input_ids=TARGET_IDS)
    return outputs["logits"]


def assert_agrees_with_fsmt(model: qkv.Model, reference: Any) -> None:
    with torch.no_grad():
        expected = reference(
            SOURCE_IDS, attention_mask=MASK.long(), decoder_input_ids=TARGET_IDS, use_cache=False
        ).logits
    torch.testing.assert_close(compute_logits(model), expected, **TOLERANCE)


def write_joined(folder: Path) -> Any:
    """Write a folder like wmt19.en-de.joined-dict.single_model; return FSMT's model."""
    reference = build_fsmt(WORDS, WORDS)
    write_checkpoint(folder, to_fairseq_state(reference), share_all_embeddings=True)
    for language in ("de", "en"):
        write_dictionary(folder / f"dict.{language}.txt", WORDS)
    write_codes(folder / "bpecodes")
    return reference


def number_norms(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Number the norms of a layer, as the first versions did."""
    tensors = {}
    for key, x in state.items():
        names = ["self_attn_layer_norm", "final_layer_norm"]
        if key.startswith("decoder"):
            names.insert(1, "encoder_attn_layer_norm")
        for i, name in enumerate(names):
            key = key.replace(f".{name}.", f".layer_norms.{i}.")
        tensors[key] = x
    return tensors


def drop_output(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: x for key, x in state.items() if "output_projection" not in key}


VERSIONS: dict[str, Callable[[dict[str, Tensor]], dict[str, Tensor]]] = {
    "new": dict,
    "fused": fuse_projections,
    "numbered": number_norms,
    "tied": drop_output,
}


@pytest.mark.parametrize("version", VERSIONS)
def test_names_of_every_version_are_read(tmp_path: Path, version: str) -> None:
    reference = build_fsmt(WORDS, WORDS)
    state = VERSIONS[version](to_fairseq_state(reference))
    state |= {"encoder.embed_positions.weights": torch.zeros(30, WIDTH)}
    folder = write_checkpoint(tmp_path, state, share_all_embeddings=True)
    with pytest.warns(UserWarning, match="loaded without a tokenizer: no dictionary"):
        model = load_fairseq(folder)
    assert model.family.name == "transformer"
    assert (model.args["dropout"], model.args["attention_dropout"]) == (0.3, 0.1)
    assert model.args["share_embeddings"]
    assert model.tokenizer is None
    assert_agrees_with_fsmt(model, reference)


def test_both_sides_may_have_a_dictionary_of_their_own(tmp_path: Path) -> None:
    reference = build_fsmt(WORDS, TARGET_WORDS)
    state = to_fairseq_state(reference)
    state["decoder.embed_out"] = state.pop("decoder.output_projection.weight")  # before 0.9
    write_checkpoint(tmp_path, state, share_decoder_input_output_embed=False)
    write_dictionary(tmp_path / "dict.de.txt", WORDS)
    write_dictionary(tmp_path / "dict.en.txt", TARGET_WORDS)
    write_codes(tmp_path / "code")
    model = qkv.load(tmp_path)
    assert_agrees_with_fsmt(model, reference)
    assert not model.args["share_embeddings"]
    tokenizer = model.tokenizer
    assert tokenizer is not None
    assert tokenizer.decode([4 + len(WORDS), 4 + len(WORDS) + 1]) == "thenthere"
    assert tokenizer.encode("there", is_target=True) != [4 + len(WORDS) + 1, 2]  # not a merge
    model.save(tmp_path / "saved")
    saved = qkv.load(tmp_path / "saved")
    torch.testing.assert_close(compute_logits(saved), compute_logits(model), **TOLERANCE)
    assert saved.tokenizer is not None
    assert saved.tokenizer.encode("lower low.") == tokenizer.encode("lower low.")
    assert saved.tokenizer.decode([4 + len(WORDS) + 1]) == "there"


def test_an_untied_output_projection_is_read(tmp_path: Path) -> None:
    reference = build_fsmt(WORDS, TARGET_WORDS)
    with torch.no_grad():
        projection = reference.model.decoder.output_projection
        projection.weight = torch.nn.Parameter(torch.randn_like(projection.weight))
    write_checkpoint(tmp_path, to_fairseq_state(reference), share_decoder_input_output_embed=False)
    with pytest.warns(UserWarning, match="without a tokenizer"):
        model = load_fairseq(tmp_path / "model.pt")
    assert not model.args["tie_embeddings"]
    assert_agrees_with_fsmt(model, reference)


def test_settings_may_be_in_cfg_and_nested(tmp_path: Path) -> None:
    reference = build_fsmt(WORDS, WORDS)
    nested: dict[str, Any] = {"encoder": {}, "decoder": {"input_dim": "${model.decoder.embed_dim}"}}
    for key, value in SETTINGS.items():
        stack, _, name = key.partition("_")
        if stack in nested:
            nested[stack][name] = value
        else:
            nested[key] = value
    del nested["source_lang"], nested["target_lang"]
    for model_settings in (argparse.Namespace(**SETTINGS), nested):
        cfg = {
            "_name": None,
            "model": model_settings,
            "task": {"_name": "translation", "source_lang": "de", "target_lang": "en"},
            "generation": {"beam": 4, "lenpen": 0.6, "max_len_b": 50, "no_repeat_ngram_size": 3},
        }
        state = {"args": None, "cfg": cfg, "model": to_fairseq_state(reference)}
        torch.save(state, tmp_path / "checkpoint_best.pt")
        for language in ("de", "en"):
            write_dictionary(tmp_path / f"dict.{language}.txt", WORDS)
        write_codes(tmp_path / "bpecodes")
        model = load_fairseq(tmp_path)
        assert_agrees_with_fsmt(model, reference)
        assert model.generation_config == {
            "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2,
            "num_beams": 4, "length_penalty": 0.6, "max_new_tokens": 50, "no_repeat_ngram_size": 3,
        }  # fmt: skip


def test_objects_of_omegaconf_and_fairseq_are_read_without_these_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pickle refers to classes that do not exist here when it is read, and runs none of them."""
    module_names = (
        "omegaconf",
        "omegaconf.dictconfig",
        "omegaconf.nodes",
        "fairseq",
        "fairseq.meters",
    )
    calls = []

    class Base:
        def __init__(self, **attributes: Any) -> None:
            self.__dict__.update(attributes)

        def __setstate__(self, state: dict[str, Any]) -> None:
            calls.append(state)

    classes = {}
    for module_name, class_name in (
        ("omegaconf.dictconfig", "DictConfig"),
        ("omegaconf.nodes", "AnyNode"),
        ("fairseq.meters", "AverageMeter"),
    ):
        for name in module_names:
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        classes[class_name] = type(class_name, (Base,), {"__module__": module_name})
    for new_class in classes.values():
        setattr(sys.modules[new_class.__module__], new_class.__name__, new_class)
    config_class, node_class, meter_class = classes.values()
    settings = config_class(
        _content={key: node_class(_val=value, _metadata=None) for key, value in SETTINGS.items()},
        _metadata=node_class(
            ref_type=dict, key_type=str, types=(int, float), flags=defaultdict(dict)
        ),
    )
    reference = build_fsmt(WORDS, WORDS)
    checkpoint = {
        "args": None,
        "cfg": config_class(_content={"model": settings}, _metadata=None),
        "model": to_fairseq_state(reference),
        "extra_state": {"train_meters": {"loss": meter_class(sum=1.0)}, "best": numpy.float64(2.5)},
    }
    for is_zip in (True, False):
        for new_class in classes.values():
            setattr(sys.modules[new_class.__module__], new_class.__name__, new_class)
        torch.save(checkpoint, tmp_path / "model.pt", _use_new_zipfile_serialization=is_zip)
        for new_class in classes.values():
            delattr(sys.modules[new_class.__module__], new_class.__name__)
        with pytest.warns(UserWarning, match="without a tokenizer"):
            model = load_fairseq(tmp_path)
        assert_agrees_with_fsmt(model, reference)
    assert not calls


def test_learned_positions_norm_first_and_bart(tmp_path: Path) -> None:
    """BART is fairseq's transformer with learned positions and a norm of the embedding."""
    for family_name, arch in (("bart", "bart_base"), ("mbart", "mbart_base")):
        class_prefix = {"bart": "Bart", "mbart": "MBart"}[family_name]
        config = getattr(transformers, f"{class_prefix}Config")(
            vocab_size=40, d_model=WIDTH, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=40,
            decoder_ffn_dim=40, encoder_attention_heads=4, decoder_attention_heads=4,
            max_position_embeddings=30,
        )  # fmt: skip
        reference = getattr(transformers, f"{class_prefix}ForConditionalGeneration")(config).eval()
        with torch.no_grad():
            for parameter in reference.parameters():
                parameter.normal_(0.0, 0.3)
        is_pre_norm = family_name == "mbart"
        folder = write_checkpoint(
            tmp_path / family_name, to_fairseq_bart_state(reference), arch=arch,
            encoder_normalize_before=is_pre_norm, decoder_normalize_before=is_pre_norm, **BART_SETTINGS,
        )  # fmt: skip
        write_dictionary(folder / "dict.txt", [f"w{i}" for i in range(36)])
        with pytest.warns(UserWarning, match="no BPE codes"):
            model = load_fairseq(folder)
        assert model.family.name == family_name
        with torch.no_grad():
            expected = reference(
                SOURCE_IDS, attention_mask=MASK.long(), decoder_input_ids=TARGET_IDS
            ).logits
        torch.testing.assert_close(compute_logits(model), expected, **TOLERANCE)


def apply_subword_nmt(word: str) -> list[str]:
    """Return the pieces of a word, by the definition of subword-nmt 0.2."""
    pieces = [*word[:-1], word[-1] + "</w>"]
    for first, second in CODES:
        merged: list[str] = []
        for piece in pieces:
            if merged and merged[-1] == first and piece == second:
                merged[-1] = first + second
            else:
                merged.append(piece)
        pieces = merged
    return [*(f"{piece}@@" for piece in pieces[:-1]), pieces[-1].removesuffix("</w>")]


def test_a_text_is_encoded_as_subword_nmt_and_fairseq_do(tmp_path: Path) -> None:
    write_joined(tmp_path)
    tokenizer = qkv.load(tmp_path).tokenizer
    assert tokenizer is not None
    ids = {word: i for i, word in enumerate(["<s>", "<pad>", "</s>", "<unk>", *WORDS])}
    text = "low  newer lower , owe show Xyz llow new ."
    expected = [ids.get(piece, 3) for word in text.split() for piece in apply_subword_nmt(word)]
    assert tokenizer.encode(text) == [*expected, 2]
    assert tokenizer.decode(tokenizer.encode("low newer lower"), skip_special_tokens=True) == (
        "low newer lower"
    )
    assert tokenizer.decode([ids["ne@@"]]) == "ne"
    assert tokenizer.pad_token_id == 1
    assert tokenizer.eos_token_id == 2
    assert tokenizer.unk_token_id == 3
    lines = [f"{first} {second} 7\n" for first, second in CODES]  # fastBPE's codes have counts
    (tmp_path / "bpecodes").write_text("".join(lines))
    counted = qkv.load(tmp_path).tokenizer
    assert counted is not None
    assert counted.encode(text) == tokenizer.encode(text)


def test_texts_are_tokenized_by_moses_if_the_dictionary_was(tmp_path: Path) -> None:
    words = [*WORDS, "@-@", "&apos;s", "&quot;"]
    folder = write_checkpoint(tmp_path, to_fairseq_state(build_fsmt(words, words)))
    for language in ("de", "en"):
        write_dictionary(folder / f"dict.{language}.txt", words)
    write_codes(folder / "code")
    codes = (folder / "code").read_text()
    merges = ["& a", "&a p", "&ap o", "&apo s", "&apos ;", "&apos; s</w>", "@ -", "@- @</w>"]
    merges += ["& q", "&q u", "&qu o", "&quo t", "&quot ;</w>"]
    (folder / "code").write_text(codes + "\n".join(merges) + "\n")
    model = qkv.load(folder)
    tokenizer = model.tokenizer
    assert tokenizer is not None
    text = 'new-low, "low" is!'
    (encoding,) = tokenizer.encode_batch([text])
    tokens = tokenizer.convert_ids_to_tokens(encoding.input_ids)
    assert tokens == "ne@@ w @-@ low , &quot; low &quot; i@@ s ! </s>".split()
    covered = [text[start:end] for start, end in encoding.offset_mapping[:-1]]
    assert "".join(covered) == text.replace(" ", "")
    assert tokenizer.decode(encoding.input_ids, skip_special_tokens=True) == text
    target = tokenizer.convert_tokens_to_ids(["low", "&apos;s", ",", "new@@", "er", "!"])
    assert tokenizer.decode([token_id or 0 for token_id in target]) == "low's, newer!"
    model.save(tmp_path / "saved")
    saved = qkv.load(tmp_path / "saved").tokenizer
    assert saved is not None
    assert saved.encode(text) == tokenizer.encode(text)


def test_without_codes_texts_are_tokens_of_the_dictionary(tmp_path: Path) -> None:
    write_joined(tmp_path)
    (tmp_path / "bpecodes").unlink()
    with pytest.warns(UserWarning, match="texts are read as tokens of the dictionary"):
        tokenizer = qkv.load(tmp_path).tokenizer
    assert tokenizer is not None
    ids = tokenizer.encode("ne@@ w new@@ er bread")
    assert tokenizer.convert_ids_to_tokens(ids) == ["ne@@", "w", "new@@", "er", "<unk>", "</s>"]
    assert tokenizer.decode(ids[:4]) == "new newer"


def test_sentencepiece_beside_the_dictionary_is_used(tmp_path: Path) -> None:
    model_file, pieces = train_sentencepiece(tmp_path / "spm", 40)
    words = [piece for piece in pieces if piece not in ("<s>", "</s>", "<unk>")]
    reference = build_fsmt(words, words)
    folder = write_checkpoint(tmp_path / "model", to_fairseq_state(reference))
    for language in ("de", "en"):
        write_dictionary(folder / f"dict.{language}.txt", words)
    (folder / "sentencepiece.bpe.model").write_bytes(model_file.read_bytes())
    tokenizer = qkv.load(folder).tokenizer
    assert tokenizer is not None
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor(model_proto=model_file.read_bytes())
    text = "the cat sat on the mat ,"
    ids = {word: i for i, word in enumerate(["<s>", "<pad>", "</s>", "<unk>", *words])}
    expected = [ids.get(piece, 3) for piece in processor.encode(text, out_type=str)]
    assert tokenizer.encode(text) == [*expected, 2]
    assert tokenizer.decode(tokenizer.encode("the cat"), skip_special_tokens=True) == "the cat"


def test_generation_agrees_with_transformers(tmp_path: Path) -> None:
    reference = write_joined(tmp_path)
    model = qkv.load(tmp_path)
    assert model.generation_config is not None
    assert model.generation_config["num_beams"] == 5
    settings: dict[str, Any] = dict(num_beams=3, max_new_tokens=12, no_repeat_ngram_size=2)
    reference.generation_config.forced_eos_token_id = None  # fairseq does not force the end
    ours = model.generate(SOURCE_IDS, MASK, **settings)
    theirs = reference.generate(SOURCE_IDS, attention_mask=MASK.long(), **settings)
    assert ours.tolist() == theirs.tolist()
    task = qkv.task("translate", tmp_path, max_new_tokens=12)
    result = task("low new")
    assert result.text == task.tokenizer.decode(
        model.generate(torch.tensor([task.tokenizer.encode("low new")]), max_new_tokens=12)[0],
        skip_special_tokens=True,
    )


UNSUPPORTED = dict(
    adaptive_softmax_cutoff="100,200", cross_self_attention=True, no_cross_attention=True,
    no_token_positional_embeddings=True, adaptive_input=True, encoder_layers_to_keep="0,1",
    activation_fn="relu_squared", encoder_attention_heads=5, decoder_attention_heads="absent",
    encoder_normalize_before=True,
)  # fmt: skip


@pytest.mark.parametrize("key", UNSUPPORTED)
def test_an_unsupported_setting_is_an_error(tmp_path: Path, key: str) -> None:
    write_joined(tmp_path)
    state = torch.load(tmp_path / "model.pt", weights_only=False)["model"]
    write_checkpoint(tmp_path, state, **{key: UNSUPPORTED[key]})
    word = {"encoder_attention_heads": "5 heads", "encoder_normalize_before": "norm_position"}
    assert_error(lambda: load_fairseq(tmp_path), tmp_path / "model.pt", word.get(key, key))


def test_other_architectures_are_refused_by_name(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {"encoder.conv.weight": torch.ones(2)}, arch="fconv_iwslt_de_en")
    assert_error(lambda: qkv.load(tmp_path), "fconv_iwslt_de_en", "which qkv does not read")
    write_joined(tmp_path)
    assert_error(lambda: load_fairseq(tmp_path, head="lm"), "head 'lm', expected none")
    (tmp_path / "model2.pt").write_bytes((tmp_path / "model.pt").read_bytes())
    (tmp_path / "model.pt").rename(tmp_path / "model1.pt")  # an ensemble
    assert_error(lambda: qkv.load(tmp_path), "model1.pt, model2.pt", "pass the path of one of them")
    assert qkv.load(tmp_path / "model2.pt").tokenizer is not None


def test_damaged_dictionaries_and_codes_are_errors(tmp_path: Path) -> None:
    write_joined(tmp_path)
    (tmp_path / "dict.de.txt").write_text("a 5\na 4\n")
    assert_error(lambda: qkv.load(tmp_path), "dict.de.txt", "'a' on line 2 occurs twice")
    (tmp_path / "dict.de.txt").write_text("a\n")
    assert_error(lambda: qkv.load(tmp_path), "dict.de.txt", "line 1", "expected `token count`")
    (tmp_path / "dict.de.txt").write_text("a 5\n")
    with pytest.warns(UserWarning, match="a source dictionary of 5 tokens, expected"):
        assert qkv.load(tmp_path).tokenizer is None
    write_dictionary(tmp_path / "dict.de.txt", WORDS)
    (tmp_path / "bpecodes").write_text("#version: 0.2\na b c\n")
    assert_error(lambda: qkv.load(tmp_path), "bpecodes", "line 2 is 'a b c'")
    (tmp_path / "bpecodes").write_text("#version: 0.1\na </w>\n")
    assert_error(lambda: qkv.load(tmp_path), "bpecodes", "version 0.1")


def test_a_folder_of_fsmt_has_the_same_tokenizer(tmp_path: Path) -> None:
    """vocab-src.json, vocab-tgt.json and merges.txt of FSMT, whose tokens end in </w> or not."""
    write_joined(tmp_path)
    tokenizer = qkv.load(tmp_path).tokenizer
    assert tokenizer is not None
    tokenizer.save(tmp_path / "saved")
    vocabulary = json.loads((tmp_path / "saved" / "vocab-src.json").read_text())
    assert vocabulary["low</w>"] == 4 + WORDS.index("low")
    assert vocabulary["lo"] == 4 + WORDS.index("lo@@")
    assert vocabulary["</s>"] == 2
    assert qkv.Tokenizer.load(tmp_path / "saved").encode("lower!") == tokenizer.encode("lower!")
