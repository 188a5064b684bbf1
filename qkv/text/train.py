"""Train: a vocabulary from texts, the same to the byte each time. Knows nothing of published models."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from sentencepiece import SentencePieceTrainer
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from qkv.text import sentencepiece_model
from qkv.text.backend import check_text
from qkv.text.config import CONFIG, ROLES, Names, Settings
from qkv.text.families import BERT, T5, XLNET
from qkv.text.files import one_line
from qkv.text.pipelines import unigram
from qkv.text.rust_backend import Languages, Rust, template

ALPHABET = 1000  # so many characters, the most frequent, are tokens of their own; rarer ones are unknown
# A mark of punctuation or a symbol, with the space before it; but not the apostrophe inside a word.
MARK = r"▁?(?:(?!(?<=\p{L})['’](?=\p{L}))\p{P}|(?!▁)\p{S})"
MOST = 10**9  # tokens
FIRST = ("pad", "unk", "bos", "eos", "cls", "sep", "mask")  # roles in the order of their ids

PLAIN = ("$A:0", "$A:0 $B:1")
ROBERTA = ("{bos}:0 $A:0 {eos}:0", "{bos}:0 $A:0 {eos}:0 {eos}:0 $B:0 {eos}:0")
LLAMA = ("{bos}:0 $A:0", "{bos}:0 $A:0 {bos}:1 $B:1")


@dataclass(frozen=True)
class Purpose:
    """The special tokens that a kind of model needs, and what stands around a text."""

    tokens: str  # bos eos unk sep pad cls mask; -: none
    around: tuple[str, str] = PLAIN
    side: str = "right"


# fmt: off
PURPOSES = {
    "bert":    Purpose("-   -    [UNK] [SEP] [PAD] [CLS] [MASK]", BERT),
    "roberta": Purpose("<s> </s> <unk> </s>  <pad> <s>   <mask>", ROBERTA),
    "gpt":     Purpose("<|endoftext|> <|endoftext|> <unk> - - - -"),
    "llama":   Purpose("<s> </s> <unk> -     -     -     -",      LLAMA, "left"),
    "seq2seq": Purpose("<s> </s> <unk> -     <pad> -     -",      T5),
    "bos-eos": Purpose("<s> </s> <unk> -     <pad> -     -",      ROBERTA),
    "t5":      Purpose("-   </s> <unk> -     <pad> -     -",      T5),
    "xlnet":   Purpose("<s> </s> <unk> <sep> <pad> <cls> <mask>", XLNET, "left"),
    "plain":   Purpose("-   -    <unk> -     <pad> -     -"),
}
# fmt: on


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to learn from, how many tokens, and those that come first."""

    texts: Iterable[str]
    size: int  # of the vocabulary, special tokens counted
    special: list[str]
    unk: str
    lower: bool

    @property
    def rules(self) -> list[normalizers.Normalizer]:
        return [normalizers.NFC()] + [normalizers.Lowercase()] * self.lower


def train(
    source: Iterable[str | Path] | Path,
    *,
    kind: str,
    vocab: int,
    purpose: str,
    lower: bool,
    sentinels: int,
    codes: Sequence[str],
    limit: int | None,
) -> tuple[Rust, Settings]:
    """A tokenizer of this kind for this purpose; special tokens and codes first, sentinels last."""
    for name, value, known in (("kind", kind, KINDS), ("purpose", purpose, PURPOSES)):
        if value not in known:
            raise ValueError(f"{name} {value!r}: expected one of {', '.join(known)}")
    wanted = PURPOSES[purpose]
    usual = zip(ROLES, wanted.tokens.split(), strict=True)
    names = Names({role: name for role, name in usual if name != "-"})
    for code in codes:
        if not code or code.startswith("$") or ":" in code:
            raise ValueError(f"code {code!r}: expected a name without : or a leading $")
    unk = names.pop("unk") if kind == "byte" else names["unk"]  # every text is made of bytes
    special = list(dict.fromkeys([*(names[role] for role in FIRST if role in names), *codes]))
    if sentinels < 0 or not sentinels < vocab <= MOST:
        raise ValueError(
            f"vocab {vocab}, sentinels {sentinels}: expected more tokens than sentinels, at most {MOST:,}"
        )
    extra = [f"<extra_id_{place}>" for place in reversed(range(sentinels))]
    size = vocab - len(extra)
    rust = KINDS[kind](Job(texts=read(source), size=size, special=special, unk=unk, lower=lower))
    if (least := rust.get_vocab_size()) > size:
        raise ValueError(
            f"vocab {vocab}: expected at least {least + len(extra)}, for special tokens and letters"
        )
    rust.add_tokens([AddedToken(token, special=True) for token in [*special, *extra]])
    rust.post_processor = template(rust, wanted.around, names)
    values: dict[str, object] = {f"{role}_token": name for role, name in names.items()}
    values |= {"tokenizer_class": "PreTrainedTokenizerFast", "padding_side": wanted.side}
    if limit is not None:
        values["model_max_length"] = limit
    if codes or extra:
        values["extra_special_tokens"] = [*codes, *reversed(extra)]
    spoken = None
    if codes:
        around = (f"{{language}}:0 {wanted.around[0]}", f"{{language}}:0 {wanted.around[1]}")
        spoken = Languages(codes={code: special.index(code) for code in codes}, around=around)
        values |= {"language_codes": list(codes), "language_template": list(around)}
    return Rust(rust, names, spoken), Settings(values, Path(CONFIG))


def read(source: Iterable[str | Path] | Path) -> Iterator[str]:
    """Texts as they are, and the lines of files with their ends."""
    if isinstance(source, str):
        raise ValueError(f"{source[:80]!r}, expected a list of texts, or Path(...) for the lines of a file")
    found = _texts([source] if isinstance(source, Path) else source)
    first = next(found, None)
    if first is None:
        raise ValueError("no text to learn from")
    return chain([first], found)


def _texts(source: Iterable[str | Path]) -> Iterator[str]:
    for each in source:
        if isinstance(each, Path):
            try:
                with each.open(encoding="utf-8", newline="") as lines:
                    yield from lines
            except OSError as error:
                raise ValueError(f"{each}: {error.strerror}; expected a file of text") from None
            except UnicodeDecodeError:
                raise ValueError(f"{each}: not UTF-8 text") from None
        else:
            check_text(each)
            yield each


def char(job: Job) -> Tokenizer:
    """Every character a token; a BPE that merges nothing."""
    lower = normalizers.Lowercase()
    texts = map(lower.normalize_str, job.texts) if job.lower else job.texts
    letters = _frequent(Counter(chain.from_iterable(texts)), max(job.size - len(job.special), 1))
    tokens = {token: number for number, token in enumerate([*job.special, *letters])}
    rust = Tokenizer(models.BPE(tokens, [], unk_token=job.unk))
    if job.lower:
        rust.normalizer = lower
    rust.decoder = decoders.Fuse()
    return rust


def word(job: Job) -> Tokenizer:
    """Words and punctuation marks."""
    rust = Tokenizer(models.WordLevel({}, unk_token=job.unk))
    rust.normalizer = normalizers.Sequence(job.rules)
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rust.decoder = decoders.WordPiece()
    trainer = trainers.WordLevelTrainer(vocab_size=job.size, special_tokens=job.special, show_progress=False)
    rust.train_from_iterator(job.texts, trainer)
    return rust


def wordpiece(job: Job) -> Tokenizer:
    """BERT's: pieces of words, those inside a word marked by ##."""
    rust = Tokenizer(models.WordPiece({}, unk_token=job.unk))
    rust.normalizer = normalizers.BertNormalizer(lowercase=job.lower)
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rust.decoder = decoders.WordPiece(prefix="##")
    texts = _common(rust.normalizer, job.texts)
    words = {word for text in texts for word, _ in rust.pre_tokenizer.pre_tokenize_str(text)}
    starts = sorted({word[0] for word in words})
    insides = sorted({f"##{letter}" for word in words for letter in word[1:]})
    # The trainer numbers letters in no fixed order, and breaks ties by number: so they are numbered here.
    seeds = [*job.special, *starts, *insides]
    trainer = trainers.WordPieceTrainer(vocab_size=job.size, special_tokens=seeds, show_progress=False)
    rust.train_from_iterator(texts, trainer)
    bare = Tokenizer(models.WordPiece(rust.get_vocab(with_added_tokens=False), unk_token=job.unk))
    bare.normalizer, bare.pre_tokenizer, bare.decoder = rust.normalizer, rust.pre_tokenizer, rust.decoder
    return bare


def bpe(job: Job) -> Tokenizer:
    """Merges of characters; a space is part of the word after it, and punctuation of none."""
    rust = Tokenizer(models.BPE(unk_token=job.unk))
    rust.normalizer = normalizers.Sequence(job.rules)
    rust.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("\n", "isolated"),
            pre_tokenizers.Metaspace("▁", "first"),
            pre_tokenizers.Split(Regex(MARK), "isolated"),
        ]
    )
    rust.decoder = decoders.Metaspace("▁", "first")
    trainer = trainers.BpeTrainer(vocab_size=job.size, special_tokens=job.special, show_progress=False)
    rust.train_from_iterator(_common(rust.normalizer, job.texts), trainer)
    return rust


def byte(job: Job) -> Tokenizer:
    """GPT-2's: merges of bytes, so that no text is unknown."""
    rust = Tokenizer(models.BPE())
    if job.lower:
        rust.normalizer = normalizers.Lowercase()
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=job.size,
        special_tokens=job.special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rust.train_from_iterator(job.texts, trainer)
    return rust


def likely(job: Job) -> Tokenizer:
    """A unigram model: the likeliest pieces; learned by SentencePiece, which is the same each time."""
    rules = [normalizers.NFKC(), *job.rules[1:]]
    texts = _common(normalizers.Sequence(rules), job.texts)
    model = io.BytesIO()
    with one_line(f"vocab {job.size}"):
        SentencePieceTrainer.train(
            sentence_iterator=(" ".join(text.split()) for text in texts), model_writer=model,
            vocab_size=job.size - len(job.special) + 1, hard_vocab_limit=False, character_coverage=1.0,
            normalization_rule_name="identity", bos_id=-1, eos_id=-1, pad_id=-1, unk_id=0,
            max_sentence_length=2**30, minloglevel=3,
        )  # fmt: skip
    pieces = sentencepiece_model.read(model.getvalue(), Path("pieces")).pieces[1:]
    # Fewer digits than reading JSON loses, so that a saved tokenizer is the same one.
    scores = [(piece.text, round(piece.score, 6)) for piece in pieces]
    special = [(token, 0.0) for token in job.special]
    return unigram(special + scores, job.special.index(job.unk), rules)


KINDS: dict[str, Callable[[Job], Tokenizer]] = {
    "char": char, "word": word, "wordpiece": wordpiece, "bpe": bpe, "byte": byte, "unigram": likely,
}  # fmt: skip


def _frequent(counts: Counter[str], most: int) -> list[str]:
    """The most frequent, in order."""
    return sorted(sorted(counts, key=lambda letter: (-counts[letter], letter))[:most])


def _common(rule: normalizers.Normalizer, texts: Iterable[str]) -> list[str]:
    """Normal texts in which rare characters are spaces."""
    normal = [rule.normalize_str(text) for text in texts]
    counts = Counter(chain.from_iterable(normal))
    if len(counts) <= ALPHABET:
        return normal
    rare = str.maketrans(dict.fromkeys(counts.keys() - set(_frequent(counts, ALPHABET)), " "))
    return [text.translate(rare) for text in normal]
