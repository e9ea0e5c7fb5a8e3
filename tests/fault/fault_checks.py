"""Checks of one upstream fault: the client sees what the fault's record says, pays for what it got, nothing leaks."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from cadenza.core.records import OUTPUT_TOKENS_MAX
from tests.fault.faults import BOUNDED, BOUNDED_TOKENS, PATIENT, SECRET, Expected, Fault
from tests.fault.rig import FaultRig
from tests.ledger_reader import cost_nano, estimate_tokens, usage_cost_nano
from tests.loopback import UPSTREAM_MARKS
from tests.raw_client import ChatRequest, Reply
from tests.schemas import check_broken_stream, check_completion, check_error, check_stream
from tests.tokens import count_tokens

ERROR_TYPES = {400: "invalid_request_error", 429: "rate_limit_error", 502: "api_error"}
MODES = (True, False)  # streaming and plain
REQUESTS_MAX = 2  # if a kept connection turns out to be closed, the request is sent again on a new one


def check_fault(rig: FaultRig, fault: Fault) -> None:
    """A streaming and a plain request meet the fault, then one of each is served."""
    balance_nano = rig.ledger.balance_nano
    rig.upstream.always(fault.reply)
    requests = [rig.new_request(fault.class_id, stream=stream, max_tokens=fault.max_tokens) for stream in MODES]
    replies = send_all(rig, requests)
    for request, reply in zip(requests, replies, strict=True):
        check_reply(reply, fault.stream if request.stream else fault.plain, stream=request.stream)
    assert len(rig.upstream.requests) <= REQUESTS_MAX * len(requests)
    rig.check_nothing_leaks()
    assert balance_nano - rig.ledger.balance_nano == sum(map(expected_cost_nano, requests, replies))
    check_next(rig)


def check_next(rig: FaultRig) -> None:
    """The route that had a fault serves again. One request after the other, as a resting route takes one at a time."""
    rig.upstream.reset()
    for stream in MODES:
        reply = rig.send(rig.new_request(PATIENT, stream=stream))
        assert reply.is_done, reply.raw[-500:]
    rig.check_nothing_leaks()


def send_all(rig: FaultRig, requests: Sequence[ChatRequest]) -> list[Reply]:
    """Send all requests at once."""
    with ThreadPoolExecutor(len(requests)) as threads:
        return list(threads.map(rig.send, requests))


def check_reply(reply: Reply, expected: Expected, *, stream: bool) -> None:
    leaked = [mark for mark in (SECRET, *UPSTREAM_MARKS) if mark.encode() in reply.raw]
    assert leaked == []
    assert reply.status == expected.status, reply.raw[-500:]
    if expected.status != 200:
        check_error(json.loads(reply.body), ERROR_TYPES[expected.status])
        assert reply.headers.get("x-should-retry") == ("false" if expected.status == 400 else None)
        retry_after_s = None if expected.retry_after_s is None else str(expected.retry_after_s)
        assert reply.headers.get("retry-after") == retry_after_s
        assert ("retry-after-ms" in reply.headers) == (expected.retry_after_s is not None)
        return
    if expected.is_broken:
        assert b'\n\n\ndata: {"error":' in reply.body
        text = check_broken_stream(reply.body).text
    elif stream:
        text = check_stream(reply.body).text
    else:
        check_completion(json.loads(reply.body))
        text = reply.text
    assert text == expected.text if expected.text is not None else text


def expected_cost_nano(request: ChatRequest, reply: Reply) -> int:
    """What the client must pay: the usage that it was told or, without one, the text that it got."""
    if reply.status != 200:
        return 0
    if reply.is_done:
        return usage_cost_nano(request.class_id, reply.usage)
    most_tokens = BOUNDED_TOKENS if request.class_id == BOUNDED else OUTPUT_TOKENS_MAX
    delivered_tokens = min(count_tokens(reply.text), most_tokens)
    return cost_nano(request.class_id, estimate_tokens(request.content), delivered_tokens)
