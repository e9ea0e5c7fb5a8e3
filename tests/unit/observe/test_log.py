"""The line of a request: written by a short way, it is the line that the long way writes, and none is lost."""

import asyncio
import io
import json
import subprocess
import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.observe.log import LINES_WAIT_S, _moment, make_log

WAIT_S = 10.0
LINES = 300
FACTS: dict[str, str | float] = {"endpoint": "chat", "status": 200, "ms": 12.5, "key_id": "key_a", "class_id": "forte"}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
names = st.sampled_from([*FACTS, "provider", "prompt_tokens", "completion_tokens", "fault"])
values = st.one_of(texts, st.integers(-(2**53), 2**53), st.floats(), st.booleans())


class Terminal(io.StringIO):
    """A stream that says of itself that it is a terminal."""

    def isatty(self) -> bool:
        return True


class Failing(io.StringIO):
    """A stream on a full disk, until there is room again."""

    is_full = True

    def write(self, text: str) -> int:
        if self.is_full:
            raise OSError
        return super().write(text)


def line_of(request_id: str, facts: dict[str, Any], *, is_short: bool) -> str:
    out = io.StringIO()
    log = make_log(out)
    if is_short:
        log.request({"request_id": request_id, **facts})
    else:
        log.info("request", request_id=request_id, **facts)
    line, after = out.getvalue().split("\n")
    assert after == ""
    return line


def without_time(line: str) -> str:
    return line.partition('"timestamp":')[0]


@settings(max_examples=60, deadline=None)
@given(texts, st.dictionaries(names, values))
def test_both_ways_write_the_same_line(request_id: str, facts: dict[str, Any]) -> None:
    """Whatever the facts are, the line is the same to the byte but for the moment, which is its last field."""
    short, long = (line_of(request_id, facts, is_short=is_short) for is_short in (True, False))
    assert without_time(short) == without_time(long)
    assert list(json.loads(short)) == list(json.loads(long))


def test_the_fields_of_a_line() -> None:
    """The id comes first, then the facts in their order, then what every line has."""
    line = line_of("req_1", FACTS, is_short=True)
    read = json.loads(line)
    assert list(read) == ["request_id", *FACTS, "event", "level", "timestamp"]
    del read["timestamp"]
    assert read == {"request_id": "req_1", **FACTS, "event": "request", "level": "info"}


def test_the_moment_of_a_line() -> None:
    """Both ways write the moment in one form: ISO, in UTC, with a Z."""
    before = datetime.now(UTC)
    for is_short in (True, False):
        moment = json.loads(line_of("req_1", FACTS, is_short=is_short))["timestamp"]
        assert moment.endswith("Z")
        assert before <= datetime.fromisoformat(moment) <= datetime.now(UTC)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 4_000_000_000_000_000_000))
def test_a_moment_is_written_as_iso_has_it(now_ns: int) -> None:
    """Whatever the moment, its text is that of the standard library, to the microsecond."""
    written = datetime.fromtimestamp(now_ns // 10**9, UTC).replace(microsecond=now_ns // 1000 % 10**6)
    assert _moment(now_ns) == written.isoformat(timespec="microseconds").replace("+00:00", "Z")


def test_a_terminal_has_the_same_facts() -> None:
    """For a person the line is written as every other line is."""
    out = Terminal()
    make_log(out).request({"request_id": "req_1", **FACTS})
    assert len(out.getvalue().splitlines()) == 1
    for said in ("request", "req_1", *FACTS, *map(str, FACTS.values())):
        assert said in out.getvalue()


async def test_lines_are_written_a_moment_later_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a running service lines of both ways wait for a moment, and then come all, in the order of their writing."""
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    log = make_log()
    for number in range(20):
        log.request({"request_id": f"req_{number}", **FACTS})
        log.info("between", number=number)
    assert out.getvalue() == ""
    async with asyncio.timeout(WAIT_S):
        while len(out.getvalue().splitlines()) < 40:  # noqa: ASYNC110 no event tells of it
            await asyncio.sleep(LINES_WAIT_S)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["request_id"] for line in lines[0::2]] == [f"req_{number}" for number in range(20)]
    assert [line["number"] for line in lines[1::2]] == list(range(20))


def test_without_a_loop_a_line_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the service runs, and after, nothing waits."""
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    make_log().request({"request_id": "req_1", **FACTS})
    assert len(out.getvalue().splitlines()) == 1


def test_after_the_loop_has_ended_lines_are_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that waited when its loop ended keeps no later one waiting."""
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    log = make_log()

    async def end_soon() -> None:
        log.request({"request_id": "req_1", **FACTS})

    asyncio.run(end_soon())
    log.request({"request_id": "req_2", **FACTS})
    assert [json.loads(line)["request_id"] for line in out.getvalue().splitlines()] == ["req_1", "req_2"]


def test_a_line_that_cannot_be_written_stops_nothing() -> None:
    """A full disk costs lines and no exception; when there is room again, lines are written again."""
    out = Failing()
    log = make_log(out)
    log.request({"request_id": "req_1", **FACTS})
    out.is_full = False
    log.request({"request_id": "req_2", **FACTS})
    assert json.loads(out.getvalue())["request_id"] == "req_2"


PROGRAM = """
import asyncio, multiprocessing, sys
from cadenza.observe import make_log

async def serve(log, ending):
    for number in range({lines}):
        log.request({{"request_id": f"req_{{number}}", "status": 200}})
        if number % 100 == 0:
            await asyncio.sleep(0)
    if ending == "exit":
        sys.exit(3)
    if ending == "error":
        raise LookupError

def work(ending):
    asyncio.run(serve(make_log(), ending))

if __name__ == "__main__":
    if sys.argv[1] == "worker":
        process = multiprocessing.get_context("spawn").Process(target=work, args=("return",))
        process.start()
        process.join()
    else:
        work(sys.argv[1])
"""


@pytest.mark.parametrize("ending", ["return", "exit", "error", "worker"])
def test_no_line_is_lost_at_the_end(tmp_path: Path, ending: str) -> None:
    """Every line is written, once and in order, however the process ends that wrote it a moment before."""
    program = tmp_path / "serving.py"
    program.write_text(textwrap.dedent(PROGRAM.format(lines=LINES)))
    ended = subprocess.run([sys.executable, program, ending], capture_output=True, text=True, timeout=60, check=False)
    lines = [json.loads(line) for line in ended.stderr.splitlines() if line.startswith("{")]
    assert [line["request_id"] for line in lines] == [f"req_{number}" for number in range(LINES)]
