"""The bytes of tokens join to the decoded text, for every family and every type of trained tokenizer."""

import random

import pytest

from qkv.text import Tokenizer
from qkv.text.backends.protocol import clean_up_tokenization
from tests.support.text_oracle import CORPUS, DIFFICULT_TEXTS, TOKENIZERS
from tests.text.conftest import LoadBoth

TYPES = ("char", "word", "wordpiece", "bpe", "byte", "unigram")


def assert_bytes_join_to_the_text(
    tokenizer: Tokenizer, token_bytes: list[bytes], token_ids: list[int]
) -> None:
    content = b"".join(token_bytes[token_id] for token_id in token_ids).decode(errors="replace")
    text = tokenizer.decode(token_ids, skip_special_tokens=True)
    text = text.removesuffix("@@")  # CTRL, where the next token would follow
    # Where decoding cleans up the whole text, it also removes the spaces around an apostrophe.
    assert content.strip() == text.strip() or clean_up_tokenization(content).strip() == text.strip()


@pytest.mark.parametrize("name", TOKENIZERS)
def test_bytes_of_families(name: str, load_both: LoadBoth) -> None:
    tokenizer, _ = load_both(name)
    token_bytes = tokenizer.get_token_bytes()
    assert len(token_bytes) == len(tokenizer)
    assert all(token_bytes[token_id] == b"" for token_id in tokenizer.all_special_ids)
    for text in [*CORPUS[:20], *DIFFICULT_TEXTS]:
        token_ids = tokenizer.encode(text, is_target=name == "marian-separate")
        assert_bytes_join_to_the_text(tokenizer, token_bytes, token_ids)


@pytest.mark.parametrize("type_name", TYPES)
def test_bytes_of_trained_tokenizers(type_name: str) -> None:
    tokenizer = Tokenizer.train(CORPUS, type=type_name, vocab_size=400)
    token_bytes = tokenizer.get_token_bytes()
    rng = random.Random(type_name)
    for text in CORPUS[:20]:
        assert_bytes_join_to_the_text(tokenizer, token_bytes, tokenizer.encode(text))
    for _ in range(20):
        token_ids = [rng.randrange(len(tokenizer)) for _ in range(9)]
        if type_name not in ("word", "wordpiece"):  # whose decoder cleans up the content text
            assert_bytes_join_to_the_text(tokenizer, token_bytes, token_ids)
