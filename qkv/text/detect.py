"""Detection of the tokenizer family and of special tokens that no file declares."""

from __future__ import annotations

from collections.abc import Collection

from tokenizers import Tokenizer

from qkv.text.config import TokenizerFileConfig
from qkv.text.sentencepiece_model import SentencePieceModel
from qkv.text.special_tokens import SPECIAL_TOKEN_ROLES, SpecialTokens

# fmt: off
COMMON_SPECIAL_TOKENS = {
    "bos":  "<s> <bos> <|startoftext|> <|begin_of_text|>",
    "eos":  "</s> <eos> <|endoftext|> <|end_of_text|>",
    "unk":  "[UNK] <unk>",
    "sep":  "[SEP] <sep>",
    "pad":  "[PAD] <pad> <|pad|>",
    "cls":  "[CLS] <cls>",
    "mask": "[MASK] <mask>",
}
# fmt: on


def detect_special_tokens(tokenizer: Tokenizer, config: TokenizerFileConfig) -> SpecialTokens:
    """Return the special tokens by role, from the config or by common names."""
    declared = SpecialTokens(
        {
            role: token.content
            for role in SPECIAL_TOKEN_ROLES
            if (token := config.get_special_token(role))
        }
    )
    special_tokens = {
        token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special
    }
    common = {
        role: next(
            (name for name in COMMON_SPECIAL_TOKENS[role].split() if name in special_tokens), None
        )
        for role in SPECIAL_TOKEN_ROLES
    }
    return declared or SpecialTokens(
        {role: name for role, name in common.items() if name is not None}
    )


def detect_bpe_family(vocabulary: Collection[str]) -> str:
    """Return the family of a BPE vocabulary, by special tokens or the marks `Ġ`, `</w>`, `@@`."""
    if "<|startoftext|>" in vocabulary:
        return "clip"
    if "<mask>" in vocabulary and "</s>" in vocabulary:
        return "roberta"
    if "<|endoftext|>" in vocabulary or any(token.startswith("Ġ") for token in vocabulary):
        return "gpt2"
    return "gpt" if any(token.endswith("</w>") for token in vocabulary) else "ctrl"


def detect_sentencepiece_family(model: SentencePieceModel, file_name: str) -> str:
    """Return the family of a SentencePiece model, by its file name and special pieces."""
    if file_name != "spiece.model":
        return "mbart" if file_name == "sentencepiece.bpe.model" else "llama"
    special_pieces = {piece.piece for piece in model.get_special_pieces()}
    return "albert" if "[CLS]" in special_pieces else "xlnet" if "<cls>" in special_pieces else "t5"
