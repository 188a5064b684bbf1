"""Small tokenizers of every family: ours, and transformers'."""

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from qkv.text import Tokenizer
from tests.support.text_oracle import TOKENIZERS, load_reference

LoadBoth: TypeAlias = Callable[[str], tuple[Tokenizer, Any]]


@pytest.fixture(scope="session")
def load_both(tmp_path_factory: pytest.TempPathFactory) -> LoadBoth:
    """A function that loads a small tokenizer and transformers', both with a pad token if possible."""
    root = tmp_path_factory.mktemp("tokenizers")

    def load(name: str) -> tuple[Tokenizer, Any]:
        write, kind = TOKENIZERS[name]
        if not (root / name).exists():
            write(root / name)
        tokenizer, reference = Tokenizer.load(root / name), load_reference(kind, root / name)
        for either in (tokenizer, reference):
            if either.pad_token is None:
                either.pad_token = either.eos_token
        return tokenizer, reference

    return load


def call_reference(tokenizer: Tokenizer, reference: Any, *texts: Any, **options: Any) -> Any:
    """Call transformers' tokenizer so that it returns the fields that ours returns."""
    has_types = "token_type_ids" in tokenizer.model_input_names
    return reference(*texts, return_token_type_ids=has_types, **options)
