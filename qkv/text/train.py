"""Deterministic training of tokenizers on texts. Does not depend on published models."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from sentencepiece import SentencePieceTrainer
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from qkv.text import sentencepiece_model
from qkv.text.backends.protocol import check_text_input
from qkv.text.backends.rust import LanguageTemplates, RustBackend, build_template_processor
from qkv.text.config import (
    MODEL_INPUT_NAMES_WITH_TYPES,
    TOKENIZER_CONFIG_FILE,
    TokenizerFileConfig,
)
from qkv.text.families import BERT_TEMPLATES, T5_TEMPLATES, XLNET_TEMPLATES
from qkv.text.files import reraise_as_value_error
from qkv.text.pipelines import build_unigram_pipeline
from qkv.text.special_tokens import SPECIAL_TOKEN_ROLES, SpecialTokens

MAX_ALPHABET_SIZE = 1000  # most frequent characters that become tokens; others are unknown
# Punctuation or a symbol, with the space before it, but not an apostrophe inside a word.
PUNCTUATION_PATTERN = r"▁?(?:(?!(?<=\p{L})['’](?=\p{L}))\p{P}|(?!▁)\p{S})"
MAX_TRAINED_VOCAB_SIZE = 2**21  # the trainers allocate it; published vocabularies have a tenth
MAX_TRAINING_WORD = 1000  # characters; the time of training is quadratic in them
SPECIAL_TOKEN_ORDER = (
    "pad",
    "unk",
    "bos",
    "eos",
    "cls",
    "sep",
    "mask",
)  # roles in the order of their ids

PLAIN_TEMPLATES = ("$A:0", "$A:0 $B:1")
ROBERTA_TEMPLATES = ("{bos}:0 $A:0 {eos}:0", "{bos}:0 $A:0 {eos}:0 {eos}:0 $B:0 {eos}:0")
LLAMA_TEMPLATES = ("{bos}:0 $A:0", "{bos}:0 $A:0 {bos}:1 $B:1")


@dataclass(frozen=True)
class TokenizerTemplate:
    """Special tokens of a type of model, and templates with their positions."""

    special_tokens: str  # of bos eos unk sep pad cls mask; -: none
    templates: tuple[str, str] = PLAIN_TEMPLATES
    padding_side: str = "right"

    @property
    def has_token_types(self) -> bool:
        return self.templates in (BERT_TEMPLATES, XLNET_TEMPLATES)


# fmt: off
TOKENIZER_TEMPLATES = {
    "bert":    TokenizerTemplate("-   -    [UNK] [SEP] [PAD] [CLS] [MASK]", BERT_TEMPLATES),
    "roberta": TokenizerTemplate("<s> </s> <unk> </s>  <pad> <s>   <mask>", ROBERTA_TEMPLATES),
    "gpt":     TokenizerTemplate("<|endoftext|> <|endoftext|> <unk> - - - -"),
    "llama":   TokenizerTemplate("<s> </s> <unk> -     -     -     -",      LLAMA_TEMPLATES, "left"),
    "seq2seq": TokenizerTemplate("<s> </s> <unk> -     <pad> -     -",      T5_TEMPLATES),
    "bos-eos": TokenizerTemplate("<s> </s> <unk> -     <pad> -     -",      ROBERTA_TEMPLATES),
    "t5":      TokenizerTemplate("-   </s> <unk> -     <pad> -     -",      T5_TEMPLATES),
    "xlnet":   TokenizerTemplate("<s> </s> <unk> <sep> <pad> <cls> <mask>", XLNET_TEMPLATES, "left"),
    "plain":   TokenizerTemplate("-   -    <unk> -     <pad> -     -"),
}
# fmt: on


@dataclass(frozen=True, kw_only=True)
class TokenizerTrainingJob:
    """Training texts and settings of one tokenizer."""

    texts: Iterable[str]
    vocab_size: int  # with special tokens
    special_tokens: list[str]
    unk_token: str
    lowercase: bool

    @property
    def normalizer_list(self) -> list[normalizers.Normalizer]:
        return [normalizers.NFC()] + [normalizers.Lowercase()] * self.lowercase


def train_tokenizer(
    source: Iterable[str | Path] | Path,
    *,
    type: str,
    vocab_size: int,
    template: str,
    lowercase: bool,
    num_sentinels: int,
    extra_tokens: Sequence[str],
    model_max_length: int | None,
) -> tuple[RustBackend, TokenizerFileConfig]:
    """Train a tokenizer; ids: special tokens, extra tokens, vocabulary, sentinels."""
    for name, value, choices in (
        ("type", type, TOKENIZER_TRAINERS),
        ("template", template, TOKENIZER_TEMPLATES),
    ):
        if value not in choices:
            raise ValueError(f"{name} {value!r}: expected one of {', '.join(choices)}")
    for token in extra_tokens:
        if not token or token.startswith("$") or ":" in token:
            raise ValueError(f"extra token {token!r}: expected a name without : or a leading $")
    if num_sentinels < 0 or not num_sentinels < vocab_size <= MAX_TRAINED_VOCAB_SIZE:
        raise ValueError(
            f"vocab_size {vocab_size}, num_sentinels {num_sentinels}:"
            f" expected more tokens than sentinels, at most {MAX_TRAINED_VOCAB_SIZE:,}"
        )
    chosen = TOKENIZER_TEMPLATES[template]
    tokens_by_role = zip(SPECIAL_TOKEN_ROLES, chosen.special_tokens.split(), strict=True)
    special_tokens = SpecialTokens({role: token for role, token in tokens_by_role if token != "-"})
    # Bytes encode every text: there is no unknown token.
    unk_token = special_tokens.pop("unk") if type == "byte" else special_tokens["unk"]
    ordered_tokens = [
        special_tokens[role] for role in SPECIAL_TOKEN_ORDER if role in special_tokens
    ]
    first_tokens = list(dict.fromkeys([*ordered_tokens, *extra_tokens]))
    sentinels = [f"<extra_id_{i}>" for i in reversed(range(num_sentinels))]
    trained_size = vocab_size - len(sentinels)
    tokenizer = TOKENIZER_TRAINERS[type](
        TokenizerTrainingJob(
            texts=read_training_texts(source),
            vocab_size=trained_size,
            special_tokens=first_tokens,
            unk_token=unk_token,
            lowercase=lowercase,
        )
    )
    minimum = tokenizer.get_vocab_size()
    if minimum > trained_size:
        raise ValueError(
            f"vocab_size {vocab_size}: expected at least {minimum + len(sentinels)},"
            " for special tokens and characters"
        )
    tokenizer.add_tokens([AddedToken(token, special=True) for token in [*first_tokens, *sentinels]])
    tokenizer.post_processor = build_template_processor(tokenizer, chosen.templates, special_tokens)
    values: dict[str, object] = {f"{role}_token": token for role, token in special_tokens.items()}
    values |= {"tokenizer_class": "PreTrainedTokenizerFast", "padding_side": chosen.padding_side}
    if chosen.has_token_types:
        values["model_input_names"] = MODEL_INPUT_NAMES_WITH_TYPES
    if model_max_length is not None:
        values["model_max_length"] = model_max_length
    if extra_tokens or sentinels:
        values["extra_special_tokens"] = [*extra_tokens, *reversed(sentinels)]
    languages = None
    if extra_tokens:
        single, pair = chosen.templates
        languages = LanguageTemplates(
            code_to_id={code: first_tokens.index(code) for code in extra_tokens},
            templates=(f"{{language}}:0 {single}", f"{{language}}:0 {pair}"),
        )
        values["language_codes"] = list(extra_tokens)
        values["language_template"] = list(languages.templates)
    backend = RustBackend(tokenizer, special_tokens, languages)
    return backend, TokenizerFileConfig(values, Path(TOKENIZER_CONFIG_FILE))


def read_training_texts(source: Iterable[str | Path] | Path) -> Iterator[str]:
    """Yield texts, and the lines of files (Path) with their line ends."""
    if isinstance(source, str):
        raise ValueError(
            f"{source[:80]!r}, expected a list of texts, or Path(...) for the lines of a file"
        )
    texts = _cut_long_words(_iterate_texts([source] if isinstance(source, Path) else source))
    first = next(texts, None)
    if first is None:
        raise ValueError("no text to train on; expected at least one")
    return chain([first], texts)


def _cut_long_words(texts: Iterable[str]) -> Iterator[str]:
    """Yield texts; those with very long words in parts, so that no part has one."""
    pattern = re.compile(rf"\S{{{MAX_TRAINING_WORD}}}")
    for text in texts:
        start = 0
        for match in pattern.finditer(text):
            yield text[start : match.end()]
            start = match.end()
        yield text[start:]


def _iterate_texts(source: Iterable[str | Path]) -> Iterator[str]:
    for item in source:
        if isinstance(item, Path):
            try:
                with item.open(encoding="utf-8", newline="") as lines:
                    yield from lines
            except OSError as error:
                raise ValueError(f"{item}: {error.strerror}; expected a text file") from None
            except UnicodeDecodeError:
                raise ValueError(f"{item}: not UTF-8 text") from None
        else:
            check_text_input(item)
            yield item


def train_char_tokenizer(job: TokenizerTrainingJob) -> Tokenizer:
    """Train a character tokenizer: a BPE without merges."""
    lower = normalizers.Lowercase()
    texts = map(lower.normalize_str, job.texts) if job.lowercase else job.texts
    max_count = max(job.vocab_size - len(job.special_tokens), 1)
    characters = _select_most_frequent(Counter(chain.from_iterable(texts)), max_count)
    vocabulary = {
        token: token_id for token_id, token in enumerate([*job.special_tokens, *characters])
    }
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token=job.unk_token))
    if job.lowercase:
        tokenizer.normalizer = lower
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def train_word_tokenizer(job: TokenizerTrainingJob) -> Tokenizer:
    """Train a tokenizer of words and punctuation marks."""
    tokenizer = Tokenizer(models.WordLevel({}, unk_token=job.unk_token))
    tokenizer.normalizer = normalizers.Sequence(job.normalizer_list)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordLevelTrainer(
        vocab_size=job.vocab_size, special_tokens=job.special_tokens, show_progress=False
    )
    tokenizer.train_from_iterator(job.texts, trainer)
    return tokenizer


def train_wordpiece_tokenizer(job: TokenizerTrainingJob) -> Tokenizer:
    """Train a WordPiece tokenizer (BERT): pieces inside a word begin with ##."""
    tokenizer = Tokenizer(models.WordPiece({}, unk_token=job.unk_token))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=job.lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    texts = _replace_rare_characters(tokenizer.normalizer, job.texts)
    words = {word for text in texts for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)}
    first_letters = sorted({word[0] for word in words})
    inner_letters = sorted({f"##{letter}" for word in words for letter in word[1:]})
    # The trainer orders letters randomly and breaks ties by id; a fixed order is deterministic.
    initial_tokens = [*job.special_tokens, *first_letters, *inner_letters]
    trainer = trainers.WordPieceTrainer(
        vocab_size=job.vocab_size, special_tokens=initial_tokens, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    result = Tokenizer(models.WordPiece(vocabulary, unk_token=job.unk_token))
    result.normalizer = tokenizer.normalizer
    result.pre_tokenizer = tokenizer.pre_tokenizer
    result.decoder = tokenizer.decoder
    return result


def train_bpe_tokenizer(job: TokenizerTrainingJob) -> Tokenizer:
    """Train a BPE tokenizer; a space is part of the next word, punctuation is separate."""
    tokenizer = Tokenizer(models.BPE(unk_token=job.unk_token))
    tokenizer.normalizer = normalizers.Sequence(job.normalizer_list)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("\n", "isolated"),
            pre_tokenizers.Metaspace("▁", "first"),
            pre_tokenizers.Split(Regex(PUNCTUATION_PATTERN), "isolated"),
        ]
    )
    tokenizer.decoder = decoders.Metaspace("▁", "first")
    trainer = trainers.BpeTrainer(
        vocab_size=job.vocab_size, special_tokens=job.special_tokens, show_progress=False
    )
    tokenizer.train_from_iterator(
        _replace_rare_characters(tokenizer.normalizer, job.texts), trainer
    )
    return tokenizer


def train_byte_tokenizer(job: TokenizerTrainingJob) -> Tokenizer:
    """Train a byte-level BPE tokenizer (GPT-2), which has no unknown tokens."""
    tokenizer = Tokenizer(models.BPE())
    if job.lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=job.vocab_size,
        special_tokens=job.special_tokens,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(job.texts, trainer)
    return tokenizer


def train_unigram_tokenizer(job: TokenizerTrainingJob) -> Tokenizer:
    """Train a unigram tokenizer with SentencePiece, which is deterministic."""
    normalizer_list = [normalizers.NFKC(), *job.normalizer_list[1:]]
    texts = _replace_rare_characters(normalizers.Sequence(normalizer_list), job.texts)
    model = io.BytesIO()
    with reraise_as_value_error(f"vocab_size {job.vocab_size}"):
        SentencePieceTrainer.train(
            sentence_iterator=(" ".join(text.split()) for text in texts),
            model_writer=model,
            vocab_size=job.vocab_size - len(job.special_tokens) + 1,
            hard_vocab_limit=False,
            character_coverage=1.0,
            normalization_rule_name="identity",
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            unk_id=0,
            max_sentence_length=2**30,
            minloglevel=3,
        )
    pieces = sentencepiece_model.parse_sentencepiece_model(model.getvalue(), Path("pieces")).pieces[
        1:
    ]
    # Rounded so that writing and reading JSON does not change the scores.
    scores = [(piece.piece, round(piece.score, 6)) for piece in pieces]
    special_scores = [(token, 0.0) for token in job.special_tokens]
    unk_token_id = job.special_tokens.index(job.unk_token)
    return build_unigram_pipeline(special_scores + scores, unk_token_id, normalizer_list)


TOKENIZER_TRAINERS: dict[str, Callable[[TokenizerTrainingJob], Tokenizer]] = {
    "char": train_char_tokenizer,
    "word": train_word_tokenizer,
    "wordpiece": train_wordpiece_tokenizer,
    "bpe": train_bpe_tokenizer,
    "byte": train_byte_tokenizer,
    "unigram": train_unigram_tokenizer,
}


def _select_most_frequent(counts: Counter[str], max_count: int) -> list[str]:
    """Return the most frequent characters, sorted."""
    by_frequency = sorted(counts, key=lambda character: (-counts[character], character))
    return sorted(by_frequency[:max_count])


def _replace_rare_characters(normalizer: normalizers.Normalizer, texts: Iterable[str]) -> list[str]:
    """Return normalized texts in which rare characters are replaced by spaces."""
    normalized = [normalizer.normalize_str(text) for text in texts]
    counts = Counter(chain.from_iterable(normalized))
    if len(counts) <= MAX_ALPHABET_SIZE:
        return normalized
    rare_characters = counts.keys() - set(_select_most_frequent(counts, MAX_ALPHABET_SIZE))
    table = str.maketrans(dict.fromkeys(rare_characters, " "))
    return [text.translate(table) for text in normalized]
