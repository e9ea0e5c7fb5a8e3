"""The error tree: status, type and whether a retry can help, and the one renderer of the error object.

Messages are for the caller: they say what is wrong and what to do. They never name an upstream, quote content or show a
key.
"""

import math
from collections.abc import Sequence

import msgspec

PAUSE_S_MAX = 1.0  # for the first refusal in a row

Headers = list[tuple[bytes, bytes]]


class CadenzaError(Exception):
    """An error with a reply of its own. Raised anywhere before the first byte, rendered at the edge of the request."""

    status = 500
    type = "api_error"
    cause = "internal"  # one word for operators
    retry_helps = True
    pause_s = 0.0  # the reply to a client that retries at once is delayed this long
    default_message = ""  # of an error that always says the same

    def __init__(self, message: str = "", headers: Headers | None = None) -> None:
        self.message = message or self.default_message
        super().__init__(self.message)
        self.headers = headers or []


class InvalidRequest(CadenzaError):
    """The request is invalid; the same request will fail again."""

    cause = "invalid"
    status = 400
    type = "invalid_request_error"
    retry_helps = False


class ContextOverflow(InvalidRequest):
    """The prompt is too long. Clients look for these words, and read the numbers: write them without separators."""

    cause = "context_length"

    def __init__(self, window_tokens: int, prompt_tokens: int) -> None:
        super().__init__(
            f"context_length_exceeded: This model's maximum context length is {window_tokens} tokens. "
            f"However, your messages resulted in {prompt_tokens} tokens. "
            "Shorten the messages or the tool definitions, or use a class with a larger window."
        )
        self.window_tokens = window_tokens
        self.prompt_tokens = prompt_tokens


class UnreadableAttachment(InvalidRequest):
    """A file of the request cannot be read. `reason` ends the sentence: "it is encrypted". `advice` is for programs."""

    cause = "attachment"

    def __init__(self, name: str, reason: str, advice: str = "") -> None:
        super().__init__(f"messages: the file '{name}' cannot be read: {reason}{advice}.")
        self.name = name
        self.reason = reason


class NotTaken(InvalidRequest):
    """No model of the class takes the parts or tools of the request. `need` is the missing capability."""

    cause = "not_taken"

    def __init__(self, message: str, class_id: str, need: str, able_classes: Sequence[str] = ()) -> None:
        able = f" Classes that take them: {', '.join(able_classes)}." if able_classes else ""
        super().__init__(message + able)
        self.class_id = class_id
        self.need = need
        self.able_classes = able_classes


class Unauthenticated(CadenzaError):
    """No valid key. The message is the same for missing, malformed, unknown, revoked and expired keys."""

    cause = "no_key"
    status = 401
    type = "authentication_error"
    retry_helps = False
    pause_s = 0.05
    default_message = (
        "No valid API key was given: it is missing, mistyped, revoked or expired. "
        "Send one as 'Authorization: Bearer sk-cdz-…' or as 'x-api-key: sk-cdz-…'."
    )


class AccessTokenGiven(Unauthenticated):
    """An access token of the platform API was sent in place of a key."""

    default_message = (
        "This is an access token (cdz_…), which opens /platform/api. Below /v1 an API key (sk-cdz-…) is needed: create "
        "one on the page of keys, or with POST /platform/api/keys."
    )


class KeyRevoked(Unauthenticated):
    """The key was live when the request began; while it ran, the key was revoked or its account was suspended."""

    cause = "key_revoked"
    default_message = "The request was ended: its API key was revoked, or its account was suspended."


class InsufficientCredit(CadenzaError):
    """The account's credit does not pay for the request. What it has and needs are known if credit alone is missing."""

    cause = "credit"
    status = 402
    type = "insufficient_quota"
    retry_helps = False

    def __init__(self, message: str, free_nano: int = 0, needed_nano: int = 0) -> None:
        super().__init__(message)
        self.free_nano = free_nano
        self.needed_nano = needed_nano


class Forbidden(CadenzaError):
    """The key is valid, but lacks the scope."""

    cause = "scope"
    status = 403
    type = "permission_error"
    retry_helps = False


class NotFound(InvalidRequest):
    """No such path or model."""

    cause = "not_found"
    status = 404


class MethodNotAllowed(InvalidRequest):
    """The path is known, but not with this method."""

    cause = "method"
    status = 405

    def __init__(self, method: str, allowed: Sequence[str]) -> None:
        message = f"{method} is not allowed for this path; use {allowed[0]}."
        super().__init__(message, [(b"allow", ", ".join(allowed).encode())])


class RequestRepeated(InvalidRequest):
    """A request with this idempotency key was served before."""

    cause = "repeated"
    status = 409


class BodyTimedOut(InvalidRequest):
    """The body did not arrive in time."""

    cause = "body_late"
    status = 408
    retry_helps = True

    def __init__(self, received_bytes: int) -> None:
        super().__init__(f"The body did not arrive in time: after {received_bytes:,} bytes the rest was still missing.")


class PayloadTooLarge(InvalidRequest):
    """The body is larger than the service accepts."""

    cause = "body_size"
    status = 413
    default_message = "The body is larger than 32 MiB, which is the maximum."


class UnsupportedEncoding(InvalidRequest):
    """The body is compressed."""

    cause = "encoding"
    status = 415
    default_message = "A compressed body is not supported: send it without content-encoding."


class RateLimited(CadenzaError):
    """Too many requests at once; the same request can be served a little later."""

    status = 429
    type = "rate_limit_error"

    def __init__(self, message: str, retry_after_s: float, cause: str = "limited") -> None:
        wait_ms = max(1, math.ceil(round(retry_after_s * 1000, 3)))
        super().__init__(
            message,
            [(b"retry-after", b"%d" % -(-wait_ms // 1000)), (b"retry-after-ms", b"%d" % wait_ms)],
        )
        self.pause_s = min(wait_ms / 1000, PAUSE_S_MAX)
        self.cause = cause


class Ending(RateLimited):
    """The service is stopping, and ends this request."""

    def __init__(self) -> None:
        super().__init__("The service is restarting and ended this request. Retry.", 1.0, "shutdown")


class UpstreamFailed(CadenzaError):
    """The upstream failed, and the request is not at fault."""

    cause = "upstream"
    status = 502


class Internal(CadenzaError):
    """An error of our own. The log says where it happened; the caller learns nothing about it."""

    default_message = "The service had an internal error. Retry; if it persists, report the x-request-id."


class NotCharged(CadenzaError):
    """The reply cannot be charged, because another process has ended its request: it must not seem complete."""

    cause = "swept"

    default_message = "The service was interrupted before this reply was complete. Retry."


class ChargeUnconfirmed(CadenzaError):
    """The store did not confirm the charge in time: the end of the reply is withheld, and it may still be charged."""

    cause = "charge_unconfirmed"
    retry_helps = False  # a retry is a new request, with a charge of its own

    def __init__(self, request_id: str) -> None:
        super().__init__(
            "The store did not confirm the charge for this reply in time, so the end of the reply is withheld. "
            "The charge may still be written, once; a retry is a new request with its own charge. "
            f"The request id is {request_id}: the usage of the account shows whether it was charged."
        )


def render_error(message: str, type_: str) -> bytes:
    """The error object: the one form of every error."""
    return msgspec.json.encode({"error": {"message": message, "type": type_}})


def error_headers(error: CadenzaError) -> Headers:
    """The headers that tell a client whether to retry, and when."""
    if error.retry_helps:
        return error.headers
    return [*error.headers, (b"x-should-retry", b"false")]


class ExpectedError(Exception):
    """What stops a command without being a bug: its text is one sentence for the person who runs it."""


class ControlError(ExpectedError):
    """A page or a command cannot do what it was asked. The message, for the person, says why and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Unknown(ControlError):
    """There is no such thing, or it belongs to another account. `noun` says of what kind it would be."""

    def __init__(self, noun: str, message: str = "") -> None:
        super().__init__(message or f"There is no such {noun}.")
        self.noun = noun
