"""An upstream that sends far more than it was asked for: bounded by the tokens that the request allowed."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from tests.contract.agent import TOOLS
from tests.loopback import STOP, Endless, Json, LoopbackUpstream, Reply, Sse, chunk, completion, framed, said, sse_event
from tests.loopback.chunks import SSE_HEAD
from tests.raw_client import RawClient
from tests.schemas import check_error
from tests.service import Service
from tests.service_config import classes_spec

MIB = 2**20
AT_ONCE = 8
GROWTH_BYTES_MAX = 60 * MIB  # of 8 replies at once, each with a bound of 1.1 MiB, read as a body and as JSON
CALLS = 10_000
LARGE = said("x" * (4 * MIB))
CALL = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}


def calling(count: int) -> Any:
    value = completion(None, "tool_calls")
    value["choices"][0]["message"]["tool_calls"] = [CALL] * count
    return value


HOSTILE: dict[str, Reply] = {
    "events of 4 MiB": Endless([SSE_HEAD], [framed(sse_event(LARGE))]),
    "a body of 16 MiB": Json(completion("x" * (16 * MIB))),
    "calls in one body": Json(calling(CALLS)),
    "calls in many events": Endless([SSE_HEAD], [framed(sse_event(chunk({"tool_calls": [CALL]})))]),
    "an event without an end": Endless([SSE_HEAD], [framed(b"data: "), framed(bytes(MIB).replace(b"\0", b"x"))]),
}


class Watched(msgspec.Struct, frozen=True):
    """A service, and its memory before the first hostile reply."""

    service: Service
    before_bytes: int


@pytest.fixture(scope="module")
def watched(shared_upstream: LoopbackUpstream) -> Iterator[Watched]:
    """A service whose memory nobody else uses."""
    with Service(classes_spec(shared_upstream.base_url)) as service:
        shared_upstream.script(Sse([said("Hi."), STOP]))
        assert RawClient(service.port, service.key).chat(stream=True).is_done  # no usage: the tokenizer is loaded
        yield Watched(service, service.process.rss_bytes)


@pytest.mark.slow(reason="replies as large as they may be")
@pytest.mark.parametrize("case", HOSTILE)
def test_a_reply_is_bounded_by_its_tokens(watched: Watched, upstream: LoopbackUpstream, case: str) -> None:
    """Against `max_tokens: 50` such a reply is cut off as broken, and the memory of the service stays bounded."""
    service = watched.service
    api = RawClient(service.port, service.key)
    service.reload()  # the route rests after the replies of another case
    upstream.always(HOSTILE[case])
    with ThreadPoolExecutor(AT_ONCE) as threads:
        ask = lambda n: api.chat(tools=TOOLS, max_tokens=50, stream=n % 2 == 0)  # noqa: E731
        replies = list(threads.map(ask, range(AT_ONCE)))
    for reply in replies:
        if reply.status == 200:
            *_, last = reply.body.strip().split(b"data: ")
            check_error(json.loads(last), "api_error")
        elif reply.status == 429:  # it came late: the route rested already, and another request was its trial
            reply.error(429, "rate_limit_error")
        else:
            reply.error(502, "api_error")
    assert len(upstream.requests) >= AT_ONCE / 2
    assert service.process.rss_bytes - watched.before_bytes < GROWTH_BYTES_MAX
