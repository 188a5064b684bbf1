"""Loading of tokenizers from the files of published models, in every known format."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from qkv.text import detect, pipelines, sentencepiece_model
from qkv.text.backends.ctrl import CtrlBackend
from qkv.text.backends.fsmt import FsmtBackend, from_fsmt_token
from qkv.text.backends.marian import MarianBackend
from qkv.text.backends.protocol import TokenizerBackend
from qkv.text.backends.rust import RustBackend
from qkv.text.config import (
    ADDED_TOKENS_FILE,
    MODEL_INPUT_NAMES_WITH_TYPES,
    TokenizerFileConfig,
)
from qkv.text.families import TOKENIZER_FAMILIES, TokenizerFamily, assemble_backend, find_languages
from qkv.text.files import (
    read_bytes,
    read_tokenizer_json_object,
    read_utf8_text,
    reraise_as_value_error,
    shorten,
)
from qkv.text.patterns import check_patterns
from qkv.text.pipelines import BpeVocabulary
from qkv.text.special_tokens import SPECIAL_TOKEN_ROLES, SpecialTokens
from qkv.text.vocab import (
    check_token_ids,
    read_merges,
    read_openai_clip_bpe,
    read_vocab_json,
    read_vocab_txt,
)

TOKENIZER_FILE = "tokenizer.json"
SENTENCEPIECE_FILES = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model")

# Tokenizer class or model type of a folder -> tokenizer family.
TOKENIZER_FAMILY_ALIASES = {
    "ElectraTokenizer": "bert", "electra": "bert", "BartTokenizer": "roberta", "bart": "roberta",
    "openai-gpt": "gpt", "clip_text_model": "clip",
    "switch_transformers": "t5",
    **{family.tokenizer_class: name for name, family in TOKENIZER_FAMILIES.items()},
}  # fmt: skip
GENERIC_TOKENIZER_CLASSES = {
    "PreTrainedTokenizer",
    "PreTrainedTokenizerFast",
    "PythonBackend",
    "TokenizersBackend",
    "qkv",
}

BPE_PIPELINES = {
    "gpt2": pipelines.build_byte_bpe_pipeline,
    "roberta": pipelines.build_byte_bpe_pipeline,
    "gpt": pipelines.build_gpt_pipeline,
    "clip": pipelines.build_clip_pipeline,
}
SENTENCEPIECE_PIPELINES = {
    "albert": pipelines.build_albert_pipeline,
    "xlnet": pipelines.build_xlnet_pipeline,
    "t5": pipelines.build_t5_pipeline,
    "mbart": pipelines.build_mbart_pipeline,
    "mbart50": pipelines.build_mbart50_pipeline,
    "llama": pipelines.build_llama_pipeline,
}


@dataclass(frozen=True)
class TokenizerParts:
    """Backend and config of a tokenizer, and files that are saved unchanged."""

    backend: TokenizerBackend
    config: TokenizerFileConfig
    files: dict[str, bytes]


@dataclass(frozen=True)
class TokenizerFolder:
    """A folder, its tokenizer config, and the tokenizer class or model type it declares."""

    path: Path
    config: TokenizerFileConfig
    declared_type: str | None

    @property
    def family_name(self) -> str | None:
        if not self.declared_type:
            return None
        return TOKENIZER_FAMILY_ALIASES.get(self.declared_type, self.declared_type)

    def choose_family(self, allowed: Collection[str], default: str) -> str:
        """Return the family that the folder declares, or the default if it declares none."""
        name = self.family_name or default
        if name not in allowed:
            known = ", ".join(allowed)
            raise ValueError(
                f"{self.path}: declares {shorten(self.declared_type)}, but its files are of {known};"
                f" expected {TOKENIZER_FILE} for any other"
            )
        return name

    def extend_vocabulary(self, vocabulary: dict[str, int]) -> dict[str, int]:
        """Return a vocabulary with the added tokens of the folder."""
        added_tokens = self.config.get_added_tokens(self.path)
        added_ids = {token.content: token_id for token_id, token in added_tokens.items()}
        return check_token_ids(vocabulary | added_ids, self.path)

    def read_files(self, *names: str) -> dict[str, bytes]:
        """Return the content of those files that exist."""
        return {name: read_bytes(self.path / name) for name in names if (self.path / name).exists()}


def load_tokenizer_parts(path: Path) -> TokenizerParts:
    """Load the tokenizer of a folder; tokenizer.json takes precedence over older files."""
    if not path.is_dir():
        raise ValueError(f"{path}: no such folder; expected a folder with tokenizer files")
    config = TokenizerFileConfig.read(path)
    folder = TokenizerFolder(path, config, read_declared_type(path, config))
    for names, reader in TOKENIZER_FORMATS.items():
        if all((path / name).exists() for name in names):
            return reader(folder, *(path / name for name in names))
    expected = ", ".join(" + ".join(names) for names in TOKENIZER_FORMATS)
    content = ", ".join(sorted(entry.name for entry in path.iterdir())[:20]) or "nothing"
    raise ValueError(f"{path}: no tokenizer; expected one of {expected}; the folder has {content}")


def read_declared_type(path: Path, tokenizer_config: TokenizerFileConfig) -> str | None:
    """Return the tokenizer class, or else the model type, that the folder declares."""
    model_path = path / "config.json"
    model_values = read_tokenizer_json_object(model_path) if model_path.exists() else {}
    model_config = TokenizerFileConfig(model_values, model_path)
    for name in (
        tokenizer_config.get_str("tokenizer_class"),
        model_config.get_str("tokenizer_class"),
        model_config.get_str("model_type"),
    ):
        if name and name not in GENERIC_TOKENIZER_CLASSES:
            return name.removesuffix("Fast")
    return None


def read_tokenizer_json(folder: TokenizerFolder, path: Path) -> TokenizerParts:
    """Read tokenizer.json, the format of the `tokenizers` library."""
    data = read_tokenizer_json_object(path)
    config = folder.config
    model = data.get("model")
    added_tokens = data.get("added_tokens")
    if isinstance(model, dict) and isinstance(model.get("vocab"), dict):
        check_token_ids(model["vocab"], path)
    check_patterns(data, path)
    with reraise_as_value_error(path):
        tokenizer = Tokenizer.from_str(read_utf8_text(path))
    for token in added_tokens if isinstance(added_tokens, list) else []:
        token_id = tokenizer.token_to_id(token["content"])
        if token_id != token["id"]:
            raise ValueError(
                f"{path}: {shorten(token['content'])} has id {token_id}, expected {token['id']}"
            )
    declared = [token for role in SPECIAL_TOKEN_ROLES if (token := config.get_special_token(role))]
    declared += config.get_extra_special_tokens()
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    tokenizer.add_tokens([token for token in declared if token.content not in known])
    family = None  # a generic class has no family, regardless of the model type
    if config.get_str("tokenizer_class") not in GENERIC_TOKENIZER_CLASSES:
        family = TOKENIZER_FAMILIES.get(folder.family_name or "")
    detected = detect.detect_special_tokens(tokenizer, config)
    declared_or_detected = family.get_special_tokens(config) if family else detected
    special_tokens = SpecialTokens(
        {
            role: name
            for role, name in declared_or_detected.items()
            if tokenizer.token_to_id(name) is not None
        }
    )
    backend = RustBackend(
        tokenizer,
        special_tokens,
        find_languages(family, tokenizer, config),
        clean_up_tokenization_spaces=config.clean_up_tokenization_spaces,
    )
    files = folder.read_files(*SENTENCEPIECE_FILES)
    return finalize_tokenizer_parts(folder, backend, family, special_tokens, files)


def read_bert_tokenizer(folder: TokenizerFolder, path: Path) -> TokenizerParts:
    family = TOKENIZER_FAMILIES[folder.choose_family(("bert", "distilbert"), "bert")]
    return build_tokenizer_parts(
        folder,
        path,
        family,
        lambda special_tokens: pipelines.build_bert_pipeline(
            read_vocab_txt(path), special_tokens, folder.config
        ),
    )


def read_bpe_tokenizer(folder: TokenizerFolder, vocabulary: Path, merges: Path) -> TokenizerParts:
    bpe = BpeVocabulary(read_vocab_json(vocabulary), read_merges(merges))
    name = folder.choose_family((*BPE_PIPELINES, "ctrl"), detect.detect_bpe_family(bpe.vocabulary))
    family = TOKENIZER_FAMILIES[name]
    if name != "ctrl":
        return build_tokenizer_parts(
            folder,
            vocabulary,
            family,
            lambda special_tokens: BPE_PIPELINES[name](bpe, special_tokens, folder.config),
        )
    special_tokens = family.get_special_tokens(folder.config)
    with reraise_as_value_error(vocabulary):
        backend = CtrlBackend.build(
            folder.extend_vocabulary(bpe.vocabulary),
            bpe.merges,
            special_tokens["unk"],
            collect_added_tokens(folder, special_tokens),
            folder.config.clean_up_tokenization_spaces,
        )
    files = folder.read_files(vocabulary.name, merges.name, ADDED_TOKENS_FILE)
    return finalize_tokenizer_parts(folder, backend, family, special_tokens, files)


def read_openai_clip_tokenizer(folder: TokenizerFolder, path: Path) -> TokenizerParts:
    family = TOKENIZER_FAMILIES[folder.choose_family(("clip",), "clip")]
    bpe = read_openai_clip_bpe(path)
    return build_tokenizer_parts(
        folder,
        path,
        family,
        lambda special_tokens: pipelines.build_clip_pipeline(bpe, special_tokens, folder.config),
    )


def read_sentencepiece_tokenizer(folder: TokenizerFolder, path: Path) -> TokenizerParts:
    model = sentencepiece_model.parse_sentencepiece_model(read_bytes(path), path)
    config = folder.config
    default = detect.detect_sentencepiece_family(model, path.name)
    name = folder.choose_family(SENTENCEPIECE_PIPELINES, default)
    model_type = (
        sentencepiece_model.BPE_MODEL if name == "llama" else sentencepiece_model.UNIGRAM_MODEL
    )
    if model.model_type != model_type:
        raise ValueError(
            f"{path}: a SentencePiece model of type {model.model_type},"
            f" expected {model_type} for {name}"
        )
    extra_tokens = [
        AddedToken(
            piece.piece, normalized=False, special=piece.type == sentencepiece_model.CONTROL_PIECE
        )
        for piece in model.get_special_pieces()
    ]
    if name == "t5":
        extra_tokens += [
            AddedToken(token, special=True) for token in pipelines.list_sentinel_tokens(config)
        ]
    return build_tokenizer_parts(
        folder,
        path,
        TOKENIZER_FAMILIES[name],
        lambda special_tokens: SENTENCEPIECE_PIPELINES[name](model, special_tokens, config),
        extra_tokens,
    )


def read_marian_tokenizer(
    folder: TokenizerFolder, source: Path, target: Path, vocabulary: Path
) -> TokenizerParts:
    family = TOKENIZER_FAMILIES[folder.choose_family(("marian",), "marian")]
    special_tokens = family.get_special_tokens(folder.config)
    vocabulary_paths = [vocabulary]  # of the source and, if it is separate, of the target
    if folder.config.get_bool("separate_vocabs", False):
        vocabulary_paths.append(folder.path / "target_vocab.json")
    vocabulary_names = [path.name for path in vocabulary_paths]
    files = folder.read_files(source.name, target.name, ADDED_TOKENS_FILE, *vocabulary_names)
    for path in (source, target):
        sentencepiece_model.parse_sentencepiece_model(files[path.name], path)  # raises if damaged
    vocabularies = [folder.extend_vocabulary(read_vocab_json(path)) for path in vocabulary_paths]
    with reraise_as_value_error(vocabulary):
        added_tokens = {
            token.content: token.special for token in collect_added_tokens(folder, special_tokens)
        }
        models = [files[source.name], files[target.name]]
        backend = MarianBackend.build(
            models,
            vocabularies,
            added_tokens,
            special_tokens,
            add_source_eos=folder.config.get_bool("add_source_eos", True),
            clean_up_tokenization_spaces=folder.config.clean_up_tokenization_spaces,
        )
    return finalize_tokenizer_parts(folder, backend, family, special_tokens, files)


def read_fsmt_tokenizer(
    folder: TokenizerFolder, source: Path, target: Path, merges: Path | None = None
) -> TokenizerParts:
    """Read the vocabularies of both sides; without merges, the words of a text are tokens.

    With merges, texts are tokenized as by Moses, unless `moses_tokenization` is false."""
    family = TOKENIZER_FAMILIES[folder.choose_family(("fsmt",), "fsmt")]
    special_tokens = family.get_special_tokens(folder.config)
    names = [*special_tokens.values()]
    vocabularies = [
        {
            from_fsmt_token(token, names): token_id
            for token, token_id in read_vocab_json(path).items()
        }
        for path in (source, target)
    ]
    for path, vocabulary in zip((source, target), vocabularies, strict=True):
        if missing := [name for name in names if name not in vocabulary]:
            raise ValueError(f"{path}: no {', '.join(missing)}, expected the special tokens")
    with reraise_as_value_error(source):
        languages = (folder.config.get_str_list("langs") or ["en", "en"])[:2]
        uses_moses = merges is not None and folder.config.get_bool("moses_tokenization", True)
        backend = FsmtBackend.build(
            vocabularies,
            None if merges is None else read_merges(merges),
            special_tokens,
            moses_languages=(languages[0], languages[-1]) if uses_moses else None,
            add_source_eos=folder.config.get_bool("add_source_eos", True),
        )
    files = folder.read_files(source.name, target.name, "merges.txt")
    return finalize_tokenizer_parts(folder, backend, family, special_tokens, files)


def collect_added_tokens(
    folder: TokenizerFolder, special_tokens: SpecialTokens
) -> list[AddedToken]:
    """Return the tokens that are matched before the text is split, each once."""
    config = folder.config
    role_tokens = [
        config.get_special_token(role) or AddedToken(name, special=True)
        for role, name in special_tokens.items()
    ]
    unique_tokens: dict[str, AddedToken] = {}
    for token in [
        *config.get_added_tokens(folder.path).values(),
        *role_tokens,
        *config.get_extra_special_tokens(),
    ]:
        unique_tokens.setdefault(token.content, token)
    return list(unique_tokens.values())


def build_tokenizer_parts(
    folder: TokenizerFolder,
    path: Path,
    family: TokenizerFamily,
    build_pipeline: Callable[[SpecialTokens], Tokenizer],
    extra_tokens: Iterable[AddedToken] = (),
) -> TokenizerParts:
    """Build the tokenizer of a family with the pipeline of its vocabulary."""
    special_tokens = family.get_special_tokens(folder.config)
    with reraise_as_value_error(path):
        backend = assemble_backend(
            family,
            build_pipeline(special_tokens),
            folder.config,
            folder.config.get_added_tokens(folder.path),
            extra_tokens,
        )
    files = folder.read_files(path.name) if path.name in SENTENCEPIECE_FILES else {}
    return finalize_tokenizer_parts(folder, backend, family, special_tokens, files)


def finalize_tokenizer_parts(
    folder: TokenizerFolder,
    backend: TokenizerBackend,
    family: TokenizerFamily | None,
    special_tokens: SpecialTokens,
    files: dict[str, bytes],
) -> TokenizerParts:
    """Add the defaults of the family to the config; a backend that cannot encode is an error."""
    with reraise_as_value_error(folder.path):
        for language in (None, *[*backend.languages][:1]):
            backend.encode(
                [("", None), ("", "")], add_special_tokens=True, is_target=False, language=language
            )
        if isinstance(backend, RustBackend) and backend.tokenizer.normalizer is not None:
            backend.tokenizer.normalizer.normalize_str("A first téxt.")
    defaults: dict[str, object] = {
        "tokenizer_class": family.tokenizer_class if family else "PreTrainedTokenizerFast"
    }
    defaults |= {f"{role}_token": name for role, name in special_tokens.items()}
    if family and family.padding_side != "right":
        defaults["padding_side"] = family.padding_side
    if family and family.has_token_types:
        defaults["model_input_names"] = MODEL_INPUT_NAMES_WITH_TYPES
    if family and family.model_max_length:
        defaults["model_max_length"] = family.model_max_length
    config = replace(folder.config, values=defaults | folder.config.values)
    return TokenizerParts(backend, config, files)


TOKENIZER_FORMATS: dict[tuple[str, ...], Callable[..., TokenizerParts]] = {
    (TOKENIZER_FILE,): read_tokenizer_json,
    ("source.spm", "target.spm", "vocab.json"): read_marian_tokenizer,
    ("vocab-src.json", "vocab-tgt.json", "merges.txt"): read_fsmt_tokenizer,
    ("vocab-src.json", "vocab-tgt.json"): read_fsmt_tokenizer,
    ("vocab.txt",): read_bert_tokenizer,
    ("vocab.json", "merges.txt"): read_bpe_tokenizer,
    ("encoder.json", "vocab.bpe"): read_bpe_tokenizer,
    ("bpe_simple_vocab_16e6.txt.gz",): read_openai_clip_tokenizer,
    ("spiece.model",): read_sentencepiece_tokenizer,
    ("sentencepiece.bpe.model",): read_sentencepiece_tokenizer,
    ("tokenizer.model",): read_sentencepiece_tokenizer,
}
