"""The border of `Model.run`: what is wrong with the tensors given, in one line, before the network sees them.

Reads names, kinds and shapes, and of values the smallest and largest, in one wait for the device; in a second
where a head looks for the end token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from qkv.batch import Batch, Rows
from qkv.nn.heads import last
from qkv.spec import XL, Experts, Head, Learned, Spec, Stack, Two

WHOLE, WORDS = (torch.int64,), (torch.int64, torch.int32)
KINDS: dict[str, tuple[torch.dtype, ...]] = {
    "ids": WORDS, "target": WORDS, "types": WORDS, "positions": WHOLE, "choice": WHOLE
}  # fmt: skip
MASKS = {"mask", "target_mask", "source_mask"}
FLOATS = {"embeds", "source", "memory", "images"}
BESIDE = {"mask": "ids", "positions": "ids", "types": "ids", "target_mask": "target", "source_mask": "source"}
LACKS = {  # what a model that does not read it lacks
    "types": "token types", "target": "decoder beside its encoder", "source": "cross-attention",
    "memory": "segment recurrence", "permute": "second stream", "targets": "second stream",
    "choice": "head that reads one token", "images": "image tower", "ids": "text tower",
}  # fmt: skip
KEEPS = ("hiddens", "router")


def check_inputs(spec: Spec | Two, given: Mapping[str, object], keep: object = ()) -> None:
    """What `Model.run` was given, None left out: raises ValueError where this model cannot run on it."""
    check_keep(spec, keep)
    tensors: dict[str, Tensor] = {}
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"{name} is a {type(value).__name__}, expected a tensor")
        tensors[name] = value
    check_names(spec, tensors)
    for name, tensor in tensors.items():
        check_kind(name, tensor)
    sizes: dict[str, int] = {}
    highs: dict[str, int | None] = {}
    text = spec.text if isinstance(spec, Two) else spec
    if text is not None:
        check_text(text, tensors, sizes, highs)
    if isinstance(spec, Two) and "images" in tensors:
        check_images(spec, tensors["images"])
    check_values({name: (tensors[name], high) for name, high in highs.items()})


def check_keep(spec: Spec | Two, keep: object) -> None:
    if not isinstance(keep, tuple | list | set | frozenset):
        raise ValueError(f"keep is {keep!r}, expected a tuple of names, such as ('hiddens',)")
    for name in keep:
        if name not in KEEPS:
            raise ValueError(f"keep holds {name!r}, expected {' or '.join(KEEPS)}")
    routed = any(isinstance(layer.feed, Experts) for stack in stacks(spec) for layer in stack.layers)
    if "router" in keep and not routed:
        raise ValueError("keep holds 'router', but this model has no experts")


def check_names(spec: Spec | Two, tensors: Mapping[str, Tensor]) -> None:
    """Is everything given read, and everything there that has to be?"""
    known = reads(spec)
    for name in tensors:
        if name not in known:
            lack = LACKS.get(name) or LACKS[BESIDE.get(name, "ids")]
            raise ValueError(f"{name}: this model has no {lack}; it reads {', '.join(sorted(known))}")
        if name in BESIDE and not tensors.keys() & (
            {"ids", "embeds"} if BESIDE[name] == "ids" else {BESIDE[name]}
        ):
            raise ValueError(f"{name} without {BESIDE[name]}: expected both")
    if "ids" in tensors and "embeds" in tensors:
        raise ValueError("ids and embeds: expected one of them, embeds stand in for ids")
    pair = isinstance(spec, Spec) and spec.encoder is not None and spec.decoder is not None
    starts = {"ids", "embeds"} & known | ({"source"} if pair else set()) | ({"images"} & known)
    if not tensors.keys() & starts:
        raise ValueError(f"nothing to read: expected {' or '.join(sorted(starts))}")
    text = spec.text if isinstance(spec, Two) else spec
    if text and "embeds" in tensors and {*map(take, text.heads)} & {"end", "first end", "top"}:
        raise ValueError("embeds: a head of this model looks for the end token, expected ids")
    if not isinstance(spec, Spec) or not pair or "target" in tensors:
        return
    if spec.shift is None or "ids" not in tensors:
        why = "it is made out of ids only" if spec.shift else "this model does not make it by itself"
        raise ValueError(f"target is missing: expected the decoder's input ids, {why}")


def check_kind(name: str, tensor: Tensor) -> None:
    kind, wanted = tensor.dtype, ""
    if name in KINDS and kind not in KINDS[name]:
        wanted = " or ".join(str(each).removeprefix("torch.") for each in KINDS[name])
    elif name in MASKS and (kind.is_floating_point or kind.is_complex):
        wanted = "bool, true where a token stands"
    elif name in FLOATS and not kind.is_floating_point:
        wanted = "floating point"
    if wanted:
        raise ValueError(f"{name} is {str(kind).removeprefix('torch.')}, expected {wanted}")


def check_text(
    spec: Spec, tensors: Mapping[str, Tensor], sizes: dict[str, int], highs: dict[str, int | None]
) -> None:
    """The shapes of what belongs to rows of tokens; what its values must stay below goes to `highs`."""
    both = [stack for stack in (spec.encoder, spec.decoder) if stack]
    first, last = both[0], both[-1]
    embed, rows, each = first.embed, ("B", "C") if spec.choices else ("B",), "N" if spec.choices else "B"
    given = first.width if embed.cutoffs is not None or embed.width is None else embed.width
    axes: dict[str, tuple[str | int, ...]] = {
        "ids": (*rows, "T"), "embeds": (*rows, "T", given), "mask": (*rows, "T"), "positions": (*rows, "T"),
        "types": (*rows, "T"), "choice": rows, "target": (each, "U"), "target_mask": (each, "U"),
        "source": (each, "S", last.width), "source_mask": (each, "S"), "permute": (each, "T", "T"),
        "targets": (each, "P", "T"), "memory": (len(first.order or first.layers), each, "M", first.width),
    }  # fmt: skip
    for name, wanted in axes.items():
        if name in tensors:
            check_shape(name, tensors[name], wanted, sizes)
            if name in ("ids", "embeds") and spec.choices:
                sizes["N"] = sizes["B"] * sizes["C"]
    highs |= {
        name: stack.embed.vocab for name, stack in (("ids", first), ("target", last)) if name in tensors
    }
    if "types" in tensors:
        highs["types"] = embed.vocab if embed.types == "tokens" else int(embed.types) or None
    if "choice" in tensors:
        highs["choice"] = sizes["T"]
    if "positions" in tensors:
        highs["positions"] = room(first)
    elif "T" in sizes:
        body = "ids" if "ids" in tensors else "embeds"
        shifts = spec.shift is not None and "target" not in tensors
        check_length(body, sizes["T"], tensors.get("mask"), first, *([last] if shifts else []))
    if "target" in tensors:
        check_length("target", sizes["U"], tensors.get("target_mask"), last)
    for head in spec.heads:
        if take(head) == "end" and isinstance(head, Head) and "ids" in tensors:
            check_end(tensors["ids"], head)
            if "target" in tensors and sizes["U"] != sizes["T"]:
                raise ValueError(
                    f"target has {sizes['U']} tokens, expected {sizes['T']} as ids, for the {head.name} head"
                )


def check_end(ids: Tensor, head: Head) -> None:
    lost = torch.ne(ids, head.end or 0).all(-1)
    if bool(lost.any()):
        row = int(lost.int().argmax())
        raise ValueError(
            f"ids: no end token {head.end} in row {row}, expected one: the {head.name} head reads there"
        )


def check_images(spec: Two, images: Tensor) -> None:
    patches = spec.image.encoder.embed.patches if spec.image and spec.image.encoder else None
    if patches is not None:
        check_shape("images", images, ("B", patches.channels, patches.image, patches.image), {})


def check_shape(name: str, tensor: Tensor, wanted: tuple[str | int, ...], sizes: dict[str, int]) -> None:
    """A letter stands for any number that is the same wherever the letter is."""
    found = tuple(tensor.shape)
    known = {axis: sizes[axis] for axis in wanted if isinstance(axis, str) and axis in sizes}
    words = f"({', '.join(map(str, wanted))})" + "".join(f", {axis} = {size}" for axis, size in known.items())
    if len(found) != len(wanted):
        raise ValueError(f"{name} is {found}, expected {words}")
    for axis, size in zip(wanted, found, strict=True):
        right = sizes.setdefault(axis, size) if isinstance(axis, str) else axis
        if size != right:
            raise ValueError(f"{name} is {found}, expected {words}")
        if size == 0 and axis != "M":
            raise ValueError(f"{name} is {found}, expected at least one of each")


def check_length(name: str, length: int, mask: Tensor | None, *read_by: Stack) -> None:
    """No row has more tokens than there are positions; the mask is looked at only if that could be."""
    limit = min((size for stack in read_by if (size := room(stack)) is not None), default=length)
    if length > limit and mask is not None:
        length = int(mask.bool().sum(-1).max())
    if length > limit:
        raise ValueError(
            f"{name}: {length} tokens in a row, expected at most {limit}, the positions this model knows"
        )


def check_values(bounds: Mapping[str, tuple[Tensor, int | None]]) -> None:
    """Every value from 0 to below its bound."""
    if not bounds:
        return
    tensors = [tensor for tensor, _ in bounds.values()]
    ends = [end.to(tensors[0].device).long() for tensor in tensors for end in tensor.aminmax()]
    values = torch.stack(ends).tolist()
    for (name, (_, high)), low, top in zip(bounds.items(), values[::2], values[1::2], strict=True):
        right = "0 or more" if high is None else f"0 to {high - 1}"
        if low < 0:
            raise ValueError(f"{name} holds {low}, expected {right}")
        if high is not None and top >= high:
            raise ValueError(f"{name} holds {top}, expected {right}")


def reads(spec: Spec | Two) -> set[str]:
    """The arguments that mean something to this model."""
    rows = {"ids", "embeds", "mask", "positions"}
    if isinstance(spec, Two):
        return (rows if spec.text else set()) | ({"images"} if spec.image else set())
    both = stacks(spec)
    segments = isinstance(relate := both[0].layers[0].attend.relate, XL) and relate.segments
    crossed, streams = both[-1].layers[0].cross is not None, both[0].embed.query
    more = {
        "choice": "choice" in map(take, spec.heads), "types": bool(both[0].embed.types) or segments,
        "target": len(both) == 2, "target_mask": len(both) == 2, "source": crossed, "source_mask": crossed,
        "memory": both[0].recall is not None, "permute": streams, "targets": streams,
    }  # fmt: skip
    return rows | {name for name, yes in more.items() if yes}


def stacks(spec: Spec | Two) -> list[Stack]:
    if isinstance(spec, Two):
        return [stack for half in (spec.text, spec.image) if half for stack in stacks(half)]
    return [stack for stack in (spec.encoder, spec.decoder) if stack]


def take(head: object) -> str:
    return head.take if isinstance(head, Head) else ""


def room(stack: Stack) -> int | None:
    """How many positions it can tell apart; None: any number."""
    table = stack.embed.positions
    return table.count - table.offset if isinstance(table, Learned) else None


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
