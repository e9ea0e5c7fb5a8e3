"""The error tree: each error's status and type, the one error object, and the headers about a retry."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.errors import PAUSE_S_MAX, RateLimited, error_headers, render_error


@given(st.floats(0, 1e6))
def test_429_never_asks_for_a_retry_too_early(wait_s: float) -> None:
    """Both headers are rounded up from the wait, to a whole second and to a whole millisecond."""
    headers = dict(error_headers(RateLimited("m", wait_s)))
    seconds, milliseconds = int(headers[b"retry-after"]), int(headers[b"retry-after-ms"])
    assert wait_s * 1000 - 0.001 <= milliseconds <= wait_s * 1000 + 1
    assert milliseconds <= seconds * 1000 < milliseconds + 1000
    assert RateLimited("m", wait_s).pause_s == min(milliseconds / 1000, PAUSE_S_MAX)


@given(st.text(), st.text())
def test_the_error_object_has_one_shape(message: str, type_: str) -> None:
    """For any text the object is `error` with a message and a type, and nothing else."""
    assert msgspec.json.decode(render_error(message, type_)) == {"error": {"message": message, "type": type_}}
