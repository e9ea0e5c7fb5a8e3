"""Ports for servers that must listen on the same port again after a restart."""

import functools
import itertools
import os
import random
import socket
from collections.abc import Iterator

from tests.workers import WORKER

FIRST, LAST = 12_000, 31_000  # below the ports that Linux gives to outgoing connections
WORKERS = 16


def free_port() -> int:
    """A port that is free now, that no outgoing connection takes, and that no other caller was given."""
    for port in _own_ports():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError


@functools.cache
def _own_ports() -> Iterator[int]:
    """The ports of this test process, each once before any comes again."""
    worker = int(os.environ.get(WORKER, "0")) % WORKERS
    own = range(FIRST + worker, LAST, WORKERS)
    first = random.Random(os.urandom(8)).randrange(len(own))
    return itertools.cycle([*own[first:], *own[:first]])
