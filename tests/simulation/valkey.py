"""A simulated Valkey server: the commands that the service sends, and what its two scripts do, as Python.

The service's own client code runs on top, and speaks the wire protocol. `test_valkey.py` runs the scripts beside the
real ones. What differs: the server never evicts, and its clock only runs forward.
"""

import asyncio
from collections.abc import Callable, Sequence
from hashlib import sha1
from typing import Any

import hiredis

from cadenza.parts.valkey.link import Script
from tests.simulation.network import Link, Wire
from tests.simulation.scheduler import Scheduler

START_S = 1_793_000_000  # the time of day of the server at its start
WORK_S = 0.00003
TURN_MS, SHORT_MS, FORGET_MS = 250, 5, 60_000  # as in slots.lua
NAMES = {Script.read(f"{name}.lua").digest: name for name in ("rates", "slots")}


class ValkeyData:
    """What the server has in memory, and the effect of the scripts on it."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}  # rates: when the whole burst is available, in nanoseconds
        self.leases: dict[str, tuple[int, int, int, int, int]] = {}  # lease, demand, keys, unmet, until_ms
        self.marks: dict[str, int] = {}  # @lost and @short
        self.forget_ms = 0  # when the leases are forgotten

    def take(self, keys: Sequence[str], arguments: Sequence[int], now_us: int) -> list[Any]:
        """rates.lua"""
        settle_ms, *numbers = arguments
        now_ns, now_ms, since_key = now_us * 1000, now_us // 1000, keys[0]
        since_ms = self.values.setdefault(since_key, now_ms)
        is_settled = now_ms - since_ms >= settle_ms
        answers: list[Any] = [int(is_settled), str(since_ms)]
        for place, key in enumerate(keys[1:]):
            step, span, count = numbers[3 * place : 3 * place + 3]
            reset, is_granted = max(self.values.get(key, 0) - now_ns, 0), False
            if count == 0:
                reset = max(reset, step)
            else:
                reset = min(reset, span)
                is_granted = count < 0 or (is_settled and reset + step <= span)
                if is_granted:
                    reset = max(reset + count * step, 0)
            self.values[key] = now_ns + reset
            answers += [int(is_granted), str(reset)]
        return answers

    def lease(self, name: str, standing: str, arguments: Sequence[int], now_ms: int) -> tuple[list[int], str]:
        """slots.lua. Return its answer, and the message that it publishes."""
        has, most, taken, wanted, keys, ceiling, lease_ms = arguments
        if now_ms >= self.forget_ms:
            self.leases.clear()
            self.marks.clear()
        has_rows = bool(self.leases or self.marks)
        for expired in [one for one, row in self.leases.items() if row[4] <= now_ms]:
            del self.leases[expired]
        before = self.leases.get(name)
        others = {other: row for other, row in self.leases.items() if other != name}
        if (standing == "leased" and before is None) or (standing == "lapsed" and not has_rows):
            self.marks["@lost"] = now_ms
        wants = {name: (taken + wanted, keys)} | {other: (row[1], row[2]) for other, row in others.items()}
        demand, total = taken + wanted, sum(one for one, _ in wants.values())
        is_awaited = any(row[3] > 0 for row in others.values())
        if total > ceiling:
            target = fair_part(name, wants, ceiling, now_ms)
        elif total == ceiling or is_awaited:
            target = demand
        else:
            target = demand + max(1, (ceiling - total) // (2 * len(wants)))
        lost_ms = self.marks.get("@lost")
        if lost_ms is not None and now_ms - lost_ms < lease_ms:
            target = min(target, max(has, most))
        lease = max(has, min(target, ceiling - sum(row[0] for row in others.values())))
        unmet = max(0, min(target, demand) - lease)
        self.leases[name] = (lease, demand, keys, unmet, now_ms + lease_ms)
        self.forget_ms = now_ms + FORGET_MS
        message, short_ms = "", self.marks.get("@short")
        is_throttled = short_ms is not None and now_ms - short_ms < SHORT_MS
        if others and (standing != "leased" or (unmet > 0 and not is_throttled)):
            self.marks["@short"] = now_ms
            message = f"short {name}"
        elif before is not None and lease < before[0] and is_awaited:
            message = f"free {name}"
        return [lease, target, sum(row[2] for row in others.values()), len(wants)], message


def fair_part(name: str, wants: dict[str, tuple[int, int]], ceiling: int, now_ms: int) -> int:
    """The part of a process when more slots are wanted than there are."""
    left, open_ = ceiling, {other: (demand, max(1, keys)) for other, (demand, keys) in wants.items()}
    while True:
        weight = sum(keys for _, keys in open_.values())
        modest = {other: demand for other, (demand, keys) in open_.items() if demand * weight <= left * keys}
        if name in modest:
            return modest[name]
        if not modest:
            break
        left -= sum(modest.values())
        open_ = {other: want for other, want in open_.items() if other not in modest}
    wholes = {other: left * open_[other][1] // weight for other in sorted(open_)}
    place, turn = [*wholes].index(name), now_ms // TURN_MS % len(open_)
    return wholes[name] + ((place - turn) % len(open_) < left - sum(wholes.values()))


class SimulatedValkey:
    """The server. After `restart` it has no data and no scripts."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.is_down = False
        self._transports: dict[SimulatedTransport, None] = {}
        self._data = ValkeyData()
        self._scripts: set[str] = set()

    async def connect(
        self, link: Link, make: Callable[[], asyncio.Protocol]
    ) -> tuple["SimulatedTransport", asyncio.Protocol]:
        """Connect as an event loop does. OSError if the server is down."""
        opened: asyncio.Future[bool] = link.loop.create_future()
        transport = SimulatedTransport(self, link, make())
        transport.wire.to_server(0.0, self._accept, transport, opened)
        try:
            if not await opened:
                raise ConnectionRefusedError(111, "Connection refused")
        except BaseException:
            transport.abort()
            raise
        return transport, transport.protocol

    def _accept(self, transport: "SimulatedTransport", opened: "asyncio.Future[bool]") -> None:
        if not self.is_down:
            self._transports[transport] = None
        transport.wire.to_client(transport.opened, opened, not self.is_down)

    def go_down(self) -> None:
        self.is_down = True
        for transport in [*self._transports]:
            transport.wire.break_off()

    def come_up_empty(self) -> None:
        self.is_down = False
        self._data, self._scripts = ValkeyData(), set()

    def lost(self, transport: "SimulatedTransport") -> None:
        self._transports.pop(transport, None)

    def receive(self, transport: "SimulatedTransport", data: bytes) -> None:
        transport.reader.feed(data)
        answers = b""
        while (command := transport.reader.gets()) is not False:
            answers += self._run(transport, [part.decode(errors="replace") for part in command])
        transport.wire.to_client(transport.receive, answers)

    def _run(self, transport: "SimulatedTransport", command: list[str]) -> bytes:
        word, *parts = command
        match word:
            case "EVALSHA" | "EVAL":
                return self._run_script(word, *parts)
            case "SUBSCRIBE":
                transport.channel = parts[0]
                return encode_push([b"subscribe", parts[0].encode(), 1])
            case "HDEL":
                return encode(int(self._data.leases.pop(parts[1], None) is not None))
            case "PUBLISH":
                self._publish(*parts)
                return encode(1)
        assert word in {"HELLO", "SELECT", "SET"}
        return b"+OK\r\n"

    def _run_script(self, word: str, script: str, count: str, *rest: str) -> bytes:
        digest = script if word == "EVALSHA" else sha1(script.encode(), usedforsecurity=False).hexdigest()
        if word == "EVAL":
            self._scripts.add(digest)
        elif digest not in self._scripts:
            return b"-NOSCRIPT No matching script.\r\n"
        now_us = START_S * 1_000_000 + round(self.scheduler.now_s * 1_000_000)
        keys, arguments = rest[: int(count)], rest[int(count) :]
        if NAMES[digest] == "rates":
            return encode(self._data.take(keys, [*map(int, arguments)], now_us))
        process, standing, *numbers, channel = arguments
        answer, message = self._data.lease(process, standing, [*map(int, numbers)], now_us // 1000)
        if message:
            self._publish(channel, message)
        return encode(answer)

    def _publish(self, channel: str, message: str) -> None:
        for transport in self._transports:
            if transport.channel == channel:
                pushed = encode_push([b"message", channel.encode(), message.encode()])
                transport.wire.to_client(transport.receive, pushed)


class SimulatedTransport(asyncio.Transport):
    """A connection to the server, as the protocol of the service sees it."""

    def __init__(self, server: SimulatedValkey, link: Link, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.protocol = protocol
        self.reader = hiredis.Reader()
        self.channel = ""
        self._server = server
        self._link = link
        self._is_closing = False
        self.wire = Wire(link, self._lost, lambda: server.lost(self))

    def opened(self, opened: "asyncio.Future[bool]", is_open: bool) -> None:
        if is_open:
            self._link.loop.inside(lambda: self.protocol.connection_made(self))
        if not opened.done():
            opened.set_result(is_open)

    def receive(self, data: bytes) -> None:
        if not self._is_closing and not self._link.loop.is_dead:
            self._link.loop.inside(lambda: self.protocol.data_received(data))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.wire.to_server(WORK_S, self._server.receive, self, bytes(data))

    def is_closing(self) -> bool:
        return self._is_closing

    def abort(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            if not self.wire.is_broken:
                self.wire.break_off(here=False)
            self._link.loop.call_soon(self.protocol.connection_lost, None)

    def _lost(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self.protocol.connection_lost(ConnectionResetError(104, "Connection reset by peer"))


def encode(value: int | str | list[Any]) -> bytes:
    match value:
        case int():
            return b":%d\r\n" % value
        case str():
            return b"$%d\r\n%s\r\n" % (len(value), value.encode())
    return b"*%d\r\n" % len(value) + b"".join(map(encode, value))


def encode_push(parts: list[bytes | int]) -> bytes:
    body = b"".join(encode(one) if isinstance(one, int) else b"$%d\r\n%s\r\n" % (len(one), one) for one in parts)
    return b">%d\r\n" % len(parts) + body
