"""Everything outside /v1: the front page, and the probes of whoever watches the service. No key, no account."""

import html
from collections.abc import Awaitable, Callable, MutableMapping
from importlib.resources import files
from ipaddress import ip_address
from typing import Any

from cadenza.core.forwarded import asker, scheme
from cadenza.observe import Metrics

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Ready = Callable[[], Awaitable[str | None]]

TEXT = b"text/plain; charset=utf-8"
HTML = b"text/html; charset=utf-8"
PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"


class Site:
    """The pages and probes. `ready` says why the service is not ready, or nothing when it is."""

    def __init__(self, ready: Ready, metrics: Metrics) -> None:
        self._ready = ready
        self._metrics = metrics
        self._home = files("cadenza.web").joinpath("home.html").read_text()

    async def __call__(self, scope: Scope, send: Send) -> None:
        status, kind, body = await self._answer(scope)
        headers = [
            (b"content-type", kind),
            (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
            (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def _answer(self, scope: Scope) -> tuple[int, bytes, bytes]:
        if scope["method"] not in {"GET", "HEAD"}:
            return 405, TEXT, b"Only GET is for this path. The API is under /v1.\n"
        match scope["path"]:
            case "/":
                return 200, HTML, self._home.replace("{base}", html.escape(_base(scope))).encode()
            case "/healthz":
                return 200, TEXT, b"ok\n"
            case "/readyz":
                reason = await self._ready()
                return 503 if reason else 200, TEXT, (reason or "ready").encode() + b"\n"
            case "/metrics":
                return self._show_metrics(scope)
        return 404, TEXT, b"There is nothing here. The API is under /v1.\n"

    def _show_metrics(self, scope: Scope) -> tuple[int, bytes, bytes]:
        if not _is_loopback(scope):
            return 403, TEXT, b"Metrics are shown to this machine only.\n"
        return 200, PROMETHEUS, self._metrics.render()


def _base(scope: Scope) -> str:
    headers = dict(scope["headers"])
    host = headers.get(b"host", b"127.0.0.1:8080").decode("latin-1")
    return f"{scheme(_peer(scope), scope['scheme'], headers.get(b'x-forwarded-proto'))}://{host}/v1"


def _peer(scope: Scope) -> str:
    address: str = (scope.get("client") or ("", 0))[0]
    return address


def _is_loopback(scope: Scope) -> bool:
    address = asker(_peer(scope), scope["headers"])
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False
