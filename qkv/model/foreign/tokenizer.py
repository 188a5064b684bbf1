"""Tokenizers of translation models of other libraries: a dictionary for each side, with BPE codes or
SentencePiece models."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qkv.files import read_text_file
from qkv.text import Tokenizer
from qkv.text.backends.fsmt import to_fsmt_token
from qkv.text.files import TokenizerFiles
from qkv.weights.formats.checkpoint import CheckpointData

SPECIAL_TOKENS_BY_ROLE = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
ADDED_TOKEN_DEFAULTS = dict(single_word=False, lstrip=False, rstrip=False, normalized=False)
MOSES_TOKENS = {
    "@-@",
    "&apos;",
    "&quot;",
    "&apos;s",
}  # in the dictionaries of texts that Moses tokenized
END_OF_WORD = "</w>"
CODE_VERSION = "#version:"


def build_tokenizer(
    data: CheckpointData,
    vocab_sizes: tuple[int, int],
    *,
    special_tokens: Mapping[str, str] = SPECIAL_TOKENS_BY_ROLE,
    add_source_eos: bool = True,
) -> Tokenizer | None:
    """Return the tokenizer of the files beside a checkpoint, or None without a dictionary.

    `vocab_sizes` are the rows of the token embeddings of source and target. A warning says what is
    missing. `add_source_eos`: a source ends with the end token; a target always does."""
    sides = ("source", "target")
    vocabularies = [data.get_vocabulary(side) for side in sides]
    problems = [
        f"a {side} dictionary of {len(vocabulary)} tokens, expected {size}"
        for side, vocabulary, size in zip(sides, vocabularies, vocab_sizes, strict=True)
        if vocabulary is not None and len(vocabulary) != size
    ]
    problems += [
        f"no {role} token {special_tokens.get(role)!r} in a dictionary"
        for role in ("eos", "unk")
        if any(tokens and special_tokens.get(role) not in tokens for tokens in vocabularies)
    ]
    source, target = vocabularies
    if problems or source is None or target is None:
        problem = "; ".join(problems) or "no dictionary"
        warnings.warn(
            f"{data.path}: loaded without a tokenizer: {problem} beside it; expected the vocabulary "
            "files of source and target",
            stacklevel=6,
        )
        return None
    source_ids, target_ids = (
        {token: i for i, token in enumerate(vocabulary)} for vocabulary in (source, target)
    )
    files: dict[str, bytes] = {}
    config: dict[str, Any] = {
        f"{role}_token": token if token in source_ids and token in target_ids else None
        for role in SPECIAL_TOKENS_BY_ROLE
        for token in [special_tokens.get(role)]
    }
    if not add_source_eos:
        config["add_source_eos"] = False
    models = [data.tokenizer_files.get(f"{side}_sentencepiece") for side in sides]
    models = [model or data.tokenizer_files.get("sentencepiece") for model in models]
    if models[0] is not None and models[1] is not None:
        config |= {"tokenizer_class": "MarianTokenizer", "separate_vocabs": source != target}
        files |= {
            f"{side}.spm": model.read_bytes()
            for side, model in zip(sides, models, strict=True)
            if model
        }
        files["vocab.json"] = _encode(source_ids)
        if source != target:
            files["target_vocab.json"] = _encode(target_ids)
    else:
        languages = [data.config.get(f"{side}_lang") or side for side in sides]
        config |= {"tokenizer_class": "FSMTTokenizer", "langs": languages}
        config["sep_token"] = config["eos_token"]
        names = [token for role in SPECIAL_TOKENS_BY_ROLE if (token := config[f"{role}_token"])]
        for name, ids in (("vocab-src.json", source_ids), ("vocab-tgt.json", target_ids)):
            files[name] = _encode({to_fsmt_token(token, names): i for token, i in ids.items()})
        codes = data.tokenizer_files.get("bpe_codes")
        if codes is not None:
            merges = [f"{first} {second}\n" for first, second in read_bpe_codes(codes)]
            files["merges.txt"] = "".join(merges).encode()
            config["moses_tokenization"] = not MOSES_TOKENS.isdisjoint(source_ids)
        else:
            warn_about_tokens(data.path)
    files["tokenizer_config.json"] = _encode(config)
    return Tokenizer.from_files(TokenizerFiles(data.path.parent, files))


def build_word_tokenizer(
    path: Path, vocabulary: Sequence[str], special_tokens: Mapping[str, str]
) -> Tokenizer:
    """Return a tokenizer for tokens of a vocabulary, separated by spaces; a warning says so."""
    ids = {token: i for i, token in reversed([*enumerate(vocabulary)])}
    known_tokens = {role: token for role, token in special_tokens.items() if token in ids}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": token, "special": True, **ADDED_TOKEN_DEFAULTS}
            for i, token in sorted((ids[token], token) for token in {*known_tokens.values()})
        ],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": ids, "unk_token": known_tokens.get("unk", "")},
    }
    config = {f"{role}_token": token for role, token in known_tokens.items()}
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    files = {"tokenizer.json": _encode(tokenizer), "tokenizer_config.json": _encode(config)}
    warn_about_tokens(path)
    return Tokenizer.from_files(TokenizerFiles(path.parent, files))


def warn_about_tokens(path: Path) -> None:
    """Warn that the tokens of a text are not found by a tokenizer."""
    warnings.warn(
        f"{path}: no BPE codes or SentencePiece model beside it; texts are read as tokens "
        "of the dictionary, separated by spaces",
        stacklevel=7,
    )


def read_bpe_codes(path: Path) -> list[tuple[str, str]]:
    """Return the merges of a file of subword-nmt or fastBPE, which also has counts."""
    merges = []
    lines = read_text_file(path).rstrip("\r\n").split("\n")
    version = lines[0].removeprefix(CODE_VERSION).strip() if CODE_VERSION in lines[0] else None
    for number, line in enumerate(lines[version is not None :], 1 + (version is not None)):
        parts = line.strip("\r ").split(" ")
        if len(parts) == 3 and parts[2].isdecimal():  # fastBPE's count
            parts.pop()
        if len(parts) != 2 or not all(parts):
            raise ValueError(f"{path}: line {number} is {line[:80]!r}, expected two pieces")
        merges.append((parts[0], parts[1]))
    if any(second == END_OF_WORD for _, second in merges):
        raise ValueError(
            f"{path}: BPE codes of version 0.1, in which {END_OF_WORD} is a piece; expected version "
            "0.2: convert them with `subword-nmt learn-bpe` of 0.2 or later"
        )
    return merges


def _encode(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
