"""The encoder-decoder that the recurrent families share: each changes a part of its spec."""

from dataclasses import replace
from typing import Any, Literal

from qkv import spec as s

Initializations = tuple[tuple[str, s.Initialization], ...]


def recurrent(
    vocab_size: int = 30000, decoder_vocab_size: int | None = None, width: int = 1000,
    depth: int = 1, embedding_width: int | None = None,
    cell: Literal["rnn", "gru", "lstm"] = "lstm", reverse_source: bool = False,
    dropout: float = 0.0, tie_embeddings: bool = False, share_embeddings: bool = False,
    decoder_start_token_id: int | None = 0, pad_token_id: int | None = None,
    eos_token_id: int | None = None, head: str = "lm", family: str = "lstm-seq2seq",
) -> s.Spec:  # fmt: skip
    """Return the spec of an encoder, and a decoder that starts from its final states.

    `reverse_source`: the encoder runs from the last token to the first."""
    embedding = s.EmbeddingSpec(vocab_size=vocab_size, padding_idx=pad_token_id, dropout=dropout)
    encoder = s.RecurrentStackSpec(
        width=width,
        cell=cell,
        depth=depth,
        embedding=embedding,
        embedding_width=embedding_width,
        direction="backward" if reverse_source else "forward",
        dropout=dropout,
    )
    if decoder_vocab_size is None or share_embeddings:
        decoder_vocab_size = vocab_size
    decoder = replace(
        encoder,
        direction="forward",
        embedding=replace(embedding, vocab_size=decoder_vocab_size),
        source=s.RecurrentSourceSpec(width=encoder.output_width, state_width=width),
    )
    lm = s.HeadSpec(name="lm", out_features=decoder_vocab_size, tie_embeddings=tie_embeddings)
    heads = {"none": (), "lm": (lm,)}
    return s.Spec(
        family=family,
        encoder=encoder,
        decoder=decoder,
        heads=heads[head],
        share_embeddings=share_embeddings,
        init=(("*", 0.01),),
    )


def change_stacks(
    spec: s.Spec, init: Initializations, encoder: dict[str, Any], **decoder: Any
) -> s.Spec:
    """Return the spec with changes of its encoder and its decoder, and its initialization."""
    assert spec.encoder is not None
    assert spec.decoder is not None
    return replace(
        spec,
        encoder=replace(spec.encoder, **encoder),
        decoder=replace(spec.decoder, **decoder),
        init=init,
    )


def orthogonal_init(init_std: float) -> Initializations:
    """Return the initialization of Cho et al. and Bahdanau et al.: orthogonal recurrent matrices (Saxe
    et al. 2014), other matrices from a normal distribution."""
    return (("*.weight_hh_l0*", "orthogonal"), ("*", init_std))


def uniform_init(init_bound: float) -> Initializations:
    """Return the initialization of all tensors from a uniform distribution."""
    rows = ("*.score.*", "*.selection.*", "*")  # the parts of an attention are named: see build
    return tuple((pattern, s.Uniform(init_bound)) for pattern in rows)
