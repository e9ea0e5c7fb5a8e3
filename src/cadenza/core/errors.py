"""The error tree: status, type and whether a retry can help, and the one renderer of the error object.

Messages are written for the caller: they say what is wrong and what to do, and never name an upstream,
quote a message's content or show a key.
"""

import math

import msgspec

Headers = list[tuple[bytes, bytes]]


class CadenzaError(Exception):
    """A fault with an answer of its own. Raised anywhere before the first byte, rendered at the edge."""

    status = 500
    type = "api_error"
    retry_helps = True

    def __init__(self, message: str, headers: Headers | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.headers = headers or []


class InvalidRequest(CadenzaError):
    """The request itself is at fault; the same request will fail again."""

    status = 400
    type = "invalid_request_error"
    retry_helps = False


class Unauthenticated(CadenzaError):
    """No live key. One sentence for missing, malformed, unknown, revoked and expired keys alike."""

    status = 401
    type = "authentication_error"
    retry_helps = False

    def __init__(self) -> None:
        super().__init__(
            "No valid API key was given: it is missing, mistyped, revoked or expired. "
            "Send one as 'Authorization: Bearer sk-cdz-…' or as 'x-api-key: sk-cdz-…'."
        )


class InsufficientCredit(CadenzaError):
    """The account's credit does not pay for the request."""

    status = 402
    type = "insufficient_quota"
    retry_helps = False


class Forbidden(CadenzaError):
    """The key is good, but not for this."""

    status = 403
    type = "permission_error"
    retry_helps = False


class NotFound(InvalidRequest):
    """No such path or model."""

    status = 404


class MethodNotAllowed(InvalidRequest):
    """The path is known, the method is not one of its own."""

    status = 405

    def __init__(self, message: str, allow: str) -> None:
        super().__init__(message, [(b"allow", allow.encode())])


class RequestRepeated(InvalidRequest):
    """A request with this idempotency key was served before."""

    status = 409


class BodyTimeout(InvalidRequest):
    """The body did not arrive in time."""

    status = 408
    retry_helps = True


class BodyTooLarge(InvalidRequest):
    """The body is larger than the service takes."""

    status = 413


class RateLimited(CadenzaError):
    """Too much at once; the same request will be served a little later."""

    status = 429
    type = "rate_limit_error"

    def __init__(self, message: str, retry_after_s: float) -> None:
        wait_ms = max(1, math.ceil(round(retry_after_s * 1000, 3)))
        super().__init__(
            message,
            [(b"retry-after", b"%d" % -(-wait_ms // 1000)), (b"retry-after-ms", b"%d" % wait_ms)],
        )


class Ending(RateLimited):
    """The service ends, and this request with it."""

    def __init__(self) -> None:
        super().__init__("The service is restarting, and this request was ended with it. Retry.", 1.0)


class UpstreamFailed(CadenzaError):
    """The upstream model failed and the fault is not the request's."""

    status = 502


class Internal(CadenzaError):
    """A fault of our own. It says nothing about itself to the caller; the log has its place."""

    def __init__(self) -> None:
        super().__init__("The service met an internal error. Try again; if it stays, report the x-request-id.")


class ErrorBody(msgspec.Struct, frozen=True):
    """What stands under `error`."""

    message: str
    type: str


class ErrorObject(msgspec.Struct, frozen=True):
    """The one shape of every error."""

    error: ErrorBody


def render_error(message: str, type_: str) -> bytes:
    return msgspec.json.encode(ErrorObject(ErrorBody(message, type_)))


def error_headers(error: CadenzaError) -> Headers:
    """The headers that tell a client whether to try again, and when."""
    if error.retry_helps:
        return error.headers
    return [*error.headers, (b"x-should-retry", b"false")]
