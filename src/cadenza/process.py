"""Settings of a whole process: the service, its workers and the model's child. A leaf: it imports nothing of ours."""

import ctypes
import resource
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4


def protect_memory() -> None:
    """Forbid core files, and on Linux keep other processes of this user out of the memory: it has prompts and keys.

    A program that is started from here keeps the limit, but must call this again to be protected from the others.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _set(PR_SET_DUMPABLE, 0)


def end_with_parent() -> None:
    """On Linux, have this process killed when the thread that started it ends, even if it hangs."""
    _set(PR_SET_PDEATHSIG, signal.SIGKILL)


def _set(option: int, value: int) -> None:
    """Call prctl, which fails for neither of these options; other systems do not have it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)
