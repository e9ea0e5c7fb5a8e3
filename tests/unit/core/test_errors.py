"""The error tree: each error's status and type, the one error object, and the headers about a retry."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.errors import (
    BodyTimedOut,
    CadenzaError,
    Ending,
    Forbidden,
    InsufficientCredit,
    Internal,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    PayloadTooLarge,
    RateLimited,
    RequestRepeated,
    Unauthenticated,
    UpstreamFailed,
    error_headers,
    render_error,
)

NO_RETRY = (b"x-should-retry", b"false")
ERRORS: list[tuple[CadenzaError, int, str]] = [
    (InvalidRequest("m"), 400, "invalid_request_error"),
    (Unauthenticated(), 401, "authentication_error"),
    (InsufficientCredit("m"), 402, "insufficient_quota"),
    (Forbidden("m"), 403, "permission_error"),
    (NotFound("m"), 404, "invalid_request_error"),
    (MethodNotAllowed("m", "GET"), 405, "invalid_request_error"),
    (BodyTimedOut(12_345), 408, "invalid_request_error"),
    (RequestRepeated("m"), 409, "invalid_request_error"),
    (PayloadTooLarge(), 413, "invalid_request_error"),
    (RateLimited("m", 1.0), 429, "rate_limit_error"),
    (Ending(), 429, "rate_limit_error"),
    (Internal(), 500, "api_error"),
    (UpstreamFailed("m"), 502, "api_error"),
]


@pytest.mark.parametrize(("error", "status", "type_"), ERRORS, ids=[type(error).__name__ for error, _, _ in ERRORS])
def test_every_error_has_its_status_and_type(error: CadenzaError, status: int, type_: str) -> None:
    """Status and type are those of the API's table of errors."""
    assert (error.status, error.type) == (status, type_)


@pytest.mark.parametrize("error", [error for error, status, _ in ERRORS if status in {400, 401, 402, 403, 404, 409}])
def test_errors_that_a_retry_cannot_help_say_so(error: CadenzaError) -> None:
    """400, 401, 402, 403, 404 and 409 carry `x-should-retry: false`."""
    assert error_headers(error).count(NO_RETRY) == 1


@pytest.mark.parametrize("error", [error for error, status, _ in ERRORS if status in {408, 429, 500, 502}])
def test_errors_that_a_retry_may_help_do_not_forbid_it(error: CadenzaError) -> None:
    """408, 429, 500 and 502 leave the client free to retry."""
    assert NO_RETRY not in error_headers(error)


def test_405_names_the_allowed_method() -> None:
    """The reply to a wrong method has an `Allow` header."""
    assert (b"allow", b"POST") in error_headers(MethodNotAllowed("m", "POST"))


@pytest.mark.parametrize(
    ("wait_s", "seconds", "milliseconds"),
    [
        (2.0, b"2", b"2000"),
        (0.25, b"1", b"250"),
        (1.001, b"2", b"1001"),
        (0.0, b"1", b"1"),
        (0.0001, b"1", b"1"),
        (60, b"60", b"60000"),
    ],
)
def test_429_says_when_to_retry_in_seconds_and_milliseconds(wait_s: float, seconds: bytes, milliseconds: bytes) -> None:
    """`retry-after` is whole seconds, `retry-after-ms` is finer, and neither is ever zero."""
    assert error_headers(RateLimited("m", wait_s)) == [(b"retry-after", seconds), (b"retry-after-ms", milliseconds)]


@given(st.floats(0, 1e6))
def test_429_never_asks_for_a_retry_too_early(wait_s: float) -> None:
    """Both headers are rounded up from the wait, to a whole second and to a whole millisecond."""
    headers = dict(error_headers(RateLimited("m", wait_s)))
    seconds, milliseconds = int(headers[b"retry-after"]), int(headers[b"retry-after-ms"])
    assert wait_s * 1000 - 0.001 <= milliseconds <= wait_s * 1000 + 1
    assert milliseconds <= seconds * 1000 < milliseconds + 1000


@given(st.text(), st.text())
def test_the_error_object_has_one_shape(message: str, type_: str) -> None:
    """For any text the object is `error` with a message and a type, and nothing else."""
    assert msgspec.json.decode(render_error(message, type_)) == {"error": {"message": message, "type": type_}}


@pytest.mark.parametrize("error", [error for error, _, _ in ERRORS])
def test_an_error_has_a_message(error: CadenzaError) -> None:
    """The message for the caller is not empty, and is the text of the exception."""
    assert error.message
    assert str(error) == error.message


def test_408_says_how_much_of_the_body_arrived() -> None:
    """A client sees how many bytes were received before the time was over."""
    assert "12,345 bytes" in BodyTimedOut(12_345).message
