"""Special tokens by role: bos, eos, unk, sep, pad, cls and mask. Reads no files."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qkv.text.tokenizer import Tokenizer

# New tokens get ids in this order.
SPECIAL_TOKEN_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


class SpecialTokens(dict[str, str]):
    """Special tokens by role, such as `pad`."""

    def __missing__(self, role: str) -> str:
        raise ValueError(f"no {role}_token; expected one in tokenizer_config.json")


class SpecialToken:
    """Attribute of a tokenizer such as `pad_token`: the token of `pad_token_id`, or None.

    Setting it sets the id."""

    def __set_name__(self, owner: type[Tokenizer], name: str) -> None:
        self.name = name

    def __get__(self, tokenizer: Tokenizer | None, owner: type[Tokenizer]) -> str | None:
        token_id: int | None = getattr(tokenizer, f"{self.name}_id", None)
        if tokenizer is None or token_id is None:
            return None
        return tokenizer.convert_ids_to_tokens(token_id)

    def __set__(self, tokenizer: Tokenizer, token: str | None) -> None:
        token_id = None if token is None else tokenizer.get_vocab().get(token)
        if token is not None and token_id is None:
            raise ValueError(
                f"{self.name} {token!r}: expected a token of the vocabulary, such as"
                f" {tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)!r}"
            )
        setattr(tokenizer, f"{self.name}_id", token_id)
