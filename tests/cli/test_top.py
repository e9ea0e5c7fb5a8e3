"""cadenza top: its numbers, its lines, and what a person sees at a terminal."""

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
import pytest

from cadenza.cli.running_service import Reading
from cadenza.cli.top.readings import Numbers, compare
from cadenza.cli.top.view import draw
from cadenza.observe.facts import RouteFact
from cadenza.observe.problem import Problem
from cadenza.observe.samples import Samples
from cadenza.observe.worker_metrics import Family, Labels
from tests.cli.program import PROGRAM
from tests.environment import environment
from tests.loopback import LoopbackUpstream
from tests.raw_client import RawClient
from tests.service import Service
from tests.service_config import classes_spec

WAIT_S = 60.0
READ_BYTES = 65_536
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
HOME = "\x1b[H"
Values = dict[str, dict[Labels, float]]


def labels(**given: str) -> Labels:
    return tuple(sorted(given.items()))


def numbers_of(before: Values, now: Values, *problems: Problem) -> Numbers:
    """The numbers of two readings that are ten seconds apart."""
    first, second = (
        Samples(Family(name, "", "", [(name, at, value) for at, value in of.items()]) for name, of in values.items())
        for values in (before, now)
    )
    return compare(Reading(100.0, first, 1, []), Reading(110.0, second, 1, list(problems)))


def test_rates_and_percentiles() -> None:
    """Of what was counted between the readings; a counter that fell counts as nothing."""
    status, le = labels(endpoint="chat", status="200"), [labels(le=bound) for bound in ("0.1", "1.0", "+Inf")]
    found = numbers_of(
        {
            "cadenza_requests_total": {status: 50.0},
            "cadenza_tokens_total": {labels(class_id="forte", kind="prompt"): 99.0},
        },
        {
            "cadenza_requests_total": {status: 70.0, labels(endpoint="chat", status="502"): 10.0},
            "cadenza_tokens_total": {labels(class_id="forte", kind="prompt"): 9.0},
            "cadenza_first_byte_seconds_bucket": dict(zip(le, (90.0, 97.0, 100.0), strict=True)),
        },
    )
    assert (found.rates["requests/s"], found.rates["tokens/s"]) == ({"200": 2.0, "502": 1.0}, {})
    assert (found.seconds["first token p50"], found.seconds["p95"], found.seconds["commit p95"]) == (0.1, 1.0, None)


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (40, 12), (200, 60), (20, 4)])
def test_it_fits_the_screen(columns: int, lines: int) -> None:
    """No line is longer than the screen, the gravest problems are first, and then routes that do not work."""
    found = numbers_of({}, {}, *(Problem(f"kind_{number}", "page", "a long sentence " * 9, "") for number in range(3)))
    many = [RouteFact(f"provider-{number}", "x" * 40, limit=40) for number in range(99)]
    broken = RouteFact("zeta", "large", "open", "timed_out", None, 107.0, 0, 40)
    found = msgspec.structs.replace(found, routes=[*many, broken])
    shown = [click.unstyle(line) for line in draw(found, columns, lines, "q quits")]
    assert len(shown) <= lines
    assert max(map(len, shown)) <= columns
    assert shown[1].startswith("! a long sentence")
    if lines >= 24:
        assert shown[[line[:5] for line in shown].index("route") + 1].startswith("zeta/large")


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with LoopbackUpstream() as upstream, Service(classes_spec(upstream.base_url)) as running:
        assert RawClient(running.port, running.key).chat().status == 200
        yield running


def test_once(service: Service, tmp_path: Path) -> None:
    """In a pipe it prints the numbers and ends; an address where nothing answers is a sentence."""
    url = f"http://127.0.0.1:{service.port}"
    done = service.cli("top", "--url", url, "--url", "127.0.0.1:1", "--interval", "0.5")
    assert done.returncode == 0
    assert "addresses 1   processes 1" in done.stdout
    assert "! A gateway does not answer. http://127.0.0.1:1: connection refused." in done.stdout
    assert "loopback/loopback-forte         closed" in done.stdout
    found = json.loads(service.cli("top", "--url", f"{url}/v1/", "--interval", "0.5", "--json").stdout)
    problems = [one for one in found["problems"] if one["kind"] != "loop_lags"]  # it may be, on a busy machine
    assert (found["gauges"]["workers"], len(found["routes"]), problems) == (1, 3, [])
    nothing = service.cli("top", "--url", "http://127.0.0.1:1", "--once")
    assert (nothing.returncode, "Is it running" in nothing.stderr) == (1, True)


class Watcher:
    """What is on the screen of a terminal of this size."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._shown = ""

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def wait_for(self, pattern: str) -> list[str]:
        """The lines of the first whole frame that matches."""
        until_s = time.monotonic() + WAIT_S
        while time.monotonic() < until_s:
            for frame in self._shown.split(HOME)[1:]:
                lines = ANSI.sub("", frame).split("\r\n")
                if frame.endswith("\x1b[J") and re.search(pattern, "\n".join(lines)):
                    self._shown = ""
                    return lines
            assert select.select([self._terminal], [], [], WAIT_S)[0], self._shown
            self._shown += os.read(self._terminal, READ_BYTES).decode()
        raise AssertionError(f"no {pattern!r} in {self._shown!r}")

    def press(self, key: str) -> None:
        os.write(self._terminal, key.encode())


def test_at_a_terminal(service: Service) -> None:
    """At 80 × 24 everything is on the screen; it follows a new size, and ends by a key."""
    ours, theirs = pty.openpty()
    watcher = Watcher(ours)
    watcher.resize(80, 24)
    before = termios.tcgetattr(theirs)
    command = [str(PROGRAM), "top", "--url", f"http://127.0.0.1:{service.port}", "--interval", "30"]
    with subprocess.Popen(command, cwd=service.folder, env=environment(), stdin=theirs, stdout=theirs) as process:
        try:
            shown = watcher.wait_for("All is well")
            assert (len(shown) <= 24, max(map(len, shown)) <= 80) == (True, True)
            for label in ("requests/s", "tokens/s", "charged $/h", "times", "slots", "store", "route"):
                assert any(line.startswith(label) for line in shown), label
            watcher.resize(50, 10)
            watcher.wait_for(r"\Acadenza top.{0,39}(\n.{0,50}){1,9}\Z")  # at most 10 lines of 50 characters
            watcher.press("q")
            assert process.wait(WAIT_S) == 0
            assert termios.tcgetattr(theirs) == before
        finally:
            process.kill()
            os.close(theirs)
            os.close(ours)
