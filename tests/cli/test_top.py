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
import pytest

from cadenza.cli.top.numbers import Readings, RouteNumbers, TopNumbers
from cadenza.cli.top.scrape import Scrape
from cadenza.cli.top.view import KEYS, SORTS, draw
from cadenza.observe.worker_metrics import Labels
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
ROUTE = (("model", "large"), ("provider", "acme"))
Values = dict[str, dict[Labels, float]]


def labels(**given: str) -> Labels:
    return tuple(sorted(given.items()))


def numbers_of(before: Values, now: Values, problems: tuple[str, ...] = ()) -> TopNumbers:
    """The numbers of two readings that are ten seconds apart."""
    readings = Readings()
    for at_s, values in ((100.0, before), (110.0, now)):
        readings.add(Scrape(at_s, values, 1, list(problems)))
    return readings.numbers(1)


def route_values(state: str, *, in_flight: float = 0.0) -> Values:
    return {
        "cadenza_route_limit": {ROUTE: 40.0},
        "cadenza_route_in_flight": {ROUTE: in_flight},
        "cadenza_route_state": {(*ROUTE, ("state", state)): 1.0},
        "cadenza_route_last_fault_timestamp_seconds": {
            labels(provider="acme", model="large", kind="timed_out", status=""): 107.0
        },
    }


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
    assert found.statuses_per_s == {"200": 2.0, "502": 1.0}
    assert (found.requests_per_s, found.tokens_per_s) == (3.0, {})
    assert found.first_token_s == {"p50": 0.1, "p95": 1.0, "p99": float("inf")}


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (route_values("open"), "acme/large does not answer: timed_out. The provider is overloaded"),
        ({"cadenza_refused_total": {labels(reason="store"): 5.0}}, "The store takes no writes"),
        ({"cadenza_slots_taken": {(): 4.0}, "cadenza_slots_limit": {(): 4.0}}, "Out of slots: 4 of 4 are taken"),
        (
            {"cadenza_first_byte_seconds_bucket": {labels(le="10.0"): 9.0}, **route_values("closed", in_flight=3.0)},
            "Replies begin late: p95 of the first token is up to 10 s. Most of those in flight are at acme/large.",
        ),
        ({"cadenza_requests_total": {labels(endpoint="chat", status="500"): 9.0}}, "cadenza tail --status 5xx"),
    ],
    ids=["provider down", "store locked", "out of slots", "provider slow", "errors"],
)
def test_the_cause_is_the_first_line(now: Values, said: str) -> None:
    """Each outage is named, with what to do."""
    found = numbers_of({}, now)
    assert said in found.problems[0]
    assert "! " in click.unstyle(draw(found, 80, 24)[1])


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (40, 12), (200, 60), (20, 4)])
def test_it_fits_the_screen(columns: int, lines: int) -> None:
    """No line is longer than the screen, and routes that do not work come first among those that fit."""
    found = numbers_of({}, route_values("closed"), problems=("a long sentence " * 20,) * 5)
    many = [RouteNumbers(f"provider-{number}", "x" * 40, "closed", 1, 40, "", None) for number in range(99)]
    found = TopNumbers(**{name: getattr(found, name) for name in found.__struct_fields__} | {"routes": many})
    broken = RouteNumbers("zeta", "large", "open", 0, 40, "timed_out", 3)
    found.routes.append(broken)
    for sort in SORTS:
        shown = [click.unstyle(line) for line in draw(found, columns, lines, sort, KEYS)]
        assert len(shown) <= lines
        assert max(map(len, shown)) <= columns
    if lines >= 24:
        assert [line for line in shown if line.startswith("zeta/large")]
        assert any("more routes" in line for line in shown)


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
    assert "1 of 2 addresses   1 process" in done.stdout
    assert "! http://127.0.0.1:1 does not answer: connection refused." in done.stdout
    assert "loopback/loopback-forte        closed" in done.stdout
    found = json.loads(service.cli("top", "--url", f"{url}/v1/", "--interval", "0.5", "--json").stdout)
    problems = [one for one in found["problems"] if "event loop is late" not in one]  # it may be, on a busy machine
    assert (found["processes"], len(found["routes"]), problems) == (1, 3, [])
    nothing = service.cli("top", "--url", "http://127.0.0.1:1", "--once")
    assert (nothing.returncode, "Is the service running?" in nothing.stderr) == (1, True)


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
    """At 80 × 24 everything is on the screen; it follows a new size at once, sorts by a key, and ends by one."""
    ours, theirs = pty.openpty()
    watcher = Watcher(ours)
    watcher.resize(80, 24)
    before = termios.tcgetattr(theirs)
    command = [str(PROGRAM), "top", "--url", f"http://127.0.0.1:{service.port}", "--interval", "30"]
    with subprocess.Popen(command, cwd=service.folder, env=environment(), stdin=theirs, stdout=theirs) as process:
        try:
            shown = watcher.wait_for("All is well")
            assert (len(shown) <= 24, max(map(len, shown)) <= 80) == (True, True)
            for label in ("requests/s", "first token", "tokens/s", "money/h", "slots", "store", "route"):
                assert any(line.startswith(label) for line in shown), label
            watcher.resize(50, 10)
            os.kill(process.pid, 28)  # SIGWINCH: this terminal is not the process's own
            watcher.wait_for(r"\Acadenza top.{0,39}(\n.{0,50}){1,9}\Z")  # at most 10 lines of 50 characters
            watcher.resize(80, 24)
            watcher.press("s")
            watcher.wait_for(r"\(in flight\)")
            watcher.press("q")
            assert process.wait(WAIT_S) == 0
            assert termios.tcgetattr(theirs) == before
        finally:
            process.kill()
            os.close(theirs)
            os.close(ours)
