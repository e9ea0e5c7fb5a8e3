"""The structured log: JSON, or readable text on a terminal. Counts and metadata only, never content: see fields.py.

Stance on failure: the log never stops the service. A line that cannot be written is dropped and counted.
"""

import asyncio
import atexit
import contextlib
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Literal, TextIO

import msgspec
from msgspec import UNSET, UnsetType

from cadenza.observe.fields import WORD, keep_known

REPEATED_S = 60.0
LINES_WAIT_S = 0.1
FLUSH_S = 1.0  # how long the end of the process, or a line outside of an event loop, waits for a slow stream
DROPPED = "log lines were dropped"
BYTES_MAX = 1024 * 1024  # a second or more of lines, at thousands of requests a second
RETRY_S = 0.05  # a stream in non-blocking mode that is full
FLUSH_SLICES = 20
COLORS = {"info": "\x1b[32m", "warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31m"}  # of terminals
COLOR_END = "\x1b[0m"

RenderDropped = Callable[[int], bytes]
Level = Literal["info", "warning", "error", "critical"]
QueuedText = tuple[bytes, int]  # with its number of lines


class RequestLine(msgspec.Struct, frozen=True):
    """The line that every request writes. Fields that are not set are left out."""

    request_id: str
    endpoint: str
    status: int
    ms: int
    key_id: str | UnsetType = UNSET
    completion_id: str | UnsetType = UNSET  # and the next three: of a request whose credit was held
    class_id: str | UnsetType = UNSET
    version: int | UnsetType = UNSET
    provider: str | UnsetType = UNSET
    prompt_tokens: int | UnsetType = UNSET
    completion_tokens: int | UnsetType = UNSET
    fault: str | UnsetType = UNSET
    cause: str | UnsetType = UNSET
    event: str = "request"
    level: str = "info"
    timestamp: datetime = msgspec.field(default_factory=partial(datetime.now, UTC))


class Log:
    """Writes each event as one line, with those of its fields that are known (fields.py)."""

    def __init__(self, lines: "Lines") -> None:
        self._lines = lines
        self._repeated: dict[str, tuple[float, int]] = {}  # by event: when its last line was written, and how many not

    @property
    def dropped(self) -> int:
        """How many lines could not be written so far."""
        return self._lines.dropped

    def info(self, event: str, **fields: object) -> None:
        self.log("info", event, **fields)

    def warning(self, event: str, **fields: object) -> None:
        self.log("warning", event, **fields)

    def repeated(self, event: str, **fields: object) -> None:
        """A warning that may recur many times a second: one line a minute, with how many times since the last one."""
        now_s = time.monotonic()
        written_s, unwritten = self._repeated.get(event, (-math.inf, 0))
        if now_s - written_s < REPEATED_S:
            self._repeated[event] = (written_s, unwritten + 1)
            return
        self._repeated[event] = (now_s, 0)
        self.warning(event, **fields, times=unwritten + 1)

    def error(self, event: str, **fields: object) -> None:
        self.log("error", event, **fields)

    def critical(self, event: str, **fields: object) -> None:
        self.log("critical", event, **fields)

    def request(self, line: RequestLine) -> None:
        """The same line as `info("request", …)`, whose fields are all known. For JSON it takes 2 µs."""
        if self._lines.is_json:
            self._lines.add(msgspec.json.encode(line))
        else:
            self._lines.add(_text_of(msgspec.to_builtins(line)))

    def log(self, level: Level, event: str, **fields: object) -> None:
        self._lines.add(_render(level, event, fields, is_json=self._lines.is_json))


def make_log(stream: TextIO | None = None) -> Log:
    """Readable text on a terminal, JSON everywhere else. On standard error, lines are buffered for a moment."""
    return Log(Lines(stream or sys.stderr, LINES_WAIT_S if stream is None else 0.0))


def _render(level: Level, event: str, fields: dict[str, object], *, is_json: bool) -> bytes:
    known = keep_known({**fields, "event": event})
    line = {**known, "level": level, "timestamp": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"}
    return msgspec.json.encode(line) if is_json else _text_of(line)


def _text_of(line: dict[str, object]) -> bytes:
    """The line for a terminal: time, level and event, then the fields by name."""
    fields = {name: value for name, value in line.items() if name not in {"event", "level", "timestamp"}}
    named = " ".join(f"{name}={_value(fields[name])}" for name in sorted(fields))
    level = str(line["level"])
    text = f"{line['timestamp']} [{COLORS[level]}{level:<8}{COLOR_END}] {line['event']:<30} {named}"
    return text.rstrip().encode(errors="backslashreplace")


def _value(value: object) -> str:
    """A text with blanks or control characters is quoted."""
    return value if isinstance(value, str) and WORD.fullmatch(value) and value.isprintable() else repr(value)


class LogWriter:
    """Writes the log in a thread of its own, so that a full pipe or a slow disk holds up no request.

    No more than BYTES_MAX wait to be written. Lines beyond that, and lines that the stream refuses, are dropped and
    counted; once the stream takes lines again, one line says how many are missing. Before `start`, and without
    `in_thread`, `flush` writes in the thread of its caller.
    """

    def __init__(self, stream: TextIO, render_dropped: RenderDropped, *, in_thread: bool = True) -> None:
        self.dropped = 0  # lines
        self.is_stuck = False  # a flush was given up, and nothing was written since
        self._stream = stream
        self._file = _file_number(stream)
        self._render_dropped = render_dropped
        self._in_thread = in_thread
        self._texts: SimpleQueue[QueuedText | threading.Event] = SimpleQueue()
        self._counts = threading.Lock()  # for the next two, and for `dropped`
        self._waiting_bytes = 0  # including what is being written
        self._unreported = 0  # dropped lines that the log does not mention yet
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, once. Python 3.12.0 to 3.12.2 starts none in `atexit`: then there is no thread."""
        if self._thread is None and self._in_thread:
            thread = threading.Thread(target=self._write_forever, name="cadenza-log", daemon=True)
            with contextlib.suppress(RuntimeError):
                thread.start()
                self._thread = thread

    def put(self, lines: list[bytes]) -> None:
        """Queue lines to be written; never waits."""
        text = b"\n".join([*lines, b""])
        with self._counts:
            if self._waiting_bytes + len(text) > BYTES_MAX:
                self._drop(len(lines))
                return
            self._waiting_bytes += len(text)
        self._texts.put((text, len(lines)))

    def flush(self, within_s: float) -> None:
        """Return once everything is written, or after `within_s`.

        The time is counted in slices, so that a machine that is suspended for a while loses one slice only.
        """
        is_reached = threading.Event()
        self._texts.put(is_reached)
        with contextlib.suppress(Empty):
            while self._thread is None:
                self._write_next(self._texts.get_nowait())
        waits = (self._thread is None or is_reached.wait(within_s / FLUSH_SLICES) for _ in range(FLUSH_SLICES))
        self.is_stuck = not any(waits)

    def _write_forever(self) -> None:
        while True:
            self._write_next(self._texts.get())

    def _write_next(self, queued: QueuedText | threading.Event) -> None:
        if isinstance(queued, threading.Event):
            queued.set()
            return
        text, lines = queued
        is_written = self._write(text)
        with self._counts:
            self._waiting_bytes -= len(text)
            unreported = self._unreported if is_written else 0
            self._unreported -= unreported
            if not is_written:
                self._drop(lines)
        if is_written:
            self.is_stuck = False
        if unreported and not self._write(self._render_dropped(unreported) + b"\n"):
            with self._counts:
                self._unreported += unreported

    def _drop(self, lines: int) -> None:
        self.dropped += lines
        self._unreported += lines

    def _write(self, text: bytes) -> bool:
        """Write all of it, however long that takes. Bypasses the stream's buffer, whose lock could block the exit."""
        with contextlib.suppress(OSError, ValueError):  # the disk is full, the pipe or the file is closed
            if self._file is None:
                self._stream.write(text.decode())
                self._stream.flush()
                return True
            while text:
                try:
                    text = text[os.write(self._file, text) :]
                except BlockingIOError:
                    time.sleep(RETRY_S)
            return True
        return False


class Lines:
    """Hands the log's lines to the writer. With `wait_s` they are collected for that time and written together.

    Outside of an event loop a line is written at once: the caller waits for it, but not for a stream that is stuck.
    """

    def __init__(self, stream: TextIO, wait_s: float = 0.0) -> None:
        self.is_json = not stream.isatty()
        self._writer = LogWriter(stream, self._render_dropped, in_thread=wait_s > 0)
        self._wait_s = wait_s
        self._waiting: list[bytes] = []
        self._loop: asyncio.AbstractEventLoop | None = None  # it has a timer that hands the lines over
        atexit.register(self._close)

    @property
    def dropped(self) -> int:
        return self._writer.dropped

    def add(self, line: bytes) -> None:
        self._waiting.append(line)
        if self._loop and not self._loop.is_closed():
            return
        self._loop = None
        self._writer.start()
        if self._wait_s:
            with contextlib.suppress(RuntimeError):  # no event loop runs
                self._loop = asyncio.get_running_loop()
                self._loop.call_later(self._wait_s, self._hand_over)
        if not self._loop:
            self._hand_over()
            if not self._writer.is_stuck:
                self._writer.flush(FLUSH_S)

    def _hand_over(self) -> None:
        self._loop = None
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._writer.put(waiting)

    def _close(self) -> None:
        self._hand_over()
        self._writer.flush(FLUSH_S)

    def _render_dropped(self, count: int) -> bytes:
        return _render("warning", DROPPED, {"dropped": count}, is_json=self.is_json)


def loop_errors(log: Log) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object]:
    """For errors that no task awaits. asyncio would write their texts, and wait while standard error is stuck."""

    def report(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        log.error("internal error", places=places(error) if error else ["event loop"])

    return report


def places(error: BaseException) -> list[str]:
    """The type and the frames of an exception, without its text, which may quote what a client sent."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{type(error).__name__}", *(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames[-8:])]


def _file_number(stream: TextIO) -> int | None:
    """None for a stream in memory."""
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None
