"""A browser and a server for all tests of a process, and new pages for each of them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest

from tests.explorer.browser.explorer_page import ExplorerPage
from tests.explorer.browser.site import Site

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--renderer-process-limit=1",
]  # fmt: skip
TIMEOUT = 15_000  # milliseconds

OpenPage = Callable[..., ExplorerPage]


# Playwright's event loop stays in the main thread while the browser is open, so that other tests could
# not run one: the browser is closed after the last test of this folder.
@pytest.fixture(scope="package")
def context() -> Iterator[BrowserContext]:
    """The context of all pages: a new one takes longer than a page, and the explorer stores nothing in it."""
    api = pytest.importorskip("playwright.sync_api", reason="tests in a browser need playwright")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no browser found: install one of {', '.join(BROWSERS)}")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        context = browser.new_context(reduced_motion="reduce")
        context.set_default_timeout(TIMEOUT)
        context.new_page()  # keeps the process that all pages share
        yield context
        browser.close()


@pytest.fixture(scope="package")
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


@pytest.fixture
def open_page(context: BrowserContext) -> Iterator[OpenPage]:
    """A function that opens an address in a new page. The test fails for errors in the console, dialogs,
    and requests to other servers than the one of the page."""
    pages: list[ExplorerPage] = []

    def open_page(
        url: str,
        *,
        width: int = 1280,
        height: int = 900,
        theme: Literal["light", "dark"] = "light",
        is_ready: bool = True,
    ) -> ExplorerPage:
        origin = re.match(r"http://[^/]*|file://", url)
        assert origin is not None
        page = ExplorerPage(context, origin[0])
        pages.append(page)
        page.page.set_viewport_size({"width": width, "height": height})
        page.page.emulate_media(color_scheme=theme)
        others = re.compile(f"^(?!{re.escape(origin[0])}/|data:|blob:)")
        page.page.route(others, lambda route: route.abort())
        page.page.goto(url)
        return page.wait() if is_ready else page

    yield open_page
    for page in pages:
        page.page.close()
    assert [problem for page in pages for problem in page.problems] == []


@pytest.fixture(scope="session")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A picture of a red square on blue."""
    image = pytest.importorskip("PIL.Image", reason="pictures need Pillow")
    pixels = np.zeros((48, 48, 3), np.uint8)
    pixels[..., 2] = 160
    pixels[8:24, 16:36] = (210, 30, 20)
    path: Path = tmp_path_factory.mktemp("pictures") / "square.png"
    image.fromarray(pixels).save(path)
    return path
