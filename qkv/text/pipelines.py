"""Tokenization pipelines: normalizer, pre-tokenizer, model and decoder. Reads no files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from qkv.text.config import TokenizerFileConfig
from qkv.text.sentencepiece_model import SentencePieceModel
from qkv.text.special_tokens import SpecialTokens

NormalizerList: TypeAlias = list[normalizers.Normalizer]

# mBART's language codes, in the order of their ids.
MBART_LANGUAGES = """
    ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV
    my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN
""".split()
MBART50_LANGUAGES = [*MBART_LANGUAGES, *"""
    af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX
    sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI
""".split()]  # fmt: skip

CLIP_SPLIT_PATTERN = (
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
)
MAX_SENTINELS = 10_000  # more than any published model has


@dataclass(frozen=True)
class BpeVocabulary:
    """Vocabulary and merges of a BPE model, merges in order of priority."""

    vocabulary: dict[str, int]
    merges: list[tuple[str, str]]


def build_bert_pipeline(
    vocabulary: dict[str, int], special_tokens: SpecialTokens, config: TokenizerFileConfig
) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=special_tokens["unk"]))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=config.get_bool("tokenize_chinese_chars", True),
        strip_accents=config.get_optional_bool("strip_accents"),
        lowercase=config.get_bool("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer


def build_byte_bpe_pipeline(
    bpe: BpeVocabulary, special_tokens: SpecialTokens, config: TokenizerFileConfig
) -> Tokenizer:
    """Build the byte-level BPE pipeline of GPT-2, RoBERTa and BART."""
    tokenizer = Tokenizer(models.BPE(bpe.vocabulary, bpe.merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=config.get_bool("add_prefix_space", False)
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def build_gpt_pipeline(
    bpe: BpeVocabulary, special_tokens: SpecialTokens, config: TokenizerFileConfig
) -> Tokenizer:
    tokenizer = Tokenizer(_build_end_of_word_bpe(bpe, special_tokens))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    return tokenizer


def build_clip_pipeline(
    bpe: BpeVocabulary, special_tokens: SpecialTokens, config: TokenizerFileConfig
) -> Tokenizer:
    tokenizer = Tokenizer(_build_end_of_word_bpe(bpe, special_tokens))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    split = pre_tokenizers.Split(Regex(CLIP_SPLIT_PATTERN), "removed", invert=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _build_end_of_word_bpe(bpe: BpeVocabulary, special_tokens: SpecialTokens) -> models.BPE:
    return models.BPE(
        bpe.vocabulary, bpe.merges, unk_token=special_tokens["unk"], end_of_word_suffix="</w>"
    )


def build_unigram_pipeline(
    pieces: list[tuple[str, float]],
    unk_token_id: int,
    normalizer_list: NormalizerList,
    *,
    add_prefix_space: bool = True,
) -> Tokenizer:
    """Build a unigram pipeline that splits at whitespace and marks the start of words with `▁`."""
    tokenizer = Tokenizer(models.Unigram(pieces, unk_token_id, False))
    if normalizer_list:
        tokenizer.normalizer = normalizers.Sequence(normalizer_list)
    scheme = "always" if add_prefix_space else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace("▁", scheme)]
    )
    tokenizer.decoder = decoders.Metaspace("▁", scheme)
    return tokenizer


def build_albert_pipeline(
    model: SentencePieceModel, special_tokens: SpecialTokens, config: TokenizerFileConfig
) -> Tokenizer:
    normalizer_list = _build_cleanup_normalizers(
        config.get_bool("keep_accents", False), config.get_bool("do_lower_case", True)
    )
    return build_unigram_pipeline(
        _get_scores(model),
        model.unk_id,
        normalizer_list + _get_precompiled_normalizers(model),
        add_prefix_space=config.get_bool("add_prefix_space", True),
    )


def build_xlnet_pipeline(
    model: SentencePieceModel, special_tokens: SpecialTokens, config: TokenizerFileConfig
) -> Tokenizer:
    # transformers strips accents regardless of `keep_accents`.
    normalizer_list = _build_cleanup_normalizers(False, config.get_bool("do_lower_case", False))
    return build_unigram_pipeline(
        _get_scores(model), model.unk_id, normalizer_list + _get_precompiled_normalizers(model)
    )


def build_t5_pipeline(
    model: SentencePieceModel, special_tokens: SpecialTokens, config: TokenizerFileConfig
) -> Tokenizer:
    sentinels = [(token, 0.0) for token in reversed(list_sentinel_tokens(config))]
    return build_unigram_pipeline(
        _get_scores(model) + sentinels, model.unk_id, _get_precompiled_normalizers(model)
    )


def list_sentinel_tokens(config: TokenizerFileConfig) -> list[str]:
    """Return T5's sentinel tokens; `extra_ids` is their number."""
    extra_ids = config.get_int("extra_ids")
    count = 100 if extra_ids is None else extra_ids
    if count > MAX_SENTINELS:
        raise ValueError(f"{config.path}: extra_ids {count}, expected at most {MAX_SENTINELS}")
    return [f"<extra_id_{i}>" for i in range(count)]


def build_xlm_roberta_pipeline(
    model: SentencePieceModel, special_tokens: SpecialTokens, config: TokenizerFileConfig
) -> Tokenizer:
    return build_unigram_pipeline(
        _order_fairseq_vocabulary(model, special_tokens, "bos", ()),
        3,
        _get_precompiled_normalizers(model),
        add_prefix_space=config.get_bool("add_prefix_space", True),
    )


def build_camembert_pipeline(
    model: SentencePieceModel, special_tokens: SpecialTokens, config: TokenizerFileConfig
) -> Tokenizer:
    # fairseq's special tokens, of which CamemBERT uses two, precede the pieces, which have their own.
    before = ["<s>NOTUSED", special_tokens["pad"], "</s>NOTUSED", special_tokens["unk"]]
    return build_unigram_pipeline(
        [
            *((name, 0.0) for name in before),
            ("<unk>NOTUSED", -100.0),
            *_get_scores(model)[1:],
            (special_tokens["mask"], 0.0),
        ],
        3,
        _get_precompiled_normalizers(model),
        add_prefix_space=config.get_bool("add_prefix_space", True),
    )


def build_mbart_pipeline(
    model: SentencePieceModel, special_tokens: SpecialTokens, config: TokenizerFileConfig
) -> Tokenizer:
    # transformers omits the normalizer of the SentencePiece model.
    return build_unigram_pipeline(
        _order_fairseq_vocabulary(model, special_tokens, "bos", MBART_LANGUAGES), 3, []
    )


def build_mbart50_pipeline(
    model: SentencePieceModel, special_tokens: SpecialTokens, config: TokenizerFileConfig
) -> Tokenizer:
    normalizer_list = [
        *_get_precompiled_normalizers(model),
        normalizers.Replace(Regex(" {2,}"), " "),
    ]
    tokenizer = build_unigram_pipeline(
        _order_fairseq_vocabulary(model, special_tokens, "cls", MBART50_LANGUAGES),
        3,
        normalizer_list,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", "always")
    return tokenizer


def build_llama_pipeline(
    model: SentencePieceModel, special_tokens: SpecialTokens, config: TokenizerFileConfig
) -> Tokenizer:
    vocabulary = {piece.piece: token_id for token_id, piece in enumerate(model.pieces)}
    tokenizer = Tokenizer(
        models.BPE(vocabulary, recover_merges(vocabulary), fuse_unk=True, byte_fallback=True)
    )
    add_prefix_space = config.get_bool("add_prefix_space", True)
    scheme = (
        "never"
        if not add_prefix_space
        else "always"
        if config.get_bool("legacy", False)
        else "first"
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", scheme, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] * add_prefix_space)
    return tokenizer


def recover_merges(vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """Return the merges of a BPE vocabulary whose pieces are in training order."""
    merges: list[tuple[int, str, str]] = []
    for piece, token_id in vocabulary.items():
        splits = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        pairs = [(a, b) for a, b in splits if a in vocabulary and b in vocabulary]
        pairs.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        merges += [(token_id, a, b) for a, b in pairs]
    merges.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])))
    return [(a, b) for _, a, b in merges]


def _get_scores(model: SentencePieceModel) -> list[tuple[str, float]]:
    return [(piece.piece, piece.score) for piece in model.pieces]


def _get_precompiled_normalizers(model: SentencePieceModel) -> NormalizerList:
    return (
        [normalizers.Precompiled(model.precompiled_charsmap)] if model.precompiled_charsmap else []
    )


def _build_cleanup_normalizers(keep_accents: bool, lowercase: bool) -> NormalizerList:
    """Replace LaTeX-style quotes; optionally strip accents and lowercase."""
    normalizer_list: NormalizerList = [
        normalizers.Replace("``", '"'),
        normalizers.Replace("''", '"'),
    ]
    if not keep_accents:
        normalizer_list += [normalizers.NFKD(), normalizers.StripAccents()]
    return normalizer_list + [normalizers.Lowercase()] * lowercase


def _order_fairseq_vocabulary(
    model: SentencePieceModel,
    special_tokens: SpecialTokens,
    first_role: str,
    languages: Iterable[str],
) -> list[tuple[str, float]]:
    """Return the pieces in fairseq's order: four special tokens, pieces, languages and the mask."""
    before = [
        special_tokens[first_role],
        special_tokens["pad"],
        special_tokens["eos"],
        special_tokens["unk"],
    ]
    after = [*languages, special_tokens["mask"]]
    return (
        [(name, 0.0) for name in before] + _get_scores(model)[3:] + [(name, 0.0) for name in after]
    )
