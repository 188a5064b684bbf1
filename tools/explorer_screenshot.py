"""Take the screenshot of docs/explorer.md: `python -m tools.explorer_screenshot`. Needs playwright, Pillow
and Chromium."""

from __future__ import annotations

import argparse
import io
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import sync_playwright

TEXT = "Ich habe das Buch, das du mir gestern gegeben hast, noch nicht gelesen."
# The third layer of the encoder, with the weights of "gestern".
HASH = "#view=head&path=encoder.layers.2.attention&focus=q9"
OUT = Path(__file__).resolve().parent.parent / "docs" / "explorer.png"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]


def take_screenshot(url: str, out: Path, theme: Literal["light", "dark"]) -> None:
    """Open the page in a window of 1,280 × 860 pixels and save what it shows."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 860}, color_scheme=theme)
        page.goto(url)
        page.wait_for_selector("html[data-ready=true]", state="attached")
        data = page.screenshot()
        browser.close()
    Image.open(io.BytesIO(data)).convert("RGB").quantize(256).save(out, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--theme", choices=("light", "dark"), default="light")
    options = parser.parse_args()
    command = [sys.executable, "-m", "qkv", "look", TEXT, "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        urls = (re.search(r"http://\S+", line) for line in server.stdout)
        url = next(filter(None, urls))[0]
        take_screenshot(url + HASH, options.out, options.theme)
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()


if __name__ == "__main__":
    main()
