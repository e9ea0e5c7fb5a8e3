"""kill -9 at every step of a request, and from outside in the middle of one; then a start on the same store.

A reply that came in full is charged exactly once. One that did not is charged if its charge was durable, by its mark if
something had been delivered, and not at all otherwise. What another living process holds is not touched.
"""

import asyncio

import msgspec
import pytest

from tests.fault.books import cost_nano, delivered_cost_nano, estimate_tokens, usage_cost_nano
from tests.fault.conftest import StartFleet
from tests.fault.fleet import Fleet, Node, wait_until
from tests.fault.replies import Whole, counts
from tests.fault.wire import Ask, Seen, send
from tests.loopback import LoopbackUpstream, Pause

CREDIT_NANO = 10**9
WORDS = ["One", " two", " three", " four"]  # a token each
USAGE = counts(23, 9, 4)
SWEEP_S = 20.0  # a living process looks for dead ones every 15 s


class Step(msgspec.Struct, frozen=True):
    """Where the process dies: was anything delivered by then, and is the charge durable?"""

    fault_point: str
    is_relayed: bool = False
    is_durable: bool = False


STEPS = [
    Step("quoted"),
    Step("ledger-commit:1"),
    Step("ledger-committed:1"),
    Step("held"),
    Step("opened"),
    Step("relayed", is_relayed=True),
    Step("ledger-commit:2", is_relayed=True),
    Step("ledger-committed:2", is_relayed=True, is_durable=True),
    Step("settled", is_relayed=True, is_durable=True),
    Step("finished", is_relayed=True, is_durable=True),
]


async def begin(fleet: Fleet, node: Node, ask: Ask, upstream: LoopbackUpstream) -> tuple[asyncio.Task[Seen], Pause]:
    """A request in the middle of which the upstream waits; what a stream delivered by then is marked."""
    pause = Pause()
    upstream.script(Whole(WORDS, USAGE, pause))
    reply = asyncio.create_task(send(node.port, fleet.key, ask))
    await asyncio.to_thread(pause.wait_until_reached)
    if ask.stream:
        await asyncio.to_thread(wait_until, lambda: marked_tokens(fleet, ask) == len(WORDS) - 1, "a mark")
    return reply, pause


async def die_at(fleet: Fleet, node: Node, step: Step, ask: Ask, upstream: LoopbackUpstream) -> Seen:
    """Send a request to a process that is to die at this step of it; a stream is marked in its middle."""
    if ask.stream and step.is_relayed:
        reply, pause = await begin(fleet, node, ask, upstream)
        pause.release()
        return await reply
    return await send(node.port, fleet.key, ask)


def marked_tokens(fleet: Fleet, ask: Ask) -> int:
    row = fleet.books.rows().get(ask.shown_id)
    return row.marked_tokens if row else 0


@pytest.mark.parametrize("stream", [False, True])
def test_kill_at_every_step_neither_loses_nor_doubles_a_charge(
    make_fleet: StartFleet, upstream: LoopbackUpstream, stream: bool
) -> None:
    """A process that dies at any step leaves what the next start ends once, by what is known to be delivered."""
    fleet = make_fleet(CREDIT_NANO)
    upstream.always(Whole(WORDS, USAGE))
    node = fleet.start(STEPS[0].fault_point)
    for number, step in enumerate(STEPS):
        ask, before_nano = Ask(100 + number, stream=stream), fleet.books.balance_nano
        seen = asyncio.run(die_at(fleet, node, step, ask, upstream))
        node.wait_until_killed()
        node = fleet.start(STEPS[number + 1].fault_point if step is not STEPS[-1] else "")
        check_death(fleet, step, ask, seen, before_nano - fleet.books.balance_nano)
    assert asyncio.run(send(node.port, fleet.key, Ask(99, stream=stream))).is_done


def check_death(fleet: Fleet, step: Step, ask: Ask, seen: Seen, fell_nano: int) -> None:
    fleet.books.prove()
    marked = marked_tokens(fleet, ask)
    if step.is_durable:
        assert fell_nano == usage_cost_nano("forte", USAGE), step
    elif ask.stream and step.is_relayed:
        assert len(WORDS) - 1 <= marked <= len(WORDS), step
        assert fell_nano == cost_nano("forte", estimate_tokens(ask.content), marked), step
        assert not seen.is_done, step
    else:
        assert marked == fell_nano == 0, step
        assert not seen.raw, step


def test_kill_from_outside_charges_a_stream_by_its_mark_once(
    make_fleet: StartFleet, upstream: LoopbackUpstream
) -> None:
    """A stream that is killed is charged what it had delivered; the same request may not run again for nothing."""
    fleet, ask = make_fleet(CREDIT_NANO), Ask(1, stream=True)
    node = fleet.start()

    async def run() -> Seen:
        reply, _ = await begin(fleet, node, ask, upstream)
        node.kill()
        return await reply

    seen = asyncio.run(run())
    assert seen.text == "One two three"
    node = fleet.start()
    assert CREDIT_NANO - fleet.books.balance_nano == delivered_cost_nano("forte", ask.content, seen.chunks)
    fleet.books.prove()
    assert asyncio.run(send(node.port, fleet.key, ask)).status == 409
    assert fleet.books.charges == 1


def test_kill_from_outside_before_a_reply_charges_nothing(make_fleet: StartFleet, upstream: LoopbackUpstream) -> None:
    """A request that is killed before its reply costs nothing, and the same request may be sent again."""
    fleet, ask = make_fleet(CREDIT_NANO), Ask(1)
    node = fleet.start()

    async def run() -> Seen:
        reply, _ = await begin(fleet, node, ask, upstream)
        node.kill()
        return await reply

    assert asyncio.run(run()).raw == b""
    node = fleet.start()
    assert fleet.books.balance_nano == CREDIT_NANO
    fleet.books.prove()
    assert asyncio.run(send(node.port, fleet.key, ask)).is_done
    assert fleet.books.charges == 1


def test_stop_waits_for_what_runs_and_its_charge(make_fleet: StartFleet, upstream: LoopbackUpstream) -> None:
    """A process that is told to end lets a running stream come to its end, and its charge is in the books."""
    fleet = make_fleet(CREDIT_NANO)
    node = fleet.start()

    async def run() -> Seen:
        reply, pause = await begin(fleet, node, Ask(1, stream=True), upstream)
        stopping = asyncio.create_task(asyncio.to_thread(node.stop))
        await asyncio.to_thread(wait_until, lambda: node.get("/readyz")[0] == 503, "the drain")
        pause.release()
        seen = await reply
        await stopping
        return seen

    assert asyncio.run(run()).is_done
    assert CREDIT_NANO - fleet.books.balance_nano == usage_cost_nano("forte", USAGE)
    fleet.books.prove()


def test_what_a_living_process_holds_is_never_touched(make_fleet: StartFleet, upstream: LoopbackUpstream) -> None:
    """One process dies, is started again and dies again: another's open stream stays, and is charged as it ends."""
    fleet = make_fleet(CREDIT_NANO)
    dying, living = fleet.start_many(2)

    async def run() -> None:
        stays, pause = await begin(fleet, living, Ask(1, stream=True), upstream)
        held_nano = fleet.books.held_nano
        for number, is_restarted in ((2, True), (3, False)):
            node = dying if is_restarted else fleet.nodes[-1]
            breaks, _ = await begin(fleet, node, Ask(number, stream=True), upstream)
            node.kill()
            assert not (await breaks).is_done
            if is_restarted:
                await asyncio.to_thread(fleet.start)
            await asyncio.to_thread(wait_until, lambda: fleet.books.open_holds == 1, "a sweep", SWEEP_S)
            assert fleet.books.held_nano == held_nano
            assert fleet.books.rows()["fault-1"].state == "open"
        pause.release()
        assert (await stays).is_done

    asyncio.run(run())
    broken_nano = cost_nano("forte", estimate_tokens(Ask(2).content), 3)
    assert CREDIT_NANO - fleet.books.balance_nano == 2 * broken_nano + usage_cost_nano("forte", USAGE)
    fleet.books.prove()
