"""View: what a model attends to in one input, in a notebook cell or saved as a page or a picture."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from pathlib import Path

from qkv.attention_weights import Paths
from qkv.explorer.embedding import build_embedded_config
from qkv.explorer.explorer import Explorer, NamedModel
from qkv.explorer.inputs.builder import InputBuilder
from qkv.explorer.inputs.trace_inputs import UserInput
from qkv.explorer.picture import PictureInput, render_picture, render_png
from qkv.explorer.server.page import render_page
from qkv.explorer.trace.trace import Trace
from qkv.explorer.view_settings import COMPARED_VIEWS, GENERATION_VIEWS, QUERY_VIEWS, ViewSettings
from qkv.model.load import load
from qkv.model.model import Model
from qkv.staging import write_file
from qkv.tasks.images import ImageInput

FRAME_HEIGHT = 720  # pixels of a notebook cell
SAVE_SUFFIXES = (".html", ".svg", ".png")


class View:
    """The attention of a model in one input. In a notebook, it is shown as an interactive page."""

    def __init__(
        self,
        model: NamedModel,
        user_input: UserInput,
        paths: Paths,
        settings: ViewSettings,
        other: NamedModel | None = None,
    ) -> None:
        self.explorer = Explorer(model, other)
        self.user_input = user_input
        self.paths = paths
        self.settings = settings
        settings.check_values(model.inputs, is_comparison=other is not None)
        self.trace = Trace(model.inputs.model, model.inputs.build(user_input))
        self.other_trace = None
        if other is not None:
            target = self.trace.inputs.target or user_input.target
            other_input = other.inputs.select(replace(user_input, target=target))
            try:
                self.other_trace = Trace(other.inputs.model, other.inputs.build(other_input))
            except ValueError as error:
                raise ValueError(f"{other.name}: {error}") from None
        settings.check(self.trace)
        if self.other_trace is not None and self.picture_view in COMPARED_VIEWS:
            settings.check(self.other_trace)

    @property
    def picture_view(self) -> str:
        """The view of the picture: of two models, by default, their comparison."""
        view = self.settings.choose_view(self.trace)
        is_default = self.settings.view is None and self.other_trace is not None
        return "compare" if is_default and view != "image" else view

    def html(self) -> str:
        """Return a self-contained page: no network, no server."""
        if self.settings.view in GENERATION_VIEWS:
            raise ValueError(
                f"view {self.settings.view!r}: a saved page runs no model, expected a file .svg or .png of "
                "it, or the served page"
            )
        config = build_embedded_config(self.explorer, self.trace, self.paths, self.other_trace)
        config["trace"] |= {"text": self.user_input.text, "text_pair": self.user_input.text_pair}
        settings = replace(self.settings, view=self.picture_view)
        config["state"] = settings.build_state(self.trace)
        path = config["state"].get("path")
        if path is not None and path not in config["weights"]:
            raise ValueError(f"paths={self.paths!r} leaves out {path}, the attention of the view")
        return render_page(config, is_saved=True).html

    def svg(self) -> str:
        """Return the picture of the view, layer and head."""
        model, other, view = self.explorer.main, self.explorer.other, self.picture_view
        if other is not None and view not in COMPARED_VIEWS:
            raise ValueError(
                f"view {view!r}: its picture shows one model, expected {' or '.join(COMPARED_VIEWS)} "
                "for two"
            )
        if self.settings.query is not None and view not in QUERY_VIEWS:
            raise ValueError(
                f"query {self.settings.query}: a picture of the view {view!r} shows all of them, expected "
                f"the view {' or '.join(QUERY_VIEWS)}"
            )
        return render_picture(
            PictureInput(
                name=model.name,
                builder=model.inputs,
                user_input=self.user_input,
                trace=self.trace,
                settings=replace(self.settings, view=view),
                other_name=None if other is None else other.name,
                other_trace=self.other_trace,
            )
        )

    def save(self, path: str | Path) -> None:
        """Save as .html (the interactive page), .svg or .png (a picture; needs the extra png)."""
        path = Path(path)
        suffix = path.suffix.lower()
        if suffix not in SAVE_SUFFIXES:
            raise ValueError(f"{path}: expected a file name that ends with .html, .svg or .png")
        data = self.html() if suffix == ".html" else self.svg()
        content = render_png(data) if suffix == ".png" else data.encode("utf-8")
        with write_file(path) as temporary:
            temporary.write_bytes(content)

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{encode_ascii(self.html())}" title="attention explorer" loading="lazy" '
            f'sandbox="allow-scripts allow-downloads" '
            f'style="width: 100%; height: {FRAME_HEIGHT}px; border: 0"></iframe>'
        )


def encode_ascii(html: str) -> str:
    """Return HTML as the value of an attribute, in characters that every encoding of the page has."""
    return escape(html).encode("ascii", "xmlcharrefreplace").decode()


def view(
    model: Model | str | Path,
    text: str = "",
    text_pair: str | None = None,
    *,
    target: str | None = None,
    image: ImageInput | None = None,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    compare: Model | str | Path | None = None,
    paths: Paths = None,
    view: str | None = None,
    layer: int | None = None,
    path: str | None = None,
    head: int | None = None,
    query: int | None = None,
    rollout: bool = False,
    num_beams: int = 4,
    max_new_tokens: int = 40,
) -> View:
    """Return what a model attends to in a text, an image, or both: a page for a notebook, or a file.

    A target that is not given is generated. `compare` is a second model for the same input. `paths`
    selects the attentions of the page, as in `look`.
    The settings from `view` on are those of pictures, and of the page when it opens."""
    main, other = (
        None if x is None else name_model(x, src_lang=src_lang, tgt_lang=tgt_lang)
        for x in (model, compare)
    )
    assert main is not None
    user_input = UserInput(text=text, text_pair=text_pair, target=target, image=image)
    settings = ViewSettings(
        view=view,
        layer=layer,
        path=path,
        head=head,
        query=query,
        rollout=rollout,
        num_beams=num_beams,
        max_new_tokens=max_new_tokens,
    )
    return View(main, user_input, paths, settings, other)


def name_model(
    model: Model | str | Path, *, src_lang: str | None, tgt_lang: str | None
) -> NamedModel:
    """Return a model with its name on the page, loaded if it is a folder or a hub id."""
    loaded = model if isinstance(model, Model) else load(model)
    name = loaded.family.name if isinstance(model, Model) else str(model)
    inputs = InputBuilder(model=loaded, src_lang=src_lang, tgt_lang=tgt_lang)
    return NamedModel(name=name, inputs=inputs)
