"""Writes the log in a thread of its own, so that a full pipe or a slow disk holds up no request.

Invariants: no more than BYTES_MAX wait to be written. Lines beyond that, and lines that the stream refuses, are
dropped and counted; once the stream takes lines again, one line says how many are missing.
"""

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

BYTES_MAX = 1024 * 1024  # a second or more of lines, at thousands of requests a second
RETRY_S = 0.05  # a stream in non-blocking mode that is full
FLUSH_SLICES = 20

RenderDropped = Callable[[int], str]


class LogWriter:
    """A bounded queue of text, and the thread that empties it. The thread begins with the first text.

    Without `in_thread`, `flush` writes in the thread of its caller.
    """

    def __init__(self, stream: TextIO, render_dropped: RenderDropped, *, in_thread: bool = True) -> None:
        self.dropped = 0  # lines
        self.is_stuck = False  # a flush was given up, and nothing was written since
        self._stream = stream
        self._file = _file_number(stream)
        self._render_dropped = render_dropped
        self._in_thread = in_thread
        self._texts: deque[tuple[bytes, int]] = deque()  # each with its number of lines
        self._waiting_bytes = 0  # including what is being written
        self._unreported = 0  # dropped lines that the log does not mention yet
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, lines: list[str]) -> None:
        """Queue lines to be written; never waits."""
        text = ("\n".join(lines) + "\n").encode(errors="backslashreplace")
        with self._changed:
            if self._waiting_bytes + len(text) > BYTES_MAX:
                self._drop(len(lines))
                return
            self._texts.append((text, len(lines)))
            self._waiting_bytes += len(text)
            self._changed.notify_all()
        if self._thread is None and self._in_thread:
            self._thread = threading.Thread(target=self._write_forever, name="cadenza-log", daemon=True)
            self._thread.start()

    def flush(self, within_s: float) -> None:
        """Return once everything is written, or after `within_s`.

        The time is counted in slices: a machine that stops for a while uses up one of them, and the rest is left.
        """
        while self._texts and not self._in_thread:
            self._write_next()
        with self._changed:
            waits = (self._changed.wait_for(self._is_done, within_s / FLUSH_SLICES) for _ in range(FLUSH_SLICES))
            self.is_stuck = not any(waits)

    def _is_done(self) -> bool:
        return not self._waiting_bytes

    def _write_forever(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._texts)
            self._write_next()

    def _write_next(self) -> None:
        text, lines = self._texts.popleft()
        is_written = self._write(text)
        with self._changed:
            self._waiting_bytes -= len(text)
            unreported = self._unreported if is_written else 0
            self._unreported -= unreported
            self.is_stuck = self.is_stuck and not is_written
            if not is_written:
                self._drop(lines)
            self._changed.notify_all()
        if unreported and not self._write((self._render_dropped(unreported) + "\n").encode()):
            with self._changed:
                self._unreported += unreported

    def _drop(self, lines: int) -> None:
        self.dropped += lines
        self._unreported += lines

    def _write(self, text: bytes) -> bool:
        """Write all of it, however long that takes. Past the stream's buffer, which locks: the process may end."""
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


def _file_number(stream: TextIO) -> int | None:
    """None for a stream in memory."""
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None
