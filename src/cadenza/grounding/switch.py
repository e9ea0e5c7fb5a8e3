"""The request header that turns memory and search off for one request.

It is about privacy, so a value with a typing error is refused: the request must not be sent on with what it forbids.
"""

from cadenza.core.errors import InvalidRequest
from cadenza.http.exchange import Request

SWITCH = b"x-cadenza-grounding"
OFF = b"none"
UNKNOWN_VALUE = (
    "x-cadenza-grounding: the only value that a request can have is `none`, which turns memory and search off. "
    "Leave the header out to have them."
)


def is_turned_off(request: Request) -> bool:
    """Whether the header is there and says so; 400 if it says anything else. An empty value counts as none at all."""
    if SWITCH not in request.headers:
        return False
    values = {one.strip().lower() for name, value in request.fields if name == SWITCH for one in value.split(b",")}
    values.discard(b"")
    if values - {OFF}:
        raise InvalidRequest(UNKNOWN_VALUE)
    return bool(values)
