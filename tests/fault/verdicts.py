"""Whether a client was told just what a fault's record says, paid for just what it got, and no more was lost."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from cadenza.core.records import OUTPUT_TOKENS_MAX
from cadenza.core.tokens import count_tokens
from tests.fault.books import cost_nano, estimate_tokens, usage_cost_nano
from tests.fault.faults import BOUNDED, BOUNDED_TOKENS, PATIENT, SECRET, WITHIN_S, Fault, Told
from tests.fault.leaks import Bed
from tests.fault.wire import Ask, Seen
from tests.loopback import UPSTREAM_MARKS
from tests.schemas import check_broken_stream, check_completion, check_error, check_stream

ERROR_TYPES = {400: "invalid_request_error", 429: "rate_limit_error", 502: "api_error"}
MODES = (True, False)  # a stream, and none
REQUESTS_MAX = 2  # a kept connection may turn out to be closed: then once more on a new one


def check_fault(bed: Bed, fault: Fault) -> None:
    """A stream and a plain reply meet the fault, then one of each does not."""
    balance_nano = bed.books.balance_nano
    bed.upstream.always(fault.reply)
    asks = [bed.new_ask(fault.class_id, stream=stream, max_tokens=fault.max_tokens) for stream in MODES]
    replies = send_all(bed, asks, fault.within_s)
    for ask, seen in zip(asks, replies, strict=True):
        check_told(seen, fault.stream if ask.stream else fault.whole, stream=ask.stream)
    assert len(bed.upstream.requests) <= REQUESTS_MAX * len(asks)
    bed.check_nothing_leaks()
    assert balance_nano - bed.books.balance_nano == sum(map(due_nano, asks, replies))
    check_next(bed)


def check_next(bed: Bed) -> None:
    """The route that had a fault serves again. One after the other: a route that rested is tried by one at a time."""
    bed.upstream.reset()
    for stream in MODES:
        seen = bed.send(bed.new_ask(PATIENT, stream=stream))
        assert seen.is_done, seen.raw[-500:]
    bed.check_nothing_leaks()


def send_all(bed: Bed, asks: Sequence[Ask], within_s: float = WITHIN_S) -> list[Seen]:
    """At once."""
    with ThreadPoolExecutor(len(asks)) as at_once:
        return list(at_once.map(lambda ask: bed.send(ask, within_s), asks))


def check_told(seen: Seen, told: Told, *, stream: bool) -> None:
    leaked = [mark for mark in (SECRET, *UPSTREAM_MARKS) if mark.encode() in seen.raw]
    assert leaked == []
    assert seen.status == told.status, seen.raw[-500:]
    if told.status != 200:
        check_error(json.loads(seen.body), ERROR_TYPES[told.status])
        assert seen.headers.get("x-should-retry") == ("false" if told.status == 400 else None)
        assert seen.headers.get("retry-after") == (None if told.retry_after_s is None else str(told.retry_after_s))
        assert ("retry-after-ms" in seen.headers) == (told.retry_after_s is not None)
        return
    if told.is_broken:
        assert b'\n\n\ndata: {"error":' in seen.body
        text = check_broken_stream(seen.body).text
    elif stream:
        text = check_stream(seen.body).text
    else:
        check_completion(json.loads(seen.body))
        text = seen.text
    assert text == told.text if told.text is not None else text


def due_nano(ask: Ask, seen: Seen) -> int:
    """What a client pays: what it was told or, where it was told nothing, what it got."""
    if seen.status != 200:
        return 0
    if seen.is_done:
        return usage_cost_nano(ask.class_id, seen.usage)
    delivered_tokens = min(count_tokens(seen.text), BOUNDED_TOKENS if ask.class_id == BOUNDED else OUTPUT_TOKENS_MAX)
    return cost_nano(ask.class_id, estimate_tokens(ask.content), delivered_tokens)
