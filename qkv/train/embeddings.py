"""Initial token embeddings from a vector file (word2vec, GloVe) or from the table of another model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from qkv.model.load import load_folder
from qkv.model.model import Model
from qkv.nn.network import DualEncoder
from qkv.text import Tokenizer
from qkv.words.read import load_vectors

VECTOR_SUFFIXES = (".txt", ".vec", ".bin", ".gz")


@dataclass(frozen=True)
class EmbeddingMatches:
    """How many tokens of a vocabulary have a vector in a source of embeddings."""

    source: str
    num_matches: int
    num_tokens: int

    def __str__(self) -> str:
        return f"{self.source}, {self.num_matches:,} of {self.num_tokens:,} tokens"


def initialize_embeddings(model: Model, source: str) -> EmbeddingMatches:
    """Set the token embeddings of a model to the vectors of the same tokens in a vector file, or in the
    token embedding of another model (folder or hub id). Other tokens keep theirs.

    A word of a file is the token with its text, with or without a space before it, else its lowercase
    form; special tokens have none. Tokens of another model are compared as they are spelled there."""
    tokenizer = get_model_tokenizer(model)
    tables = list_token_tables(model)
    if Path(source).is_file():
        word_vectors = load_vectors(source)
        rows_by_id = {
            token_id: row
            for token_id, text in list_token_texts(tokenizer)
            if (row := word_vectors.find_index(text)) is not None
        }
        vectors = word_vectors.vectors
    elif source.endswith(VECTOR_SUFFIXES):
        raise ValueError(f"model.embeddings {source}: no such file; is the path right?")
    else:
        rows_by_id, vectors = match_model_tokens(tokenizer, source)
    if not rows_by_id:
        raise ValueError(
            f"model.embeddings {source}: none of its tokens is one of the {len(tokenizer):,} of the "
            "tokenizer; do they have the same language and kind of tokens, such as whole words?"
        )
    for table in tables:
        if vectors.shape[1] != table.shape[1]:
            raise ValueError(
                f"model.embeddings {source}: vectors of {vectors.shape[1]} numbers, but the token "
                f"embedding of the model has the width {table.shape[1]}; set model.width"
            )
    token_ids = torch.tensor(list(rows_by_id))
    with torch.no_grad():
        for table in tables:
            table[token_ids] = vectors[list(rows_by_id.values())].to(table)
    return EmbeddingMatches(source, len(rows_by_id), len(tokenizer))


def get_model_tokenizer(model: Model) -> Tokenizer:
    """Return the tokenizer of a model; raise ValueError if it has none."""
    if model.tokenizer is None:
        raise ValueError(
            f"the model ({model.family.name}) has no tokenizer, which gives tokens their rows"
        )
    return model.tokenizer


def list_token_tables(model: Model) -> list[Tensor]:
    """Return the token embeddings of encoder and decoder; one if they share it."""
    net = model.net.text if isinstance(model.net, DualEncoder) else model.net
    stacks = [net.encoder, net.decoder] if net is not None else []
    modules = [stack.embedding.tokens for stack in stacks if stack is not None]
    tables = [module.weight for module in modules if isinstance(module, nn.Embedding)]
    if not tables:
        raise ValueError(
            f"model.embeddings: the family {model.family.name} has no single token embedding of one "
            "width; choose another family"
        )
    return list({id(table): table for table in tables}.values())


def list_token_texts(tokenizer: Tokenizer) -> list[tuple[int, str]]:
    """Return the ids and texts of tokens that can be words: no special tokens, no continuations of
    words (`##ing`), and texts without the space that marks the start of a word."""
    prefix = tokenizer.continuing_subword_prefix
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    texts = [
        (token_id, raw.decode("utf-8", errors="replace").strip())
        for token_id, raw in enumerate(tokenizer.get_token_bytes())
        if not (prefix and tokens[token_id].startswith(prefix))  # special tokens have no bytes
    ]
    return [(token_id, text) for token_id, text in texts if text]


def match_model_tokens(tokenizer: Tokenizer, source: str) -> tuple[dict[int, int], Tensor]:
    """Return the rows of equal tokens in the token embedding of another model, and that table."""
    try:
        other = load_folder(source, device="cpu")
        other_ids = get_model_tokenizer(other).get_vocab()
        vectors = list_token_tables(other)[0].detach().float()
    except ValueError as error:
        raise ValueError(f"model.embeddings: {error}") from None
    padding_id = tokenizer.pad_token_id
    rows_by_id = {
        token_id: other_ids[token]
        for token, token_id in tokenizer.get_vocab().items()
        if token in other_ids and token_id != padding_id and other_ids[token] < len(vectors)
    }
    return rows_by_id, vectors
