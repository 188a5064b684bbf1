"""Which models fit which task, by the heads and the shape that they have. Knows no text."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from qkv.families import list_families
from qkv.model.model import Model
from qkv.spec import Causal, Spec, Two

Fits = Callable[[Spec], bool]


class Need(NamedTuple):
    """What a task needs of a model: in words, as a test, and which heads of the families have it."""

    what: str
    fits: Fits
    heads: tuple[str, ...]


def heads(spec: Spec | Two) -> list[str]:
    return [head.name for head in spec.heads] if isinstance(spec, Spec) else []


def shape(spec: Spec | Two) -> str:
    """In words: "an encoder with a label head"."""
    if isinstance(spec, Two):
        halves = [name for name, half in (("text", spec.text), ("image", spec.image)) if half]
        return f"a tower for {halves[0]}s" if len(halves) == 1 else "two towers, for texts and images"
    kind = "an encoder-decoder" if spec.encoder and spec.decoder else "a decoder"
    kind = "an encoder" if spec.decoder is None else kind
    found = [name for name in heads(spec) if name not in ("pooler", "summary")]
    return f"{kind} with the head {' and '.join(found)}" if found else f"{kind} without a head"


def headed(name: str) -> Fits:
    return lambda spec: name in heads(spec)


def one_way(spec: Spec) -> bool:
    """Does every token see only what stands before it, and nothing else?"""
    if spec.decoder is not None:
        return spec.encoder is None and spec.decoder.layers[0].cross is None
    assert spec.encoder is not None
    return isinstance(spec.encoder.layers[0].attend.pattern, Causal)


def sees_both_sides(spec: Spec) -> bool:
    """Does it read a hidden word from both sides? XLNet does not: it needs its second stream for that."""
    return spec.encoder is not None and not one_way(spec) and not spec.encoder.embed.query


def fills(spec: Spec) -> bool:
    return "lm" in heads(spec) and sees_both_sides(spec) and (spec.decoder is None or spec.shift is not None)


def scores(spec: Spec) -> bool:
    return "lm" in heads(spec) and (one_way(spec) or (sees_both_sides(spec) and spec.decoder is None))


def rewrites(spec: Spec) -> bool:
    return "lm" in heads(spec) and spec.encoder is not None and spec.decoder is not None


def goes_on(spec: Spec) -> bool:
    """Does it say the next word? XLNet does, by its second stream."""
    xlnet = spec.decoder is None and spec.encoder is not None and spec.encoder.embed.query
    return "lm" in heads(spec) and (one_way(spec) or xlnet)


SPAN = Need("a head for spans", headed("span"), ("span",))
REWRITES = Need("an encoder-decoder with the head lm", rewrites, ("lm",))
NEEDS = {
    "classify": Need("a head for labels", headed("label"), ("label",)),
    "tag": Need("a head that labels every token", headed("tag"), ("tag",)),
    "fill": Need("a head for masked words", fills, ("masked-lm",)),
    "answer": Need(
        f"{SPAN.what}, or {REWRITES.what}",
        lambda spec: SPAN.fits(spec) or rewrites(spec),
        ("span", "lm"),
    ),
    "embed": Need(
        "an encoder or a decoder alone", lambda spec: not (spec.encoder and spec.decoder), ("none",)
    ),
    "match": Need("two towers, for texts and images", lambda spec: False, ("both",)),
    "detect": Need("a head that tells replaced tokens", headed("replaced"), ("replaced",)),
    "score": Need("a decoder with the head lm, or a head for masked words", scores, ("lm", "masked-lm")),
    "translate": REWRITES,
    "complete": Need("a decoder with the head lm, or XLNet's", goes_on, ("lm",)),
    "summarise": REWRITES,
}


def check_fits(model: Model, task: str, need: Need | None = None) -> None:
    """Complains, in a line, of a model that cannot do this; `need`: of a task that is done in another way."""
    need, spec = need or NEEDS[task], model.spec
    if isinstance(spec, Two):
        fit = {"match": spec.text is not None and spec.image is not None, "embed": spec.text is not None}
        good = fit.get(task, False) and (spec.temperature is not None or task == "embed")
    else:
        good = need.fits(spec)
    if not good:
        here = f"{model.home}: this folder holds" if model.home else f"this {model.family.name} is"
        raise ValueError(
            f"{here} {shape(spec)}; `{task}` needs {need.what}. Models that fit: {fitting(task, need)}"
        )


def fitting(task: str, need: Need | None = None) -> str:
    """The families that can do a task, and with which head."""
    _, fits, wanted = need or NEEDS[task]
    both = [(kin, head) for kin in list_families() for head in wanted if head in kin.heads]
    specs = [(kin.name, kin.make(**kin.arguments(head=head))) for kin, head in both]
    names = [name for name, spec in specs if (task == "match" if isinstance(spec, Two) else fits(spec))]
    head = "any head" if wanted == ("none",) else f"the head {' or '.join(wanted)}"
    return f"{', '.join(dict.fromkeys(names))}, with {head}"
