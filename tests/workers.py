"""Runs the tests in several processes (`--workers 4`), forked when all tests are collected: an import is paid for once.

A worker takes one group of tests after the other from a pipe, and sends its reports through another to the process that
collected, which alone prints and counts. A worker that dies fails the run, and so does a test that did not end in any.
"""

import io
import os
import random
import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn

import pytest
from _pytest import runner
from _pytest._io import TerminalWriter

Group = list[pytest.Item]
NUMBER_BYTES = 4
WORKER = "CADENZA_TEST_WORKER"  # in the environment of a worker: its number


class Line(NamedTuple):
    """Groups of tests, each for one process. So many workers begin with them, and go on with the other lines."""

    groups: list[Group]
    workers: int
    niceness: int = 0


class Reporter:
    """In a worker: sends the name of each test that begins, and its reports when it has ended."""

    def __init__(self, config: pytest.Config, parent: Connection) -> None:
        self._config = config
        self._parent = parent
        self._reports = list[dict[str, Any] | None]()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._parent.send((nodeid, None))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._parent.send((nodeid, self._reports))
        self._reports = []


class Worker:
    """A forked process that runs tests until there are no more."""

    def __init__(self, number: int, niceness: int, session: pytest.Session, tests: Iterator[pytest.Item]) -> None:
        self.running = ""
        self.reports, parent = Pipe(duplex=False)
        self.pid = os.fork()
        if self.pid == 0:
            self.reports.close()
            os.nice(niceness)
            _work(number, session, tests, parent)
        parent.close()

    def end(self) -> int:
        """Its exit code. It is interrupted, unless it has sent all."""
        if not self.reports.closed:
            os.kill(self.pid, signal.SIGINT)
            self.reports.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def run_in_workers(session: pytest.Session, lines: Sequence[Line]) -> None:
    assert threading.active_count() == 1, "a thread would be missing in the workers"
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined] # one for all workers
    begun = [(line, _filled_pipe(len(line.groups))) for line in lines]
    workers = list[Worker]()
    try:
        for first in begun:
            tests = _taken([first, *(other for other in begun if other is not first)])
            for _ in range(min(first[0].workers, len(first[0].groups))):
                workers.append(Worker(len(workers), first[0].niceness, session, tests))
        ended = _pass_on(session, {worker.reports: worker for worker in workers})
    finally:
        codes = [worker.end() for worker in workers]
        for _, numbers in begun:
            os.close(numbers)
    if ended < len(session.items) or any(codes):
        session.shouldfail = f"{len(session.items) - ended} tests did not end; exit codes of the workers: {codes}"
        raise session.Failed(session.shouldfail)


def _filled_pipe(count: int) -> int:
    """The end to read from, without waiting, of a pipe with the numbers below the count."""
    end, filled = os.pipe()
    os.write(filled, b"".join(number.to_bytes(NUMBER_BYTES) for number in range(count)))
    os.close(filled)
    return end


def _taken(lines: Sequence[tuple[Line, int]]) -> Iterator[pytest.Item]:
    """The tests of those groups that no other process takes."""
    for line, numbers in lines:
        while number := os.read(numbers, NUMBER_BYTES):
            yield from line.groups[int.from_bytes(number)]


def _pass_on(session: pytest.Session, workers: dict[Connection, Worker]) -> int:
    """Give the workers' reports to the plugins of this process, until all have ended. The number of tests."""
    hook, ended = session.config.hook, 0
    while workers:
        for ready in wait([*workers]):
            assert isinstance(ready, Connection)
            try:
                nodeid, reports = ready.recv()
            except EOFError:
                ready.close()
                if lost := workers.pop(ready).running:
                    dead = pytest.TestReport(lost, (lost, None, lost), {}, "failed", "its process died", "call")
                    hook.pytest_runtest_logreport(report=dead)
                continue
            workers[ready].running = "" if reports else nodeid
            for data in reports or ():
                report = hook.pytest_report_from_serializable(config=session.config, data=data)
                hook.pytest_runtest_logreport(report=report)
            if reports:
                ended += 1
                hook.pytest_runtest_logfinish(nodeid=nodeid, location=reports[0]["location"])
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
    return ended


def _work(number: int, session: pytest.Session, tests: Iterator[pytest.Item], parent: Connection) -> NoReturn:
    """Run tests, and end before anything happens that the process from which this one was forked does at its end."""
    code = 1
    try:
        _settle_in(number, session.config, parent)
        try:
            _run(session, tests)
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            runner.pytest_sessionfinish(session)  # takes down what the session has set up
        code = 0
    except KeyboardInterrupt:
        pass
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        os._exit(code)


def _run(session: pytest.Session, tests: Iterator[pytest.Item]) -> None:
    for item, following in pairwise(chain(tests, [None])):
        assert item
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail or session.shouldstop:
            return


def _settle_in(number: int, config: pytest.Config, parent: Connection) -> None:
    """Have a number, captured output and random numbers of its own, and print nothing."""
    os.environ[WORKER] = str(number)
    plugins = config.pluginmanager
    if captured := plugins.get_plugin("capturemanager"):
        captured.stop_global_capturing()
        captured.start_global_capturing()
        captured.suspend_global_capture()
    plugins.unregister(name="terminalreporter")
    plugins.register(SimpleNamespace(_tw=TerminalWriter(io.StringIO())), "terminalreporter")
    plugins.register(Reporter(config, parent), "reporter")
    random.seed()
