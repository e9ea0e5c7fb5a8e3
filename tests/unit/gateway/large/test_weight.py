"""Whether a body is light takes time that grows as its length does, and what it finds is what a parser would."""

import json
import time
from collections.abc import Callable

import pytest

from cadenza.core.errors import InvalidRequest
from cadenza.gateway.large.weight import COMMAS_MAX, LIGHT_BYTES, check_surrogates, is_light

COMMAS = b"," * (COMMAS_MAX + 1)
TIMES_MAX = 6.0  # as long, for four times the bytes
TRIES = 7


def seconds(check: Callable[[bytes], object], body: bytes) -> float:
    """The least CPU time of some tries."""
    best_s = 1e9
    for _ in range(TRIES):
        began_s = time.thread_time()
        check(body)
        best_s = min(best_s, time.thread_time() - began_s)
    return best_s


@pytest.mark.parametrize("check", [is_light, check_surrogates])
@pytest.mark.parametrize(
    "part",
    [b'\\"', b'"', b"\\", b'"\\\\"', b'\\\\"', b'"a",', b"a", b"\\ud83d\\ude00", b"\\u00e9", b"\\ud83d\\\\"],
    ids=repr,
)
def test_the_time_grows_as_the_body_does(check: Callable[[bytes], object], part: bytes) -> None:
    """Four times the bytes take no more than six times as long, whatever is repeated in a string that never closes."""

    def body(size: int) -> bytes:
        return b'{"a":"\\ud83d\\ude00' + part * (size // len(part)) + COMMAS

    def checked(given: bytes) -> None:
        try:
            check(given)
        except InvalidRequest:
            """It may be found at once."""

    base_s = max(seconds(checked, body(2 * LIGHT_BYTES)), 1e-4)
    assert seconds(checked, body(8 * LIGHT_BYTES)) < TIMES_MAX * base_s


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (["a, b", 'c," d', "\\", "\\\\,", ",,,"] * 200 + ["," * LIGHT_BYTES], True),
        (["," * LIGHT_BYTES], True),
        (["\\"] * LIGHT_BYTES, False),
        (['"'] * LIGHT_BYTES, False),
        ([1] * LIGHT_BYTES, False),
        ([1, "," * LIGHT_BYTES] + [0] * (COMMAS_MAX - 2), True),
        ([1, "," * LIGHT_BYTES] + [0] * COMMAS_MAX, False),
    ],
    ids=["escapes", "text", "backslashes", "quotes", "numbers", "few numbers", "a number too many"],
)
def test_commas_of_strings_do_not_count(value: list[object], *, expected: bool) -> None:
    """A body is light by its values, however many commas, quotes and backslashes its texts have."""
    assert is_light(json.dumps(value).encode()) is expected


@pytest.mark.parametrize(
    "text", [r"\ud83d\ude00", r"\\ud83d", r"\\\ud83d\uDE00", r"\uD83D\ude00\ud83d\ude00", r"\u00e9"]
)
def test_whole_pairs_are_accepted(text: str) -> None:
    """Both halves of a surrogate pair, one after the other, are a character; after a backslash they are text."""
    check_surrogates(f'{{"a":"{text}"}}'.encode())


@pytest.mark.parametrize(
    "text",
    [
        *(r"\ud83d", r"\ude00", r"\ude00\ud83d", r"\ud83d\\ude00", r"\ud83d\\\ude00", r"\ud83da\ude00"),
        *(r"\ud83d\ud83d\ude00", r"\ud83d\ude00\ude00", r"\\\ud83d", r"\ud83d\u0041", r"\ud83d\uD8ff"),
    ],
)
def test_half_a_pair_is_refused(text: str) -> None:
    """Each half without the other is 400."""
    with pytest.raises(InvalidRequest, match="half of a surrogate pair"):
        check_surrogates(f'{{"a":"{text}"}}'.encode())
