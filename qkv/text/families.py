"""Tokenizer families: special tokens by role, and templates of special tokens. Reads no files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from tokenizers import AddedToken, Tokenizer, processors

from qkv.text.backends.rust import LanguageTemplates, RustBackend, build_template_processor
from qkv.text.config import TokenizerFileConfig
from qkv.text.pipelines import MBART50_LANGUAGES, MBART_LANGUAGES
from qkv.text.special_tokens import SPECIAL_TOKEN_ROLES, SpecialTokens

PostProcessorFactory: TypeAlias = Callable[
    [Tokenizer, SpecialTokens, TokenizerFileConfig], processors.PostProcessor
]

# Templates of a text and of a pair: special tokens by role and texts, each with its token type.
BERT_TEMPLATES = ("{cls}:0 $A:0 {sep}:0", "{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1")
XLNET_TEMPLATES = ("$A:0 {sep}:0 {cls}:2", "$A:0 {sep}:0 $B:1 {sep}:1 {cls}:2")
FAIRSEQ_TEMPLATES = (
    "{bos}:0 $A:0 {eos}:0",
    "{bos}:0 $A:0 {eos}:0 {eos}:0 $B:0 {eos}:0",
)
T5_TEMPLATES = ("$A:0 {eos}:0", "$A:0 {eos}:0 $B:0 {eos}:0")
MBART_TEMPLATES = ("$A:0 {eos}:0 {language}:0", "$A:0 $B:0 {eos}:0 {language}:0")
MBART50_TEMPLATES = ("{language}:0 $A:0 {eos}:0", "{language}:0 $A:0 $B:0 {eos}:0")


def make_template_factory(templates: tuple[str, str]) -> PostProcessorFactory:
    """Return a factory of post-processors for fixed templates."""
    return lambda tokenizer, special_tokens, config: build_template_processor(
        tokenizer, templates, special_tokens
    )


def build_default_post_processor(
    tokenizer: Tokenizer, special_tokens: SpecialTokens, config: TokenizerFileConfig
) -> processors.PostProcessor:
    """Return a post-processor that adds BOS and EOS tokens if the config sets them."""
    begin = (
        "{bos}:# " if config.get_bool("add_bos_token", False) and "bos" in special_tokens else ""
    )
    end = " {eos}:#" if config.get_bool("add_eos_token", False) and "eos" in special_tokens else ""
    first = f"{begin}$A:#{end}".replace("#", "0")
    second = f"{begin}$B:#{end}".replace("#", "1")
    return build_template_processor(tokenizer, (first, f"{first} {second}"), special_tokens)


def build_roberta_post_processor(
    tokenizer: Tokenizer, special_tokens: SpecialTokens, config: TokenizerFileConfig
) -> processors.PostProcessor:
    return processors.RobertaProcessing(
        _get_token_and_id(tokenizer, special_tokens, "sep"),
        _get_token_and_id(tokenizer, special_tokens, "cls"),
        config.get_bool("trim_offsets", True),
        config.get_bool("add_prefix_space", False),
    )


def build_clip_post_processor(
    tokenizer: Tokenizer, special_tokens: SpecialTokens, config: TokenizerFileConfig
) -> processors.PostProcessor:
    return processors.RobertaProcessing(
        _get_token_and_id(tokenizer, special_tokens, "eos"),
        _get_token_and_id(tokenizer, special_tokens, "bos"),
        False,
        False,
    )


def _get_token_and_id(
    tokenizer: Tokenizer, special_tokens: SpecialTokens, role: str
) -> tuple[str, int]:
    token_id = tokenizer.token_to_id(special_tokens[role])
    assert token_id is not None, role
    return special_tokens[role], token_id


@dataclass(frozen=True, kw_only=True)
class TokenizerFamily:
    """Defaults of a family for settings that its files do not have."""

    tokenizer_class: str  # class in transformers
    special_tokens: str  # of bos eos unk sep pad cls mask; -: none
    build_post_processor: PostProcessorFactory = build_default_post_processor
    padding_side: str = "right"
    has_token_types: bool = False  # a call of the tokenizer returns token_type_ids
    language_templates: tuple[str, str] | None = None  # with {language}
    language_codes: tuple[str, ...] = ()
    lstrip_mask_token: bool = False  # the mask token includes the space before it
    model_max_length: int | None = None

    def get_special_tokens(self, config: TokenizerFileConfig) -> SpecialTokens:
        """Return the special tokens by role, from the config or the defaults of the family."""
        defaults = dict(zip(SPECIAL_TOKEN_ROLES, self.special_tokens.split(), strict=True))
        special_tokens = SpecialTokens()
        for role in SPECIAL_TOKEN_ROLES:
            name = defaults[role]
            if f"{role}_token" in config.values:
                token = config.get_special_token(role)
                name = token.content if token else "-"
            if name != "-":
                special_tokens[role] = name
        return special_tokens


TOKENIZER_FAMILIES = {
    "bert": TokenizerFamily(
        tokenizer_class="BertTokenizer",
        special_tokens="- - [UNK] [SEP] [PAD] [CLS] [MASK]",
        build_post_processor=make_template_factory(BERT_TEMPLATES),
        has_token_types=True,
    ),
    "distilbert": TokenizerFamily(
        tokenizer_class="DistilBertTokenizer",
        special_tokens="- - [UNK] [SEP] [PAD] [CLS] [MASK]",
        build_post_processor=make_template_factory(BERT_TEMPLATES),
    ),
    "roberta": TokenizerFamily(
        tokenizer_class="RobertaTokenizer",
        special_tokens="<s> </s> <unk> </s> <pad> <s> <mask>",
        build_post_processor=build_roberta_post_processor,
    ),
    "xlm-roberta": TokenizerFamily(
        tokenizer_class="XLMRobertaTokenizer",
        special_tokens="<s> </s> <unk> </s> <pad> <s> <mask>",
        build_post_processor=make_template_factory(FAIRSEQ_TEMPLATES),
    ),
    "camembert": TokenizerFamily(
        tokenizer_class="CamembertTokenizer",
        special_tokens="<s> </s> <unk> </s> <pad> <s> <mask>",
        build_post_processor=make_template_factory(FAIRSEQ_TEMPLATES),
        lstrip_mask_token=True,
    ),
    "gpt2": TokenizerFamily(
        tokenizer_class="GPT2Tokenizer",
        special_tokens="<|endoftext|> <|endoftext|> <|endoftext|> - - - -",
    ),
    "gpt": TokenizerFamily(
        tokenizer_class="OpenAIGPTTokenizer",
        special_tokens="- - <unk> - - - -",
    ),
    "clip": TokenizerFamily(
        tokenizer_class="CLIPTokenizer",
        build_post_processor=build_clip_post_processor,
        special_tokens="<|startoftext|> <|endoftext|> <|endoftext|> - <|endoftext|> - -",
    ),
    "ctrl": TokenizerFamily(
        tokenizer_class="CTRLTokenizer",
        special_tokens="- - <unk> - - - -",
    ),
    "albert": TokenizerFamily(
        tokenizer_class="AlbertTokenizer",
        special_tokens="[CLS] [SEP] <unk> [SEP] <pad> [CLS] [MASK]",
        build_post_processor=make_template_factory(BERT_TEMPLATES),
        has_token_types=True,
    ),
    "xlnet": TokenizerFamily(
        tokenizer_class="XLNetTokenizer",
        special_tokens="<s> </s> <unk> <sep> <pad> <cls> <mask>",
        build_post_processor=make_template_factory(XLNET_TEMPLATES),
        padding_side="left",
        has_token_types=True,
        lstrip_mask_token=True,
    ),
    "t5": TokenizerFamily(
        tokenizer_class="T5Tokenizer",
        special_tokens="- </s> <unk> - <pad> - -",
        build_post_processor=make_template_factory(T5_TEMPLATES),
    ),
    "mbart": TokenizerFamily(
        tokenizer_class="MBartTokenizer",
        special_tokens="<s> </s> <unk> </s> <pad> <s> <mask>",
        lstrip_mask_token=True,
        language_templates=MBART_TEMPLATES,
        language_codes=tuple(MBART_LANGUAGES),
    ),
    "mbart50": TokenizerFamily(
        tokenizer_class="MBart50Tokenizer",
        special_tokens="- </s> <unk> </s> <pad> <s> <mask>",
        lstrip_mask_token=True,
        language_templates=MBART50_TEMPLATES,
        language_codes=tuple(MBART50_LANGUAGES),
    ),
    "marian": TokenizerFamily(
        tokenizer_class="MarianTokenizer",
        special_tokens="- </s> <unk> - <pad> - -",
        model_max_length=512,
    ),
    "fsmt": TokenizerFamily(
        tokenizer_class="FSMTTokenizer",
        special_tokens="<s> </s> <unk> </s> <pad> - -",
        model_max_length=1024,
    ),
    "llama": TokenizerFamily(
        tokenizer_class="LlamaTokenizer",
        special_tokens="<s> </s> <unk> - - - -",
        padding_side="left",
    ),
}


def assemble_backend(
    family: TokenizerFamily,
    tokenizer: Tokenizer,
    config: TokenizerFileConfig,
    added_tokens: dict[int, AddedToken],
    extra_tokens: Iterable[AddedToken],
) -> RustBackend:
    """Add the special tokens and the post-processor of a family to a bare tokenizer."""
    special_tokens = family.get_special_tokens(config)
    known = {token.content for token in added_tokens.values()}
    tokens = [
        config.get_special_token(role) or AddedToken(name, special=True)
        for role, name in special_tokens.items()
    ]
    if family.lstrip_mask_token and not isinstance(config.values.get("mask_token"), dict):
        tokens.append(AddedToken(special_tokens["mask"], lstrip=True, special=True))
    tokens += config.get_extra_special_tokens()
    tokens += [AddedToken(code, special=True) for code in family.language_codes]
    tokenizer.add_tokens(
        [
            *added_tokens.values(),
            *(token for token in [*tokens, *extra_tokens] if token.content not in known),
        ]
    )
    for expected_id, token in added_tokens.items():
        token_id = tokenizer.token_to_id(token.content)
        if token_id != expected_id:
            raise ValueError(
                f"{config.path.parent}: {token.content!r} has id {token_id}, expected {expected_id}"
            )
    languages = find_languages(family, tokenizer, config)
    if languages:
        tokenizer.post_processor = build_template_processor(
            tokenizer, languages.templates, special_tokens, languages.src_lang
        )
    else:
        tokenizer.post_processor = family.build_post_processor(tokenizer, special_tokens, config)
    return RustBackend(
        tokenizer,
        special_tokens,
        languages,
        clean_up_tokenization_spaces=config.clean_up_tokenization_spaces,
    )


def find_languages(
    family: TokenizerFamily | None, tokenizer: Tokenizer, config: TokenizerFileConfig
) -> LanguageTemplates | None:
    """Return the language templates of a tokenizer that adds language codes to texts."""
    if family is None or family.language_templates is None:
        return read_trained_languages(tokenizer, config)
    code_to_id = {
        code: token_id
        for code in family.language_codes
        if (token_id := tokenizer.token_to_id(code)) is not None
    }
    src_lang = config.get_str("src_lang") or "en_XX"
    tgt_lang = config.get_str("tgt_lang") or src_lang
    for code in (src_lang, tgt_lang):
        if code not in code_to_id:
            known = ", ".join(code_to_id) or "none"
            raise ValueError(f"{config.path}: language {code!r}, expected one of {known}")
    return LanguageTemplates(
        code_to_id=code_to_id,
        templates=family.language_templates,
        src_lang=src_lang,
        tgt_lang=tgt_lang,
    )


def read_trained_languages(
    tokenizer: Tokenizer, config: TokenizerFileConfig
) -> LanguageTemplates | None:
    """Return the language templates that a tokenizer was trained with, if any."""
    codes = config.get_str_list("language_codes")
    templates = config.get_str_list("language_template")
    if not codes:
        return None
    if len(templates) != 2:
        raise ValueError(
            f"{config.path}: language_template {templates}, expected two: for a text and for a pair"
        )
    code_to_id = {
        code: token_id for code in codes if (token_id := tokenizer.token_to_id(code)) is not None
    }
    if missing := [code for code in codes if code not in code_to_id]:
        raise ValueError(f"{config.path}: languages {', '.join(missing)} are not in the vocabulary")
    return LanguageTemplates(code_to_id=code_to_id, templates=(templates[0], templates[1]))
