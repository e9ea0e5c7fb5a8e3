"""A terminal that is drawn again and again: an alternate screen, keys without Enter, and a new size at once."""

import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence

from cadenza.cli.top.view import COLUMNS, LINES

OPEN = "\x1b[?1049h\x1b[?25l"  # the other screen, without a cursor
CLOSE = "\x1b[?25h\x1b[?1049l"
HOME, CLEAR_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[2K", "\x1b[J"
KEY_BYTES = 16


class Screen:
    """Draws lines, and waits for a key, a new size or the end of a time."""

    def __init__(self, wakeup: int) -> None:
        self._wakeup = wakeup

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines of the terminal, whatever COLUMNS and LINES were when the command began."""
        found = os.get_terminal_size(sys.stdout.fileno())
        return found.columns or COLUMNS, found.lines or LINES

    def draw(self, lines: Sequence[str]) -> None:
        cleared = [CLEAR_LINE + line for line in lines]  # first: after a full line, the cursor stands on its last cell
        sys.stdout.write(HOME + "\r\n".join(cleared) + REST_OF_SCREEN)
        sys.stdout.flush()

    def wait(self, time_s: float) -> str:
        """The key that was pressed; "resize" after a change of size; "" at the end of the time."""
        keyboard = sys.stdin.fileno()
        ready = select.select([keyboard, self._wakeup], [], [], time_s)[0]
        if self._wakeup in ready:
            os.read(self._wakeup, KEY_BYTES)
            return "resize"
        if keyboard in ready:
            return os.read(keyboard, KEY_BYTES).decode(errors="replace") or "q"  # the terminal is gone
        return ""


@contextlib.contextmanager
def open_screen() -> Iterator[Screen]:
    """The terminal for the block; afterwards it is as it was."""
    before = termios.tcgetattr(sys.stdin.fileno())
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    handler = signal.signal(signal.SIGWINCH, lambda _number, _frame: None)
    waker = signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
    try:
        tty.setcbreak(sys.stdin.fileno())
        sys.stdout.write(OPEN)
        yield Screen(ours)
    finally:
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGWINCH, handler)
        sys.stdout.write(CLOSE)
        sys.stdout.flush()
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, before)
        os.close(ours)
        os.close(theirs)
