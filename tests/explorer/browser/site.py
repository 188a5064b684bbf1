"""Site: a server on this machine with the explorers of many models, each under its own name."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from qkv.explorer.explorer import Explorer, NamedModel
from qkv.explorer.inputs.trace_inputs import UserInput
from qkv.explorer.server.app import create_app, list_loopback_hosts
from qkv.explorer.server.server import LOOPBACK_ADDRESS, bind_port
from qkv.explorer.view_settings import ViewSettings
from tests.explorer.browser.models import GIVEN, TEXT, load_model, name_model

TOKEN = "token-of-the-tests"
START_SECONDS = 10


class Site:
    """Serves explorers at /NAME/; the page of each asks only its own explorer."""

    def __init__(self) -> None:
        self.apps: dict[str, ASGIApp] = {}
        self.explorers: dict[str, Explorer] = {}
        self.listener: socket.socket = bind_port(0)
        self.port: int = self.listener.getsockname()[1]
        self.origin = f"http://{LOOPBACK_ADDRESS}:{self.port}"
        config = uvicorn.Config(
            self.dispatch, log_level="error", access_log=False, ws="none", lifespan="off", interface="asgi3",
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, args=([self.listener],), daemon=True)
        self.thread.start()
        deadline = time.monotonic() + START_SECONDS
        while not self.server.started:
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.005)

    async def dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        name, _, rest = scope["path"][1:].partition("/")
        await self.apps[name](dict(scope, path=f"/{rest}"), receive, send)

    def add(self, name: str, explorer: Explorer, user_input: UserInput, **settings: Any) -> str:
        """Serve an explorer, and return the address of its page."""
        config = explorer.build_config(user_input, ViewSettings(**settings))
        self.explorers[name] = explorer
        self.apps[name] = create_app(explorer, TOKEN, config, list_loopback_hosts(self.port))
        return self.get_url(name)

    def explore(self, name: str, image: Path | None = None, other: str | None = None) -> str:
        """Serve a model that reads its first input, unless it is served already; return the address."""
        key = name.replace(":", "-") + ("-image" if image else "") + (f"-{other}" if other else "")
        if key in self.apps:
            return self.get_url(key)
        second: NamedModel | None = other and name_model(load_model(other), other)  # type: ignore[assignment]
        explorer = Explorer(name_model(load_model(name), name), second)
        user_input = UserInput(**GIVEN.get(name, {"text": TEXT}))
        return self.add(key, explorer, replace(user_input, image=image))

    def get_url(self, name: str) -> str:
        return f"{self.origin}/{name}/?token={TOKEN}"

    def close(self) -> None:
        """Stop the server."""
        self.server.should_exit = True
        self.thread.join()
        self.listener.close()
