"""Whatever lies in a folder, opened: Hugging Face's and our own by `model`, adapters by `adapter`, fairseq's
and CTranslate2's here.

Knows how those programs state sizes and name tensors; imports none of them, and runs no code in a file."""

from __future__ import annotations

import argparse
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.adapter.read import read_adapter
from qkv.adapter.settings import base_of, is_adapter
from qkv.config import write_config
from qkv.families import family
from qkv.families.family import Args, Family
from qkv.families.roberta import FAIRSEQ
from qkv.model import Model, fill, find, load_folder, make_spec, pick_device, skeleton, tokenizer_files
from qkv.weights.ctranslate2 import read_ctranslate2
from qkv.weights.files import nonfinite, read_json, read_torch
from qkv.weights.keymap import KeyMap


class Foreign(NamedTuple):
    """What a file of another program holds, in our terms."""

    path: Path
    kin: Family
    args: Args
    config: dict[str, Any]
    table: str  # our names and theirs
    tensors: dict[str, Tensor]


def load(
    folder_or_id: str | Path,
    *,
    adapter: str | Path | None = None,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
    revision: str | None = None,
) -> Model:
    """Opens a folder of Hugging Face's, ours, CTranslate2's or fairseq's, or fetches one by its hub id.

    `adapter` is put onto it. A folder that is an adapter itself is opened with the model it names."""
    place = pick_device(device, dtype)
    path, named = find(folder_or_id, revision), str(folder_or_id)
    if is_adapter(path) and adapter is None:
        adapter, (named, path) = path, base_of(path)
    if is_adapter(path):
        raise ValueError(
            f"{path}: an adapter itself, expected a model to put {adapter} on; qkv merge it first"
        )
    if is_fairseq(path) or is_ctranslate2(path):
        model = (open_fairseq if is_fairseq(path) else open_ctranslate2)(path)
        model.net.to(device=place, dtype=dtype)
    else:
        model = load_folder(path, device=device, dtype=dtype)
    if adapter is not None:
        home = find(adapter, None)
        model = read_adapter(model, home)
        model.base = named
        if tokenizer_files(home):
            model.home = home
    return model


def is_fairseq(path: str | Path) -> bool:
    """Is it a .pt file, or a folder without a config.json that holds one? Nothing is opened."""
    path = Path(path)
    if path.is_dir():
        return not (path / "config.json").exists() and any(path.glob("*.pt"))
    return path.suffix == ".pt" and path.is_file()


def is_ctranslate2(path: str | Path) -> bool:
    """Is it a folder whose model.bin begins as CTranslate2's do? Four bytes are read."""
    file = Path(path) / "model.bin"
    if not file.is_file():
        return False
    try:
        with file.open("rb") as start:
            return 2 <= int.from_bytes(start.read(4), "little") <= 6
    except OSError:
        return False


def open_fairseq(path: str | Path, head: str | None = None) -> Model:
    """A RoBERTa that fairseq saved: a .pt file, or the folder with it and its dict.txt.

    `head` is "lm" or the name of a classification head; None: the only classification head, else "lm"."""
    return _open(read_fairseq(Path(path), head))


def open_ctranslate2(folder: str | Path) -> Model:
    """An encoder-decoder that CTranslate2 converted, as a model of the `transformer` family."""
    return _open(read_transformer(Path(folder)))


def _open(found: Foreign) -> Model:
    path, kin, args, config, table, tensors = found
    try:
        net = skeleton(make_spec(kin, args))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    fill(net, KeyMap(table), tensors, path)
    for name in nonfinite(dict(net.named_parameters())):
        warnings.warn(f"{path}: {name} holds values that are not finite", stacklevel=3)
    return Model(kin, args, net.eval(), config)


def _table(tensors: Mapping[str, Tensor], name: str, path: Path) -> Tensor:
    """A tensor of two axes that sizes are read from."""
    tensor = tensors.get(name)
    if tensor is None or tensor.dim() != 2:
        found = "missing" if tensor is None else list(tensor.shape)
        raise ValueError(f"{path}: {name} is {found}, expected a tensor of two axes")
    return tensor


def _check_heads(width: int, heads: int, path: Path) -> None:
    if not 0 < heads <= width or width % heads:
        raise ValueError(f"{path}: {heads} heads in a width of {width}, expected a number that divides it")


def _arguments(kin: Family, path: Path, **stated: Any) -> Args:
    try:
        return kin.arguments(None, **stated)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


# --- fairseq ---

# Settings that change the numbers, with the only value that the family has for each.
FAIRSEQ_ONLY: dict[str, Any] = dict(
    activation_fn="gelu", adaptive_input=False, encoder_layers_to_keep=None, encoder_learned_pos=True,
    encoder_normalize_before=False, layernorm_embedding=True, no_scale_embedding=True,
    no_token_positional_embeddings=False, pooler_activation_fn="tanh",
    spectral_norm_classification_head=False,
)  # fmt: skip
FAIRSEQ_SIZES = dict(width="encoder_embed_dim", depth="encoder_layers", feed="encoder_ffn_embed_dim")
FAIRSEQ_NUMBERS = dict(heads="encoder_attention_heads", drop="dropout", attend_drop="attention_dropout")
FAIRSEQ_MORE = """
    encoder.embed.types                  types
    heads.label.(dense|out)              classifier.(dense|out_proj)
"""
STACK = "encoder.sentence_encoder"
PAD = 1  # fairseq's dictionaries begin with <s> <pad> </s> <unk>


def read_fairseq(path: Path, head: str | None = None) -> Foreign:
    """The settings and the tensors of a checkpoint, names of older versions made new."""
    path = _checkpoint(path)
    state = read_torch(path, allow=(argparse.Namespace,))
    held = state.get("model") if isinstance(state, dict) else None
    if not isinstance(state, dict) or not isinstance(held, dict) or not _is_roberta(held):
        raise ValueError(f"{path}: no RoBERTa of fairseq in it; expected `model` with a sentence_encoder")
    settings = _settings(state, path)
    tensors = _respelled(held, path)
    chosen, left = _choose_head(tensors, head, path)
    if left:
        warnings.warn(f"{path}: opened with the head {chosen}, without {', '.join(left)}", stacklevel=4)
    gone = tuple("encoder.lm_head." if name == "lm" else f"classification_heads.{name}." for name in left)
    start = f"classification_heads.{chosen}."
    tensors = {
        f"classifier.{name.removeprefix(start)}" if name.startswith(start) else name: x
        for name, x in tensors.items()
        if not name.startswith(gone)
    }
    tokens = _table(tensors, f"{STACK}.embed_tokens.weight", path)
    places = _table(tensors, f"{STACK}.embed_positions.weight", path)
    feed = len(_table(tensors, f"{STACK}.layers.0.fc1.weight", path))
    layers = {name.split(".")[3] for name in tensors if name.startswith(f"{STACK}.layers.")}
    args: Args = dict(width=tokens.shape[1], depth=len(layers), feed=feed)
    for ours, theirs in FAIRSEQ_SIZES.items():
        if settings.get(theirs, args[ours]) != args[ours]:
            raise ValueError(f"{path}: {theirs} is {settings[theirs]!r}, but its tensors say {args[ours]}")
    args |= {ours: settings[theirs] for ours, theirs in FAIRSEQ_NUMBERS.items() if theirs in settings}
    if "heads" not in args:
        raise ValueError(f"{path}: no {FAIRSEQ_NUMBERS['heads']} in its settings, expected a number")
    _check_heads(args["width"], args["heads"], path)
    if chosen == "lm":
        out = tensors.get("encoder.lm_head.weight", tokens)
        args |= dict(head="masked-lm", tied=torch.equal(out, tokens))
    else:
        labels = len(_table(tensors, "classifier.out_proj.weight", path))
        args |= dict(head="label", labels=labels, label_drop=settings.get("pooler_dropout"))
    kin = family("roberta")
    args |= dict(vocab=len(tokens), length=len(places), types=1, eps=1e-5, pad=PAD)
    args = _arguments(kin, path, **args)
    tensors["types.weight"] = tokens.new_zeros(1, tokens.shape[1])  # fairseq has no types: ours adds 0
    rows = [row for row in FAIRSEQ.splitlines() if "in_proj" not in row]
    return Foreign(path, kin, args, write_config(kin, args), "\n".join(rows) + FAIRSEQ_MORE, tensors)


def _checkpoint(path: Path) -> Path:
    """The file itself, or the one that counts in a folder."""
    if not path.is_dir():
        return path
    found = sorted(path.glob("*.pt"))
    names = ("model.pt", "checkpoint_best.pt", "checkpoint_last.pt", "checkpoint.pt")
    usual = [path / name for name in names if path / name in found]
    if usual or len(found) == 1:
        return (usual or found)[0]
    held = ", ".join(each.name for each in found) or "none"
    raise ValueError(f"{path}: which .pt file? It holds {held}; give the path of one")


def _is_roberta(held: Mapping[Any, Any]) -> bool:
    named = any(".sentence_encoder." in str(name) for name in held)
    return named and all(isinstance(x, Tensor) for x in held.values())


def _settings(state: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """`args`, or the part `model` of `cfg` in newer files: a Namespace, or a dict."""
    cfg = state.get("cfg")
    stated = state.get("args") or (cfg.get("model") if isinstance(cfg, dict) else None)
    settings = vars(stated) if isinstance(stated, argparse.Namespace) else stated
    if not isinstance(settings, dict):
        raise ValueError(f"{path}: neither args nor cfg.model in it; expected the settings of its training")
    wrong = [
        f"{key} is {settings[key]!r}, supported: {value!r}"
        for key, value in FAIRSEQ_ONLY.items()
        if key in settings and settings[key] != value
    ]
    for key in (*FAIRSEQ_NUMBERS.values(), "pooler_dropout"):
        number, kinds = settings.get(key, 0), (int, float) if key.endswith("dropout") else (int,)
        if type(number) not in kinds:
            wrong.append(f"{key} is {number!r}, expected a number")
    if wrong:
        raise ValueError(f"{path}: {'; '.join(wrong)}")
    return settings


def _respelled(held: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Tensors as the newest fairseq names and splits them; buffers that hold no weight go."""
    found: dict[str, Tensor] = {}
    for name, tensor in held.items():
        new = re.sub(r"^decoder\.", "encoder.", name).replace(".layernorm_embedding.", ".emb_layer_norm.")
        at, fused, leaf = new.partition(".in_proj_")  # before 0.8: q, k and v in one
        if name.endswith((".version", "._float_tensor")):
            continue
        parts = {f"{at}.{q}_proj.{leaf}": x for q, x in zip("qkv", tensor.chunk(3), strict=False)}
        for each, x in parts.items() if fused else [(new, tensor)]:
            if each in found:
                raise ValueError(f"{path}: {each} is there twice, once under an older name; is it damaged?")
            found[each] = x
    return found


def _choose_head(tensors: Mapping[str, Tensor], head: str | None, path: Path) -> tuple[str, list[str]]:
    """The head to open, and the others that the file holds."""
    starts = ("classification_heads.", "encoder.lm_head.")
    held = [name.split(".")[:2] for name in tensors if name.startswith(starts)]
    heads = list(dict.fromkeys("lm" if first == "encoder" else name for first, name in held))
    heads.sort(key="lm".__eq__)  # the last
    if head is None and (len(heads) == 1 or heads[1:] == ["lm"]):
        head = heads[0]
    if head is None or head not in heads:
        what = f"no head {head!r} in it" if head else "which head" if heads else "no head in it"
        known = ", ".join(heads) or "encoder.lm_head, classification_heads"
        raise ValueError(f"{path}: {what}; expected one of {known}")
    return head, [name for name in heads if name != head]


# --- CTranslate2 ---

# Its names with dots for slashes, weight and bias for gamma and beta.
CTRANSLATE2 = """
    @.embed.tokens                       @.embeddings
    @.embed.positions.weight             @.position_encodings.encodings
    @.embed.norm                         @.layernorm_embedding
    @.layers.{}.attend.q,k,v             @.layer_{}.self_attention.linear_0
    @.layers.{}.attend.o                 @.layer_{}.self_attention.linear_1
    @.layers.{}.SIDE_attend              @.layer_{}.self_attention.layer_norm
    decoder.layers.{}.cross.q            decoder.layer_{}.attention.linear_0
    decoder.layers.{}.cross.k,v          decoder.layer_{}.attention.linear_1
    decoder.layers.{}.cross.o            decoder.layer_{}.attention.linear_2
    decoder.layers.{}.SIDE_cross         decoder.layer_{}.attention.layer_norm
    @.layers.{}.feed.(up|down)           @.layer_{}.ffn.(linear_0|linear_1)
    @.layers.{}.SIDE_feed                @.layer_{}.ffn.layer_norm
    @.norm                               @.layer_norm
    heads.lm.out                         decoder.projection
"""
HEADS = dict(TransformerBase=8, TransformerBig=16, TransformerSpec=8)  # where the file does not say
ACTS = dict(enumerate(("relu", "gelu_new", "silu", "gelu", "quick_gelu", "tanh", "sigmoid")))
# Numbers beside the tensors: those that must be as they are here, and those that change no output.
CTRANSLATE2_ONLY = dict(
    alibi=0, layer_norm_use_residual=0, multi_query_attention=0, scale_outputs=1, sliding_window=0,
    start_from_zero_embedding=0,
)  # fmt: skip
CTRANSLATE2_IDLE = {
    "alibi_use_positive_positions", "alignment_heads", "alignment_layer", "embeddings_merge",
    "keep_in_float32", "scale_alibi",
}  # fmt: skip
CTRANSLATE2_CONFIG = dict(layer_norm_epsilon=(None, 1e-5), multi_query_attention=(None, False))
# The tokens that a newer config.json names, and what they are where it does not.
CTRANSLATE2_TOKENS = dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>", decoder_start_token="<s>")


def read_transformer(folder: Path) -> Foreign:
    """The settings and the variables of an encoder-decoder that CTranslate2 converted."""
    spec, revision, variables, vocabularies = read_ctranslate2(folder)
    path = folder / "model.bin"
    if spec not in HEADS or revision < 2:
        known = ", ".join(HEADS)
        raise ValueError(f"{path}: {spec!r}, revision {revision}; supported: {known}, revision 2 or later")
    stated = read_json(folder / "config.json") if (folder / "config.json").exists() else {}
    wrong = [
        f"{key} is {stated[key]!r}, supported: {' or '.join(map(repr, allowed))}"
        for key, allowed in CTRANSLATE2_CONFIG.items()
        if key in stated and stated[key] not in allowed
    ]
    tensors, numbers = _sorted_out(variables)
    encoder, decoder = (_side(side, tensors, numbers, HEADS[spec], path) for side in ("encoder", "decoder"))
    apart = ("depth", "heads", "feed")  # in these the two may differ
    wrong += [
        f"{name} is {value!r} in the encoder and {decoder[name]!r} in the decoder, expected the same"
        for name, value in encoder.items()
        if name not in apart and decoder[name] != value
    ]
    wrong += _odd(numbers)
    if wrong:
        raise ValueError(f"{path}: {'; '.join(wrong)}")
    source, target = tensors["encoder.embeddings.weight"], tensors["decoder.embeddings.weight"]
    tied = torch.equal(_table(tensors, "decoder.projection.weight", path), target)
    kin = family("transformer")
    args = _arguments(
        kin, path, vocab=len(source), target_vocab=len(target), tied=tied,
        shared=tied and torch.equal(source, target), lm_bias="decoder.projection.bias" in tensors,
        **encoder, **{f"decoder_{name}": decoder[name] for name in apart},
    )  # fmt: skip
    table = CTRANSLATE2.replace("SIDE", args["norms"])
    return Foreign(path, kin, args, {**stated, **_token_ids(stated, vocabularies)}, table, tensors)


def _sorted_out(variables: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The tensors, all of the widest dtype among them, and the numbers; names as in the table."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, float] = {}
    wide = torch.float16
    for name, x in variables.items():
        new = name.replace("/embeddings_0/", "/embeddings/").replace("/", ".")
        new = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", new))
        if x.dim() == 0:
            numbers[new] = x.item()
        elif new != "unk_token":
            tensors[new] = x
            wide = torch.promote_types(wide, x.dtype)
    return {name: x.to(wide) for name, x in tensors.items()}, numbers


def _side(
    side: str, tensors: Mapping[str, Tensor], numbers: dict[str, float], heads: int, path: Path
) -> Args:
    """What the encoder or the decoder says of itself; the numbers it says it with are taken out."""

    def said(name: str, default: float) -> float:
        return numbers.pop(f"{side}.{name}", numbers.get(name, default))  # before revision 5, one for both

    width = _table(tensors, f"{side}.embeddings.weight", path).shape[1]
    act, scale = said("activation", 0), said("embeddings.multiply_by_sqrt_depth", 1)
    scale = said("scale_embeddings", scale)
    if act not in ACTS:
        raise ValueError(f"{path}: {side}/activation is {act}, expected 0 to {len(ACTS) - 1}")
    if isinstance(scale, float) and scale != 1 and abs(scale - width**0.5) > 1e-3:
        raise ValueError(f"{path}: {side}/scale_embeddings is {scale}, supported: 1 or {width}**0.5")
    _check_heads(width, heads := int(said("num_heads", heads)), path)
    layers = {found[1] for name in tensors if (found := re.match(rf"{side}\.layer_(\d+)\.", name))}
    feed = len(_table(tensors, f"{side}.layer_0.ffn.linear_0.weight", path))
    places = tensors.get(f"{side}.position_encodings.encodings")
    return dict(
        width=width, depth=len(layers), feed=feed, heads=heads, act=ACTS[int(act)],
        scaled=scale != 1 if isinstance(scale, float) else bool(scale),  # the number itself, or a flag
        norms="before" if said("pre_norm", 1) else "after",
        embed_norm=f"{side}.layernorm_embedding.weight" in tensors,
        final_norm=f"{side}.layer_norm.weight" in tensors,
        sinusoid="ends" if places is None else None, offset=1 if places is None else 0,
        length=1 if places is None else len(places),
    )  # fmt: skip


def _odd(numbers: Mapping[str, float]) -> list[str]:
    """The numbers that say something which no part of the network does."""
    wrong = []
    for name, value in numbers.items():
        last = name.rpartition(".")[2]
        if last in CTRANSLATE2_ONLY and value != CTRANSLATE2_ONLY[last]:
            wrong.append(f"{name} is {value}, supported: {CTRANSLATE2_ONLY[last]}")
        elif last not in {*CTRANSLATE2_ONLY, *CTRANSLATE2_IDLE, "num_heads", "pre_norm", "activation"}:
            wrong.append(f"{name} is {value}, which is not supported")
    return wrong


def _token_ids(stated: Mapping[str, Any], vocabularies: Mapping[str, list[str]]) -> dict[str, int]:
    """Where the special tokens stand in the target's vocabulary."""
    words = vocabularies.get("target", vocabularies.get("shared", []))
    tokens = {f"{name}_id": stated.get(name, usual) for name, usual in CTRANSLATE2_TOKENS.items()}
    return {name: words.index(token) for name, token in tokens.items() if token in words}
