"""Small models and data under the names that docs/coming-from.md uses."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import qkv
from tests.support.fairseq_translation import (
    WORDS,
    build_fsmt,
    to_fairseq_state,
    write_checkpoint,
    write_codes,
    write_dictionary,
)

SIZES: dict[str, Any] = dict(width=32, depth=1, heads=2, max_positions=64)
SUBJECTS = [("Der Hund", "The dog"), ("Die Katze", "The cat"), ("Das Kind", "The child")]
VERBS = [("schläft", "sleeps"), ("spielt", "plays"), ("lacht", "laughs"), ("wartet", "waits")]
TICKETS = [
    ("I was charged twice", "billing"),
    ("The app crashes on start", "bug"),
    ("I love this app", "praise"),
]


def write_examples(folder: Path) -> None:
    """Write every model and data file of the page into a folder."""
    write_hf_models(folder)
    write_fairseq_model(folder / "wmt19.de-en.joined-dict.ensemble")
    qkv.load("builtin:translate").save(folder / "Helsinki-NLP" / "opus-mt-de-en")
    write_ctranslate2_model(folder / "de-en-ct2")
    write_table(folder / "tickets.csv", "text,label", TICKETS * 4)
    write_table(folder / "pairs.csv", "anchor,positive", [("a cat", "a dog"), ("hello", "hi")] * 4)
    write_parallel_texts(folder)


def write_hf_models(folder: Path) -> None:
    texts = ["hello world!", "good morning!", "once upon a time there was a cat"] * 9
    tokenizer = qkv.Tokenizer.train(texts, type="wordpiece", vocab_size=90, template="bert")
    bert = qkv.build("bert", ffn_width=64, vocab_size=len(tokenizer), head="masked-lm", **SIZES)
    minilm = qkv.build("bert", ffn_width=64, vocab_size=len(tokenizer), pooling="mean", **SIZES)
    byte_level = qkv.Tokenizer.train(texts, type="byte", vocab_size=300, template="gpt")
    gpt2 = qkv.build("gpt2", vocab_size=len(byte_level), **SIZES)
    bert.tokenizer = minilm.tokenizer = tokenizer
    gpt2.tokenizer = byte_level
    bert.save(folder / "google-bert" / "bert-base-uncased")
    minilm.save(folder / "sentence-transformers" / "all-MiniLM-L6-v2")
    gpt2.save(folder / "openai-community" / "gpt2")


def write_fairseq_model(folder: Path) -> None:
    state = to_fairseq_state(build_fsmt(WORDS, WORDS))
    write_checkpoint(folder, state, share_all_embeddings=True)
    (folder / "model.pt").rename(folder / "model1.pt")
    for language in ("de", "en"):
        write_dictionary(folder / f"dict.{language}.txt", WORDS)
    write_codes(folder / "bpecodes")


def write_ctranslate2_model(folder: Path) -> None:
    texts = ["Wo ist der Bahnhof?", "Where is the station?"] * 9
    tokenizer = qkv.Tokenizer.train(texts, type="bpe", vocab_size=80, template="seq2seq")
    token_ids: dict[str, Any] = dict(
        decoder_start_token_id=tokenizer.bos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = qkv.build("transformer", ffn_width=64, vocab_size=len(tokenizer), **SIZES, **token_ids)
    model.tokenizer = tokenizer
    qkv.export_model(model, folder, to="ctranslate2")


def write_table(path: Path, header: str, rows: list[tuple[str, str]]) -> None:
    path.write_text("\n".join([header, *(",".join(row) for row in rows)]), encoding="utf-8")


def write_parallel_texts(folder: Path) -> None:
    pairs = [(f"{a} {c}.", f"{b} {d}.") for (a, b), (c, d) in product(SUBJECTS, VERBS)]
    for side, language in enumerate(("de", "en")):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        (folder / f"train.{language}").write_text(text, encoding="utf-8")
    (folder / "test.de").write_text("Die Katze schläft.\n", encoding="utf-8")
