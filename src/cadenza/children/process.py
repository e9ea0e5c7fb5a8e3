"""One running child process, as the service sees it.

Tasks go to it, and replies come back, in slices, so that the event loop is never held for long.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from cadenza.children.confine import FRAME, SANDBOXED, TASK, ChildLimits

Buffer = bytes | bytearray | memoryview
SLICE_BYTES = 128 * 1024
REPLY_BYTES_MAX = 64 * 1024 * 1024  # a child that was taken over must not fill the memory of the service
PROCESS_CPU_CLOCK = 2  # with the inverted process id above it, the number of a clock of Linux: clock_getcpuclockid(3)
# Beyond its CPU time; beyond its memory, as different allocators end the process; beyond its stack; by a fault of its
# own code, or a system call of another architecture. Nobody else sends these: SIGKILL and SIGTERM come from outside.
HEAVY_DEATHS = {
    *(-signal.SIGXCPU, -signal.SIGABRT, -signal.SIGTRAP, -signal.SIGILL, -signal.SIGSEGV),
    *(-signal.SIGBUS, -signal.SIGFPE, -signal.SIGSYS),
}


class TooHeavy(Exception):
    """The task takes more CPU time or memory than a child may use, or crashes it: the signal that ended it."""

    def __init__(self, signal_number: int) -> None:
        super().__init__()
        self.signal_name = signal.Signals(signal_number).name


class Died(Exception):
    """The child could not be started, or it ended for a reason of its own."""


class Child:
    """A running child process.

    `is_sandboxed`: whether the system keeps it from the network, other programs and files, as it reported.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self.is_sandboxed = True
        self._has_begun = False  # it has reported that it is ready
        self.start_cpu_s = 0.0  # the CPU time of its start
        self._is_ending = False
        self._measured_s = self._unpaid_s = 0.0  # CPU time: read last, and not taken yet

    @classmethod
    async def start(cls, limits: ChildLimits, module: str) -> "Child":
        """It gets one end of a socket pair and nothing else. It is started by the main thread, whose end ends it."""
        command = [sys.executable, "-S", "-m", module]
        arguments = [str(os.getpid()), msgspec.json.encode(limits).decode()]
        try:
            ours, theirs = socket.socketpair()
        except OSError:
            raise Died from None
        with theirs:
            reader, writer = await asyncio.open_connection(sock=ours, limit=SLICE_BYTES)
            try:
                process = subprocess.Popen(  # noqa: ASYNC220, S603 it returns at once: there is nothing to wait for
                    [*command, *arguments],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                    cwd="/",
                    start_new_session=True,
                )
            except OSError:
                writer.transport.abort()
                raise Died from None
        return cls(process, reader, writer)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def take_cpu_s(self) -> float:
        """The CPU time that it has used since the last call, as the system measured it. Its start is not counted."""
        self._measure()
        unpaid_s, self._unpaid_s = self._unpaid_s, 0.0
        return unpaid_s

    def _measure(self) -> None:
        if self._process.returncode is None and not self._is_ending:
            now_s = _cpu_time_s(self._process.pid)
            self._unpaid_s += now_s - self._measured_s
            self._measured_s = now_s

    async def exchange(self, head: bytes, body: Sequence[Buffer] = ()) -> bytearray:
        """Send a task, whose body may be in several pieces, and return the bytes of the reply."""
        try:
            await self._send(head, body)
            return await self._receive(await self._reply_size())
        except (OSError, EOFError):
            code = await self.end()
            raise (TooHeavy(-code) if code in HEAVY_DEATHS else Died()) from None

    async def _send(self, head: bytes, body: Sequence[Buffer]) -> None:
        self._writer.write(TASK.pack(len(head), sum(map(len, body))))
        for piece in (head, *body):
            view = memoryview(piece)
            for start in range(0, len(view), SLICE_BYTES):
                self._writer.write(view[start : start + SLICE_BYTES])
                await self._writer.drain()
                await asyncio.sleep(0)

    async def _reply_size(self) -> int:
        while True:
            kind, number = FRAME.unpack(await self._reader.readexactly(FRAME.size))
            if kind != SANDBOXED and number <= REPLY_BYTES_MAX:
                return int(number)
            if kind != SANDBOXED or self._has_begun:  # it says that once; a child that was taken over says anything
                raise EOFError
            self._has_begun = True
            self.is_sandboxed = bool(number)
            self.start_cpu_s = self.take_cpu_s()

    async def _receive(self, size_bytes: int) -> bytearray:
        received = bytearray()
        while len(received) < size_bytes:
            part = await self._reader.read(min(SLICE_BYTES, size_bytes - len(received)))
            if not part:
                raise EOFError
            received += part
        return received

    async def end(self) -> int:
        """Kill it, and return its exit code."""
        self._measure()
        self._is_ending = True  # its CPU clock is gone after wait(), which another thread calls
        self._writer.transport.abort()
        with suppress(ProcessLookupError):
            self._process.kill()
        return await asyncio.to_thread(self._process.wait)


def _cpu_time_s(pid: int) -> float:
    """Of a process that was not waited for yet, running or not. 0 on systems other than Linux."""
    if sys.platform != "linux":
        return 0.0
    return time.clock_gettime((~pid << 3) | PROCESS_CPU_CLOCK)
