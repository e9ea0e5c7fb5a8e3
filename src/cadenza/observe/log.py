"""The structured log: JSON, or readable text on a terminal. Counts and metadata only, never content.

Stance on failure: the log never stops the service. A line that cannot be written is dropped.
"""

import asyncio
import atexit
import contextlib
import logging
import sys
import time
import traceback
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TextIO

import msgspec
import structlog

LINES_WAIT_S = 0.02


class Log(structlog.make_filtering_bound_logger(logging.INFO)):  # type: ignore[misc]  # a class made at run time
    """The log, with a fast path for the line that every request writes."""

    def request(self, facts: dict[str, str | float]) -> None:
        """The same line as `info("request", …)`; for JSON it takes 3 µs instead of 11."""
        if self._logger.is_json:
            facts["event"], facts["level"], facts["timestamp"] = "request", "info", format_time(time.time_ns())
            self._logger.write(msgspec.json.encode(facts).decode())
        else:
            self.info("request", **facts)


def make_log(stream: TextIO | None = None) -> Log:
    """Readable text on a terminal, JSON everywhere else. On standard error, lines are buffered for a moment."""
    out = stream or sys.stderr
    lines = Lines(out, LINES_WAIT_S if stream is None else 0.0)
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
    """Writes the log's lines to a stream. Lines are dropped if the disk is full or the pipe is closed.

    With `wait_s` they are collected for that time and written together.
    """

    def __init__(self, stream: TextIO, wait_s: float = 0.0) -> None:
        self.is_json = not stream.isatty()
        self._stream = stream
        self._wait_s = wait_s
        self._waiting: list[str] = []
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        atexit.register(self._write)

    def write(self, line: str) -> None:
        self._waiting.append(line)
        if self._wait_s and not self._will_be_written():
            with contextlib.suppress(RuntimeError):  # no event loop runs
                self._loop = asyncio.get_running_loop()
                self._timer = self._loop.call_later(self._wait_s, self._write)
        if not self._will_be_written():
            self._write()

    debug = info = warning = error = critical = write  # structlog calls the method of the line's level

    def _will_be_written(self) -> bool:
        return self._timer is not None and self._loop is not None and not self._loop.is_closed()

    def _write(self) -> None:
        self._timer = None
        waiting, self._waiting = self._waiting, []
        if waiting:
            with contextlib.suppress(OSError, ValueError):
                self._stream.write("\n".join(waiting) + "\n")
                self._stream.flush()


def places(error: BaseException) -> list[str]:
    """The type and the frames of an exception, without its text, which may quote what a client sent."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{type(error).__name__}", *(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames[-8:])]
