"""Whether a body can be parsed on the event loop: by what it takes, not only by its length."""

import math
import re

from cadenza.core.errors import InvalidRequest

LIGHT_BYTES, COMMAS_MAX = 256 * 1024, 16 * 1024
ESCAPES_MAX = 64 * 1024  # each takes 40 ns, until the body is sent
HIGH, LOW = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
HALF_PAIR = re.compile(rb"\\u[dD](?:[89abAB](?![0-9a-fA-F]{2}%b)|[c-fC-F](?<!%b\\u[dD][c-fC-F]))" % (LOW, HIGH))


class TooManySteps(Exception):
    """To check the body would hold up the event loop."""


class Steps:
    """How many steps the event loop may still take for a body. One is about 2 µs: a message, or half a part."""

    def __init__(self, most: float) -> None:
        self._left = most

    def spend(self, count: int) -> None:
        """TooManySteps if fewer are left."""
        self._left -= count
        if self._left < 0:
            raise TooManySteps


UNBOUNDED = Steps(math.inf)


def is_light(body: bytes | bytearray) -> bool:
    """Whether the JSON has few values, however much text: then it takes the decoder some milliseconds at most.

    Between two values there is a comma, and what is nested without one is skipped. Commas of strings do not count.
    """
    if len(body) <= LIGHT_BYTES:
        return True
    if body.count(b"\\") > ESCAPES_MAX:
        return False
    if body.count(b",") <= COMMAS_MAX:
        return True
    pieces = body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"', 2 * COMMAS_MAX)  # every other one is a string
    return len(pieces) <= 2 * COMMAS_MAX and b"".join(pieces[::2]).count(b",") <= COMMAS_MAX


def check_surrogates(body: bytes | bytearray) -> None:
    """400 if a string has half of a surrogate pair."""
    if b"\\u" in body and HALF_PAIR.search(body.replace(b"\\\\", b"//")):
        raise InvalidRequest("The body is not valid JSON: a string has half of a surrogate pair.")
