"""Load: a tokenizer from the files that published models ship. Knows which files are whose."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from qkv.text import detect, pipelines, sentencepiece_model
from qkv.text.backend import Core
from qkv.text.config import ADDED, ROLES, Names, Settings
from qkv.text.ctrl_backend import Ctrl
from qkv.text.families import FAMILIES, Family, assemble, languages
from qkv.text.files import one_line, read_bytes, read_json, read_text
from qkv.text.marian_backend import Marian
from qkv.text.pipelines import Bpe
from qkv.text.rust_backend import Rust
from qkv.text.vocab import check_numbers, read_clip, read_lines, read_merges, read_numbers

WHOLE = "tokenizer.json"
SPM_FILES = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model")

# Whose tokenizer it is, by the class or the type of model that a folder names.
ALIASES = {
    "DistilBertTokenizer": "bert", "ElectraTokenizer": "bert", "distilbert": "bert", "electra": "bert",
    "BartTokenizer": "roberta", "bart": "roberta", "openai-gpt": "gpt", "clip_text_model": "clip",
    "switch_transformers": "t5", **{family.hf: name for name, family in FAMILIES.items()},
}  # fmt: skip
ANYONE = {"PreTrainedTokenizer", "PreTrainedTokenizerFast", "PythonBackend", "TokenizersBackend", "qkv"}

BPE = {
    "gpt2": pipelines.byte_bpe, "roberta": pipelines.byte_bpe, "gpt": pipelines.gpt, "clip": pipelines.clip,
}  # fmt: skip
SPM = {
    "albert": pipelines.albert, "xlnet": pipelines.xlnet, "t5": pipelines.t5, "mbart": pipelines.mbart,
    "mbart50": pipelines.mbart50, "llama": pipelines.llama,
}  # fmt: skip


@dataclass(frozen=True)
class Parts:
    """What a tokenizer is made of: its core, its settings, and files that are kept as they are."""

    core: Core
    settings: Settings
    files: dict[str, bytes]


@dataclass(frozen=True)
class Folder:
    """A folder, its settings, and whose tokenizer it says it holds."""

    path: Path
    settings: Settings
    said: str | None

    @property
    def name(self) -> str | None:
        return ALIASES.get(self.said, self.said) if self.said else None

    def family(self, allowed: Collection[str], guessed: str) -> str:
        """The family that the folder names, or the guess if it names none."""
        name = self.name or guessed
        if name not in allowed:
            known = ", ".join(allowed)
            raise ValueError(
                f"{self.path}: says {self.said}, but its files are of {known}; any other needs {WHOLE}"
            )
        return name

    def widen(self, vocabulary: dict[str, int]) -> dict[str, int]:
        """A vocabulary and the tokens added beside it, each with the id it was given there."""
        added = {token.content: number for number, token in self.settings.added(self.path).items()}
        return check_numbers(vocabulary | added, self.path)

    def keep(self, *names: str) -> dict[str, bytes]:
        return {name: read_bytes(self.path / name) for name in names if (self.path / name).exists()}


def load(path: Path) -> Parts:
    """Open what a folder holds; tokenizer.json wins over older files."""
    if not path.is_dir():
        raise ValueError(f"{path}: no such folder; expected one that holds a tokenizer")
    settings = Settings.read(path)
    folder = Folder(path, settings, who(path, settings))
    for names, reader in FORMATS.items():
        if all((path / name).exists() for name in names):
            return reader(folder, *(path / name for name in names))
    looked = ", ".join(" + ".join(names) for names in FORMATS)
    held = ", ".join(sorted(entry.name for entry in path.iterdir())[:20]) or "nothing"
    raise ValueError(f"{path}: no tokenizer; looked for {looked}; the folder holds {held}")


def who(path: Path, settings: Settings) -> str | None:
    """The class of tokenizer, or else the type of model, that the folder names."""
    config = path / "config.json"
    model = Settings(read_json(config) if config.exists() else {}, config)
    said = (settings.text("tokenizer_class"), model.text("tokenizer_class"), model.text("model_type"))
    names = [name.removesuffix("Fast") for name in said if name and name not in ANYONE]
    return names[0] if names else None


def read_whole(folder: Folder, path: Path) -> Parts:
    """tokenizer.json: a tokenizer of the `tokenizers` library, as it is."""
    data, settings = read_json(path), folder.settings
    model, added = data.get("model"), data.get("added_tokens")
    if isinstance(model, dict) and isinstance(model.get("vocab"), dict):
        check_numbers(model["vocab"], path)
    with one_line(path):
        rust = Tokenizer.from_str(read_text(path))
    for token in added if isinstance(added, list) else []:
        if (found := rust.token_to_id(token["content"])) != token["id"]:
            raise ValueError(f"{path}: {token['content']!r} has id {found}, expected {token['id']}")
    stated = [token for role in ROLES if (token := settings.role(role))] + settings.extras()
    known = {token.content for token in rust.get_added_tokens_decoder().values()}
    rust.add_tokens([token for token in stated if token.content not in known])
    # A tokenizer of no class is of no family, whatever model it lies beside.
    family = None if settings.text("tokenizer_class") in ANYONE else FAMILIES.get(folder.name or "")
    names = family.names(settings) if family else detect.names_of(rust, settings)
    names = Names({role: name for role, name in names.items() if rust.token_to_id(name) is not None})
    core = Rust(rust, names, languages(family, rust, settings), clean=settings.clean)
    return finish(folder, core, family, names, folder.keep(*SPM_FILES))


def read_bert(folder: Folder, path: Path) -> Parts:
    family = FAMILIES[folder.family(("bert",), "bert")]
    return build(folder, path, family, lambda names: pipelines.bert(read_lines(path), names, folder.settings))


def read_bpe(folder: Folder, vocabulary: Path, merges: Path) -> Parts:
    bpe = Bpe(read_numbers(vocabulary), read_merges(merges))
    name = folder.family((*BPE, "ctrl"), detect.bpe_family(bpe.vocabulary))
    family = FAMILIES[name]
    if name != "ctrl":
        return build(folder, vocabulary, family, lambda names: BPE[name](bpe, names, folder.settings))
    names = family.names(folder.settings)
    with one_line(vocabulary):
        numbers = folder.widen(bpe.vocabulary)
        core = Ctrl.build(numbers, bpe.merges, names["unk"], marks(folder, names))
    return finish(folder, core, family, names, folder.keep(vocabulary.name, merges.name, ADDED))


def read_openai_clip(folder: Folder, path: Path) -> Parts:
    family, bpe = FAMILIES[folder.family(("clip",), "clip")], read_clip(path)
    return build(folder, path, family, lambda names: pipelines.clip(bpe, names, folder.settings))


def read_spm(folder: Folder, path: Path) -> Parts:
    pieces, settings = sentencepiece_model.read(read_bytes(path), path), folder.settings
    name = folder.family(SPM, detect.spm_family(pieces, path.name))
    model = sentencepiece_model.BPE if name == "llama" else sentencepiece_model.UNIGRAM
    if pieces.model != model:
        raise ValueError(f"{path}: a SentencePiece model of kind {pieces.model}, expected {model} for {name}")
    marked = [
        AddedToken(piece.text, normalized=False, special=piece.kind == sentencepiece_model.CONTROL)
        for piece in pieces.marked()
    ]
    if name == "t5":
        marked += [AddedToken(token, special=True) for token in pipelines.sentinels(settings)]
    return build(folder, path, FAMILIES[name], lambda names: SPM[name](pieces, names, settings), marked)


def read_marian(folder: Folder, source: Path, target: Path, vocabulary: Path) -> Parts:
    family, other = FAMILIES[folder.family(("marian",), "marian")], folder.path / "target_vocab.json"
    names, apart = family.names(folder.settings), folder.settings.flag("separate_vocabs", False)
    files = folder.keep(source.name, target.name, vocabulary.name, ADDED, *[other.name] * apart)
    models = [
        files[path.name] for path in (source, target) if sentencepiece_model.read(files[path.name], path)
    ]
    numbers = [folder.widen(read_numbers(path)) for path in (vocabulary, *[other] * apart)]
    with one_line(vocabulary):
        tokens = {token.content: token.special for token in marks(folder, names)}
        core = Marian.build(models, numbers, tokens, names)
    return finish(folder, core, family, names, files)


def marks(folder: Folder, names: Names) -> list[AddedToken]:
    """Tokens that are matched whole: those with a role, then others."""
    roles = [folder.settings.role(role) or AddedToken(name, special=True) for role, name in names.items()]
    tokens = [*folder.settings.added(folder.path).values(), *roles, *folder.settings.extras()]
    first: dict[str, AddedToken] = {}
    for token in tokens:
        first.setdefault(token.content, token)
    return list(first.values())


def build(
    folder: Folder,
    path: Path,
    family: Family,
    pipeline: Callable[[Names], Tokenizer],
    marked: Iterable[AddedToken] = (),
) -> Parts:
    """A tokenizer of a family from the pipeline for its vocabulary."""
    names = family.names(folder.settings)
    with one_line(path):
        core = assemble(family, pipeline(names), folder.settings, folder.settings.added(folder.path), marked)
    kept = folder.keep(path.name) if path.name in SPM_FILES else {}
    return finish(folder, core, family, names, kept)


def finish(folder: Folder, core: Core, family: Family | None, names: Names, files: dict[str, bytes]) -> Parts:
    """The settings with what the files left unsaid; a core that would panic at its first text is refused."""
    with one_line(folder.path):
        for language in (None, *[*core.languages][:1]):
            core.encode([("", None), ("", "")], special=True, target=False, language=language)
        if isinstance(core, Rust) and core.rust.normalizer is not None:
            core.rust.normalizer.normalize_str("A first téxt.")
    usual: dict[str, object] = {"tokenizer_class": family.hf if family else "PreTrainedTokenizerFast"}
    usual |= {f"{role}_token": name for role, name in names.items()}
    if family and family.side != "right":
        usual["padding_side"] = family.side
    if family and family.limit:
        usual["model_max_length"] = family.limit
    settings = folder.settings
    return Parts(core, replace(settings, values=usual | settings.values), files)


FORMATS: dict[tuple[str, ...], Callable[..., Parts]] = {
    (WHOLE,): read_whole,
    ("source.spm", "target.spm", "vocab.json"): read_marian,
    ("vocab.txt",): read_bert,
    ("vocab.json", "merges.txt"): read_bpe,
    ("encoder.json", "vocab.bpe"): read_bpe,
    ("bpe_simple_vocab_16e6.txt.gz",): read_openai_clip,
    ("spiece.model",): read_spm,
    ("sentencepiece.bpe.model",): read_spm,
    ("tokenizer.model",): read_spm,
}
