"""Example inputs of the explorer's page, by what a model reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qkv.explorer.inputs.builder import InputBuilder

GERMAN_AND_ENGLISH = (
    {"text": "Ich habe das Buch, das du mir gestern gegeben hast, noch nicht gelesen."},
    {"text": "Die Katze sitzt auf der Matte."},
    {"text": "He gave the book back because he had already read it."},
)
ENGLISH = (
    {"text": "She gave the book back to him because he had already read it."},
    {"text": "The animal didn't cross the street because it was too tired."},
)
ENGLISH_PAIRS = (
    {
        "text": "He looked at his watch and left.",
        "text_pair": "They watch the children play.",
    },
    *ENGLISH,
)


def list_examples(builder: InputBuilder) -> Sequence[Mapping[str, str]]:
    """Return inputs to choose from; of translation models, only if the languages are known."""
    tokenizer = builder.model.tokenizer
    if tokenizer is None or not builder.describe_inputs()["text"]:
        return ()
    if builder.architecture == "encoder-decoder":
        languages = {code.strip("<>")[:2] for code in tokenizer.languages}
        return GERMAN_AND_ENGLISH if {"de", "en"} <= languages else ()
    if builder.architecture == "encoder":
        return ENGLISH_PAIRS
    return ENGLISH
