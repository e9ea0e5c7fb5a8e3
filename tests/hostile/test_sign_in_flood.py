"""A flood of sign-ins from many networks: what it takes, and who is served meanwhile."""

import asyncio
import secrets
import socket
from collections import Counter
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

from tests.hostile.watch import watching
from tests.loopback import LoopbackUpstream
from tests.raw_client import RawClient
from tests.service import Service
from tests.service_config import classes_spec
from tests.visitor import Visitor

MIB = 2**20
SIGN_INS = 40  # more than twice what waits for a hash
MEMORY_BYTES = 2 * 64 * MIB + 64 * MIB  # two hashes, and what pages take
REPLY_S = 250.0
pytestmark = pytest.mark.slow(reason="a flood")


def address() -> str:
    return socket.inet_ntoa(b"\x0a" + secrets.token_bytes(3))


async def guess(port: int, csrf: str, cookie: str, email: str) -> int:
    """One sign-in with a wrong password, from a network of its own."""
    body = urlencode({"csrf": csrf, "email": email, "password": "a wrong password"}).encode()
    head = (
        f"POST /sign-in HTTP/1.1\r\nhost: 127.0.0.1\r\ncookie: {cookie}\r\nx-forwarded-for: {address()}\r\n"
        f"content-type: application/x-www-form-urlencoded\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head.encode() + body)
        async with asyncio.timeout(REPLY_S):
            return int((await reader.readline()).split()[1])
    finally:
        writer.close()


@pytest.fixture
def flooded(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    with Service(classes_spec(shared_upstream.base_url)) as running:
        yield running


async def test_a_flood_of_sign_ins_takes_two_hashes_at_most(flooded: Service) -> None:
    """The memory stays bounded, chats are answered, and a browser that has signed in before signs in meanwhile."""
    email = flooded.create_account(10**9)
    owner = Visitor(flooded.port, {"x-forwarded-for": address()})
    await asyncio.to_thread(owner.sign_in, email)
    stranger = Visitor(flooded.port)
    await asyncio.to_thread(stranger.get, "/sign-in")
    cookie = f"cadenza_session={stranger.cookies['cadenza_session']}"
    api = RawClient(flooded.port, flooded.key)
    quiet_bytes = flooded.process.rss_bytes
    with watching(flooded.process) as watch:
        flood = [
            asyncio.create_task(guess(flooded.port, stranger.csrf, cookie, f"{number}@example.org"))
            for number in range(SIGN_INS)
        ]
        chats = [(await asyncio.to_thread(api.chat)).status for _ in range(20)]
        assert (await asyncio.to_thread(owner.sign_in, email)).status == 303
        statuses = Counter(await asyncio.gather(*flood))
    assert chats == [200] * 20
    assert set(statuses) <= {400, 429}
    assert statuses[400] > 0
    assert statuses[429] > 0
    assert watch.rss_bytes - quiet_bytes < MEMORY_BYTES
