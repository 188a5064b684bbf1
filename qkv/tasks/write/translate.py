"""Translation line by line or sentence by sentence; line breaks and whitespace are kept.

Models select languages in three ways: by codes in the source and before the target (mBART), by the
target code before the source (`>>en<<`: Marian, and the recipes of qkv), or by a prefix in words
(T5)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from qkv.builtin.language import LANGUAGE_DETECTORS, LanguageDetector
from qkv.decode import GenerationConfig
from qkv.tasks.base import InputRow, TextOrPair
from qkv.tasks.checks import check_choice, check_input_text, check_string_settings
from qkv.tasks.write.seq2seq import GeneratedText, Seq2SeqTask
from qkv.text import Encoding
from qkv.text.sentences import SENTENCE_BOUNDARY

MIN_UPPERCASE_LETTERS = 4
TRANSLATION_KEY = re.compile(r"translation_(\w+)_to_(\w+)")


@dataclass(frozen=True, kw_only=True)
class TranslateTask(Seq2SeqTask):
    """Translation.

    `src_lang`, `tgt_lang`: languages, if the model has several.
    `unit`: unit of translation, "line" or "sentence", None: `unit` in the entry `translation` of the
    folder's `task_specific_params`, else "line".
    Without languages, the source language is detected if `language_detector` of that entry is one of
    `qkv.builtin.language.LANGUAGE_DETECTORS`; segments that are certainly in the target language are left
    as they are. If `restore_uppercase` of that entry is true, segments in
    capital letters are translated in lower case, and their translations are uppercased."""

    name: ClassVar[str] = "translate"
    src_lang: str | None = None
    tgt_lang: str | None = None
    unit: str | None = None

    def __post_init__(self) -> None:
        check_string_settings(src_lang=self.src_lang, tgt_lang=self.tgt_lang)
        super().__post_init__()
        check_choice("unit", self.segment_unit, ("line", "sentence"))
        if not self.tokenizer.languages and not self.language_pairs:
            for setting, language in (("src_lang", self.src_lang), ("tgt_lang", self.tgt_lang)):
                if language is not None:
                    raise ValueError(
                        f"{setting} is {language!r}, expected none: "
                        "this model has no language codes"
                    )

    @property
    def translation_params(self) -> Mapping[str, Any]:
        """The entry `translation` of the folder's `task_specific_params`."""
        params = self.task_specific_params.get("translation")
        return params if isinstance(params, dict) else {}

    @property
    def segment_unit(self) -> str:
        """The unit of translation: that of the settings, else that of the folder, else a line."""
        if self.unit is not None:
            return self.unit
        return str(self.translation_params.get("unit", "line"))

    # --- languages by a prefix in words ---

    @property
    def language_pairs(self) -> dict[str, tuple[str, str]]:
        """The directions of the folder's `task_specific_params`: key, (source, target)."""
        matches = map(TRANSLATION_KEY.fullmatch, self.task_specific_params)
        return {match[0]: (match[1], match[2]) for match in matches if match}

    @property
    def task_specific_key(self) -> str | None:
        languages = [
            language and get_base_language(language) for language in (self.src_lang, self.tgt_lang)
        ]
        keys = [
            key
            for key, pair in self.language_pairs.items()
            if all(language in (None, name) for language, name in zip(languages, pair, strict=True))
        ]
        if not keys and self.language_pairs and not self.tokenizer.languages:
            pairs = ", ".join(" to ".join(pair) for pair in self.language_pairs.values())
            direction = f"{self.src_lang or 'any'} to {self.tgt_lang or 'any'}"
            raise ValueError(f"{direction}: expected one of {pairs}")
        return keys[0] if len(keys) == 1 else None

    # --- languages by codes ---

    @cached_property
    def uses_target_prefix_codes(self) -> bool:
        """Whether codes such as `>>en<<` before the source select the target language."""
        codes = self.tokenizer.languages
        unknown = (None, self.tokenizer.unk_token_id)
        return bool(codes) and all(
            code.startswith(">>")
            or self.tokenizer.convert_tokens_to_ids(f">>{code}<<") not in unknown
            for code in codes
        )

    def find_language_code(self, setting: str, language: str | None) -> str | None:
        """Return the tokenizer's code of a language: `de` may be `de`, `>>de<<` or `de_DE`."""
        codes = self.tokenizer.languages
        if language is None or language in codes or not codes:
            return language
        name = strip_code_arrows(language)
        matches = [code for code in codes if strip_code_arrows(code) == name]
        if not matches:
            base = get_base_language(language)
            matches = [code for code in codes if get_base_language(code) == base]
        if len(matches) != 1:
            names = ", ".join(list_language_names(codes))
            raise ValueError(f"{setting} is {language!r}, expected one of {names}")
        return matches[0]

    @cached_property
    def language_codes(self) -> tuple[str | None, str | None]:
        """The codes of source and target.

        If target codes precede the source and there are two, the source determines the target."""
        source = self.find_language_code("src_lang", self.src_lang)
        target = self.find_language_code("tgt_lang", self.tgt_lang)
        others = [code for code in self.tokenizer.languages if code != source]
        is_implied = source is not None and target is None and len(others) == 1
        if self.uses_target_prefix_codes and is_implied:
            target = others[0]
        return source, target

    def derive_generation_settings(self, defaults: GenerationConfig) -> dict[str, Any]:
        """Set the target code as forced first token, or as start token if that is a language code."""
        settings = super().derive_generation_settings(defaults)
        _, target = self.language_codes
        languages = self.tokenizer.languages
        if target is None or self.uses_target_prefix_codes or not languages:
            return settings
        target_id = languages[target]
        if defaults.decoder_start_token_id in languages.values():
            return settings | {"decoder_start_token_id": target_id, "forced_bos_token_id": None}
        return settings | {"forced_bos_token_id": target_id}

    def encode(self, texts: Sequence[TextOrPair]) -> list[Encoding]:
        source, target = self.language_codes
        language = target if self.uses_target_prefix_codes else source
        if not self.tokenizer.languages:
            language = None
        return self.tokenizer.encode_batch(texts, language=language)

    def check_direction(self, text: str) -> None:
        """Check that the target language is known."""
        languages = self.tokenizer.languages
        _, target = self.language_codes
        names = list_language_names(languages)
        if self.uses_target_prefix_codes:
            is_known = target is not None
        elif languages:
            config = self.generation_config
            first_ids = {config.forced_bos_token_id, config.decoder_start_token_id}
            is_known = bool(first_ids & {*languages.values()})
        else:
            is_known = (
                self.task_specific_key is not None
                or self.prefix is not None
                or not self.language_pairs
            )
            names = [" to ".join(pair) for pair in self.language_pairs.values()]
        if not is_known:
            raise ValueError(
                "the target language is unknown; "
                f"expected src_lang and tgt_lang of {', '.join(names)}"
            )

    # --- languages by detection ---

    @property
    def language_detector(self) -> LanguageDetector | None:
        """The language detector of the folder."""
        name = self.translation_params.get("language_detector")
        if name is None:
            return None
        check_choice("language_detector", name, [*LANGUAGE_DETECTORS])
        return LANGUAGE_DETECTORS[name]

    @property
    def needs_language_detection(self) -> bool:
        """Whether no language is given and the folder has a detector for its target codes."""
        if self.src_lang is not None or self.tgt_lang is not None:
            return False
        return self.uses_target_prefix_codes and self.language_detector is not None

    @cached_property
    def tasks_by_source(self) -> dict[str, TranslateTask]:
        """The task for every source language."""
        languages = map(get_base_language, self.tokenizer.languages)
        return {language: replace(self, src_lang=language) for language in languages}

    def is_in_target_language(self, segment: str) -> bool:
        """Return whether the folder's detector is certain that a segment is in the target language."""
        target = self.language_codes[1]
        if target is None or self.language_detector is None:
            return False
        return self.language_detector.is_certainly(segment, get_base_language(target))

    def resolve_direction(self, text: str) -> tuple[TranslateTask, str]:
        """Return the task in the direction of a text, and the text without a language code.

        The direction is given by the settings or by a code at the start of the text, or is detected."""
        if self.uses_target_prefix_codes and self.language_codes[1] is None:
            for code in self.tokenizer.languages:
                mark = f">>{strip_code_arrows(code)}<<"
                if text.lstrip().startswith(mark):
                    task = replace(self, tgt_lang=code)
                    return task, text.lstrip().removeprefix(mark).lstrip()
        if self.needs_language_detection:
            assert self.language_detector is not None
            return self.tasks_by_source[self.language_detector.detect(text)], text
        return self, text

    def preprocess(self, inputs: Sequence[str], input_names: Sequence[str]) -> list[list[InputRow]]:
        directions = [
            self.resolve_direction(check_input_text(text, name))
            for text, name in zip(inputs, input_names, strict=True)
        ]
        if all(task is self for task, _ in directions):  # encoded together, which is faster
            return super().preprocess(inputs, input_names)
        rows: list[list[InputRow]] = []
        for (task, text), name in zip(directions, input_names, strict=True):
            if task is self:
                rows += super().preprocess([text], [name])
            else:
                rows += task.preprocess([text], [name])
        return rows

    # --- texts ---

    def prepare_texts(self, task_input: str, input_name: str) -> list[TextOrPair]:
        texts = super().prepare_texts(task_input, input_name)
        bodies = []
        for text in texts:
            assert isinstance(text, str)
            body = text.removeprefix(self.source_prefix)
            self.check_direction(body)
            bodies.append(map_characters(str.lower, body) if self.is_recased(body) else body)
        return [self.source_prefix + body for body in bodies]

    def is_recased(self, segment: str) -> bool:
        """Return whether a segment in capital letters is translated in lower case."""
        return bool(self.translation_params.get("restore_uppercase")) and is_uppercase(segment)

    def segment_text(self, task_input: str) -> Iterator[tuple[str, str]]:
        """Yield lines or sentences, in chunks if too long, each after the whitespace before it.

        A segment in the target language is not translated: it is part of the whitespace."""
        task, text = self.resolve_direction(task_input)  # the code is a token of every chunk
        unchanged = ""
        for gap, body in split_segments(text, self.segment_unit):
            if body and task.is_in_target_language(body):
                unchanged += gap + body
                continue
            segment_gap = unchanged + gap
            unchanged = ""
            for chunk_gap, chunk in task.chunk_long_text(body) if body else [("", "")]:
                yield segment_gap + chunk_gap, chunk
                segment_gap = ""

    def get_source_offset(self, task_input: str) -> int:
        return len(task_input) - len(self.resolve_direction(task_input)[1])

    def join_outputs(
        self, segments: Sequence[tuple[str, str]], outputs: Sequence[GeneratedText]
    ) -> list[str]:
        """Return the translations with the whitespace of the segments."""
        remaining = iter(outputs)
        texts = []
        for gap, body in segments:
            text = next(remaining).text if body else ""
            texts.append(gap + (map_characters(str.upper, text) if self.is_recased(body) else text))
        return texts


def is_uppercase(text: str) -> bool:
    """Return whether a text is in capital letters, and longer than most abbreviations."""
    return text.replace("ß", "").isupper() and sum(map(str.isalpha, text)) >= MIN_UPPERCASE_LETTERS


def map_characters(change: Callable[[str], str], text: str) -> str:
    """Change the characters of a text, except where that would change its length, as with ß."""
    return "".join(
        changed if len(changed := change(character)) == 1 else character for character in text
    )


def strip_code_arrows(code: str) -> str:
    """Return `de` for `>>de<<`."""
    return code.removeprefix(">>").removesuffix("<<")


def get_base_language(code: str) -> str:
    """Return the language without arrows and region: `de` for `>>de<<`, `de_DE` and `de`."""
    return strip_code_arrows(code).split("_")[0]


def list_language_names(codes: Iterable[str]) -> list[str]:
    """Return the base languages of codes, with the region if two would be the same."""
    counts = Counter(map(get_base_language, codes))
    return [
        get_base_language(code) if counts[get_base_language(code)] == 1 else strip_code_arrows(code)
        for code in codes
    ]


def split_segments(text: str, unit: str) -> Iterator[tuple[str, str]]:
    """Yield lines or sentences, each after the whitespace before it; trailing whitespace comes last."""
    gap = ""
    for i, line in enumerate(text.split("\n")):
        gap += "\n" if i else ""
        body = line.strip()
        start = line.index(body)
        gap += line[:start]
        if body:
            parts = SENTENCE_BOUNDARY.split(body) if unit == "sentence" else [body]
            for part, separator in zip(parts[::2], [*parts[1::2], ""], strict=True):
                yield gap, part
                gap = separator
            gap = line[start + len(body) :]
    yield gap, ""
