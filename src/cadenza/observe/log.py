"""The structured log: JSON, or readable text on a terminal. Counts and metadata only, never content.

Stance on failure: the log never stops the service. A line that cannot be written is dropped and counted.
"""

import asyncio
import atexit
import contextlib
import logging
import sys
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TextIO

import msgspec
import structlog

from cadenza.observe.log_writer import LogWriter

LINES_WAIT_S = 0.02
FLUSH_S = 1.0  # how long the end of the process, or a line outside of an event loop, waits for a slow stream
DROPPED = "log lines were dropped"


class Log(structlog.make_filtering_bound_logger(logging.INFO)):  # type: ignore[misc]  # a class made at run time
    """The log, with a fast path for the line that every request writes."""

    def request(self, facts: dict[str, str | float]) -> None:
        """The same line as `info("request", …)`; for JSON it takes 3 µs instead of 11."""
        if self._logger.is_json:
            facts["event"], facts["level"], facts["timestamp"] = "request", "info", format_time(time.time_ns())
            self._logger.write(msgspec.json.encode(facts).decode())
        else:
            self.info("request", **facts)

    @property
    def dropped(self) -> int:
        """How many lines could not be written so far."""
        dropped: int = self._logger.dropped
        return dropped


def make_log(stream: TextIO | None = None) -> Log:
    """Readable text on a terminal, JSON everywhere else. On standard error, lines are buffered for a moment."""
    lines = Lines(stream or sys.stderr, LINES_WAIT_S if stream is None else 0.0)
    last: structlog.typing.Processor = (
        structlog.processors.JSONRenderer(_encode) if lines.is_json else structlog.dev.ConsoleRenderer()
    )
    log: Log = structlog.wrap_logger(
        lines,
        processors=[structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso", utc=True), last],
        wrapper_class=Log,
    ).bind()
    return log


def _encode(line: dict[str, Any], **_: object) -> str:
    return msgspec.json.encode(line, enc_hook=str).decode()


@lru_cache(maxsize=2)
def _second(now_s: int) -> str:
    return datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def format_time(now_ns: int) -> str:
    """ISO 8601 in UTC, to the microsecond. It takes 1.2 µs; datetime takes 2.9."""
    now_s, rest_ns = divmod(now_ns, 1_000_000_000)
    return f"{_second(now_s)}.{rest_ns // 1000:06d}Z"


class Lines:
    """Hands the log's lines to the writer. With `wait_s` they are collected for that time and written together.

    Outside of an event loop a line is written at once: the caller waits for it, but not for a stream that is stuck.
    """

    def __init__(self, stream: TextIO, wait_s: float = 0.0) -> None:
        self.is_json = not stream.isatty()
        self._writer = LogWriter(stream, self._render_dropped, in_thread=wait_s > 0)
        self._wait_s = wait_s
        self._waiting: list[str] = []
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        atexit.register(self._close)

    @property
    def dropped(self) -> int:
        return self._writer.dropped

    def write(self, line: str) -> None:
        self._waiting.append(line)
        if self._will_be_written():
            return
        if self._wait_s:
            with contextlib.suppress(RuntimeError):  # no event loop runs
                self._loop = asyncio.get_running_loop()
                self._timer = self._loop.call_later(self._wait_s, self._hand_over)
        if not self._will_be_written():
            self._hand_over()
            self._writer.flush(0.0 if self._writer.is_stuck else FLUSH_S)

    debug = info = warning = error = critical = write  # structlog calls the method of the line's level

    def _will_be_written(self) -> bool:
        return self._timer is not None and self._loop is not None and not self._loop.is_closed()

    def _hand_over(self) -> None:
        self._timer = None
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._writer.put(waiting)

    def _close(self) -> None:
        self._hand_over()
        self._writer.flush(FLUSH_S)

    def _render_dropped(self, count: int) -> str:
        now = format_time(time.time_ns())
        if not self.is_json:
            return f"{now} [warning  ] {DROPPED} dropped={count}"
        return _encode({"dropped": count, "event": DROPPED, "level": "warning", "timestamp": now})


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
