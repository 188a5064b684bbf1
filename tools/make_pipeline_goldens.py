"""Write golden outputs of pipelines, from tiny random models with small tokenizers.

The reference is transformers 4.57.6: transformers 5 has no pipelines for question answering, translation,
summarization and text2text generation. This script therefore needs an environment separate from that of the
project. With Python 3.11:

    pip install torch==2.13.0
    pip install "transformers==4.57.6" sentencepiece protobuf safetensors pillow

torchvision must not be installed, because it gives other pixels. On the CPU in float32, the script
takes a minute:

    python tools/make_pipeline_goldens.py tests/goldens/pipelines

tests/goldens/pipelines/README.md describes the files. All weights are random. The script stops if a relative
change of the weights by 1e-5 changes a result."""

import argparse
import json
import sys
import tempfile
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tools.goldens import text
from tools.goldens.common import (
    perturb_weights,
    print_size,
    randomize_parameters,
    reference,
    save_cases,
    save_tensors,
)
from tools.goldens.images import PREPROCESSORS, pixels, save_images
from tools.goldens.pipelines import CASES, Case

VERSION = "4.57.6"
Args = dict[str, Any]

_BERT: Args = dict(
    hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
    max_position_embeddings=66, pad_token_id=0,
)  # fmt: skip
_ROBERTA: Args = _BERT | dict(pad_token_id=1, type_vocab_size=1)
_PAIR: Args = dict(
    d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
    encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=64,
)  # fmt: skip
_T5: Args = dict(
    d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, relative_attention_num_buckets=8,
    relative_attention_max_distance=16, decoder_start_token_id=0, tie_word_embeddings=False,
    feed_forward_proj="gated-gelu", task_specific_params={
        "summarization": {"prefix": "summarize: ", "min_length": 4, "no_repeat_ngram_size": 2},
        "translation_en_to_de": {"prefix": "translate English to German: "},
    },
)  # fmt: skip
_TOWER: Args = dict(
    hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, projection_dim=8,
)  # fmt: skip


def labels(words: str) -> Args:
    """Return id2label and label2id."""
    names = words.split()
    return dict(id2label=dict(enumerate(names)), label2id={name: n for n, name in enumerate(names)})


@dataclass(frozen=True)
class Tiny:
    """A model: its class, its tokenizer and its sizes."""

    kind: str
    tokenizer: text.Make
    sizes: Args = field(default_factory=dict)
    seed: int = 0


BERT, CASED = text.wordpiece(lower=True), text.wordpiece(lower=False)
ROBERTA, BART = (
    text.pairs_of_bytes("RobertaTokenizerFast"),
    text.pairs_of_bytes("BartTokenizerFast"),
)
MODELS: dict[str, Tiny] = {
    "bert":          Tiny("BertForMaskedLM", BERT, _BERT, seed=14),
    "bert-span":     Tiny("BertForQuestionAnswering", BERT, _BERT, seed=26),
    "bert-tag":      Tiny("BertForTokenClassification", CASED,
                          _BERT | labels("O B-PER I-PER B-LOC I-LOC"), seed=11),
    "bert-label":    Tiny("BertForSequenceClassification", BERT,
                          _BERT | labels("entailment neutral contradiction")),
    "bert-score":    Tiny("BertForSequenceClassification", BERT, _BERT | labels("GOOD")),
    "roberta":       Tiny("RobertaForMaskedLM", ROBERTA, _ROBERTA, seed=14),
    "roberta-span":  Tiny("RobertaForQuestionAnswering", ROBERTA, _ROBERTA, seed=24),
    "roberta-tag":   Tiny("RobertaForTokenClassification", ROBERTA, _ROBERTA | labels("O PER B-LOC I-LOC")),
    "roberta-label": Tiny("RobertaForSequenceClassification", ROBERTA, _ROBERTA | labels("calm wet bright") |
                          dict(problem_type="multi_label_classification")),
    "bart":          Tiny("BartForConditionalGeneration", BART, _PAIR, seed=33),
    "bart-label":    Tiny("BartForSequenceClassification", BART,
                          _PAIR | labels("contradiction neutral entailment")),
    "t5":            Tiny("T5ForConditionalGeneration", text.t5, _T5, seed=34),
    "marian":        Tiny("MarianMTModel", text.marian, _PAIR | dict(scale_embedding=True), seed=4),
    "mbart":         Tiny("MBartForConditionalGeneration", text.mbart,
                          _PAIR | dict(scale_embedding=True, decoder_start_token_id=2), seed=1),
    "clip":          Tiny("CLIPModel", text.clip, dict(
                          text_config=_TOWER | dict(max_position_embeddings=32),
                          vision_config=_TOWER | dict(image_size=12, patch_size=4), projection_dim=8)),
}  # fmt: skip


def make(transformers: Any, name: str, folder: Path) -> None:
    """Write the model, its tokenizer, and the outputs of one forward pass."""
    tiny = MODELS[name]
    with tempfile.TemporaryDirectory() as work:
        tokenizer = tiny.tokenizer(transformers, Path(work))
        tokenizer.save_pretrained(folder)
    kind = getattr(transformers, tiny.kind)
    model = kind(kind.config_class(**fitted(tiny, tokenizer))).eval()
    if tiny.kind == "MarianMTModel":
        model.generation_config.bad_words_ids = [[tokenizer.pad_token_id]]
    randomize_parameters(model, tiny.seed)
    model.save_pretrained(folder)
    encoded = tokenizer(text.ENGLISH[0], return_tensors="pt")
    inputs = {"ids": encoded["input_ids"]}
    if model.config.is_encoder_decoder and "label" not in name:
        inputs["target"] = torch.tensor([[model.config.decoder_start_token_id, 7, 9, 8]])
        encoded["decoder_input_ids"] = inputs["target"]
    if name == "clip":
        processor = transformers.CLIPImageProcessor(**PREPROCESSORS["usual"])
        processor.save_pretrained(folder)
        inputs["images"] = torch.stack([*pixels(processor, folder.parent / "images").values()])
        encoded["pixel_values"] = inputs["images"]
    encoded.pop("token_type_ids", None)
    out = model(**encoded)
    kept = ("logits", "start_logits", "end_logits", "logits_per_image")
    outputs = {key: out[key] for key in kept if key in out}
    save_tensors(folder / "golden.safetensors", inputs | outputs, text=text.ENGLISH[0])


def write_pixels(transformers: Any, folder: Path) -> None:
    """Write the images, the variants of preprocessor_config.json, and the pixel values."""
    save_images(folder)
    usual = transformers.CLIPImageProcessor().to_dict()
    rows: list[Args] = []
    tensors: dict[str, torch.Tensor] = {}
    for name, changes in PREPROCESSORS.items():
        rows.append({"name": name, "config": usual | changes})
        values = pixels(transformers.CLIPImageProcessor(**rows[-1]["config"]), folder)
        tensors |= {f"{name}.{image}": value for image, value in values.items()}
    save_cases(folder / "preprocessors.json", rows)
    save_tensors(folder / "pixels.safetensors", tensors)


def fitted(tiny: Tiny, tokenizer: Any) -> Args:
    """Return the sizes, with the vocabulary size and special ids of the tokenizer."""
    sizes = tiny.sizes | dict(vocab_size=len(tokenizer))
    if tiny.kind == "CLIPModel":
        ids = dict(bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id)
        sizes["text_config"] = sizes["text_config"] | ids | dict(vocab_size=len(tokenizer))
    if tiny.kind == "MarianMTModel":
        pad, end = tokenizer.pad_token_id, tokenizer.eos_token_id
        sizes |= dict(
            pad_token_id=pad, decoder_start_token_id=pad, eos_token_id=end, forced_eos_token_id=end
        )
    return sizes


def ask(pipe: Any, case: Case, images: Path) -> Any:
    """Return the result of a pipeline; for text generation, with the ids."""
    given = case.inputs
    if pipe.task == "zero-shot-image-classification":
        given = [Image.open(images / f"{name}.png") for name in given]
    answer = pipe(given, **case.settings)
    if case.writes:
        ids = pipe(given, **case.settings, return_tensors=True)
        answer = joined(answer, ids)
    return json.loads(json.dumps(answer, default=lambda value: value.tolist()))


def joined(one: Any, two: Any) -> Any:
    """Merge two results of the same shape."""
    if isinstance(one, list):
        return [joined(*pair) for pair in zip(one, two, strict=True)]
    return one | two


def alike(one: Any, two: Any) -> bool:
    """Return whether two results are equal up to rounding errors."""
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(
            alike(value, two[key]) for key, value in one.items()
        )
    if isinstance(one, list):
        return len(one) == len(two) and all(alike(*pair) for pair in zip(one, two, strict=True))
    return abs(one - two) < 1e-2 if isinstance(one, float) else bool(one == two)


def answers(transformers: Any, task: str, target: Path) -> list[Args]:
    """Return all cases of a task with their results."""
    rows = []
    for case in CASES[task]:
        pipe = transformers.pipeline(
            case.task or task, model=str(target / case.model), device="cpu"
        )
        answer = ask(pipe, case, target / "images")
        for seed in range(2):
            perturb_weights(pipe.model, seed)
            if not alike(answer, ask(pipe, case, target / "images")):
                raise RuntimeError(f"{task}: the result depends on a near tie: {case}")
        rows.append(case.row() | dict(output=answer))
    return rows


def main() -> None:
    """Write the images, models and results."""
    parser = argparse.ArgumentParser(description="Write the golden outputs of pipelines.")
    parser.add_argument("target", type=Path, help="output folder: tests/goldens/pipelines")
    target: Path = parser.parse_args().target
    transformers = reference(VERSION)
    if transformers.utils.is_torchvision_available():
        raise SystemExit("torchvision is installed, which gives other pixels: uninstall it")
    warnings.simplefilter("ignore")  # deprecation warnings of pipelines
    write_pixels(transformers, target / "images")
    for name in MODELS:
        make(transformers, name, target / name)
        print_size(target / name)
    for task in CASES:
        save_cases(target / f"{task}.json", answers(transformers, task, target))
    print_size(target)


if __name__ == "__main__":
    main()
