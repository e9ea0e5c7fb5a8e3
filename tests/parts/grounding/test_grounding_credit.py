"""Grounding spends nothing for requests that are not served."""

from collections.abc import Iterator
from typing import Any

import pytest

from cadenza.core.money import parse_dollars
from cadenza.core.records import Cap
from tests.loopback import Json, LoopbackUpstream, Pause, Raw
from tests.raw_client import RawClient
from tests.service import EMAIL, Service
from tests.service_config import RouteSpec, ServiceSpec

QUESTION = [{"role": "user", "content": "Search the web: what is the latest news about the Zurbaran form?"}]
NO_PDF = {"type": "file", "file": {"filename": "plan.pdf", "file_data": "data:application/pdf;base64,QUJD"}}
SHORT_ANSWER_NANO = 200_000  # pays for the question and a few words, not for a page


@pytest.fixture(scope="module")
def engine() -> Iterator[LoopbackUpstream]:
    """Stands in for SearXNG: it records who asks."""
    with LoopbackUpstream() as engine:
        engine.always(Json({"results": []}))
        yield engine


@pytest.fixture(scope="module")
def searching(shared_upstream: LoopbackUpstream, engine: LoopbackUpstream) -> Iterator[Service]:
    """A service with a search engine and a single slot."""
    address = engine.base_url.removesuffix("/v1")
    search = f'[grounding.search]\nengine = "searxng"\nurl = "{address}"\n'
    routes = {"forte": [RouteSpec("loopback")]}
    spec = ServiceSpec({"loopback": shared_upstream.base_url}, routes, search, {"concurrency": 1})
    with Service(spec) as service:
        yield service


def searches(service: Service) -> float:
    """How many requests got as far as web search."""
    _, text = service.process.get("/metrics")
    lines = [line for line in text.splitlines() if line.startswith('cadenza_grounding_total{part="search"')]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_a_key_without_room_under_its_cap_makes_no_search(searching: Service, upstream: LoopbackUpstream) -> None:
    """The 402 comes before anything is asked or read for it."""
    before = searches(searching)
    capped = RawClient(searching.port, searching.create_key(EMAIL, cap=Cap(1_000)))
    for _ in range(2):
        assert "This key has a spend cap of" in capped.chat(messages=QUESTION).error(402, "insufficient_quota")
    assert searches(searching) == before
    assert RawClient(searching.port, searching.key).chat(messages=QUESTION).status == 200
    assert searches(searching) == before + 1


@pytest.mark.parametrize("is_capped", [False, True], ids=["credit", "cap"])
def test_credit_that_does_not_pay_for_sources_makes_no_search(
    searching: Service, upstream: LoopbackUpstream, is_capped: bool
) -> None:
    """The question alone can be paid for, so it is answered without sources, and the engine is not asked in vain."""
    before = searches(searching)
    email = EMAIL if is_capped else searching.create_account(SHORT_ANSWER_NANO)
    key = searching.create_key(email, cap=Cap(SHORT_ANSWER_NANO) if is_capped else None)
    assert RawClient(searching.port, key).chat(messages=QUESTION).status == 200
    assert searches(searching) == before


def test_credit_for_the_answer_that_was_asked_for_is_enough(searching: Service, upstream: LoopbackUpstream) -> None:
    """What a request without a search needs for one token also pays for one that asks for a search."""
    asked: dict[str, Any] = {"messages": QUESTION, "max_tokens": 1}
    poor = RawClient(searching.port, searching.create_key(searching.create_account(1)))
    refusal = poor.post(asked, {"x-cadenza-grounding": "none"}).error(402, "insufficient_quota")
    needed = refusal.partition("needs at least ")[2].split()[0]
    for amount_nano, status in ((parse_dollars(needed) - 1, 402), (parse_dollars(needed), 200)):
        key = searching.create_key(searching.create_account(amount_nano))
        assert RawClient(searching.port, key).post(asked).status == status


def test_a_repeated_idempotency_key_makes_no_search(
    searching: Service, upstream: LoopbackUpstream, engine: LoopbackUpstream
) -> None:
    """The 409 names the first request, and comes before the engine is asked or a file is read."""
    api, once = RawClient(searching.port, searching.key), {"idempotency-key": "once"}
    first = api.post({"messages": QUESTION}, once)
    assert first.status == 200
    news = [{"role": "user", "content": "Search the web: what is new about Ada Lark?"}]
    before = (searches(searching), len(engine.requests))
    for messages in (QUESTION, news, [{"role": "user", "content": [NO_PDF]}]):
        assert first.headers["x-request-id"] in api.post({"messages": messages}, once).error(409)
    assert (searches(searching), len(engine.requests)) == before
    assert api.post({"messages": news}, {"idempotency-key": "twice"}).status == 200
    assert len(engine.requests) > before[1]


def test_a_request_without_a_slot_makes_no_search(searching: Service, upstream: LoopbackUpstream) -> None:
    """The 429 of a saturated service comes before anything is asked or read for the request."""
    upstream.always(Raw([Pause()]))
    api = RawClient(searching.port, searching.key)
    with api.open_chat(messages=[{"role": "user", "content": "hi"}]):
        upstream.wait_for_request()
        before = searches(searching)
        assert "saturated" in api.chat(messages=QUESTION).error(429, "rate_limit_error")
        assert searches(searching) == before
