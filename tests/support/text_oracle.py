"""Reference for the tokenizer tests: small tokenizer files of every family, and transformers' classes.

Builds files in each published format, and texts that are difficult to tokenize."""

import io
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import sentencepiece
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers.convert_slow_tokenizer import SentencePieceExtractor

from qkv.text import sentencepiece_model

Json = dict[str, object]

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on the other side of the hill.",
    "Run, rabbit run. Dig that hole, forget the sun.",
    "Don't say it isn't so: we've been there, they're here, I'm sure, she'd know, he'll see.",
    'In 1984 there were 3,141 of them (or 2.718?), "quite" a lot; e-mail me at a@b.org!',
    "Ein Käfer läuft über die Straße, où êtes-vous, señor? Ærø, façade, naïve.",
    "Привет, мир. 你好，世界。 こんにちは世界 مرحبا بالعالم שלום עולם",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z",
    "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z 0 1 2 3 4 5 6 7 8 9",
    "! \" # $ % & ' ( ) * + , - . / : ; < = > ? @ [ ] ^ _ ` { | } ~",
    "one two three four five six seven eight nine ten, there and then, other and another, the theory of rest",
] * 3

DIFFICULT_TEXTS = [
    "Run, rabbit run. Dig that hole, forget the sun\n.",
    "",
    " ",
    "     ",
    "\t",
    "\n\n\n",
    " leading, trailing ",
    "two  spaces   three\ttabs\r\nlines\n\nend\n",
    "no\u00a0break em\u2003space zero\u200bwidth line\u2028sep next\u0085line ideo\u3000graphic",
    "Käfer über Straße ÀÉÎÕÜ ßẞ İı ŐŰ",
    "decomposed: Ka\u0308fer e\u0301 n\u0303 \u1112\u1161\u11ab",
    "\u0301",
    "\u0301\u0302\u0303 alone",
    "x\u0301\u0302\u0303\u0304\u0305\u0306z",
    "你好，世界。日本語テキスト 한국어 繁體字 𠀀𠀁",
    "ｆｕｌｌ　ｗｉｄｔｈ １２３ ﬁ ﬂ ½ ² ① ㎏ ℌ 𝒜 ＜ｓ＞",
    "😀 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 👍🏽 ❤️ #️⃣",
    "a\u0000b \u0000 \u0001\u0002\u001b\u007f\u009f\ufeffx\ufffd\uffff\U0010ffff",
    "\x1c\x1d\x1e\x1f \x0b\x0c",
    "مرحبا hello שלום world \u202eright to left\u202c 123",
    "हिन्दी தமிழ் ไทย ខ្មែរ မြန်မာ",
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899",
    "1" * 300,
    "9,876,543,210 -1e-10 0x1F 1/2 50% $4.99 9, 8.",
    "x" * 10_000,
    "supercalifragilistic" * 500,
    "ab" * 50 + " " + "你" * 200,
    "don't can't we've I'm you're he'll she'd it's 'tis ''quoted'' ``quoted`` \"q\" “smart” ‘q’",
    "[CLS] [SEP] [MASK] [UNK] [PAD] a[MASK]b [cls]",
    "<s> </s> <unk> <pad> <mask> a<mask>b <mask>  <mask>",
    "<|endoftext|> <|startoftext|> a<|endoftext|>b <|ENDOFTEXT|>",
    "<extra_id_0> <extra_id_99>x<extra_id_1> <cls> <sep> <eop> <eod>",
    ">>fra<< Hello >>xx<< there",
    ">>deu<<Hello </s>>>fra<<there",
    "en_XX de_DE Hello en_XX",
    "@@ a@@ @@b </w> a</w> ## ##a ▁ ▁a a▁b Ġ Ċ",
    "https://www.example.org/a/b?c=d&e=f#g user@host.com C:\\path\\to",
    "def f(x):\n\treturn [i**2 for i in range(x)]  # code\n",
    "CamelCase snake_case UPPER lower MiXeD",
    "...!!!???---___***~~~",
    "one two three four five six seven eight nine ten " * 20,
]
TEXT_PAIRS = [
    ("a question?", "An answer, Käfer."),
    ("", "only the second"),
    ("[SEP] </s>", "<mask> two"),
    ("日本", "  spaces  "),
]


def write_file(folder: Path, name: str, value: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    (folder / name).write_text(text, encoding="utf-8")


def train_vocabulary(
    model: models.Model, pre_tokenizer: pre_tokenizers.PreTokenizer, trainer: trainers.Trainer
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.train_from_iterator(CORPUS, trainer)
    trained = json.loads(tokenizer.to_str())["model"]
    return trained["vocab"], [(a, b) for a, b in trained.get("merges", [])]


def write_byte_level_bpe(
    folder: Path, special: Sequence[str], *, suffix: str = "", last: bool = False
) -> None:
    """Write vocab.json and merges.txt of byte-level BPE, special tokens first or last."""
    options: dict[str, Any] = {"end_of_word_suffix": suffix} if suffix else {}
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        **options,
    )
    vocabulary, merges = train_vocabulary(
        models.BPE(), pre_tokenizers.ByteLevel(add_prefix_space=False), trainer
    )
    tokens = [*vocabulary, *special] if last else [*special, *vocabulary]
    if suffix:
        tokens += [token + suffix for token in pre_tokenizers.ByteLevel.alphabet()]
    write_bpe(folder, tokens, merges)


def write_bpe(folder: Path, tokens: Sequence[str], merges: Sequence[tuple[str, str]]) -> None:
    write_file(
        folder,
        "vocab.json",
        {token: token_id for token_id, token in enumerate(dict.fromkeys(tokens))},
    )
    write_file(folder, "merges.txt", "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))


def write_bert(folder: Path, **config: object) -> None:
    trainer = trainers.WordPieceTrainer(
        vocab_size=600,
        special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
        show_progress=False,
    )
    vocabulary, _ = train_vocabulary(
        models.WordPiece(unk_token="[UNK]"), pre_tokenizers.BertPreTokenizer(), trainer
    )
    write_file(folder, "vocab.txt", "".join(f"{token}\n" for token in vocabulary))
    write_file(folder, "config.json", {"model_type": "bert"})
    if config:
        write_file(folder, "tokenizer_config.json", config)


def write_gpt2(folder: Path, **config: object) -> None:
    write_byte_level_bpe(folder, ["<|endoftext|>"], last=True)
    write_file(folder, "config.json", {"model_type": "gpt2"})
    write_file(folder, "tokenizer_config.json", {"model_max_length": 1024, **config})


def write_roberta(folder: Path, kind: str = "roberta", **config: object) -> None:
    write_byte_level_bpe(folder, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    write_file(folder, "config.json", {"model_type": kind})
    if config:
        write_file(folder, "tokenizer_config.json", config)


def write_gpt(folder: Path) -> None:
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    vocabulary, merges = train_vocabulary(
        models.BPE(unk_token="<unk>"), pre_tokenizers.BertPreTokenizer(), trainer
    )
    write_bpe(folder, [*vocabulary], merges)
    write_file(folder, "config.json", {"model_type": "openai-gpt"})


def write_clip(folder: Path) -> None:
    write_byte_level_bpe(folder, ["<|startoftext|>", "<|endoftext|>"], suffix="</w>", last=True)
    write_file(folder, "config.json", {"model_type": "clip"})


def write_ctrl(folder: Path) -> None:
    """Write a vocabulary as fastBPE does: pieces that end no word have no id."""
    trainer = trainers.BpeTrainer(vocab_size=500, end_of_word_suffix="</w>", show_progress=False)
    vocabulary, merges = train_vocabulary(models.BPE(), pre_tokenizers.WhitespaceSplit(), trainer)
    pieces_with_id = [piece for token_id, piece in enumerate(vocabulary) if token_id % 7]
    tokens = [
        piece.removesuffix("</w>") if piece.endswith("</w>") else f"{piece}@@"
        for piece in pieces_with_id
    ]
    write_bpe(folder, [*tokens, "<unk>", "\n"], merges)
    write_file(folder, "config.json", {"model_type": "ctrl"})


def train_sentencepiece(**options: Any) -> bytes:
    model = io.BytesIO()
    defaults: dict[str, Any] = dict(
        vocab_size=250, hard_vocab_limit=False, character_coverage=0.99, minloglevel=3
    )
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, **{**defaults, **options}
    )
    return model.getvalue()


def write_albert(folder: Path, **config: object) -> None:
    control = ["[CLS]", "[SEP]", "[MASK]"]
    model = train_sentencepiece(pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols=control)
    write_file(folder, "config.json", {"model_type": "albert"})
    (folder / "spiece.model").write_bytes(model)
    if config:
        write_file(folder, "tokenizer_config.json", config)


def write_xlnet(folder: Path) -> None:
    control = ["<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
    model = train_sentencepiece(
        control_symbols=control, user_defined_symbols=[".", "(", ")", "–", "£", "€"]
    )
    write_file(folder, "config.json", {"model_type": "xlnet"})
    (folder / "spiece.model").write_bytes(model)


def write_t5(folder: Path, **config: object) -> None:
    write_file(folder, "config.json", {"model_type": "t5"})
    (folder / "spiece.model").write_bytes(
        train_sentencepiece(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    )
    if config:
        write_file(folder, "tokenizer_config.json", config)


def write_mbart(folder: Path, kind: str = "mbart", **config: object) -> None:
    write_file(folder, "config.json", {"model_type": kind})
    (folder / "sentencepiece.bpe.model").write_bytes(train_sentencepiece())
    if config:
        write_file(folder, "tokenizer_config.json", config)


def write_mbart50(folder: Path) -> None:
    write_mbart(folder, tokenizer_class="MBart50Tokenizer")


def write_llama(folder: Path) -> None:
    model = train_sentencepiece(
        model_type="bpe", byte_fallback=True, vocab_size=500, normalization_rule_name="identity",
        remove_extra_whitespaces=False,
    )  # fmt: skip
    write_file(folder, "config.json", {"model_type": "llama"})
    write_file(
        folder,
        "tokenizer_config.json",
        {"add_bos_token": True, "tokenizer_class": "LlamaTokenizer"},
    )
    (folder / "tokenizer.model").write_bytes(model)


def write_marian(folder: Path, **config: object) -> None:
    """Write two models with a shared vocabulary, in another order and without some of their pieces."""
    source, target = train_sentencepiece(vocab_size=200), train_sentencepiece(vocab_size=300)
    write_file(folder, "config.json", {"model_type": "marian"})
    (folder / "source.spm").write_bytes(source)
    (folder / "target.spm").write_bytes(target)
    all_pieces = [
        piece.piece
        for data in (source, target)
        for piece in sentencepiece_model.parse_sentencepiece_model(data, folder).pieces[3:]
    ]
    tokens = ["</s>", "<unk>", *sorted({*all_pieces})[5:], ">>fra<<", ">>deu<<", "日本", "<pad>"]
    write_file(folder, "vocab.json", {token: token_id for token_id, token in enumerate(tokens)})
    if config.get("separate_vocabs"):
        write_file(
            folder,
            "target_vocab.json",
            {
                token: token_id
                for token_id, token in enumerate(tokens[:2] + tokens[-2:1:-1] + tokens[-1:])
            },
        )
    if config:
        write_file(folder, "tokenizer_config.json", config)


def write_modernbert(folder: Path) -> None:
    """Write a byte-level tokenizer.json with BERT's template and a mask token that strips on the left."""
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(
        [
            AddedToken(token, special=True, lstrip=token == "[MASK]", normalized=False)
            for token in special
        ]
    )
    tokenizer.add_tokens(
        [AddedToken("  ", normalized=True), AddedToken("|||IP|||", normalized=True)]
    )
    ids = [(token, tokenizer.get_vocab()[token]) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=ids
    )
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(pad_token="[PAD]", pad_id=ids[0][1] + 2, length=8)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    roles = {f"{token[1:-1].lower()}_token": token for token in special}
    write_file(folder, "config.json", {"model_type": "modernbert"})
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 8192, **roles}
    write_file(folder, "tokenizer_config.json", {**config, "clean_up_tokenization_spaces": True})


# name -> (function that writes the files, class of transformers that loads them)
TOKENIZERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "bert": (write_bert, "BertTokenizer"),
    "bert-cased": (lambda f: write_bert(f, do_lower_case=False), "BertTokenizer"),
    "bert-accents": (
        lambda f: write_bert(
            f, strip_accents=False, tokenize_chinese_chars=False, clean_up_tokenization_spaces=True
        ),
        "BertTokenizer",
    ),
    "roberta": (write_roberta, "RobertaTokenizer"),
    "roberta-space": (
        lambda f: write_roberta(f, add_prefix_space=True, trim_offsets=False),
        "RobertaTokenizer",
    ),
    "bart": (lambda f: write_roberta(f, "bart"), "BartTokenizer"),
    "gpt": (write_gpt, "OpenAIGPTTokenizer"),
    "gpt2": (write_gpt2, "GPT2Tokenizer"),
    "gpt2-bos": (lambda f: write_gpt2(f, add_bos_token=True, pad_token="<pad>"), "GPT2Tokenizer"),
    "clip": (write_clip, "CLIPTokenizer"),
    "ctrl": (write_ctrl, "CTRLTokenizer"),
    "albert": (write_albert, "AlbertTokenizer"),
    "albert-cased": (
        lambda f: write_albert(f, do_lower_case=False, keep_accents=True),
        "AlbertTokenizer",
    ),
    "xlnet": (write_xlnet, "XLNetTokenizer"),
    "t5": (write_t5, "T5Tokenizer"),
    "t5-few": (lambda f: write_t5(f, extra_ids=5), "T5Tokenizer"),
    "xlm-roberta": (lambda f: write_mbart(f, "xlm-roberta"), "XLMRobertaTokenizer"),
    "xlm-roberta-joined": (
        lambda f: write_mbart(f, "xlm-roberta", add_prefix_space=False),
        "XLMRobertaTokenizer",
    ),
    "camembert": (lambda f: write_mbart(f, "camembert"), "CamembertTokenizer"),
    "mbart": (write_mbart, "MBartTokenizer"),
    "mbart-de": (lambda f: write_mbart(f, src_lang="de_DE", tgt_lang="ro_RO"), "MBartTokenizer"),
    "mbart50": (write_mbart50, "MBart50Tokenizer"),
    "llama": (write_llama, "LlamaTokenizer"),
    "marian": (write_marian, "MarianTokenizer"),
    "marian-separate": (lambda f: write_marian(f, separate_vocabs=True), "MarianTokenizer"),
    "modernbert": (write_modernbert, "PreTrainedTokenizerFast"),
}


class Extractor(SentencePieceExtractor):  # type: ignore[misc]
    """Replacement of transformers' SentencePiece reader where protobuf is missing; uses our parser.

    Another test compares our parser with SentencePiece."""

    def __init__(self, model: str) -> None:
        parsed = sentencepiece_model.parse_sentencepiece_model(
            Path(model).read_bytes(), Path(model)
        )
        pieces = [
            SimpleNamespace(piece=piece.piece, score=piece.score, type=piece.type)
            for piece in parsed.pieces
        ]
        trainer = SimpleNamespace(unk_id=parsed.unk_id, model_type=parsed.model_type)
        normalizer = SimpleNamespace(precompiled_charsmap=parsed.precompiled_charsmap)
        self.proto = SimpleNamespace(
            pieces=pieces, trainer_spec=trainer, normalizer_spec=normalizer
        )


def load_reference(kind: str, folder: Path, **options: object) -> Any:
    """Load a tokenizer with a class of transformers."""
    if find_spec("google") is None or find_spec("google.protobuf") is None:
        vars(sys.modules[SentencePieceExtractor.__module__])["SentencePieceExtractor"] = Extractor
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Marian warns about a missing sacremoses
        return getattr(transformers, kind).from_pretrained(folder, **options)
