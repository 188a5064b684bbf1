"""The views of the explorer as SVG pictures.

H heads, T queries, S keys."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from qkv.explorer.generation.beams import search_beams
from qkv.explorer.generation.steps import run_steps
from qkv.explorer.inputs.builder import InputBuilder
from qkv.explorer.inputs.trace_inputs import UserInput
from qkv.explorer.trace.alignment import align_words
from qkv.explorer.trace.patterns import LayerMask, list_layer_masks
from qkv.explorer.trace.score_parts import list_score_parts
from qkv.explorer.trace.trace import WHOLE, AttentionInfo, Trace
from qkv.explorer.view_settings import ViewSettings, find_image
from qkv.pictures.drawing.token_text import format_token, make_visible
from qkv.pictures.models.patterns import format_index_ranges
from qkv.pictures.views.beams import BeamHypothesis, render_beams_svg
from qkv.pictures.views.candidates import CandidateStep, TokenCandidate, render_candidates_svg
from qkv.pictures.views.heads import render_heads_svg
from qkv.pictures.views.image_weights import ImageWeights, render_image_weights_svg
from qkv.pictures.views.matrix import WeightMatrix, render_matrices_svg
from qkv.pictures.views.model_grid import MAX_THUMBNAIL_CELLS, render_model_grid_svg
from qkv.pictures.views.neurons import render_neurons_svg
from qkv.pictures.views.pattern_masks import render_pattern_masks_svg

PICTURE_PATTERN_SIZE = 32  # queries of a mask
MAX_LABELED_TOKENS = 400  # of a matrix or of lines
MAX_PANELS = 32  # pictures of one image


@dataclass(frozen=True, kw_only=True)
class PictureInput:
    """What a picture is drawn from."""

    name: str  # of the model
    builder: InputBuilder
    user_input: UserInput
    trace: Trace
    settings: ViewSettings
    other_name: str | None = None  # of the model that is compared
    other_trace: Trace | None = None

    @property
    def other(self) -> PictureInput | None:
        """The model that is compared, in the place of the model; None: there is none."""
        if self.other_name is None or self.other_trace is None:
            return None
        return replace(
            self, name=self.other_name, trace=self.other_trace, other_name=None, other_trace=None
        )

    @property
    def info(self) -> AttentionInfo:
        return self.settings.find_attention(self.trace)

    @property
    def heads(self) -> list[int]:
        """The heads that are shown: one, or all."""
        head = self.settings.head
        return [*range(self.info.heads)] if head is None else [head]

    @property
    def queries(self) -> list[str]:
        return [token.text for token in self.trace.sequences[self.info.queries].tokens]

    @property
    def keys(self) -> list[str]:
        return [
            token.text for name in self.info.keys for token in self.trace.sequences[name].tokens
        ]

    @property
    def key_axis(self) -> str:
        """The name of the axis of keys, which says how many of them are memory."""
        if self.info.keys[0] != "memory":
            return "keys"
        return f"keys, the first {len(self.trace.sequences['memory'])} in memory"

    def describe(self, heads: str | None = None) -> str:
        """Return the attention in words: "encoder self-attention, layer 3, head 2"."""
        info, head = self.info, self.settings.head
        heads = heads or ("all heads" if head is None else f"head {head}")
        layer = f"layer {info.layer}"
        is_counted = heads.startswith("head ")
        parts = (
            [layer, f"{heads} (counted from 0)"]
            if is_counted
            else [f"{layer} (counted from 0)", heads]
        )
        return self.add_notice(", ".join([info.kind_name, *parts]))

    def add_notice(self, subtitle: str) -> str:
        """Return a subtitle that also says how the input was cut, if it was."""
        notice = self.trace.inputs.notice
        return f"{subtitle}. {notice}" if notice else subtitle

    def compute_mean(self, info: AttentionInfo) -> Tensor:
        """Return the weights (T, S) of the head, or the mean of all heads."""
        if self.settings.head is None:
            return self.trace.compute_mean_weights(info.path, WHOLE, WHOLE)[0]
        return self.trace.compute_weights(info.path, [self.settings.head], WHOLE, WHOLE)[0]


def render_picture(picture: PictureInput) -> str:
    """Return the SVG of the view."""
    return VIEW_PICTURES[picture.settings.choose_view(picture.trace)](picture)


def render_png(svg: str) -> bytes:
    """Return an SVG as PNG, with two pixels for each of its own."""
    try:
        import resvg_py
    except ImportError:
        raise ValueError(
            "PNG needs the package resvg-py: pip install 'qkv[png]', or save as .svg"
        ) from None
    return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=2))


# --- views ---


def check_labeled_tokens(picture: PictureInput) -> None:
    """Raise ValueError for an attention of too many tokens to label."""
    check_labels("tokens", max(picture.info.shape))


def check_labels(unit: str, count: int) -> None:
    if count > MAX_LABELED_TOKENS:
        raise ValueError(
            f"a picture of {count:,} {unit}, expected at most {MAX_LABELED_TOKENS}: use a shorter text, "
            "or the view model"
        )


def draw_head_view(picture: PictureInput) -> str:
    check_labeled_tokens(picture)
    weights = picture.trace.compute_weights(picture.info.path, picture.heads, WHOLE, WHOLE)
    return render_heads_svg(
        picture.name,
        picture.describe(),
        weights,
        picture.queries,
        picture.keys,
        picture.heads,
        picture.settings.query,
    )


def draw_model_view(picture: PictureInput) -> str:
    name = picture.info.kind_name
    infos = [info for info in picture.trace.attentions.values() if info.kind_name == name]
    size = max(max(info.shape) for info in infos)
    pool = math.ceil(size / MAX_THUMBNAIL_CELLS)
    layers = [
        (
            f"layer {info.layer}",
            picture.trace.compute_weights(info.path, range(info.heads), WHOLE, WHOLE, pool),
        )
        for info in infos
    ]
    return render_model_grid_svg(picture.name, picture.add_notice(name), layers, pool)


def draw_matrix_view(picture: PictureInput) -> str:
    check_labeled_tokens(picture)
    if picture.settings.rollout:
        weights = picture.trace.compute_rollout(picture.info.path, WHOLE, WHOLE)[0]
        subtitle = picture.describe("rollout over the layers up to it")
    else:
        weights = picture.compute_mean(picture.info)
        subtitle = picture.describe("mean of the heads" if picture.settings.head is None else None)
    queries, keys = ([*map(format_token, names)] for names in (picture.queries, picture.keys))
    matrix = WeightMatrix(weights.tolist(), queries, keys, "queries", picture.key_axis)
    return render_matrices_svg(picture.name, subtitle, [matrix])


def draw_compare_view(picture: PictureInput) -> str:
    """Draw the weights of both models on the same text."""
    other = picture.other
    if other is None:
        raise ValueError("view 'compare': expected a second model to compare with")
    matrices = []
    for part in (picture, other):
        check_labeled_tokens(part)
        heads = "mean of the heads" if part.settings.head is None else None
        queries, keys = ([*map(format_token, names)] for names in (part.queries, part.keys))
        weights = part.compute_mean(part.info).tolist()
        title = f"{part.name}: {part.describe(heads)}"
        matrices.append(WeightMatrix(weights, queries, keys, "queries", part.key_axis, title))
    return render_matrices_svg(f"{picture.name} and {other.name}", "", matrices)


def draw_alignment_view(picture: PictureInput) -> str:
    words = align_words(picture.trace, picture.info, picture.compute_mean(picture.info))
    check_labels("words", max(words.weights.shape))
    target, source = ([*map(format_token, names)] for names in (words.target, words.source))
    matrix = WeightMatrix(words.weights.tolist(), target, source, "target", "source")
    subtitle = picture.describe("mean of the heads" if picture.settings.head is None else None)
    return render_matrices_svg(
        picture.name, f"{subtitle}; words alone, without special tokens", [matrix]
    )


def draw_neuron_view(picture: PictureInput) -> str:
    check_labeled_tokens(picture)
    info, query, head = picture.info, picture.settings.query, picture.settings.head or 0
    if query is None:
        query = len(picture.queries) - 1  # a causal mask hides no key from it
    terms = picture.trace.compute_terms(info.path, head, query)
    parts = {part.name: part.values for part in list_score_parts(terms, info.position)}
    vectors = {name: parts.pop(name, None) for name in ("query", "keys")}
    products = parts.pop(next(name for name in parts if parts[name].dim() == 2))
    weights = parts.pop("weight")
    names = {"dot": "q·k", "scaled": f"× {format_scale(terms.scale)}"}
    columns = [(names.get(name, name.replace("position:", "+ ")), x) for name, x in parts.items()]
    return render_neurons_svg(
        picture.name,
        picture.describe(f"head {head}"),
        picture.queries[query],
        vectors["query"],
        picture.keys,
        vectors["keys"],
        products,
        columns,
        weights,
    )


def format_scale(scale: float) -> str:
    """Return the factor of a score: "1/√64", or a number."""
    width = round(1 / scale**2) if scale > 0 else 0
    return f"1/√{width}" if width and abs(scale * math.sqrt(width) - 1) < 1e-6 else f"{scale:.3g}"


def draw_generation_view(picture: PictureInput) -> str:
    limit = picture.settings.max_new_tokens
    steps = run_steps(picture.builder, picture.user_input, {}, limit)
    if not steps:
        raise ValueError("the text leaves no room for new tokens, expected a shorter one")
    rows = []
    for step in steps:
        ids = [row.id for row in step.candidates]
        candidates = [
            TokenCandidate(row.text, row.probability, row.processed, row.is_end)
            for row in step.candidates
        ]
        chosen = ids.index(step.next) if step.next in ids else None
        token = picture.builder.labeler.get_text(step.next)
        rows.append(CandidateStep(token, candidates, chosen))
    subtitle = picture.add_notice(f"after “{make_visible(picture.user_input.text)}”")
    return render_candidates_svg(picture.name, subtitle, rows)


def draw_beams_view(picture: PictureInput) -> str:
    settings = picture.settings
    tree = search_beams(
        picture.builder, picture.user_input, settings.num_beams, settings.max_new_tokens
    )
    steps = [
        [
            BeamHypothesis(node.text, node.parent, node.score, node.is_kept, node.is_finished)
            for node in step
        ]
        for step in tree.steps
    ]
    subtitle = f"beam search with {settings.num_beams} beams: {make_visible(tree.output)}"
    return render_beams_svg(picture.name, picture.add_notice(subtitle), steps, tree.best)


def draw_patterns_view(picture: PictureInput) -> str:
    """Draw each mask and each position bias once, with the layers that have it."""
    attentions = picture.trace.attentions
    masks: dict[tuple[str, str, bytes], list[LayerMask]] = {}
    biases: dict[tuple[str, bytes], list[LayerMask]] = {}
    for layer in list_layer_masks(picture.trace.model, PICTURE_PATTERN_SIZE):
        if layer.path not in attentions:
            continue
        kind = attentions[layer.path].kind_name
        masks.setdefault((kind, layer.pattern, layer.mask.numpy().tobytes()), []).append(layer)
        if layer.bias is not None:
            biases.setdefault((kind, layer.bias.values.numpy().tobytes()), []).append(layer)
    if not masks:
        raise ValueError(
            "view 'patterns': this model has nothing to show in it, expected a Transformer"
        )

    def name_layers(layers: Sequence[LayerMask]) -> str:
        infos = [attentions[layer.path] for layer in layers]
        indices = [*dict.fromkeys(info.layer for info in infos)]
        return f"{infos[0].kind_name}, {format_index_ranges('layer', indices)}"

    named_masks = []
    for (_, pattern, _), layers in masks.items():
        cells = layers[0].describe_cells()
        named_masks.append((f"{pattern}: {name_layers(layers)}{cells}", layers[0].mask.bool()))
    curves = []
    for layers in biases.values():
        bias = layers[0].bias
        assert bias is not None
        curves.append((f"{bias.name} of {name_layers(layers)}", bias.distances, bias.values))
    return render_pattern_masks_svg(picture.name, "masks of the layers", named_masks, curves)


def draw_image_view(picture: PictureInput) -> str:
    """Draw the image once for every query that is shown: one, or those that are no patches."""
    subtitle = picture.describe("mean of the heads" if picture.settings.head is None else None)
    other = picture.other
    if other is None:
        return render_image_weights_svg(picture.name, subtitle, [build_image_weights(picture)])
    images = [replace(build_image_weights(part), title=part.name) for part in (picture, other)]
    return render_image_weights_svg(f"{picture.name} and {other.name}", subtitle, images)


def build_image_weights(picture: PictureInput) -> ImageWeights:
    """Return the image with the weights of the queries that are shown."""
    info, trace = picture.info, picture.trace
    image = find_image(trace, info)
    if image is None or image.picture is None or image.grid is None:
        raise ValueError(f"{info.path} attends to no image, expected an attention over patches")
    start = sum(
        len(trace.sequences[name]) for name in info.keys[: info.keys.index(image_name(trace, info))]
    )
    weights = picture.compute_mean(info)[:, start + image.first_patch : start + len(image)]
    is_self = trace.sequences[info.queries] is image
    queries = range(max(image.first_patch, 1) if is_self else info.shape[0])[:MAX_PANELS]
    if picture.settings.query is not None:
        queries = range(picture.settings.query, picture.settings.query + 1)
    panels = [(picture.queries[query], weights[query].reshape(image.grid)) for query in queries]
    patches = [
        divmod(query - image.first_patch, image.grid[1])
        if is_self and query >= image.first_patch
        else None
        for query in queries
    ]
    mime_type, _, data = image.picture.removeprefix("data:").partition(";base64,")
    return ImageWeights(
        image=base64.b64decode(data), mime_type=mime_type, panels=panels, patches=patches
    )


def image_name(trace: Trace, info: AttentionInfo) -> str:
    return next(name for name in info.keys if trace.sequences[name].grid)


VIEW_PICTURES: dict[str, Callable[[PictureInput], str]] = {
    "head": draw_head_view,
    "model": draw_model_view,
    "matrix": draw_matrix_view,
    "alignment": draw_alignment_view,
    "neuron": draw_neuron_view,
    "generation": draw_generation_view,
    "beams": draw_beams_view,
    "patterns": draw_patterns_view,
    "image": draw_image_view,
    "compare": draw_compare_view,
}
