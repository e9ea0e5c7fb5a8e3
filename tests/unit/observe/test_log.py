"""The log: one JSON object for each event, the same line by the fast path, no line lost, and no text of exceptions."""

import asyncio
import io
import json
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.observe.log import LINES_WAIT_S, RequestLine, loop_errors, make_log, places

WAIT_S = 60.0
SECRET = "what a client said"
LINES = 300
FACTS: dict[str, Any] = {"endpoint": "chat", "status": 200, "ms": 12, "key_id": "key_a", "class_id": "forte"}

texts = st.text(st.characters(exclude_categories=["Cs", "Z", "C"]), max_size=12)
names = st.sampled_from([*FACTS, "provider", "prompt_tokens", "completion_tokens", "fault"])
values = st.one_of(texts, st.integers(-(2**53), 2**53), st.floats(), st.booleans())


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


class FullDisk(io.StringIO):
    """A stream that cannot be written while the disk is full."""

    is_full = True

    def write(self, text: str) -> int:
        if self.is_full:
            raise OSError
        return super().write(text)


class FullTerminal(FullDisk, Terminal):
    """A terminal that cannot be written for a while."""


def line_of(request_id: str, facts: dict[str, Any], *, is_fast: bool) -> str:
    """The line of a request, by the fast path or by the ordinary one."""
    out = io.StringIO()
    log = make_log(out)
    if is_fast:
        log.request(RequestLine(request_id, **facts))
    else:
        log.info("request", request_id=request_id, **facts)
    line, after = out.getvalue().split("\n")
    assert after == ""
    return line


def in_order(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts in the order of a line."""
    return {name: facts[name] for name in RequestLine.__struct_fields__ if name in facts}


def without_time(line: str) -> str:
    return line.partition('"timestamp":')[0]


@given(texts, st.dictionaries(names, values).map(lambda facts: in_order({**FACTS, **facts})))
def test_the_fast_path_writes_the_same_line(request_id: str, facts: dict[str, Any]) -> None:
    """For any facts the two lines are equal byte by byte up to the timestamp, which is the last field."""
    fast, ordinary = (line_of(request_id, facts, is_fast=is_fast) for is_fast in (True, False))
    assert without_time(fast) == without_time(ordinary)
    assert list(json.loads(fast)) == list(json.loads(ordinary))


def test_a_terminal_shows_the_same_facts() -> None:
    """On a terminal the line of a request is one line of text, not JSON, with all of its facts."""
    out = Terminal()
    make_log(out).request(RequestLine("req_1", **FACTS))
    assert len(out.getvalue().splitlines()) == 1
    assert not out.getvalue().startswith("{")
    for fact in ("request", "req_1", *FACTS, *map(str, FACTS.values())):
        assert fact in out.getvalue()


async def test_lines_are_written_together_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a running event loop lines of both paths are collected for a moment and keep their order."""
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    log = make_log()
    for number in range(20):
        log.request(RequestLine(f"req_{number}", **FACTS))
        log.info("between", moves=number)
    assert out.getvalue() == ""
    async with asyncio.timeout(WAIT_S):
        while len(out.getvalue().splitlines()) < 40:  # noqa: ASYNC110 the stream has no event to wait for
            await asyncio.sleep(LINES_WAIT_S)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["request_id"] for line in lines[0::2]] == [f"req_{number}" for number in range(20)]
    assert [line["moves"] for line in lines[1::2]] == list(range(20))


async def test_the_writer_starts_with_the_first_line() -> None:
    """Its thread runs before a line is handed over: some Pythons start no thread while they end."""
    running = set(threading.enumerate())
    make_log().info("draining")
    assert [thread.name for thread in set(threading.enumerate()) - running] == ["cadenza-log"]


def test_without_a_loop_a_line_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the event loop runs and after it has ended, no line is collected."""
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    make_log().request(RequestLine("req_1", **FACTS))
    assert len(out.getvalue().splitlines()) == 1


def test_what_recurs_is_one_line_a_minute() -> None:
    """The first time it is written, with the number of times; soon after it is not."""
    out = io.StringIO()
    log = make_log(out)
    for _ in range(3):
        log.repeated("again", reason="full")
    [line] = map(json.loads, out.getvalue().splitlines())
    assert (line["event"], line["times"], line["level"]) == ("again", 1, "warning")


def test_a_full_disk_costs_lines_and_raises_nothing() -> None:
    """A line that cannot be written is dropped; once there is room again, one line says how many are missing."""
    out = FullDisk()
    log = make_log(out)
    log.request(RequestLine("req_1", **FACTS))
    log.request(RequestLine("req_2", **FACTS))
    out.is_full = False
    log.request(RequestLine("req_3", **FACTS))
    log.request(RequestLine("req_4", **FACTS))
    third, missing, fourth = map(json.loads, out.getvalue().splitlines())
    assert (third["request_id"], fourth["request_id"]) == ("req_3", "req_4")
    assert (missing["event"], missing["level"], missing["dropped"]) == ("log lines were dropped", "warning", 2)
    assert log.dropped == 2


def test_every_event_is_one_json_object_on_one_line() -> None:
    """Off a terminal each line has the event, the level, the time and its fields."""
    out = io.StringIO()
    log = make_log(out)
    log.info("request", reason="r1\nr2", status=200)
    log.error("internal error", places=["ValueError"])
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert first.pop("timestamp").endswith("Z")
    assert first == {"event": "request", "level": "info", "reason": "r1\nr2", "status": 200}
    assert (second["level"], second["places"]) == ("error", ["ValueError"])


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


@pytest.mark.parametrize("ending", ["exit", "error", "worker"])
def test_no_line_is_lost_at_the_end(tmp_path: Path, ending: str) -> None:
    """Every collected line is written, once and in order, however the process ends."""
    program = tmp_path / "serving.py"
    program.write_text(textwrap.dedent(PROGRAM.format(lines=LINES)))
    ended = subprocess.run([sys.executable, program, ending], capture_output=True, text=True, timeout=60, check=False)
    lines = [json.loads(line) for line in ended.stderr.splitlines() if line.startswith("{")]
    assert [line["request_id"] for line in lines] == [f"req_{number}" for number in range(LINES)]


@pytest.mark.parametrize("is_error_known", [True, False])
async def test_errors_of_the_event_loop_have_no_text(is_error_known: bool) -> None:
    """An error that no task awaits is one line of ours with its places; asyncio's own line would have its text."""
    out = io.StringIO()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(loop_errors(make_log(out)))
    loop.call_exception_handler({"message": SECRET} | ({"exception": caught(0)} if is_error_known else {}))
    [line] = map(json.loads, out.getvalue().splitlines())
    assert (line["event"], line["level"]) == ("internal error", "error")
    assert line["places"][0] == ("ValueError" if is_error_known else "event loop")
    assert SECRET not in out.getvalue()


def fail(depth: int) -> None:
    if depth:
        fail(depth - 1)
    raise ValueError(SECRET)


def caught(depth: int) -> ValueError:
    """An exception that was raised so many frames deeper."""
    with pytest.raises(ValueError, match=SECRET) as caught_error:
        fail(depth)
    return caught_error.value


def test_places_name_the_type_and_the_frames() -> None:
    """The exception's type, then file, line and function of each frame, the innermost last."""
    kind, *frames = places(caught(2))
    assert kind == "ValueError"
    assert [frame.split(" ")[-1] for frame in frames] == ["caught", "fail", "fail", "fail"]
    assert all("test_log.py:" in frame for frame in frames)


def test_places_never_contain_the_text() -> None:
    """They have neither the text of the exception nor that of its cause, its notes or its source lines."""
    cause = caught(0)
    cause.add_note(SECRET)
    try:
        raise KeyError(SECRET) from cause
    except KeyError as error:
        said = " ".join(places(error))
    assert SECRET not in said
    assert said.startswith("KeyError ")
