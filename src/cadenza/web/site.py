"""Everything outside /v1: the front page, and the probes of whoever watches the service. No key, no account."""

import html
from collections.abc import Awaitable, Callable
from importlib.resources import files
from ipaddress import ip_address

from cadenza.http.exchange import Exchange
from cadenza.http.forwarded import scheme
from cadenza.observe import Log, Metrics, places

Ready = Callable[[], Awaitable[str | None]]

TEXT = b"text/plain; charset=utf-8"
HTML = b"text/html; charset=utf-8"
PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"
EVERY_LINE = (
    b"cache-control: no-store\r\nx-content-type-options: nosniff\r\n"
    b"content-security-policy: default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'\r\n"
)


class Site:
    """The pages and probes. `ready` says why the service is not ready, or nothing when it is."""

    def __init__(self, ready: Ready, metrics: Metrics, log: Log) -> None:
        self._ready = ready
        self._metrics = metrics
        self._log = log
        self._home = files("cadenza.web").joinpath("home.html").read_text()

    async def serve(self, exchange: Exchange) -> None:
        try:
            status, kind, body = await self._answer(exchange)
        except Exception as error:  # noqa: BLE001 the request edge: whatever it is, the client gets an answer
            self._log.error("internal error", endpoint="site", places=places(error))
            status, kind, body = 500, TEXT, b"The service met an internal error.\n"
        exchange.reply(status, body, b"content-type: %b\r\n%b" % (kind, EVERY_LINE))

    async def _answer(self, exchange: Exchange) -> tuple[int, bytes, bytes]:
        if exchange.method not in {"GET", "HEAD"}:
            return 405, TEXT, b"Only GET is for this path. The API is under /v1.\n"
        match exchange.path:
            case "/":
                return 200, HTML, self._home.replace("{base}", html.escape(_base(exchange))).encode()
            case "/healthz":
                return 200, TEXT, b"ok\n"
            case "/readyz":
                reason = await self._ready()
                return 503 if reason else 200, TEXT, (reason or "ready").encode() + b"\n"
            case "/metrics":
                return self._show_metrics(exchange)
        return 404, TEXT, b"There is nothing here. The API is under /v1.\n"

    def _show_metrics(self, exchange: Exchange) -> tuple[int, bytes, bytes]:
        if not _is_loopback(exchange.address):
            return 403, TEXT, b"Metrics are shown to this machine only.\n"
        return 200, PROMETHEUS, self._metrics.render()


def _base(exchange: Exchange) -> str:
    host = exchange.headers.get(b"host", b"127.0.0.1:8080").decode("latin-1")
    return f"{scheme(exchange.peer, 'http', exchange.headers.get(b'x-forwarded-proto'))}://{host}/v1"


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False
