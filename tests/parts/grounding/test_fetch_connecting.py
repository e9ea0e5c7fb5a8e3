"""A page is fetched from the first address of its host that answers."""

import contextlib
from ipaddress import IPv4Network, IPv6Network

import pytest

from cadenza.parts.grounding.search.pages.addresses import Network
from cadenza.parts.grounding.search.records import FetchFailed
from tests.parts.grounding.fetch_site import HOST, Names, fetching
from tests.unit.http.addresses import SILENT, reaches_the_second_address
from tests.unit.http.peer import LOCALHOST, Peer, responding
from tests.unit.http.test_client import HI, has_ipv6_loopback
from tests.unit.upstreams.clock import Clock, clock, pytest_asyncio_loop_factories

__all__ = ["clock", "pytest_asyncio_loop_factories"]


async def fetch_page(port: int) -> None:
    names = Names({HOST: [[SILENT, LOCALHOST]]})
    async with fetching(names, allow_networks=[IPv4Network("127.0.0.0/8")]) as fetcher:
        await fetcher.fetch(f"http://{HOST}:{port}/")


async def test_after_a_silent_address_the_next_is_reached_in_under_half_a_second(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second address of a page's host is tried while the first one is silent."""
    await reaches_the_second_address(clock, monkeypatch, fetch_page)


async def test_each_family_of_a_pages_host_is_tried() -> None:
    """However many addresses of the first family there are: of a web page's host only some are tried."""
    if not has_ipv6_loopback():
        pytest.skip("this machine has no IPv6 loopback")
    names = Names({HOST: [["127.0.0.3", "127.0.0.4", "127.0.0.5", "::1"]]})
    loopback: list[Network] = [IPv4Network("127.0.0.0/8"), IPv6Network("::1/128")]
    async with Peer(responding(HI), host="::1") as peer, fetching(names, allow_networks=loopback) as fetcher:
        with contextlib.suppress(FetchFailed):
            await fetcher.fetch(f"http://{HOST}:{peer.port}/")
        assert peer.visits
