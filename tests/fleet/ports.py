"""Ports for servers that must listen on the same port again after a restart."""

import os
import random
import socket

FIRST, LAST = 12_000, 31_000  # below the ports that Linux gives to outgoing connections


def free_port() -> int:
    """A port that is free now and that no outgoing connection takes."""
    dice = random.Random(os.urandom(8))
    while True:
        port = dice.randrange(FIRST, LAST)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
