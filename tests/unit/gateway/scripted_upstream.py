"""An upstream that answers each request with the same script."""

import asyncio

from cadenza.core.records import Route
from cadenza.upstreams.base import Ask, Piece, Probe, Sink

Step = Piece | Exception | asyncio.Event


class ScriptedReply:
    """Takes its steps in order: a piece is handed to the sink, an event is awaited, an exception is raised."""

    def __init__(self, *steps: Step) -> None:
        self._steps = steps
        self.pieces_read = 0
        self.is_closed = False

    async def deliver(self, sink: Sink) -> None:
        for step in self._steps:
            if not sink.flush():
                await sink.drain()
            if isinstance(step, asyncio.Event):
                await step.wait()
            elif isinstance(step, Exception):
                raise step
            else:
                self.pieces_read += 1
                sink.take(step)

    async def close(self) -> None:
        self.is_closed = True


class ScriptedUpstream:
    """Opens a reply with these steps for every ask. An exception as `opening` is raised instead, an event awaited."""

    def __init__(self, *steps: Step, opening: Exception | asyncio.Event | None = None) -> None:
        self._steps = steps
        self._opening = opening
        self.asks: list[Ask] = []
        self.is_asked = asyncio.Event()
        self.replies: list[ScriptedReply] = []

    async def start(self) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        """Nothing to stop."""

    async def probe(self) -> Probe:
        return Probe(reachable=True, detail="answers")

    async def open(self, route: Route, ask: Ask) -> ScriptedReply:
        self.asks.append(ask)
        ask.on_asked(route)
        self.is_asked.set()
        if isinstance(self._opening, Exception):
            raise self._opening
        if self._opening:
            await self._opening.wait()
        self.replies.append(ScriptedReply(*self._steps))
        return self.replies[-1]
