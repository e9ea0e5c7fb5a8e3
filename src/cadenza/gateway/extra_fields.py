"""The top-level fields of a request that the service does not know: dropped and named, or passed on by a route.

Their names come from the client: only those that are plain words are kept, and no more than a fixed number.
"""

import hashlib
import re
from collections.abc import Container, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from cadenza.core.chat import CACHE_KEY, SEARCH_FIELDS, ChatRequest, Fields
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
CACHE_KEY_CHARS = 32
# Values that say what happens anyway. Other tiers are not sent: a faster one costs the operator more than the class has
# for its price, and a slower one is often refused, which would count against the route for everybody.
USUAL: Mapping[str, Container[msgspec.Raw]] = {
    "store": (msgspec.Raw(b"false"),),
    "service_tier": (msgspec.Raw(b'"auto"'), msgspec.Raw(b'"default"')),
    "truncation": (msgspec.Raw(b'"disabled"'),),
}
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


def with_passed_fields(chat: ChatRequest, plan: Plan, prompt: "PromptSize", account_id: str) -> ChatRequest:
    """Count what a route of the plan may send upstream as a part of the prompt. Its bytes are in the body already."""
    passed = passed_fields(chat.extra, plan)
    for name, raw in passed.items():
        if memoryview(raw).nbytes > PASSED_BYTES_MAX:
            raise InvalidRequest(f"{name}: is larger than {PASSED_BYTES_MAX // 1024} KiB, which is the maximum.")
    if CACHE_KEY in passed:
        own = {CACHE_KEY: own_cache_key(passed[CACHE_KEY], account_id)}
        chat, passed = msgspec.structs.replace(chat, extra={**chat.extra, **own}), {**passed, **own}
    if passed:
        prompt.add_texts(tuple(f'"{name}":{bytes(raw).decode()}' for name, raw in passed.items()), 0)
    return chat


def own_cache_key(raw: msgspec.Raw, account_id: str) -> msgspec.Raw:
    """A key of this account alone, which says nothing of the client's: all accounts share the cache of a provider."""
    digest = hashlib.sha256(b"%b\0%b" % (account_id.encode(), bytes(raw))).hexdigest()
    return msgspec.Raw(b'"%b"' % digest[:CACHE_KEY_CHARS].encode())


def ignored_header(chat: ChatRequest, route: Route, *, searches: bool) -> bytes:
    """The header that names what the request has and the route is not sent; empty if it is sent everything.

    What says nothing but what happens anyway is not named, and neither is what asks for a search, if there is one.
    """
    ignored: Sequence[str] = [
        name
        for name, raw in chat.extra.items()
        if name not in route.passes
        and raw not in USUAL.get(name, ())
        and not (searches and name.startswith(SEARCH_FIELDS))
    ]
    ignored = [*ignored, *(name for name in chat.sampling if name in route.drops)]
    if not ignored:
        return b""
    more = ["..."] if len(ignored) > NAMED_MAX or len(chat.extra) >= FIELDS_MAX else []
    return f"x-cadenza-ignored: {', '.join([*islice(ignored, NAMED_MAX), *more])}\r\n".encode()
