"""The command `look`: the attention explorer, or a page or picture of it. Torch is imported with the
model."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from qkv.builtin import get_builtin_name
from qkv.cli.flags import BoolFlag, OutputPath, StrictInt, TextArgument, drop_none
from qkv.cli.folders import check_picture_file
from qkv.model.device import DEFAULT_DEVICE

if TYPE_CHECKING:
    from qkv.explorer.explorer import NamedModel
    from qkv.explorer.inputs.trace_inputs import UserInput
    from qkv.explorer.view_settings import ViewSettings

EXAMPLE_TEXT = "Ich habe das Buch, das du mir gestern gegeben hast, noch nicht gelesen."


def look(
    text: TextArgument | None = None,
    /,
    *,
    model: str | None = None,
    compare: str | None = None,
    text_pair: str | None = None,
    target: str | None = None,
    image: Path | None = None,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    adapter: str | None = None,
    device: str = DEFAULT_DEVICE,
    view: Literal[
        "head", "model", "matrix", "alignment", "neuron", "generation", "beams", "patterns", "image",
        "compare",
    ] | None = None,
    layer: StrictInt | None = None,
    path: str | None = None,
    head: StrictInt | None = None,
    query: StrictInt | None = None,
    paths: str | None = None,
    rollout: BoolFlag = False,
    num_beams: StrictInt = 4,
    max_new_tokens: StrictInt = 40,
    save: OutputPath | None = None,
    port: StrictInt = 0,
    browser: bool = True,
) -> None:  # fmt: skip
    """Show what a model attends to: the attention explorer in the browser, or a file of it.

    qkv look "Die Katze sitzt auf der Matte."

    qkv look "The cat sat on the mat." --model gpt2 --save heads.html

    Parameters
    ----------
    text
        text that the model reads; default: an example
    model
        folder of a model, or hub id; default: the built-in translation model
    compare
        a second model, or another checkpoint of a run, shown beside the first
    text_pair
        second text: of an encoder, a pair; with segment recurrence, the text after the first
    target
        text of the decoder; default: what the model generates
    image
        picture file, for models of images; animated image, for models of clips
    src_lang
        source language of a multilingual model; German and English are detected
    tgt_lang
        target language of a multilingual model
    adapter
        folder of a LoRA adapter to load onto the model
    device
        auto, cpu, cuda or mps
    view
        view that opens first, or that is drawn
    layer
        layer of the view, counted from 0
    path
        path of an attention instead of a layer: decoder.layers.3.cross_attention
    head
        head of the view, counted from 0; default: all
    paths
        regular expression of the attentions in a saved page: "decoder.*"; default: all
    query
        index of a token whose weights alone are shown
    rollout
        attention rollout instead of weights, in the view matrix
    num_beams
        beam width of beam search; 1 is greedy search
    max_new_tokens
        maximum number of generated tokens
    save
        write a file instead: .html (the interactive page, self-contained), .svg or .png
    port
        port of the server on this machine; default: any free one
    browser
        open the page in the browser
    """
    if save is not None:
        check_picture_file(save, (".html", ".svg", ".png"))
    if image is not None and not image.is_file():
        raise ValueError(f"--image {image}: no such file, expected a picture")
    if paths is not None and (save is None or save.suffix.lower() != ".html"):
        raise ValueError(
            f"--paths {paths}: it selects the attentions of a page, expected --save FILE.html"
        )
    if save is None and port:
        from qkv.explorer.server.server import bind_port

        bind_port(port).close()  # before the model is loaded
    languages = drop_none(src_lang=src_lang, tgt_lang=tgt_lang)
    main = open_model(model, adapter, device, languages)
    if text is None and model is None:
        text = EXAMPLE_TEXT
    from qkv.explorer.inputs.trace_inputs import UserInput
    from qkv.explorer.view_settings import ViewSettings

    settings = ViewSettings(
        view=view, layer=layer, path=path, head=head, query=query, rollout=rollout,
        num_beams=num_beams, max_new_tokens=max_new_tokens,
    )  # fmt: skip
    user_input = UserInput(text=text or "", text_pair=text_pair, target=target, image=image)
    other = None if compare is None else open_model(compare, None, device, languages)
    if save is not None:
        from qkv.explorer.view import View

        page = View(main, user_input, paths, settings, other)
        page.save(save)
        if page.trace.inputs.notice:
            print(page.trace.inputs.notice, file=sys.stderr)
        print(f"wrote {save}", file=sys.stderr)
        return
    start_explorer(main, other, user_input, settings, port, browser)


def open_model(
    name: str | None, adapter: str | None, device: str, languages: dict[str, Any]
) -> NamedModel:
    """Load a model, with its name on the page."""
    from qkv.explorer.explorer import NamedModel
    from qkv.explorer.inputs.builder import InputBuilder
    from qkv.model.load import load

    loaded = load(name or get_builtin_name("translate"), adapter=adapter, device=device)
    return NamedModel(
        name=name or get_builtin_name("translate"), inputs=InputBuilder(model=loaded, **languages)
    )


def start_explorer(
    main: NamedModel,
    other: NamedModel | None,
    user_input: UserInput,
    settings: ViewSettings,
    port: int,
    browser: bool,
) -> None:
    """Run the model on the input, if there is one, and serve the explorer until Ctrl-C."""
    from qkv.explorer.explorer import Explorer
    from qkv.explorer.server.server import serve_explorer

    explorer = Explorer(main, other)
    config = explorer.build_config(user_input, settings)

    def report(url: str) -> None:
        print(f"attention explorer: {url}\n(Ctrl-C stops it)", flush=True)

    serve_explorer(explorer, config, port=port, open_browser=browser, report=report)
    if explorer.lock.locked():  # a thread computes an answer that nobody reads any more
        sys.stdout.flush()
        os._exit(0)
