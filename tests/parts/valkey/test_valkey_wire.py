"""The connection to Valkey when it ends at an awkward moment, or answers what no Valkey answers: nothing is raised."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import uvloop

from cadenza.core.rates import Rate
from cadenza.gateway.slots import Slots
from cadenza.observe import Observer, make_log
from cadenza.parts.valkey.connection import ValkeyConnection
from cadenza.parts.valkey.link import ValkeyTiming
from cadenza.parts.valkey.state import ValkeyState

WAIT_S = 30.0
RATE = Rate(per_s=0.001, burst=3)
HEADS = re.compile(rb"\*\d+\r\n\$\d+\r\n([A-Z]+)\r\n")
GOOD = {b"HELLO": b"%0\r\n", b"SELECT": b"+OK\r\n", b"SET": b"+OK\r\n", b"SUBSCRIBE": b""}


class Answers:
    """A server that answers a sign-in as Valkey does, and each script with these bytes."""

    def __init__(self, to_scripts: bytes) -> None:
        self._to_scripts = to_scripts

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                for command in HEADS.findall(data):
                    writer.write(GOOD.get(command, self._to_scripts))
                await writer.drain()


@contextlib.asynccontextmanager
async def answering(to_scripts: bytes, path: Path) -> AsyncIterator[str]:
    server = await asyncio.start_unix_server(Answers(to_scripts).serve, path)
    try:
        yield f"unix://{path}"
    finally:
        server.close()


@pytest.mark.parametrize(
    "answer",
    [b":1\r\n", b"*1\r\n:1\r\n", b"+OK\r\n", b"_\r\n", b"%0\r\n", b"-ERR no\r\n", b"*0\r\n", b":1\r\n:1\r\n"],
    ids=["a number", "a short list", "a word", "null", "a map", "an error", "an empty list", "two"],
)
async def test_an_answer_of_another_form_is_no_answer(answer: bytes, tmp_path: Path) -> None:
    """The request gets its ticket from its own process at once; nothing waits for ever and nothing is raised."""
    raised = list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    async with answering(answer, tmp_path / "odd.sock") as url:
        state = ValkeyState(url, 1, Observer(make_log()), ValkeyTiming(trip_s=WAIT_S, connect_s=WAIT_S, retry_s=0.01))
        await state.start()
        tickets = [await asyncio.wait_for(state.rates.take("key_a", RATE), WAIT_S) for _ in range(4)]
        await state.stop()
    assert [ticket.is_granted for ticket in tickets] == [True, True, True, False]
    assert raised == []


async def test_a_message_that_is_not_ours_is_ignored(tmp_path: Path) -> None:
    """A message of another program on our channel may have any bytes."""
    async with answering(b"*2\r\n:1\r\n$1\r\n0\r\n", tmp_path / "odd.sock") as url:
        state = ValkeyState(url, 1, Observer(make_log()), ValkeyTiming(trip_s=WAIT_S, connect_s=WAIT_S))
        Slots(4, lender=state.lender)
        for message in (b"", b"\xff\xfe", b"short", b"\xff short \x00"):
            state.lender.on_message(message)


async def test_a_valkey_that_ends_each_connection_is_asked_less_and_less(tmp_path: Path) -> None:
    """Each pause is twice the one before: only a connection that lasted begins anew with the shortest."""
    loop, began_s, has_retried = asyncio.get_running_loop(), list[float](), asyncio.Event()

    def end(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        began_s.append(loop.time())
        writer.close()
        if len(began_s) == 5:
            has_retried.set()

    server = await asyncio.start_unix_server(end, tmp_path / "ending.sock")
    state = ValkeyState(f"unix://{tmp_path / 'ending.sock'}", 1, Observer(make_log()), ValkeyTiming(retry_s=0.02))
    await state.start()
    await asyncio.wait_for(has_retried.wait(), WAIT_S)
    await state.stop()
    server.close()
    pauses_s = [after_s - before_s for before_s, after_s in pairwise(began_s)]
    assert all(pause_s > 0.019 * 2**number for number, pause_s in enumerate(pauses_s))


def test_a_command_for_a_connection_that_ends_is_answered(tmp_path: Path) -> None:
    """If the connection ends between a command and its write, the command is answered with None: on uvloop too."""
    raised, answers = list[dict[str, Any]](), list[Any]()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: raised.append(context))
        async with answering(b"", tmp_path / "odd.sock"):
            transport, connection = await loop.create_unix_connection(
                lambda: ValkeyConnection(WAIT_S, lambda _: None, lambda _: None), str(tmp_path / "odd.sock")
            )
            transport.abort()
            connection.send(answers.append, "PING")
            for _ in range(4):
                await asyncio.sleep(0)
            connection.send(answers.append, "PING")

    uvloop.run(run())
    assert (answers, raised) == ([None, None], [])
