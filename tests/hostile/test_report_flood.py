"""An account with many requests asks for usage reports on many connections at once: others are served as before.

The reports begin within the day of these requests, so that they read the metering rows and not the sums by day.
"""

import asyncio
import contextlib
import sqlite3
from collections import Counter
from collections.abc import Iterator

import pytest

from cadenza.core.spans import DAY_MS
from cadenza.store.report_turns import WAITING_MAX
from tests.load import Connection, ConnectionPool
from tests.loopback import LoopbackUpstream
from tests.migrated import STORE_WAIT_S
from tests.raw_client import RawClient
from tests.service import CREDIT_NANO, Service, now_ms, wait_until
from tests.service_config import classes_spec

pytestmark = pytest.mark.slow(reason="200,000 requests, and a report of them for many seconds of CPU time")

ROWS = 200_000
CONNECTIONS = 32
CHATS = 5
PAUSE_S = 0.1  # after a refusal
NOTE = "Say hello in Italian."  # of the question of the tests
ADD_ROWS = f"""
    WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {ROWS})
    INSERT INTO usage (completion_id, account_id, key_id, class_id, provider, model, prompt_tokens, cached_tokens,
        completion_tokens, cost_nano, estimated, status, stream, started_at, duration_ms, request_id,
        input_nano, output_nano, short_nano, source)
    SELECT 'chatcmpl-flood-' || n, a.id, k.id, 'forte', 'p', 'm', 10, 0, 5, 100, 0, 200, 0, ? - n, 100, '',
        10, 0, 0, 'request'
    FROM numbers, accounts a JOIN keys k ON k.account_id = a.id WHERE a.email = ?"""


@pytest.fixture(scope="module")
def service(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    with Service(classes_spec(shared_upstream.base_url)) as made:
        yield made


@pytest.fixture(scope="module")
def busy_key(service: Service) -> str:
    """The key of an account with many requests."""
    email = service.create_account(CREDIT_NANO)
    key = service.create_key(email)
    with contextlib.closing(sqlite3.connect(service.store, timeout=STORE_WAIT_S)) as store, store:
        store.execute(ADD_ROWS, (yesterday_ms() + DAY_MS // 2, email))
    return key


def yesterday_ms() -> int:
    return (now_ms() // DAY_MS - 1) * DAY_MS


def report_request(key: str) -> bytes:
    path = f"/v1/usage?start={yesterday_ms() // 1000 + 1}"
    return f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n\r\n".encode()


async def test_chats_of_others_are_served_with_their_notes(
    service: Service, busy_key: str, upstream: LoopbackUpstream
) -> None:
    """While 32 connections ask for reports of one account, every chat of another has the notes of its owner."""
    assert service.cli("memory", "add", "--account", "owner@example.org", NOTE).returncode == 0
    pool, statuses = ConnectionPool(service.port), Counter[int]()
    is_begun, is_over = asyncio.Event(), asyncio.Event()

    async def flood() -> None:
        while not is_over.is_set():
            status = (await pool.ask(report_request(busy_key))).status
            statuses[status] += 1
            is_begun.set()
            if status != 200:
                await asyncio.sleep(PAUSE_S)

    floods = [asyncio.create_task(flood()) for _ in range(CONNECTIONS)]
    await is_begun.wait()
    client = RawClient(service.port, service.key)
    replies = [await asyncio.to_thread(client.chat) for _ in range(CHATS)]
    is_over.set()
    await asyncio.gather(*floods)
    pool.close()
    assert [reply.status for reply in replies] == [200] * CHATS
    assert [NOTE.encode() in request.body for request in upstream.requests] == [True] * CHATS
    assert set(statuses) <= {200, 429}
    assert statuses[200]


async def test_reports_of_clients_that_left_are_not_made(service: Service, busy_key: str) -> None:
    """When clients fill the queue of an account and leave, its next report is served at once."""
    loop, left = asyncio.get_running_loop(), list[Connection]()
    for _ in range(1 + WAITING_MAX):
        _, connection = await loop.create_connection(Connection, "127.0.0.1", service.port)
        connection.begin(report_request(busy_key))
        left.append(connection)
    client = RawClient(service.port, busy_key)
    assert (await asyncio.to_thread(client.get, "/v1/usage")).error(429, "rate_limit_error").startswith("Too many rep")
    for connection in left:
        connection.close()
    await asyncio.to_thread(wait_until, lambda: client.get("/v1/usage").status == 200, "a report")
    disconnected = '"cause":"disconnected"'
    await asyncio.to_thread(wait_until, lambda: service.output.count(disconnected) == len(left), "the log")
