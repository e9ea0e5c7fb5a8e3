"""The system's resolver: threads of its own, bounded in number, that a silent name server cannot hold up for others."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any

import pytest

from cadenza.parts.grounding.search.pages.addresses import LOOKUPS_AT_ONCE, SystemResolver
from cadenza.parts.grounding.search.records import FetchFailed
from tests.unit.http.raw_client import WAIT_S, until


class NameServer:
    """Stands in for getaddrinfo. Names that begin with `silent` are not answered until the test ends."""

    def __init__(self) -> None:
        self._silent = list[str]()  # appended to by several threads
        self.release = threading.Event()

    @property
    def waiting(self) -> int:
        return len(self._silent)

    def __call__(self, host: str, *_: object, **__: object) -> list[tuple[Any, ...]]:
        if host.startswith("silent"):
            self._silent.append(host)
            self.release.wait(WAIT_S)
        if host == "none.example":
            raise socket.gaierror(socket.EAI_NONAME)
        texts = ["93.184.216.34", "fe80::1%lo"]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (text, 0)) for text in texts]


@pytest.fixture
def name_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    server = NameServer()
    monkeypatch.setattr(socket, "getaddrinfo", server)
    yield server
    server.release.set()


async def test_the_addresses_of_a_name(name_server: NameServer) -> None:
    """All addresses of a name are returned."""
    assert await SystemResolver()("site.example") == [ip_address("93.184.216.34"), ip_address("fe80::1%lo")]


async def test_a_name_without_an_address(name_server: NameServer) -> None:
    """A name that is not found is unresolved, and the error does not show it."""
    with pytest.raises(FetchFailed, match=r"^unresolved$") as failed:
        await SystemResolver()("none.example")
    assert failed.value.__context__ is None


async def test_name_servers_that_do_not_answer(name_server: NameServer) -> None:
    """Silent names hold a bounded number of threads, also after they were given up; then others are looked up again."""
    resolver = SystemResolver()
    lookups = [asyncio.ensure_future(resolver(f"silent-{n}.example")) for n in range(LOOKUPS_AT_ONCE + 5)]
    await until(lambda: name_server.waiting == LOOKUPS_AT_ONCE)
    for lookup in lookups:
        lookup.cancel()
    await asyncio.gather(*lookups, return_exceptions=True)
    later = asyncio.ensure_future(resolver("site.example"))
    await asyncio.sleep(0)
    assert name_server.waiting == LOOKUPS_AT_ONCE
    assert await asyncio.to_thread(int) == 0  # the threads of the loop are free
    assert not later.done()
    name_server.release.set()
    assert await later
    assert name_server.waiting == LOOKUPS_AT_ONCE
