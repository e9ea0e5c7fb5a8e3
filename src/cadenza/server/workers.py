"""Several worker processes on one listening socket. A worker that dies is replaced; signals are passed on to all.

If the first workers cannot start, the service ends with their exit code. Once one has started, a later one that cannot,
because the store is away for instance, is tried again until it can.
"""

import multiprocessing
import os
import signal
import socket
import sys
import time
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from cadenza.observe import Log, make_log
from cadenza.server.server import STARTUP_FAILURE, serve_one

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
REPLACE_PAUSE_S = 1.0
REPLACE_PAUSE_S_MAX = 15.0
STARTED = b"started"


class Workers:
    """The processes, from the start of the first to the end of the last."""

    def __init__(self, service_factory: str, count: int, listener: socket.socket, log: Log | None = None) -> None:
        self._service_factory = service_factory
        self._listener = listener
        self._log = log or make_log()
        self._is_ending = False
        self._exit_code = 0
        self._signals, self._wakeup = socket.socketpair()
        self._wakeup.setblocking(False)
        self._starts, self._started = multiprocessing.Pipe(duplex=False)  # a worker that has started writes to it
        self._has_started = False
        self._pause_s = REPLACE_PAUSE_S
        self._replacements: list[float] = []  # when each is to be started
        self._processes = [self._start() for _ in range(count)]

    def run(self) -> int:
        """Return once all have ended. The exit code."""
        for passed_on in SIGNALS:
            signal.signal(passed_on, _wake)
        signal.set_wakeup_fd(self._wakeup.fileno())
        while self._processes or self._replacements:
            sentinels = [process.sentinel for process in self._processes]
            pause_s = max(0.0, min(self._replacements) - time.monotonic()) if self._replacements else None
            ready = wait([self._signals, self._starts, *sentinels], pause_s)
            if self._starts in ready:
                self._starts.recv_bytes()
                self._has_started = True
                self._pause_s = REPLACE_PAUSE_S
            if self._signals in ready:
                for number in self._signals.recv(1024):
                    self._pass_on(number)
            self._remove_ended()
            self._start_due()
        return self._exit_code

    def _start(self) -> SpawnProcess:
        arguments = (self._service_factory, self._listener, self._started)
        process = multiprocessing.get_context("spawn").Process(target=_work, args=arguments)
        process.start()
        return process

    def _pass_on(self, number: int) -> None:
        if number == signal.SIGHUP:
            self._send(signal.SIGHUP)
        elif number in SIGNALS:
            self._end()

    def _end(self) -> None:
        self._is_ending = True
        self._replacements.clear()
        self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        for process in self._processes:
            if process.is_alive() and process.pid:
                os.kill(process.pid, number)

    def _remove_ended(self) -> None:
        for process in [process for process in self._processes if not process.is_alive()]:
            self._processes.remove(process)
            if process.exitcode == STARTUP_FAILURE and not self._has_started:
                self._exit_code = STARTUP_FAILURE
                self._end()
            elif not self._is_ending:
                self._plan_replacement(process)

    def _plan_replacement(self, ended: SpawnProcess) -> None:
        """Start another after a pause, which grows while workers cannot start."""
        pause_s = REPLACE_PAUSE_S
        if ended.exitcode == STARTUP_FAILURE:
            pause_s = self._pause_s
            self._pause_s = min(2 * pause_s, REPLACE_PAUSE_S_MAX)
            self._log.error("a worker could not start; trying again", pid=ended.pid, pause_s=pause_s)
        else:
            self._log.warning("a worker ended; starting another", pid=ended.pid, exit_code=ended.exitcode)
        self._replacements.append(time.monotonic() + pause_s)

    def _start_due(self) -> None:
        due = [at for at in self._replacements if at <= time.monotonic()]
        for at in due:
            self._replacements.remove(at)
            self._processes.append(self._start())


def _work(service_factory: str, listener: socket.socket, started: Connection) -> None:
    """The main function of a worker."""
    try:
        serve_one(service_factory, listener, handles_sigint=False, on_start=lambda: started.send_bytes(STARTED))
    except Exception as error:  # noqa: BLE001 multiprocessing would print its text
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


def _wake(_number: int, _frame: object) -> None:
    """Python writes the number of the signal to the wakeup socket, where it is read."""
