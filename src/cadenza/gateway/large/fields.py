"""Bounds the number of fields of each message and each tool of a large body.

Some upstreams want messages and tools rewritten field by field, which the event loop does. A small body cannot have
many fields.
"""

import msgspec

from cadenza.core.errors import InvalidRequest
from cadenza.gateway.tools import NOTHING
from cadenza.gateway.validate import RAW_ITEMS, Body

FIELDS_MAX = 256  # of a message, a tool, its function, or a call
SMALL_BYTES = 16 * 1024  # it cannot have many fields

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def check_field_numbers(body: Body) -> None:
    for index, message in enumerate(RAW_ITEMS.decode(body.messages)):
        fields = _check(f"messages[{index}]", message)
        for number, call in enumerate(_items(fields.get("tool_calls"))):
            _check(f"messages[{index}].tool_calls[{number}]", call)
    for index, tool in enumerate(_items(body.tools)):
        fields = _check(f"tools[{index}]", tool)
        if "function" in fields:
            _check(f"tools[{index}].function", fields["function"])


def _items(array: msgspec.Raw | None) -> list[msgspec.Raw]:
    is_array = array is not None and array != NOTHING
    return RAW_ITEMS.decode(array) if array is not None and is_array else []


def _check(path: str, raw: msgspec.Raw) -> dict[str, msgspec.Raw]:
    """The fields of an object, if it is so large that it may have many."""
    if memoryview(raw).nbytes <= SMALL_BYTES or memoryview(raw)[0] != ord("{"):
        return {}
    fields = _FIELDS.decode(raw)
    if len(fields) > FIELDS_MAX:
        raise InvalidRequest(f"{path}: has {len(fields)} fields; at most {FIELDS_MAX} are allowed.")
    return fields
