"""Lets a test kill the process at a chosen step of a request."""

import os
import signal


class FaultPoint:
    """Kills the process at one named step: `held`, or `written:3` for the third time that `written` is reached.

    It is armed only by the environment. Not armed, a call costs one comparison.
    """

    def __init__(self, armed: str | None = None) -> None:
        self._name, _, times = (armed or "").partition(":")
        self._left = int(times or 1)

    def reach(self, name: str) -> None:
        if name == self._name:
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)

    __call__ = reach
