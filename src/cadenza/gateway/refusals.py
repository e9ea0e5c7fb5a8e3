"""Refusals of requests that never reach an endpoint: malformed ones, and those that find no free connection.

Each has the headers, the log line and the count of any other refusal.
"""

import time

from cadenza.core.errors import InvalidRequest, RateLimited, error_headers, render_error
from cadenza.core.records import Outcome
from cadenza.gateway.answers import JSON, Answers, new_request_id
from cadenza.gateway.record import RequestRecord
from cadenza.http.exchange import Exchange
from cadenza.http.headers import encode_headers
from cadenza.observe import Observer

MALFORMED = "This is not a valid HTTP/1.1 request, or its headers are too large."
UNKNOWN_CODING = "The body has a transfer coding that is not supported: only chunked is."
NO_CONNECTION = "The service has no free connection at the moment. Retry shortly."
NO_CONNECTION_RETRY_S = 1.0


def refuse_malformed(observer: Observer, status: int) -> tuple[bytes, bytes]:
    """The headers and the body of the reply to bytes that are not HTTP, or not the HTTP that is served here."""
    error = InvalidRequest(UNKNOWN_CODING if status == 501 else MALFORMED)
    request_id = new_request_id()
    observer.record(
        Outcome(
            request_id=request_id,
            endpoint="malformed",
            status=status,
            duration_ms=0,
            ended_at=time.time_ns() // 1_000_000,
        )
    )
    headers = [*error_headers(error), (b"x-request-id", request_id.encode())]
    return JSON + encode_headers(headers), render_error(error.message, error.type)


async def refuse_connection(observer: Observer, exchange: Exchange) -> None:
    """All connections are busy. This one was accepted only so that its client learns of it."""
    record = RequestRecord(exchange)
    Answers(exchange, record.request_id).fail(RateLimited(NO_CONNECTION, NO_CONNECTION_RETRY_S))
    observer.metrics.refused.labels("connections").inc()
    observer.record(record.outcome())
