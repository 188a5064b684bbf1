"""Write golden tensors of Transformer-XL: tiny random models and the outputs of the reference implementation.

The reference is `transformers` 4.35.2, because transformers 5 removed TransfoXL. This script therefore needs
an environment separate from that of the project. With Python 3.11:

    pip install torch==2.13.0
    pip install "transformers==4.35.2" safetensors "numpy<2"

It writes one folder `xl-<case>` per case, on the CPU in float32, within seconds:

    python tools/make_xl_goldens.py tests/goldens/xl

All parameters are random, including norms, biases and cluster weights, so that every term affects
the outputs; the models are in evaluation mode. A folder contains three files.

`config.json`: the configuration as transformers writes it. Keys with default values are omitted
(`tie_word_embeddings` is present only if it is false); `proj_share_all_but_first` is never written, because
`tie_projs` contains its effect.

`model.safetensors`: the complete state dict under the names of the reference, as in
`pytorch_model.bin`. A tied tensor is stored under each of its names as a copy, because safetensors
does not support sharing; the constant buffer `transformer.pos_emb.inv_freq` is included. (The
safetensors files of the reference contain a tied tensor under its first name only.)

`golden.safetensors`: inputs and results, for B sequences of T tokens, L layers, H heads, width W and a
memory of M positions:

    ids                (B, T)            token ids of the first segment
    logits             (B, T, vocab)     log-probabilities; (B, labels), plain scores, for the classifier
    last_hidden_state  (B, T, W)         output of the last layer
    hidden_states      (L+1, B, T, W)    embeddings, then the output of every layer
    attentions         (L, B, H, T, M+T)
    mems               (L, B, M, W)      memory after the segment: the input of every layer, (M, B, W) in the
                                         reference; absent for M = 0
    projection         as logits         random weights of the logits in the loss of the gradients
    labels             (B, T), (B,)      labels, -100 is ignored; the logits at t predict the label at t+1;
                                         the classifier has one label per sequence
    loss               ()                mean loss with these labels
    grad.<name>        as <name>         gradients of (logits * projection).sum() and
                                         (logits2 * projection2).sum(), added

The first segment is run without memory (the reference then attends to a memory of zeros). Names
that end in 2 (`ids2`, `logits2`, ...) belong to a second segment, which is run with the detached
`mems` of the first. A tied parameter has one gradient, the sum over its uses, under its first name;
the metadata key `tied` of the file is a JSON object that maps every other name to that first name.
"""

import argparse
import importlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

REFERENCE = "4.35.2"
STD = 0.3  # standard deviation of every random parameter
IGNORE = -100  # label that the loss ignores

BASE: dict[str, Any] = {
    "vocab_size": 40,
    "cutoffs": [10, 20],
    "d_model": 12,
    "d_embed": 12,
    "n_head": 2,
    "d_head": 6,
    "d_inner": 16,
    "n_layer": 3,
    "div_val": 1,
    "mem_len": 6,
    "clamp_len": -1,
    "same_length": False,
}


@dataclass(frozen=True)
class Case:
    """A tiny model: its name, its differences from BASE, and the lengths of its segments."""

    name: str
    changes: dict[str, Any] = field(default_factory=dict)
    lengths: tuple[int, int] = (5, 5)
    architecture: str = "TransfoXLLMHeadModel"


CASES = (
    # Clusters of decreasing width, all projections tied except the first, heads * head_dim != width, and a
    # second segment of another length.
    Case("base", {"div_val": 2, "d_embed": 16, "d_head": 4}, lengths=(5, 3)),
    # Clamped positions, and every query attends to mem_len keys: fewer than a segment has.
    Case("clamp", {"clamp_len": 2, "same_length": True, "mem_len": 4}, lengths=(6, 6)),
    # Pre-norm; no projections.
    Case("prenorm", {"pre_lnorm": True, "untie_r": True}),
    # One pair of position biases for all layers; one projection of the embeddings, tied to those of the tail
    # clusters.
    Case("tied-r", {"untie_r": False, "d_embed": 10}),
    Case("nomem", {"mem_len": 0}),
    # Nothing tied; widths that div_val does not divide (18, 4 and 1); a large epsilon.
    Case(
        "untied",
        {
            "tie_word_embeddings": False,
            "proj_share_all_but_first": False,
            "div_val": 4,
            "d_embed": 18,
            "n_layer": 2,
            "layer_norm_epsilon": 0.05,
        },
    ),
    # Every projection tied, the first too.
    Case("all-tied", {"tie_projs": [True, True, True], "d_embed": 10, "n_layer": 1}),
    # No clusters: a plain softmax. A width that does not divide by the heads.
    Case(
        "plain",
        {"cutoffs": [], "d_model": 14, "d_embed": 14, "n_head": 3, "d_head": 4, "n_layer": 1},
    ),
    # The classifier, whose score layer is d_embed wide: the embedding width must be that of the model.
    Case(
        "label",
        {"div_val": 2, "num_labels": 3, "pad_token_id": 0},
        architecture="TransfoXLForSequenceClassification",
    ),
)


def reference() -> Any:
    """Return the transformers module, as Any because the installed version for type checks differs."""
    module: Any = importlib.import_module("transformers")
    if module.__version__ != REFERENCE:
        raise SystemExit(f"transformers is {module.__version__}, expected {REFERENCE}")
    return module


def randomize_parameters(model: nn.Module) -> None:
    """Sample every parameter from N(0, STD), norm scales with mean 1, and tied parameters once."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if name.endswith("layer_norm.weight") else 0.0, STD)


def tied_names(model: nn.Module) -> dict[str, str]:
    """Map every further name of a tied parameter to its first name, which has the gradient."""
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    every = model.named_parameters(remove_duplicate=False)
    return {name: first[id(parameter)] for name, parameter in every if first[id(parameter)] != name}


def token_ids(vocab_size: int, batch: int, length: int) -> Tensor:
    """Return random ids, as many from each quarter of the vocabulary, so that all clusters are used."""
    quarter = vocab_size // 4
    ids = torch.randint(quarter, (batch * length,)) + quarter * (torch.arange(batch * length) % 4)
    return ids[torch.randperm(batch * length)].reshape(batch, length)


def language_inputs(config: Any, length: int) -> dict[str, Tensor]:
    """Return two sequences, and labels equal to the ids except for two that are ignored."""
    ids = token_ids(config.vocab_size, 2, length)
    labels = ids.clone()
    labels[0, -1] = IGNORE
    labels[1, 1] = IGNORE
    return {"ids": ids, "labels": labels}


def classifier_inputs(config: Any, length: int) -> dict[str, Tensor]:
    """Return four sequences: without padding, padded at the end, in the middle, and at the start.

    The reference scores the position before the first padding token, and the last one where there is none.
    """
    ids = token_ids(config.vocab_size - 1, 4, length) + 1  # 0 is the padding
    ids[1, -2:] = config.pad_token_id
    ids[2, 2] = config.pad_token_id
    ids[3, 0] = config.pad_token_id
    return {"ids": ids, "labels": torch.randint(config.num_labels, (4,))}


def run_segment(
    model: Any, inputs: dict[str, Tensor], mems: list[Tensor] | None
) -> tuple[dict[str, Tensor], list[Tensor] | None]:
    """Run one segment; return inputs and results by golden name, and the reference's memory."""
    output = model(inputs["ids"], mems=mems, output_hidden_states=True, output_attentions=True)
    with torch.no_grad():
        bare = model.transformer(inputs["ids"], mems=mems)
        outputs_with_labels = model(inputs["ids"], mems=mems, labels=inputs["labels"].clone())
    results: dict[str, Tensor] = {
        "logits": output.logits,
        "last_hidden_state": bare.last_hidden_state,
        "hidden_states": torch.stack(output.hidden_states),
        "attentions": torch.stack(output.attentions),
        "projection": torch.randn(output.logits.shape),
        "loss": outputs_with_labels.loss,
    }
    if output.mems is not None:
        results["mems"] = torch.stack(output.mems).transpose(1, 2)
    return {**inputs, **results}, output.mems


def write_case(case: Case, seed: int, folder: Path) -> None:
    """Build the model of a case, run its two segments, and write the three files."""
    transformers = reference()
    torch.manual_seed(seed)
    config = transformers.TransfoXLConfig(**{**BASE, **case.changes})
    model = getattr(transformers, case.architecture)(config).eval()
    randomize_parameters(model)
    classifier = case.architecture.endswith("Classification")
    make_inputs = classifier_inputs if classifier else language_inputs
    first, mems = run_segment(model, make_inputs(config, case.lengths[0]), None)
    second, _ = run_segment(model, make_inputs(config, case.lengths[1]), mems)
    torch.stack(
        [(part["logits"] * part["projection"]).sum() for part in (first, second)]
    ).sum().backward()

    golden = {**first, **{f"{name}2": tensor for name, tensor in second.items()}}
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            raise RuntimeError(f"{case.name}: {name} does not affect the output")
        golden[f"grad.{name}"] = parameter.grad

    folder.mkdir(parents=True, exist_ok=True)
    config.architectures = [case.architecture]
    config.torch_dtype = "float32"
    config.save_pretrained(folder)
    save_file(plain(model.state_dict()), folder / "model.safetensors", metadata={"format": "pt"})
    metadata = {"tied": json.dumps(tied_names(model), sort_keys=True)}
    save_file(plain(golden), folder / "golden.safetensors", metadata=metadata)


def plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return detached copies that share no memory, as safetensors requires."""
    return {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}


def main() -> None:
    """Write the folders of all cases."""
    parser = argparse.ArgumentParser(description="Write the golden tensors of Transformer-XL.")
    parser.add_argument(
        "target", type=Path, help="output folder, with one folder per case: tests/goldens/xl"
    )
    target: Path = parser.parse_args().target
    for seed, case in enumerate(CASES):
        folder = target / f"xl-{case.name}"
        write_case(case, seed, folder)
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(f"{folder}: {size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
