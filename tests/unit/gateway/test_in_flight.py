"""The requests in flight: waiting for their end, and interrupting them."""

import asyncio

from cadenza.gateway.in_flight import NO_KEY, InFlight
from cadenza.http.exchange import Interruption
from tests.unit.gateway.client import WAIT_S, Client, let_tasks_run


def begin(in_flight: InFlight) -> Client:
    client = Client()
    in_flight.key_digests[client.open()] = NO_KEY
    return client


async def test_until_ended_waits_for_the_requests_in_flight_now() -> None:
    """Requests that begin later do not delay it."""
    in_flight = InFlight()
    first, second = begin(in_flight), begin(in_flight)
    waiting = asyncio.create_task(in_flight.until_ended())
    await let_tasks_run()
    later = begin(in_flight)
    in_flight.end(second.exchange)
    await let_tasks_run()
    assert not waiting.done()
    in_flight.end(first.exchange)
    await asyncio.wait_for(waiting, WAIT_S)
    assert len(in_flight) == 1
    in_flight.end(later.exchange)


async def test_every_waiter_waits_for_its_own_requests() -> None:
    """A waiter that came later waits for the later request too, and a cancelled one disturbs no other."""
    in_flight = InFlight()
    first = begin(in_flight)
    early, cancelled = (asyncio.create_task(in_flight.until_ended()) for _ in range(2))
    await let_tasks_run()
    second = begin(in_flight)
    late = asyncio.create_task(in_flight.until_ended())
    await let_tasks_run()
    cancelled.cancel()
    in_flight.end(first.exchange)
    await asyncio.wait_for(early, WAIT_S)
    assert not late.done()
    in_flight.end(second.exchange)
    await asyncio.wait_for(late, WAIT_S)
    assert cancelled.cancelled()


async def test_until_idle_waits_for_later_requests_too() -> None:
    """It returns once no request is in flight at all."""
    in_flight = InFlight()
    first = begin(in_flight)
    waiting = asyncio.create_task(in_flight.until_idle())
    await let_tasks_run()
    second = begin(in_flight)
    in_flight.end(first.exchange)
    await let_tasks_run()
    assert not waiting.done()
    in_flight.end(second.exchange)
    await asyncio.wait_for(waiting, WAIT_S)
    assert len(in_flight) == 0


async def test_an_interruption_cancels_each_request_once() -> None:
    """A second interruption, or a disconnect after it, cancels nothing again and keeps the reason."""
    in_flight = InFlight()
    running, ended = [begin(in_flight) for _ in range(3)], begin(in_flight)
    in_flight.end(ended.exchange)
    for _ in range(2):
        in_flight.interrupt()
    running[0].disconnect()
    assert [client.cancellations for client in running] == [1, 1, 1]
    assert {client.exchange.interruption for client in running} == {Interruption.SHUTDOWN}
    assert ended.cancellations == 0


async def test_the_requests_of_some_keys_are_interrupted() -> None:
    """Those whose key is not noted yet, or is another one, go on."""
    in_flight = InFlight()
    clients = [begin(in_flight) for _ in range(4)]
    for client, digest in zip(clients, (b"a", b"b", b"a"), strict=False):
        in_flight.key_digests[client.exchange] = digest
    assert in_flight.digests() == {b"a", b"b"}
    assert in_flight.interrupt_keys({b"a", b"unused"}) == 2
    assert [client.exchange.interruption for client in clients] == [
        Interruption.REVOKED,
        None,
        Interruption.REVOKED,
        None,
    ]
