"""Heads that two programs may read differently are refused, and each refusal leaves a trace."""

import json
import re

import pytest

from tests.raw_client import RawClient, Reply
from tests.service import Service, wait_until

HOST = b"Host: here\r\n"
CHUNKED = b"0\r\n\r\n"
MALFORMED = {
    "HTTP/0.9": (b"GET /healthz\r\n\r\n", 400),
    "HTTP/0.9 in words": (b"GET /healthz HTTP/0.9\r\n" + HOST + b"\r\n", 400),
    "HTTP/2.0": (b"GET /healthz HTTP/2.0\r\n" + HOST + b"\r\n", 400),
    "no Host": (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
    "two Hosts": (b"GET /healthz HTTP/1.1\r\n" + HOST + HOST + b"\r\n", 400),
    "two different Hosts": (b"GET /healthz HTTP/1.1\r\n" + HOST + b"hOST: there\r\n\r\n", 400),
    "two Hosts in HTTP/1.0": (b"GET /healthz HTTP/1.0\r\n" + HOST + HOST + b"\r\n", 400),
    "two spaces before the target": (b"GET  /healthz HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "two spaces after the target": (b"GET /healthz  HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "a tab before the target": (b"GET\t/healthz HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "a space behind the version": (b"GET /healthz HTTP/1.1 \r\n" + HOST + b"\r\n", 400),
    "chunked is not the last coding": (
        b"POST /v1/models HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked, gzip\r\n\r\n",
        400,
    ),
    "chunked twice": (
        b"POST /v1/models HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked, chunked\r\n\r\n" + CHUNKED,
        400,
    ),
    "chunked twice in two fields": (
        b"POST /v1/models HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n" + CHUNKED,
        400,
    ),
    "chunked in HTTP/1.0": (
        b"POST /v1/models HTTP/1.0\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKED,
        400,
    ),
    "gzip, chunked": (
        b"POST /v1/models HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKED,
        501,
    ),
    "more codings than are read": (
        b"POST /v1/models HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: " + b"," * 60_000 + b"chunked\r\n\r\n" + CHUNKED,
        400,
    ),
    "gzip, chunked in two fields": (
        b"POST /v1/models HTTP/1.1\r\n"
        + HOST
        + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        501,
    ),
}


@pytest.mark.parametrize(("sent", "status"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_heads_are_refused(service: Service, sent: bytes, status: int) -> None:
    """One refusal in the error shape, then the end of the connection; what stands behind the head is not served."""
    behind = b"GET /healthz HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
    received = RawClient(service.port, None).send_raw(sent + behind)
    reply = Reply(received)
    assert reply.error(status)
    assert reply.headers["connection"] == "close"
    assert received.count(b"HTTP/1.1") == 1 + reply.body.count(b"HTTP/1.1")


def malformed_count(service: Service) -> int:
    text = service.process.get("/metrics")[1]
    found = re.search(r'^cadenza_requests_total\{endpoint="malformed",status="400"\} ([0-9.]+)$', text, re.MULTILINE)
    return int(float(found[1])) if found else 0


def test_a_malformed_request_leaves_a_trace(service: Service) -> None:
    """The reply has an x-request-id, the log has a line with it, and the metric counts it; the log quotes no bytes."""
    before = malformed_count(service)
    reply = Reply(RawClient(service.port, None).send_raw(b"GET /canary-7213  HTTP/1.1\r\nhost: here\r\n\r\n"))
    request_id = reply.headers["x-request-id"]
    assert malformed_count(service) == before + 1
    wait_until(lambda: request_id in service.output.rpartition("\n")[0], "the whole log line")
    [line] = [json.loads(line) for line in service.output.splitlines() if request_id in line]
    assert (line["event"], line["endpoint"], line["status"]) == ("request", "malformed", 400)
    assert "canary-7213" not in service.output
