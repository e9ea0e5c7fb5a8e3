"""8. Token counting as a weapon: no credit, no count; a count is linear, and one at a time for each key."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.hostile.watch import watching
from tests.loopback import LoopbackUpstream
from tests.processes import cpu_s
from tests.raw_client import RawClient
from tests.service import Service
from tests.service_config import classes_spec

MIB = 2**20
AT_ONCE = 12
CREDIT_NANO = 1000 * 10**9


@pytest.fixture(scope="module")
def service(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    with Service(classes_spec(shared_upstream.base_url), CREDIT_NANO) as running:
        yield running


def body_of(text: str, **fields: object) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text}], **fields}, ensure_ascii=False).encode()


@pytest.mark.parametrize("unit", ["/", " ", "a", "\n", "é", "😀", "-=*/# "], ids=repr)
def test_no_text_is_slow_to_count(service: Service, unit: str) -> None:
    """Two megabytes of one repeated unit are counted within a second of CPU time."""
    api = RawClient(service.port, service.key)
    body = body_of(unit * (2 * MIB // len(json.dumps(unit, ensure_ascii=False).encode()) + 1))
    before_s = cpu_s(service.pid)
    assert api.post(body).status in (200, 400)
    assert cpu_s(service.pid) - before_s < 1


def test_twelve_counts_at_once_hold_up_nobody(service: Service) -> None:
    """While twelve long prompts are counted, small requests of another key are served: a child counts."""
    keys = [service.create_key() for _ in range(AT_ONCE)]
    body, other = body_of("/" * MIB), RawClient(service.port, service.key)
    with watching(service.process) as watch, ThreadPoolExecutor(AT_ONCE) as clients:
        replies = clients.map(lambda key: RawClient(service.port, key).post(body), keys)
        assert all(other.chat().status == 200 for _ in range(10))
        assert {reply.status for reply in replies} <= {200, 429}
    assert watch.own_cpu_s < watch.children_cpu_s


def test_an_account_without_credit_causes_no_count(service: Service) -> None:
    """A long prompt gets a 402 at once, without a count."""
    email = service.create_account(0)
    api = RawClient(service.port, service.create_key(email))
    body = body_of("words and words " * MIB)
    before_s = cpu_s(service.pid)
    message = api.post(body).error(402, "insufficient_quota")
    assert "0.00 dollars of credit" in message
    assert cpu_s(service.pid) - before_s < 1
