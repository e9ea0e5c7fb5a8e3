"""A step of a request at which a test can have the process killed."""

import os
import signal


class FaultPoint:
    """A named step of a request at which a test may have the process killed: `held`, or `written:3` for its third time.

    Armed by the environment alone; where it is not, a call of it is a comparison.
    """

    def __init__(self, armed: str | None = None) -> None:
        self._name, _, times = (armed or "").partition(":")
        self._left = int(times or 1)

    def __call__(self, name: str) -> None:
        if name == self._name:
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)
