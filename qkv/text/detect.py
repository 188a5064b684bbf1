"""Guess: whose vocabulary it is, and which special token does what, where no file says so."""

from __future__ import annotations

from collections.abc import Collection

from tokenizers import Tokenizer

from qkv.text.config import ROLES, Names, Settings
from qkv.text.sentencepiece_model import Pieces

# fmt: off
USUAL = {
    "bos":  "<s> <bos> <|startoftext|> <|begin_of_text|>",
    "eos":  "</s> <eos> <|endoftext|> <|end_of_text|>",
    "unk":  "[UNK] <unk>",
    "sep":  "[SEP] <sep>",
    "pad":  "[PAD] <pad> <|pad|>",
    "cls":  "[CLS] <cls>",
    "mask": "[MASK] <mask>",
}
# fmt: on


def names_of(rust: Tokenizer, settings: Settings) -> Names:
    """The tokens by role: as the settings say or, where they say nothing of any, by their usual names."""
    said = Names({role: token.content for role in ROLES if (token := settings.role(role))})
    special = {token.content for token in rust.get_added_tokens_decoder().values() if token.special}
    usual = {role: next((name for name in USUAL[role].split() if name in special), None) for role in ROLES}
    return said or Names({role: name for role, name in usual.items() if name is not None})


def bpe_family(vocabulary: Collection[str]) -> str:
    """By the special tokens, else by the marks of pieces: `Ġ` for a space, `</w>` or `@@` at their ends."""
    if "<|startoftext|>" in vocabulary:
        return "clip"
    if "<mask>" in vocabulary and "</s>" in vocabulary:
        return "roberta"
    if "<|endoftext|>" in vocabulary or any(token.startswith("Ġ") for token in vocabulary):
        return "gpt2"
    return "gpt" if any(token.endswith("</w>") for token in vocabulary) else "ctrl"


def spm_family(pieces: Pieces, file: str) -> str:
    """By the name of the file and the special pieces."""
    if file != "spiece.model":
        return "mbart" if file == "sentencepiece.bpe.model" else "llama"
    texts = {piece.text for piece in pieces.marked()}
    return "albert" if "[CLS]" in texts else "xlnet" if "<cls>" in texts else "t5"
