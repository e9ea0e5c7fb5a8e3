"""Whether a body can be parsed on the event loop: by what it takes, not only by its length."""

import re

from cadenza.core.errors import InvalidRequest

LIGHT_BYTES, COMMAS_MAX = 256 * 1024, 16 * 1024
STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# A backslash and what it escapes, or a whole surrogate pair, or text without a backslash.
WHOLE_SURROGATES = re.compile(
    rb"(?:[^\\]++|\\[^u]|\\u(?![dD][89a-fA-F])|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*+"
)


class TooManySteps(Exception):
    """To check the body would hold up the event loop."""


def is_light(body: bytes | bytearray) -> bool:
    """Whether the JSON has few values, however much text: then it takes the decoder some milliseconds at most.

    Between two values there is a comma, and what is nested without one is skipped.
    """
    if len(body) <= LIGHT_BYTES or body.count(b",") <= COMMAS_MAX:
        return True
    has_few_strings = body.count(b'"') - body.count(b'\\"') <= 2 * COMMAS_MAX
    return has_few_strings and STRING.sub(b"", body).count(b",") <= COMMAS_MAX


def check_surrogates(body: bytes | bytearray, *, is_bounded: bool = False) -> None:
    """400 if a string has half of a surrogate pair.

    Escaped surrogates take 40 ns per byte: TooManySteps if there is one in a long body, and steps are bounded.
    """
    if body.find(b"\\") < 0 or not SURROGATE.search(body):
        return
    if is_bounded and len(body) > LIGHT_BYTES:
        raise TooManySteps
    if not WHOLE_SURROGATES.fullmatch(body):
        raise InvalidRequest("The body is not valid JSON: a string has half of a surrogate pair.")
