"""A server that lists charges as Stripe does, newest first and page by page."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

PAGE = 2


class ChargeList:
    """The charges that it lists, and its address."""

    def __init__(self) -> None:
        self.charges: list[dict[str, Any]] = []
        self.url = ""

    def add(self, number: int, created_s: int, **fields: Any) -> None:
        """A charge of ten dollars for the payment with this number."""
        usual = {"amount": 1000, "amount_refunded": 0, "currency": "usd", "status": "succeeded"}
        ids = {"id": f"ch_{number}", "payment_intent": f"pi_{number}", "metadata": {"payment": f"pay_{number}"}}
        self.charges.insert(0, {**usual, **ids, "created": created_s, **fields})

    def page(self, query: dict[str, list[str]]) -> dict[str, Any]:
        start, end = (int(query[f"created[{name}]"][0]) for name in ("gte", "lt"))
        found = [one for one in self.charges if start <= one["created"] < end]
        if after := query.get("starting_after"):
            found = found[[one["id"] for one in found].index(after[0]) + 1 :]
        return {"object": "list", "data": found[:PAGE], "has_more": len(found) > PAGE}


@contextlib.contextmanager
def listing_charges() -> Iterator[ChargeList]:
    charges = ChargeList()

    class Handler(BaseHTTPRequestHandler):
        """Answers GET /v1/charges."""

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            is_known = url.path == "/v1/charges" and self.headers["authorization"].startswith("Bearer sk_test")
            is_known = is_known and self.headers["stripe-version"] == "2025-09-30.clover"
            body = json.dumps(charges.page(parse_qs(url.query)) if is_known else {}).encode()
            self.send_response(200 if is_known else 401)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    charges.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield charges
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
