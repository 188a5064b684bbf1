"""The explorer over HTTP: answers, refused requests, headers, and errors of one line."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from qkv.explorer.explorer import Explorer
from qkv.explorer.server import app as app_module
from qkv.explorer.server.app import create_app, list_loopback_hosts
from tests.explorer import models
from tests.explorer.inputs.test_images import BROKEN, WHOLE_PNG
from tests.explorer.test_explorer import WRONG_BODIES, WRONG_PLACES
from tests.support.images import encode_png
from tests.support.model_folders import DEEP_JSON

PORT = 8123
ORIGIN = f"http://127.0.0.1:{PORT}"
TOKEN = "a-secret-token"
GET_ENDPOINTS = ("weights", "neurons", "patterns")
POST_ENDPOINTS = ("trace", "step", "beams", "image")
PATH = "encoder.layers.1.attention"


class Client(TestClient):
    """A client that knows the token."""

    def __init__(self, explorer: Explorer, **config: Any) -> None:
        app = create_app(explorer, TOKEN, config, list_loopback_hosts(PORT))
        super().__init__(app, base_url=ORIGIN)
        self.params = {"token": TOKEN}
        self.explorer = explorer

    def ask(self, endpoint: str, body: Any = None, **query: str) -> Any:
        """Return the answer of an endpoint: of a body or of a query."""
        if endpoint in GET_ENDPOINTS:
            return self.get(f"/api/{endpoint}", params=query)
        return self.post(f"/api/{endpoint}", json=body)

    def get_trace(self, **body: Any) -> str:
        response = self.ask("trace", {"text": models.TEXT} | body)
        assert response.status_code == 200, response.text
        return str(response.json()["trace_id"])


@pytest.fixture(scope="module")
def bert() -> Client:
    return Client(models.build_explorer("bert"))


@pytest.fixture(scope="module")
def gpt2() -> Client:
    return Client(models.build_explorer("gpt2"))


def assert_reason(response: Any, status: int) -> str:
    """Assert that a request was refused with a reason of one line; return the reason."""
    assert response.status_code == status, response.text
    answer = response.json()
    assert answer.keys() == {"error"}
    reason = answer["error"]
    assert reason
    assert reason.isprintable()
    assert len(reason) < 400
    assert_secure(response)
    return str(reason)


def assert_secure(response: Any) -> None:
    expected = {
        "x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-store",
        "cross-origin-resource-policy": "same-origin", "x-frame-options": "DENY",
    }  # fmt: skip
    assert {name: response.headers.get(name) for name in expected} == expected
    assert "access-control-allow-origin" not in response.headers


# --- answers ---


def test_the_page(bert: Client) -> None:
    client = Client(bert.explorer, mode="server", title="</script>")
    response = client.get("/")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert_secure(response)
    assert TOKEN in response.text
    assert "</script>" not in re.sub(r"</script>\n", "", response.text)
    parts = response.headers["content-security-policy"].split("; ")
    policy = dict(part.split(" ", 1) for part in parts)
    assert policy["default-src"] == "'none'"
    assert policy["frame-ancestors"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert "unsafe" not in str(policy)


def test_trace_and_weights(bert: Client) -> None:
    response = bert.ask("trace", {"text": models.TEXT, "text_pair": "a bird"})
    assert response.headers["content-type"] == "application/json"
    assert_secure(response)
    description = response.json()
    info = description["attentions"][1]
    assert (info["path"], info["heads"]) == (PATH, 4)
    count = len(description["sequences"]["encoder"]["tokens"])
    assert info["shape"] == [count, count]
    query = {"trace_id": description["trace_id"], "path": PATH}
    response = bert.ask("weights", **query, heads="0-3", rows="1:4", columns="2:9")
    assert response.headers["content-type"] == "application/octet-stream"
    assert_secure(response)
    shape = [int(size) for size in response.headers["x-shape"].split(",")]
    assert shape == [4, 3, 7]
    weights = np.frombuffer(response.content, "<u2").reshape(shape)
    trace = bert.explorer.traces[description["trace_id"]]
    exact = trace.compute_weights(PATH, range(4), slice(1, 4), slice(2, 9))
    np.testing.assert_allclose(weights / 65_535, exact.numpy(), rtol=0, atol=1e-5)
    first_head = bert.ask("weights", **query, heads="0")
    rows = np.frombuffer(first_head.content, "<u2").reshape(count, count) / 65_535
    np.testing.assert_allclose(rows.sum(-1), 1, rtol=0, atol=1e-3)


def test_neurons(bert: Client) -> None:
    response = bert.ask("neurons", trace_id=bert.get_trace(), path=PATH, head="1", row="2")
    assert response.headers["content-type"] == "application/octet-stream"
    assert_secure(response)
    parts = json.loads(response.headers["x-parts"])
    values = np.frombuffer(response.content, "<f4")
    sizes = [int(np.prod(part["shape"])) for part in parts]
    assert len(values) == sum(sizes)
    arrays = dict(
        zip(
            [part["name"] for part in parts],
            [
                array.reshape(part["shape"])
                for array, part in zip(np.split(values, np.cumsum(sizes)[:-1]), parts, strict=True)
            ],
            strict=True,
        )
    )
    scale = float(response.headers["x-scale"])
    score = arrays["keys"] @ arrays["query"] * scale
    np.testing.assert_allclose(arrays["score"], score, rtol=1e-4, atol=1e-5)
    expected = torch.tensor(score).softmax(-1)
    np.testing.assert_allclose(arrays["weight"], expected, rtol=0, atol=1e-5)


def test_masked_scores_are_nan_in_binary(gpt2: Client) -> None:
    number = gpt2.get_trace()
    response = gpt2.ask("neurons", trace_id=number, path="decoder.layers.0.attention", row="1")
    parts = json.loads(response.headers["x-parts"])
    values = np.frombuffer(response.content, "<f4")
    count = parts[-1]["shape"][0]
    assert [part["name"] for part in parts[-2:]] == ["score", "weight"]
    score = values[-2 * count : -count]
    assert np.isnan(score).tolist() == [False] * 2 + [True] * (count - 2)


def test_steps_beams_and_patterns(gpt2: Client) -> None:
    step = gpt2.ask("step", {"text": "the cat", "settings": {"do_sample": True}}).json()
    assert step["next"] in range(73)
    assert len(step["candidates"]) == 12
    following = gpt2.ask("step", {"text": "the cat", "token_ids": [step["next"]]}).json()
    assert following["tokens"][0]["id"] == step["next"]
    assert following["trace_id"] != step["trace_id"]
    tree = gpt2.ask("beams", {"text": "the cat", "num_beams": 2, "max_new_tokens": 3}).json()
    assert len(tree["steps"]) == len(tree["best"]) == 3
    masks = gpt2.ask("patterns", size="5").json()["attentions"]
    assert [mask["pattern"] for mask in masks] == ["causal", "causal"]
    assert len(base64.b64decode(masks[0]["mask"])) == 25


def test_images() -> None:
    client = Client(models.build_explorer("vit"))
    response = client.post("/api/image", content=WHOLE_PNG)
    assert response.status_code == 200
    name = response.json()["image"]
    description = client.ask("trace", {"image": name}).json()
    assert description["sequences"]["encoder"]["grid"] == [3, 3]
    for data in BROKEN.values():
        assert_reason(client.post("/api/image", content=data), 400)
    bomb = client.post("/api/image", content=encode_png(20_000, 20_000))
    assert "pixels" in assert_reason(bomb, 400)
    assert client.ask("trace", {"image": name}).status_code == 200


def test_images_that_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "MAX_UPLOAD_BYTES", len(WHOLE_PNG))
    client = Client(models.build_explorer("vit"))
    assert client.post("/api/image", content=WHOLE_PNG).status_code == 200
    reason = assert_reason(client.post("/api/image", content=WHOLE_PNG + b"\0"), 413)
    assert f"{len(WHOLE_PNG):,} bytes" in reason


# --- wrong values ---


@pytest.mark.parametrize("endpoint", WRONG_PLACES)
def test_wrong_parameters_are_refused(endpoint: str, bert: Client) -> None:
    query = {"trace_id": bert.get_trace(), "path": PATH}
    for name, values in WRONG_PLACES[endpoint].items():
        for value in values:
            reason = assert_reason(bert.ask(endpoint, **(query | {name: value})), 400)
            assert name in reason
    assert bert.ask(endpoint, **query).status_code == 200


@pytest.mark.parametrize("endpoint", WRONG_BODIES)
def test_wrong_bodies_are_refused(endpoint: str, bert: Client, gpt2: Client) -> None:
    client = bert if endpoint == "trace" else gpt2
    for name, values in WRONG_BODIES[endpoint].items():
        for value in values:
            content = json.dumps({"text": "the cat", name: value})  # NaN and Infinity, too
            assert_reason(client.post(f"/api/{endpoint}", content=content), 400)
    assert client.ask(endpoint, {"text": "the cat"}).status_code == 200


def test_forgotten_traces_are_not_found(bert: Client) -> None:
    for number in ("0", "99999", "", "x" * 3000, "\ud800".encode("utf-8", "replace").decode()):
        for endpoint in ("weights", "neurons"):
            reason = assert_reason(bert.ask(endpoint, trace_id=number, path=PATH), 404)
            assert "send the text again" in reason
    number = bert.get_trace()
    assert bert.ask("weights", trace_id=number, path=PATH).status_code == 200
    bert.explorer.traces.clear()
    assert_reason(bert.ask("weights", trace_id=number, path=PATH), 404)


NO_OBJECTS = {
    "nothing": b"", "text": b"the cat", "half": b'{"text": "a', "list": b"[1]", "number": b"5",
    "null": b"null", "string": b'"text"', "latin": '{"text": "ü"}'.encode("latin-1"),
    "deep": DEEP_JSON, "deep list": b"[" * 100_000, "number of digits": b'{"text": ' + b"9" * 5000 + b"}",
    "two": b"{}{}", "zeros": b"\0" * 100,
}  # fmt: skip


@pytest.mark.parametrize("endpoint", ["trace", "step", "beams"])
@pytest.mark.parametrize("name", NO_OBJECTS)
def test_bodies_that_are_no_json_objects_are_refused(
    name: str, endpoint: str, gpt2: Client
) -> None:
    response = gpt2.post(f"/api/{endpoint}", content=NO_OBJECTS[name])
    assert "expected" in assert_reason(response, 400)


def test_lone_surrogates_are_replaced(gpt2: Client) -> None:
    response = gpt2.post("/api/trace", content=b'{"text": "the \\ud800 cat", "x\\udfff": 1}')
    assert response.status_code == 200
    assert response.json()["text"] == "the ? cat"
    for field in ("model", "image"):
        content = json.dumps({"text": "the cat", field: "\ud800"})
        assert_reason(gpt2.post("/api/trace", content=content), 400)
    content = json.dumps({"text": "the cat", "settings": {"temperature": "\udfff"}})
    assert_reason(gpt2.post("/api/step", content=content), 400)


def test_hostile_texts_are_answered(gpt2: Client) -> None:
    for text in (
        "\x00",
        "</script><script>",
        "a\u2028b\u202e",
        "\x1b[31m",
        "👍🏽" * 5,
        "%s{}",
        "\ufeff a",
    ):
        response = gpt2.ask("trace", {"text": text})
        assert response.status_code == 200, response.text
        assert response.json()["text"] == text


@pytest.mark.parametrize("endpoint", ["trace", "step", "beams"])
def test_bodies_that_are_too_large_are_refused(endpoint: str, gpt2: Client) -> None:
    def stream() -> Iterator[bytes]:
        for _ in range(40):
            yield b" " * 2**16

    for content in (b" " * (2**20 + 1), stream()):
        reason = assert_reason(gpt2.post(f"/api/{endpoint}", content=content), 413)
        assert "1,048,576 bytes; send less" in reason
    assert_reason(gpt2.post(f"/api/{endpoint}", content=b" " * 2**20), 400)  # not JSON, but read


# --- who may ask ---


def list_requests() -> list[tuple[str, str]]:
    return [
        ("GET", "/"), ("HEAD", "/"), ("GET", "/other"), ("POST", "/"),
        *(("GET", f"/api/{endpoint}") for endpoint in GET_ENDPOINTS),
        *(("POST", f"/api/{endpoint}") for endpoint in POST_ENDPOINTS),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "token", [None, "", "wrong", TOKEN[:-1], f"{TOKEN}x", TOKEN.upper(), "\u00fc"]
)
def test_requests_without_the_token_are_refused(token: str | None, bert: Client) -> None:
    bert.explorer.traces.clear()
    client = TestClient(bert.app, base_url=ORIGIN)
    params = {} if token is None else {"token": token}
    headers = {"Authorization": f"Bearer {TOKEN}", "Cookie": f"token={TOKEN}"}
    for method, path in list_requests():
        response = client.request(method, path, params=params, headers=headers)
        assert response.status_code == 403
        assert TOKEN not in response.text
        assert_secure(response)
        if method != "HEAD":
            assert "token" in assert_reason(response, 403)
    assert not bert.explorer.traces


@pytest.mark.parametrize(
    "host",
    ["evil.example", f"evil.example:{PORT}", "127.0.0.1", "localhost", f"127.0.0.1:{PORT + 1}", "",
     f"127.0.0.1.evil.example:{PORT}", f"127.0.0.1:{PORT}.evil.example", f"0.0.0.0:{PORT}",
     f"LOCALHOST:{PORT}@evil.example"],
)  # fmt: skip
def test_requests_of_other_hosts_are_refused(host: str, bert: Client) -> None:
    """A page of another host, whose name leads to this machine (DNS rebinding)."""
    for method, path in list_requests():
        response = bert.request(method, path, headers={"Host": host})
        assert response.status_code == 403
        if method != "HEAD":
            assert "host" in assert_reason(response, 403)


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::1]"])
def test_requests_of_this_machine_are_answered(name: str, bert: Client) -> None:
    headers = {"Host": f"{name}:{PORT}", "Origin": f"http://{name}:{PORT}"}
    assert bert.get("/", headers=headers).status_code == 200
    assert bert.post("/api/trace", json={"text": "a cat"}, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "", f"https://127.0.0.1:{PORT}", f"http://localhost:{PORT}",
     "http://127.0.0.1", f"http://127.0.0.1:{PORT + 1}", f"{ORIGIN}.evil.example", f"{ORIGIN}/"],
)  # fmt: skip
def test_requests_of_other_pages_are_refused(origin: str, bert: Client) -> None:
    bert.explorer.traces.clear()
    response = bert.post("/api/trace", json={"text": "a cat"}, headers={"Origin": origin})
    assert "another page" in assert_reason(response, 403)
    preflight = bert.options(
        "/api/trace", headers={"Origin": origin, "Access-Control-Request-Method": "POST"}
    )
    assert_reason(preflight, 403)
    assert not bert.explorer.traces
    same = bert.post("/api/trace", json={"text": "a cat"}, headers={"Origin": ORIGIN})
    assert same.status_code == 200


@pytest.mark.parametrize(
    "method", ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"]
)
def test_other_methods_are_refused(method: str, bert: Client) -> None:
    allowed = {
        "/": ("GET", "HEAD"),
        **{f"/api/{endpoint}": ("GET", "HEAD") for endpoint in GET_ENDPOINTS},
        **{f"/api/{endpoint}": ("POST",) for endpoint in POST_ENDPOINTS},
    }
    for path, methods in allowed.items():
        if method not in methods:
            response = bert.request(method, path)
            assert response.status_code == 405
            assert_secure(response)


def test_other_addresses_are_not_found(bert: Client) -> None:
    paths = ("/api", "/api/", "/api/none", "/index.html", "/page/main.js", "/api/trace/")
    for path in (*paths, "/../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/favicon.ico"):
        response = bert.get(path, follow_redirects=False)
        assert response.status_code in (404, 307), path
        assert_secure(response)
        location = response.headers.get("location", ORIGIN)
        assert location.startswith(ORIGIN)


def test_websockets_are_refused(bert: Client) -> None:
    for path in ("/", "/api/trace"):
        with pytest.raises(WebSocketDisconnect), bert.websocket_connect(f"{path}?token={TOKEN}"):
            pass


# --- errors of ours ---


def fail(error: Exception) -> Callable[..., Any]:
    def raise_error(*_: object) -> None:
        raise error

    return raise_error


def test_errors_of_ours_are_answered_without_details(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = Client(models.build_explorer("gpt2"))
    monkeypatch.setattr(client.explorer, "beams", fail(KeyError("/home/somebody/secret")))
    broken = Client(client.explorer)
    reason = assert_reason(broken.ask("beams", {"text": "a"}), 500)
    assert reason == "KeyError: see the terminal of qkv look"
    assert "/home/somebody/secret" in capsys.readouterr().err  # in the terminal
    assert broken.ask("trace", {"text": "a cat"}).status_code == 200


def test_a_lack_of_memory_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(models.build_explorer("gpt2"))
    error = RuntimeError(
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"
    )
    for cause in (MemoryError(), torch.OutOfMemoryError("CUDA out of memory"), error):
        monkeypatch.setattr(client.explorer, "step", fail(cause))
        reason = assert_reason(Client(client.explorer).ask("step", {"text": "a"}), 507)
        assert reason == "not enough memory for this text; use a shorter one"


def test_numbers_that_json_does_not_have_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(models.build_explorer("gpt2"))
    monkeypatch.setattr(client.explorer, "beams", lambda body: {"score": float("nan")})
    assert_reason(Client(client.explorer).ask("beams", {"text": "a"}), 400)


# --- threads ---


def test_requests_of_threads_do_not_mix(gpt2: Client) -> None:
    texts = ["the cat", "a bird sang in the tall tree", "we saw the dog", "the mat"]
    path = "decoder.layers.1.attention"

    def work(number: int) -> tuple[str, Any, bytes]:
        text = texts[number % len(texts)]
        description = gpt2.ask("trace", {"text": text}).json()
        query = {"trace_id": description["trace_id"], "path": path, "heads": "0-3"}
        return text, description["sequences"], gpt2.ask("weights", **query).content

    expected = {text: (sequences, data) for text, sequences, data in map(work, range(4))}
    with ThreadPoolExecutor(4) as pool:
        for text, sequences, data in pool.map(work, range(24)):
            assert (sequences, data) == expected[text]
