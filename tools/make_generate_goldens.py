"""Write golden ids of the search methods that transformers 5 no longer has, from tiny random models.

transformers removed contrastive search in 4.56, and group and constrained beam search in 4.57. The
reference is therefore 4.55.4, the last version with all three; for Transformer-XL it is 4.35.2, as
in make_xl_goldens.py. Each version needs an environment separate from that of the project. With
Python 3.11:

    pip install torch==2.13.0
    pip install "transformers==4.55.4" safetensors           # or, in another,
    pip install "transformers==4.35.2" safetensors "numpy<2"

The script writes one folder per model of the installed version, on the CPU in float32, in two minutes:

    python tools/make_generate_goldens.py tests/goldens/generate

tests/goldens/generate/README.md describes the folders. All weights are random. The script stops if
a result is not stable: if a relative change of the weights by 1e-5 changes ids (a near tie), if a
row alone gives other ids than in its batch, or if forced words are missing."""

import argparse
import copy
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tools.goldens.common import (
    perturb_weights,
    print_size,
    randomize_parameters,
    reference,
    save_cases,
    save_tensors,
)
from tools.goldens.searches import RAGGED, Ids, Settings, remembered, searches

SEARCH, XL = "4.55.4", "4.35.2"

_PAIR: Settings = dict(
    vocab_size=48, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
    decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=20, max_position_embeddings=64,
)  # fmt: skip
_XL: Settings = dict(
    vocab_size=48, cutoffs=[12, 24], d_model=12, d_embed=12, n_head=2, d_head=6, d_inner=16, n_layer=2,
    div_val=1, mem_len=6, clamp_len=-1, same_length=False, eos_token_id=0, pad_token_id=0,
)  # fmt: skip


@dataclass(frozen=True)
class Tiny:
    """A model: its class, its sizes, and a seed for which rows differ and some of them end."""

    name: str
    class_name: str
    sizes: Settings
    seed: int
    version: str = SEARCH
    generation_config: Settings = field(default_factory=dict)  # settings of generation_config.json


MODELS = (
    # EOS is also the pad token, as usual for GPT-2.
    Tiny("gpt2", "GPT2LMHeadModel", dict(
        vocab_size=48, n_embd=16, n_layer=2, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0,
        pad_token_id=0,
    ), seed=19),
    # Rotary positions, grouped-query attention, an untied head.
    Tiny("llama", "LlamaForCausalLM", dict(
        vocab_size=48, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    ), seed=56),
    # EOS is forced at the maximum length.
    Tiny("bart", "BartForConditionalGeneration", _PAIR, seed=43),
    # The first token is the language code.
    Tiny("mbart", "MBartForConditionalGeneration", _PAIR | dict(
        decoder_start_token_id=2, scale_embedding=True,
    ), seed=24, generation_config=dict(forced_bos_token_id=44)),
    # The pad token, which is the start token, is never generated.
    Tiny("marian", "MarianMTModel", _PAIR | dict(
        pad_token_id=47, decoder_start_token_id=47, eos_token_id=0, forced_eos_token_id=0,
        scale_embedding=True,
    ), seed=16, generation_config=dict(bad_words_ids=[[47]])),
    # No forced EOS.
    Tiny("t5", "T5ForConditionalGeneration", dict(
        vocab_size=48, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_decoder_layers=3, num_heads=2,
        relative_attention_num_buckets=8, relative_attention_max_distance=12, decoder_start_token_id=0,
        feed_forward_proj="gated-gelu", tie_word_embeddings=False,
    ), seed=11),
    Tiny("transformer-xl", "TransfoXLLMHeadModel", _XL | dict(div_val=2), seed=67, version=XL),
    # Clamped positions; every query attends to the same number of keys.
    Tiny("transformer-xl-same", "TransfoXLLMHeadModel", _XL | dict(
        clamp_len=2, same_length=True, mem_len=4, untie_r=False,
    ), seed=47, version=XL),
    # No memory: every step reads the whole row.
    Tiny("transformer-xl-none", "TransfoXLLMHeadModel", _XL | dict(mem_len=0), seed=29, version=XL),
)  # fmt: skip


def make(tiny: Tiny) -> Any:
    """Return the model in evaluation mode, with random weights."""
    transformers = reference(tiny.version)
    model_class = getattr(transformers, tiny.class_name)
    model = model_class(model_class.config_class(**tiny.sizes)).eval()
    model.generation_config.update(**tiny.generation_config)
    randomize_parameters(model, tiny.seed)
    return model


def pad(rows: Ids, token: int, left: bool) -> tuple[Tensor, Tensor]:
    """Return padded rows and their attention mask."""
    width = max(map(len, rows))
    pads = [[token] * (width - len(row)) for row in rows]
    ids = [[*more, *row] if left else [*row, *more] for row, more in zip(rows, pads, strict=True)]
    full = [[0] * len(more) + [1] * len(row) for row, more in zip(rows, pads, strict=True)]
    return torch.tensor(ids), torch.tensor(full if left else [row[::-1] for row in full])


def write(model: Any, prompts: Ids, settings: Settings) -> tuple[list[Ids], list[list[Any]]]:
    """Return the generated ids of each prompt, EOS included, and the scores, best first.

    A search by beams has a score a sequence; any other a log-probability a token.
    """
    pair, held = model.config.is_encoder_decoder, model.generation_config
    ids, mask = pad(prompts, held.pad_token_id, left=not pair)
    ends = held.eos_token_id
    marks = {} if "TransfoXL" in type(model).__name__ else {"attention_mask": mask}
    out = model.generate(
        ids, do_sample=False, return_dict_in_generate=True, output_scores=True, **marks, **settings
    )
    new = out.sequences[:, 1 if pair else ids.shape[1] :]
    written = [row[: row.index(ends) + 1] if ends in row else row for row in new.tolist()]
    if settings.get("num_beams", 1) > 1:
        scores = out.sequences_scores.tolist()
    else:
        logs = torch.stack(out.scores, 1).log_softmax(-1).gather(2, new[..., None])[..., 0]
        scores = [log[: len(row)] for log, row in zip(logs.tolist(), written, strict=True)]
    each = len(written) // len(prompts)
    rows = range(0, len(written), each)
    return [written[n : n + each] for n in rows], [scores[n : n + each] for n in rows]


def check(model: Any, prompts: Ids, settings: Settings, written: list[Ids]) -> None:
    """Raise an error if a near tie or the other rows affect the result, or forced words are missing."""
    for words in settings.get("force_words_ids", []):
        ways = words if isinstance(words[0], list) else [words]
        for row in (row for results in written for row in results):
            if not any(row[n : n + len(way)] == way for way in ways for n in range(len(row))):
                raise RuntimeError(f"a forced word is missing in {row}: {settings}")
    for seed in range(3):
        moved = copy.deepcopy(model)
        perturb_weights(moved, seed)
        if write(moved, prompts, settings)[0] != written:
            raise RuntimeError(f"the result depends on a near tie: {settings}")
    if [write(model, [row], settings)[0][0] for row in prompts] != written:
        raise RuntimeError(f"a row alone gives other ids than in its batch: {settings}")


def forward(model: Any) -> dict[str, Tensor]:
    """Return the inputs and the logits of one forward pass."""
    inputs = {"ids": torch.tensor(RAGGED[:1])}
    if model.config.is_encoder_decoder:
        inputs["target"] = torch.tensor([[model.config.decoder_start_token_id, *RAGGED[2]]])
        out = model(inputs["ids"], decoder_input_ids=inputs["target"])
    else:
        out = model(inputs["ids"])
    return inputs | {"logits": out.logits}


def write_folder(tiny: Tiny, folder: Path) -> None:
    """Build one model, run all its cases, and write the folder."""
    model = make(tiny)
    model.save_pretrained(folder, safe_serialization=True)
    save_tensors(folder / "golden.safetensors", forward(model))
    rows = []
    for name, prompts, settings in remembered() if tiny.version == XL else searches():
        written, scores = write(model, prompts, settings)
        check(model, prompts, settings, written)
        rows.append(dict(name=name, prompts=prompts, settings=settings, ids=written, scores=scores))
    save_cases(folder / "cases.json", rows)


def main() -> None:
    """Write the folders of all models of the installed transformers version."""
    parser = argparse.ArgumentParser(description="Write the golden ids of searches.")
    parser.add_argument(
        "target", type=Path, help="output folder, with one folder per model: tests/goldens/generate"
    )
    target: Path = parser.parse_args().target
    version = reference(SEARCH, XL).__version__
    for tiny in MODELS:
        if tiny.version == version:
            write_folder(tiny, target / tiny.name)
            print_size(target / tiny.name)


if __name__ == "__main__":
    main()
