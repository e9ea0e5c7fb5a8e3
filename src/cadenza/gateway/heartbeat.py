"""Keeps the connection of a stream alive: sends a comment (`: ping`) whenever nothing was sent for a while.

It starts once a request is valid and has a slot, and ends with the reply. If the reply has not started by the first
ping, its head is sent with the ping: the status is then 200, and a later error is an event of the stream. A comment
has no content, so it may be sent before credit is held. An account that cannot pay for any answer gets no pings.
"""

import asyncio
import time

from cadenza.gateway.answers import Answers
from cadenza.http.events import PING
from cadenza.http.exchange import PENDING, STREAMING, Exchange

PING_S = 13.5  # with the tenth that a ping may be late, less than 15 seconds


class Heartbeat:
    """The pings of one request, for a block. One timer per stream, none per chunk; none at all without `every_s`."""

    def __init__(self, exchange: Exchange, answers: Answers, every_s: float | None) -> None:
        self._exchange = exchange
        self._answers = answers
        self._every_s = every_s or 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        if self._every_s:
            self._timer = asyncio.get_running_loop().call_later(self._every_s, self._ping)

    async def __aexit__(self, *_: object) -> None:
        if self._timer:
            self._timer.cancel()

    def _ping(self) -> None:
        exchange, every_s = self._exchange, self._every_s
        if exchange.state is PENDING:
            self._answers.start_waiting()
        if exchange.state is not STREAMING:
            return
        quiet_s = time.monotonic() - exchange.last_write_s
        if quiet_s >= every_s:
            quiet_s = 0.0
            if not exchange.is_congested:
                exchange.write(PING)
        self._timer = asyncio.get_running_loop().call_later(max(every_s - quiet_s, every_s / 10), self._ping)
