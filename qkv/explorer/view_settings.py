"""ViewSettings: which view, layer, head and query a picture shows, and the page when it opens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qkv.explorer.generation.beams import MAX_BEAMS, MAX_TREE_DEPTH
from qkv.explorer.inputs.builder import InputBuilder
from qkv.explorer.inputs.labels import TokenSequence
from qkv.explorer.trace.trace import AttentionInfo, Trace
from qkv.tasks.checks import check_boolean_settings, check_choice, check_string_settings
from qkv.validate import check_number

VIEW_NAMES = (
    "head", "model", "matrix", "alignment", "neuron", "generation", "beams", "patterns", "image", "compare",
)  # fmt: skip
GENERATION_VIEWS = ("generation", "beams")
QUERY_VIEWS = ("head", "neuron", "image")  # whose pictures may show one query alone
COMPARED_VIEWS = ("compare", "image")  # that show two models
DEFAULT_NEW_TOKENS = 40  # of beam search, and of a picture of a generation


@dataclass(frozen=True, kw_only=True)
class ViewSettings:
    """What a picture shows, and the page when it opens; None: the first layer, or all heads.

    `query` is the index of a token whose weights alone are shown."""

    view: str | None = None
    path: str | None = None
    layer: int | None = None
    head: int | None = None
    query: int | None = None
    rollout: bool = False
    num_beams: int = 4
    max_new_tokens: int = DEFAULT_NEW_TOKENS

    def check_values(
        self, builder: InputBuilder, *, has_input: bool = True, is_comparison: bool = False
    ) -> None:
        """Raise ValueError unless a model can have the view, and the settings have values that a
        picture can be drawn with."""
        if self.view is not None:
            check_choice("view", self.view, VIEW_NAMES)
        check_string_settings(path=self.path)
        check_boolean_settings(self)
        if self.path is not None and self.layer is not None:
            raise ValueError(f"layer {self.layer!r} and path {self.path!r}: expected one of them")
        for name, number, at_least, at_most in (
            ("num_beams", self.num_beams, 2, MAX_BEAMS),
            ("max_new_tokens", self.max_new_tokens, 1, MAX_TREE_DEPTH),
        ):
            check_number(name, number, integer=True, at_least=at_least, at_most=at_most)
        if self.view in GENERATION_VIEWS and not builder.can_generate:
            raise ValueError(
                f"view {self.view!r}: this model does not generate text token by token, expected one with "
                "a language model head (and not XLNet, whose steps read a query stream)"
            )
        if self.rollout and self.view not in (None, "matrix"):
            raise ValueError(f"rollout with the view {self.view!r}: expected the view 'matrix'")
        if self.rollout and is_comparison:
            raise ValueError("rollout of two models, expected one: remove compare")
        if self.view == "compare" and not is_comparison:
            raise ValueError("view 'compare': expected a second model to compare with")
        for name in ("path", "layer", "head", "query"):
            value = getattr(self, name)
            if value is not None and not has_input:
                raise ValueError(f"{name} {value!r} without an input, expected a text or an image")

    def check(self, trace: Trace) -> None:
        """Raise ValueError unless the trace has the view, the layer, the head and the query."""
        info = self.find_attention(trace)
        for name, value, count in (
            ("head", self.head, info.heads),
            ("query", self.query, info.shape[0]),
        ):
            if value is not None:
                check_number(name, value, integer=True, at_least=0, less_than=count)

    def choose_view(self, trace: Trace) -> str:
        """Return the view; by default, alignment of encoder-decoders, and the image of models of one, if
        they show the path."""
        if self.view is not None:
            return self.view
        if self.rollout:
            return "matrix"
        default = "head"
        if any(sequence.grid for sequence in trace.sequences.values()):
            default = "image"
        elif any(info.kind == "cross" for info in trace.attentions.values()):
            default = "alignment"
        if self.path is None or default == "head":
            return default
        trace.check_path(self.path)
        info = trace.attentions[self.path]
        if info in list_view_attentions(trace, default):
            return default
        return "alignment" if info.kind == "cross" else "head"

    def find_attention(self, trace: Trace) -> AttentionInfo:
        """Return the attention of the path, or of the layer among those that the view shows."""
        view = self.choose_view(trace)
        candidates = list_view_attentions(trace, view)
        if self.path is not None:
            trace.check_path(self.path)
            if trace.attentions[self.path] not in candidates:
                paths = ", ".join(info.path for info in candidates[:4])
                raise ValueError(
                    f"path {self.path!r}: view {view!r} does not show it, expected one such as {paths}"
                )
            return trace.attentions[self.path]
        if self.layer is None:
            is_alignment = self.choose_view(trace) == "alignment"
            return candidates[max(len(candidates) - 2, 0) if is_alignment else 0]
        first = candidates[0]
        layers = [
            info for info in candidates if (info.stack, info.kind) == (first.stack, first.kind)
        ]
        check_number(
            f"layer of {first.kind_name}",
            self.layer,
            integer=True,
            at_least=0,
            less_than=len(layers),
        )
        return layers[self.layer]

    def build_start(self) -> dict[str, Any]:
        """Return what a page shows that has no text yet."""
        view = {} if self.view is None else {"view": self.view}
        return view | {
            "rollout": self.rollout,
            "beams": self.num_beams,
            "maxNewTokens": self.max_new_tokens,
        }

    def build_state(self, trace: Trace) -> dict[str, Any]:
        """Return what the page shows when it opens."""
        view = self.choose_view(trace)
        state = self.build_start() | {"view": view}
        if self.path is not None or self.layer is not None:
            path = self.find_attention(trace).path
            state |= {"path": path, "cross": path if view == "alignment" else ""}
            state |= {"otherPath": path} if view in COMPARED_VIEWS else {}
        if self.head is not None:
            state |= {"head": self.head, "heads": [self.head], "crossHead": self.head}
            state |= (
                {"otherHead": self.head, "otherHeads": [self.head]}
                if view in COMPARED_VIEWS
                else {}
            )
        if self.query is not None:
            state["focus"] = f"q{self.query}"
        return state


def list_view_attentions(trace: Trace, view: str) -> list[AttentionInfo]:
    """Return the attentions that a view shows; raise ValueError if there are none."""
    infos = [*trace.attentions.values()]
    if view == "alignment":
        infos = [info for info in infos if info.kind == "cross"]
        expected = "an encoder-decoder"
    elif view == "image":
        infos = [info for info in infos if find_image(trace, info) is not None]
        infos.sort(key=lambda info: info.kind != "cross")  # what a caption attends to comes first
        expected = "a model of images, and an image"
    elif view == "neuron":
        infos = [info for info in infos if info.has_neurons]
        expected = "attention whose scores are known"
    if not infos:
        raise ValueError(
            f"view {view!r}: this model has nothing to show in it, expected {expected}"
        )
    return infos


def find_image(trace: Trace, info: AttentionInfo) -> TokenSequence | None:
    """Return the sequence of patches among the keys of an attention."""
    sequences = [trace.sequences[name] for name in info.keys]
    return next((sequence for sequence in sequences if sequence.grid), None)
