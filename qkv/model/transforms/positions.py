"""Another way to tell positions apart, in any model that can take it: a change of its spec."""

from dataclasses import replace
from typing import overload

from qkv.families.family import one_of
from qkv.spec import XL, Alibi, Buckets, Everyone, Learned, Local, Rotary, Sinusoid, Spec, Stack, Two

KINDS = ("none", "sinusoid", "learned", "t5", "alibi", "rotary", "xl")


@overload
def with_positions(spec: Spec, kind: str) -> Spec: ...
@overload
def with_positions(spec: Two, kind: str) -> Two: ...
def with_positions(spec: Spec | Two, kind: str) -> Spec | Two:
    """The same model with that kind of positions, in every stack that reads a row of tokens."""
    one_of("positions", kind, dict.fromkeys(KINDS))
    if isinstance(spec, Two):
        if spec.text is None:
            raise ValueError(f"positions {kind!r} in {spec.family}: an image has no row of tokens")
        return replace(spec, text=with_positions(spec.text, kind))
    encoder = spec.encoder and swap(spec.encoder, kind, spec.family)
    return replace(spec, encoder=encoder, decoder=spec.decoder and swap(spec.decoder, kind, spec.family))


def swap(stack: Stack, kind: str, family: str) -> Stack:
    if stack.recall:
        raise ValueError(
            f"positions {kind!r} in {family}: what it remembers is told apart by its own way alone"
        )
    first, old = stack.layers[0].attend, stack.embed.positions
    if kind == "rotary" and first.head_dim % 2:
        raise ValueError(
            f"positions 'rotary' with heads of size {first.head_dim}: expected an even size, it turns pairs"
        )
    table = Learned(count=old.count if isinstance(old, Learned) else 1024)
    embedded: dict[str, Learned | Sinusoid] = {"sinusoid": Sinusoid(), "learned": table}
    relates: dict[str, Rotary | XL] = {"rotary": Rotary(), "xl": XL(width=stack.width)}
    buckets = Buckets(heads=first.heads, both_ways=isinstance(first.pattern, Everyone | Local))
    distances: dict[str, Buckets | Alibi] = {"t5": buckets, "alibi": Alibi(heads=first.heads)}
    turned = [replace(layer.attend, relate=relates.get(kind)) for layer in stack.layers]
    layers = tuple(replace(layer, attend=each) for layer, each in zip(stack.layers, turned, strict=True))
    embed = replace(stack.embed, positions=embedded.get(kind))
    return replace(stack, embed=embed, layers=layers, distance=distances.get(kind))
