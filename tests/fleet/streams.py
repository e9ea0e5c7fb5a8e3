"""Streams that are in the middle of their reply while a test breaks something."""

import asyncio
from collections.abc import Sequence

from tests.fleet.requests import USAGE, WORDS, Clients
from tests.loopback import LoopbackUpstream, Pause, Whole
from tests.raw_client import Reply
from tests.service import wait_until

MARKED_S = 30.0
BEGUN_S = 120.0
BEGUN = "".join(WORDS[:-1])


class RunningStreams:
    """Streams whose upstream has sent all words but the last, and waits to be released."""

    def __init__(self, clients: Clients, upstream: LoopbackUpstream) -> None:
        self._clients = clients
        self._upstream = upstream
        self._pauses = list[Pause]()
        self._replies = list[asyncio.Task[Reply]]()

    async def begin(self, count: int, ports: Sequence[int], *, are_marked: bool = True) -> None:
        """Begin so many over the ports in turn, until each has delivered its words, and until that is marked."""
        begun = [asyncio.Event() for _ in range(count)]
        pauses = [Pause() for _ in range(count)]
        self._upstream.script(*(Whole(WORDS, USAGE, pause) for pause in pauses))
        for number, has_begun in enumerate(begun):
            port = ports[number % len(ports)]
            self._replies.append(asyncio.create_task(self._stream(port, has_begun)))
        self._pauses.extend(pauses)
        async with asyncio.timeout(BEGUN_S):
            await asyncio.gather(*(each.wait() for each in begun))
        if are_marked:
            await asyncio.to_thread(wait_until, self._are_marked, "a mark for each stream", MARKED_S)

    def release(self) -> None:
        """Let the upstream send the rest."""
        for pause in self._pauses:
            pause.release()

    async def gather(self) -> list[Reply]:
        """Wait for every reply without releasing the upstream."""
        return await asyncio.gather(*self._replies)

    async def end(self) -> list[Reply]:
        self.release()
        return await self.gather()

    async def _stream(self, port: int, has_begun: asyncio.Event) -> Reply:
        async def note(reply: Reply) -> bool:
            if reply.text.startswith(BEGUN):
                has_begun.set()
            return False

        while True:  # on a busy machine it may be refused
            reply = await self._clients.send(self._clients.new_request(stream=True), port, note)
            if reply.status != 429:
                return reply

    def _are_marked(self) -> bool:
        return self._clients.fleet.ledger.marked_tokens() == len(self._replies) * (len(WORDS) - 1)
