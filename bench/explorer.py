"""Measure the attention explorer in Chromium without a GPU: frames per second, and seconds to open it.

    python bench/explorer.py [--length 1024] [--long 4096] [--seconds 3] [--size 1600x1000] [--small]

The model is GPT-2 124M (12 layers of 12 heads) with random weights and a tokenizer of bytes; its
queries and keys are scaled so that heads attend to about ten tokens, as those of trained models do.

    panning   the matrix is dragged, and the columns of the head view are scrolled, without a pause; frame
              times are those between animation frames; `draw` is the time that the page needs for one
    opening   from the navigation until the page has drawn everything, with a text in the address
    views     from a click on a tab until the view has drawn everything

The browser draws in software, as a server without a screen does. Server, model and browser share the
machine."""

from __future__ import annotations

import argparse
import itertools
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import torch
import uvicorn
from playwright.sync_api import Browser, Page, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import qkv
from qkv.explorer.explorer import Explorer, NamedModel
from qkv.explorer.inputs.builder import InputBuilder
from qkv.explorer.inputs.trace_inputs import UserInput
from qkv.explorer.server.app import create_app, list_loopback_hosts
from qkv.explorer.server.server import LOOPBACK_ADDRESS, bind_port
from qkv.explorer.view_settings import ViewSettings

SENTENCE = "The quick brown fox jumps over the lazy dog, and the dog sleeps on the other side of the hill. "
FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
TOKEN = "benchmark"
TIMEOUT = 120_000  # milliseconds
ATTENTION_SCALE = 3.0  # of the weights of queries and keys
VIEWS = ("model", "matrix", "neuron", "patterns", "head")
# Keep the time at which the page was ready last; waiting for it from outside is up to 0.5 s late.
KEEP_READY_TIME = """new MutationObserver(() => {
    if (document.documentElement.dataset.ready === "true") window.readyTime = Date.now();
}).observe(document, { subtree: true, attributes: true, attributeFilter: ["data-ready"] })"""
# Record the time of every animation frame until `stop()`.
RECORD = """() => {
    const times = [];
    let isRunning = true;
    const record = time => { times.push(time); if (isRunning) requestAnimationFrame(record); };
    requestAnimationFrame(record);
    window.qkvExplorer.frames.length = 0;
    window.stop = () => { isRunning = false; return { times, draws: [...window.qkvExplorer.frames] }; };
}"""


def build_model(length: int, small: bool) -> qkv.Model:
    """Return a model with random weights that reads up to `length` tokens."""
    tokenizer = qkv.Tokenizer.train([SENTENCE] * 20, type="byte", vocab_size=300, template="gpt")
    sizes: dict[str, Any] = dict(width=48, depth=2, heads=4) if small else {}
    torch.manual_seed(0)
    model = qkv.build("gpt2", vocab_size=len(tokenizer), max_positions=length, **sizes)
    with torch.no_grad():
        for name, parameter in model.net.named_parameters():
            if name.endswith(("attention.q.weight", "attention.k.weight")):
                parameter.mul_(ATTENTION_SCALE)
    model.tokenizer = tokenizer
    return model


def cut_text(model: qkv.Model, length: int) -> str:
    """Return a text of `length` tokens."""
    tokenizer = model.tokenizer
    assert tokenizer is not None
    ids = tokenizer(SENTENCE * length)["input_ids"][:length]
    return tokenizer.decode(ids)


class Server:
    """Serves the explorer of a model in a thread."""

    def __init__(self, model: qkv.Model) -> None:
        explorer = Explorer(NamedModel(name="gpt2", inputs=InputBuilder(model=model)))
        config = explorer.build_config(UserInput(), ViewSettings())
        self.listener = bind_port(0)
        port = self.listener.getsockname()[1]
        app = create_app(explorer, TOKEN, config, list_loopback_hosts(port))
        settings = uvicorn.Config(app, log_level="error", access_log=False, ws="none")
        self.server = uvicorn.Server(settings)
        self.thread = threading.Thread(target=self.server.run, args=([self.listener],))
        self.thread.start()
        self.address = f"http://{LOOPBACK_ADDRESS}:{port}/?token={TOKEN}"

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join()
        self.listener.close()


def wait(page: Page) -> float:
    """Wait until the page has drawn everything, and return when that was, in seconds."""
    page.wait_for_selector("html[data-ready=true]", state="attached", timeout=TIMEOUT)
    return float(page.evaluate("() => window.readyTime")) / 1000


def open_page(browser: Browser, address: str, size: str, **state: str) -> tuple[Page, float]:
    """Open a page with a state, and return it with the seconds until it is ready."""
    width, height = map(int, size.split("x"))
    page = browser.new_page(viewport={"width": width, "height": height})
    page.add_init_script(KEEP_READY_TIME)
    page.goto("about:blank")
    start = time.time()
    page.goto(f"{address}#{urlencode(state)}")
    return page, wait(page) - start


def drag(page: Page, box: Any, step: int) -> None:
    """Move the mouse back and forth over the matrix."""
    places = [0.2 + 0.6 * abs((step / period) % 2 - 1) for period in (23, 41)]
    page.mouse.move(box["x"] + box["width"] * places[0], box["y"] + box["height"] * places[1])


def scroll(page: Page, box: Any, step: int) -> None:
    """Scroll the columns up and down."""
    page.mouse.wheel(0, 120 if (step // 60) % 2 == 0 else -120)


def record_frames(
    page: Page, element: str, move: Callable[[Page, Any, int], None], seconds: float
) -> tuple[list[float], list[float]]:
    """Move without a pause; return the times of frames, and those of draws, in milliseconds."""
    box = page.locator(element).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    if move is drag:
        page.mouse.down()
    page.evaluate(RECORD)
    deadline = time.perf_counter() + seconds
    step = 0
    while time.perf_counter() < deadline:
        move(page, box, step)
        step += 1
    recorded = page.evaluate("() => stop()")
    if move is drag:
        page.mouse.up()
    wait(page)
    frames = [after - before for before, after in itertools.pairwise(recorded["times"])]
    return frames, recorded["draws"]


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def measure_panning(browser: Browser, address: str, text: str, options: argparse.Namespace) -> None:
    """Print the frames of panning the matrix at three scales, and of scrolling the head view."""
    cases = {
        "matrix, all tokens": ("matrix", ".matrix-canvas", drag, None),
        "matrix, 4 px a token": ("matrix", ".matrix-canvas", drag, 4),
        "matrix, 20 px a token": ("matrix", ".matrix-canvas", drag, 20),
        "heads": ("head", ".head-stage", scroll, None),
    }
    print(
        f"{'panning':<24}{'frames/s':>10}{'median ms':>11}{'p95 ms':>8}{'draw ms':>9}{'draw p95':>10}"
    )
    for name, (view, element, move, scale) in cases.items():
        state = {"text": text, "view": view}
        if scale is not None:
            state["zoom"] = f"100,100,{scale}"
        page, _ = open_page(browser, address, options.size, **state)
        frames, draws = record_frames(page, element, move, options.seconds)
        page.close()
        print(
            f"  {name:<22}{1000 * len(frames) / sum(frames):10.1f}{statistics.median(frames):11.1f}"
            f"{quantile(frames, 0.95):8.1f}{statistics.median(draws):9.1f}{quantile(draws, 0.95):10.1f}",
            flush=True,
        )


def measure_opening(
    browser: Browser, address: str, text: str, options: argparse.Namespace
) -> list[float]:
    """Return the seconds from navigation to a page that is ready; the first one is warmup."""
    seconds = []
    for _ in range(options.repeats + 1):
        page, taken = open_page(browser, address, options.size, text=text)
        page.close()
        seconds.append(taken)
    return seconds[1:]


def measure_views(browser: Browser, address: str, text: str, options: argparse.Namespace) -> None:
    """Print the seconds that each view needs after a click on its tab."""
    page, _ = open_page(browser, address, options.size, text=text)
    parts = []
    for view in VIEWS:
        start = time.time()
        page.click(f"#tab-{view}")
        parts.append(f"{view} {wait(page) - start:.2f} s")
    page.close()
    print(f"views                   {', '.join(parts)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--length", type=int, default=1024, help="tokens")
    parser.add_argument("--long", type=int, default=4096, help="tokens of a long text; 0: none")
    parser.add_argument("--sentence", type=int, default=128, help="tokens of a sentence")
    parser.add_argument("--seconds", type=float, default=3.0, help="of panning")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--size", default="1600x1000", help="of the window")
    parser.add_argument("--small", action="store_true", help="a tiny model: check that it runs")
    options = parser.parse_args()
    model = build_model(max(options.length, options.long), options.small)
    path = shutil.which("chromium") or shutil.which("google-chrome")
    server = Server(model)
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
            print(f"Chromium {browser.version}, window {options.size}, torch {torch.__version__}")
            seconds = measure_opening(
                browser, server.address, cut_text(model, options.sentence), options
            )
            print(
                f"opening, {options.sentence} tokens     median {statistics.median(seconds):.2f} s, "
                f"slowest {max(seconds):.2f} s"
            )
            for length in filter(None, (options.length, options.long)):
                text = cut_text(model, length)
                print(f"--- {length:,} tokens")
                (taken,) = measure_opening(
                    browser,
                    server.address,
                    text,
                    argparse.Namespace(**{**vars(options), "repeats": 1}),
                )
                print(f"opening                 {taken:.2f} s")
                measure_views(browser, server.address, text, options)
                measure_panning(browser, server.address, text, options)
            browser.close()
    finally:
        server.close()


if __name__ == "__main__":
    main()
