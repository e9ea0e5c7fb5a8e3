"""The places of processes and of the machine: environment, command line, open files, core files, shared memory."""

from collections.abc import Sequence

from cadenza.audit.needles import Needles
from cadenza.audit.search import Searched


def search_processes(needles: Needles, pids: Sequence[int]) -> list[Searched]:
    """Environment, command line and open files, also deleted ones, of these processes and all that they started."""
    raise NotImplementedError


def search_machine(needles: Needles, since_s: float) -> list[Searched]:
    """Core files where the kernel puts them, shared memory and swap; only files that changed since (Unix time)."""
    raise NotImplementedError
