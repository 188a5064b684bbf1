"""The explorer over HTTP: a Starlette application of one page and the endpoints that it asks.

Every request carries the token of the session; other hosts and origins are refused, so that no other
page in the browser can ask. Weights are answered in binary."""

from __future__ import annotations

import json
import secrets
import traceback
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from qkv.explorer.explorer import Explorer, UnknownTraceError
from qkv.explorer.inputs.images import MAX_UPLOAD_BYTES
from qkv.explorer.server.page import render_page
from qkv.memory import is_memory_error

HTTP_PORT = 80
POLICY_VIOLATION = 1008  # of WebSocket
MAX_BODY_BYTES = 2**20  # of a request with texts
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}

GET_ENDPOINTS = ("weights", "neurons", "patterns")  # whose requests have no body

Endpoint = Callable[[Request], Awaitable[Response]]


class RequestError(Exception):
    """A request that is refused with a status and a reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def create_app(
    explorer: Explorer, token: str, config: Mapping[str, Any], allowed_hosts: frozenset[str]
) -> ASGIApp:
    """Return the application. `config` is what the page starts with; `allowed_hosts` are the values of
    the Host header that are answered."""
    page = render_page({"token": token, **config})

    async def show_page(request: Request) -> Response:
        policy = f"{page.content_security_policy}; frame-ancestors 'none'"
        return HTMLResponse(page.html, headers={"Content-Security-Policy": policy})

    async def add_image(request: Request) -> Response:
        data = await read_body(request, MAX_UPLOAD_BYTES)
        return JSONResponse(await run_in_threadpool(explorer.add_image, data))

    async def get_weights(request: Request) -> Response:
        weights = await run_in_threadpool(explorer.weights, request.query_params)
        return answer_bytes(
            weights.numpy().astype("<u2", copy=False).tobytes(),
            {"X-Shape": ",".join(map(str, weights.shape))},
        )

    async def get_neurons(request: Request) -> Response:
        scale, parts = await run_in_threadpool(explorer.neurons, request.query_params)
        shapes = [{"name": part.name, "shape": [*part.values.shape]} for part in parts]
        data = b"".join(
            part.values.contiguous().numpy().astype("<f4", copy=False).tobytes() for part in parts
        )
        return answer_bytes(data, {"X-Scale": repr(scale), "X-Parts": json.dumps(shapes)})

    async def get_patterns(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(explorer.patterns, request.query_params))

    def answer_json(answer: Callable[[Mapping[str, Any]], dict[str, Any]]) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            body = parse_json_object(await read_body(request, MAX_BODY_BYTES))
            return JSONResponse(await run_in_threadpool(answer, body))

        return endpoint

    endpoints = {
        "trace": answer_json(explorer.trace),
        "step": answer_json(explorer.step),
        "beams": answer_json(explorer.beams),
        "image": add_image,
        "weights": get_weights,
        "neurons": get_neurons,
        "patterns": get_patterns,
    }
    routes = [
        Route(
            f"/api/{name}",
            answer_errors(endpoint),
            methods=["GET" if name in GET_ENDPOINTS else "POST"],
        )
        for name, endpoint in endpoints.items()
    ]
    app = Starlette(routes=[Route("/", show_page), *routes])
    return RequestGuard(app, token, allowed_hosts)


class RequestGuard:
    """Refuses requests of other hosts and origins, and those without the token."""

    def __init__(self, app: ASGIApp, token: str, allowed_hosts: frozenset[str]) -> None:
        self.app = app
        self.token = token
        self.allowed_hosts = allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = Request(scope)
            reason = self.find_reason_to_refuse(request)
            if reason is not None:
                response = JSONResponse({"error": reason}, 403, headers=SECURITY_HEADERS)
                return await response(scope, receive, send)
        elif scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": POLICY_VIOLATION})

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = [(k.lower().encode(), v.encode()) for k, v in SECURITY_HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *headers]}
            await send(message)

        await self.app(scope, receive, send_with_headers)

    def find_reason_to_refuse(self, request: Request) -> str | None:
        """Return why a request is not answered; None if it is."""
        host = request.headers.get("host", "")
        if host not in self.allowed_hosts:
            return "the host of the request is not this machine; open the printed address"
        origin = request.headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return "the request comes from another page; open the printed address"
        token = request.query_params.get("token", "")
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            return "the token of the address is wrong; open the printed address"
        return None


def list_loopback_hosts(port: int) -> frozenset[str]:
    """Return the values of the Host header of requests to this machine; browsers leave out port 80."""
    hosts = frozenset(f"{name}:{port}" for name in LOOPBACK_NAMES)
    return hosts | {*LOOPBACK_NAMES} if port == HTTP_PORT else hosts


async def read_body(request: Request, limit: int) -> bytes:
    """Return the body of a request of at most `limit` bytes."""
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise RequestError(413, f"the request has more than {limit:,} bytes; send less")
        parts.append(part)
    return b"".join(parts)


def parse_json_object(data: bytes) -> dict[str, Any]:
    """Parse the body of a request."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise RequestError(400, "the request is not JSON, expected an object") from None
    if not isinstance(body, dict):
        raise RequestError(400, f"the request is a {type(body).__name__}, expected an object")
    return body


def answer_bytes(data: bytes, headers: Mapping[str, str]) -> Response:
    return Response(data, media_type="application/octet-stream", headers=headers)


def answer_errors(endpoint: Endpoint) -> Endpoint:
    """Return an endpoint that answers errors with their reason."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except CancelledError:
            return JSONResponse({"error": "the explorer is stopped"}, 503)
        except Exception as error:
            status, reason = explain_error(error)
            return JSONResponse({"error": reason}, status)

    return answer


def explain_error(error: Exception) -> tuple[int, str]:
    """Return status and reason of an error: 4xx for the user's, 500 for ours."""
    if isinstance(error, RequestError):
        return error.status, str(error)
    if isinstance(error, UnknownTraceError):
        return 404, str(error)
    if isinstance(error, ValueError):
        return 400, str(error)
    if isinstance(error, ClientDisconnect):
        return 400, "the request ended early"
    if is_memory_error(error):
        return 507, "not enough memory for this text; use a shorter one"
    traceback.print_exception(error)
    return 500, f"{type(error).__name__}: see the terminal of qkv look"
