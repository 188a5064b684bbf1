"""CTRL tokenizer: BPE whose pieces end in `@@`, except at the end of a word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

from qkv.text.backends.protocol import TextPair, clean_up_tokenization
from qkv.text.backends.rust import RustBackend
from qkv.text.encoding import Encoding

CONTINUATION_SUFFIX = "@@"  # in the vocabulary
END_OF_WORD_SUFFIX = "</w>"  # in the merges


@dataclass(frozen=True)
class CtrlBackend:
    """Backend that merges pieces in Rust, then maps them to the ids of CTRL's vocabulary."""

    bpe_backend: RustBackend
    vocabulary: dict[str, int]
    tokens_by_id: dict[int, str]
    token_ids_by_bpe_id: list[int]  # Rust's id -> CTRL's id
    unk_token: str
    clean_up_tokenization_spaces: bool = False

    languages: ClassVar[Mapping[str, int]] = {}
    continuing_subword_prefix: ClassVar[str] = ""

    @classmethod
    def build(
        cls,
        vocabulary: dict[str, int],
        merges: list[tuple[str, str]] | None,
        unk_token: str,
        added_tokens: Sequence[AddedToken],
        clean_up_tokenization_spaces: bool = False,
        *,
        word_pattern: str = r"\S+\n?",
    ) -> CtrlBackend:
        """Build the backend; the vocabulary marks continued pieces, the merges mark word ends.

        Without merges, every word is looked up in the vocabulary. `word_pattern` is the regular
        expression of a word."""
        if merges is None:
            word_ids = {word: index for index, word in enumerate(vocabulary)}
            tokenizer = Tokenizer(models.WordLevel(word_ids, unk_token))
            tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
            tokenizer.add_tokens(list(added_tokens))
            return cls(
                RustBackend(tokenizer),
                vocabulary,
                {token_id: token for token, token_id in vocabulary.items()},
                list(vocabulary.values()),
                unk_token,
            )
        # Merges may produce pieces without an id, which are unknown tokens.
        piece_names = [
            name[:-2]
            if name.endswith(CONTINUATION_SUFFIX) and len(name) > 2
            else name + END_OF_WORD_SUFFIX
            for name in vocabulary
        ]
        parts = [part for pair in merges for part in (*pair, "".join(pair))]
        pieces = {
            name: index
            for index, name in enumerate(dict.fromkeys([unk_token, *piece_names, *parts]))
        }
        tokenizer = Tokenizer(
            models.BPE(pieces, merges, unk_token=unk_token, end_of_word_suffix=END_OF_WORD_SUFFIX)
        )
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(word_pattern), "removed", invert=True)
        tokenizer.add_tokens(list(added_tokens))
        new_tokens = [token.content for token in added_tokens if token.content not in vocabulary]
        vocabulary = vocabulary | {
            token: len(vocabulary) + index for index, token in enumerate(new_tokens)
        }
        token_ids_by_bpe_id = [vocabulary[unk_token]] * tokenizer.get_vocab_size()
        for name, bpe_id in pieces.items():
            token_name = (
                name.removesuffix(END_OF_WORD_SUFFIX)
                if name.endswith(END_OF_WORD_SUFFIX)
                else name + CONTINUATION_SUFFIX
            )
            token_ids_by_bpe_id[bpe_id] = vocabulary.get(token_name, vocabulary[unk_token])
        for token in added_tokens:
            token_ids_by_bpe_id[tokenizer.get_vocab()[token.content]] = vocabulary[token.content]
        tokens_by_id = {token_id: token for token, token_id in vocabulary.items()}
        return cls(
            RustBackend(tokenizer),
            vocabulary,
            tokens_by_id,
            token_ids_by_bpe_id,
            unk_token,
            clean_up_tokenization_spaces,
        )

    def encode(
        self,
        text_pairs: Sequence[TextPair],
        *,
        add_special_tokens: bool = True,
        is_target: bool = False,
        language: str | None = None,
    ) -> list[Encoding]:
        encodings = self.bpe_backend.encode(
            text_pairs, add_special_tokens=add_special_tokens, language=language
        )
        return [
            replace(encoding, input_ids=self._map_ids(encoding.input_ids)) for encoding in encodings
        ]

    def encode_ids(
        self,
        text_pairs: Sequence[TextPair],
        *,
        add_special_tokens: bool = True,
        is_target: bool = False,
        language: str | None = None,
    ) -> list[list[int]]:
        sequences = self.bpe_backend.encode_ids(
            text_pairs, add_special_tokens=add_special_tokens, language=language
        )
        return [self._map_ids(bpe_ids) for bpe_ids in sequences]

    def _map_ids(self, bpe_ids: Sequence[int]) -> list[int]:
        return [self.token_ids_by_bpe_id[bpe_id] for bpe_id in bpe_ids]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        skipped_ids = {*self.get_special_tokens().values()} if skip_special_tokens else set()
        tokens = [
            self.tokens_by_id.get(token_id, self.unk_token)
            for token_id in token_ids
            if token_id not in skipped_ids
        ]
        text = " ".join(tokens).replace(f"{CONTINUATION_SUFFIX} ", "").strip()
        return clean_up_tokenization(text) if self.clean_up_tokenization_spaces else text

    def id_to_token(self, token_id: int) -> str | None:
        return self.tokens_by_id.get(token_id)

    def token_to_id(self, token: str) -> int | None:
        return self.vocabulary.get(token)

    def get_vocab(self) -> dict[str, int]:
        return dict(self.vocabulary)

    def get_special_tokens(self) -> dict[str, int]:
        return {token: self.vocabulary[token] for token in self.bpe_backend.get_special_tokens()}

    def convert_token_to_bytes(self, token: str) -> bytes:
        is_continued = token.endswith(CONTINUATION_SUFFIX) and len(token) > 2
        return (token[:-2] if is_continued else f"{token} ").encode()

    def serialize(self) -> bytes | None:
        return None

    def __len__(self) -> int:
        return len(self.vocabulary)
