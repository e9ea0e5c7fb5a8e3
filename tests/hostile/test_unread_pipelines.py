"""Clients that pipeline requests and never read a reply: they cost little memory, and nobody else waits for them."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvloop

from tests.conftest import StartService
from tests.loopback import LoopbackUpstream
from tests.raw_client import RawClient
from tests.service import Service
from tests.service_config import ordinary_spec
from tests.unit.http.raw_client import WAIT_S, request
from tests.unit.http.testing_site import WHOLE, ObservedConnection, Site

MIB = 2**20
CONNECTIONS = 100
PIPELINE = b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 2000
ATTACK_S = 2.0
PROBES = 40  # on a busy machine there are fewer in that time
RSS_BYTES_MAX = 50 * MIB
REQUESTS_IN_ONE_READ = 1900  # of 33 bytes each: one read of 64 KiB
HOST_BYTES_MAX = 255


def flood(sockets: list[socket.socket], ended: threading.Event) -> None:
    """Send pipelined requests on every connection as fast as the service takes them, and read nothing."""
    sent = dict.fromkeys(sockets, 0)
    while not ended.is_set():
        is_stuck = True
        for one in sockets:
            with contextlib.suppress(BlockingIOError, ConnectionError):
                sent[one] += one.send(PIPELINE[sent[one] % len(PIPELINE) :])
                is_stuck = False
        if is_stuck:
            time.sleep(0.05)


@contextlib.contextmanager
def attackers(port: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as opened:
        sockets = [
            opened.enter_context(socket.create_connection(("127.0.0.1", port), WAIT_S)) for _ in range(CONNECTIONS)
        ]
        for one in sockets:
            one.setblocking(False)
        yield sockets


def probe(service: Service) -> None:
    """Ask for /healthz on a connection of its own, again and again."""
    until_s = time.monotonic() + ATTACK_S
    for _ in range(PROBES):
        assert service.process.get("/healthz")[0] == 200
        if time.monotonic() > until_s:
            break
        time.sleep(0.02)


def test_unread_pipelines_take_little_memory(start_service: StartService, upstream: LoopbackUpstream) -> None:
    """100 connections that pipeline and never read take less than 50 MB, and others are served meanwhile."""
    service = start_service(ordinary_spec(upstream.base_url))
    assert service.process.get("/")[0] == 200
    before_bytes = service.process.rss_bytes
    with attackers(service.port) as sockets:
        ended = threading.Event()
        attack = threading.Thread(target=flood, args=(sockets, ended))
        attack.start()
        try:
            probe(service)
        finally:
            ended.set()
            attack.join()
        grown_bytes = service.process.rss_bytes - before_bytes
    print(f"RSS +{grown_bytes / MIB:.0f} MiB")  # noqa: T201
    assert grown_bytes < RSS_BYTES_MAX


def test_a_read_full_of_requests_is_parsed_one_by_one() -> None:
    """Of thousands of requests in one read, none is parsed before the one before it was answered."""

    async def script() -> tuple[int, list[int]]:
        async with Site() as site:
            many, other = await site.connect(), await site.connect()
            many.start_sending(b"GET /many HTTP/1.1\r\nhost: h\r\n\r\n" * REQUESTS_IN_ONE_READ)
            other.start_sending(request("/whole"))
            ahead = list[int]()
            watching = asyncio.create_task(watch(site, ahead))
            assert (await other.reply())[2] == WHOLE
            begun = site.paths.count("/many")
            for _ in range(REQUESTS_IN_ONE_READ):
                await many.reply()
            watching.cancel()
            return begun, ahead

    begun, ahead = uvloop.run(script())
    assert max(ahead) <= 2  # one for each connection: parsed, and begun in the next turn of the loop
    assert begun < REQUESTS_IN_ONE_READ / 10


async def watch(site: Site, ahead: list[int]) -> None:
    """In each turn of the loop: how many heads were parsed whose requests are not begun."""
    while True:
        heads = sum(one.heads for one in site.connections if isinstance(one, ObservedConnection))
        ahead.append(heads - len(site.exchanges))
        await asyncio.sleep(0)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("host", ["h" * (HOST_BYTES_MAX + 1), "h/<script>", 'h"x', "h h", "{models}"])
def test_a_host_that_is_none(service: Service, version: str, host: str) -> None:
    """A Host header that is too long, or has characters that no host has, is refused and appears in no page."""
    sent = f"GET / HTTP/{version}\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode()
    reply = RawClient(service.port, None).send_raw(sent)
    assert reply.startswith(b"HTTP/1.1 400 ")
    assert host.encode() not in reply


@pytest.mark.parametrize("host", ["h" * HOST_BYTES_MAX, "[::1]:8080", "example.org:80", "a_b.example"])
def test_a_host_that_is_one(service: Service, host: str) -> None:
    """The home page shows the address that the client used."""
    reply = RawClient(service.port, None).send_raw(
        f"GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode()
    )
    assert reply.startswith(b"HTTP/1.1 200 ")
    assert f"http://{host}/v1".encode() in reply
