"""Model: a spec, its network, its config and its tokenizer; load, save, build and run."""

from __future__ import annotations

import fnmatch
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from qkv.batch import Batch, Rows
from qkv.border import check_inputs
from qkv.config import prefix_in, understand, write_config
from qkv.families import family
from qkv.families.family import Args, Family
from qkv.limits import check_kinds, check_size, check_together
from qkv.lora import adapters
from qkv.nn.heads import last
from qkv.nn.stack import Pair, Transformer, make_net
from qkv.positions import with_positions
from qkv.shipped import find_builtin, is_builtin
from qkv.spec import Spec, Two
from qkv.text import Tokenizer
from qkv.vector import Vector, read_vector, with_vector, write_vector
from qkv.weights.files import nonfinite, read_json, read_tensors, write_json, write_tensors
from qkv.weights.int8 import from_int8, to_int8
from qkv.weights.keymap import KeyMap
from qkv.weights.safetensors import aligned

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


def make_batch(spec: Spec | Two, *, keep: tuple[str, ...] = (), **given: Tensor) -> Batch:
    """The Batch for tensors named as `Model.run` names them; what is wrong with them is said here."""
    ids, embeds, images = given.get("ids"), given.get("embeds"), given.get("images")
    rows = target = image = source = None
    if ids is not None or embeds is not None:
        rows = Rows.of(
            ids,
            embeds=embeds,
            mask=given.get("mask"),
            positions=given.get("positions"),
            types=given.get("types"),
        )
    if isinstance(spec, Two):
        if images is not None and spec.image is not None:
            patches = spec.image.encoder.embed.patches  # type: ignore[union-attr]
            image = Rows.of(images=images, cells=(patches.image // patches.size) ** 2 + 1)  # type: ignore[union-attr]
        return Batch(rows=rows, image=image, keep=keep)
    if given.get("target") is not None:
        target = Rows.of(given["target"], mask=given.get("target_mask"))
    elif spec.shift is not None and rows is not None and ids is not None:
        target = shift_right(rows, spec.shift)
    if given.get("source") is not None:
        source = Rows.of(embeds=given["source"], mask=given.get("source_mask"))
    allowed, index = None, None
    if given.get("permute") is not None or given.get("targets") is not None:
        assert rows is not None
        allowed, index = permutation(rows, given.get("permute"), given.get("targets"))
    return Batch(
        rows=rows, target=target, source=source, memory=given.get("memory"),
        allowed=allowed, targets=index, choice=given.get("choice"), keep=keep,
    )  # fmt: skip


def permutation(rows: Rows, permute: Tensor | None, targets: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """XLNet's masks: who may see whom (B, T + P, T), and which tokens are targets (B, P)."""
    length = rows.length
    free = torch.ones(rows.size, length, length, dtype=torch.bool, device=rows.positions.device)
    allowed = free if permute is None else ~permute.bool()
    content = allowed | torch.eye(
        length, dtype=torch.bool, device=allowed.device
    )  # a token always sees itself
    if targets is None:
        return content, None
    targets = targets.float()
    if not bool((targets.sum(-1) == 1).all()) or not bool((targets.max(-1).values == 1).all()):
        raise ValueError("targets: expected one 1 in each row of (B, P, T), the token it stands for")
    index = targets.argmax(-1)
    query = allowed.gather(1, index[..., None].expand(-1, -1, length))
    return torch.cat([content, query], dim=1), index


def shift_right(rows: Rows, shift: tuple[int, str]) -> Rows:
    """The decoder's input for these labels: one to the right, the first or the wrapped last one in front."""
    start, how = shift
    assert rows.ids is not None
    seat = torch.ones_like(rows.ids, dtype=torch.bool) if rows.seat is None else rows.seat
    first = torch.full_like(rows.ids, start)
    if how == "wrap":
        first = rows.ids.gather(1, last(seat)[:, None]).expand_as(rows.ids)
    begins = seat & (seat.cumsum(1) == 1)
    return replace(rows, ids=torch.where(begins, first, rows.ids.roll(1, dims=1)), types=None)


def build(
    name: str, size: str | None = None, *, positions: str | None = None, vector: str | None = None,
    **changes: Any,
) -> Model:  # fmt: skip
    """A fresh model of a family, initialised as its paper says; `vector` adds one of length one a text."""
    kin = family(name)
    size = size or next(iter(kin.sizes))
    check_kinds(kin, changes)
    args = kin.arguments(size, **changes)
    check_together(kin, args)
    pooled = None if vector is None else Vector(vector)
    net = make_net(make_spec(kin, args, positions, pooled))
    initialise(net)
    config = {} if positions or not kin.model_types else write_config(kin, args)
    return Model(kin, args, net.eval(), config, positions=positions, vector=pooled)


def make_spec(
    kin: Family, args: Args, positions: str | None = None, vector: Vector | None = None
) -> Spec | Two:
    spec = kin.make(**args)
    spec = with_positions(spec, positions) if positions else spec
    return with_vector(spec, vector) if vector else spec


@torch.no_grad()
def initialise(net: Transformer | Pair) -> None:
    """Norms to one, biases to zero, every other tensor normal with the deviation its spec gives."""
    halves = [net] if isinstance(net, Transformer) else [net.text, net.image]
    for part in [half for half in halves if half is not None]:
        for name, tensor in part.named_parameters():
            owner = part.get_submodule(name.rpartition(".")[0])
            std = next(value for pattern, value in part.spec.init if fnmatch.fnmatch(name, pattern))
            if isinstance(owner, nn.LayerNorm | nn.RMSNorm):
                tensor.normal_(1.0, part.spec.norm_std) if name.endswith("weight") else tensor.zero_()
            elif name.endswith(".bias"):
                tensor.zero_()
            elif std == "xavier" and tensor.dim() > 1:
                nn.init.xavier_uniform_(tensor)
            else:
                std, cut = std if isinstance(std, float) else 0.02, part.spec.init_cut
                nn.init.trunc_normal_(tensor, 0.0, std, -cut * std, cut * std) if cut else tensor.normal_(
                    0.0, std
                )
                if isinstance(owner, nn.Embedding) and owner.padding_idx is not None:
                    tensor[owner.padding_idx] = 0
    if isinstance(net, Pair) and net.temperature is not None and net.spec.temperature is not None:
        net.temperature.fill_(net.spec.temperature)


def load_folder(
    folder_or_id: str | Path,
    *,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
    revision: str | None = None,
) -> Model:
    """Opens a Hugging Face folder, or fetches one by its hub id into the hub's cache."""
    place_on = pick_device(device, dtype)
    folder = find(folder_or_id, revision)
    config = read_json(folder / "config.json")
    try:
        kin, args, positions = understand(config)
        vector = read_vector(folder)
        spec = make_spec(kin, args, positions, vector)
    except ValueError as error:
        raise ValueError(f"{folder / 'config.json'}: {error}") from None
    tensors = {newer_name(name): x for name, x in read_tensors(folder).items()}
    if config.get("model_type") == "qkv" and config.pop("weights", None) is not None:
        tensors = from_int8(tensors, folder)
    try:
        check_size(spec, len(tensors))
        net = skeleton(spec)
    except ValueError as error:
        raise ValueError(f"{folder / 'config.json'}: {error}") from None
    if args.get("tied") and config.get("model_type") != "qkv" and apart(kin, args, net, tensors):
        args = {**args, "tied": False}  # the config says tied, the file holds two different tables
        net = skeleton(make_spec(kin, args, positions, vector))
    if config.get("model_type") == "qkv":
        names = KeyMap("\n".join(f"{name} {name}" for name, _ in net.named_parameters()))
        prefix, spare = None, fill(net, names, tensors, folder)
    else:
        prefix = prefix_in(kin, tensors, args)
        spare = fill(net, kin.keymap(args, prefix), tensors, folder)
    for name in nonfinite(dict(net.named_parameters())):
        warnings.warn(f"{folder}: {name} holds values that are not finite", stacklevel=2)
    net = net.to(device=place_on, dtype=dtype)
    beside = folder / "generation_config.json"
    return Model(
        kin, args, net.eval(), config, positions=positions, vector=vector, prefix=prefix, spare=spare,
        home=folder, generation=read_json(beside) if beside.exists() else None,
    )  # fmt: skip


class NoFirstValues(TorchFunctionMode):
    """What comes from a file is not drawn first. Drawn without memory, it would need torch's compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return (kwargs or {}).get("tensor", args[0] if args else None)
        return func(*args, **(kwargs or {}))


def skeleton(spec: Spec | Two) -> Transformer | Pair:
    """The network without memory for its weights."""
    with torch.device("meta"), NoFirstValues():
        return make_net(spec)


def newer_name(name: str) -> str:
    """TensorFlow's names for the two tensors of a norm, as the oldest checkpoints still have them."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def apart(kin: Family, args: Args, net: nn.Module, tensors: Mapping[str, Tensor]) -> bool:
    """Does the file hold two different tensors where the config ties a head to the tokens?"""
    every = dict(net.named_parameters(remove_duplicate=False))
    names = kin.keymap(args, prefix_in(kin, tensors, args))
    table = {
        id(every[link.ours[0]]): tensors.get(link.theirs)
        for link in names.links(dict(net.named_parameters()))
    }
    for link in names.links(name for name in every if name.startswith("heads.")):
        mine, first = tensors.get(link.theirs), table.get(id(every[link.ours[0]]))
        if mine is not None and first is not None and mine is not first and not torch.equal(mine, first):
            return True
    return False


def fill(net: nn.Module, names: KeyMap, tensors: dict[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """Puts tensors into the net; returns those of heads it has not. All problems in one message."""
    wanted = dict(net.named_parameters())
    shapes = {name: p.shape for name, p in wanted.items()}
    problems: list[str] = []
    found: dict[str, Tensor] = {}
    used: set[str] = set()
    for link in names.links(wanted):
        have = tensors.get(link.theirs)
        if link.word == "copy":
            continue
        used.add(link.theirs)
        expected = link.to_theirs(wanted).shape
        if have is None:
            problems.append(f"{link.theirs} is missing, expected {list(expected)}")
        elif not have.dtype.is_floating_point or have.element_size() < 2:
            problems.append(
                f"{link.theirs} is {str(have.dtype).removeprefix('torch.')}, expected floating point"
            )
        elif have.shape != expected:
            problems.append(f"{link.theirs} is {list(have.shape)}, expected {list(expected)}")
        else:
            found |= link.to_ours(have, shapes)
    tied = dict(net.named_parameters(remove_duplicate=False))
    owner = {id(p): name for name, p in wanted.items()}
    spare = {}
    for name in tensors.keys() - used:
        known = names.ours(name)
        if known is None:
            problems.append(f"{name if name.isprintable() else repr(name)} is unknown")
        elif known == ("-", ""):
            continue
        elif known[1] not in ("copy", "keep") and known[0] in tied:
            first = found.get(owner[id(tied[known[0]])])
            if first is not None and not torch.equal(tensors[name], first):
                problems.append(f"{name} differs from the tensor that it is tied to")
        elif known[1] in ("copy", "keep") or known[0].startswith("heads."):
            spare[name] = tensors[name]
        else:
            problems.append(f"{name} has no place in this model")
    if problems:
        raise ValueError(f"{folder}: weights and config.json do not fit: " + "; ".join(sorted(problems)))
    place(net, found)
    return spare


def place(net: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Sets parameters, ties included; copies only what does not lie at a 64-byte boundary."""
    parameters = dict(net.named_parameters())
    fresh = {
        id(parameters[name]): nn.Parameter(
            aligned(x), requires_grad=parameters[name].requires_grad and x.is_floating_point()
        )
        for name, x in tensors.items()
    }
    for module in net.modules():
        for name, old in list(module._parameters.items()):
            if old is not None:
                module._parameters[name] = fresh[id(old)]


def pick_device(device: str, dtype: object = None) -> str:
    """`auto` is the fastest device there is."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(f"dtype {dtype}: expected a floating point torch.dtype")
    if device != "auto":
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError, TypeError) as error:
            cause = str(error).splitlines()[0]
            raise ValueError(f"device {device!r}: expected auto, cpu, cuda or mps ({cause})") from None
        return device
    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"


def find(folder_or_id: str | Path, revision: str | None, *, fetch: bool = True) -> Path:
    """The folder itself, or the hub's snapshot of that id; without `fetch`, from its cache alone."""
    if folder_or_id == "":
        raise ValueError("the name of the model is empty, expected a folder or a hub id")
    folder = Path(folder_or_id)
    if (folder / "recipe.toml").is_file() and not (folder / "config.json").exists():
        held = [f"its model is in {folder / name}" for name in ("best", "last") if (folder / name).is_dir()]
        raise ValueError(f"{folder}: the folder of a run; {(*held, 'it has saved no model yet')[0]}")
    if folder.exists():
        return folder
    if is_builtin(folder_or_id):
        return find_builtin(str(folder_or_id))
    if str(folder_or_id).count("/") > 1 or str(folder_or_id).startswith((".", "/", "~")):
        raise ValueError(
            f"{folder_or_id}: no such folder, and no hub id either (expected `name` or `owner/name`)"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    wanted = ["*.json", "*.safetensors", "*.txt", "*.model", "*.spm", "*/config.json"]
    snapshot = partial(snapshot_download, str(folder_or_id), revision=revision, local_files_only=not fetch)
    try:
        path = Path(snapshot(allow_patterns=wanted))
        return path if any(path.glob("*.safetensors")) else Path(snapshot(allow_patterns=[*wanted, "*.bin"]))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{folder_or_id}: no such folder, and the hub did not give it ({cause})") from None
