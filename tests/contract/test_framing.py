"""Every kind of reply of the real service on one connection: h11 reads each to its exact end, then the next one."""

import json
import socket

import pytest

from tests.account import open_account
from tests.loopback import STOP, Cut, Json, LoopbackUpstream, Sse, Status, completion, said, usage_chunk
from tests.raw_client import MESSAGES
from tests.service import Service
from tests.strict_replies import StrictReply, read_strictly
from tests.visitor import Visitor

pytestmark = pytest.mark.parts(reason="it looks at pages too")

TIMEOUT_S = 100.0
CHAT = "/v1/chat/completions"


def request(method: str, path: str, body: bytes = b"", *lines: str) -> bytes:
    head = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", f"content-length: {len(body)}", *lines]
    return "\r\n".join([*head, "", ""]).encode() + body


def chat(**fields: object) -> bytes:
    return json.dumps({"messages": MESSAGES, **fields}).encode()


def exchange(service: Service, requests: list[bytes]) -> list[StrictReply]:
    """The replies to requests that are sent together; the last one closes the connection."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=TIMEOUT_S) as connection:
        connection.sendall(b"".join(requests))
        received = b""
        while part := connection.recv(65_536):
            received += part
    return read_strictly(received, [sent.partition(b" ")[0].decode() for sent in requests])


def test_pages_and_exports(service: Service) -> None:
    """Pages, streamed exports, redirects, errors, static files and empty replies, to GET, HEAD and POST."""
    with open_account(service, 10**9) as account:
        visitor = Visitor(service.port)
        visitor.sign_in(account.email)
        cookie = "cookie: " + "; ".join(f"{name}={value}" for name, value in visitor.cookies.items())
        paths = {
            "/credit/statement": 200,
            "/credit/statement.csv": 200,
            "/credit/statement.json": 200,
            "/platform/api/statement": 200,
            "/openapi.json": 200,
            "/docs": 200,
            "/status": 303,
            "/no/such/page": 404,
            "/healthz": 200,
            "/": 303,
        }
        sent = [request(method, path, b"", cookie) for path in paths for method in ("GET", "HEAD")]
        sent += [request("POST", "/credit", b"a=b", cookie), request("GET", "/settings")]
        last = request("GET", "/credit/statement.csv", b"", cookie, "connection: close")
        replies = exchange(service, [*sent, last])
    statuses = [status for status in paths.values() for _ in range(2)]
    assert [reply.status for reply in replies[: len(statuses)]] == statuses
    assert [len(reply.body) == 0 for reply in replies[1 : len(statuses) : 2]] == [True] * len(paths)
    table, document = replies[2], replies[4]
    assert table.headers["content-type"].startswith("text/csv")
    assert table.body.startswith(b"id,created_at,")
    assert table.body == replies[-1].body
    assert json.loads(document.body)["object"] == "list"


def test_replies_of_the_api(service: Service, upstream: LoopbackUpstream) -> None:
    """Chats, streams, errors, preflights and an awaited 100 Continue follow one another on one connection."""
    key = f"authorization: Bearer {service.key}"
    upstream.script(
        Json(completion("One.")),
        Sse([said("Two."), STOP, usage_chunk()]),
        Status(500),
        Json(completion("Three.")),
        Cut(Sse([said("Hel")], done=False), 300),
    )
    replies = exchange(
        service,
        [
            request("GET", "/v1/models", b"", key),
            request("HEAD", "/v1/models", b"", key),
            request("POST", CHAT, chat(), key),
            request("OPTIONS", CHAT, b"", "access-control-request-headers: x-any"),
            request("POST", CHAT, chat(stream=True), key),
            request("POST", CHAT, b"{", key),
            request("GET", "/v1/models"),
            request("DELETE", "/v1/models", b"", key),
            request("POST", "/v1/embeddings", b"{}", key),
            request("POST", CHAT, chat(model="mezzo"), key),
            request("POST", CHAT, chat(), key, "expect: 100-continue"),
            request("POST", CHAT, chat(stream=True), key),
        ],
    )
    assert [one.status for one in replies] == [200, 200, 200, 204, 200, 400, 401, 405, 404, 502, 200, 200]
    assert replies[4].body.endswith(b"data: [DONE]\n\n")
    assert b'"error"' in replies[-1].body
    assert b"[DONE]" not in replies[-1].body
