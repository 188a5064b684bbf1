"""Families: which tokens have which role, and what stands around a text. Knows no files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from tokenizers import AddedToken, Tokenizer, processors

from qkv.text.config import ROLES, Names, Settings
from qkv.text.pipelines import LANGUAGES, LANGUAGES_50
from qkv.text.rust_backend import Languages, Rust, template

Frame: TypeAlias = Callable[[Tokenizer, Names, Settings], processors.PostProcessor]

# A text, and a pair: tokens by role and texts, each with its type.
BERT = ("{cls}:0 $A:0 {sep}:0", "{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1")
XLNET = ("$A:0 {sep}:0 {cls}:2", "$A:0 {sep}:0 $B:1 {sep}:1 {cls}:2")
T5 = ("$A:0 {eos}:0", "$A:0 {eos}:0 $B:0 {eos}:0")
MBART = ("$A:0 {eos}:0 {language}:0", "$A:0 $B:0 {eos}:0 {language}:0")
MBART50 = ("{language}:0 $A:0 {eos}:0", "{language}:0 $A:0 $B:0 {eos}:0")


def framed(around: tuple[str, str]) -> Frame:
    return lambda rust, names, settings: template(rust, around, names)


def asked(rust: Tokenizer, names: Names, settings: Settings) -> processors.PostProcessor:
    """Nothing, unless the settings ask for a begin or an end."""
    begin = "{bos}:# " if settings.flag("add_bos_token", False) and "bos" in names else ""
    end = " {eos}:#" if settings.flag("add_eos_token", False) and "eos" in names else ""
    first, second = (f"{begin}${text}:#{end}".replace("#", kind) for text, kind in ("A0", "B1"))
    return template(rust, (first, f"{first} {second}"), names)


def roberta(rust: Tokenizer, names: Names, settings: Settings) -> processors.PostProcessor:
    trim, space = settings.flag("trim_offsets", True), settings.flag("add_prefix_space", False)
    return processors.RobertaProcessing(
        _numbered(rust, names, "sep"), _numbered(rust, names, "cls"), trim, space
    )


def clip(rust: Tokenizer, names: Names, settings: Settings) -> processors.PostProcessor:
    return processors.RobertaProcessing(
        _numbered(rust, names, "eos"), _numbered(rust, names, "bos"), False, False
    )


def _numbered(rust: Tokenizer, names: Names, role: str) -> tuple[str, int]:
    number = rust.token_to_id(names[role])
    assert number is not None, role
    return names[role], number


@dataclass(frozen=True, kw_only=True)
class Family:
    """What the files of a family leave unsaid."""

    hf: str  # its class in transformers
    tokens: str  # by role: bos eos unk sep pad cls mask; -: none
    frame: Frame = asked
    side: str = "right"
    spoken: tuple[str, str] | None = None  # around a text in a language
    languages: tuple[str, ...] = ()
    wide_mask: bool = False  # the mask takes the space before it along
    limit: int | None = None

    def names(self, settings: Settings) -> Names:
        """The tokens by role: what the settings say, else this family's."""
        usual = dict(zip(ROLES, self.tokens.split(), strict=True))
        found = Names()
        for role in ROLES:
            token = settings.role(role)
            said = f"{role}_token" in settings.values
            name = (token.content if token else "-") if said else usual[role]
            if name != "-":
                found[role] = name
        return found


# fmt: off
FAMILIES = {
    "bert":    Family(hf="BertTokenizer", tokens="- - [UNK] [SEP] [PAD] [CLS] [MASK]", frame=framed(BERT)),
    "roberta": Family(hf="RobertaTokenizer", tokens="<s> </s> <unk> </s> <pad> <s> <mask>", frame=roberta),
    "gpt2":    Family(hf="GPT2Tokenizer", tokens="<|endoftext|> <|endoftext|> <|endoftext|> - - - -"),
    "gpt":     Family(hf="OpenAIGPTTokenizer", tokens="- - <unk> - - - -"),
    "clip":    Family(hf="CLIPTokenizer", frame=clip,
                      tokens="<|startoftext|> <|endoftext|> <|endoftext|> - <|endoftext|> - -"),
    "ctrl":    Family(hf="CTRLTokenizer", tokens="- - <unk> - - - -"),
    "albert":  Family(hf="AlbertTokenizer", tokens="[CLS] [SEP] <unk> [SEP] <pad> [CLS] [MASK]",
                      frame=framed(BERT)),
    "xlnet":   Family(hf="XLNetTokenizer", tokens="<s> </s> <unk> <sep> <pad> <cls> <mask>",
                      frame=framed(XLNET), side="left", wide_mask=True),
    "t5":      Family(hf="T5Tokenizer", tokens="- </s> <unk> - <pad> - -", frame=framed(T5)),
    "mbart":   Family(hf="MBartTokenizer", tokens="<s> </s> <unk> </s> <pad> <s> <mask>", wide_mask=True,
                      spoken=MBART, languages=tuple(LANGUAGES)),
    "mbart50": Family(hf="MBart50Tokenizer", tokens="- </s> <unk> </s> <pad> <s> <mask>", wide_mask=True,
                      spoken=MBART50, languages=tuple(LANGUAGES_50)),
    "marian":  Family(hf="MarianTokenizer", tokens="- </s> <unk> - <pad> - -", limit=512),
    "llama":   Family(hf="LlamaTokenizer", tokens="<s> </s> <unk> - - - -", side="left"),
}
# fmt: on


def assemble(
    family: Family,
    rust: Tokenizer,
    settings: Settings,
    added: dict[int, AddedToken],
    marked: Iterable[AddedToken],
) -> Rust:
    """The special tokens made known to a bare tokenizer, and what stands around a text."""
    names = family.names(settings)
    known = {token.content for token in added.values()}
    tokens = [settings.role(role) or AddedToken(name, special=True) for role, name in names.items()]
    if family.wide_mask and not isinstance(settings.values.get("mask_token"), dict):
        tokens.append(AddedToken(names["mask"], lstrip=True, special=True))
    tokens += settings.extras()
    tokens += [AddedToken(code, special=True) for code in family.languages]
    rust.add_tokens([*added.values(), *(token for token in [*tokens, *marked] if token.content not in known)])
    for number, token in added.items():
        if rust.token_to_id(token.content) != number:
            found = rust.token_to_id(token.content)
            raise ValueError(f"{settings.source.parent}: {token.content!r} has id {found}, expected {number}")
    spoken = languages(family, rust, settings)
    if spoken:
        rust.post_processor = template(rust, spoken.around, names, spoken.source)
    else:
        rust.post_processor = family.frame(rust, names, settings)
    return Rust(rust, names, spoken, clean=settings.clean)


def languages(family: Family | None, rust: Tokenizer, settings: Settings) -> Languages | None:
    """The languages of a tokenizer whose texts carry the code of one."""
    if family is None or family.spoken is None:
        return trained_languages(rust, settings)
    codes = {code: number for code in family.languages if (number := rust.token_to_id(code)) is not None}
    source = settings.text("src_lang") or "en_XX"
    target = settings.text("tgt_lang") or source
    for code in (source, target):
        if code not in codes:
            known = ", ".join(codes) or "none"
            raise ValueError(f"{settings.source}: language {code!r}, expected one of its own: {known}")
    return Languages(codes=codes, around=family.spoken, source=source, target=target)


def trained_languages(rust: Tokenizer, settings: Settings) -> Languages | None:
    """The languages that a tokenizer was trained with, and the templates that place their codes."""
    codes, around = settings.texts("language_codes"), settings.texts("language_template")
    if not codes:
        return None
    if len(around) != 2:
        raise ValueError(
            f"{settings.source}: language_template {around}, expected one for a text, one for a pair"
        )
    found = {code: number for code in codes if (number := rust.token_to_id(code)) is not None}
    if lost := [code for code in codes if code not in found]:
        raise ValueError(f"{settings.source}: languages {', '.join(lost)} are not in the vocabulary")
    return Languages(codes=found, around=(around[0], around[1]))
