"""The policy of the page: no script but its own runs, and it asks no other server."""

from __future__ import annotations

from tests.explorer.browser.conftest import OpenPage
from tests.explorer.browser.site import TOKEN, Site

ATTACKS = """() => {
    window.violations = [];
    document.addEventListener("securitypolicyviolation", event => violations.push(event.violatedDirective));
    const script = document.createElement("script");
    script.textContent = "window.hacked = 'inline'";
    document.body.append(script);
    const handlers = document.createElement("div");
    handlers.innerHTML = `<img src="x:" onerror="window.hacked = 'onerror'">
        <a href="javascript:window.hacked = 'link'" id="link">x</a>
        <style>h1 { display: none }</style><p style="color: red">x</p>`;
    document.body.append(handlers);
    document.getElementById("link").click();
    const remote = document.createElement("script");
    remote.src = "https://example.org/x.js";
    document.body.append(remote);
    const frame = document.createElement("iframe");
    frame.srcdoc = "<script>parent.hacked = 'frame'<\\/script>";
    document.body.append(frame);
    setTimeout(() => { try { eval("window.hacked = 'eval'"); } catch { violations.push("eval"); } }, 0);
    return new Promise(resolve => setTimeout(resolve, 150));
}"""
ASK_OTHERS = """async () => {
    const answers = await Promise.allSettled([fetch("https://example.org/"), fetch("http://localhost:1/")]);
    return answers.map(({ status }) => status);
}"""


def test_injected_scripts_do_not_run(open_page: OpenPage, site: Site) -> None:
    page = open_page(site.explore("gpt2"))
    responses: list[str] = []
    page.page.on("response", lambda response: responses.append(response.url))
    page.evaluate(ATTACKS)
    assert page.evaluate("window.hacked") is None
    violations = set(page.evaluate("violations"))
    assert {
        "script-src-elem",
        "script-src-attr",
        "style-src-elem",
        "style-src-attr",
        "eval",
    } <= violations
    assert page.find("h1").is_visible()
    assert responses == []
    problems = page.pop_problems()
    others = [problem for problem in problems if "Content Security Policy" not in problem]
    assert {*others} <= {"request: https://example.org/x.js", "request: x:"}  # both were blocked
    assert len(problems) > len(others) + 4


def test_the_page_cannot_ask_other_servers(open_page: OpenPage, site: Site) -> None:
    page = open_page(site.explore("gpt2"))
    assert page.evaluate(ASK_OTHERS) == ["rejected", "rejected"]
    problems = page.pop_problems()
    assert problems
    assert all("Content Security Policy" in problem for problem in problems), problems


def test_another_page_cannot_read_the_explorer(open_page: OpenPage, site: Site) -> None:
    address = site.explore("gpt2")
    page = open_page(f"{site.origin}/gpt2/?token=wrong", is_ready=False)
    assert "the token of the address is wrong" in page.text("body")
    page.pop_problems()
    page.page.goto("about:blank")
    page.page.set_content(f'<iframe src="{address}"></iframe>')
    page.page.wait_for_timeout(200)
    frames = [frame for frame in page.page.frames if frame.parent_frame]
    assert [frame.locator("#header").count() for frame in frames] == [0]
    answer = page.evaluate(
        "address => fetch(address).then(response => response.status, error => error.name)",
        f"{site.origin}/gpt2/api/patterns?token={TOKEN}",
    )
    assert answer in (403, "TypeError")
    assert page.pop_problems()


def test_the_page_stores_nothing(open_page: OpenPage, site: Site) -> None:
    page = open_page(site.explore("gpt2"))
    page.choose_view("matrix")
    state = page.context.storage_state()
    assert (state["cookies"], state["origins"]) == ([], [])
    assert page.evaluate("sessionStorage.length") == 0
