"""kill -9 at every step of a request, and from outside in the middle of one; then a start on the same store.

A complete reply is charged exactly once. An incomplete one is charged if its charge was durable, by its mark if
something was delivered, and otherwise not at all. Holds of another living process are not touched.
"""

import asyncio

import msgspec
import pytest

from tests.fault.conftest import Deploy
from tests.ledger_reader import marked_costs_nano, usage_cost_nano
from tests.loopback import LoopbackUpstream, Pause, Whole, usage_of
from tests.raw_client import PROTOCOLS, ChatRequest, Reply, send
from tests.service import Deployment, ServiceProcess, wait_until

CREDIT_NANO = 10**9
WORDS = ["Seven", " four", " five", " nine"]  # a token and five characters each: a mark by length is exact
BEGUN = "".join(WORDS[:-1])
USAGE = usage_of(23, 9, 4)


class Step(msgspec.Struct, frozen=True):
    """Where the process dies, whether anything was delivered by then, and whether the charge is durable."""

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
LATER_STEPS = STEPS[4:]  # until the upstream is asked, a stream takes the same steps as a plain request
RUNS = {
    "plain": (ChatRequest(0), STEPS),
    "stream": (ChatRequest(0, stream=True), LATER_STEPS),
    **{f"plain {name}": (ChatRequest(0, protocol=name), LATER_STEPS) for name in PROTOCOLS[1:]},
    **{f"stream {name}": (ChatRequest(0, stream=True, protocol=name), LATER_STEPS) for name in PROTOCOLS[1:]},
}


async def begin(
    deployment: Deployment, process: ServiceProcess, request: ChatRequest, upstream: LoopbackUpstream
) -> tuple[asyncio.Task[Reply], Pause]:
    """A request that its upstream pauses in the middle; what a stream delivered by then is marked."""
    pause = Pause()
    upstream.script(Whole(WORDS, USAGE, pause))
    replying = asyncio.create_task(send(process.port, deployment.key, request))
    await asyncio.to_thread(pause.wait_until_reached)
    if request.stream:
        await asyncio.to_thread(wait_until, lambda: marked_tokens(deployment, request) == len(WORDS) - 1, "a mark")
    return replying, pause


async def die_at(deployment: Deployment, step: Step, request: ChatRequest, upstream: LoopbackUpstream) -> Reply:
    """Send a request to the newest process, which dies at this step; a stream is marked in its middle."""
    process = deployment.processes[-1]
    if request.stream and step.is_relayed:
        replying, pause = await begin(deployment, process, request, upstream)
        pause.release()
        return await replying
    return await send(process.port, deployment.key, request)


def marked_tokens(deployment: Deployment, request: ChatRequest) -> int:
    row = deployment.ledger.rows().get(request.request_id)
    return row.completion_tokens if row and row.state == "open" else 0


@pytest.mark.slow(reason="a restart for each step")
@pytest.mark.parametrize("run", RUNS)
def test_kill_at_every_step_neither_loses_nor_doubles_a_charge(
    deploy: Deploy, upstream: LoopbackUpstream, run: str
) -> None:
    """After a process dies at any step, the next start settles the request once, by what was marked as delivered."""
    sent, steps = RUNS[run]
    deployment = deploy(CREDIT_NANO)
    upstream.always(Whole(WORDS, USAGE))
    deployment.start(steps[0].fault_point)
    for number, step in enumerate(steps):
        request, before_nano = msgspec.structs.replace(sent, number=100 + number), deployment.ledger.balance_nano
        reply = asyncio.run(die_at(deployment, step, request, upstream))
        deployment.processes[-1].wait_until_killed()
        process = deployment.start(steps[number + 1].fault_point if step is not steps[-1] else "")
        check_death(deployment, step, request, reply, before_nano - deployment.ledger.balance_nano)
    assert asyncio.run(send(process.port, deployment.key, msgspec.structs.replace(sent, number=99))).is_done


def check_death(deployment: Deployment, step: Step, request: ChatRequest, reply: Reply, cost: int) -> None:
    deployment.ledger.check()
    row = deployment.ledger.rows().get(request.request_id)
    marked = row.completion_tokens if row else 0
    if step.is_durable:
        assert cost == usage_cost_nano("forte", USAGE), step
    elif request.stream and step.is_relayed:
        assert len(WORDS) - 1 <= marked <= len(WORDS), step
        assert cost in marked_costs_nano("forte", request.content, "".join(WORDS[:marked])), step
        assert not reply.is_done, step
    else:
        assert marked == cost == 0, step
        assert not reply.raw, step


@pytest.fixture
def protocols() -> tuple[str, str]:
    """Of the stream and of the plain request."""
    return "chat", "chat"


async def test_killed_requests_are_settled_once_by_the_next_start(
    deploy: Deploy, upstream: LoopbackUpstream, protocols: tuple[str, str]
) -> None:
    """A killed stream is charged by its mark and cannot be resent; a killed plain request is free and may be resent."""
    deployment = deploy(CREDIT_NANO)
    streamed, plain = ChatRequest(1, stream=True, protocol=protocols[0]), ChatRequest(2, protocol=protocols[1])
    process = deployment.start()
    replying = [(await begin(deployment, process, request, upstream))[0] for request in (streamed, plain)]
    process.kill()
    stream_reply, plain_reply = await asyncio.gather(*replying)
    assert stream_reply.text == BEGUN
    assert plain_reply.raw == b""
    restarted = deployment.start()
    cost = CREDIT_NANO - deployment.ledger.balance_nano
    assert cost in marked_costs_nano("forte", streamed.content, BEGUN)
    deployment.ledger.check()
    assert (await send(restarted.port, deployment.key, streamed)).status == 409
    assert deployment.ledger.charges == 1
    assert (await send(restarted.port, deployment.key, plain)).is_done
    assert deployment.ledger.charges == 2


async def test_holds_of_a_living_process_are_not_touched(deploy: Deploy, upstream: LoopbackUpstream) -> None:
    """While one process dies twice, another's open stream keeps its hold and is charged when it ends."""
    deployment = deploy(CREDIT_NANO)
    dying, living = deployment.start_many(2)
    staying, pause = await begin(deployment, living, ChatRequest(1, stream=True), upstream)
    held_nano = deployment.ledger.held_nano
    for number, is_restarted in ((2, True), (3, False)):  # swept at the start, and by the living process
        process = dying if is_restarted else deployment.processes[-1]
        breaking, _ = await begin(deployment, process, ChatRequest(number, stream=True), upstream)
        process.kill()
        assert not (await breaking).is_done
        if is_restarted:
            await asyncio.to_thread(deployment.start)
        await asyncio.to_thread(wait_until, lambda: deployment.ledger.reserves == 1, "a sweep")
        assert deployment.ledger.held_nano == held_nano
        assert deployment.ledger.rows()["fault-1"].state == "open"
    pause.release()
    assert (await staying).is_done
    rows = deployment.ledger.rows()
    costs_nano = [rows[f"fault-{number}"].cost_nano for number in (1, 2, 3)]
    assert costs_nano[0] == usage_cost_nano("forte", USAGE)
    for number in (2, 3):
        assert costs_nano[number - 1] in marked_costs_nano("forte", ChatRequest(number).content, BEGUN)
    assert CREDIT_NANO - deployment.ledger.balance_nano == sum(cost_nano or 0 for cost_nano in costs_nano)
    deployment.ledger.check()
