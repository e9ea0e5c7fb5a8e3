"""A server that lists charges as Stripe does, newest first and page by page."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.loopback import Json, LoopbackUpstream, Request, Status, Step

PAGE = 2


class ChargeList:
    """The charges that it lists, and its address."""

    def __init__(self, url: str) -> None:
        self.charges: list[dict[str, Any]] = []
        self.url = url

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

    def steps(self, request: Request) -> Iterable[Step]:
        url, headers = urlsplit(request.path), request.headers
        is_known = url.path == "/v1/charges" and headers["authorization"].startswith("Bearer sk_test")
        is_known = is_known and headers["stripe-version"] == "2025-09-30.clover"
        return (Json(self.page(parse_qs(url.query))) if is_known else Status(401)).steps(request)


@contextlib.contextmanager
def listing_charges() -> Iterator[ChargeList]:
    with LoopbackUpstream() as server:
        charges = ChargeList(server.base_url.removesuffix("/v1"))
        server.always(charges)
        yield charges
