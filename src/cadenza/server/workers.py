"""Several worker processes on one listening socket. A worker that dies is replaced; signals are passed on to all."""

import multiprocessing
import os
import signal
import socket
import time
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess

from cadenza.observe import Log, make_log
from cadenza.server.server import STARTUP_FAILURE, serve_one

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
REPLACE_PAUSE_S = 1.0


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
        self._processes = [self._start() for _ in range(count)]

    def run(self) -> int:
        """Return once all have ended. The exit code."""
        for passed_on in SIGNALS:
            signal.signal(passed_on, _wake)
        signal.set_wakeup_fd(self._wakeup.fileno())
        while self._processes:
            ready = wait([self._signals, *(process.sentinel for process in self._processes)])
            if self._signals in ready:
                for number in self._signals.recv(1024):
                    self._pass_on(number)
            self._replace_ended()
        return self._exit_code

    def _start(self) -> SpawnProcess:
        arguments = (self._service_factory, self._listener)
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
        self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        for process in self._processes:
            if process.is_alive() and process.pid:
                os.kill(process.pid, number)

    def _replace_ended(self) -> None:
        """Start another worker for each that died. One that could not start ends them all: another would fail too."""
        ended = [process for process in self._processes if not process.is_alive()]
        for process in ended:
            self._processes.remove(process)
            if process.exitcode == STARTUP_FAILURE:
                self._exit_code = STARTUP_FAILURE
                self._end()
        if ended and not self._is_ending:
            for process in ended:
                self._log.warning("a worker ended; starting another", pid=process.pid, exit_code=process.exitcode)
            time.sleep(REPLACE_PAUSE_S)
            self._processes += [self._start() for _ in ended]


def _work(service_factory: str, listener: socket.socket) -> None:
    """The main function of a worker."""
    serve_one(service_factory, listener, handles_sigint=False)


def _wake(_number: int, _frame: object) -> None:
    """Python writes the number of the signal to the wakeup socket, where it is read."""
