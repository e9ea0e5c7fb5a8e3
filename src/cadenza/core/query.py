"""The query of a request, for the API, the pages and /platform/api: the one place that reads it.

It is a part of the head, which anybody may send, so its size is checked before it is decoded, and before a key, a
session or a page is looked up.
"""

from urllib.parse import parse_qsl

from cadenza.core.errors import InvalidRequest

QUERY_BYTES_MAX = 4096
QUERY_FIELDS_MAX = 50


def read_query(query: bytes) -> dict[str, str]:
    """The fields by name; InvalidRequest if they are too many. Of a repeated one the last counts; empty ones do not."""
    if not query:
        return {}
    if len(query) > QUERY_BYTES_MAX:
        raise _too_large(len(query), "bytes", QUERY_BYTES_MAX)
    if (fields := query.count(b"&") + 1) > QUERY_FIELDS_MAX:
        raise _too_large(fields, "fields", QUERY_FIELDS_MAX)
    return dict(parse_qsl(query.decode("latin-1")))


def _too_large(found: int, unit: str, allowed: int) -> InvalidRequest:
    return InvalidRequest(f"The query of the address, behind its '?', has {found:,} {unit}. Send at most {allowed:,}.")
