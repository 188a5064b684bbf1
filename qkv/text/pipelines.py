"""Pipelines: how each family normalises text and cuts it, into words and into pieces. Knows no files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from qkv.text.config import Names, Settings
from qkv.text.sentencepiece_model import Pieces

Rules: TypeAlias = list[normalizers.Normalizer]

# mBART's, in the order of their ids
LANGUAGES = """
    ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM
    ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN
""".split()
LANGUAGES_50 = [*LANGUAGES, *"""
    af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE
    sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI
""".split()]  # fmt: skip

CLIP_WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
SENTINELS = 10_000  # more than any model has


@dataclass(frozen=True)
class Bpe:
    """A vocabulary and, in the order of learning, what to merge."""

    vocabulary: dict[str, int]
    merges: list[tuple[str, str]]


def bert(vocabulary: dict[str, int], names: Names, settings: Settings) -> Tokenizer:
    rust = Tokenizer(models.WordPiece(vocabulary, unk_token=names["unk"]))
    rust.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.flag("tokenize_chinese_chars", True),
        strip_accents=settings.maybe("strip_accents"),
        lowercase=settings.flag("do_lower_case", True),
    )
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rust.decoder = decoders.WordPiece(prefix="##")
    return rust


def byte_bpe(bpe: Bpe, names: Names, settings: Settings) -> Tokenizer:
    """GPT-2, RoBERTa, BART: merges of bytes, each written as a character that can be seen."""
    rust = Tokenizer(models.BPE(bpe.vocabulary, bpe.merges))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=settings.flag("add_prefix_space", False))
    rust.decoder = decoders.ByteLevel()
    return rust


def gpt(bpe: Bpe, names: Names, settings: Settings) -> Tokenizer:
    rust = Tokenizer(_ended(bpe, names))
    rust.normalizer = normalizers.BertNormalizer(lowercase=True)
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rust.decoder = decoders.BPEDecoder(suffix="</w>")
    return rust


def clip(bpe: Bpe, names: Names, settings: Settings) -> Tokenizer:
    rust = Tokenizer(_ended(bpe, names))
    rust.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    words = pre_tokenizers.Split(Regex(CLIP_WORDS), "removed", invert=True)
    rust.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    rust.decoder = decoders.ByteLevel()
    return rust


def _ended(bpe: Bpe, names: Names) -> models.BPE:
    return models.BPE(bpe.vocabulary, bpe.merges, unk_token=names["unk"], end_of_word_suffix="</w>")


def unigram(pieces: list[tuple[str, float]], unk: int, rules: Rules, *, space: bool = True) -> Tokenizer:
    """Words cut at white space, each with a mark for the space before it, as its likeliest pieces."""
    rust = Tokenizer(models.Unigram(pieces, unk, False))
    if rules:
        rust.normalizer = normalizers.Sequence(rules)
    scheme = "always" if space else "never"
    rust.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace("▁", scheme)]
    )
    rust.decoder = decoders.Metaspace("▁", scheme)
    return rust


def albert(pieces: Pieces, names: Names, settings: Settings) -> Tokenizer:
    rules = _plain(settings.flag("keep_accents", False), settings.flag("do_lower_case", True))
    space = settings.flag("add_prefix_space", True)
    return unigram(_scores(pieces), pieces.unk, rules + _compiled(pieces), space=space)


def xlnet(pieces: Pieces, names: Names, settings: Settings) -> Tokenizer:
    # transformers drops accents whatever `keep_accents` says.
    rules = _plain(False, settings.flag("do_lower_case", False))
    return unigram(_scores(pieces), pieces.unk, rules + _compiled(pieces))


def t5(pieces: Pieces, names: Names, settings: Settings) -> Tokenizer:
    extra = [(token, 0.0) for token in reversed(sentinels(settings))]
    return unigram(_scores(pieces) + extra, pieces.unk, _compiled(pieces))


def sentinels(settings: Settings) -> list[str]:
    """T5's marks for what was taken out of a text."""
    asked = settings.number("extra_ids")
    count = 100 if asked is None else asked
    if count > SENTINELS:
        raise ValueError(f"{settings.source}: extra_ids {count}, expected at most {SENTINELS}")
    return [f"<extra_id_{place}>" for place in range(count)]


def mbart(pieces: Pieces, names: Names, settings: Settings) -> Tokenizer:
    # transformers leaves the model's own normaliser out.
    return unigram(_fairseq(pieces, names, "bos", LANGUAGES), 3, [])


def mbart50(pieces: Pieces, names: Names, settings: Settings) -> Tokenizer:
    rules = [*_compiled(pieces), normalizers.Replace(Regex(" {2,}"), " ")]
    rust = unigram(_fairseq(pieces, names, "cls", LANGUAGES_50), 3, rules)
    rust.pre_tokenizer = pre_tokenizers.Metaspace("▁", "always")
    return rust


def llama(pieces: Pieces, names: Names, settings: Settings) -> Tokenizer:
    vocabulary = {piece.text: number for number, piece in enumerate(pieces.pieces)}
    rust = Tokenizer(models.BPE(vocabulary, merges_of(vocabulary), fuse_unk=True, byte_fallback=True))
    space = settings.flag("add_prefix_space", True)
    scheme = "never" if not space else "always" if settings.flag("legacy", False) else "first"
    rust.pre_tokenizer = pre_tokenizers.Metaspace("▁", scheme, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    rust.decoder = decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] * space)
    return rust


def merges_of(vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """The merges behind a vocabulary of BPE pieces that lie in the order they were learned in."""
    found: list[tuple[int, str, str]] = []
    for piece, number in vocabulary.items():
        halves = [(piece[:place], piece[place:]) for place in range(1, len(piece))]
        known = [(a, b) for a, b in halves if a in vocabulary and b in vocabulary]
        known.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        found += [(number, a, b) for a, b in known]
    found.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])))
    return [(a, b) for _, a, b in found]


def _scores(pieces: Pieces) -> list[tuple[str, float]]:
    return [(piece.text, piece.score) for piece in pieces.pieces]


def _compiled(pieces: Pieces) -> Rules:
    return [normalizers.Precompiled(pieces.charsmap)] if pieces.charsmap else []


def _plain(accents: bool, lower: bool) -> Rules:
    """Quotes as one character; accents and capitals gone, if asked."""
    rules: Rules = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not accents:
        rules += [normalizers.NFKD(), normalizers.StripAccents()]
    return rules + [normalizers.Lowercase()] * lower


def _fairseq(pieces: Pieces, names: Names, first: str, languages: Iterable[str]) -> list[tuple[str, float]]:
    """fairseq's numbering: four tokens of its own for SentencePiece's three, then languages and the mask."""
    before = [names[first], names["pad"], names["eos"], names["unk"]]
    after = [*languages, names["mask"]]
    return [(name, 0.0) for name in before] + _scores(pieces)[3:] + [(name, 0.0) for name in after]
