"""ExplorerPage: the page of the explorer in a browser, with what went wrong in it."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Download, Locator, Page

WAIT_SECONDS = 15
NUMBER = re.compile("\u2068([^\u2068\u2069]*)\u2069 (<?[0-9.]+)")  # of a token in a status line
COUNT_COLORS = """(canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return new Set(new Uint32Array(data.buffer)).size;
}"""


class ExplorerPage:
    """A tab of the browser; `problems` are console errors, dialogs and requests to other servers."""

    def __init__(self, context: BrowserContext, origin: str) -> None:
        self.context = context
        self.origin = origin
        self.problems: list[str] = []
        self.page: Page = context.new_page()
        self.page.on("console", self.record_console)
        self.page.on("pageerror", lambda error: self.problems.append(f"page error: {error}"))
        self.page.on("dialog", self.record_dialog)
        self.page.on("request", lambda request: self.record_request(request.url))

    # --- problems ---

    def record_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"console {message.type}: {message.text}")

    def record_dialog(self, dialog: Any) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def record_request(self, url: str) -> None:
        if not url.startswith((f"{self.origin}/", "data:", "blob:")):
            self.problems.append(f"request: {url}")

    def pop_problems(self) -> list[str]:
        """Return the problems so far, and forget them."""
        problems = [*self.problems]
        self.problems.clear()
        return problems

    # --- the page ---

    def wait(self) -> ExplorerPage:
        """Wait until nothing is left to load or draw."""
        self.page.wait_for_selector("html[data-ready=true]", state="attached")
        return self

    def wait_until(self, condition: str) -> ExplorerPage:
        """Wait until an expression is true; the policy of the page forbids Playwright's own wait."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not self.page.evaluate(condition):
            assert time.monotonic() < deadline, f"not true in time: {condition}"
            self.page.wait_for_timeout(20)
        return self.wait()

    def get_link(self) -> str:
        """Return the address that restores the page, which is then also that of the browser."""
        link: str = self.page.evaluate("() => window.qkvExplorer.link()")
        return link

    def find(self, selector: str) -> Locator:
        return self.page.locator(selector)

    def evaluate(self, script: str, argument: Any = None) -> Any:
        return self.page.evaluate(script, argument)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
        self.wait()

    def choose_view(self, name: str) -> None:
        self.page.click(f"#tab-{name}")
        self.wait()

    def choose(self, label: str, option: str) -> None:
        """Choose an option of a visible select by its value."""
        self.select(label).select_option(option)
        self.wait()

    def select(self, label: str) -> Locator:
        return self.page.locator(f'label:has(> span:text-is("{label}")) select').first

    def field(self, name: str = "text") -> Locator:
        """The input of text, text_pair or target."""
        return self.page.locator(f".input.{name} textarea")

    def submit(self, text: str, name: str = "text") -> None:
        """Type a text and press Enter."""
        field = self.field(name)
        field.fill(text)
        field.press("Enter")
        self.wait()

    def click(self, selector: str) -> None:
        self.page.click(selector)
        self.wait()

    def hover(self, selector: str) -> None:
        self.page.hover(selector)
        self.wait()

    def download(self, button: str) -> Path:
        """Save with a button of the menu Save, and return the file."""
        self.page.click("summary")
        with self.page.expect_download() as information:
            self.page.get_by_role("button", name=button).click()
        download: Download = information.value
        return Path(download.path())

    # --- what it shows ---

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_text_contents()

    @property
    def view(self) -> str:
        """The name of the view that is open."""
        name = self.page.get_attribute("[role=tab][aria-selected=true]", "id")
        assert name is not None
        return name.removeprefix("tab-")

    @property
    def views(self) -> list[str]:
        ids = self.page.locator("[role=tab]").evaluate_all("tabs => tabs.map(tab => tab.id)")
        return [name.removeprefix("tab-") for name in ids]

    @property
    def status(self) -> str:
        """The status line of the view."""
        return self.page.locator(".body .status").first.inner_text()

    @property
    def status_weights(self) -> list[tuple[str, float]]:
        """The tokens of the status line with their weights."""
        pairs = NUMBER.findall(self.status)
        return [(token, float(number.removeprefix("<"))) for token, number in pairs]

    @property
    def error(self) -> str:
        return self.page.inner_text("[role=alert]")

    def get_state(self) -> dict[str, Any]:
        return self.page.evaluate("() => window.qkvExplorer.state")

    def count_colors(self, selector: str) -> int:
        """Return the number of different colors of a canvas; one that is blank has one."""
        return self.page.locator(selector).first.evaluate(COUNT_COLORS)
