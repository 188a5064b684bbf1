"""The server of the explorer: one process on this machine, until Ctrl-C."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Mapping
from typing import Any

import uvicorn

from qkv.explorer.explorer import Explorer
from qkv.explorer.server.app import create_app, list_loopback_hosts

LOOPBACK_ADDRESS = "127.0.0.1"
TOKEN_BYTES = 16
MAX_PORT = 65_535


def serve_explorer(
    explorer: Explorer,
    config: Mapping[str, Any],
    *,
    port: int = 0,
    open_browser: bool = True,
    report: Callable[[str], None],
) -> None:
    """Serve the page on a port of this machine, any free one by default, until Ctrl-C.

    `report` gets the address of the page."""
    listener = bind_port(port)
    port = listener.getsockname()[1]
    token = secrets.token_urlsafe(TOKEN_BYTES)
    app = create_app(explorer, token, config, list_loopback_hosts(port))
    settings = uvicorn.Config(
        app, log_level="error", access_log=False, ws="none", timeout_graceful_shutdown=1
    )
    url = f"http://{LOOPBACK_ADDRESS}:{port}/?token={token}"
    report(url)
    if open_browser and has_screen():  # in a thread: some browsers stay in the foreground
        threading.Thread(target=webbrowser.open, args=(url,), name="browser", daemon=True).start()
    try:
        uvicorn.Server(settings).run(sockets=[listener])
    except KeyboardInterrupt:  # raised again by uvicorn after it has stopped
        pass
    finally:
        listener.close()


def bind_port(port: int) -> socket.socket:
    """Return a socket that listens on a port of this machine; 0: a free one."""
    if not 0 <= port <= MAX_PORT:
        raise ValueError(f"port {port}, expected a number from 0 (any free port) to {MAX_PORT}")
    listener = socket.socket()
    if os.name == "posix":  # on Windows, the option would allow a second server
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK_ADDRESS, port))
        listener.listen()
    except OSError as error:
        listener.close()
        reason = (error.strerror or str(error)).lower()
        raise ValueError(
            f"port {port}: {reason}; choose another one, or 0 for any free port"
        ) from None
    return listener


def has_screen() -> bool:
    """Return whether a browser with windows can be opened; a browser in the terminal would block it."""
    if sys.platform != "linux":
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
