"""The top-level fields of a request that the service does not know: dropped and named, or passed on by a route.

Their names come from the client: only those that are plain words are kept, and no more than a fixed number.
"""

import re
from collections.abc import Container, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from cadenza.core.chat import Fields
from cadenza.core.errors import InvalidRequest
from cadenza.core.message_json import RAW_FIELDS
from cadenza.core.records import Plan, Route
from cadenza.gateway.tools import NOTHING

if TYPE_CHECKING:  # the child that parses large bodies does without asyncio
    from cadenza.routing.prompt import PromptSize

PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
FIELDS_MAX = 64
NAMED_MAX = 32
PASSED_BYTES_MAX = 64 * 1024  # of one field
DEPRECATED = frozenset({"functions", "function_call", "input"})  # looked at: see validate.py


def read_extra_fields(body: bytes | bytearray, known: Container[str]) -> dict[str, msgspec.Raw]:
    """The fields of a valid body that are not known and not null."""
    given = ((name, raw) for name, raw in RAW_FIELDS.decode(body).items() if name not in known and raw != NOTHING)
    fields: dict[str, msgspec.Raw] = {}
    for name, raw in given:
        if name in DEPRECATED or (len(fields) < FIELDS_MAX and PLAIN_NAME.fullmatch(name)):
            fields[name] = raw
    return fields


def passed_fields(extra: Fields, plan: Plan) -> Fields:
    """The fields that a route of the plan may send upstream."""
    names = {name for route in plan.routes for name in route.passes}
    return {name: raw for name, raw in extra.items() if name in names}


def count_passed_fields(extra: Fields, plan: Plan, prompt: "PromptSize") -> None:
    """Count what a route of the plan may send upstream as a part of the prompt. Its bytes are in the body already."""
    passed = passed_fields(extra, plan)
    for name, raw in passed.items():
        if memoryview(raw).nbytes > PASSED_BYTES_MAX:
            raise InvalidRequest(f"{name}: is larger than {PASSED_BYTES_MAX // 1024} KiB, which is the maximum.")
    if passed:
        prompt.add_texts(tuple(f'"{name}":{bytes(raw).decode()}' for name, raw in passed.items()), 0)


def ignored_header(extra: Fields, sampling: Fields, route: Route) -> bytes:
    """The header that names what the request has and the route is not sent; empty if it is sent everything."""
    ignored: Sequence[str] = [name for name in extra if name not in route.passes]
    ignored = [*ignored, *(name for name in sampling if name in route.drops)]
    if not ignored:
        return b""
    more = ["..."] if len(ignored) > NAMED_MAX or len(extra) >= FIELDS_MAX else []
    return f"x-cadenza-ignored: {', '.join([*islice(ignored, NAMED_MAX), *more])}\r\n".encode()
