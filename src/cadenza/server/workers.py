"""Several worker processes on one listening socket. One that dies is replaced; signals are passed on to all of them."""

import multiprocessing
import os
import signal
import socket
import time
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess

from cadenza.server.server import STARTUP_FAILURE, serve_one

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
REPLACE_PAUSE_S = 1.0


class Workers:
    """The processes, from the start of the first to the end of the last."""

    def __init__(self, app_factory: str, count: int, listener: socket.socket) -> None:
        self._app_factory = app_factory
        self._listener = listener
        self._is_ending = False
        self._exit_code = 0
        self._signals, told = socket.socketpair()
        told.setblocking(False)
        self._told = told
        self._processes = [self._start() for _ in range(count)]

    def run(self) -> int:
        """Until all have ended; the exit code."""
        for heeded in SIGNALS:
            signal.signal(heeded, _only_wake)
        signal.set_wakeup_fd(self._told.fileno())
        while self._processes:
            ready = wait([self._signals, *(process.sentinel for process in self._processes)])
            if self._signals in ready:
                for number in self._signals.recv(1024):
                    self._heed(number)
            self._reap()
        return self._exit_code

    def _heed(self, number: int) -> None:
        if number == signal.SIGHUP:
            self._pass_on(signal.SIGHUP)
        elif number in SIGNALS:
            self._is_ending = True
            self._pass_on(signal.SIGTERM)

    def _start(self) -> SpawnProcess:
        process = multiprocessing.get_context("spawn").Process(target=_work, args=(self._app_factory, self._listener))
        process.start()
        return process

    def _pass_on(self, number: signal.Signals) -> None:
        for process in self._processes:
            if process.is_alive() and process.pid:
                os.kill(process.pid, number)

    def _reap(self) -> None:
        ended = [process for process in self._processes if not process.is_alive()]
        for process in ended:
            self._processes.remove(process)
            if process.exitcode == STARTUP_FAILURE:
                self._exit_code, self._is_ending = STARTUP_FAILURE, True
                self._pass_on(signal.SIGTERM)
        if ended and not self._is_ending:
            time.sleep(REPLACE_PAUSE_S)
            self._processes += [self._start() for _ in ended]


def _work(app_factory: str, listener: socket.socket) -> None:
    """What a worker does. A Ctrl-C reaches it too; it heeds the one that passes it on."""
    serve_one(app_factory, listener, heeds_interrupt=False)


def _only_wake(_number: int, _frame: object) -> None:
    """The signal is read from the socket that it wakes."""
