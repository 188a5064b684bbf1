"""Small tokenizers of every type, trained on a few sentences. Does not depend on models."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import sentencepiece
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

ENGLISH = """
Anna lives in a small house near the harbour of Lindau.
Every morning the old fisherman rows his boat across the quiet lake.
The ferry to Bregenz leaves at nine and comes back before noon.
Peter Brown bought three red apples and a loaf of bread at the market.
Marie and Tom are waiting for the train to Zurich.
The library closes early on Fridays, but the museum stays open until six.
A lighthouse stands at the end of the pier; its lamp was lit in 1856.
Why does the water look green in spring?
It rained all week, so the children built a castle out of paper.
Nobody knew who had painted the great wooden door.
The baker's dog sleeps under the table while the bread is baking.
In winter the mountains are white and the harbour is almost empty.
Clara Schmidt plays the violin in the orchestra of Geneva.
He asked a simple question and waited for an answer.
The new bridge is longer than the old one and much lighter.
Two engineers measured the depth of the lake and wrote a report.
""".strip().split("\n")
GERMAN = """
Anna wohnt in einem kleinen Haus am Hafen von Lindau.
Jeden Morgen rudert der alte Fischer sein Boot über den stillen See.
Die Fähre nach Bregenz fährt um neun und kommt vor Mittag zurück.
Marie und Tom warten auf den Zug nach Zürich.
Warum sieht das Wasser im Frühling so grün aus?
Es hat die ganze Woche geregnet, also bauten die Kinder ein Schloss aus Papier.
Niemand wusste, wer die große Tür aus Holz gemalt hatte.
Der Hund des Bäckers schläft unter dem Tisch.
Im Winter sind die Berge weiß, und der Hafen ist fast leer.
Die neue Brücke ist länger als die alte und viel leichter.
""".strip().split("\n")

Make: TypeAlias = Callable[
    [Any, Path], Any
]  # of the transformers module and a folder for what is trained


def letters(texts: list[str]) -> list[str]:
    """Return all letters, sorted. Given as the initial alphabet, they make the ids deterministic."""
    return sorted({letter for text in texts for letter in text if not letter.isspace()})


def wordpiece(lower: bool) -> Make:
    """Return a WordPiece tokenizer of BERT."""

    def make(transformers: Any, folder: Path) -> Any:
        rules, texts = normalizers.BertNormalizer(lowercase=lower), ENGLISH + GERMAN
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        marked = [
            f"##{letter}" for letter in letters([rules.normalize_str(text) for text in texts])
        ]
        trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        trained.normalizer, trained.pre_tokenizer = rules, pre_tokenizers.BertPreTokenizer()
        trained.train_from_iterator(
            texts,
            trainers.WordPieceTrainer(
                vocab_size=200, show_progress=False, special_tokens=special + marked
            ),
        )
        (file,) = trained.model.save(str(folder))
        return transformers.BertTokenizerFast(file, do_lower_case=lower, model_max_length=64)

    return make


def pairs_of_bytes(name: str) -> Make:
    """Return a byte-level BPE tokenizer of RoBERTa or BART, given the name of its class."""

    def make(transformers: Any, folder: Path) -> Any:
        trained = Tokenizer(models.BPE())
        trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=360, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        )  # fmt: skip
        trained.train_from_iterator(ENGLISH + GERMAN, trainer)
        return getattr(transformers, name)(*trained.model.save(str(folder)), model_max_length=64)

    return make


def pieces(texts: list[str], size: int, file: Path, **ids: Any) -> Path:
    """Train a SentencePiece model without normalization rules, which would take 240 kB."""
    held = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=held, vocab_size=size, model_type="unigram",
        normalization_rule_name="identity", character_coverage=1.0, num_threads=1, minloglevel=2, **ids,
    )  # fmt: skip
    file.write_bytes(held.getvalue())
    return file


def t5(transformers: Any, folder: Path) -> Any:
    file = pieces(
        ENGLISH + GERMAN, 150, folder / "spiece.model", pad_id=0, eos_id=1, unk_id=2, bos_id=-1
    )
    return transformers.T5TokenizerFast(
        str(file), extra_ids=4, model_max_length=64, add_prefix_space=True
    )


def mbart(transformers: Any, folder: Path) -> Any:
    file = pieces(ENGLISH + GERMAN, 150, folder / "sentencepiece.bpe.model")
    return transformers.MBartTokenizerFast(
        str(file), src_lang="en_XX", tgt_lang="de_DE", model_max_length=64
    )


def marian(transformers: Any, folder: Path) -> Any:
    """Return a Marian tokenizer: two SentencePiece models with a shared vocabulary."""
    files = [
        pieces(ENGLISH, 110, folder / "source.spm"),
        pieces(GERMAN, 100, folder / "target.spm"),
    ]
    words = ["</s>", "<unk>"]
    for file in files:
        model = sentencepiece.SentencePieceProcessor(model_file=str(file))
        words += [word for n in range(3, len(model)) if (word := model.id_to_piece(n)) not in words]
    numbers = {word: number for number, word in enumerate([*words, "<pad>"])}
    vocabulary = folder / "vocab.json"
    vocabulary.write_text(json.dumps(numbers, ensure_ascii=False), encoding="utf-8")
    return transformers.MarianTokenizer(*map(str, [*files, vocabulary]), model_max_length=64)


def clip(transformers: Any, folder: Path) -> Any:
    """Return a CLIP tokenizer: BPE with an end-of-word marker; the two special tokens come last."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Lowercase()
    trained.pre_tokenizer = pre_tokenizers.Whitespace()
    marked = [f"{letter}</w>" for letter in letters([text.lower() for text in ENGLISH])]
    trainer = trainers.BpeTrainer(
        vocab_size=160, show_progress=False, end_of_word_suffix="</w>", special_tokens=marked
    )
    trained.train_from_iterator(ENGLISH, trainer)
    vocabulary, merges = trained.model.save(str(folder))
    numbers = json.loads(Path(vocabulary).read_text(encoding="utf-8"))
    numbers |= {"<|startoftext|>": len(numbers), "<|endoftext|>": len(numbers) + 1}
    Path(vocabulary).write_text(json.dumps(numbers), encoding="utf-8")
    return transformers.CLIPTokenizerFast(vocabulary, merges, model_max_length=32)
