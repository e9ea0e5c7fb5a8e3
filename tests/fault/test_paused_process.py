"""A process that was stopped reads what its providers sent meanwhile before a deadline counts."""

import asyncio
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tests.ledger_reader import usage_cost_nano
from tests.loopback import (
    STOP,
    LoopbackUpstream,
    Numbered,
    Pause,
    Reply,
    Request,
    Sse,
    Step,
    Whole,
    read_request,
    said,
    sse_event,
    usage_chunk,
    usage_of,
)
from tests.processes import stopped
from tests.raw_client import ChatRequest, send
from tests.raw_client import Reply as RawReply
from tests.service import EMAIL, Service, wait_until
from tests.service_config import ServiceSpec
from tests.unit.http.peer import LOCALHOST, silent_listener

DEADLINE_S = 5.0  # long enough for all requests to be on their way, on a busy machine too
STOP_S = DEADLINE_S + 0.5
CONNECTING = re.compile(r"^ *\d+: \S+ \w+:(\w+) 02 ", re.MULTILINE)
WORDS = ["Seven", " four"]
USAGE = usage_of(23, 9, 19)
TIMEOUTS = {  # a whole reply may take first_token_s and idle_s
    "mezzo": f"connect_s = 60, first_token_s = {DEADLINE_S}, idle_s = {DEADLINE_S}",
    "forte": f"connect_s = 60, first_token_s = {DEADLINE_S / 2}, idle_s = {DEADLINE_S / 2}",
    "fortissimo": f"connect_s = {DEADLINE_S}, first_token_s = 60, idle_s = 60",
}


class After(msgspec.Struct, frozen=True):
    """Another reply, after a pause."""

    pause: Pause
    reply: Reply

    def steps(self, request: Request) -> Iterator[Step]:
        yield self.pause
        yield from self.reply.steps(request)


def spec(upstream: LoopbackUpstream, silent: socket.socket) -> ServiceSpec:
    """Each class has deadlines of its own; the provider of fortissimo cannot be connected to."""
    routes = (
        f'[[classes.{class_id}.routes]]\nprovider = "{"silent" if class_id == "fortissimo" else "loopback"}"\n'
        f'model = "loopback-large"\ncontext_tokens = 100_000\ntimeouts = {{ {timeouts} }}\n'
        for class_id, timeouts in TIMEOUTS.items()
    )
    providers = {"loopback": upstream.base_url, "silent": f"http://{LOCALHOST}:{silent.getsockname()[1]}/v1"}
    return ServiceSpec(providers, {}, "\n".join(routes))


def count_connecting(listener: socket.socket) -> int:
    """How many sockets of this machine wait for this one to accept them."""
    return CONNECTING.findall(Path("/proc/net/tcp").read_text()).count(f"{listener.getsockname()[1]:04X}")


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        for step in Whole(WORDS, USAGE).steps(await read_request(reader)):
            assert isinstance(step, bytes)
            writer.write(step)
    except asyncio.IncompleteReadError:  # one of those that filled the backlog
        pass
    writer.close()


async def test_what_arrived_while_the_process_was_stopped_counts(upstream: LoopbackUpstream) -> None:
    """What arrived before a process went on is charged as its provider counted it; a silent provider times out."""
    pauses = {name: Pause() for name in ("usage", "next part", "first token", "whole reply", "silence")}
    finished = sse_event(said("".join(WORDS))) + sse_event(STOP)
    replies: dict[str, Reply] = {
        "usage": Sse([finished, pauses["usage"], usage_chunk(USAGE)]),
        "next part": Whole(WORDS, USAGE, pauses["next part"]),
        "first token": After(pauses["first token"], Whole(WORDS, USAGE)),
        "whole reply": After(pauses["whole reply"], Whole(WORDS, USAGE)),
        "silence": After(pauses["silence"], Whole(WORDS, USAGE)),
    }
    upstream.always(Numbered(dict(enumerate(replies.values()))))
    classes = {"whole reply": "forte", "connection": "fortissimo"}
    requests = {
        name: ChatRequest(number, classes.get(name, "mezzo"), stream=name != "whole reply")
        for number, name in enumerate([*replies, "connection"])
    }
    delivered = {name: asyncio.Event() for name in ("usage", "next part")}

    async def ask(name: str) -> RawReply:
        async def note_text(reply: RawReply) -> bool:
            if reply.text and name in delivered:
                delivered[name].set()
            return False

        return await send(service.port, service.key, requests[name], note_text)

    with silent_listener() as (listener, fillers), Service(spec(upstream, listener)) as service:
        others = count_connecting(listener)
        asking = {name: asyncio.create_task(ask(name)) for name in requests}
        await asyncio.gather(*(event.wait() for event in delivered.values()))
        for pause in pauses.values():
            await asyncio.to_thread(pause.wait_until_reached)
        await asyncio.to_thread(wait_until, lambda: count_connecting(listener) > others, "a connection being tried")
        with stopped([service.pid]):
            for name in replies.keys() - {"silence"}:
                pauses[name].release()
            for filler in fillers:
                filler.close()
            accepting = await asyncio.start_server(answer, sock=listener)
            await asyncio.sleep(STOP_S)
        given = {name: await task for name, task in asking.items()}
        pauses["silence"].release()
        accepting.close()
        charges = {charge["request_id"]: charge for charge in service.ledger.charges_of(EMAIL)}
    assert given.pop("silence").status == 502
    whole = dict.fromkeys(given, ("".join(WORDS), True))
    assert {name: (reply.text, reply.is_done) for name, reply in given.items()} == whole
    assert {name: charged(charges[requests[name].request_id]) for name in given} == {
        name: (-usage_cost_nano(requests[name].class_id, USAGE), 19, False) for name in given
    }
    assert len(charges) == len(given)


def charged(charge: dict[str, Any]) -> tuple[int, int, bool]:
    return charge["amount_nano"], charge["cached_tokens"], charge["estimated"]
