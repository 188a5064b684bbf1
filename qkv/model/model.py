"""Model: a spec, its network, its config and its tokenizer; load, save, build and run."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.families.family import Args, Family
from qkv.model.config import write_config
from qkv.model.inputs import check_inputs, make_batch
from qkv.model.transforms.pooling import Vector, write_vector
from qkv.nn.lora import adapters
from qkv.nn.transformer import Pair, Transformer
from qkv.spec import Spec, Two
from qkv.text import Tokenizer
from qkv.weights.int8 import to_int8
from qkv.weights.names_table import KeyMap
from qkv.weights.tensors import write_json, write_tensors

VOCABULARIES = """
    tokenizer.json vocab.txt vocab.json encoder.json spiece.model sentencepiece.bpe.model tokenizer.model
    source.spm bpe_simple_vocab_16e6.txt.gz
""".split()
ABOUT_TOKENS = """
    tokenizer_config.json special_tokens_map.json added_tokens.json merges.txt vocab.bpe target.spm
""".split()


class Model:
    """A network with everything that is needed to run it and to write it back."""

    def __init__(
        self, kin: Family, args: Args, net: Transformer | Pair, config: Mapping[str, Any], *,
        positions: str | None = None, vector: Vector | None = None, prefix: str | None = None,
        spare: dict[str, Tensor] | None = None, home: Path | None = None,
        generation: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.family, self.args, self.net = kin, args, net
        self.positions, self.vector = positions, vector
        self.config: dict[str, Any] = dict(config)
        self.generation = None if generation is None else dict(generation)  # generation_config.json, as it is
        self.prefix, self.spare = prefix, spare or {}  # as a file of theirs has it; what it holds besides
        self.home = home  # the folder whose tokenizer it has
        self.base: str | None = None  # the model that its adapters are of, as the user named it
        self.beside: tuple[str, ...] = ()  # tensors that belong to its adapters and not to the base
        self._tokenizer: Tokenizer | None = None

    @property
    def spec(self) -> Spec | Two:
        """What the network was made of."""
        return self.net.spec

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the folder that the model is from, opened when it is first asked for."""
        if self._tokenizer is None and self.home is not None and tokenizer_files(self.home):
            self._tokenizer = Tokenizer.load(self.home)
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer, self.home = tokenizer, None

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return next(self.net.parameters()).device

    def __repr__(self) -> str:
        count = sum(p.numel() for p in self.net.parameters())
        return f"qkv.Model({self.family.name}, {count:,} parameters)"

    def run(
        self, ids: Tensor | None = None, *, mask: Tensor | None = None, positions: Tensor | None = None,
        types: Tensor | None = None, target: Tensor | None = None, target_mask: Tensor | None = None,
        images: Tensor | None = None, embeds: Tensor | None = None, source: Tensor | None = None,
        source_mask: Tensor | None = None, memory: Tensor | None = None, permute: Tensor | None = None,
        targets: Tensor | None = None, choice: Tensor | None = None, keep: tuple[str, ...] = (),
    ) -> dict[str, Tensor]:  # fmt: skip
        """Runs the network on a batch and returns its tensors by name; gradients flow as ever."""
        given = {k: v for k, v in locals().items() if v is not None and k not in ("self", "keep")}
        check_inputs(self.spec, given, keep)
        moved = {name: value.to(self.device) for name, value in given.items()}
        spec = self.spec
        choices = isinstance(spec, Spec) and spec.choices
        outer = None
        if choices:
            outer = (ids if ids is not None else embeds).shape[:2]  # type: ignore[union-attr]
            flat = ("ids", "mask", "positions", "types", "embeds", "choice")
            moved = {k: v.flatten(0, 1) if k in flat else v for k, v in moved.items()}
        out = self.net(make_batch(spec, keep=tuple(keep), **moved))
        out = {
            name: value
            for name, value in out.items()
            if not name.endswith(("hiddens", "router")) or name.removeprefix("encoded_") in keep
        }
        if outer is not None:
            out = {
                name: x if name in ("hiddens", "memory") else x.unflatten(0, outer) for name, x in out.items()
            }
            out["choice"] = out["choice"].squeeze(-1)
            out.setdefault("logits", out["choice"])
        return out

    def theirs(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors under our parameter names, as the published checkpoints name and lay them out."""
        links = self._keymap().links(name for name, _ in self.net.named_parameters() if name in tensors)
        return {link.theirs: link.to_theirs(tensors) for link in links if link.word != "copy"}

    def save(
        self, folder: str | Path, *, form: str = "auto", weights: str = "full",
        shard_bytes: int = 5_000_000_000,
    ) -> None:  # fmt: skip
        """Writes config.json and weights; `form` is "hf", "qkv", or "auto": "hf" where it has a class.

        `weights` is "full", or "int8": a quarter of the bytes, for qkv alone to open."""
        if form not in ("auto", "hf", "qkv"):
            raise ValueError(f"form {form!r}: expected auto, hf or qkv")
        if weights not in ("full", "int8"):
            raise ValueError(f"weights {weights!r}: expected full or int8")
        folder, hf = Path(folder), "int8 weights" if weights == "int8" else self.no_class()
        if adapters(self.net):
            raise ValueError(
                f"{folder}: not written, the model has adapters on it: merge or write_adapter first"
            )
        if form == "hf" and hf is not None:
            raise ValueError(f"Hugging Face's format cannot hold {hf}: save with form='qkv'")
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: p.detach() for name, p in self.net.named_parameters()}
        if hf is None and form != "qkv":
            copies = {link.theirs: link.to_theirs(tensors) for link in self._keymap().links(tensors)}
            tensors = copies | self.spare
            own = self.config.get("model_type", "qkv") == "qkv"
            config = self._as_theirs() if own else self.config
        else:
            args = {name: value for name, value in self.args.items() if value != self.family.defaults[name]}
            config = {**self.config, "model_type": "qkv", "family": self.family.name, "arguments": args}
            if self.positions:
                config["positions"] = self.positions
        dtype = str(next(self.net.parameters()).dtype).removeprefix("torch.")
        old = next((key for key in ("dtype", "torch_dtype") if key in config), "dtype")
        if weights == "int8":
            tensors, dtype, config = to_int8(tensors), "float32", {**config, "weights": "int8"}
        write_tensors(folder, tensors, shard_bytes=shard_bytes)
        write_json(folder / "config.json", {**config, old: dtype})
        if self.generation is not None:
            write_json(folder / "generation_config.json", self.generation)
        self.save_text(folder)

    def _as_theirs(self) -> dict[str, Any]:
        """A config of ours as one of theirs: what it says besides, such as the names of labels, stays."""
        stated = write_config(self.family, self.args)
        named = ("id2label", "label2id")
        gone = {"family", "arguments", "positions", *stated} - {*named}
        return stated | {key: value for key, value in self.config.items() if key not in gone}

    def save_text(self, folder: Path) -> None:
        """Writes what stands between text and weights: the tokenizer, and how a text becomes a vector."""
        if self.home is not None:  # as they are, whether anyone has asked for the tokenizer or not
            for path in tokenizer_files(self.home):
                if path.resolve().parent != folder.resolve():
                    shutil.copyfile(path, folder / path.name)
        elif self._tokenizer is not None:
            self._tokenizer.save(folder)
        if self.vector is not None and isinstance(self.net, Transformer):
            write_vector(folder, self.vector, self.net.tower.stack.width)

    def no_class(self) -> str | None:
        """None, or what of this model Hugging Face has no class for."""
        kin = self.family
        if not kin.model_types or kin.removed:
            return f"the {kin.name} family"
        if self.positions:
            return f"positions={self.positions!r} in {kin.name}"
        held = {*kin.config, *kin.nested, "labels", "head"}
        odd = [f"{k}={v!r}" for k, v in self.args.items() if k not in held and v != kin.defaults[k]]
        return f"{', '.join(odd)} in {kin.name}" if odd else None

    def _keymap(self) -> KeyMap:
        return self.family.keymap(self.args, self.prefix)


def tokenizer_files(folder: Path) -> list[Path]:
    """The files of a folder that tell its tokenizer; none where there is no vocabulary among them."""
    found = {name: folder / name for name in (*VOCABULARIES, *ABOUT_TOKENS) if (folder / name).is_file()}
    return list(found.values()) if found.keys() & {*VOCABULARIES} else []
