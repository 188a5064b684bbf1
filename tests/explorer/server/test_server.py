"""The server: a process that listens on this machine only, until Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import uvicorn

from qkv.explorer.server.server import bind_port, serve_explorer
from tests.conftest import ROOT
from tests.explorer import models
from tests.support.errors import assert_error

ADDRESS = re.compile(r"attention explorer: (http://127\.0\.0\.1:(\d+)/\?token=([\w-]{20,}))\n")
STOP_SECONDS = 5
DEPTH = 24
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model with many layers, whose beam search takes long."""
    folder = tmp_path_factory.mktemp("server") / "gpt2"
    model = models.build_tiny_model("gpt2", torch.float32, depth=DEPTH, max_positions=512)
    model.save(folder)
    return folder


@pytest.fixture(scope="module")
def process(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`qkv look` and the address that it prints."""
    command = [
        sys.executable,
        "-m",
        "qkv",
        "look",
        models.TEXT,
        "--model",
        str(folder),
        "--no-browser",
    ]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"QKV_DEVICE": "cpu"},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        match = ADDRESS.fullmatch(process.stdout.readline())
        assert match, process.communicate(timeout=5)
        assert process.stdout.readline() == "(Ctrl-C stops it)\n"
        yield process, match[1]
    finally:
        process.kill()
        process.wait()


def fetch(address: str, data: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(address, data, headers)
    try:
        with OPENER.open(request, timeout=30) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_it_answers(process: tuple[subprocess.Popen[str], str]) -> None:
    _, address = process
    status, page = fetch(address)
    assert status == 200
    assert b"<title>" in page
    url = address.replace("/?", "/api/trace?")
    status, answer = fetch(url, json.dumps({"text": "the cat"}).encode())
    assert status == 200
    assert len(json.loads(answer)["attentions"]) == DEPTH
    assert fetch(url, b"{")[0] == 400
    assert fetch(url[:-1], b"{}")[0] == 403
    assert fetch(address, Host="evil.example")[0] == 403
    assert fetch(address, Upgrade="websocket", Connection="Upgrade")[0] != 101
    assert fetch(address)[0] == 200


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="no /proc/net/tcp")
def test_it_listens_on_this_machine_only(process: tuple[subprocess.Popen[str], str]) -> None:
    port = int(process[1].split(":")[2].split("/")[0])
    listening = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if not Path(table).exists():
            continue
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if state == "0A" and int(local.rpartition(":")[2], 16) == port:
                listening.append(local.rpartition(":")[0])
    assert listening == ["0100007F"]  # 127.0.0.1


def test_ctrl_c_stops_it(process: tuple[subprocess.Popen[str], str]) -> None:
    """Also with an open connection, half of a request, and a beam search that takes a while."""
    running, address = process
    port = int(address.split(":")[2].split("/")[0])
    idle, half = (socket.create_connection(("127.0.0.1", port)) for _ in range(2))
    body = json.dumps({"text": "the cat", "num_beams": 16, "max_new_tokens": 200}).encode()
    with idle, half, ThreadPoolExecutor(1) as pool:
        half.sendall(b"POST /api/trace HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n\r\n{")
        search = pool.submit(fetch, address.replace("/?", "/api/beams?"), body)
        time.sleep(0.5)
        assert not search.done()
        start = time.monotonic()
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=30)
        assert time.monotonic() - start < STOP_SECONDS
        assert search.result()[0] in (200, 503)  # 200: it ended in the second that it is given
    assert running.returncode == 0
    assert "Traceback" not in out + err
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port))


# --- in this process ---


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The servers that would have run, and the addresses that would have been opened."""
    runs: list[dict[str, Any]] = []

    def run(self: uvicorn.Server, sockets: list[socket.socket]) -> None:
        runs[-1] |= {"config": self.config, "address": sockets[0].getsockname()}

    monkeypatch.setattr(uvicorn.Server, "run", run)
    monkeypatch.setattr(webbrowser, "open", lambda url: runs[-1].update(opened=url))
    return runs


def serve(
    runs: list[dict[str, Any]], wait_for_browser: bool = True, **settings: Any
) -> dict[str, Any]:
    runs.append({})
    serve_explorer(
        models.build_explorer("bert"), {}, report=lambda url: runs[-1].update(url=url), **settings
    )
    for thread in threading.enumerate():
        if thread.name == "browser" and wait_for_browser:
            thread.join(10)
    return runs[-1]


def test_a_browser_in_the_foreground_does_not_stop_the_server(
    runs: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    is_closed = threading.Event()
    monkeypatch.setattr(webbrowser, "open", lambda url: is_closed.wait(30))
    start = time.monotonic()
    assert "address" in serve(runs, wait_for_browser=False)
    assert time.monotonic() - start < 20
    is_closed.set()


def test_the_browser_opens_the_printed_address(
    runs: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert "opened" not in serve(runs)  # no screen
    monkeypatch.setenv("DISPLAY", ":0")
    run = serve(runs)
    assert run["opened"] == run["url"]
    assert "opened" not in serve(runs, open_browser=False)
    monkeypatch.delenv("DISPLAY")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "opened" in serve(runs)


def test_every_server_has_its_own_token(runs: list[dict[str, Any]]) -> None:
    urls = {serve(runs, open_browser=False)["url"].partition("token=")[2] for _ in range(5)}
    assert len(urls) == 5
    assert min(map(len, urls)) >= 22  # 128 bits


def test_a_chosen_port(runs: list[dict[str, Any]]) -> None:
    with bind_port(0) as listener:
        port = listener.getsockname()[1]
    run = serve(runs, port=port, open_browser=False)
    assert run["address"] == ("127.0.0.1", port)
    assert run["url"].startswith(f"http://127.0.0.1:{port}/")
    assert run["config"].ws == "none"


@pytest.mark.parametrize("port", [-1, 65_536, 10**9])
def test_wrong_ports_are_refused(port: int) -> None:
    assert_error(lambda: bind_port(port), f"port {port}", "expected a number from 0")


def test_ports_of_another_server_are_refused() -> None:
    with bind_port(0) as listener:
        port = listener.getsockname()[1]
        assert_error(
            lambda: bind_port(port), f"port {port}: address already in use", "choose another"
        )
