"""A connection goes to the first address of a host that answers: a silent one does not use up the time."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from cadenza.http.connecting import connect_to_first, in_turn
from tests.unit.http.addresses import (
    PATIENT_S,
    V4,
    V6,
    accepting,
    place,
    reaches_the_second_address,
    resolve_to,
)
from tests.unit.http.peer import LOCALHOST, Peer, client_of, fetch, refusing_port, responding, silent_listener
from tests.unit.http.test_client import HI, has_ipv6_loopback
from tests.unit.upstreams.clock import Clock

HOST = "host.example"


async def ask(base_url: str, proxy: str | None = None) -> None:
    async with client_of(base_url, proxy) as client, client.request("GET", "/", b"", PATIENT_S):
        pass


OUTGOING: dict[str, Callable[[int], Awaitable[object]]] = {
    "a client of HTTP": lambda port: ask(f"http://{HOST}:{port}"),
    "through a proxy": lambda port: ask("https://provider.example", f"http://{HOST}:{port}"),
}


@pytest.mark.parametrize("connect", OUTGOING.values(), ids=OUTGOING)
async def test_after_a_silent_address_the_next_is_reached_in_under_half_a_second(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, connect: Callable[[int], Awaitable[object]]
) -> None:
    """Each kind of outgoing connection tries the second address of a host while the first one is silent."""
    await reaches_the_second_address(clock, monkeypatch, connect)


async def test_a_family_that_answered_is_tried_first(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first connection of a client waits for a family without a route."""
    if not has_ipv6_loopback():
        pytest.skip("this machine has no IPv6 loopback")
    resolve_to(monkeypatch, ("::1", V6), (LOCALHOST, V4))
    async with Peer(responding(HI)) as peer, client_of(f"http://{HOST}:{peer.port}/v1") as client:
        with silent_listener("::1", peer.port):
            first = asyncio.create_task(fetch(client, connect_s=PATIENT_S))
            await clock.leap(0)
            await clock.leap(0.4)
            assert (await first).body == b"hi"
            assert (await fetch(client, connect_s=PATIENT_S)).body == b"hi"
        assert peer.requests_per_visit == [1, 1]


async def test_an_address_that_fails_is_passed_over_at_once(clock: Clock) -> None:
    """The next address follows a refusal, or a family that this machine has no sockets of, without a wait."""
    async with accepting() as (port, _):
        with refusing_port() as refusing:
            addresses = [place("::1", port, 99), place(LOCALHOST, refusing), place(LOCALHOST, port)]
            with await connect_to_first(addresses) as connected:
                assert connected.getpeername() == (LOCALHOST, port)
            with pytest.raises(OSError, match="family"):
                await connect_to_first(addresses[:2])
            with pytest.raises(ConnectionRefusedError):
                await connect_to_first(addresses[1::-1])


def test_families_take_turns() -> None:
    """The order of a family stays, and the first one begins."""
    given = [place("::1", 1, V6), place("::2", 1, V6), place("::3", 1, V6), place("127.0.0.1", 1)]
    assert [address[4][0] for address in in_turn(given)] == ["::1", "127.0.0.1", "::2", "::3"]
